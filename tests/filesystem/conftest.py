from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sessionfs.model.settings import FilesystemSettings
from tests.filesystem import mounting
from tests.filesystem.mounting import Mounted

NEEDS_ROOT = "test_other_users.py"
"""Changing the user, and a mount for every user, need root: elsewhere pytest reports these tests as deselected."""

Mounter = Callable[..., tuple[Mounted, Any]]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if os.geteuid() == 0:
        return
    left_out = [item for item in items if item.path.name == NEEDS_ROOT]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item.path.name != NEEDS_ROOT]


@pytest.fixture
def mounter(tmp_path: Any) -> Iterator[Mounter]:
    """Gives a function that mounts; everything it mounted is gone after the test."""
    mounts: list[Mounted] = []
    os.chmod(tmp_path, 0o755)

    def mount(prepare: Any = None, options: set[str] | None = None, **settings: Any) -> tuple[Mounted, Any]:
        number = len(mounts)
        mounted, prepared = mounting.start(
            str(tmp_path / f"state{number}"),
            str(tmp_path / f"mnt{number}"),
            FilesystemSettings(**settings),
            prepare,
            options,
        )
        mounts.append(mounted)
        return mounted, prepared

    yield mount
    for mounted in mounts:
        mounted.unmount()


@pytest.fixture(scope="module")
def shared_mount(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    """One mount for the tests of a module, open to every user."""
    root = tmp_path_factory.mktemp("shared")
    # Temporary directories are closed to other users, at several levels when tests run in parallel.
    for above in (root, *root.parents):
        if not above.stat().st_mode & 0o001:
            os.chmod(above, 0o755)
    settings = FilesystemSettings(allow_other=os.geteuid() == 0)
    mounted, _ = mounting.start(str(root / "state"), str(root / "mnt"), settings, None, {"suid", "dev"})
    yield mounted
    mounted.unmount()


@pytest.fixture
def session(shared_mount: Mounted, request: pytest.FixtureRequest) -> str:
    """A fresh session's path in the shared mount, writable by everybody."""
    path = shared_mount.at(f"s{abs(hash(request.node.nodeid)):x}")
    os.mkdir(path)
    os.chmod(path, 0o777)
    return path
