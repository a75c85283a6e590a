"""Files straight in the bucket: what is written, who wins, and what generations keep."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from sessionfs.formats import manifest as manifests
from sessionfs.formats import object_metadata
from sessionfs.formats.manifest import Manifest, ManifestEntry
from sessionfs.model import keys
from sessionfs.model.clock import SystemClock
from sessionfs.model.errors import (
    AlreadyExistsError,
    CorruptDataError,
    InvalidRequestError,
    NotFoundError,
    OutcomeUnknownError,
    PreconditionFailedError,
    UnavailableError,
)
from sessionfs.model.names import session_id
from sessionfs.sessions.object_files import ObjectFiles
from sessionfs.sessions.object_place import ObjectPlace, open_object_place
from sessionfs.stores import local_objects
from sessionfs.stores.base import ObjectMetadata, ObjectStore, Unconditional
from sessionfs.stores.local_directory import LocalDirectoryStore
from sessionfs.stores.memory import MemoryStore
from sessionfs.testing.faulty_store import FaultyStore, Interfere, LostResponse, Pass

SESSION = session_id("s")


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "memory":
        return MemoryStore()
    (tmp_path / "store").mkdir()
    return LocalDirectoryStore(str(tmp_path / "store"))


@pytest.fixture
async def place(store: ObjectStore) -> AsyncIterator[ObjectPlace]:
    async with open_object_place(store, SystemClock()) as opened:
        yield opened


@pytest.fixture
def files(place: ObjectPlace) -> ObjectFiles:
    return place.files(SESSION)


def body_of(store: ObjectStore, key: str) -> bytes:
    with store.get(key, byte_range=None, expected=None) as body:
        return body.read()


async def test_a_file_is_an_object_under_its_own_name_with_the_metadata_of_a_mount(
    files: ObjectFiles, store: ObjectStore
) -> None:
    shown = await files.write("d/e/f ü%.txt", b"body")
    key = "sessions/s/d/e/f ü%25.txt"
    assert body_of(store, key) == b"body"
    found = store.head(key)
    assert (shown.revision, shown.size_bytes) == (found.token, 4)
    assert found.metadata is not None
    provenance = object_metadata.decode_provenance(found.metadata.user)
    assert provenance.sha256 == hashlib.sha256(b"body").hexdigest()
    assert provenance.write_id
    assert found.metadata.content_type == "text/plain"
    # A mount hydrates the directories too.
    for marker in ("sessions/s/", "sessions/s/d/", "sessions/s/d/e/"):
        assert store.head(marker).size_bytes == 0
    assert await files.stat("d/e/f ü%.txt") == shown


async def test_ranges_are_cut_to_the_file(files: ObjectFiles) -> None:
    await files.write("f", b"0123456789")
    assert await files.read("f", 2, 5) == b"234"
    assert await files.read("f", 8) == b"89"
    assert await files.read("f", 8, 100) == b"89"
    assert await files.read("f", 100) == b""
    assert await files.read("f", 3, 3) == b""
    with pytest.raises(NotFoundError):
        await files.read("none", 3, 3)
    with pytest.raises(InvalidRequestError):
        await files.read("f", -1)


async def test_only_a_new_file_is_made_when_that_is_asked(files: ObjectFiles) -> None:
    await files.write("f", b"first", is_new=True)
    with pytest.raises(AlreadyExistsError):
        await files.write("f", b"second", is_new=True)
    assert await files.read("f") == b"first"


async def test_the_list_is_sorted_and_has_files_only(files: ObjectFiles, store: ObjectStore) -> None:
    for path in ("b/z", "b.txt", "a", "b/a/c"):
        await files.write(path, path.encode())
    assert [one.path for one in await files.list()] == ["a", "b.txt", "b/a/c", "b/z"]
    assert [one.path for one in await files.list("b")] == ["b/a/c", "b/z"]
    assert [one.path for one in await files.list("a")] == ["a"]
    assert await files.list("none") == []


async def test_appends_of_many_writers_are_all_there(files: ObjectFiles, store: ObjectStore) -> None:
    async def append(number: int) -> None:
        async with open_object_place(store, SystemClock()) as place:
            for line in range(5):
                await place.files(SESSION).append("log", b"%d-%d\n" % (number, line))

    async with trio.open_nursery() as nursery:
        for number in range(4):
            nursery.start_soon(append, number)
    lines = (await files.read("log")).split(b"\n")[:-1]
    assert sorted(lines) == sorted(b"%d-%d" % (number, line) for number in range(4) for line in range(5))
    for number in range(4):
        assert [line for line in lines if line.startswith(b"%d-" % number)] == [
            b"%d-%d" % (number, n) for n in range(5)
        ]


async def test_an_append_to_what_was_seen_is_refused_when_it_is_another(files: ObjectFiles) -> None:
    base = await files.append("log", b"a\n")
    base = await files.append("log", b"b\n", base=base)
    await files.append("log", b"of another\n")
    with pytest.raises(PreconditionFailedError):
        await files.append("log", b"c\n", base=base)
    assert await files.read("log") == b"a\nb\nof another\n"
    await files.remove("log")
    with pytest.raises(PreconditionFailedError):
        await files.append("log", b"c\n", base=base)


def appending(how: str) -> FaultyStore:
    """A store whose files grow by this request."""
    memory = MemoryStore()
    few = replace(memory.capabilities, append_by_copy=how == "append", minimum_part_bytes=1)
    return FaultyStore(memory.with_capabilities(few))


@pytest.mark.parametrize("how", ["put", "append"])
async def test_a_lost_answer_is_neither_an_error_nor_a_second_line(how: str) -> None:
    faulty = appending(how)
    async with open_object_place(faulty, SystemClock()) as place:
        files = place.files(SESSION)
        await files.append("log", b"first\n")
        faulty.plan(how, LostResponse())
        await files.append("log", b"second\n")
        faulty.assert_all_used()
        assert await files.read("log") == b"first\nsecond\n"


@pytest.mark.parametrize("how", ["put", "append"])
@pytest.mark.parametrize("when", ["head", "change"])
async def test_an_attempt_that_arrives_late_is_not_a_second_line(how: str, when: str) -> None:
    faulty = appending(how)
    late: list[Callable[[], object]] = []
    change = getattr(faulty, how)

    def lost(*arguments: object, **named: object) -> object:
        """The first attempt is under way still when its answer counts as lost; it arrives right before a later request."""
        if "late" not in seen:
            seen.append("late")
            late.append(lambda: change(*arguments, **named))
            raise OutcomeUnknownError("no answer")
        return change(*arguments, **named)

    def arrive() -> None:
        if late:
            late.pop()()

    seen: list[str] = []
    async with open_object_place(faulty, SystemClock()) as place:
        files = place.files(SESSION)
        await files.append("log", b"first\n")
        setattr(faulty, how, lost)
        faulty.plan("head", Pass(), Pass(), *([Interfere(arrive)] if when == "head" else []))
        if when == "change":
            faulty.plan(how, Interfere(arrive))
        await files.append("log", b"second\n")
        assert await files.read("log") == b"first\nsecond\n"
        assert late == []


@pytest.mark.parametrize("how", ["put", "append"])
async def test_an_append_that_another_writer_beats_is_done_on_what_is_there_then(how: str) -> None:
    faulty = appending(how)
    async with open_object_place(faulty, SystemClock()) as place:
        files = place.files(SESSION)
        base = await files.append("log", b"first\n")

        def other() -> None:
            body = b"first\nof another\n"
            faulty.inner.put("sessions/s/log", body, condition=Unconditional(), metadata=ObjectMetadata())

        faulty.plan(how, Interfere(other))
        await files.append("log", b"second\n")
        assert await files.read("log") == b"first\nof another\nsecond\n"
        base = await files.stat("log")
        faulty.plan(how, Interfere(other))
        with pytest.raises(PreconditionFailedError):
            await files.append("log", b"third\n", base=base)
        faulty.assert_all_used()
        assert await files.read("log") == b"first\nof another\n"


async def test_a_long_file_grows_on_the_server() -> None:
    faulty = appending("append")
    async with open_object_place(faulty, SystemClock()) as place:
        files = place.files(SESSION)
        await files.write("log", b"long")
        faulty.calls.clear()
        shown = await files.append("log", b"tail\n")
        assert [method for method, _ in faulty.calls] == ["head", "append"]
        assert shown.size_bytes == 9
        assert await files.read("log") == b"longtail\n"
        assert await files.stat("log") == shown


async def test_a_file_of_a_directory_grows_in_place_and_loses_the_sum_of_its_old_bytes(
    tmp_path: Path,
) -> None:
    local = LocalDirectoryStore(str(tmp_path))
    async with open_object_place(local, SystemClock()) as place:
        files = place.files(SESSION)
        await files.write("log", b"a\n")
        inode = os.stat(tmp_path / "sessions/s/log").st_ino
        shown = await files.append("log", b"b\n")
        assert os.stat(tmp_path / "sessions/s/log").st_ino == inode
        found = local.head("sessions/s/log")
        assert found.token == shown.revision
        assert found.metadata is not None
        assert object_metadata.decode_provenance(found.metadata.user).sha256 == ""
        assert await files.read("log") == b"a\nb\n"
        await files.sync("log")
        await files.sync()


async def test_private_bytes_of_a_directory_are_their_owners(tmp_path: Path) -> None:
    async with open_object_place(LocalDirectoryStore(str(tmp_path)), SystemClock()) as place:
        await place.files(SESSION).write("vm/token", b"secret", is_private=True)
        await place.files(SESSION).write("open", b"")
    assert os.stat(tmp_path / "sessions/s/vm/token").st_mode & 0o777 == 0o600
    assert os.stat(tmp_path / "sessions/s/open").st_mode & 0o777 == 0o644


async def test_a_rename_replaces_and_its_crash_leaves_both(files: ObjectFiles) -> None:
    await files.write("a", b"of a")
    await files.write("d/b", b"of b")
    await files.rename("a", "d/b")
    assert [one.path for one in await files.list()] == ["d/b"]
    assert await files.read("d/b") == b"of a"
    await files.rename("d/b", "d/b")
    assert await files.read("d/b") == b"of a"
    with pytest.raises(NotFoundError):
        await files.rename("a", "c")


async def test_a_removed_file_may_be_removed_again(files: ObjectFiles) -> None:
    await files.write("a", b"x")
    await files.remove("a")
    await files.remove("a")
    assert await files.list() == []


async def test_bytes_that_do_not_verify_are_not_given(files: ObjectFiles, store: ObjectStore) -> None:
    await files.write("a", b"good")
    found = store.head("sessions/s/a")
    assert found.metadata is not None
    store.put("sessions/s/a", b"evil", condition=Unconditional(), metadata=found.metadata)
    with pytest.raises(CorruptDataError, match="sessions/s/a"):
        await files.read("a")


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/abs",
        "../x",
        "a/../b",
        "a//b",
        "a/",
        "C:/x",
        "a\\b",
        "a\0b",
        "x" * 256,
        "d/" * 500 + "f",
        "\ud800",
        ".sessionfs/x",
    ],
)
async def test_a_bad_path_is_refused_before_anything_is_asked(path: str) -> None:
    faulty = FaultyStore(MemoryStore())
    async with open_object_place(faulty, SystemClock()) as place:
        files = place.files(SESSION)
        for call in (files.stat, files.read, files.remove):
            with pytest.raises(InvalidRequestError):
                await call(path)
        with pytest.raises(InvalidRequestError):
            await files.write(path, b"")
        with pytest.raises(InvalidRequestError):
            await files.append(path, b"")
        with pytest.raises(InvalidRequestError):
            await files.rename("a", path)
    assert faulty.calls == []


# --- what a generation names


def commit(store: ObjectStore, *paths: str) -> dict[str, bytes]:
    """Make a generation of some files, as their owner does."""
    entries, bodies = [], {}
    for path in sorted(paths):
        found, body = store.head(f"sessions/s/{path}"), body_of(store, f"sessions/s/{path}")
        sha256 = hashlib.sha256(body).hexdigest()
        entries.append(ManifestEntry(path.encode(), 0o100644, len(body), sha256, found.token))
        bodies[sha256] = body
    manifest = Manifest(session="s", generation=1, entries=tuple(entries))
    raw, encoding = manifests.encode(manifest)
    metadata = ObjectMetadata(content_encoding=encoding)
    store.put(keys.manifest_key(SESSION), raw, condition=Unconditional(), metadata=metadata)
    return bodies


@pytest.mark.parametrize("change", ["write", "remove", "rename over", "rename away", "grow, then write"])
async def test_what_a_generation_names_is_kept_whatever_happens_to_its_key(
    store: ObjectStore, change: str
) -> None:
    async with open_object_place(store, SystemClock()) as place:
        files = place.files(SESSION)
        await files.write("a", b"named")
        await files.write("b", b"other")
        bodies = commit(store, "a")
    async with open_object_place(store, SystemClock()) as place:
        files = place.files(SESSION)
        if change == "remove":
            await files.remove("a")
        elif change == "rename over":
            await files.rename("b", "a")
        elif change == "rename away":
            await files.rename("a", "c")
        else:
            if change.startswith("grow"):
                await files.append("a", b" and more")
            await files.write("a", b"new")
    for sha256, body in bodies.items():
        assert body_of(store, keys.content_key(SESSION, sha256)) == body


async def test_a_change_of_what_no_generation_names_copies_nothing(store: ObjectStore) -> None:
    async with open_object_place(store, SystemClock()) as place:
        files = place.files(SESSION)
        await files.write("a", b"named")
        await files.write("b", b"other")
        commit(store, "a")
        await files.write("b", b"new")
        await files.append("a", b" grows")
        await files.remove("b")
    assert [stat.key for page in store.list_all(keys.objects_prefix(SESSION)) for stat in page.objects] == []


async def test_a_full_disk_adds_nothing_of_an_append(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_object_place(LocalDirectoryStore(str(tmp_path)), SystemClock()) as place:
        files = place.files(SESSION)
        await files.append("log", b"whole\n", is_synced=True)

        def half(descriptor: int, body: bytes) -> None:
            os.write(descriptor, body[: len(body) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(local_objects, "write_all", half)
        with pytest.raises(UnavailableError, match="No space left"):
            await files.append("log", b"torn\n")
        monkeypatch.undo()
        assert await files.read("log") == b"whole\n"
        await files.append("log", b"more\n")
        assert await files.read("log") == b"whole\nmore\n"
