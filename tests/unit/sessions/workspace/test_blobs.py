"""Blobs: under their own sum in the place, with copies on this host."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from sessionfs.model.errors import (
    CorruptDataError,
    InvalidRequestError,
    NotFoundError,
    UnavailableError,
    UnsupportedFormatError,
)
from sessionfs.model.names import session_id
from sessionfs.sessions.port import SessionPlace
from sessionfs.sessions.workspace.options import WorkspaceOptions
from sessionfs.sessions.workspace.workspace import Workspace

from .world import Heard, MemoryPlace


def sum_of(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def path_of(body: bytes, suffix: str = "bin") -> str:
    return f"blobs/{sum_of(body)[:2]}/{sum_of(body)}.{suffix}"


def cached(root: Path) -> dict[str, bytes]:
    found = root / "s" / "blobs"
    return {path.name: path.read_bytes() for path in sorted(found.rglob("*")) if path.is_file()}


async def test_a_blob_is_in_the_place_under_its_sum_with_a_description(place: SessionPlace) -> None:
    async with Workspace.open(place, "s") as workspace:
        blobs = workspace.blobs()
        put = await blobs.put(b"picture", content_type="image/png", name="a.png")
        assert (put.sha256, put.size_bytes, put.is_new) == (sum_of(b"picture"), 7, True)
        assert await place.files(session_id("s")).read(path_of(b"picture")) == b"picture"
        described = await blobs.describe(put.sha256)
        assert (described.size, described.content_type, described.name) == (7, "image/png", "a.png")
        again = await blobs.put(b"picture", content_type="text/plain", name="b")
        assert (again.sha256, again.is_new) == (put.sha256, False)
        assert await blobs.describe(put.sha256) == described
        assert await blobs.get(put.sha256) == b"picture"
        empty = await blobs.put(b"")
        assert await blobs.list() == sorted([put.sha256, empty.sha256])
        assert (await blobs.exists(put.sha256), await blobs.exists("0" * 64)) == (True, False)


async def test_a_blob_that_is_missing_or_misnamed_is_refused(place: SessionPlace) -> None:
    async with Workspace.open(place, "s") as workspace:
        with pytest.raises(NotFoundError):
            await workspace.blobs().get("0" * 64)
        with pytest.raises(NotFoundError):
            await workspace.blobs().describe("0" * 64)
        for bad in ("", "0" * 63, "A" * 64, "../../metadata/session.json", "0" * 64 + "\n"):
            with pytest.raises(InvalidRequestError):
                await workspace.blobs().get(bad)


async def test_a_blob_with_other_bytes_is_never_given_and_putting_it_again_repairs_it(tmp_path: Path) -> None:
    place = MemoryPlace()
    async with Workspace.open(place, "s") as workspace:
        for damage in (b"longer than it was", b"same!"):
            await workspace.blobs().put(b"right")
            place.disk.put("s", path_of(b"right"), damage)
            with pytest.raises(CorruptDataError):
                await workspace.blobs().get(sum_of(b"right"))
            assert not (await workspace.blobs().put(b"right")).is_new
            assert await workspace.blobs().get(sum_of(b"right")) == b"right"
            # Of another length: that is seen without reading it.
            place.disk.put("s", path_of(b"right"), b"cut")
            assert not (await workspace.blobs().put(b"right")).is_new
            assert await workspace.blobs().get(sum_of(b"right")) == b"right"


async def test_copies_stay_within_the_budget_and_what_leaves_them_stays_in_the_place(tmp_path: Path) -> None:
    place = MemoryPlace()
    options = WorkspaceOptions(local_directory=str(tmp_path), blob_cache_bytes=10)
    async with Workspace.open(place, "s", options=options) as workspace:
        blobs = workspace.blobs()
        for body in (b"1111", b"2222"):
            await blobs.put(body)
        assert await blobs.get(sum_of(b"1111")) == b"1111"
        await blobs.put(b"3333")
        # The one that was used longest ago left.
        assert set(cached(tmp_path)) == {sum_of(b"1111"), sum_of(b"3333")}
        await blobs.put(b"longer than the budget")
        assert set(cached(tmp_path)) == {sum_of(b"1111"), sum_of(b"3333")}
        reads: list[str] = []
        place.before = lambda name, path: reads.append(path) if name == "read" else None
        assert await blobs.get(sum_of(b"1111")) == b"1111"
        assert reads == []
        assert await blobs.get(sum_of(b"2222")) == b"2222"
        assert reads == [path_of(b"2222")]
        assert set(cached(tmp_path)) == {sum_of(b"1111"), sum_of(b"2222")}
        assert len(await blobs.list()) == 4


async def test_copies_are_found_again_after_a_restart_in_the_order_of_their_use(tmp_path: Path) -> None:
    place = MemoryPlace()
    options = WorkspaceOptions(local_directory=str(tmp_path), blob_cache_bytes=10)
    async with Workspace.open(place, "s", options=options) as workspace:
        await workspace.blobs().put(b"1111")
        await workspace.blobs().put(b"2222")
    folder = tmp_path / "s" / "blobs"
    os.utime(folder / sum_of(b"1111")[:2] / sum_of(b"1111"), ns=(2, 2))
    os.utime(folder / sum_of(b"2222")[:2] / sum_of(b"2222"), ns=(1, 1))
    (folder / "aa").mkdir(exist_ok=True)
    (folder / "aa" / "x.tmp-1").write_bytes(b"left by a crash")
    async with Workspace.open(place, "s", options=options) as workspace:
        await workspace.blobs().put(b"3333")
        assert set(cached(tmp_path)) == {sum_of(b"1111"), sum_of(b"3333")}


async def test_a_damaged_copy_is_fetched_again_and_never_given(tmp_path: Path) -> None:
    place = MemoryPlace()
    async with Workspace.open(
        place, "s", options=WorkspaceOptions(local_directory=str(tmp_path))
    ) as workspace:
        put = await workspace.blobs().put(b"right")
        copy = tmp_path / "s" / "blobs" / put.sha256[:2] / put.sha256
        copy.write_bytes(b"wrong")
        assert await workspace.blobs().get(put.sha256) == b"right"
        assert copy.read_bytes() == b"right"
        copy.unlink()
        assert await workspace.blobs().get(put.sha256) == b"right"
        assert copy.read_bytes() == b"right"


async def test_a_disk_that_takes_no_copies_costs_no_blob(tmp_path: Path) -> None:
    place = MemoryPlace()
    async with Workspace.open(
        place, "s", options=WorkspaceOptions(local_directory=str(tmp_path))
    ) as workspace:
        (tmp_path / "s" / "blobs").write_bytes(b"no directory")
        put = await workspace.blobs().put(b"x")
        assert await workspace.blobs().get(put.sha256) == b"x"


async def test_a_push_that_fails_is_raised_keeps_no_copy_and_is_repeated(tmp_path: Path) -> None:
    place = MemoryPlace()
    async with Workspace.open(
        place, "s", options=WorkspaceOptions(local_directory=str(tmp_path))
    ) as workspace:
        for down_at in (path_of(b"x"), path_of(b"x", "meta")):

            def before(_name: str, path: str, down_at: str = down_at) -> None:
                place.is_down = path == down_at

            place.before = before
            with pytest.raises(UnavailableError):
                await workspace.blobs().put(b"x")
            assert cached(tmp_path) == {}
        place.before = lambda _name, _path: None
        place.is_down = False
        put = await workspace.blobs().put(b"x", content_type="a/b")
        assert (await workspace.blobs().describe(put.sha256)).content_type == "a/b"
        assert place.synced[-2:] == [path_of(b"x"), path_of(b"x", "meta")]


async def test_a_description_of_a_later_format_is_refused() -> None:
    place = MemoryPlace()
    async with Workspace.open(place, "s") as workspace:
        put = await workspace.blobs().put(b"x")
        place.disk.put("s", path_of(b"x", "meta"), b'{"format":2}')
        with pytest.raises(UnsupportedFormatError):
            await workspace.blobs().describe(put.sha256)
        place.disk.put("s", path_of(b"x", "meta"), b"{")
        with pytest.raises(CorruptDataError):
            await workspace.blobs().describe(put.sha256)


async def test_a_blob_is_announced_as_any_file_is(heard: Heard) -> None:
    async with Workspace.open(MemoryPlace(), "s", options=WorkspaceOptions(subscriber=heard)) as workspace:
        heard.events.clear()
        await workspace.blobs().put(b"x")
        await workspace.blobs().put(b"x")
        assert [(kind, path) for kind, path, *_ in heard.files()] == [
            ("created", path_of(b"x")),
            ("created", path_of(b"x", "meta")),
        ]


@pytest.mark.parametrize("damage", ["other bytes", "no bytes", "gone"])
async def test_a_blob_that_was_damaged_before_this_workspace_began_is_put_right(damage: str) -> None:
    place = MemoryPlace()
    async with Workspace.open(place, "s") as workspace:
        await workspace.blobs().put(b"right")
    place.disk.put("s", path_of(b"right"), b"wrong")

    def hinder(name: str, path: str) -> None:
        if (name, path) == ("read", path_of(b"right")):
            place.before = lambda _name, _path: None
            if damage == "gone":
                place.disk.remove("s", path)
            if damage == "no bytes":
                raise CorruptDataError("they do not verify")

    async with Workspace.open(place, "s") as workspace:
        place.before = hinder
        assert not (await workspace.blobs().put(b"right")).is_new
        assert place.disk.bodies("s")[path_of(b"right")] == b"right"
