"""Images of files that programs go on writing."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest
import trio

from sessionfs.formats.link_messages import (
    ImageGrant,
)
from sessionfs.model.clock import SystemClock
from sessionfs.model.errors import UnavailableError
from sessionfs.replication.uploads import stable_image
from sessionfs.replication.uploads.sqlite_image import DatabaseImages, Deferred
from sessionfs.replication.uploads.stable_image import Image, Known, StableImages
from sessionfs.replication.uploads.working_files import WorkingFiles, _open_unreadable
from sessionfs.working_copy.layout import StateLayout
from sessionfs.working_copy.writers import has_writer

from .tree_world import SESSION, LaterClock, World

UNKNOWN = (-1, 0, 0)


class Gate:
    """The daemon: the file's length and rewrites, as told."""

    def __init__(self, grants: list[ImageGrant]) -> None:
        self.grants = grants

    async def begin_image(self, number: int) -> ImageGrant:  # noqa: ARG002 - the port's name
        return self.grants.pop(0)

    async def end_image(self, number: int) -> ImageGrant:  # noqa: ARG002 - the port's name
        return self.grants.pop(0)


class BrokenGate:
    async def begin_image(self, number: int) -> ImageGrant:  # noqa: ARG002 - the port's name
        raise UnavailableError("gone")

    async def end_image(self, number: int) -> ImageGrant:  # noqa: ARG002 - the port's name
        raise UnavailableError("gone")


def mapped(path: bytes) -> mmap.mmap:
    """Map a file; the descriptor is closed, the mapping lives."""
    with open(path, "r+b") as opened:
        return mmap.mmap(opened.fileno(), 0)


@pytest.fixture
def layout(tmp_path: Path) -> StateLayout:
    layout = StateLayout(str(tmp_path))
    layout.create()
    os.mkdir(os.path.join(layout.sessions, SESSION))
    return layout


def images(layout: StateLayout, gate: Gate | BrokenGate | None = None) -> StableImages:
    files = WorkingFiles(layout)
    clock = LaterClock()
    return StableImages(files, DatabaseImages(files, layout, clock, ""), clock, gate)


def file(layout: StateLayout, body: bytes, name: str = "f") -> Path:
    path = Path(layout.sessions, SESSION, name)
    path.write_bytes(body)
    return path


async def test_a_growing_log_is_imaged_up_to_where_a_write_ended(layout: StateLayout) -> None:
    file(layout, b"line 1\nline 2\nlin")
    gate = Gate([ImageGrant(14, 3, 1), ImageGrant(17, 3, 1)])
    image = await images(layout, gate).take(SESSION, b"f", Known(1, 1, UNKNOWN, "", 7))
    assert isinstance(image, Image)
    assert (image.size_bytes, image.body, image.identity) == (14, b"line 1\nline 2\n", None)
    assert image.prefix is not None
    assert image.changed_since()
    image.close()


async def test_a_file_rewritten_at_every_look_is_deferred(layout: StateLayout) -> None:
    file(layout, b"body")
    gate = Gate([ImageGrant(4, count, 1) for count in range(10)])
    image = await images(layout, gate).take(SESSION, b"f", Known(1, 1, UNKNOWN, ""))
    assert image == Deferred("it is being written")
    assert gate.grants == []


async def test_two_names_of_a_file_are_imaged_one_after_the_other(layout: StateLayout) -> None:
    """The daemon counts rewrites for one image of an inode."""
    file(layout, b"body")
    under_way: list[int] = []

    class Counting(Gate):
        async def begin_image(self, number: int) -> ImageGrant:  # noqa: ARG002 - the port's name
            under_way.append(1)
            assert len(under_way) == 1
            return ImageGrant(4, 0, 1)

        async def end_image(self, number: int) -> ImageGrant:  # noqa: ARG002 - the port's name
            under_way.clear()
            return ImageGrant(4, 0, 1)

    taken = images(layout, Counting([]))

    async def take() -> None:
        image = await taken.take(SESSION, b"f", Known(7, 1, UNKNOWN, ""))
        assert isinstance(image, Image)
        image.close()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take)
        nursery.start_soon(take)
    assert taken._locks == {}


async def test_without_the_daemon_equal_stats_decide(layout: StateLayout) -> None:
    file(layout, b"body")
    image = await images(layout, BrokenGate()).take(SESSION, b"f", Known(1, 1, UNKNOWN, ""))
    assert isinstance(image, Image)
    assert image.identity is not None
    image.close()


async def test_a_file_that_moves_while_it_is_read_is_deferred(
    layout: StateLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = file(layout, b"x" * (4 << 20))
    readings: list[bytes] = []
    real = stable_image._read

    def read_while_written(
        descriptor: int, status: os.stat_result, size_bytes: int, prefix_bytes: int
    ) -> Image | None:
        found = real(descriptor, status, size_bytes, prefix_bytes)
        readings.append(os.urandom(16))
        with path.open("r+b", buffering=0) as writer:
            writer.write(readings[-1])
        return found

    monkeypatch.setattr(stable_image, "_read", read_while_written)
    image = await images(layout).take(SESSION, b"f", Known(1, 0, UNKNOWN, ""))
    assert image == Deferred("it is being written")
    assert len(readings) == stable_image.TRIES


async def test_a_change_of_this_tick_is_looked_at_again(layout: StateLayout) -> None:
    """Its time may not move once more: it is read after the tick only."""
    file(layout, b"body")
    files, clock = WorkingFiles(layout), SystemClock()
    taken = StableImages(files, DatabaseImages(files, layout, clock, ""), clock, None)
    begun = clock.elapsed_seconds()
    image = await taken.take(SESSION, b"f", Known(1, 0, UNKNOWN, ""))
    assert isinstance(image, Image)
    assert clock.elapsed_seconds() - begun >= 0.02
    image.close()


async def test_a_file_known_by_its_identity_is_not_read(layout: StateLayout) -> None:
    status = file(layout, b"body").stat()
    identity = (status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    image = await images(layout).take(SESSION, b"f", Known(1, 0, identity, "d" * 64))
    assert isinstance(image, Image)
    assert (image.sha256, image.body) == ("d" * 64, None)
    image.close()


async def test_stores_through_a_mapping_reach_the_bucket(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.write(b"f", b"-" * 8192)
    mapping = mapped(world.path(b"f"))
    for number in range(20):
        mapping[0:4] = b"%04d" % number
        world.journal.mark(world.key(b"f"), SESSION, world.clock.wall_ns())
        await world.settle()
        assert world.body(world.key(b"f"))[:4] == b"%04d" % number
    mapping.close()


def test_the_lease_test_sees_writers_and_mappings(layout: StateLayout) -> None:
    path = file(layout, b"x" * 4096)
    descriptor = os.open(path, os.O_RDONLY)
    assert not has_writer(descriptor)
    with path.open("r+b") as writer:
        assert has_writer(descriptor)
        mapping = mmap.mmap(writer.fileno(), 0)
    assert has_writer(descriptor)
    mapping.close()
    assert not has_writer(descriptor)
    os.close(descriptor)


def test_a_path_longer_than_the_kernel_takes_at_once_is_opened(layout: StateLayout) -> None:
    name = b"n" * 200
    directory = os.open(os.path.join(layout.sessions, SESSION), os.O_DIRECTORY)
    for _ in range(30):
        os.mkdir(name, dir_fd=directory)
        below = os.open(name, os.O_DIRECTORY, dir_fd=directory)
        os.close(directory)
        directory = below
    os.close(os.open(b"f", os.O_CREAT | os.O_WRONLY, dir_fd=directory))
    os.close(directory)
    deep = b"/".join([name] * 30 + [b"f"])
    files = WorkingFiles(layout)
    os.close(files.open(SESSION, deep))
    assert files.status(SESSION, deep) is not None


def test_a_symlink_is_never_followed(layout: StateLayout, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "f").write_bytes(b"secret")
    os.symlink(outside, os.path.join(layout.sessions, SESSION, "d"))
    with pytest.raises(OSError, match="Not a directory"):
        WorkingFiles(layout).open(SESSION, b"d/f")
    assert WorkingFiles(layout).status(SESSION, b"d/f") is None


def test_opening_what_its_mode_forbids_keeps_the_mode(layout: StateLayout) -> None:
    path = file(layout, b"x")
    path.chmod(0o200)
    directory = os.open(path.parent, os.O_PATH)
    os.close(_open_unreadable(directory, b"f"))
    os.close(directory)
    assert path.stat().st_mode & 0o777 == 0o200
