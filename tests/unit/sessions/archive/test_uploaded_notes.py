"""What a host remembers of the archive: it saves requests, and never makes a wrong checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from sessionfs.formats.archive.records import (
    BegunFile,
    UploadedRecord,
    decode_uploaded,
    encode,
)
from sessionfs.model.errors import (
    AccessError,
)
from sessionfs.stores.memory import MemoryStore
from sessionfs.testing.faulty_store import FailBefore, Pass

from .archive_world import SESSION, Host, World, blocks


@pytest.mark.parametrize("wrong", ["lost", "garbage", "newer format", "of another store", "made up"])
async def test_what_a_host_remembers_wrongly_costs_a_request_and_never_a_checkpoint(
    world: World, wrong: str, tmp_path: Path
) -> None:
    world.host.write("log", blocks(2) + b"tail")
    await world.host.publish()
    notes = world.host.notes
    if wrong == "lost":
        notes.unlink()
    elif wrong == "garbage":
        notes.write_bytes(b"\x00{")
    elif wrong == "newer format":
        notes.write_bytes(b'{"format":2}')
    elif wrong == "of another store":
        other = Host(tmp_path / "other", MemoryStore())
        other.write("log", blocks(4))
        await other.publish()
        notes.write_bytes(other.notes.read_bytes())
    else:
        # Says of a block that it is up, in a manifest that would be right if it were.
        world.host.append("log", blocks(2))
        other = Host(tmp_path / "other", MemoryStore())
        other.write("log", world.host.contents()["log"])
        await other.publish()
        notes.write_bytes(other.notes.read_bytes())
    world.host.append("log", b"more")
    world.sent()
    await world.host.publish()
    assert world.sent()["blocks"] == (2 if wrong == "made up" else 0)
    assert await world.host.restore() == world.host.contents()


async def test_what_was_begun_and_failed_is_taken_up_without_sending_it_again(world: World) -> None:
    world.host.write("log", blocks(6) + b"tail")
    world.store.plan("put", *[Pass()] * 4, FailBefore(AccessError("refused, as planned")))
    with pytest.raises(AccessError):
        await world.host.publish()
    arrived = {key for key in world.listed() if "/blocks/" in key}
    assert len(arrived) >= 4
    world.sent()
    # It grew meanwhile: what was begun is still its beginning.
    world.host.append("log", blocks(1))
    await world.host.publish()
    assert world.sent()["blocks"] == 7 - len(arrived)
    assert await world.host.restore() == world.host.contents()
    assert len([key for key in world.listed() if "/blocks/" in key]) == 7


@pytest.mark.parametrize("claim", ["nobody's", "another file's", "its own, of other bytes"])
async def test_a_wrong_claim_of_what_was_begun_never_makes_a_wrong_checkpoint(
    world: World, claim: str
) -> None:
    world.host.write("other", blocks(3))
    world.host.write("log", blocks(3))
    first = await world.host.publish()
    remembered = decode_uploaded(world.host.notes.read_bytes(), "notes")
    world.host.write("log", blocks(4))
    world.host.write("new", blocks(2))
    generation = {
        "nobody's": "0" * 32,
        "another file's": world.generation(first, "other"),
        "its own, of other bytes": world.generation(first, "log"),
    }[claim]
    begun = tuple(BegunFile(path=path, generation=generation, blocks=99) for path in ("log", "new"))
    world.host.notes.write_bytes(encode(UploadedRecord(session=SESSION, begun=begun)))
    await world.host.publish()
    assert await world.host.restore() == world.host.contents()
    assert remembered.manifest is not None
    assert remembered.begun == ()


@pytest.mark.parametrize("claim", ["nobody's", "another file's"])
async def test_files_with_the_same_blocks_never_share_a_generation(world: World, claim: str) -> None:
    same = blocks(1)
    world.host.write("other", same + b"other")
    first = await world.host.publish()
    world.host.write("a", same + b"a")
    world.host.write("b", same + b"b")
    generation = "0" * 32 if claim == "nobody's" else world.generation(first, "other")
    begun = tuple(BegunFile(path=path, generation=generation, blocks=1) for path in ("a", "b"))
    world.host.notes.write_bytes(encode(UploadedRecord(session=SESSION, begun=begun)))
    await world.host.publish()
    assert await world.host.restore() == world.host.contents()


async def test_a_generation_that_is_nobodys_any_more_is_not_written_over(world: World) -> None:
    orphan = f"archive/sessions/{SESSION}/blocks/{'0' * 32}/1"
    world.overwrite(orphan, b"orphan")
    world.host.write("log", blocks(3))
    world.host.notes.parent.mkdir(parents=True)
    begun = BegunFile(path="log", generation="0" * 32, blocks=3)
    world.host.notes.write_bytes(encode(UploadedRecord(session=SESSION, begun=(begun,))))
    checkpoint = await world.host.publish()
    assert world.generation(checkpoint, "log") != "0" * 32
    assert await world.host.restore() == world.host.contents()
    assert world.body(orphan) == b"orphan"


async def test_a_host_with_a_full_disk_still_publishes(world: World) -> None:
    world.host.notes.parent.parent.write_bytes(b"in the way")
    world.host.write("log", blocks(1))
    await world.host.publish()
    assert await world.host.restore() == world.host.contents()


async def test_an_archive_that_was_emptied_gets_everything_again(world: World) -> None:
    world.host.write("log", blocks(2) + b"tail")
    await world.host.publish()
    emptied = Host(world.directory / "first", MemoryStore())
    await emptied.publish()
    assert await emptied.restore() == world.host.contents()


async def test_nothing_is_left_beside_what_is_remembered(world: World) -> None:
    world.host.write("log", blocks(1))
    await world.host.publish()
    assert [path.name for path in world.host.notes.parent.iterdir()] == ["uploaded.json"]
