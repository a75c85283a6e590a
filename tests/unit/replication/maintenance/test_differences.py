"""What differs between two generations."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sessionfs.formats.manifest import Manifest, ManifestEntry
from sessionfs.model.errors import NotFoundError
from sessionfs.replication.maintenance.differences import Difference, Differences, compare
from sessionfs.replication.trio_store import TrioStore
from tests.unit.replication.maintenance.world import Author, S

ENTRY = ManifestEntry(b"f", 0o100644, 3, "1" * 64, "t", 1, 2, 5, {b"user.a": b"1"})


def changed(**values: object) -> tuple[str, ...]:
    (found,) = compare(Manifest("s", 1, (ENTRY,)), Manifest("s", 2, (replace(ENTRY, **values),)))  # type: ignore[arg-type]
    return found.what


async def test_added_removed_and_changed_paths_are_told(author: Author, store: TrioStore) -> None:
    author.commit({b"same": b"same", b"gone": b"123", b"log": b"a\n"})
    author.commit({b"same": b"same", b"new": b"12", b"log": b"a\nb\n"})
    assert await Differences(store).diff(S, 1, 2) == [
        Difference(b"gone", "removed", (), 3, 0),
        Difference(b"log", "changed", ("content", "time"), 2, 4),
        Difference(b"new", "added", (), 0, 2),
    ]
    assert await Differences(store).diff(S, 2, 2) == []
    assert {found.kind for found in await Differences(store).diff(S, 0, 1)} == {"added"}
    # Two manifests, and a try of a third.
    assert store.requests["head"] == 0


async def test_no_body_is_read(author: Author, store: TrioStore) -> None:
    author.commit({b"f": b"1"})
    author.commit({b"f": b"2"})
    await Differences(store).diff(S, 1, 2)
    assert store.requests == {"get": 2}


async def test_a_generation_that_does_not_exist_is_named(author: Author, store: TrioStore) -> None:
    author.commit({b"f": b"1"})
    with pytest.raises(NotFoundError, match="no generation 5"):
        await Differences(store).diff(S, 1, 5)


def test_each_attribute_has_its_word() -> None:
    assert changed(sha256="2" * 64) == ("content",)
    assert changed(mode=0o100600) == ("mode",)
    assert changed(uid=7) == ("owner",)
    assert changed(mtime_ns=6) == ("time",)
    assert changed(xattrs={}) == ("xattrs",)
    assert changed(mode=0o120777, target=b"x") == ("type",)
    assert changed(mode=0o100600, gid=9) == ("mode", "owner")


def test_a_token_is_no_difference() -> None:
    assert compare(Manifest("s", 1, (ENTRY,)), Manifest("s", 2, (replace(ENTRY, token="u"),))) == []


def test_a_file_that_got_another_name_has_other_links() -> None:
    other = replace(ENTRY, path=b"g")
    before = Manifest("s", 1, (ENTRY, other))
    after = Manifest("s", 2, (replace(ENTRY, link_group=4), replace(other, link_group=4)))
    assert [(found.path, found.what) for found in compare(before, after)] == [
        (b"f", ("links",)),
        (b"g", ("links",)),
    ]
    renumbered = Manifest("s", 3, (replace(ENTRY, link_group=1), replace(other, link_group=1)))
    assert compare(after, renumbered) == []
