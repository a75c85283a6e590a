"""A directory store that is only read: nothing in its directory is made, changed or removed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sessionfs.model.errors import AccessError, BucketNotFoundError, ObjectNotFoundError
from sessionfs.stores.base import IfAbsent, ObjectMetadata, ObjectStore, Unconditional
from sessionfs.stores.local_directory import LocalDirectoryStore, open_for_reading
from tests.unit.migration.world import contents, put

NONE = ObjectMetadata()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A store with a file and a directory's marker, whose hidden directory somebody removed."""
    store = LocalDirectoryStore(str(tmp_path))
    put(store, "sessions/s1/a", b"x")
    put(store, "sessions/s1/d/", b"")
    (tmp_path / ".sessionfs-store" / "lock").unlink()
    (tmp_path / ".sessionfs-store" / "tmp").rmdir()
    (tmp_path / ".sessionfs-store").rmdir()
    return tmp_path


def test_reading_gives_everything_and_makes_nothing(directory: Path) -> None:
    before = sorted(directory.rglob("*"))
    store = open_for_reading(f"file://{directory}")
    assert sorted(contents(store)) == ["sessions/s1/a", "sessions/s1/d/"]
    assert store.head("sessions/s1/a").size_bytes == 1
    with pytest.raises(ObjectNotFoundError):
        store.head("sessions/s1/none")
    assert sorted(directory.rglob("*")) == before


@pytest.mark.parametrize(
    "change",
    [
        lambda store: store.put("x", b"", condition=IfAbsent(), metadata=NONE),
        lambda store: store.put("x/", b"", condition=IfAbsent(), metadata=NONE),
        lambda store: store.delete("sessions/s1/a", condition=Unconditional()),
        lambda store: store.put_parts(
            "x", [b"1"], condition=IfAbsent(), metadata=NONE, before_complete=lambda: None
        ),
        lambda store: store.copy(
            "sessions/s1/a",
            "x",
            source_token=store.head("sessions/s1/a").token,
            condition=IfAbsent(),
            metadata=NONE,
        ),
    ],
)
def test_every_change_is_refused_and_nothing_is_changed(
    directory: Path, change: Callable[[ObjectStore], object]
) -> None:
    before = sorted(directory.rglob("*"))
    with pytest.raises(AccessError, match="opened for reading only"):
        change(open_for_reading(str(directory)))
    assert sorted(directory.rglob("*")) == before


def test_a_directory_that_is_missing_is_not_made_and_one_that_goes_is_no_empty_store(tmp_path: Path) -> None:
    with pytest.raises(BucketNotFoundError):
        open_for_reading(str(tmp_path / "gone"))
    (tmp_path / "one").mkdir()
    store = open_for_reading(str(tmp_path / "one"))
    assert store.list_page("", page=None, whole_segments=False).objects == ()
    (tmp_path / "one").rmdir()
    with pytest.raises(BucketNotFoundError):
        store.list_page("", page=None, whole_segments=False)
    assert list(tmp_path.iterdir()) == []
