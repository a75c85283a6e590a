"""A generation comes to a directory: exactly, whole or not at all."""

from __future__ import annotations

import fcntl
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from sessionfs.formats import manifest as manifests
from sessionfs.formats.manifest import Manifest, ManifestEntry
from sessionfs.model import keys
from sessionfs.model.errors import (
    ConflictError,
    CorruptDataError,
    InvalidRequestError,
    NotFoundError,
    UnavailableError,
)
from sessionfs.replication.maintenance.restoration import Restoration, Restored
from sessionfs.replication.trio_store import TrioStore
from sessionfs.stores.base import ObjectMetadata, ObjectStore, Unconditional
from sessionfs.stores.memory import MemoryStore
from sessionfs.testing.faulty_store import FailBefore, FaultyStore
from tests.unit.replication.maintenance.test_in_place import FIRST, SECOND
from tests.unit.replication.maintenance.world import (
    LINK,
    SETTINGS,
    Author,
    HandClock,
    MortalStore,
    S,
    Tree,
    cloned,
    run_and_die,
    sha,
    tree_of,
)


async def restore(store: ObjectStore, target: Path, generation: int = 1) -> Restored:
    reading = TrioStore(store, HandClock(), SETTINGS)
    return await Restoration(reading, SETTINGS).restore(S, generation, str(target))


def read_tree(root: Path) -> Tree:
    """What is on the disk, in the form of `tree_of`."""
    found: Tree = {}
    for directory, names_below, files in os.walk(os.fsencode(root)):
        for path in [directory, *(os.path.join(directory, name) for name in (*files, *names_below))]:
            status = os.lstat(path)
            body = b""
            if stat.S_ISREG(status.st_mode):
                body = Path(os.fsdecode(path)).read_bytes()
            elif stat.S_ISLNK(status.st_mode):
                body = os.readlink(path)
            relative = os.path.relpath(path, os.fsencode(root))
            found[b"" if relative == b"." else relative] = (status.st_mode, body, status.st_mtime_ns)
    return found


async def test_contents_modes_times_links_and_empty_directories_come_back(
    author: Author, memory: MemoryStore, tmp_path: Path
) -> None:
    tree = {**FIRST, b"empty": None, b"d/run": b"#!", b"vm": None, b"vm/x": b"y", b"nothing": b""}
    wanted = tree_of(author.commit(tree, modes={b"d/run": 0o755, b"empty": 0o500, b"nothing": 0o400}), author)
    author.commit(SECOND)
    done = await restore(memory, tmp_path / "there")
    assert read_tree(tmp_path / "there") == wanted
    assert (done.generation, done.files) == (1, len(wanted))
    assert sorted(os.listdir(tmp_path)) == ["there"]


async def test_extended_attributes_and_names_of_one_file_come_back(
    author: Author, memory: MemoryStore, tmp_path: Path
) -> None:
    def decorate(entry: ManifestEntry) -> ManifestEntry:
        if entry.path in {b"one", b"sub/two"}:
            return replace(entry, link_group=1, xattrs={b"user.mime": b"text/\xff"})
        return entry

    author.commit({b"one": b"twice", b"sub": None, b"sub/two": b"twice"}, extra=decorate)
    await restore(memory, tmp_path / "there")
    first, second = tmp_path / "there/one", tmp_path / "there/sub/two"
    assert first.stat().st_ino == second.stat().st_ino
    assert os.getxattr(first, "user.mime") == b"text/\xff"


async def test_a_private_file_is_private(author: Author, memory: MemoryStore, tmp_path: Path) -> None:
    author.commit({b"vm": None, b"vm/token": b"secret"})
    await restore(memory, tmp_path / "there")
    assert stat.S_IMODE((tmp_path / "there/vm/token").stat().st_mode) == 0o600


async def test_a_path_longer_than_the_kernel_takes_comes_back(
    author: Author, memory: MemoryStore, tmp_path: Path
) -> None:
    path = b"/".join([b"n" * 250] * 18)
    author.commit({path: b"far"})
    await restore(memory, tmp_path / "there")
    at = os.open(tmp_path / "there", os.O_RDONLY)
    for name in path.split(b"/"):
        below = os.open(name, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    assert os.read(at, 10) == b"far"
    os.close(at)


async def test_a_target_in_use_is_refused_and_an_empty_one_is_taken(
    author: Author, memory: MemoryStore, tmp_path: Path
) -> None:
    author.commit({b"f": b"x"})
    (tmp_path / "used").mkdir()
    (tmp_path / "used/file").write_text("mine")
    with pytest.raises(InvalidRequestError, match="not empty"):
        await restore(memory, tmp_path / "used")
    with pytest.raises(InvalidRequestError, match="Not a directory"):
        await restore(memory, tmp_path / "used/file")
    (tmp_path / "empty").mkdir()
    await restore(memory, tmp_path / "empty")
    assert (tmp_path / "empty/f").read_bytes() == b"x"
    assert (tmp_path / "used/file").read_text() == "mine"


async def test_a_generation_that_is_not_there_leaves_nothing(
    author: Author, memory: MemoryStore, tmp_path: Path
) -> None:
    author.commit({b"f": b"x"})
    author.commit({}, removed=True)
    with pytest.raises(NotFoundError):
        await restore(memory, tmp_path / "there", 9)
    with pytest.raises(InvalidRequestError, match="removed"):
        await restore(memory, tmp_path / "there", 2)
    assert os.listdir(tmp_path) == []


async def test_bytes_that_do_not_verify_leave_nothing_and_are_named(
    author: Author, memory: MemoryStore, tmp_path: Path
) -> None:
    author.commit({b"d": None, b"d/f": b"right", b"g": b"other"})
    memory.put("sessions/s/d/f", b"wrong", condition=Unconditional(), metadata=ObjectMetadata())
    with pytest.raises(CorruptDataError, match=r"s/d/f .*other bytes are in sessions/s/d/f"):
        await restore(memory, tmp_path / "there")
    assert os.listdir(tmp_path) == []


async def test_a_store_that_does_not_answer_leaves_nothing(
    author: Author, memory: MemoryStore, tmp_path: Path
) -> None:
    author.commit({b"f": b"x"})
    faulty = FaultyStore(memory)
    faulty.plan("get", *(FailBefore(UnavailableError("away")) for _ in range(5)))
    with pytest.raises(UnavailableError):
        await restore(faulty, tmp_path / "there")
    assert os.listdir(tmp_path) == []


async def test_nothing_is_written_through_a_link_of_the_manifest(
    memory: MemoryStore, tmp_path: Path, clock: HandClock
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    target = os.fsencode(outside)
    entries = (
        ManifestEntry(b"a", LINK, len(target), sha(target), target=target),
        ManifestEntry(b"a/planted", stat.S_IFREG | 0o644, 1, sha(b"x")),
    )
    raw, _ = manifests.encode(Manifest(S, 1, entries))
    for key in (keys.generation_key(S, 1), keys.manifest_key(S)):
        memory.put(key, raw, condition=Unconditional(), metadata=ObjectMetadata())
    memory.put(keys.content_key(S, sha(b"x")), b"x", condition=Unconditional(), metadata=ObjectMetadata())
    with pytest.raises(CorruptDataError, match="no directory"):
        await restore(memory, tmp_path / "there")
    assert os.listdir(outside) == []


async def test_two_runs_to_one_place_do_not_meet(author: Author, memory: MemoryStore, tmp_path: Path) -> None:
    author.commit({b"f": b"x"})
    staging = tmp_path / ".there.sessionfs-restore"
    staging.mkdir()
    descriptor = os.open(staging, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(ConflictError, match="in use"):
        await restore(memory, tmp_path / "there")
    os.close(descriptor)
    await restore(memory, tmp_path / "there")
    assert os.listdir(tmp_path) == ["there"]


async def test_killed_at_any_step_only_staging_is_left_and_the_next_run_removes_it(
    author: Author, memory: MemoryStore, clock: HandClock, tmp_path: Path
) -> None:
    wanted = tree_of(author.commit({**FIRST, b"sealed": None}, modes={b"sealed": 0o100}), author)
    author.commit(SECOND)
    target = tmp_path / "there"

    async def action(mortal: MortalStore) -> None:
        await restore(mortal, target)

    whole = MortalStore(cloned(memory, clock))
    assert not await run_and_die(action, whole)
    assert read_tree(target) == wanted
    for at in range(1, len(whole.calls) + 1):
        target.rename(tmp_path / "last")
        assert await run_and_die(action, MortalStore(cloned(memory, clock), at=at))
        assert {"last"} <= set(os.listdir(tmp_path)) <= {"last", ".there.sessionfs-restore"}
        await restore(memory, target)
        assert read_tree(target) == wanted
        assert sorted(os.listdir(tmp_path)) == ["last", "there"]
        os.rename(tmp_path / "last", tmp_path.with_name(f"{tmp_path.name}-{at}"))
