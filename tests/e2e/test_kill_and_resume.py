"""The whole story: a session works, a turn ends, work goes on, everything is killed; an empty host has the turn, exactly."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from pathlib import Path

import pytest

from .conftest import MakeHost
from .rig import LEASE_SECONDS, Bucket, Host, Seen, differences, errno_of, tree, wait_until

pytestmark = [pytest.mark.fuse, pytest.mark.s3, pytest.mark.slow]

ROWS = 500
PATIENCE_SECONDS = 20
DATABASE = "state.db"


def say(session: Path, **fields: object) -> None:
    """Add a line to the history."""
    with (session / "history.jsonl").open("a") as history:
        history.write(json.dumps(fields) + "\n")


def insert(database: sqlite3.Connection, first: int, last: int) -> None:
    for number in range(first, last):
        with database:
            database.execute("INSERT INTO entries (number, text) VALUES (?, ?)", (number, f"entry {number}"))


def rows_of(path: Path, options: str = "mode=ro") -> list[int]:
    database = sqlite3.connect(f"file:{path}?{options}", uri=True)
    try:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        return [row[0] for row in database.execute("SELECT number FROM entries ORDER BY number")]
    finally:
        database.close()


def work_one_turn(session: Path) -> sqlite3.Connection:
    """History, artifacts, blobs, a database; nothing says yet that the turn is over."""
    (session / "artifacts").mkdir()
    (session / "artifacts" / "latest").symlink_to("report 7.txt")
    for number in range(20):
        (session / "artifacts" / f"report {number}.txt").write_text(f"report {number}\n" * (number * 50))
        say(session, seq=number, type="message", text=f"wrote report {number}")
    for number in range(10):
        body = os.urandom(5_000) + bytes([number])
        name = hashlib.sha256(body).hexdigest()
        (session / "blobs" / name[:2]).mkdir(parents=True, exist_ok=True)
        (session / "blobs" / name[:2] / f"{name}.bin").write_bytes(body)
    os.chmod(session / "artifacts" / "report 3.txt", 0o755)
    database = sqlite3.connect(session / DATABASE)
    database.execute("PRAGMA journal_mode = wal")
    database.execute("CREATE TABLE entries (number INTEGER PRIMARY KEY, text TEXT)")
    insert(database, 0, ROWS)
    return database


def work_on(session: Path, database: sqlite3.Connection) -> None:
    """What the next turn does before it is killed."""
    say(session, seq=21, type="message", text="of a turn that never ended")
    (session / "artifacts" / "report 5.txt").write_text("changed after the turn")
    (session / "artifacts" / "report 6.txt").unlink()
    (session / "artifacts" / "report 7.txt").rename(session / "artifacts" / "report seven.txt")
    (session / "artifacts" / "new.txt").write_text("new after the turn")
    os.chmod(session / "artifacts" / "report 3.txt", 0o600)
    insert(database, ROWS, ROWS + 50)


def without_database(seen: dict[bytes, Seen]) -> dict[bytes, Seen]:
    """A tree without what is on another host an image of itself, and without the times of its directory."""
    return {path: one for path, one in seen.items() if path and not path.startswith(DATABASE.encode())}


def bytes_of(session: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(session)): path.read_bytes()
        for path in session.rglob("*")
        if path.is_file() and not path.is_symlink() and not path.name.startswith(DATABASE)
    }


def assert_is_turn(there: Path, turn: dict[bytes, Seen]) -> None:
    assert differences(turn, without_database(tree(there))) == []
    # SQLite would make its shared index beside it, in a session that another host may own.
    assert rows_of(there / DATABASE, "immutable=1") == list(range(ROWS))


def assert_independent_client_agrees(bucket: Bucket, files: dict[str, bytes], directory: Path) -> None:
    """Every entry of the newest manifest against the bytes found without our code."""
    marker = json.loads(bucket.read("sessions/s.snapshot.json"))
    generation = marker["generation"]
    assert bucket.manifest("s")["generation"] == generation == bucket.numbers("s")[-1]
    assert hashlib.sha256(bucket.read(marker["manifest_key"])).hexdigest() == marker["manifest_sha256"]
    assert bucket.manifest("s")["recovery"] == "committed"
    entries = bucket.files_of("s", generation)
    assert set(entries) == {*(name.replace("%", "%25") for name in files), DATABASE}
    for name, body in files.items():
        assert entries[name].size == len(body)
        assert bucket.content("s", generation, name) == body, name
    image = directory / "image.db"
    image.write_bytes(bucket.content("s", generation, DATABASE))
    assert rows_of(image) == list(range(ROWS))


def test_after_everything_was_killed_an_empty_host_has_exactly_the_completed_turn(
    make_fast_host: MakeHost, bucket: Bucket, tmp_path: Path
) -> None:
    first = make_fast_host(
        "a", SESSIONFS_TURN_GLOBS="history.jsonl", SESSIONFS_UPLOAD_DELAY_SECONDS="0.5", SESSIONFS_BEAT_INTERVAL_SECONDS="1"
    )  # fmt: skip
    first.mount()
    session = first.directory / "s"
    session.mkdir()
    database = work_one_turn(session)
    say(session, seq=20, type="turn.completed")
    turn, files = without_database(tree(session)), bytes_of(session)
    assert bucket.manifest("s")["trigger"] == "turn"
    work_on(session, database)
    first.wait_until_clean()
    uploaded, uploaded_rows = without_database(tree(session)), rows_of(session / DATABASE)
    assert uploaded_rows == list(range(ROWS + 50))
    (session / "artifacts" / "never uploaded.txt").write_text("too late")
    first.die()
    database.close()
    assert not any("never uploaded" in key for key in bucket.listed("sessions/s"))
    assert_independent_client_agrees(bucket, files, tmp_path)
    for name, flags in (("committed", ("--at", "committed")), ("auto", ())):
        host = make_fast_host(name)
        host.mount(*flags)
        assert_is_turn(host.directory / "s", turn)
        host.umount()
    live = make_fast_host("live")
    live.mount("--at", "live")
    assert differences(uploaded, without_database(tree(live.directory / "s"))) == []
    assert rows_of(live.directory / "s" / DATABASE, "immutable=1") == uploaded_rows
    live.umount()


def test_the_next_owner_goes_on_from_the_completed_turn_and_the_rest_is_kept_aside(
    make_fast_host: MakeHost, bucket: Bucket, tmp_path: Path
) -> None:
    first = make_fast_host("a", SESSIONFS_TURN_GLOBS="history.jsonl")
    first.mount()
    session = first.directory / "s"
    session.mkdir()
    database = work_one_turn(session)
    say(session, seq=20, type="turn.completed")
    turn = bytes_of(session)
    work_on(session, database)
    first.wait_until_clean()
    first.die()
    database.close()
    second = make_fast_host("b")
    second.mount()
    there = second.directory / "s"
    wait_until(lambda: errno_of((there / "mine").touch) == 0, LEASE_SECONDS + PATIENCE_SECONDS, step=0.2)
    found = bytes_of(there)
    assert found.pop("mine") == b""
    # A log that only grew goes on behind the turn; everything else is as it was when the turn ended.
    history = found.pop("history.jsonl")
    assert history.startswith(turn.pop("history.jsonl"))
    assert found == turn
    assert rows_of(there / DATABASE) == list(range(ROWS))
    second.snapshot("s")
    kept = {one["path"]: bucket.read(one["key"]) for one in second.conflicts()}
    assert kept["artifacts/report 5.txt"] == b"changed after the turn"
    assert kept["artifacts/new.txt"] == b"new after the turn"
    assert DATABASE in kept
    image = tmp_path / "kept.db"
    image.write_bytes(kept[DATABASE])
    assert rows_of(image) == list(range(ROWS + 50))
    assert_same(second, bucket)


def assert_same(host: Host, bucket: Bucket) -> None:
    """The newest generation is what the host has."""
    newest = bucket.numbers("s")[-1]
    here = bytes_of(host.directory / "s")
    assert {name: bucket.content("s", newest, name) for name in here} == here
