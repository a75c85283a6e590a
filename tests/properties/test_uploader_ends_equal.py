"""Whatever is done to the tree, in whatever order it is uploaded and whatever is lost: in the end the bucket is the tree."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import trio
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from sessionfs.model.errors import OutcomeUnknownError, ThrottledError
from sessionfs.testing.faulty_store import FailBefore, Interfere, LostResponse
from tests.unit.replication.uploads.tree_world import SESSION, World

NAMES = (b"a", b"b", b"c")
PATHS = (*NAMES, *(above + b"/" + name for above in NAMES for name in NAMES[:2]))
METHODS = ("put", "put", "put", "copy", "delete", "append", "head")

paths = st.sampled_from(PATHS)
steps = st.one_of(
    st.tuples(st.just("write"), paths, st.integers(0, 3)),
    st.tuples(st.just("append"), paths, st.integers(1, 3)),
    st.tuples(st.just("make_directory"), paths),
    st.tuples(st.just("make_symlink"), paths),
    st.tuples(st.just("remove"), paths),
    st.tuples(st.just("rename"), paths, paths),
    st.tuples(st.just("exchange"), paths, paths),
    st.tuples(st.just("link"), paths, paths),
    st.tuples(st.just("change_mode"), paths, st.sampled_from((0o600, 0o644, 0o755))),
    st.just(("evict_all",)),
    st.tuples(st.just("upload"), st.sampled_from((0.001, 0.004, 0.02, 5.0))),
    st.tuples(st.just("restart")),
    st.tuples(st.just("fault"), st.sampled_from(METHODS), st.integers(0, 2)),
)


def _lose() -> None:
    raise OutcomeUnknownError("lost before it arrived")


class Tree:
    """The model: what is where."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.names: dict[bytes, int | None] = {}
        self.bodies: dict[int, bytes] = {}
        self.symlinks: dict[bytes, bytes] = {}
        self._next = 0

    def is_free(self, path: bytes) -> bool:
        above = path.rpartition(b"/")[0]
        return path not in self.names and (not above or self.is_directory(above))

    def is_directory(self, path: bytes) -> bool:
        return path in self.names and self.names[path] is None

    def is_file(self, path: bytes) -> bool:
        return self.names.get(path) is not None and path not in self.symlinks

    def expected(self) -> dict[bytes, bytes | None]:
        return {
            path: None if number is None else self.symlinks.get(path, self.bodies.get(number))
            for path, number in self.names.items()
        }

    # --- steps

    def write(self, path: bytes, kind: int) -> None:
        self._next += 1
        body = (b"", b"%d" % self._next, b"%d " % self._next * 400, b"same " * 300)[kind]
        if self.is_free(path):
            self.names[path] = self._next
        elif not self.is_file(path):
            return
        number = self.names[path]
        assert number is not None
        self.bodies[number] = body
        self.world.write(path, body)

    def append(self, path: bytes, count: int) -> None:
        if self.is_file(path) and self.world.is_here(path):
            number = self.names[path]
            assert number is not None
            self.bodies[number] += b"+" * count
            self.world.append(path, b"+" * count)

    def make_directory(self, path: bytes) -> None:
        if self.is_free(path):
            self.names[path] = None
            self.world.make_directory(path)

    def make_symlink(self, path: bytes) -> None:
        if self.is_free(path):
            self._next += 1
            self.names[path] = self._next
            self.symlinks[path] = b"to %d" % self._next
            self.world.make_symlink(path, self.symlinks[path])

    def remove(self, path: bytes) -> None:
        if path not in self.names or any(name.startswith(path + b"/") for name in self.names):
            return
        if self.is_directory(path):
            self.world.remove_directory(path)
        else:
            self.world.unlink(path)
        del self.names[path]
        self.symlinks.pop(path, None)

    def rename(self, path: bytes, new: bytes) -> None:
        if path not in self.names or new.startswith(path + b"/") or path == new:
            return
        over = self.is_file(path) and self.is_file(new) and self.names[path] != self.names[new]
        if not (self.is_free(new) or over):
            return
        self.world.rename(path, new)
        for name in [name for name in self.names if name == path or name.startswith(path + b"/")]:
            self._move(name, new + name[len(path) :])

    def _move(self, path: bytes, new: bytes) -> None:
        self.names[new] = self.names.pop(path)
        if path in self.symlinks:
            self.symlinks[new] = self.symlinks.pop(path)

    def exchange(self, path: bytes, other: bytes) -> None:
        if self.is_file(path) and self.is_file(other) and self.names[path] != self.names[other]:
            self.world.exchange(path, other)
            self.names[path], self.names[other] = self.names[other], self.names[path]

    def link(self, path: bytes, new: bytes) -> None:
        if self.is_file(path) and self.is_free(new):
            self.world.link(path, new)
            self.names[new] = self.names[path]

    def change_mode(self, path: bytes, mode: int) -> None:
        if path in self.names and path not in self.symlinks:
            self.world.change_mode(path, mode)

    def evict(self, path: bytes) -> None:
        """As the daemon: only what is clean under all its names."""
        if not self.is_file(path) or not self.world.is_here(path):
            return
        node = self.world.journal.node(self.world.number(path))
        assert node is not None
        status = self.world.status(path)
        if node.clean_identity != (status.st_size, status.st_mtime_ns, status.st_ctime_ns):
            return
        keys = [self.world.key(name) for name in self.names if self.names[name] == self.names[path]]
        if all(self.world.journal.work(key) is None for key in keys):
            event("evicted")
            self.world.evict(path)


def _plan(world: World, method: str, kind: int) -> None:
    faults = (LostResponse(), Interfere(_lose), FailBefore(ThrottledError("slow down")))
    if method == "head" and kind != 2:
        return
    world.store.plan(method, faults[kind])


async def _play(directory: Path, script: list[tuple[object, ...]]) -> None:
    world = World(directory)
    tree = Tree(world)
    for name, *arguments in script:
        if name == "upload":
            (seconds,) = arguments
            async with world.running():
                await world.uploader.drain(float(str(seconds)))
        elif name == "evict_all":
            await world.settle(20)
            for path in sorted(tree.names):
                tree.evict(path)
        elif name == "restart":
            world.start()
        elif name == "fault":
            method, kind = arguments
            _plan(world, str(method), int(str(kind)))
        else:
            step: Callable[..., None] = getattr(tree, str(name))
            step(*arguments)
    await world.settle(20)
    world.assert_equal(tree.expected())
    assert world.kept_aside() == []
    assert all(row.session == SESSION for row in world.journal.all_work())


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(script=st.lists(steps, min_size=4, max_size=30))
def test_the_bucket_ends_equal_to_the_tree(script: list[tuple[object, ...]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        trio.run(_play, Path(directory), script)
