"""Operations of the log become the journal's tree and the keys to look at."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sessionfs.formats.intent_records import Operation
from sessionfs.formats.link_messages import (
    FIRST_REMOTE_NUMBER,
)
from sessionfs.model.clock import SystemClock
from sessionfs.working_copy.exclusions import Exclusions
from sessionfs.working_copy.intent_log import INTERRUPTED, IntentLog, IntentLogReader
from sessionfs.working_copy.known_content import KnownObject
from sessionfs.working_copy.layout import ROOT_NUMBER, StateLayout
from sessionfs.working_copy.record_application import RecordApplication
from sessionfs.working_copy.upload_journal import UploadJournal


class Host:
    """A working copy, its log and its journal, as the daemon and the replication process use them."""

    def __init__(self, root: Path) -> None:
        self.layout = StateLayout(str(root))
        self.layout.create()
        self.log = IntentLog(self.layout.intent_log, boot_id="b" * 36, clock=SystemClock())
        self.reader = IntentLogReader(self.layout.intent_log)
        self.journal = UploadJournal(self.layout.journal, clock=SystemClock())
        self.deleted: list[str] = []
        self.application = RecordApplication(
            self.journal,
            self.layout,
            exclusions=Exclusions(("*.tmp", "build/**")),
            on_delete=lambda _session, key: self.deleted.append(key),
        )
        self.position = 0
        self.session = self.make(Operation.MKDIR, ROOT_NUMBER, "s", "s")

    def path(self, inside: str) -> Path:
        return Path(self.layout.sessions) / inside

    def make(self, operation: Operation, parent: int, name: str, path: str) -> int:
        sequence = self.log.begin(operation, parent=parent, name=name.encode(), mode=stat.S_IFREG | 0o644)
        target = self.path(path)
        if operation == Operation.MKDIR:
            target.mkdir()
        elif operation == Operation.SYMLINK:
            target.symlink_to("target")
        else:
            target.write_bytes(b"")
        number = target.lstat().st_ino
        self.log.finish(sequence, number=number)
        return number

    def apply(self) -> None:
        batch = self.reader.read(self.position)
        self.application.apply(batch.operations, batch.position)
        self.position = batch.position

    def owed(self) -> set[str]:
        return {row.key.removeprefix("sessions/s/") for row in self.journal.all_work()}

    def settle(self) -> None:
        """Pretend that everything reached the bucket."""
        self.apply()
        for row in self.journal.all_work():
            wanted = self.journal.wanted(row.key)
            if wanted is None:
                self.journal.drop_object(row.key)
            else:
                known = KnownObject(row.key, wanted.node.number, "t", "w", "", 0, 0, 0, 0, 0, "")
                self.journal.put_object(known)
            self.journal.finish_work(row.key, row.version)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path / "state")
    made.settle()
    yield made
    made.journal.close()
    made.log.close()


def test_a_new_file_and_its_directory_are_owed(host: Host) -> None:
    number = host.make(Operation.CREATE, host.session, "f", "s/f")
    host.apply()
    assert host.owed() == {"f", ""}
    wanted = host.journal.wanted("sessions/s/f")
    assert wanted is not None
    assert wanted.node.number == number


def test_a_session_made_here_is_known_and_written(host: Host) -> None:
    row = host.journal.session("s")
    assert row is not None
    assert (row.known, row.written, row.root) == (True, True, host.session)


def test_a_file_made_and_removed_leaves_only_keys_to_look_at(host: Host) -> None:
    number = host.make(Operation.CREATE, host.session, "f", "s/f")
    host.log.finish(host.log.begin(Operation.UNLINK, number=number, parent=host.session, name=b"f"))
    host.path("s/f").unlink()
    host.apply()
    assert host.journal.wanted("sessions/s/f") is None
    assert host.journal.node(number) is None
    assert host.deleted == []


def test_a_removed_file_that_the_bucket_has_is_counted_by_the_brake(host: Host) -> None:
    number = host.make(Operation.CREATE, host.session, "f", "s/f")
    host.settle()
    host.log.finish(host.log.begin(Operation.UNLINK, number=number, parent=host.session, name=b"f"))
    host.apply()
    assert host.deleted == ["sessions/s/f"]


def test_a_renamed_directory_owes_every_old_and_new_key(host: Host) -> None:
    directory = host.make(Operation.MKDIR, host.session, "a", "s/a")
    host.make(Operation.CREATE, directory, "f", "s/a/f")
    host.settle()
    sequence = host.log.begin(
        Operation.RENAME, number=directory, parent=host.session, name=b"a", new_parent=host.session, new_name=b"b"
    )  # fmt: skip
    host.path("s/a").rename(host.path("s/b"))
    host.log.finish(sequence)
    host.apply()
    assert host.owed() == {"", "a/", "a/f", "b/", "b/f"}
    assert host.journal.resolve("s", b"b/f") is not None
    assert host.journal.resolve("s", b"a") is None


def test_a_rename_over_a_file_forgets_the_victim(host: Host) -> None:
    old = host.make(Operation.CREATE, host.session, "old", "s/old")
    new = host.make(Operation.CREATE, host.session, "new", "s/new")
    host.settle()
    sequence = host.log.begin(
        Operation.RENAME, number=new, parent=host.session, name=b"new", new_parent=host.session, new_name=b"old",
        replaced=old,
    )  # fmt: skip
    host.path("s/new").rename(host.path("s/old"))
    host.log.finish(sequence)
    host.apply()
    assert host.journal.resolve("s", b"old") == new
    assert host.journal.node(old) is None


def test_an_exchange_swaps_and_owes_both(host: Host) -> None:
    first = host.make(Operation.CREATE, host.session, "a", "s/a")
    second = host.make(Operation.CREATE, host.session, "b", "s/b")
    host.settle()
    host.log.finish(
        host.log.begin(
            Operation.EXCHANGE,
            number=first,
            parent=host.session,
            name=b"a",
            new_parent=host.session,
            new_name=b"b",
            replaced=second,
        )
    )
    host.apply()
    assert (host.journal.resolve("s", b"a"), host.journal.resolve("s", b"b")) == (second, first)
    assert {"a", "b"} <= host.owed()


def test_a_hard_link_is_one_inode_under_two_keys(host: Host) -> None:
    number = host.make(Operation.CREATE, host.session, "a", "s/a")
    host.settle()
    host.log.finish(host.log.begin(Operation.LINK, number=number, new_parent=host.session, new_name=b"b"))
    host.settle()
    host.log.note(Operation.WRITTEN, number=number)
    host.apply()
    assert host.owed() == {"a", "b"}
    host.log.finish(host.log.begin(Operation.UNLINK, number=number, parent=host.session, name=b"a"))
    host.apply()
    assert host.journal.node(number) is not None


def test_attributes_of_a_file_that_is_elsewhere_change_in_the_journal(host: Host) -> None:
    number = FIRST_REMOTE_NUMBER + 5
    host.journal.put_node(number, mode=stat.S_IFREG | 0o600, present=False)
    host.journal.link(host.session, b"far", number)
    host.log.finish(host.log.begin(Operation.SETATTR, number=number, mode=0o755, mtime_ns=-5))
    host.apply()
    node = host.journal.node(number)
    assert node is not None
    assert (node.mode, node.mtime_ns) == (stat.S_IFREG | 0o755, -5)
    assert host.owed() == {"far"}


def test_excluded_names_are_never_owed(host: Host) -> None:
    host.make(Operation.CREATE, host.session, "x.tmp", "s/x.tmp")
    directory = host.make(Operation.MKDIR, host.session, "build", "s/build")
    host.make(Operation.CREATE, directory, "o", "s/build/o")
    host.apply()
    assert host.owed() == {"", "build/"}


def test_a_write_to_a_databases_log_owes_the_database(host: Host) -> None:
    host.make(Operation.CREATE, host.session, "x.db", "s/x.db")
    wal = host.make(Operation.CREATE, host.session, "x.db-wal", "s/x.db-wal")
    host.settle()
    host.log.note(Operation.WRITTEN, number=wal)
    host.apply()
    assert "x.db" in host.owed()


def test_a_failed_operation_changes_nothing(host: Host) -> None:
    number = host.make(Operation.CREATE, host.session, "f", "s/f")
    host.settle()
    host.log.finish(host.log.begin(Operation.UNLINK, number=number, parent=host.session, name=b"f"), errno=13)
    host.apply()
    assert host.owed() == set()
    assert host.journal.resolve("s", b"f") == number


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("operation", [Operation.CREATE, Operation.UNLINK, Operation.RENAME])
def test_an_operation_cut_short_is_what_the_disk_shows(
    host: Host, operation: Operation, applied: bool
) -> None:
    number = host.make(Operation.CREATE, host.session, "f", "s/f")
    host.settle()
    if operation == Operation.CREATE:
        sequence = host.log.begin(operation, parent=host.session, name=b"g")
        if applied:
            host.path("s/g").write_bytes(b"")
    elif operation == Operation.UNLINK:
        sequence = host.log.begin(operation, number=number, parent=host.session, name=b"f")
        if applied:
            host.path("s/f").unlink()
    else:
        sequence = host.log.begin(
            operation, number=number, parent=host.session, name=b"f", new_parent=host.session, new_name=b"g"
        )
        if applied:
            host.path("s/f").rename(host.path("s/g"))
    host.log.finish(sequence, errno=INTERRUPTED)
    host.apply()
    on_disk = set(os.listdir(host.path("s")))
    assert {name.decode() for name, _ in host.journal.children(host.session)} == on_disk


def test_an_unlink_of_bytes_elsewhere_cut_short_counts_as_done(host: Host) -> None:
    number = FIRST_REMOTE_NUMBER + 9
    host.journal.put_node(number, mode=stat.S_IFREG | 0o600, present=False)
    host.journal.link(host.session, b"far", number)
    sequence = host.log.begin(Operation.UNLINK, number=number, parent=host.session, name=b"far")
    host.log.finish(sequence, errno=INTERRUPTED)
    host.apply()
    assert host.journal.resolve("s", b"far") is None


def test_a_new_daemon_owes_what_the_dead_one_had_open(host: Host) -> None:
    number = host.make(Operation.CREATE, host.session, "f", "s/f")
    host.log.note(Operation.OPEN_WRITE, number=number)
    host.settle()
    host.log.note(Operation.STARTED, number=0)
    host.apply()
    assert host.owed() == {"f"}
    node = host.journal.node(number)
    assert node is not None
    assert node.writers == 0


def test_a_fetched_file_is_present_and_clean(host: Host) -> None:
    number = FIRST_REMOTE_NUMBER + 1
    host.journal.put_node(
        number, mode=stat.S_IFREG | 0o600, present=False, size_bytes=3, mtime_ns=7, sha256="a" * 64
    )
    host.journal.link(host.session, b"far", number)
    host.path("s/far").write_bytes(b"abc")
    os.utime(host.path("s/far"), ns=(7, 7))
    host.log.note(Operation.FETCHED, number=number)
    host.apply()
    node = host.journal.node(number)
    assert node is not None
    assert node.present
    assert node.clean_identity[:2] == (3, 7)
    host.path("s/far").unlink()
    host.log.note(Operation.EVICTED, number=number)
    host.apply()
    node = host.journal.node(number)
    assert node is not None
    assert not node.present
    assert [entry.number for entry in host.journal.remote_entries(host.session)] == [number]


def _far(host: Host, directory: int, name: bytes) -> int:
    """A file of three bytes in the bucket."""
    number = host.journal.next_remote_number()
    host.journal.put_node(
        number, mode=stat.S_IFREG | 0o600, present=False, size_bytes=3, mtime_ns=7, sha256="a" * 64
    )
    host.journal.link(directory, name, number)
    return number


def _fetch(host: Host, number: int, path: str) -> None:
    host.path(path).write_bytes(b"abc")
    os.utime(host.path(path), ns=(7, 7))
    host.log.note(Operation.FETCHED, number=number)


def _rename(
    host: Host, number: int, names: tuple[str, str], parents: tuple[int, int], paths: tuple[str, str]
) -> None:
    sequence = host.log.begin(
        Operation.RENAME, number=number, parent=parents[0], name=names[0].encode(), new_parent=parents[1],
        new_name=names[1].encode(),
    )  # fmt: skip
    if host.path(paths[0]).exists():
        host.path(paths[0]).rename(host.path(paths[1]))
    host.log.finish(sequence)


@pytest.mark.parametrize("is_truncated", [False, True])
def test_a_file_that_was_written_and_moved_before_anybody_read_the_log_is_present(
    host: Host, is_truncated: bool
) -> None:
    number = _far(host, host.session, b"far")
    if is_truncated:
        host.path("s/far").write_bytes(b"")  # instead of being fetched
        host.log.finish(host.log.begin(Operation.TRUNCATE, number=number), number=number)
    else:
        _fetch(host, number, "s/far")
    host.log.note(Operation.WRITTEN, number=number)
    host.path("s/far").write_bytes(b"written here")
    _rename(host, number, ("far", "near"), (host.session, host.session), ("s/far", "s/near"))
    host.apply()
    wanted = host.journal.wanted("sessions/s/near")
    assert wanted is not None
    assert (wanted.node.number, wanted.node.present, wanted.node.clean_identity[0]) == (number, True, -1)
    assert {"far", "near"} <= host.owed()


def test_a_file_that_was_written_below_a_directory_that_moved_on_is_present(host: Host) -> None:
    directory = host.make(Operation.MKDIR, host.session, "d", "s/d")
    host.settle()
    number = _far(host, directory, b"far")
    _fetch(host, number, "s/d/far")
    host.log.note(Operation.WRITTEN, number=number)
    host.path("s/d/far").write_bytes(b"written here")
    _rename(host, directory, ("d", "e"), (host.session, host.session), ("s/d", "s/e"))
    host.apply()
    wanted = host.journal.wanted("sessions/s/e/far")
    assert wanted is not None
    assert wanted.node.present


def test_a_file_that_was_fetched_and_written_with_its_old_times_is_not_clean(host: Host) -> None:
    number = _far(host, host.session, b"far")
    _fetch(host, number, "s/far")
    host.log.note(Operation.WRITTEN, number=number)
    host.path("s/far").write_bytes(b"xyz")
    os.utime(host.path("s/far"), ns=(7, 7))
    host.log.finish(host.log.begin(Operation.SETATTR, number=number, mtime_ns=7), number=number)
    host.apply()
    node = host.journal.node(number)
    assert node is not None
    assert node.present
    assert node.clean_identity[0] == -1
    assert host.owed() == {"far"}


def test_a_file_that_left_and_whose_name_was_taken_before_anybody_read_the_log_is_elsewhere(
    host: Host,
) -> None:
    number = _far(host, host.session, b"far")
    _fetch(host, number, "s/far")
    host.settle()
    sequence = host.log.begin(Operation.EVICTED, number=number)
    host.path("s/far").unlink()
    host.log.finish(sequence, number=number)
    _rename(host, number, ("far", "moved"), (host.session, host.session), ("s/far", "s/moved"))
    host.make(Operation.CREATE, host.session, "far", "s/far")
    host.apply()
    wanted = host.journal.wanted("sessions/s/moved")
    assert wanted is not None
    assert not wanted.node.present


def test_a_fetch_cut_short_is_what_the_disk_shows(host: Host) -> None:
    number = _far(host, host.session, b"far")
    host.log.finish(host.log.begin(Operation.FETCHED, number=number), errno=INTERRUPTED)
    host.apply()
    node = host.journal.node(number)
    assert node is not None
    assert not node.present


def test_applying_the_same_log_again_ends_in_the_same_tree(host: Host) -> None:
    a = host.make(Operation.CREATE, host.session, "a", "s/a")
    host.log.finish(
        host.log.begin(
            Operation.RENAME, number=a, parent=host.session, name=b"a", new_parent=host.session, new_name=b"b"
        )
    )
    host.path("s/a").rename(host.path("s/b"))
    host.make(Operation.CREATE, host.session, "a", "s/a")
    start = host.position
    host.apply()
    once = host.journal.children(host.session)
    host.position = start
    host.apply()
    assert host.journal.children(host.session) == once


def _remote(host: Host, name: bytes) -> int:
    number = host.journal.next_remote_number()
    host.journal.put_node(number, mode=stat.S_IFREG | 0o644, size_bytes=3, present=False, sha256="aa")
    host.journal.link(host.session, name, number)
    return number


def _interrupted(host: Host, operation: Operation, number: int, name: bytes, new_name: bytes) -> None:
    sequence = host.log.begin(
        operation, number=number, parent=host.session, name=name, new_parent=host.session, new_name=new_name
    )
    host.log.finish(sequence, errno=INTERRUPTED)
    host.apply()


def test_a_rename_in_flight_of_bytes_elsewhere_is_not_done_while_the_victim_is_there(host: Host) -> None:
    victim = host.make(Operation.CREATE, host.session, "victim", "s/victim")
    host.settle()
    number = _remote(host, b"far")
    _interrupted(host, Operation.RENAME, number, b"far", b"victim")
    assert host.journal.child(host.session, b"far") == number
    assert host.journal.child(host.session, b"victim") == victim


def test_a_rename_in_flight_of_bytes_elsewhere_is_done_when_the_victim_has_gone(host: Host) -> None:
    host.make(Operation.CREATE, host.session, "victim", "s/victim")
    host.settle()
    number = _remote(host, b"far")
    host.path("s/victim").unlink()
    _interrupted(host, Operation.RENAME, number, b"far", b"victim")
    assert host.journal.child(host.session, b"far") is None
    assert host.journal.child(host.session, b"victim") == number


@pytest.mark.parametrize("done", [True, False])
def test_an_exchange_in_flight_with_bytes_elsewhere_is_decided_by_the_disk(host: Host, done: bool) -> None:
    near = host.make(Operation.CREATE, host.session, "near", "s/near")
    host.settle()
    far = _remote(host, b"far")
    if done:
        host.path("s/near").rename(host.path("s/far"))
    _interrupted(host, Operation.EXCHANGE, far, b"far", b"near")
    assert host.journal.child(host.session, b"far") == (near if done else far)
    assert host.journal.child(host.session, b"near") == (far if done else near)


def test_an_exchange_in_flight_that_the_disk_cannot_show_is_looked_at(host: Host) -> None:
    for name in (b"a", b"b"):
        number = _remote(host, name)
        host.path("s/" + name.decode()).write_bytes(name)
        host.journal.update_node(number, present=True)
        host.journal.put_object(
            KnownObject(f"sessions/s/{name.decode()}", number, "t", "w", "aa", 1, 0, 0, 0, 0, "")
        )
    first = host.journal.child(host.session, b"a")
    assert first is not None
    _interrupted(host, Operation.EXCHANGE, first, b"a", b"b")
    assert {"a", "b"} <= host.owed()


def _written_without_a_record(host: Host) -> int:
    """A file that is open for writing, was uploaded, and was written again within the half second without records."""
    number = host.make(Operation.CREATE, host.session, "f", "s/f")
    host.log.note(Operation.OPEN_WRITE, number=number)
    host.log.note(Operation.WRITTEN, number=number)
    host.settle()
    status = host.path("s/f").stat()
    host.journal.update_node(
        number,
        clean_size=status.st_size,
        clean_mtime_ns=status.st_mtime_ns,
        clean_ctime_ns=status.st_ctime_ns,
    )
    assert host.owed() == set()
    host.path("s/f").write_bytes(b"after the upload")
    return number


def test_a_write_just_after_an_upload_is_owed_at_the_close(host: Host) -> None:
    number = _written_without_a_record(host)
    host.log.note(Operation.RELEASE_WRITE, number=number)
    host.apply()
    assert host.owed() == {"f"}


def test_a_write_just_after_an_upload_is_owed_when_somebody_asks(host: Host) -> None:
    number = _written_without_a_record(host)
    assert host.application.note_unrecorded([number], 1)
    assert host.owed() == {"f"}


def test_a_close_that_changed_nothing_owes_nothing(host: Host) -> None:
    number = _written_without_a_record(host)
    status = host.path("s/f").stat()
    host.journal.update_node(
        number,
        clean_size=status.st_size,
        clean_mtime_ns=status.st_mtime_ns,
        clean_ctime_ns=status.st_ctime_ns,
    )
    host.log.note(Operation.RELEASE_WRITE, number=number)
    host.apply()
    assert host.owed() == set()


def test_a_new_file_with_the_number_of_a_lost_one_takes_nothing_over(host: Host) -> None:
    number = host.make(Operation.CREATE, host.session, "lost", "s/lost")
    host.settle()
    host.path("s/lost").unlink()
    sequence = host.log.begin(Operation.CREATE, parent=host.session, name=b"new", mode=stat.S_IFREG | 0o644)
    host.path("s/new").write_bytes(b"new")
    host.log.finish(sequence, number=number)
    host.apply()
    assert host.journal.names_of(number) == [(host.session, b"new")]
    assert host.journal.objects_of(number) == []
    assert "lost" not in host.owed()


class _FullDisk:
    """A connection whose next commit fails, as on a full disk."""

    def __init__(self, real: sqlite3.Connection) -> None:
        self.real = real
        self.is_full = True

    def __getattr__(self, name: str) -> object:
        return getattr(self.real, name)

    def execute(self, statement: str, *values: Any) -> object:
        if statement == "COMMIT" and self.is_full:
            self.is_full = False
            raise sqlite3.OperationalError("database or disk is full")
        return self.real.execute(statement, *values)


def test_a_commit_that_fails_leaves_no_open_transaction(host: Host) -> None:
    host.journal._database = _FullDisk(host.journal._database)  # type: ignore[assignment]
    with pytest.raises(sqlite3.OperationalError), host.journal.transaction():
        host.journal.set_meta("lost", "1")
    assert host.journal.meta("lost") == ""
    with host.journal.transaction():
        host.journal.set_meta("kept", "1")
    assert host.journal.meta("kept") == "1"


@pytest.mark.parametrize("operation", [Operation.CREATE, Operation.LINK, Operation.RENAME])
@pytest.mark.parametrize("is_seen", [False, True])
def test_what_a_program_did_not_see_at_a_name_is_not_known_as_what_it_replaces(
    host: Host, operation: Operation, is_seen: bool
) -> None:
    """A comparison found another's file there a moment ago: the next put must meet it, and keep it aside."""
    number = host.make(Operation.CREATE, host.session, "f", "s/f")
    host.apply()
    far = _far(host, host.session, b"m")
    host.journal.put_object(
        KnownObject("sessions/s/m", far, "t", "w", "a" * 64, 3, stat.S_IFREG | 0o600, 0, 0, 7, "l", 1)
    )
    host.journal.name_object("sessions/s/m")
    seen = far if is_seen and operation == Operation.RENAME else 0
    if operation == Operation.CREATE:
        host.make(operation, host.session, "m", "s/m")
    else:
        sequence = host.log.begin(
            operation, number=number, parent=host.session, name=b"f", new_parent=host.session, new_name=b"m",
            replaced=seen,
        )  # fmt: skip
        move = os.link if operation == Operation.LINK else os.rename
        move(host.path("s/f"), host.path("s/m"))
        host.log.finish(sequence, number=number)
    host.apply()
    assert "m" in host.owed()
    assert (host.journal.object("sessions/s/m") is None) == (not seen)
    assert [prefix.is_proven for prefix in host.journal.prefixes("sessions/s/m")] == ([] if seen else [False])
