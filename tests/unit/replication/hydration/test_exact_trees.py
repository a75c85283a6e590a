"""Sessions that are taken over exactly as a generation names them, and what ``at`` chooses."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from sessionfs.formats import manifest as manifests
from sessionfs.formats.manifest import Manifest
from sessionfs.model import keys
from sessionfs.model.errors import InvalidRequestError, UnavailableError
from sessionfs.model.names import SessionId
from sessionfs.replication.hydration.exact_trees import ExactTrees, is_exact
from sessionfs.testing.faulty_store import FaultyStore
from sessionfs.working_copy.exclusions import Exclusions

from .hosts import LINK, PREFIX, SESSION, SETTINGS, Host, away, body_of, drop, put, put_manifest
from .named_bytes import DIRECTORY, FILE, alias, commit, entry, fence, keep, live, put_named, put_raw, sha

LINK_MODE = stat.S_IFLNK | 0o777


def shown(host: Host) -> dict[bytes, int]:
    """Paths here, with their length."""
    return {path: node.size_bytes for path, node in host.journal.tree(host.number(b""))}


@pytest.fixture
def made(tmp_path: Path, store: FaultyStore) -> Iterator[list[Host]]:
    hosts: list[Host] = []
    yield hosts
    for host in hosts:
        host.journal.close()


def host_at(made: list[Host], tmp_path: Path, store: FaultyStore, at: str) -> Host:
    """A host of one state directory with a setting."""
    for host in made:
        host.journal.close()
    made[:] = [Host(tmp_path / "at", store, settings=msgspec.structs.replace(SETTINGS, at=at))]
    for staged in made[0].staged():
        # A start empties the staging directory.
        Path(made[0].layout.staging, staged).unlink()
    return made[0]


async def test_a_committed_tree_appears_in_one_request_without_the_uncommitted_tail(
    host: Host, store: FaultyStore
) -> None:
    root, directory = put_named(store, ""), put_named(store, "d/")
    same, moved = put_named(store, "d/same", b"abc"), put_named(store, "moved", b"old")
    link = put_named(store, "l", b"d/same", mode=LINK)
    gone = put_named(store, "gone", b"gone")
    commit(store, root, directory, same, moved, link, gone)
    put(store, "moved", b"newer")
    put(store, "new", b"uncommitted")
    drop(store, "gone")
    store.calls.clear()
    found = await host.hydrator.open_session(SESSION)
    assert store.calls == [("get", keys.manifest_key(SESSION))]
    assert (found.exists, found.foreign, found.owned, found.read_only) == (True, True, False, False)
    assert shown(host) == {b"": 0, b"d": 0, b"d/same": 3, b"moved": 3, b"l": 6, b"gone": 4}
    store.calls.clear()
    assert (await host.hydrator.refresh_session(SESSION)).files == []
    assert [method for method, _ in store.calls] == ["head"]


async def test_bytes_of_a_committed_tree_are_found_wherever_they_are(host: Host, store: FaultyStore) -> None:
    bodies = {"same": b"same", "over": b"overwritten", "prefix": b"1\n", "grown": b"first\n", "empty": b""}
    entries = [put_named(store, path, body) for path, body in bodies.items()]
    commit(store, put_named(store, ""), *entries)
    keep(store, bodies["over"])
    put(store, "over", b"tail")
    keep(store, b"1\n2\n")
    alias(store, b"1\n", b"1\n2\n")
    put(store, "prefix", b"rewritten")
    put(store, "grown", b"first\nsecond\n")
    await host.hydrator.open_session(SESSION)
    for path, body in bodies.items():
        fetched = await host.hydrator.fetch(host.number(path.encode()))
        assert (body_of(host, fetched), fetched.entry.size_bytes) == (body, len(body))
    assert host.events == []


async def test_a_later_generation_is_taken_over_by_content_and_old_bytes_are_dropped_first(
    host: Host, store: FaultyStore
) -> None:
    root = put_named(store, "")
    first = [put_named(store, path, b"one") for path in ("stays", "changes", "here", "goes", "goes-here")]
    commit(store, root, *first)
    await host.hydrator.open_session(SESSION)
    await host.materialise()
    for path in (b"changes", b"goes"):
        host.evict([host.number(path)])
    changed = [put_named(store, "changes", b"second"), put_named(store, "here", b"second")]
    put_named(store, "uncommitted", b"tail")
    commit(store, root, first[0], *changed, put_named(store, "d/new", b"new"), generation=2)
    found = await host.hydrator.refresh_session(SESSION)
    assert set(found.files) == {host.number(path) for path in (b"changes", b"here", b"goes-here")}
    assert found.foreign
    assert shown(host) == {
        b"": 0,
        b"stays": 3,
        b"changes": 6,
        b"here": 3,
        b"goes-here": 3,
        b"d": 0,
        b"d/new": 3,
    }
    host.evict([host.number(b"here"), host.number(b"goes-here")])
    assert body_of(host, await host.hydrator.fetch(host.number(b"here"))) == b"second"
    found = await host.hydrator.refresh_session(SESSION)
    assert host.journal.resolve(SESSION, b"goes-here") is None
    assert (await host.hydrator.refresh_session(SESSION)).files == []
    row = host.journal.session(SESSION)
    assert row is not None
    assert row.generation == 2
    assert body_of(host, await host.hydrator.fetch(host.number(b"changes"))) == b"second"


async def test_an_interrupted_change_of_generation_is_found_again(host: Host, store: FaultyStore) -> None:
    root = put_named(store, "")
    commit(store, root, put_named(store, "f", b"one"))
    await host.hydrator.open_session(SESSION)
    await host.materialise()
    number = host.number(b"f")
    commit(store, root, put_named(store, "f", b"second"), generation=2)
    assert (await host.hydrator.refresh_session(SESSION)).files == [number]
    host.hydrator = host.new_hydrator()
    host.evict([number])
    assert (await host.hydrator.refresh_session(SESSION)).files == [number]
    assert body_of(host, await host.hydrator.fetch(number)) == b"second"


async def test_kinds_links_and_attributes_change_with_the_generation(host: Host, store: FaultyStore) -> None:
    root = put_named(store, "")
    was_file, was_directory = put_named(store, "x", b"file"), put_named(store, "y/")
    link, grouped = put_named(store, "l", b"here", mode=LINK), put_named(store, "one", b"linked")
    other = replace(put_named(store, "two", b"linked"), link_group=7)
    commit(
        store,
        root,
        was_file,
        was_directory,
        put_named(store, "y/f", b"in"),
        link,
        replace(grouped, link_group=7),
        other,
    )
    await host.hydrator.open_session(SESSION)
    assert host.number(b"one") == host.number(b"two")
    moved_link = replace(link, target=b"there", size_bytes=5, sha256=sha(b"there"))
    split = replace(put_named(store, "two", b"own"), link_group=0)
    directory = replace(entry("x", mode=DIRECTORY), mtime_ns=5)
    commit(
        store, replace(root, mode=stat.S_IFDIR | 0o700), directory, entry("x/f", b"in"), entry("y", b"file"), moved_link,
        replace(grouped, link_group=0, xattrs={b"user.a": b"b"}), split, generation=2,
    )  # fmt: skip
    found = await host.hydrator.refresh_session(SESSION)
    assert host.number(b"") in found.directories
    kinds = {path: stat.S_IFMT(node.mode) for path, node in host.journal.tree(host.number(b""))}
    assert (kinds[b"x"], kinds[b"x/f"], kinds[b"y"]) == (stat.S_IFDIR, stat.S_IFREG, stat.S_IFREG)
    assert b"y/f" not in kinds
    assert host.number(b"one") != host.number(b"two")
    node = host.journal.node(host.number(b"l"))
    assert node is not None
    assert node.target == b"there"
    root_node = host.journal.node(host.number(b""))
    assert root_node is not None
    assert stat.S_IMODE(root_node.mode) == 0o700
    again = await host.hydrator.refresh_session(SESSION)
    assert (again.files, again.directories) == ([], [])


@pytest.mark.parametrize(
    ("at", "recovery", "exact"),
    [
        ("auto", "live", False),
        ("auto", "committed", True),
        ("live", "committed", False),
        ("committed", "live", True),
    ],
)
def test_what_is_taken_over_is_said_by_the_setting_and_the_manifest(
    at: str, recovery: str, *, exact: bool
) -> None:
    manifest = Manifest(SESSION, 1, (entry("f", b"abc"),), recovery=recovery)  # type: ignore[arg-type]
    assert is_exact(at, manifest) is exact


def test_a_session_that_was_never_committed_is_taken_live() -> None:
    unsaid = Manifest(SESSION, 1, (replace(entry("f", b"abc"), sha256=""),), recovery="committed")
    for manifest in (None, Manifest(SESSION, 0, recovery="committed"), replace(unsaid, format=0), unsaid):
        assert not is_exact("committed", manifest)
    named = replace(unsaid.entries[0], token="t")
    assert is_exact("committed", replace(unsaid, entries=(named,)))


def test_what_cannot_be_shown_of_a_generation_is_left_out() -> None:
    trees = ExactTrees(Exclusions(SETTINGS.exclude_globs), Exclusions(SETTINGS.private_globs), (7, 8))
    group = [replace(entry(path, body), link_group=1) for path, body in (("one", b"abc"), ("two", b"xyz"))]
    named = (
        entry("", b"no directory"), entry("f", b"abc"), entry("f/below", b"abc"), entry("d/e/deep", b"abc"),
        entry(".sessionfs/status", b"ours"), entry("d/session.lock", b"abc"), entry("vm/token", b"secret"), *group,
    )  # fmt: skip
    tree = trees.tree(SessionId("s"), Manifest(SESSION, 1, named), modified_ns=5)
    found = {one.path: one for one in tree.entries}
    assert list(found) == [b"", b"d", b"d/e", b"d/e/deep", b"f", b"one", b"two", b"vm", b"vm/token"]
    assert found[b""].mode == DIRECTORY
    assert (found[b"d"].attributes.uid, found[b"d"].attributes.mtime_ns) == (7, 5)
    assert found[b"vm/token"].mode == stat.S_IFREG | 0o600
    assert found[b"vm/token"].attributes.mode == FILE
    assert found[b"one"].link_group == 0
    assert [skipped.reason for skipped in tree.skipped] == ["its directory is a file"]


async def test_a_file_without_a_sum_is_only_its_committed_object(host: Host, store: FaultyStore) -> None:
    unhashed = replace(put_named(store, "f", b"abc"), sha256="")
    commit(store, put_named(store, ""), unhashed)
    await host.hydrator.open_session(SESSION)
    assert body_of(host, await host.hydrator.fetch(host.number(b"f"))) == b"abc"
    host.journal.update_node(host.number(b"f"), sha256="")
    put(store, "f", b"xyz")
    with pytest.raises(Exception, match="had no sha256"):
        await host.hydrator.fetch(host.number(b"f"))


# --- a generation of the past as the session


async def test_a_number_shows_exactly_that_generation_read_only(
    made: list[Host], tmp_path: Path, store: FaultyStore
) -> None:
    root = put_named(store, "")
    commit(store, root, put_named(store, "f", b"first"), recovery="live")
    keep(store, b"first")
    commit(
        store,
        root,
        put_named(store, "f", b"second"),
        put_named(store, "g", b"g"),
        generation=2,
        recovery="live",
    )
    host = host_at(made, tmp_path, store, "1")
    store.calls.clear()
    found = await host.hydrator.open_session(SESSION)
    assert store.calls == [("get", keys.generation_key(SESSION, 1))]
    assert (found.exists, found.read_only, found.foreign, found.owned) == (True, True, False, False)
    assert shown(host) == {b"": 0, b"f": 5}
    row = host.journal.session(SESSION)
    assert row is not None
    assert row.tree_of == 1
    assert body_of(host, await host.hydrator.fetch(host.number(b"f"))) == b"first"
    store.calls.clear()
    assert (await host.hydrator.open_session(SESSION)) == found
    assert store.calls == []
    assert (await host.hydrator.refresh_session(SESSION)).files == []
    assert not (await host_at(made, tmp_path, store, "9").hydrator.open_session("never")).exists


async def test_a_state_directory_goes_from_a_generation_to_the_session_and_back(
    made: list[Host], tmp_path: Path, store: FaultyStore
) -> None:
    root = put_named(store, "")
    commit(store, root, put_named(store, "f", b"first"), put_named(store, "old", b"old"), recovery="live")
    keep(store, b"first")
    await host_at(made, tmp_path, store, "1").hydrator.open_session(SESSION)
    await made[0].materialise()
    commit(
        store,
        root,
        put_named(store, "f", b"second"),
        put_named(store, "g", b"g"),
        generation=2,
        recovery="live",
    )
    drop(store, "old")
    put(store, "g", b"uncommitted")
    host = host_at(made, tmp_path, store, "auto")
    away(store, "get")
    with pytest.raises(UnavailableError):
        await host.hydrator.open_session(SESSION)
    found = await host.hydrator.open_session(SESSION)
    assert (found.read_only, found.foreign) == (False, True)
    host.evict((await host.hydrator.refresh_session(SESSION)).files)
    await host.hydrator.refresh_session(SESSION)
    assert shown(host) == {b"": 0, b"f": 6, b"g": 11}
    assert body_of(host, await host.hydrator.fetch(host.number(b"f"))) == b"second"
    host = host_at(made, tmp_path, store, "1")
    assert (await host.hydrator.open_session(SESSION)).read_only
    host.evict((await host.hydrator.refresh_session(SESSION)).files)
    await host.hydrator.refresh_session(SESSION)
    assert shown(host) == {b"": 0, b"f": 5, b"old": 3}
    assert body_of(host, await host.hydrator.fetch(host.number(b"f"))) == b"first"
    store.calls.clear()
    assert (await host.hydrator.refresh_session(SESSION)).files == []
    assert store.calls == []


async def test_changes_of_this_disk_are_not_hidden_behind_a_generation(
    made: list[Host], tmp_path: Path, store: FaultyStore
) -> None:
    commit(store, put_named(store, ""), put_named(store, "f", b"first"))
    host = host_at(made, tmp_path, store, "1")
    host.make(b"")
    host.make(b"mine", b"owed")
    with pytest.raises(InvalidRequestError, match="no generation has yet"):
        await host.hydrator.open_session(SESSION)
    assert host.read(b"mine") == b"owed"


async def test_a_host_goes_from_the_live_session_to_the_committed_one_and_back(
    made: list[Host], tmp_path: Path, store: FaultyStore
) -> None:
    root, same = put_named(store, ""), put_named(store, "same", b"same")
    commit(store, root, same, put_named(store, "f", b"first"), recovery="live")
    keep(store, b"first")
    put(store, "f", b"uncommitted")
    put(store, "same", b"same", mode=stat.S_IFREG | 0o600)
    put(store, "new", b"new")
    host = host_at(made, tmp_path, store, "auto")
    await host.hydrator.open_session(SESSION)
    assert shown(host) == {b"": 0, b"same": 4, b"f": 11, b"new": 3}
    host = host_at(made, tmp_path, store, "committed")
    await host.hydrator.open_session(SESSION)
    await host.hydrator.refresh_session(SESSION)
    assert shown(host) == {b"": 0, b"same": 4, b"f": 5}
    node = host.journal.node(host.number(b"same"))
    assert node is not None
    assert stat.S_IMODE(node.mode) == 0o644
    assert body_of(host, await host.hydrator.fetch(host.number(b"f"))) == b"first"
    host = host_at(made, tmp_path, store, "live")
    await host.hydrator.open_session(SESSION)
    await host.hydrator.refresh_session(SESSION)
    assert shown(host) == {b"": 0, b"same": 4, b"f": 11, b"new": 3}
    node = host.journal.node(host.number(b"same"))
    assert node is not None
    assert stat.S_IMODE(node.mode) == 0o600
    assert body_of(host, await host.hydrator.fetch(host.number(b"f"))) == b"uncommitted"


async def test_a_fence_does_not_hide_an_attribute_change_that_came_before_it(
    host: Host, store: FaultyStore
) -> None:
    named = put_named(store, "f", b"abc")
    manifest = commit(store, put_named(store, ""), named, recovery="live", epoch=1)
    put(store, "f", b"abc", mode=stat.S_IFREG | 0o400)
    stored = store.inner._contents.objects[PREFIX + "f"]  # type: ignore[attr-defined]
    object.__setattr__(stored.stat, "token", named.token)
    fence(store, manifest, epoch=2)
    await host.hydrator.open_session(SESSION)
    node = host.journal.node(host.number(b"f"))
    assert node is not None
    assert stat.S_IMODE(node.mode) == 0o400


async def test_a_removed_session_is_listed_nowhere_and_opened_by_nobody(
    host: Host, store: FaultyStore
) -> None:
    put(store, "left", b"behind")
    put(store, "f", b"x", session="alive")
    put_manifest(store, Manifest(SESSION, 3, removed=True))
    assert not (await host.hydrator.open_session(SESSION)).exists
    assert await host.hydrator.list_sessions() == ["alive"]
    put_raw(store, keys.manifest_key(SESSION), manifests.encode(Manifest(SESSION, 4))[0])
    host.clock.seconds += 10
    assert await host.hydrator.list_sessions() == ["alive", "s"]
    assert (await host.hydrator.open_session(SESSION)).exists
    assert live(store) == {"left": b"behind"}
