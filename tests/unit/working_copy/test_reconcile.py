"""The full walk owes what the disk has, and never deletes in the bucket what the disk lacks."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from sessionfs.formats.intent_records import Operation
from sessionfs.working_copy.reconcile import Findings, Reconciliation
from sessionfs.working_copy.upload_journal import KnownObject

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
    node = host.journal.node(number)
    assert node is not None
    assert not node.present
    assert host.journal.object("sessions/s/f") is not None


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
