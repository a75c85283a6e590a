"""The first moments of an ownership: what others did is taken over, and nobody's bytes are lost."""

from __future__ import annotations

import stat
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest
import trio
import trio.testing

from sessionfs.formats.intent_records import Operation
from sessionfs.formats.manifest import BLOCK_BYTES, Manifest
from sessionfs.model import keys
from sessionfs.model.errors import CorruptDataError, OwnershipLostError, UnavailableError
from sessionfs.model.names import SessionId
from sessionfs.replication.hydration.takeover import generation_sources, tail
from sessionfs.replication.hydration.takeover.catch_up import Base, CaughtUp
from sessionfs.replication.hydration.tree_rows import TreeRows
from sessionfs.replication.ownership.holdings import Claim
from sessionfs.replication.uploader import Uploader
from sessionfs.replication.uploads.authority import Authority
from sessionfs.stores.base import ByteRange, ObjectBody, ObjectMetadata, ObjectStore, Token, Unconditional
from sessionfs.stores.memory import MemoryStore
from sessionfs.testing.faulty_store import FailBefore, FaultyStore, Interfere
from sessionfs.working_copy.known_content import Prefix

from .hosts import PREFIX, SESSION, Host, StepClock, away, body_of, drop, put, put_manifest
from .named_bytes import (
    DIRECTORY,
    alias,
    commit,
    entry,
    fence,
    keep,
    kept_aside,
    live,
    put_named,
    read,
    sha,
)


def claim(host: Host, manifest: Manifest | None, epoch: int = 9) -> Claim:
    """Own a session, as ownership does: the record, the fence, and what the journal is told."""
    token = ""
    if manifest is not None:
        manifest = fence(host.bucket, manifest, epoch)
        token = host.bucket.head(keys.manifest_key(SESSION)).token
    host.journal.update_session(SESSION, owner_state="held", epoch=epoch)
    return Claim(epoch, manifest=manifest, manifest_token=token)


async def upload(host: Host, authority: Authority | None = None) -> None:
    """Let the real uploader bring everything away."""
    uploader = Uploader(
        host.journal, host.store, host.layout, host.settings, host.clock, host.exclusions,
        image_gate=None, mount_point="", raise_event=lambda name, fields: host.events.append((name, fields)),
        authority=authority,
    )  # fmt: skip
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(uploader.run)
            while host.journal.all_work():
                host.clock.seconds += 100
                uploader.retry()
                await uploader.drain(0.05)
            nursery.cancel_scope.cancel()


def shown(host: Host) -> dict[bytes, int]:
    return {path: node.size_bytes for path, node in host.journal.tree(host.number(b""))}


def put_generation(store: ObjectStore) -> Manifest:
    """Commit a generation, and leave a tail behind it."""
    named = [
        put_named(store, ""), put_named(store, "d/"), put_named(store, "d/same", b"same"),
        put_named(store, "over", b"first"), put_named(store, "gone", b"gone"), put_named(store, "a.log", b"1\n"),
    ]  # fmt: skip
    manifest = commit(store, *named, epoch=3)
    for body in (b"first", b"gone"):
        keep(store, body)
    put(store, "over", b"uncommitted")
    put(store, "a.log", b"1\n2\n")
    put(store, "new", b"new")
    put(store, "made/", mode=DIRECTORY)
    put(store, "made/too", b"")
    drop(store, "gone")
    return manifest


GENERATION = {
    "": b"",
    "d/": b"",
    "d/same": b"same",
    "over": b"first",
    "gone": b"gone",
    "a.log": b"1\n2\n",
}


async def test_the_tail_of_a_dead_owner_is_kept_aside_and_the_generation_put_back(
    host: Host, store: FaultyStore
) -> None:
    manifest = put_generation(store)
    await host.hydrator.open_session(SESSION)
    assert shown(host)[b"a.log"] == 2
    found = await host.hydrator.catch_up(SESSION, claim(host, manifest))
    assert found is not None
    assert found.files == [host.number(b"a.log")]
    assert not found.foreign
    assert kept_aside(store) == {"over": b"uncommitted", "new": b"new", "made/too": b""}
    kept = [fields for name, fields in host.events if name == "session.tail.kept"]
    assert kept == [{"session_id": SESSION, "files": 3, "bytes": 14}]
    assert {conflict.path for conflict in host.journal.conflicts()} == {"over", "new", "made/too"}
    assert shown(host) == {b"": 0, b"d": 0, b"d/same": 4, b"over": 5, b"gone": 4, b"a.log": 4}
    assert host.journal.prefixes(PREFIX + "a.log") == [Prefix(sha(b"1\n"), 2)]
    assert host.journal.is_named(PREFIX + "d/same")
    assert not host.journal.is_named(PREFIX + "over")
    await upload(host)
    assert live(store) == GENERATION
    assert await host.hydrator.finish_catch_up(SESSION) == []
    assert body_of(host, await host.hydrator.fetch(host.number(b"over"))) == b"first"
    assert body_of(host, await host.hydrator.fetch(host.number(b"a.log"))) == b"1\n2\n"


async def test_a_claim_without_a_tail_costs_one_listing(host: Host, store: FaultyStore) -> None:
    manifest = commit(store, put_named(store, ""), put_named(store, "f", b"abc"), epoch=3)
    await host.hydrator.open_session(SESSION)
    claimed = claim(host, manifest)
    store.calls.clear()
    assert await host.hydrator.catch_up(SESSION, claimed) is None
    assert [method for method, _ in store.calls] == ["head", "list_page"]
    known = host.journal.object(PREFIX + "f")
    assert known is not None
    assert known.token == store.head(PREFIX + "f").token
    assert host.journal.is_named(PREFIX + "f")
    row = host.journal.session(SESSION)
    assert row is not None
    assert not row.changed
    assert host.journal.all_work() == []
    assert await host.hydrator.finish_catch_up(SESSION) == []


async def test_settling_a_tail_again_changes_nothing(host: Host, store: FaultyStore) -> None:
    manifest = put_generation(store)
    await host.hydrator.open_session(SESSION)
    await host.hydrator.catch_up(SESSION, claim(host, manifest))
    before, owed = kept_aside(store), [work.key for work in host.journal.all_work()]
    await host.hydrator.catch_up(SESSION, Claim(9))
    assert (kept_aside(store), [work.key for work in host.journal.all_work()]) == (before, owed)
    await upload(host)
    await host.hydrator.catch_up(SESSION, Claim(9))
    assert live(store) == GENERATION
    assert shown(host)[b"a.log"] == 4


Result = TypeVar("Result")


class Killed(BaseException):
    """The process ends."""


class Mortal(FaultyStore):
    """Ends the process before or after its n-th call."""

    def __init__(self) -> None:
        super().__init__(MemoryStore(StepClock()))
        self.left = -1
        self.is_after = False
        self._counting = threading.Lock()

    def die(self, left: int, *, is_after: bool) -> None:
        self.left, self.is_after = left, is_after

    def _call(self, method: str, key: str, request: Callable[[], Result]) -> Result:
        return self._count(partial(super()._call, method, key, request))

    def get(self, key: str, *, byte_range: ByteRange | None, expected: Token | None) -> ObjectBody:
        return self._count(partial(super().get, key, byte_range=byte_range, expected=expected))

    def _count(self, request: Callable[[], Result]) -> Result:
        with self._counting:
            self.left -= 1
            is_last = self.left == 0
        if is_last and not self.is_after:
            raise Killed
        try:
            return request()
        finally:
            if is_last:
                raise Killed


async def steps_of(tmp_path: Path) -> int:
    store = Mortal()
    manifest = put_generation(store)
    host = Host(tmp_path / "count", store)
    await host.hydrator.open_session(SESSION)
    claimed = claim(host, manifest)
    store.calls.clear()
    await host.hydrator.catch_up(SESSION, claimed)
    host.journal.close()
    return len(store.calls)


async def test_a_process_that_dies_at_any_step_of_it_loses_nothing(tmp_path: Path) -> None:
    steps = await steps_of(tmp_path)
    assert steps > 10
    for step in range(1, steps + 1):
        for is_after in (False, True):
            store = Mortal()
            manifest = put_generation(store)
            host = Host(tmp_path / f"{step}{is_after}", store)
            await host.hydrator.open_session(SESSION)
            claimed = claim(host, manifest)
            store.die(step, is_after=is_after)
            with pytest.raises((Killed, BaseExceptionGroup)):
                await host.hydrator.catch_up(SESSION, claimed)
            store.die(-1, is_after=False)
            host.hydrator = host.new_hydrator()
            assert await host.hydrator.finish_catch_up(SESSION) == []
            await upload(host)
            assert live(store) == GENERATION, step
            kept = kept_aside(store)
            assert kept == {"over": b"uncommitted", "new": b"new", "made/too": b""}, step
            host.journal.close()


async def test_bytes_that_are_only_first_ones_come_back_once(
    host: Host, store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = {"grown.bin": b"first", "small.bin": b"1"}
    manifest = commit(
        store, put_named(store, ""), *(put_named(store, path, body) for path, body in bodies.items()), epoch=1
    )
    put(store, "grown.bin", b"first and more")
    keep(store, b"1 and more")
    alias(store, b"1", b"1 and more")
    put(store, "small.bin", b"rewritten to be longer")
    monkeypatch.setattr(generation_sources, "_PUT_BYTES", 3)
    await host.hydrator.open_session(SESSION)
    await host.hydrator.catch_up(SESSION, claim(host, manifest))
    for body in bodies.values():
        assert read(store, keys.content_key(SESSION, sha(body))) == body
    await upload(host)
    assert live(store) == {"": b"", **bodies}
    assert host.staged() == []
    # The note of a content that was kept before must go on telling the truth.
    assert read(store, keys.alias_key(SESSION, sha(b"1"))).count(sha(b"1 and more").encode()) == 1


async def test_a_log_is_taken_over_only_when_its_first_bytes_are_proven(
    host: Host, store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail, "PROOF_BYTES", 8)
    body = b"x" * (BLOCK_BYTES + 5)
    named = [
        put_named(store, path, text)
        for path, text in (
            ("good.log", b"1\n"), ("rewritten.jsonl", b"1\n"), ("shorter.log", b"12\n"), ("sums.log", body), ("changed.log", body),
        )
    ]  # fmt: skip
    named.append(replace(put_named(store, "unproven.log", b"0123456789"), blocks=()))
    manifest = commit(store, put_named(store, ""), *named, epoch=1)
    for text in (b"1\n", b"12\n", body, b"0123456789"):
        keep(store, text)
    put(store, "good.log", b"1\n2\n")
    put(store, "rewritten.jsonl", b"2\n3\n")
    put(store, "shorter.log", b"1")
    put(store, "sums.log", body + b"more")
    put(store, "changed.log", b"y" + body[1:] + b"more")
    put(store, "unproven.log", b"0123456789more")
    await host.hydrator.open_session(SESSION)
    await host.hydrator.catch_up(SESSION, claim(host, manifest))
    assert set(kept_aside(store)) == {"rewritten.jsonl", "shorter.log", "changed.log", "unproven.log"}
    sizes = shown(host)
    assert (sizes[b"good.log"], sizes[b"sums.log"], sizes[b"unproven.log"]) == (4, len(body) + 4, 10)


async def test_other_attributes_than_the_generations_are_put_back(host: Host, store: FaultyStore) -> None:
    manifest = commit(
        store, put_named(store, ""), put_named(store, "d/"), put_named(store, "f", b"abc"), epoch=1
    )
    put(store, "f", b"abc", mode=stat.S_IFREG | 0o400)
    put(store, "d/", mode=stat.S_IFDIR | 0o700)
    await host.hydrator.open_session(SESSION)
    assert await host.hydrator.catch_up(SESSION, claim(host, manifest)) is None
    assert kept_aside(store) == {}
    await upload(host)
    modes = {path: int(store.head(PREFIX + path).metadata.user["mode"]) for path in ("f", "d/")}  # type: ignore[union-attr]
    assert {path: stat.S_IMODE(mode) for path, mode in modes.items()} == {"f": 0o644, "d/": 0o755}


async def test_an_object_of_a_later_owner_ends_the_claim_before_anything_is_changed(
    host: Host, store: FaultyStore
) -> None:
    manifest = put_generation(store)
    await host.hydrator.open_session(SESSION)
    claimed = claim(host, manifest, epoch=4)
    user = {**store.head(PREFIX + "new").metadata.user, "sessionfs-epoch": "5"}  # type: ignore[union-attr]
    put_with(store, "new", b"later", user)
    with pytest.raises(OwnershipLostError, match="epoch 5"):
        await host.hydrator.catch_up(SESSION, claimed)
    assert kept_aside(store) == {}
    assert host.journal.all_work() == []


def put_with(store: ObjectStore, path: str, body: bytes, user: dict[str, str]) -> None:
    store.put(PREFIX + path, body, condition=Unconditional(), metadata=ObjectMetadata(user))


async def test_old_bytes_on_this_disk_wait_for_the_daemon_and_their_keys_with_them(
    host: Host, store: FaultyStore
) -> None:
    root = put_named(store, "")
    commit(store, root, put_named(store, "f", b"first"), put_named(store, "a.log", b"1\n"), epoch=1)
    await host.hydrator.open_session(SESSION)
    await host.materialise()
    manifest = commit(
        store,
        root,
        put_named(store, "f", b"second"),
        put_named(store, "a.log", b"1\n"),
        generation=2,
        epoch=2,
    )
    keep(store, b"second")
    put(store, "f", b"uncommitted")
    put(store, "a.log", b"1\n2\n")
    numbers = {host.number(b"f"), host.number(b"a.log")}
    found = await host.hydrator.catch_up(SESSION, claim(host, manifest))
    assert found is not None
    assert set(found.files) == numbers
    assert await host.hydrator.finish_catch_up(SESSION) == ["a.log", "f"]
    assert host.journal.all_work() == []
    host.evict(numbers)
    assert body_of(host, await host.hydrator.fetch(host.number(b"a.log"))) == b"1\n2\n"
    found = await host.hydrator.refresh_session(SESSION)
    assert kept_aside(store) == {"f": b"uncommitted"}
    assert await host.hydrator.finish_catch_up(SESSION) == []
    assert body_of(host, await host.hydrator.fetch(host.number(b"f"))) == b"second"
    await upload(host)
    assert live(store) == {"": b"", "f": b"second", "a.log": b"1\n2\n"}


async def test_a_live_session_takes_over_every_newer_object(host: Host, store: FaultyStore) -> None:
    root = put_named(store, "")
    grown, over = put_named(store, "grown", b"1\n"), put_named(store, "over", b"old")
    manifest = commit(store, root, put_named(store, "same", b"same"), grown, over, recovery="live", epoch=2)
    await host.hydrator.open_session(SESSION)
    keep(store, b"old")
    put(store, "grown", b"1\n2\n")
    put(store, "over", b"longer than the old")
    put(store, "new", b"new")
    drop(store, "same")
    found = await host.hydrator.catch_up(SESSION, claim(host, manifest))
    assert found is not None
    assert set(found.files) == {host.number(b"grown"), host.number(b"over")}
    assert shown(host) == {b"": 0, b"grown": 4, b"over": 19, b"new": 3}
    for path in ("grown", "over", "new"):
        known = host.journal.object(PREFIX + path)
        assert known is not None
        assert known.token == store.head(PREFIX + path).token
    assert host.journal.prefixes(PREFIX + "grown") == [Prefix(sha(b"1\n"), 2)]
    assert not any(prefix.is_proven for prefix in host.journal.prefixes(PREFIX + "over"))
    row = host.journal.session(SESSION)
    assert row is not None
    assert row.changed
    assert kept_aside(store) == {}
    assert host.journal.all_work() == []


async def test_a_live_claim_sees_an_attribute_change_that_kept_its_token(
    host: Host, store: FaultyStore
) -> None:
    manifest = commit(store, put_named(store, ""), put_named(store, "f", b"abc"), recovery="live", epoch=2)
    await host.hydrator.open_session(SESSION)
    token = store.head(PREFIX + "f").token
    put(store, "f", b"abc", mode=stat.S_IFREG | 0o400)
    object.__setattr__(store.inner._contents.objects[PREFIX + "f"].stat, "token", token)  # type: ignore[attr-defined]
    found = await host.hydrator.catch_up(SESSION, claim(host, manifest))
    assert found is not None
    assert found.files == [host.number(b"f")]


async def test_what_another_owner_named_is_forgotten_when_another_object_is_there(
    host: Host, store: FaultyStore
) -> None:
    manifest = commit(store, put_named(store, ""), put_named(store, "f", b"old"), recovery="live", epoch=1)
    await host.hydrator.open_session(SESSION)
    await host.hydrator.catch_up(SESSION, claim(host, manifest, epoch=2))
    assert host.journal.is_named(PREFIX + "f")
    keep(store, b"old")
    newer = commit(
        store,
        put_named(store, ""),
        put_named(store, "f", b"rewritten"),
        recovery="live",
        generation=2,
        epoch=3,
    )
    host.journal.update_session(SESSION, owner_state="lost")
    await host.hydrator.catch_up(SESSION, claim(host, newer, epoch=4))
    assert host.journal.is_named(PREFIX + "f")
    assert host.journal.prefixes(PREFIX + "f") == []
    row = host.journal.session(SESSION)
    assert row is not None
    assert (row.generation, row.recovery) == (2, "")


async def test_who_waits_while_another_finishes_it_does_not_take_over_an_older_generation_again(
    host: Host, store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit may have made the next generation since."""
    manifest = put_generation(store)
    await host.hydrator.open_session(SESSION)
    runs: list[int] = []
    run = host.hydrator._catch_up.run

    async def slow_run(session: SessionId, base: Base) -> CaughtUp:
        runs.append(base.epoch)
        await trio.sleep(0.01)
        return await run(session, base)

    monkeypatch.setattr(host.hydrator._catch_up, "run", slow_run)
    host.journal.set_meta(f"behind:{SESSION}", "1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(host.hydrator.catch_up, SESSION, claim(host, manifest))
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(host.hydrator.finish_catch_up, SESSION)
    assert len(runs) == 1


async def test_the_next_commit_of_a_committed_session_says_so_too(host: Host, store: FaultyStore) -> None:
    manifest = commit(store, put_named(store, ""), epoch=1)
    await host.hydrator.open_session(SESSION)
    await host.hydrator.catch_up(SESSION, claim(host, manifest))
    row = host.journal.session(SESSION)
    assert row is not None
    assert row.recovery == "committed"


async def test_a_new_session_on_top_of_a_removed_one_sets_its_remains_aside(
    host: Host, store: FaultyStore
) -> None:
    removed = Manifest(SESSION, 4, removed=True, epoch=2)
    put_manifest(store, removed)
    put(store, "left", b"behind")
    put(store, "f", b"theirs")
    host.make(b"")
    host.make(b"f", b"ours")
    await host.hydrator.catch_up(SESSION, claim(host, removed))
    assert kept_aside(store) == {"left": b"behind"}
    await upload(host)
    assert live(store) == {"": b"", "f": b"ours"}
    assert kept_aside(store) == {"left": b"behind", "f": b"theirs"}
    assert shown(host) == {b"": 0, b"f": 4}


async def test_what_never_leaves_this_host_stays_when_another_owner_committed(
    host: Host, store: FaultyStore
) -> None:
    host.make(b"")
    host.make(b"d", None)
    lock, file = host.make(b"d/session.lock", b"local"), host.make(b"f", b"first")
    host.upload()
    host.commit(recovery="committed", epoch=1)
    manifest = commit(store, put_named(store, ""), generation=2, epoch=2)
    found = await host.hydrator.catch_up(SESSION, claim(host, manifest))
    assert found is not None
    assert found.files == [file]
    assert host.journal.node(lock) is not None


async def test_nothing_is_done_while_ownership_is_only_presumed(host: Host, store: FaultyStore) -> None:
    put_generation(store)
    store.calls.clear()
    assert await host.hydrator.catch_up(SESSION, Claim(0, is_presumed=True)) is None
    assert store.calls == []


async def test_a_store_that_goes_away_leaves_the_session_behind(host: Host, store: FaultyStore) -> None:
    manifest = put_generation(store)
    await host.hydrator.open_session(SESSION)
    claimed = claim(host, manifest)
    away(store, "list_page")
    with pytest.raises(UnavailableError):
        await host.hydrator.catch_up(SESSION, claimed)
    store.plan("copy", FailBefore(UnavailableError("away")))
    with pytest.raises(UnavailableError):
        await host.hydrator.refresh_session(SESSION)
    # The claim after a restart has no manifest to tell.
    await host.hydrator.catch_up(SESSION, Claim(9))
    await upload(host)
    assert live(store) == GENERATION


async def test_an_object_that_moves_while_it_is_kept_aside_is_looked_at_again(
    host: Host, store: FaultyStore
) -> None:
    manifest = commit(store, put_named(store, ""), epoch=1)
    put(store, "new", b"one")
    await host.hydrator.open_session(SESSION)
    store.plan("copy", Interfere(lambda: put(store, "new", b"two", write_id="w2")))
    with pytest.raises(UnavailableError, match="moved while"):
        await host.hydrator.catch_up(SESSION, claim(host, manifest))
    assert await host.hydrator.finish_catch_up(SESSION) == []
    assert kept_aside(store) == {"new": b"two"}


async def test_bytes_of_the_generation_that_are_nowhere_are_owed_and_said_to_be_lost(
    host: Host, store: FaultyStore
) -> None:
    manifest = commit(store, put_named(store, ""), put_named(store, "f", b"lost"), epoch=1)
    put(store, "f", b"tail")
    await host.hydrator.open_session(SESSION)
    await host.hydrator.catch_up(SESSION, claim(host, manifest))
    assert kept_aside(store) == {"f": b"tail"}
    assert host.journal.work(PREFIX + "f") is not None
    with pytest.raises(CorruptDataError, match="generation 1"):
        await host.hydrator.fetch(host.number(b"f"))
    assert "generation 1" in host.hydrator.problem_of(host.number(b"f"))
    keep(store, b"lost")
    assert body_of(host, await host.hydrator.fetch(host.number(b"f"))) == b"lost"
    assert host.hydrator.problem_of(host.number(b"f")) == ""


async def test_a_path_without_a_key_is_known_by_its_content_after_a_claim(
    host: Host, store: FaultyStore
) -> None:
    name = "%FF" * 250
    path = b"\xff" * 250 + b"/" + b"\xff" * 250
    assert keys.live_key(SESSION, path, is_directory=False) is None
    keep(store, b"kept")
    named = replace(entry("x", b"kept"), path=path)
    manifest = commit(store, put_named(store, ""), put_named(store, name + "/"), named, epoch=1)
    manifest = replace(manifest, entries=(manifest.entries[0], named))
    put_manifest(store, manifest)
    await host.hydrator.open_session(SESSION)
    await host.hydrator.catch_up(SESSION, claim(host, manifest))
    known = host.journal.object(keys.content_key(SESSION, sha(b"kept")))
    assert known is not None
    assert known.number == host.number(path)


async def test_a_file_that_a_program_changed_meanwhile_is_the_uploaders(
    host: Host, store: FaultyStore
) -> None:
    manifest = put_generation(store)
    await host.hydrator.open_session(SESSION)
    await host.materialise()
    host.write(b"over", b"ours")
    host.note(Operation.WRITTEN, host.number(b"over"))
    await host.hydrator.catch_up(SESSION, claim(host, manifest))
    assert "over" not in kept_aside(store)
    await upload(host)
    assert live(store)["over"] == b"ours"
    assert kept_aside(store)["over"] == b"uncommitted"


async def test_what_an_upload_under_way_is_about_to_replace_is_named_without_a_proof(
    host: Host, store: FaultyStore
) -> None:
    """It may have been copied aside already; the object that comes need not begin with it."""
    manifest = put_generation(store)
    await host.hydrator.open_session(SESSION)
    key = PREFIX + "over"
    known = host.journal.object(key)
    assert known is not None
    host.journal.forget_named(key)
    entry = next(one for one in manifest.entries if one.path == b"over")
    host.journal.put_object(replace(known, sha256=entry.sha256, size_bytes=entry.size_bytes))
    host.journal.mark(key, SESSION, 1)
    TreeRows(host.journal, SESSION).name_contents(manifest)
    assert not host.journal.is_named(key)
    assert [(one.sha256, one.is_proven) for one in host.journal.prefixes(key)] == [(entry.sha256, False)]
