"""Commands about generations, against a store in a directory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sessionfs.cli.commands import verify_cmd
from sessionfs.cli.main import main
from sessionfs.daemon.checks import mount_points
from sessionfs.daemon.checks.mount_points import MountEntry
from sessionfs.formats import ownership
from sessionfs.formats.logs import zstd_log
from sessionfs.formats.ownership import OwnerRecord
from sessionfs.model.clock import SystemClock
from sessionfs.stores.base import IfAbsent, ObjectMetadata, ObjectStore, Unconditional
from sessionfs.stores.open_store import open_store
from tests.unit.daemon.fake_mount import STATUS, FakeMount, listening
from tests.unit.replication.maintenance.world import Author, HandClock


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "store").mkdir()
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(mount_points, "mount_table", list)
    return f"file://{tmp_path}/store"


@pytest.fixture
def store(url: str) -> Iterator[ObjectStore]:
    opened = open_store(url)
    yield opened
    opened.close()


@pytest.fixture
def author(store: ObjectStore) -> Author:
    """Two generations of the session ``s``."""
    clock = HandClock()
    clock.now_ns = SystemClock().wall_ns()
    author = Author(store, clock)
    author.commit({b"d": None, b"d/f": b"one", b"log.jsonl": b'{"seq":1}\n'})
    author.commit(
        {b"d": None, b"d/f": b"two", b"log.jsonl": b'{"seq":1}\n{"seq":1}\n{"seq":2}\n', b"n": b"n"}
    )
    return author


def run(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == code, (result.output, result.exception)
    return result


def run_json(*arguments: str, code: int = 0) -> object:
    return json.loads(run(*arguments, "--json", code=code).stdout)


def body(store: ObjectStore, key: str) -> bytes:
    with store.get(key, byte_range=None, expected=None) as found:
        return found.read()


def test_generations_are_listed(author: Author, url: str) -> None:
    rows = run("generations", url, "s").stdout.splitlines()
    assert rows[0].split() == ["generation", "files", "size", "committed", "trigger", "state"]
    assert rows[1].split() == ["1", "2", "13", "B", "2026-01-31", "00:00:01", "UTC", "turn", "kept"]
    assert rows[2].split()[-2:] == ["turn", "newest"]
    found = run_json("generations", url, "s")
    assert isinstance(found, list)
    assert [(row["generation"], row["state"], row["previous"]) for row in found] == [
        (1, "kept", 0),
        (2, "newest", 1),
    ]


def test_a_session_without_generations_says_so(author: Author, url: str) -> None:
    assert run("generations", url, "other").stdout == "session other has no generation yet\n"
    assert run_json("generations", url, "other") == []


def test_a_diff_has_a_line_for_each_path(author: Author, url: str) -> None:
    lines = run("diff", url, "s", "1", "2").stdout.splitlines()
    assert lines == [
        "~ d/f  (content; 3 B -> 3 B)",
        "~ log.jsonl  (content, time; 10 B -> 30 B)",
        "+ n",
    ]
    found = run_json("diff", url, "s", "2", "1")
    assert isinstance(found, list)
    assert [(row["path"], row["kind"]) for row in found] == [
        ("d/f", "changed"),
        ("log.jsonl", "changed"),
        ("n", "removed"),
    ]


def test_a_generation_that_does_not_exist_is_one_line(author: Author, url: str) -> None:
    for arguments in (("diff", url, "s", "1", "7"), ("restore", url, "s", "--generation", "7")):
        result = run(*arguments, code=1)
        assert result.stderr.startswith("sessionfs: session s has no generation 7 (")
        assert result.stderr.count("\n") == 1


def test_restore_brings_a_generation_to_a_directory(author: Author, url: str, tmp_path: Path) -> None:
    result = run("restore", url, "s", "--generation", "1")
    assert result.stdout == f"generation 1 of s is in {tmp_path}/cwd/s-1 (4 paths, 13 B)\n"
    assert (tmp_path / "cwd/s-1/d/f").read_bytes() == b"one"
    run("restore", url, "s", "--generation", "2", "--to", "other")
    assert (tmp_path / "cwd/other/d/f").read_bytes() == b"two"
    assert "is not empty" in run("restore", url, "s", "--generation", "2", "--to", "other", code=2).stderr


def test_restore_in_place_makes_a_new_generation(author: Author, url: str, store: ObjectStore) -> None:
    result = run("restore", url, "s", "--generation", "1", "--in-place")
    assert result.stdout.startswith(
        "s is at generation 3, which is generation 1 again (2 written, 1 removed,"
    )
    assert body(store, "sessions/s/d/f") == b"one"
    record = ownership.decode_owner(body(store, "sessions/s.owner/owner.json"), "owner.json")
    assert record.state == "released"
    assert run("diff", url, "s", "1", "3").stdout == ""


def test_to_and_in_place_exclude_one_another(author: Author, url: str) -> None:
    run("restore", url, "s", "--generation", "1", "--in-place", "--to", "x", code=2)


def test_a_session_that_another_host_owns_is_exit_code_5(
    author: Author, url: str, store: ObjectStore
) -> None:
    record = OwnerRecord(session="s", holder="f" * 32, epoch=4, beat="hosts/f.json", host="elsewhere")
    store.put(
        "sessions/s.owner/owner.json",
        ownership.encode(record),
        condition=IfAbsent(),
        metadata=ObjectMetadata(),
    )
    result = run("restore", url, "s", "--generation", "1", "--in-place", "--no-wait", code=5)
    assert "elsewhere" in result.stderr
    assert body(store, "sessions/s/d/f") == b"two"
    result = run("gc", url, code=5)
    assert "elsewhere" in result.stderr
    run("gc", url, "s", "--no-wait", code=5)


def test_fork_makes_a_session(author: Author, url: str, store: ObjectStore) -> None:
    result = run("fork", url, "s", "copy", "--generation", "1")
    assert result.stdout == "copy is generation 1 of s (4 paths, 13 B, 10 B sent)\n"
    assert body(store, "sessions/copy/d/f") == b"one"
    assert "already" in run("fork", url, "s", "copy", code=1).stderr
    assert "a slash" in run("fork", url, "s", "a/b", code=2).stderr


def test_gc_says_what_would_go_and_then_does_it(
    author: Author, url: str, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SESSIONFS_KEEP_GENERATIONS", "1")
    assert run("gc", url, "--dry-run").stdout.splitlines()[1].split() == ["s", "1", "-", "0", "0", "B", "0"]
    assert body(store, "sessions/s.manifest/0000000001.json")
    found = run_json("gc", url, "s")
    assert isinstance(found, list)
    assert [(row["session"], row["retired"], row["removed_objects"]) for row in found] == [("s", [1], [])]
    assert body(store, "sessions/s.manifest/retired/0000000001.json")
    assert run("gc", url, "--dry-run").stdout == "nothing to collect\n"


def test_verify_names_what_is_lost_and_offers_what_is_whole(
    author: Author, url: str, store: ObjectStore
) -> None:
    assert run("verify", url).stdout == "s: ok (4 objects, 37 B; 2 generations whole)\n"
    store.delete("sessions/s/n", condition=Unconditional())
    result = run("verify", url, code=6)
    assert result.stdout == "s: damaged (3 objects, 36 B; 1 generation whole)\n"
    assert result.stderr.splitlines() == [
        "  missing: the bytes of s/n are in no object (generations 2)",
        f"  generation 1 is whole: sessionfs restore {url} s --generation 1",
    ]
    found = run_json("verify", url, "s", "--quick", code=6)
    assert isinstance(found, list)
    assert (found[0]["damaged"], found[0]["newest_whole_generation"]) == (True, 1)


def test_verify_repairs_a_marker(author: Author, url: str, store: ObjectStore) -> None:
    store.delete("sessions/s.snapshot.json", condition=Unconditional())
    assert "lagging: sessions/s.snapshot.json is at generation 0" in run("verify", url).stdout
    assert "repaired: lagging" in run("verify", url, "--repair").stdout
    assert run("verify", url).stdout.count("\n") == 1


def test_a_log_is_printed_without_repetitions(author: Author, url: str) -> None:
    author.write(b"log-001.jsonl.zst", b"".join(zstd_log.seal([b'{"seq":7}'])))
    author.write(b"log.jsonl", b'{"seq":1}\n{"seq":1}\n{"seq":2}\n{"seq":')
    assert run("log", url, "s", "log.jsonl").stdout == '{"seq":1}\n{"seq":2}\n'
    assert run("log", url, "s", "log.jsonl", "--tail", "1").stdout == '{"seq":2}\n'
    assert run("log", url, "s", "log-001.jsonl.zst").stdout == '{"seq":7}\n'
    assert run("log", url, "s", "log.jsonl", "--all").stdout == '{"seq":7}\n{"seq":1}\n{"seq":2}\n'
    result = run("log", url, "s", "log.jsonl", "--before", "20")
    assert (result.stdout, result.stderr) == ('{"seq":1}\n{"seq":1}\n', "this is the file's start\n")
    assert "no s/none" in run("log", url, "s", "none", code=1).stderr
    run("log", url, "s", "log.jsonl", "--before", "20", "--tail", "1", code=2)


@pytest.mark.parametrize(
    "arguments",
    [("generations",), ("diff", "1", "1"), ("restore", "--generation", "1"), ("fork", "n"), ("log", "p")],
)
def test_a_bad_session_id_is_a_mistake_of_the_user(arguments: tuple[str, ...], url: str) -> None:
    command, *rest = arguments
    assert "ends in a suffix" in run(command, url, "s.owner", *rest, code=2).stderr


@pytest.fixture
def mount(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeMount]:
    """A mount of the store on this host, that owns the session."""
    found = FakeMount()
    found.status_body = {**STATUS, "store": url, "sessions": [{"id": "s", "owned_here": True}]}
    entry = MountEntry(str(tmp_path / "mount"), "fuse.sessionfs", url)
    monkeypatch.setattr(mount_points, "mount_table", lambda: [entry])
    with listening(found, tmp_path) as path:
        monkeypatch.setattr(mount_points, "control_socket_of", lambda _mount_point: path)
        yield found


def test_a_mount_that_owns_the_session_releases_it_first(
    author: Author, url: str, mount: FakeMount, tmp_path: Path
) -> None:
    run("restore", str(tmp_path / "mount"), "s", "--generation", "1", "--in-place")
    run("gc", url, "s")
    run("gc", url, "other")
    assert [asked[0] for asked in mount.asked if asked[0] != "status"] == ["release", "release"]


def test_a_mount_names_its_store(author: Author, mount: FakeMount, tmp_path: Path) -> None:
    assert len(run("generations", str(tmp_path / "mount/s/d"), "s").stdout.splitlines()) == 3


def test_verify_of_a_mount_compares_its_clean_files(
    author: Author, mount: FakeMount, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = tmp_path / "mount/s"
    session.mkdir(parents=True)
    (session / "right").write_bytes(b"x")
    (session / "wrong").write_bytes(b"y")
    (session / "owed").write_bytes(b"z")
    stated = verify_cmd._sha256(bytes(session / "right"))

    def describe(path: bytes) -> str:
        return "" if path.endswith(b"owed") else stated

    monkeypatch.setattr(verify_cmd, "_stated", describe)
    result = run("verify", str(tmp_path / "mount"), code=6)
    assert f"corrupt: {session}/wrong has other bytes than were uploaded" in result.stderr
    assert "right" not in result.stderr
    assert "owed" not in result.stderr
