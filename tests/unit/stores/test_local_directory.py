"""What is special about a directory as a store: foreign files, crashes, several processes, the disk."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sessionfs.model.errors import (
    AccessError,
    BucketNotFoundError,
    ConflictError,
    CorruptDataError,
    InvalidKeyError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StoreRefusedError,
    UnavailableError,
)
from sessionfs.stores import local_objects, local_temporary
from sessionfs.stores.base import ByteRange, IfAbsent, IfMatch, ObjectMetadata, Token, Unconditional
from sessionfs.stores.local_directory import LocalDirectoryStore

PLAIN = ObjectMetadata()
HIDDEN = local_temporary.HIDDEN


@pytest.fixture
def store(tmp_path: Path) -> LocalDirectoryStore:
    return LocalDirectoryStore(str(tmp_path))


def put(store: LocalDirectoryStore, key: str, body: bytes = b"") -> Token:
    return store.put(key, body, condition=Unconditional(), metadata=PLAIN)


def keys(store: LocalDirectoryStore) -> list[str]:
    return [stat.key for page in store.list_all("") for stat in page.objects]


def leftovers(root: Path) -> list[str]:
    return os.listdir(root / HIDDEN / "tmp")


def test_object_is_a_plain_file_with_its_metadata_in_attributes(
    store: LocalDirectoryStore, tmp_path: Path
) -> None:
    metadata = ObjectMetadata({"mode": "0100644", "mtime": "1.5"}, "text/plain", "zstd")
    store.put("a/b c%20.txt", b"bytes", condition=IfAbsent(), metadata=metadata)
    path = tmp_path / "a" / "b c%20.txt"
    assert path.read_bytes() == b"bytes"
    assert os.getxattr(path, "user.sessionfs.meta.mode") == b"0100644"
    assert os.getxattr(path, "user.sessionfs.content-type") == b"text/plain"
    assert leftovers(tmp_path) == []


def test_file_put_there_by_hand_is_an_object_without_metadata(
    store: LocalDirectoryStore, tmp_path: Path
) -> None:
    (tmp_path / "by").mkdir()
    (tmp_path / "by" / "hand").write_bytes(b"foreign")
    stat = store.head("by/hand")
    assert stat.metadata == PLAIN
    assert keys(store) == ["by/hand"]
    with store.get("by/hand", byte_range=ByteRange(0, 3), expected=stat.token) as body:
        assert body.read() == b"for"
    (tmp_path / "by" / "hand").write_bytes(b"changed by hand")
    with pytest.raises(PreconditionFailedError):
        store.put("by/hand", b"ours", condition=IfMatch(stat.token), metadata=PLAIN)


def test_links_and_names_that_are_no_keys_are_not_listed(store: LocalDirectoryStore, tmp_path: Path) -> None:
    put(store, "file", b"x")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "back\\slash").write_bytes(b"")
    (tmp_path / "new\nline").write_bytes(b"")
    Path(os.fsdecode(os.path.join(os.fsencode(tmp_path), b"invalid-\xff"))).write_bytes(b"")
    os.mkfifo(tmp_path / "pipe")
    assert keys(store) == ["file"]
    for name in ("link", "pipe"):
        with pytest.raises(ObjectNotFoundError):
            store.head(name)


def test_hidden_directory_is_no_part_of_the_store(store: LocalDirectoryStore) -> None:
    assert keys(store) == []
    for key in (f"{HIDDEN}/lock", f"{HIDDEN}/"):
        with pytest.raises(InvalidKeyError):
            store.put(key, b"", condition=Unconditional(), metadata=PLAIN)
        with pytest.raises(InvalidKeyError):
            store.delete(key, condition=Unconditional())


def test_rewritten_object_never_has_an_old_token(store: LocalDirectoryStore) -> None:
    tokens = [put(store, "file", b"same size") for _ in range(200)]
    assert len(set(tokens)) == len(tokens)
    assert store.head("file").token == tokens[-1]


def test_file_and_directory_of_one_name_are_a_conflict(store: LocalDirectoryStore) -> None:
    put(store, "x", b"file")
    put(store, "d/below", b"file")
    put(store, "m/")
    for key in ("x/y", "x/y/z", "x/", "d", "m"):
        with pytest.raises(ConflictError, match="cannot be stored") as caught:
            store.put(key, b"", condition=IfAbsent(), metadata=PLAIN)
        assert "x and x/y" in caught.value.remedy
    assert keys(store) == ["d/below", "m/", "x"]


def test_delete_removes_directories_that_nobody_marked(store: LocalDirectoryStore, tmp_path: Path) -> None:
    put(store, "kept/")
    put(store, "kept/a/b/c", b"x")
    store.delete("kept/a/b/c", condition=Unconditional())
    assert sorted(os.listdir(tmp_path)) == [HIDDEN, "kept"]
    assert os.listdir(tmp_path / "kept") == []
    put(store, "kept/file", b"x")
    store.delete("kept/", condition=Unconditional())
    assert keys(store) == ["kept/file"]
    store.delete("kept/file", condition=Unconditional())
    assert os.listdir(tmp_path) == [HIDDEN]


def test_empty_directory_left_by_a_crash_does_not_hinder_a_file(
    store: LocalDirectoryStore, tmp_path: Path
) -> None:
    (tmp_path / "name" / "inner").mkdir(parents=True)
    assert keys(store) == []
    with pytest.raises(ConflictError):
        store.put("name", b"x", condition=IfAbsent(), metadata=PLAIN)
    (tmp_path / "name" / "inner").rmdir()
    put(store, "name", b"x")
    assert keys(store) == ["name"]


def test_leftovers_of_a_crash_go_and_those_of_the_living_stay(
    store: LocalDirectoryStore, tmp_path: Path
) -> None:
    temporary = tmp_path / HIDDEN / "tmp"
    (temporary / "crashed").write_bytes(b"half")
    (temporary / "living").write_bytes(b"half")
    with (temporary / "living").open("rb+") as living:
        fcntl.flock(living, fcntl.LOCK_EX)
        LocalDirectoryStore(str(tmp_path))
        assert leftovers(tmp_path) == ["living"]
    assert keys(store) == []


def test_put_that_dies_at_any_step_leaves_old_or_new(tmp_path: Path) -> None:
    """Kill a putting process at every system call that matters; what is read is one of the two bodies."""
    store = LocalDirectoryStore(str(tmp_path))
    put(store, "file", b"old" * 1000)
    steps = ("os.setxattr", "os.write", "os.fsync", "os.utime", "os.rename", "fcntl.flock")
    for step in steps:
        for nth in (1, 2, 3):
            program = (
                "import os, fcntl, sys\n"
                "from sessionfs.stores.local_directory import LocalDirectoryStore\n"
                "from sessionfs.stores.base import *\n"
                "store = LocalDirectoryStore(sys.argv[1])\n"
                f"real, count = {step}, 0\n"
                "def dying(*a, **k):\n"
                "    global count\n"
                "    count += 1\n"
                f"    if count == {nth}: os.kill(os.getpid(), 9)\n"
                "    return real(*a, **k)\n"
                f"{step} = dying\n"
                "store.put('file', b'new' * 2000, condition=Unconditional(), metadata=ObjectMetadata({'a': 'b'}))\n"
            )
            subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False, timeout=60)
            with store.get("file", byte_range=None, expected=None) as body:
                found = body.read()
            assert found in {b"old" * 1000, b"new" * 2000}, (step, nth)
            whole = ObjectMetadata({"a": "b"}) if found.startswith(b"new") else PLAIN
            assert store.head("file").metadata == whole
            put(store, "file", b"old" * 1000)
    LocalDirectoryStore(str(tmp_path))
    assert leftovers(tmp_path) == []


def test_several_processes_have_one_winner_each_time(tmp_path: Path) -> None:
    LocalDirectoryStore(str(tmp_path))
    program = (
        "import sys\n"
        "from sessionfs.stores.local_directory import LocalDirectoryStore\n"
        "from sessionfs.stores.base import *\n"
        "from sessionfs.model.errors import PreconditionFailedError\n"
        "store, won = LocalDirectoryStore(sys.argv[1]), 0\n"
        "sys.stdin.readline()\n"
        "for number in range(60):\n"
        "    try:\n"
        "        store.put(f'k/{number}', b'', condition=IfAbsent(), metadata=ObjectMetadata())\n"
        "        won += 1\n"
        "    except PreconditionFailedError:\n"
        "        pass\n"
        "print(won)\n"
    )
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    won = [int(racer.communicate(timeout=60)[0]) for racer in racers]
    assert sum(won) == 60


def test_segment_longer_than_a_file_name_is_refused_before_anything(store: LocalDirectoryStore) -> None:
    with pytest.raises(InvalidKeyError, match="255"):
        store.put("é" * 128, b"", condition=IfAbsent(), metadata=PLAIN)


def test_disk_that_folds_case_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.path.lexists
    monkeypatch.setattr(os.path, "lexists", lambda path: path.endswith(".case") or real(path))
    with pytest.raises(StoreRefusedError, match="upper from lower case"):
        LocalDirectoryStore(str(tmp_path))
    assert leftovers(tmp_path) == []


def test_disk_without_attributes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "setxattr", refuse)
    with pytest.raises(StoreRefusedError, match="extended attributes"):
        LocalDirectoryStore(str(tmp_path))


def test_store_that_vanishes_is_not_mistaken_for_an_empty_one(tmp_path: Path) -> None:
    root = tmp_path / "disk"
    root.mkdir()
    store = LocalDirectoryStore(str(root))
    token = put(store, "file", b"x")
    root.rename(tmp_path / "unmounted")
    for request in (
        lambda: store.head("file"),
        lambda: store.head("dir/"),
        lambda: store.get("file", byte_range=None, expected=None),
        lambda: store.list_page("", page=None, whole_segments=False),
        lambda: store.list_page("dir/", page=None, whole_segments=True),
        lambda: put(store, "file"),
        lambda: store.delete("file", condition=IfMatch(token)),
        lambda: store.copy("file", "b", source_token=token, condition=IfAbsent(), metadata=PLAIN),
    ):
        with pytest.raises(BucketNotFoundError):
            request()
    assert not root.exists()


@pytest.mark.parametrize(
    ("number", "expected"), [(28, UnavailableError), (5, UnavailableError), (30, AccessError)]
)
def test_disk_that_refuses_leaves_the_object_and_no_leftovers(
    store: LocalDirectoryStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    expected: type[Exception],
) -> None:
    put(store, "file", b"old")

    def refuse(*_arguments: object) -> int:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", refuse)
        with pytest.raises(expected):
            put(store, "file", b"new")
    with store.get("file", byte_range=None, expected=None) as body:
        assert body.read() == b"old"
    assert leftovers(tmp_path) == []


def test_copy_works_where_the_kernel_cannot_copy_ranges(
    store: LocalDirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object, **_options: object) -> int:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "copy_file_range", refuse)
    token = put(store, "source", b"x" * 3_000_000)
    store.copy("source", "target", source_token=token, condition=IfAbsent(), metadata=PLAIN)
    with store.get("target", byte_range=None, expected=None) as body:
        assert body.read() == b"x" * 3_000_000


def test_file_that_is_cut_while_it_is_read_is_an_error_not_a_short_body(
    store: LocalDirectoryStore, tmp_path: Path
) -> None:
    put(store, "file", b"x" * 10_000)
    with store.get("file", byte_range=None, expected=None) as body:
        os.truncate(tmp_path / "file", 100)
        with pytest.raises(UnavailableError, match="shorter"):
            body.read()


def test_marker_that_cannot_be_read_says_so(store: LocalDirectoryStore, tmp_path: Path) -> None:
    put(store, "dir/")
    os.setxattr(tmp_path / "dir", local_objects.MARKER, b"not json")
    with pytest.raises(CorruptDataError, match="dir/"):
        store.head("dir/")


def test_listing_goes_on_where_its_last_page_ended_though_that_key_is_gone(
    store: LocalDirectoryStore,
) -> None:
    for name in ("a", "a.b", "a0", "d/x", "d/y", "d.z", "e"):
        put(store, name, b"")
    seen: list[str] = []
    page: str | None = None
    while True:
        found = store.list_page("", page=page, whole_segments=False, limit=2)
        seen += [stat.key for stat in found.objects]
        page = found.next_page
        if page is None:
            break
        store.delete(page, condition=Unconditional())
    assert seen == ["a", "a.b", "a0", "d.z", "d/x", "d/y", "e"]


def test_a_store_can_be_opened_while_another_process_opens_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    LocalDirectoryStore(str(tmp_path))
    looked: list[str] = []
    exists = os.path.lexists

    def with_another(path: str) -> bool:
        """Looking for the folded name; the other one tidies up at this moment."""
        looked.append(path)
        if len(looked) == 1:
            LocalDirectoryStore(str(tmp_path))
        return exists(path)

    monkeypatch.setattr("sessionfs.stores.local_temporary.os.path.lexists", with_another)
    LocalDirectoryStore(str(tmp_path))
    assert len(looked) == 2
