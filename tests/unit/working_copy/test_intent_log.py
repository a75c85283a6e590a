"""The intent log keeps what it was told, whatever kills its process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sessionfs.formats import intent_records
from sessionfs.formats.intent_records import Operation
from sessionfs.model.clock import SystemClock
from sessionfs.model.errors import UnsupportedFormatError
from sessionfs.working_copy.intent_log import INTERRUPTED, IntentLog, IntentLogReader

BOOT = "b" * 36


def opened(path: Path) -> IntentLog:
    return IntentLog(str(path), boot_id=BOOT, clock=SystemClock())


def operations(path: Path, position: int = 0) -> list[tuple[int, bytes, int, int]]:
    batch = IntentLogReader(str(path)).read(position)
    return [
        (intent.operation, intent.name, outcome.number, outcome.errno)
        for intent, outcome in batch.operations
        if intent.operation != Operation.STARTED
    ]


def test_an_operation_is_read_back_with_its_outcome(tmp_path: Path) -> None:
    log = opened(tmp_path / "log")
    sequence = log.begin(Operation.CREATE, parent=5, name=b"\xff name")
    log.finish(sequence, number=77)
    assert operations(tmp_path / "log") == [(Operation.CREATE, b"\xff name", 77, 0)]
    assert IntentLogReader(str(tmp_path / "log")).boot_id() == BOOT


def test_an_operation_in_flight_is_not_read_yet(tmp_path: Path) -> None:
    log = opened(tmp_path / "log")
    first = log.begin(Operation.TRUNCATE, number=1)
    log.note(Operation.WRITTEN, number=2)
    assert operations(tmp_path / "log") == []
    log.finish(first, number=1)
    assert [row[0] for row in operations(tmp_path / "log")] == [Operation.TRUNCATE, Operation.WRITTEN]


def test_the_next_process_ends_what_the_last_left_in_flight(tmp_path: Path) -> None:
    log = opened(tmp_path / "log")
    log.begin(Operation.UNLINK, number=3, parent=1, name=b"x")
    log.close()
    log = opened(tmp_path / "log")
    assert operations(tmp_path / "log") == [(Operation.UNLINK, b"x", 0, INTERRUPTED)]
    assert log.begin(Operation.CREATE) > 2


@pytest.mark.parametrize("kept", range(1, 30, 3))
def test_a_torn_tail_is_cut_off_and_the_rest_stays(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "log"
    log = opened(path)
    log.note(Operation.WRITTEN, number=1)
    whole = path.stat().st_size
    log.begin(Operation.CREATE, parent=1, name=b"half")
    log.close()
    os.truncate(path, min(whole + kept, path.stat().st_size - 1))
    log = opened(path)
    assert [row[0] for row in operations(path)] == [Operation.WRITTEN]
    log.note(Operation.WRITTEN, number=2)
    assert len(operations(path)) == 2


def test_garbage_behind_the_records_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = opened(path)
    log.note(Operation.WRITTEN, number=1)
    log.close()
    with path.open("ab") as file:
        file.write(b"\x05\x00\x00\x00garbage that is no record")
    opened(path).note(Operation.WRITTEN, number=2)
    assert len(operations(path)) == 2


def test_positions_and_sequences_go_on_over_a_cut(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = opened(path)
    while log.position < 4 << 20:
        log.note(Operation.WRITTEN, number=1)
    reader = IntentLogReader(str(path))
    position = 0
    while position != log.position:
        position = reader.read(position).position
    last = log.begin(Operation.CREATE, name=b"late")
    log.cut(position)
    assert path.stat().st_size > 4 << 20, "what is not consumed is not cut"
    log.finish(last, number=9)
    position = reader.read(position).position
    log.cut(position)
    assert path.stat().st_size < 1000
    sequence = log.begin(Operation.CREATE, name=b"after")
    assert sequence == last + 1
    log.finish(sequence, number=10)
    assert operations(path, position) == [(Operation.CREATE, b"after", 10, 0)]
    log.close()
    assert opened(path).begin(Operation.CREATE) > sequence


def test_a_reader_takes_bounded_batches_to_the_same_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = opened(path)
    for number in range(30_000):
        log.note(Operation.WRITTEN, number=number)
    reader, position, seen = IntentLogReader(str(path)), 0, 0
    while position != log.position:
        batch = reader.read(position)
        assert batch.position > position
        position, seen = batch.position, seen + len(batch.operations)
    assert seen == 30_001


def test_a_newer_log_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"SFSLOG\x00\x02" + b"\0" * 100)
    with pytest.raises(UnsupportedFormatError):
        opened(path)
    assert path.read_bytes()[7] == 2


def test_a_full_disk_leaves_no_half_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log"
    log = opened(path)
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, frame: real(descriptor, frame[:5]))
    with pytest.raises(OSError, match="No space"):
        log.begin(Operation.CREATE)
    monkeypatch.undo()
    log.note(Operation.WRITTEN, number=1)
    assert [row[0] for row in operations(path)] == [Operation.WRITTEN]


def test_a_missing_log_reads_as_empty(tmp_path: Path) -> None:
    reader = IntentLogReader(str(tmp_path / "none"))
    assert reader.read(7).operations == []
    assert reader.boot_id() == ""


def test_a_record_is_small_and_a_broken_payload_ends_the_reading() -> None:
    frame = intent_records.encode_record(intent_records.Outcome(1))
    assert len(frame) < 20
    broken = frame[:-1] + bytes([frame[-1] ^ 1])
    assert list(intent_records.decode_records(broken)) == []
