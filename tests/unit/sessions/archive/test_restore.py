"""What a restore verifies, refuses and leaves."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

import msgspec
import pytest
import trio

from sessionfs.formats.archive.records import (
    BLOCK_BYTES,
    ArchivedFile,
    ManifestRecord,
    PointerRecord,
    crc,
    encode,
    sha256_of,
)
from sessionfs.model.errors import (
    AccessError,
    AlreadyExistsError,
    CorruptDataError,
    InvalidRequestError,
    LocalDiskError,
    NotFoundError,
    UnsupportedFormatError,
)
from sessionfs.stores.base import Unconditional
from sessionfs.testing.faulty_store import FailBefore, Interfere, Pass

from .archive_world import SESSION, World, blocks

BASE = f"archive/sessions/{SESSION}"


async def _archived(world: World) -> str:
    world.host.write("log", blocks(2) + b"tail")
    world.host.write("d/e/other", blocks(1))
    world.host.write("empty", b"")
    return await world.host.publish()


async def _restore(world: World, checkpoint: str = "") -> None:
    await world.host.archive.restore(SESSION, str(world.host.restored), checkpoint=checkpoint)


def _left(world: World) -> list[str]:
    """Name what is beside the files and the notes."""
    return sorted(set(os.listdir(world.host.files.parent)) - {"files", "state"})


def _hostile(world: World, *files: ArchivedFile, **fields: object) -> None:
    """Make a manifest the newest checkpoint that no publication would make."""
    checkpoint = "0000000009-" + "a" * 32
    manifest = msgspec.structs.replace(
        ManifestRecord(session=SESSION, checkpoint=checkpoint, number=9, files=files), **fields
    )
    body = encode(manifest)
    world.overwrite(f"{BASE}/checkpoints/{checkpoint}", body)
    pointer = PointerRecord(session=SESSION, checkpoint=checkpoint, number=9, manifest_sha256=sha256_of(body))
    world.overwrite(f"{BASE}/latest", encode(pointer))


def _file(path: str, generation: str = "b") -> ArchivedFile:
    return ArchivedFile(path=path, size=0, generation=generation * 32, sha256=hashlib.sha256().hexdigest())


@pytest.mark.parametrize("is_there", [False, True])
async def test_an_absent_or_empty_directory_gets_every_byte(world: World, is_there: bool) -> None:
    await _archived(world)
    if is_there:
        world.host.restored.mkdir(mode=0o750)
    await _restore(world)
    assert world.host.contents(world.host.restored) == world.host.contents()
    assert _left(world) == ["restored"]
    if is_there:
        assert stat.S_IMODE(world.host.restored.stat().st_mode) == 0o750


async def test_private_files_stay_private_and_others_do_not_become_so(world: World) -> None:
    world.host.write("token", b"secret")
    world.host.write("log", b"x")
    (world.host.files / "token").chmod(0o600)
    (world.host.files / "log").chmod(0o644)
    await world.host.publish()
    await _restore(world)
    assert stat.S_IMODE((world.host.restored / "token").stat().st_mode) == 0o600
    assert stat.S_IMODE((world.host.restored / "log").stat().st_mode) & 0o444 == 0o444


async def test_an_older_checkpoint_is_restored_by_its_id(world: World) -> None:
    first = await _archived(world)
    before = world.host.contents()
    world.host.append("log", blocks(1))
    await world.host.publish()
    await _restore(world, first)
    assert world.host.contents(world.host.restored) == before


@pytest.mark.parametrize("kind", ["file", "filled", "symlink"])
async def test_what_is_no_empty_directory_is_left_as_it_is(world: World, kind: str, tmp_path: Path) -> None:
    await _archived(world)
    target = world.host.restored
    if kind == "file":
        target.write_bytes(b"mine")
    elif kind == "filled":
        target.mkdir()
        (target / "mine").write_bytes(b"mine")
    else:
        (tmp_path / "elsewhere").mkdir()
        target.symlink_to(tmp_path / "elsewhere")
    world.store.calls.clear()
    with pytest.raises(AlreadyExistsError):
        await _restore(world)
    assert world.store.calls == []
    assert _left(world) == ["restored"]
    assert kind != "file" or target.read_bytes() == b"mine"
    assert kind != "filled" or world.host.contents(target) == {"mine": b"mine"}
    assert kind != "symlink" or os.listdir(tmp_path / "elsewhere") == []


async def test_a_directory_that_is_filled_meanwhile_is_left_as_it_is(world: World) -> None:
    await _archived(world)

    def fill() -> None:
        world.host.restored.mkdir()
        (world.host.restored / "mine").write_bytes(b"mine")

    world.store.plan("get", Pass(), Pass(), Interfere(fill))
    with pytest.raises(AlreadyExistsError):
        await _restore(world)
    assert world.host.contents(world.host.restored) == {"mine": b"mine"}
    assert _left(world) == ["restored"]


async def test_a_missing_directory_above_or_checkpoint_is_not_found(world: World) -> None:
    with pytest.raises(NotFoundError):
        await _restore(world)
    await _archived(world)
    with pytest.raises(NotFoundError):
        await world.host.archive.restore(SESSION, str(world.host.restored / "below"))
    with pytest.raises(NotFoundError):
        await _restore(world, "0000000001-" + "0" * 32)
    for bad in ("../latest", "latest", "0000000001-" + "0" * 31, "0000000001-" + "0" * 32 + "\n"):
        with pytest.raises(InvalidRequestError):
            await _restore(world, bad)
    assert _left(world) == []


@pytest.mark.parametrize("damage", ["missing", "one bit", "longer", "shorter", "empty", "swapped"])
async def test_whatever_object_is_damaged_nothing_is_restored(world: World, damage: str) -> None:
    await _archived(world)
    for key in world.listed():
        whole = world.body(key)
        if damage == "missing":
            world.store.inner.delete(key, condition=Unconditional())
        else:
            other = next(body for body in map(world.body, world.listed()) if body != whole)
            damaged = {
                "one bit": whole[:-1] + bytes([whole[-1] ^ 1]),
                "longer": whole + b"x",
                "shorter": whole[:-1],
                "empty": b"",
                "swapped": other,
            }[damage]
            world.overwrite(key, damaged)
        with pytest.raises((CorruptDataError, NotFoundError)) as caught:
            await _restore(world)
        assert _left(world) == [], key
        is_of_a_file = "/blocks/" in key or "/tails/" in key
        # Bytes of the right length behind the last block are only known to be wrong by the sum of the whole.
        assert not is_of_a_file or damage == "one bit" or key.removeprefix("archive/") in str(caught.value)
        world.overwrite(key, whole)
    await _restore(world)
    assert world.host.contents(world.host.restored) == world.host.contents()


async def test_a_manifest_that_is_not_the_one_that_the_pointer_names_is_refused(world: World) -> None:
    checkpoint = await _archived(world)
    changed = msgspec.structs.replace(world.manifest(checkpoint), created_at="another time")
    world.overwrite(f"{BASE}/checkpoints/{checkpoint}", encode(changed))
    with pytest.raises(CorruptDataError, match="sum"):
        await _restore(world)
    assert _left(world) == []


async def test_bytes_with_the_right_crc_and_the_wrong_sha256_are_not_restored(world: World) -> None:
    body = blocks(1)
    file = ArchivedFile(
        path="log", size=BLOCK_BYTES, generation="b" * 32, sha256="0" * 64, block_crcs=crc(body)
    )
    world.overwrite(f"{BASE}/blocks/{'b' * 32}/0", body)
    _hostile(world, file)
    with pytest.raises(CorruptDataError):
        await _restore(world)
    assert _left(world) == []


@pytest.mark.parametrize(
    "path",
    ["../escaped", "/escaped", "d/../../escaped", "./x", "a//b", "", "a\\b", "a\0b", ".sessionfs/x", "d/"],
)
async def test_a_manifest_with_a_path_that_leaves_the_directory_is_refused(world: World, path: str) -> None:
    _hostile(world, _file(path))
    with pytest.raises(CorruptDataError):
        await _restore(world)
    assert _left(world) == []
    assert not (world.directory / "escaped").exists()


async def test_a_manifest_of_another_session_or_checkpoint_is_refused(world: World) -> None:
    _hostile(world, _file("log"), session="other")
    with pytest.raises(CorruptDataError):
        await _restore(world)
    _hostile(world, _file("log"), checkpoint="0000000009-" + "c" * 32)
    with pytest.raises(CorruptDataError):
        await _restore(world)
    assert _left(world) == []


@pytest.mark.parametrize("what", ["pointer", "manifest"])
async def test_a_future_format_is_refused_before_anything_is_written(world: World, what: str) -> None:
    checkpoint = await _archived(world)
    if what == "pointer":
        world.overwrite(f"{BASE}/latest", b'{"format":2}')
    else:
        _hostile(world, _file("log"), format=2)
    world.store.plan("get", *[Pass()] * (1 if what == "pointer" else 2), Interfere(pytest.fail))
    with pytest.raises(UnsupportedFormatError):
        await _restore(world)
    world.store._planned.clear()
    assert _left(world) == []
    await _restore(world, checkpoint)


async def test_a_restore_that_fails_at_any_request_leaves_nothing(world: World) -> None:
    await _archived(world)
    world.store.calls.clear()
    await world.host.restore()
    requests = len(world.store.calls)
    for path in world.host.files.parent.glob("restored-*"):
        path.rename(world.directory / path.name)
    assert requests == 6
    for step in range(requests):
        world.store.plan("get", *[Pass()] * step, FailBefore(AccessError("refused, as planned")))
        with pytest.raises(AccessError):
            await _restore(world)
        world.store.assert_all_used()
        assert _left(world) == []


async def test_a_restore_that_is_cancelled_at_any_request_leaves_nothing(world: World) -> None:
    await _archived(world)
    for step in range(6):
        with trio.CancelScope() as scope:
            cancel = Interfere(lambda scope=scope: trio.from_thread.run_sync(scope.cancel))  # type: ignore[misc]
            world.store.plan("get", *[Pass()] * step, cancel)
            await _restore(world)
        assert scope.cancelled_caught
        assert _left(world) == []
    await _restore(world)


async def test_a_disk_that_refuses_is_a_local_disk_error_and_leaves_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _archived(world)

    def refuse(*_arguments: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("sessionfs.sessions.archive.restoring.os.pwrite", refuse)
    with pytest.raises(LocalDiskError) as caught:
        await _restore(world)
    assert caught.value.errno_number == 28
    assert _left(world) == []
