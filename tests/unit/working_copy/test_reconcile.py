"""The full walk owes what the disk has, and never deletes in the bucket what the disk lacks."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from sessionfs.formats.intent_records import Operation
from sessionfs.working_copy.known_content import KnownObject
from sessionfs.working_copy.reconciliation.reconcile import Findings, Reconciliation

from .test_record_application import Host, host

__all__ = ["host"]


def walk(made: Host) -> Findings:
    return Reconciliation(made.journal, made.layout, now_ns=1).run()


def clean(made: Host, path: str, number: int) -> None:
    made.settle()
    status = made.path(path).stat()
    made.journal.update_node(
        number,
        clean_size=status.st_size,
        clean_mtime_ns=status.st_mtime_ns,
        clean_ctime_ns=status.st_ctime_ns,
    )


def test_a_file_that_no_record_told_of_is_owed(host: Host) -> None:
    host.path("s/sub").mkdir()
    host.path("s/sub/new").write_bytes(b"x")
    walk(host)
    assert {"sub/", "sub/new"} <= host.owed()


def test_a_clean_file_stays_clean(host: Host) -> None:
    number = host.make(Operation.CREATE, host.session, "f", "s/f")
    clean(host, "s/f", number)
    walk(host)
    assert host.owed() == {""}


def test_a_change_that_kept_size_and_mtime_is_seen_by_its_ctime(host: Host) -> None:
    number = host.make(Operation.CREATE, host.session, "f", "s/f")
    host.path("s/f").write_bytes(b"abc")
    clean(host, "s/f", number)
    before = host.path("s/f").stat()
    host.path("s/f").write_bytes(b"xyz")
    os.utime(host.path("s/f"), ns=(before.st_atime_ns, before.st_mtime_ns))
    walk(host)
    assert "f" in host.owed()


def test_a_missing_file_is_fetched_again_not_deleted(host: Host) -> None:
    number = host.make(Operation.CREATE, host.session, "f", "s/f")
    clean(host, "s/f", number)
    host.path("s/f").unlink()
    findings = walk(host)
    assert findings.missing == ["s/f"]
    assert "f" not in host.owed()
    again = host.journal.resolve("s", b"f")
    node = host.journal.node(again) if again is not None else None
    assert node is not None
    assert not node.present
    assert host.journal.object("sessions/s/f") is not None
    # The disk gives the lost inode's number to the next file.
    assert node.number != number


def test_a_missing_file_that_never_left_is_reported(host: Host) -> None:
    host.make(Operation.CREATE, host.session, "f", "s/f")
    host.apply()
    host.path("s/f").unlink()
    walk(host)
    assert host.journal.resolve("s", b"f") is None
    assert [event.name for event in host.journal.events(0, 100)][-1] == "session.file.missing"


def test_a_session_whose_directory_was_removed_is_forgotten_without_a_delete(host: Host) -> None:
    host.make(Operation.CREATE, host.session, "f", "s/f")
    host.settle()
    shutil.rmtree(host.path("s"))
    walk(host)
    assert host.journal.all_work() == []
    assert host.journal.session("s") is None
    assert host.journal.object("sessions/s/f") is None


def test_a_lost_journal_is_filled_from_the_disk(tmp_path: Path) -> None:
    first = Host(tmp_path / "state")
    first.make(Operation.CREATE, first.session, "f", "s/f")
    os.link(first.path("s/f"), first.path("s/g"))
    first.journal.close()
    for name in ("journal.db", "journal.db-wal", "journal.db-shm", "intent.log"):
        (tmp_path / "state" / name).unlink(missing_ok=True)
    again = Host.__new__(Host)
    again.layout = first.layout
    from sessionfs.model.clock import SystemClock
    from sessionfs.working_copy.upload_journal import UploadJournal

    again.journal = UploadJournal(first.layout.journal, clock=SystemClock())
    assert again.journal.fresh
    walk(again)
    assert again.owed() == {"", "f", "g"}
    row = again.journal.session("s")
    assert row is not None
    assert not row.known
    assert again.journal.resolve("s", b"f") == again.journal.resolve("s", b"g")
    again.journal.close()


def test_a_kind_that_changed_is_a_new_inode(host: Host) -> None:
    number = host.make(Operation.CREATE, host.session, "x", "s/x")
    clean(host, "s/x", number)
    host.path("s/x").unlink()
    host.path("s/x").mkdir()
    walk(host)
    assert "x/" in host.owed()
    known: KnownObject | None = host.journal.object("sessions/s/x")
    assert known is not None


def test_what_replaced_a_directory_is_proof_that_it_is_gone(host: Host) -> None:
    directory = host.make(Operation.MKDIR, host.session, "x", "s/x")
    host.make(Operation.CREATE, directory, "in", "s/x/in")
    host.settle()
    shutil.rmtree(host.path("s/x"))
    host.path("s/x").write_bytes(b"a file now")
    walk(host)
    assert {"x", "x/", "x/in"} <= host.owed()
    assert host.journal.wanted("sessions/s/x/in") is None
    assert host.journal.wanted("sessions/s/x") is not None


def test_a_missing_name_of_a_file_that_has_another_leaves_that_one_on_this_disk(host: Host) -> None:
    number = host.make(Operation.CREATE, host.session, "a", "s/a")
    os.link(host.path("s/a"), host.path("s/b"))
    sequence = host.log.begin(Operation.LINK, number=number, new_parent=host.session, new_name=b"b")
    host.log.finish(sequence, number=number)
    clean(host, "s/a", number)
    host.path("s/a").write_bytes(b"changed before the power cut")
    host.path("s/b").unlink()
    walk(host)
    here, there = (host.journal.resolve("s", name) for name in (b"a", b"b"))
    assert here == number
    node, gone = host.journal.node(number), host.journal.node(there or 0)
    assert node is not None
    assert node.present
    assert gone is not None
    assert not gone.present
    assert "a" in host.owed()


def test_a_hard_linked_name_that_was_replaced_is_a_file_of_its_own(host: Host) -> None:
    number = host.make(Operation.CREATE, host.session, "a", "s/a")
    os.link(host.path("s/a"), host.path("s/b"))
    sequence = host.log.begin(Operation.LINK, number=number, new_parent=host.session, new_name=b"b")
    host.log.finish(sequence, number=number)
    host.settle()
    host.path("s/new").write_bytes(b"other bytes")
    host.path("s/new").rename(host.path("s/b"))
    walk(host)
    assert host.journal.resolve("s", b"a") == number
    assert host.journal.resolve("s", b"b") == host.path("s/b").stat().st_ino
    assert "b" in host.owed()


def test_a_missing_files_number_can_be_given_to_another(host: Host) -> None:
    number = host.make(Operation.CREATE, host.session, "f", "s/f")
    clean(host, "s/f", number)
    host.path("s/f").rename(host.path("s/g"))
    walk(host)
    lost, found = (host.journal.resolve("s", name) for name in (b"f", b"g"))
    assert found == number
    assert lost not in {None, number}
    assert "g" in host.owed()


def test_a_missing_link_is_left_to_the_bucket(host: Host) -> None:
    host.make(Operation.SYMLINK, host.session, "l", "s/l")
    host.settle()
    host.path("s/l").unlink()
    walk(host)
    assert host.journal.resolve("s", b"l") is None
    assert "l" not in host.owed()


def test_a_missing_directory_keeps_what_the_bucket_has_in_it(host: Host) -> None:
    directory = host.make(Operation.MKDIR, host.session, "d", "s/d")
    host.make(Operation.CREATE, directory, "f", "s/d/f")
    host.settle()
    host.make(Operation.CREATE, directory, "never sent", "s/d/never sent")
    host.apply()
    shutil.rmtree(host.path("s/d"))
    walk(host)
    for path in (b"d", b"d/f"):
        node = host.journal.node(host.journal.resolve("s", path) or 0)
        assert node is not None
        assert not node.present
    assert host.journal.resolve("s", b"d/never sent") is None
    assert host.journal.resolve("s", b"d") != directory


def test_a_tree_deeper_than_the_longest_path_is_walked(host: Host) -> None:
    descriptor = os.open(host.path("s"), os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(20):
        os.mkdir("d" * 250, dir_fd=descriptor)
        below = os.open("d" * 250, os.O_RDONLY | os.O_DIRECTORY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = below
    os.close(os.open("f", os.O_WRONLY | os.O_CREAT, dir_fd=descriptor))
    os.close(descriptor)
    findings = walk(host)
    assert findings.entries == 21
    assert findings.unreadable == []


def test_a_directory_that_its_owner_may_not_read_is_walked(host: Host) -> None:
    inner = host.path("s/closed/inner")
    inner.mkdir(parents=True)
    inner.joinpath("f").write_bytes(b"x")
    for path in (inner, inner.parent):
        path.chmod(0)
    if os.geteuid() == 0:
        _walk_as_somebody(host)
    else:
        walk(host)
    assert {"closed/", "closed/inner/", "closed/inner/f"} <= host.owed()
    assert inner.parent.stat().st_mode & 0o777 == 0


def _walk_as_somebody(host: Host) -> None:
    """Root reads everything: give the state directory to another user, and be that one meanwhile."""
    nobody = 65534
    root = Path(host.layout.root)
    for above in list(root.parents)[:4]:
        above.chmod(above.stat().st_mode | 0o055)
    for path in (root, *root.rglob("*")):
        os.chown(path, nobody, nobody)
    os.seteuid(nobody)
    try:
        walk(host)
    finally:
        os.seteuid(0)


def test_shared_roots_are_walked_and_trees_of_the_past_are_not(host: Host) -> None:
    for name in ("%eval%run7", "%eval%run7%g3", "s%g3", "%eval"):
        host.path(name).mkdir()
        host.path(f"{name}/f").write_bytes(b"x")
    walk(host)
    assert {row.key for row in host.journal.all_work()} == {"eval/run7/", "eval/run7/f", "sessions/s/"}
    assert {row.id for row in host.journal.sessions()} == {"s", "%eval%run7"}
