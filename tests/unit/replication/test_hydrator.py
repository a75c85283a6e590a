"""Sessions coming back: trees, bytes, and what other hosts changed."""

from __future__ import annotations

import itertools
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio

from sessionfs.formats.intent_records import Operation
from sessionfs.formats.link_messages import FIRST_REMOTE_NUMBER, Fetched
from sessionfs.model import keys
from sessionfs.model.errors import (
    CorruptDataError,
    InternalError,
    InvalidSessionIdError,
    LocalDiskError,
    ObjectNotFoundError,
    SessionFSError,
    UnavailableError,
)
from sessionfs.replication.hydration import fetching
from sessionfs.stores.base import ByteRange, ObjectBody, Token, Unconditional
from sessionfs.stores.memory import MemoryStore
from sessionfs.testing.faulty_store import FailBefore, FaultyStore, Interfere, Truncate

from .hosts import SESSION, Host, StepClock, put, put_plain

LINK = stat.S_IFLNK | 0o777
PREFIX = "sessions/s/"


@pytest.fixture
def store() -> Iterator[FaultyStore]:
    faulty = FaultyStore(MemoryStore(StepClock()))
    yield faulty
    faulty.assert_all_used()


@pytest.fixture
def host(tmp_path: Path, store: FaultyStore) -> Iterator[Host]:
    made = Host(tmp_path / "a", store)
    yield made
    made.journal.close()


@pytest.fixture
def other(tmp_path: Path, store: FaultyStore) -> Iterator[Host]:
    made = Host(tmp_path / "b", store)
    yield made
    made.journal.close()


def put_session(store: FaultyStore) -> None:
    put(store, "")
    put(store, "d/", mode=stat.S_IFDIR | 0o700)
    put(store, "d/f", b"abc")
    put(store, "l", b"d/f", mode=LINK)


def away(store: FaultyStore, method: str, times: int = 5) -> None:
    store.plan(method, *(FailBefore(UnavailableError("away")) for _ in range(times)))


def drop(store: FaultyStore, path: str) -> None:
    store.delete(PREFIX + path, condition=Unconditional())


def body_of(host: Host, fetched: Fetched) -> bytes:
    return Path(host.layout.staging, fetched.staged).read_bytes()


# --- opening


async def test_a_session_appears_with_remote_numbers_and_nothing_on_the_disk(
    host: Host, store: FaultyStore
) -> None:
    put_session(store)
    found = await host.hydrator.open_session(SESSION)
    assert found.exists
    assert found.foreign
    assert found.root is not None
    assert found.root.number >= FIRST_REMOTE_NUMBER
    assert not found.root.present
    children = host.journal.remote_entries(host.number(b""))
    assert [(entry.name, entry.present) for entry in children] == [(b"d", False), (b"l", False)]
    assert children[1].target == b"d/f"
    node = host.journal.node(host.number(b"d/f"))
    assert node is not None
    assert (node.size_bytes, node.mtime_ns) == (3, 1_600_000_000_123_456_789)
    known = host.journal.object(PREFIX + "d/f")
    assert known is not None
    assert (known.number, known.write_id) == (node.number, "w")
    assert host.journal.all_work() == []


async def test_a_known_session_is_answered_without_the_store(host: Host, store: FaultyStore) -> None:
    put_session(store)
    first = await host.hydrator.open_session(SESSION)
    store.calls.clear()
    assert await host.hydrator.open_session(SESSION) == first
    assert store.calls == []


async def test_a_session_that_is_nowhere_is_not_remembered(host: Host, store: FaultyStore) -> None:
    assert not (await host.hydrator.open_session(SESSION)).exists
    put(store, "")
    assert (await host.hydrator.open_session(SESSION)).exists


async def test_two_requests_for_one_session_read_it_once(host: Host, store: FaultyStore) -> None:
    put_session(store)
    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(host.hydrator.open_session, SESSION)
    assert [method for method, _ in store.calls].count("list_page") == 1


async def test_a_text_that_is_no_session_id_is_refused(host: Host) -> None:
    with pytest.raises(InvalidSessionIdError):
        await host.hydrator.open_session("a/b")


async def test_an_unknown_session_is_an_error_while_the_store_is_away(host: Host, store: FaultyStore) -> None:
    away(store, "get")
    with pytest.raises(UnavailableError):
        await host.hydrator.open_session(SESSION)


async def test_a_session_of_this_disk_opens_while_the_store_is_away(host: Host, store: FaultyStore) -> None:
    host.make(b"")
    host.journal.update_session(SESSION, known=False)
    away(store, "get")
    found = await host.hydrator.open_session(SESSION)
    assert found.exists
    assert not found.foreign
    row = host.journal.session(SESSION)
    assert row is not None
    assert not row.known
    assert (await host.hydrator.open_session(SESSION)).exists
    row = host.journal.session(SESSION)
    assert row is not None
    assert row.known


async def test_keys_that_cannot_be_shown_are_announced(host: Host, store: FaultyStore) -> None:
    put_plain(store, "x")
    put_plain(store, "x/y")
    await host.hydrator.open_session(SESSION)
    assert [name for name, _ in host.events] == ["session.keys.skipped"]
    assert host.events[0][1]["key"] == PREFIX + "x"


async def test_a_session_removed_here_stays_gone_while_its_deletes_are_owed(
    host: Host, store: FaultyStore
) -> None:
    put_session(store)
    host.make(b"")
    host.journal.unlink(1, b"s")
    assert not (await host.hydrator.open_session(SESSION)).exists
    assert await host.hydrator.list_sessions() == []


# --- merging with what is here


async def test_equal_files_become_known_and_stay_clean(host: Host, store: FaultyStore) -> None:
    host.make(b"")
    host.make(b"f", b"abc")
    host.make(b"l", target=b"f")
    host.upload()
    for key in ("", "f", "l"):
        host.journal.drop_object(PREFIX + key)
    host.journal.update_session(SESSION, known=False)
    put(store, "only/there", b"remote")
    await host.hydrator.open_session(SESSION)
    known = host.journal.object(PREFIX + "f")
    assert known is not None
    assert known.token == store.head(PREFIX + "f").token
    assert host.journal.object(PREFIX + "l") is not None
    assert host.journal.work(PREFIX + "f") is None
    node = host.journal.node(host.number(b"f"))
    assert node is not None
    assert node.clean_identity[0] == 3
    assert host.number(b"only/there") >= FIRST_REMOTE_NUMBER
    assert host.journal.conflicts() == []


async def test_a_differing_file_stays_ours_and_the_buckets_is_kept_aside(
    host: Host, store: FaultyStore
) -> None:
    host.make(b"")
    host.make(b"f", b"ours")
    host.make(b"l", target=b"ours")
    host.make(b"kind", b"file here")
    host.journal.update_session(SESSION, known=False)
    put(store, "f", b"them")
    put(store, "l", b"theirs", mode=LINK)
    put(store, "kind/inside", b"directory there")
    await host.hydrator.open_session(SESSION)
    known = host.journal.object(PREFIX + "f")
    assert known is not None
    assert known.token == store.head(PREFIX + "f").token
    assert host.journal.work(PREFIX + "f") is not None
    kept = {conflict.path: conflict.key for conflict in host.journal.conflicts()}
    assert set(kept) == {"f", "l"}
    with store.get(kept["f"], byte_range=None, expected=None) as body:
        assert body.read() == b"them"
    assert [name for name, _ in host.events] == ["session.conflict.kept"] * 2
    assert Path(os.fsdecode(host.disk(b"f"))).read_bytes() == b"ours"
    assert host.journal.resolve(SESSION, b"kind/inside") is None


async def test_a_file_whose_object_is_known_is_left_to_the_uploader(host: Host, store: FaultyStore) -> None:
    host.make(b"")
    host.make(b"f", b"ours")
    host.upload()
    before = host.journal.object(PREFIX + "f")
    host.journal.update_session(SESSION, known=False)
    put(store, "f", b"them")
    await host.hydrator.open_session(SESSION)
    assert host.journal.object(PREFIX + "f") == before
    assert host.journal.conflicts() == []


async def test_an_object_that_moves_while_it_is_kept_aside_is_left_to_the_uploader(
    host: Host, store: FaultyStore
) -> None:
    host.make(b"")
    host.make(b"f", b"ours")
    host.journal.update_session(SESSION, known=False)
    put(store, "", mode=stat.S_IFDIR | 0o700)
    put(store, "f", b"them")
    store.plan("copy", Interfere(lambda: put(store, "f", b"new")))
    await host.hydrator.open_session(SESSION)
    assert host.journal.object(PREFIX + "f") is None
    assert host.journal.conflicts() == []
    assert host.journal.object(PREFIX) is not None


# --- lists


async def test_sessions_of_the_bucket_and_of_this_disk_are_listed(host: Host, store: FaultyStore) -> None:
    for session in ("b", "a", "bad%id"):
        put(store, "f", b"x", session=session)
    store.put(
        keys.manifest_key(SESSION),
        b"x",
        condition=Unconditional(),
        metadata=store.head("sessions/a/f").metadata or pytest.fail("no metadata"),
    )
    host.make(b"", session="here")
    assert await host.hydrator.list_sessions() == ["a", "b", "here"]


async def test_a_list_is_asked_again_after_its_time(host: Host, store: FaultyStore) -> None:
    put(store, "f", session="a")
    assert await host.hydrator.list_sessions() == ["a"]
    put(store, "f", session="b")
    host.clock.seconds += 4.9
    assert await host.hydrator.list_sessions() == ["a"]
    host.clock.seconds += 0.1
    assert await host.hydrator.list_sessions() == ["a", "b"]
    host.clock.seconds += 5
    away(store, "list_page")
    assert await host.hydrator.list_sessions() == ["a", "b"]


async def test_no_list_is_an_error_and_never_an_empty_one(host: Host, store: FaultyStore) -> None:
    away(store, "list_page")
    with pytest.raises(UnavailableError):
        await host.hydrator.list_sessions()


# --- bytes


async def test_a_file_comes_whole_verified_and_with_its_attributes(host: Host, store: FaultyStore) -> None:
    put_session(store)
    await host.hydrator.open_session(SESSION)
    fetched = await host.hydrator.fetch(host.number(b"d/f"))
    assert body_of(host, fetched) == b"abc"
    assert (fetched.entry.name, fetched.entry.size_bytes) == (b"f", 3)
    assert fetched.entry.mtime_ns == 1_600_000_000_123_456_789


async def test_an_empty_file_comes_too(host: Host, store: FaultyStore) -> None:
    put(store, "empty", b"")
    await host.hydrator.open_session(SESSION)
    assert body_of(host, await host.hydrator.fetch(host.number(b"empty"))) == b""


async def test_a_large_file_comes_in_ranges(
    host: Host, store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "RANGE_BYTES", 1000)
    body = os.urandom(10_500)
    put(store, "big", body)
    await host.hydrator.open_session(SESSION)
    store.calls.clear()
    assert body_of(host, await host.hydrator.fetch(host.number(b"big"))) == body
    assert [method for method, _ in store.calls].count("get") == 11


async def test_requests_for_one_file_at_once_share_a_download(host: Host, store: FaultyStore) -> None:
    put_session(store)
    await host.hydrator.open_session(SESSION)
    store.calls.clear()
    results: list[Fetched] = []

    async def ask() -> None:
        results.append(await host.hydrator.fetch(host.number(b"d/f")))

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(ask)
    assert [method for method, _ in store.calls].count("get") == 1
    assert len({result.staged for result in results}) == 1


async def test_requests_at_once_share_an_error(host: Host, store: FaultyStore) -> None:
    put_session(store)
    await host.hydrator.open_session(SESSION)
    away(store, "get")
    errors: list[SessionFSError] = []

    async def ask() -> None:
        try:
            await host.hydrator.fetch(host.number(b"d/f"))
        except UnavailableError as error:
            errors.append(error)

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(ask)
    assert len(errors) == 3


async def test_a_connection_that_ends_early_is_tried_again_and_never_short(
    host: Host, store: FaultyStore
) -> None:
    put(store, "f", b"x" * 5000)
    await host.hydrator.open_session(SESSION)
    store.plan("get", Truncate(100), Truncate(4999))
    assert body_of(host, await host.hydrator.fetch(host.number(b"f"))) == b"x" * 5000


async def test_bytes_that_do_not_verify_are_refused_and_announced_once(
    host: Host, store: FaultyStore
) -> None:
    put(store, "f", b"bad", sha256="1" * 64)
    await host.hydrator.open_session(SESSION)
    for _ in range(2):
        with pytest.raises(CorruptDataError, match="sessions/s/f"):
            await host.hydrator.fetch(host.number(b"f"))
    assert [name for name, _ in host.events] == ["session.file.corrupt"]
    assert host.staged() == []
    assert store.head(PREFIX + "f").size_bytes == 3


async def test_another_tools_file_is_hashed_and_remembered(host: Host, store: FaultyStore) -> None:
    put_plain(store, "f", b"abc")
    await host.hydrator.open_session(SESSION)
    await host.hydrator.fetch(host.number(b"f"))
    known, node = host.journal.object(PREFIX + "f"), host.journal.node(host.number(b"f"))
    assert known is not None
    assert node is not None
    assert known.sha256 == node.sha256 != ""


async def test_a_fetch_follows_an_object_that_another_host_replaced(host: Host, store: FaultyStore) -> None:
    put(store, "f", b"old")
    await host.hydrator.open_session(SESSION)
    put(store, "f", b"newer", write_id="w2", mode=stat.S_IFREG | 0o600)
    fetched = await host.hydrator.fetch(host.number(b"f"))
    assert body_of(host, fetched) == b"newer"
    assert (fetched.entry.size_bytes, stat.S_IMODE(fetched.entry.mode)) == (5, 0o600)


class RestlessStore(MemoryStore):
    """Another host changes an object before every read of it."""

    change: Callable[[], object] = staticmethod(lambda: None)

    def get(self, key: str, *, byte_range: ByteRange | None, expected: Token | None) -> ObjectBody:
        self.change()
        return super().get(key, byte_range=byte_range, expected=expected)


async def test_a_log_that_grows_faster_than_it_is_read_gives_a_whole_prefix(tmp_path: Path) -> None:
    restless = RestlessStore(StepClock())
    host = Host(tmp_path, restless)
    put(restless, "log", b"1\n")
    await host.hydrator.open_session(SESSION)
    log = [b"1\n"]

    def grow() -> None:
        log.append(b"%d\n" % (len(log) + 1))
        put(restless, "log", b"".join(log))

    restless.change = grow
    fetched = await host.hydrator.fetch(host.number(b"log"))
    body = body_of(host, fetched)
    assert body == b"".join(log)[: len(body)]
    assert body.endswith(b"\n")
    assert fetched.entry.size_bytes == len(body)
    host.journal.close()


async def test_a_file_that_is_rewritten_faster_than_it_is_read_is_an_error(tmp_path: Path) -> None:
    restless = RestlessStore(StepClock())
    host = Host(tmp_path, restless)
    for path, body in (("f", b"0"), ("unhashed", b"0")):
        put(restless, path, body, sha256=None if path == "f" else "")
    await host.hydrator.open_session(SESSION)
    numbers = itertools.count(1)

    def rewrite() -> None:
        body = b"%d" % next(numbers)
        put(restless, "f", body)
        put(restless, "unhashed", body, sha256="")

    restless.change = rewrite
    for path in (b"f", b"unhashed"):
        with pytest.raises(UnavailableError, match="faster"):
            await host.hydrator.fetch(host.number(path))
    assert host.staged() == []
    assert host.events == []
    host.journal.close()


async def test_a_file_whose_object_is_gone_is_an_error(host: Host, store: FaultyStore) -> None:
    put(store, "f", b"abc")
    await host.hydrator.open_session(SESSION)
    drop(store, "f")
    with pytest.raises(CorruptDataError, match="no object holds the bytes of s/f"):
        await host.hydrator.fetch(host.number(b"f"))


async def test_bytes_are_taken_from_any_object_that_holds_them(host: Host, store: FaultyStore) -> None:
    put(store, "f", b"abc")
    put(store, "copy", b"abc")
    await host.hydrator.open_session(SESSION)
    drop(store, "f")
    assert body_of(host, await host.hydrator.fetch(host.number(b"f"))) == b"abc"


async def test_an_object_that_is_owed_here_is_not_followed(host: Host, store: FaultyStore) -> None:
    put(store, "f", b"abc")
    await host.hydrator.open_session(SESSION)
    host.journal.mark(PREFIX + "f", SESSION, 1)
    put(store, "f", b"other")
    with pytest.raises(CorruptDataError):
        await host.hydrator.fetch(host.number(b"f"))


async def test_only_files_that_exist_are_fetched(host: Host, store: FaultyStore) -> None:
    put_session(store)
    await host.hydrator.open_session(SESSION)
    with pytest.raises(ObjectNotFoundError):
        await host.hydrator.fetch(12345)
    with pytest.raises(InternalError):
        await host.hydrator.fetch(host.number(b"d"))


async def test_a_file_removed_while_it_is_fetched_leaves_nothing(host: Host, store: FaultyStore) -> None:
    put(store, "f", b"abc")
    await host.hydrator.open_session(SESSION)
    number, root = host.number(b"f"), host.number(b"")
    real = host.hydrator._fetcher.fetch

    async def fetch_and_lose(known: object) -> tuple[str, str]:
        result = await real(known)  # type: ignore[arg-type]
        host.journal.unlink(root, b"f")
        return result

    host.hydrator._fetcher.fetch = fetch_and_lose  # type: ignore[method-assign, assignment]
    with pytest.raises(ObjectNotFoundError):
        await host.hydrator.fetch(number)
    assert host.staged() == []


async def test_a_full_disk_is_a_disk_error_and_leaves_nothing(
    host: Host, store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, "f", b"abc")
    put(store, "g", b"x" * 100)
    await host.hydrator.open_session(SESSION)

    def full(*_arguments: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    monkeypatch.setattr(fetching, "RANGE_BYTES", 50)
    for path in (b"f", b"g"):
        with pytest.raises(LocalDiskError) as refused:
            await host.hydrator.fetch(host.number(path))
        assert refused.value.errno_number == 28
    monkeypatch.setattr(os, "fdatasync", full)
    monkeypatch.undo()
    monkeypatch.setattr(os, "fdatasync", full)
    with pytest.raises(LocalDiskError):
        await host.hydrator.fetch(host.number(b"f"))
    assert host.staged() == []


async def test_a_cancelled_fetch_leaves_nothing_and_fails_the_others(host: Host, store: FaultyStore) -> None:
    put(store, "f", b"abc")
    await host.hydrator.open_session(SESSION)
    number = host.number(b"f")
    with trio.CancelScope() as scope:
        scope.cancel()
        await host.hydrator.fetch(number)
    assert scope.cancelled_caught
    assert host.staged() == []
    assert body_of(host, await host.hydrator.fetch(number)) == b"abc"


async def test_eager_hydration_brings_every_file_and_tells(host: Host, store: FaultyStore) -> None:
    put_session(store)
    put(store, "big", b"x" * 1000)
    await host.hydrator.open_session(SESSION)
    told: list[tuple[int, int, int, int]] = []
    staged = await host.hydrator.hydrate_eagerly(SESSION, lambda *figures: told.append(figures))
    assert sorted(fetched.entry.name for fetched in staged) == [b"big", b"f"]
    assert told[-1] == (2, 2, 1003, 1003)


async def test_eager_hydration_that_fails_leaves_nothing(host: Host, store: FaultyStore) -> None:
    put_session(store)
    put(store, "bad", b"bad bytes", sha256="1" * 64)
    await host.hydrator.open_session(SESSION)
    with pytest.raises(CorruptDataError):
        await host.hydrator.hydrate_eagerly(SESSION, lambda *_figures: None)
    assert host.staged() == []


async def test_prefetch_delivers_small_files_first_and_not_what_is_here(
    host: Host, store: FaultyStore
) -> None:
    for name, size in (("c", 300), ("a", 200), ("b", 1)):
        put(store, name, b"x" * size)
    await host.hydrator.open_session(SESSION)
    host.journal.update_node(host.number(b"a"), present=True)
    delivered: list[int] = []

    async def deliver(number: int, fetched: Fetched) -> None:
        assert fetched.entry.number == number
        delivered.append(fetched.entry.size_bytes)

    await host.hydrator.prefetch(SESSION, deliver)
    assert sorted(delivered) == [1, 300]
    await host.hydrator.prefetch("unknown", deliver)


# --- what other hosts change


async def test_nothing_changed_is_nothing_reported(host: Host, store: FaultyStore) -> None:
    put_session(store)
    await host.hydrator.open_session(SESSION)
    store.calls.clear()
    found = await host.hydrator.refresh_session(SESSION)
    assert (found.directories, found.files, found.foreign) == ([], [], True)
    assert [method for method, _ in store.calls] == ["get", "list_page"]
    assert (await host.hydrator.refresh_session("unknown")).foreign


async def test_new_names_changed_files_and_vanished_ones_are_reported(host: Host, store: FaultyStore) -> None:
    put_session(store)
    put(store, "gone/deep/f", b"abc")
    await host.hydrator.open_session(SESSION)
    root, file, link = host.number(b""), host.number(b"d/f"), host.number(b"l")
    put(store, "d/f", b"changed", mode=stat.S_IFREG | 0o600)
    put(store, "l", b"elsewhere", mode=LINK)
    put(store, "new/", mode=stat.S_IFDIR | 0o711)
    put(store, "new/f", b"new")
    drop(store, "gone/deep/f")
    found = await host.hydrator.refresh_session(SESSION)
    assert set(found.files) == {file, link}
    assert root in found.directories
    assert host.number(b"new") in found.directories
    node = host.journal.node(file)
    assert node is not None
    assert (node.size_bytes, stat.S_IMODE(node.mode)) == (7, 0o600)
    target = host.journal.node(link)
    assert target is not None
    assert target.target == b"elsewhere"
    assert host.journal.resolve(SESSION, b"gone") is None
    assert host.journal.objects_below(PREFIX + "gone/") == []
    assert body_of(host, await host.hydrator.fetch(file)) == b"changed"
    again = await host.hydrator.refresh_session(SESSION)
    assert (again.directories, again.files) == ([], [])


async def test_old_bytes_on_this_disk_are_dropped_first(host: Host, store: FaultyStore) -> None:
    put_session(store)
    await host.hydrator.open_session(SESSION)
    await host.materialise()
    file, before = host.number(b"d/f"), host.journal.object(PREFIX + "d/f")
    put(store, "d/f", b"changed")
    found = await host.hydrator.refresh_session(SESSION)
    assert found.files == [file]
    assert host.journal.object(PREFIX + "d/f") == before
    store.calls.clear()
    assert (await host.new_hydrator().refresh_session(SESSION)).files == [file]
    assert (await host.hydrator.refresh_session(SESSION)).files == [file]
    assert [method for method, _ in store.calls].count("head") == 1
    host.evict([file])
    fetched = await host.hydrator.fetch(file)
    assert body_of(host, fetched) == b"changed"
    assert fetched.entry.size_bytes == 7
    assert (await host.hydrator.refresh_session(SESSION)).files == []


async def test_evicted_old_bytes_are_replaced_by_a_comparison_too(host: Host, store: FaultyStore) -> None:
    put_session(store)
    await host.hydrator.open_session(SESSION)
    await host.materialise()
    file = host.number(b"d/f")
    put(store, "d/f", b"changed")
    host.evict((await host.hydrator.refresh_session(SESSION)).files)
    assert (await host.hydrator.refresh_session(SESSION)).files == [file]
    known = host.journal.object(PREFIX + "d/f")
    assert known is not None
    assert known.token == store.head(PREFIX + "d/f").token


async def test_what_vanished_and_is_on_this_disk_goes_in_two_steps(host: Host, store: FaultyStore) -> None:
    put_session(store)
    await host.hydrator.open_session(SESSION)
    await host.materialise()
    for path in ("d/f", "d/", "l"):
        drop(store, path)
    found = await host.hydrator.refresh_session(SESSION)
    assert set(found.files) == {host.number(b"d/f"), host.number(b"l")}
    host.evict(found.files)
    found = await host.hydrator.refresh_session(SESSION)
    assert found.files == [host.number(b"d")]
    assert host.journal.resolve(SESSION, b"d/f") is None
    host.evict(found.files)
    found = await host.hydrator.refresh_session(SESSION)
    assert (found.directories, found.files) == ([host.number(b"")], [])
    assert host.journal.children(host.number(b"")) == []
    assert not os.path.lexists(host.disk(b"d"))


async def test_an_attribute_change_that_keeps_the_token_is_seen(host: Host, store: FaultyStore) -> None:
    put_session(store)
    await host.hydrator.open_session(SESSION)
    memory = store.inner
    assert isinstance(memory, MemoryStore)
    token = store.head(PREFIX + "d/f").token
    put(store, "d/f", b"abc", mode=stat.S_IFREG | 0o400)
    stored = memory._contents.objects[PREFIX + "d/f"]
    object.__setattr__(stored.stat, "token", token)
    found = await host.hydrator.refresh_session(SESSION)
    assert found.files == [host.number(b"d/f")]
    node = host.journal.node(host.number(b"d/f"))
    assert node is not None
    assert stat.S_IMODE(node.mode) == 0o400
    store.calls.clear()
    assert (await host.hydrator.refresh_session(SESSION)).files == []
    assert [method for method, _ in store.calls].count("head") == 0


async def test_what_is_owed_here_is_not_compared(host: Host, store: FaultyStore) -> None:
    put_session(store)
    await host.hydrator.open_session(SESSION)
    before = host.journal.object(PREFIX + "d/f")
    host.journal.mark(PREFIX + "d/f", SESSION, 1)
    host.journal.begin_attempt("w9", PREFIX + "l")
    host.journal.mark(PREFIX + "born", SESSION, 1)
    put(store, "d/f", b"changed")
    put(store, "born", b"late put")
    drop(store, "l")
    found = await host.hydrator.refresh_session(SESSION)
    assert (found.directories, found.files) == ([], [])
    assert host.journal.object(PREFIX + "d/f") == before
    assert host.journal.resolve(SESSION, b"l") is not None
    assert host.journal.resolve(SESSION, b"born") is None


async def test_what_changes_here_during_a_comparison_is_left_alone(host: Host, store: FaultyStore) -> None:
    put_session(store)
    await host.hydrator.open_session(SESSION)
    put(store, "d/f", b"changed")
    put(store, "born", b"theirs")
    # The first request is the manifest's; what is done here meanwhile is newer than what was read before it.
    store.plan("list_page", Interfere(lambda: None))
    real = host.hydrator._reader.survey

    async def survey_slowly(session: object) -> object:
        result = await real(session)  # type: ignore[arg-type]
        host.journal.mark(PREFIX + "d/f", SESSION, 1)
        host.journal.put_node(99, mode=stat.S_IFREG | 0o644, present=True)
        host.journal.link(host.number(b""), b"born", 99)
        return result

    host.hydrator._reader.survey = survey_slowly  # type: ignore[method-assign, assignment]
    found = await host.hydrator.refresh_session(SESSION)
    assert (found.directories, found.files) == ([], [])
    assert host.number(b"born") == 99
    assert host.journal.object(PREFIX + "born") is None


async def test_an_emptied_bucket_takes_nothing_from_this_disk(host: Host, store: FaultyStore) -> None:
    put_session(store)
    await host.hydrator.open_session(SESSION)
    await host.materialise()
    for path in ("", "d/", "d/f", "l"):
        drop(store, path)
    for _ in range(2):
        found = await host.hydrator.refresh_session(SESSION)
        assert (found.directories, found.files) == ([], [])
    assert [name for name, _ in host.events] == ["session.bucket.emptied"]
    assert Path(os.fsdecode(host.disk(b"d/f"))).read_bytes() == b"abc"


async def test_a_session_that_went_elsewhere_is_forgotten_when_nothing_of_it_is_here(
    host: Host, store: FaultyStore
) -> None:
    put_session(store)
    await host.hydrator.open_session(SESSION)
    for path in ("", "d/", "d/f", "l"):
        drop(store, path)
    found = await host.hydrator.refresh_session(SESSION)
    assert 1 in found.directories
    assert host.journal.session(SESSION) is None
    assert not (await host.hydrator.open_session(SESSION)).exists


async def test_a_new_session_here_is_not_taken_for_a_removed_one(host: Host) -> None:
    host.make(b"")
    found = await host.hydrator.refresh_session(SESSION)
    assert (found.directories, found.files, found.foreign) == ([], [], False)
    assert (await host.hydrator.open_session(SESSION)).exists


async def test_a_directory_without_a_marker_gets_one_later(host: Host, store: FaultyStore) -> None:
    put(store, "d/f", b"abc")
    await host.hydrator.open_session(SESSION)
    directory = host.number(b"d")
    put(store, "d/", mode=stat.S_IFDIR | 0o711)
    assert host.journal.object(PREFIX + "d/") is None
    found = await host.hydrator.refresh_session(SESSION)
    assert found.directories == [directory]
    node = host.journal.node(directory)
    assert node is not None
    assert stat.S_IMODE(node.mode) == 0o711
    drop(store, "d/")
    await host.hydrator.refresh_session(SESSION)
    assert host.number(b"d/f") >= FIRST_REMOTE_NUMBER


# --- both halves


async def test_another_host_sees_the_tree_that_was_committed(host: Host, other: Host) -> None:
    for path, body in (
        (b"", None),
        (b"empty", None),
        (b"d", None),
        (b"d/\xff %", b"odd"),
        (b"one", b"linked"),
    ):
        host.make(path, body)
    host.make(b"l", target=b"d/\xff")
    os.link(host.disk(b"one"), host.disk(b"two"))
    host.journal.link(host.number(b""), b"two", host.number(b"one"))
    host.journal.mark(PREFIX + "two", SESSION, 1)
    os.setxattr(host.disk(b"one"), "user.mime", b"\x00\xff")
    os.utime(host.disk(b"one"), ns=(0, 1_234_567_890_123_456_789))
    os.chmod(host.disk(b"empty"), 0o1770)
    host.upload()
    assert await host.generations.commit_drained(SESSION, "unmount") == 1
    assert (await other.hydrator.open_session(SESSION)).exists
    await other.materialise()
    for path in (b"", b"empty", b"d", b"d/\xff %", b"one", b"two", b"l"):
        mine, theirs = os.lstat(host.disk(path)), os.lstat(other.disk(path))
        assert (mine.st_mode, mine.st_mtime_ns) == (theirs.st_mode, theirs.st_mtime_ns), path
    assert os.readlink(other.disk(b"l")) == b"d/\xff"
    assert os.getxattr(other.disk(b"two"), "user.mime") == b"\x00\xff"
    assert os.lstat(other.disk(b"one")).st_ino == os.lstat(other.disk(b"two")).st_ino
    assert other.number(b"one") == other.number(b"two")


async def test_a_linked_name_that_another_host_replaced_becomes_a_file_of_its_own(
    host: Host, other: Host, store: FaultyStore
) -> None:
    host.make(b"")
    host.make(b"one", b"linked")
    host.journal.link(host.number(b""), b"two", host.number(b"one"))
    os.link(host.disk(b"one"), host.disk(b"two"))
    host.journal.mark(PREFIX + "two", SESSION, 1)
    host.upload()
    await host.generations.commit_drained(SESSION, "unmount")
    await other.hydrator.open_session(SESSION)
    assert other.number(b"one") == other.number(b"two")
    put(store, "two", b"own")
    await other.hydrator.refresh_session(SESSION)
    assert other.number(b"one") != other.number(b"two")
    assert body_of(other, await other.hydrator.fetch(other.number(b"one"))) == b"linked"
    assert body_of(other, await other.hydrator.fetch(other.number(b"two"))) == b"own"


async def test_a_later_generation_tells_attributes_that_no_object_has(host: Host, other: Host) -> None:
    host.make(b"")
    host.make(b"f", b"abc")
    host.upload()
    await other.hydrator.open_session(SESSION)
    os.setxattr(host.disk(b"f"), "user.a", b"b")
    await host.generations.commit_drained(SESSION, "timer")
    await other.hydrator.refresh_session(SESSION)
    fetched = await other.hydrator.fetch(other.number(b"f"))
    assert fetched.entry.xattrs == {b"user.a": b"b"}
    row = other.journal.session(SESSION)
    assert row is not None
    assert row.generation == 1


async def test_a_session_that_another_host_removed_goes(host: Host, other: Host) -> None:
    host.make(b"")
    host.make(b"f", b"abc")
    host.upload()
    await host.generations.commit_drained(SESSION, "unmount")
    await other.hydrator.open_session(SESSION)
    await other.materialise()
    for name in (b"f", b""):
        number = host.number(name)
        parent = host.number(b"") if name else 1
        (os.unlink if name else os.rmdir)(host.disk(name))
        host.note(Operation.UNLINK if name else Operation.RMDIR, number, parent=parent, name=name or b"s")
    host.upload()
    assert await host.generations.commit_removed(SESSION) == 2
    for _ in range(3):
        found = await other.hydrator.refresh_session(SESSION)
        other.evict(found.files)
    assert other.journal.session(SESSION) is None
    assert not (await other.hydrator.open_session(SESSION)).exists
    assert not os.path.lexists(other.disk())
