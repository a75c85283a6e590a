"""What a publication sends, keeps and refuses."""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

from sessionfs.formats.archive.records import (
    BLOCK_BYTES,
    MAX_FILES,
)
from sessionfs.model.errors import (
    AccessError,
    ConflictError,
    CorruptDataError,
    InvalidRequestError,
    InvalidSessionIdError,
    NotFoundError,
    SessionFSError,
    TooLargeError,
    UnavailableError,
    UnsupportedFormatError,
)
from sessionfs.sessions.archive.archive import Archive
from sessionfs.testing.faulty_store import FailBefore, Interfere, Pass

from .archive_world import CLOCK, SESSION, World, blocks, objects_in

POINTER = f"archive/sessions/{SESSION}/latest"


async def test_a_log_of_100_mib_that_grew_by_1_kib_sends_one_tail_one_manifest_and_one_pointer(
    world: World,
) -> None:
    log = world.host.files / "events.jsonl"
    log.touch()
    os.truncate(log, 100 << 20)
    world.host.write("other", b"unchanged")
    await world.host.publish()
    assert world.sent() == {"blocks": 1600, "tails": 1, "checkpoints": 1, "latest": 1}

    world.host.append("events.jsonl", b"x" * 1024)
    checkpoint = await world.host.publish()

    assert [method for method, _ in world.store.calls].count("get") == 2
    assert world.sent() == {"tails": 1, "checkpoints": 1, "latest": 1}
    sizes = {file.path: file.size for file in world.manifest(checkpoint).files}
    assert sizes == {"events.jsonl": (100 << 20) + 1024, "other": 9}
    assert len(world.body(POINTER.replace("latest", f"checkpoints/{checkpoint}"))) < 16 << 10


async def test_the_keys_are_those_of_the_format(world: World) -> None:
    world.host.write("log", blocks(2) + b"tail")
    checkpoint = await world.host.publish()
    generation = world.generation(checkpoint, "log")
    base = f"archive/sessions/{SESSION}"
    assert world.listed() == sorted(
        [
            f"{base}/blocks/{generation}/0",
            f"{base}/blocks/{generation}/1",
            f"{base}/tails/{checkpoint}/{generation}",
            f"{base}/checkpoints/{checkpoint}",
            f"{base}/latest",
        ]
    )
    assert checkpoint.startswith("0000000001-")


async def test_a_tail_that_became_a_block_is_sent_as_a_block_once(world: World) -> None:
    world.host.write("log", b"x" * (BLOCK_BYTES - 1))
    await world.host.publish()
    assert world.sent() == {"tails": 1, "checkpoints": 1, "latest": 1}
    world.host.append("log", b"y")
    await world.host.publish()
    assert world.sent() == {"blocks": 1, "checkpoints": 1, "latest": 1}
    world.host.append("log", b"z")
    await world.host.publish()
    assert world.sent() == {"tails": 1, "checkpoints": 1, "latest": 1}
    assert await world.host.restore() == world.host.contents()


async def test_nothing_new_sends_nothing_and_gives_the_same_checkpoint(world: World) -> None:
    world.host.write("log", blocks(1) + b"tail")
    world.host.write("empty", b"")
    checkpoint = await world.host.publish()
    world.sent()
    assert await world.host.publish() == checkpoint
    assert world.sent() == {}


async def test_no_file_stays_open_after_a_publication_or_a_restore_whatever_became_of_it(
    world: World,
) -> None:
    world.host.write("log", blocks(1))
    world.host.write("other", b"x")
    # The first use of a thread opens what threads share.
    await world.host.publish()
    before = os.listdir("/proc/self/fd")
    world.host.append("log", b"more")
    await world.host.publish()
    world.store.plan("get", FailBefore(AccessError("refused, as planned")))
    with pytest.raises(AccessError):
        await world.host.publish()
    (world.host.files / "unreadable").symlink_to("log")
    with pytest.raises(InvalidRequestError):
        await world.host.publish()
    await world.host.restore()
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize("change", ["removed", "private", "added"])
async def test_a_file_that_came_went_or_changed_its_mode_makes_a_checkpoint(
    world: World, change: str
) -> None:
    world.host.write("log", b"tail")
    world.host.write("other", b"other")
    first = await world.host.publish()
    world.sent()
    if change == "removed":
        (world.host.files / "other").unlink()
    elif change == "private":
        (world.host.files / "other").chmod(0o600)
    else:
        world.host.write("new", b"")
    second = await world.host.publish()
    assert second != first
    assert world.manifest(second).previous == first
    assert world.sent() == {"checkpoints": 1, "latest": 1}
    assert await world.host.restore() == world.host.contents()


@pytest.mark.parametrize("change", ["replaced", "truncated", "cut in the tail", "first byte"])
async def test_a_file_that_was_rewritten_gets_a_new_generation(world: World, change: str) -> None:
    content = blocks(2) + b"tail"
    world.host.write("log", content)
    first = await world.host.publish()
    rewritten = {
        "replaced": blocks(3) + b"t",
        "truncated": content[:BLOCK_BYTES],
        "cut in the tail": content[:-1],
        "first byte": bytes([content[0] ^ 1]) + content[1:] + b"grown",
    }[change]
    world.host.write("log", rewritten)
    second = await world.host.publish()
    assert world.generation(second, "log") != world.generation(first, "log")
    assert await world.host.restore() == {"log": rewritten}
    assert await world.host.restore(first) == {"log": content}


async def test_another_host_that_restored_sends_only_what_it_added(world: World) -> None:
    world.host.write("log", blocks(5) + b"tail")
    first = await world.host.publish()
    other = world.new_host("other")
    other.files.rmdir()
    await other.archive.restore(SESSION, str(other.files))
    other.append("log", b"more")
    world.sent()
    second = await other.publish()
    assert world.sent() == {"tails": 1, "checkpoints": 1, "latest": 1}
    assert world.generation(second, "log") == world.generation(first, "log")


# --- files that are no logs, and bad requests


def _make_symlink(files: Path) -> None:
    (files / "bad").symlink_to("log")


def _make_pipe(files: Path) -> None:
    os.mkfifo(files / "bad")


def _make_socket(files: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.path.relpath(files / "bad"))


def _make_invalid_name(files: Path) -> None:
    with open(os.fsencode(files) + b"/\xff", "wb"):
        pass


def _make_backslash(files: Path) -> None:
    (files / "a\\b").touch()


@pytest.mark.parametrize(
    "make", [_make_symlink, _make_pipe, _make_socket, _make_invalid_name, _make_backslash]
)
async def test_what_is_no_regular_file_with_a_plain_name_is_refused_and_nothing_sent(
    world: World, make: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(world.host.files)
    world.host.write("log", b"x")
    make(world.host.files)
    with pytest.raises(InvalidRequestError):
        await world.host.publish()
    assert world.store.calls == []


async def test_a_directory_that_is_a_symlink_is_never_followed(world: World, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_bytes(b"secret")
    (world.host.files / "inside").symlink_to(tmp_path / "outside")
    with pytest.raises(InvalidRequestError):
        await world.host.publish()
    with pytest.raises(InvalidRequestError):
        await world.host.archive.publish(SESSION, str(world.host.files), ["inside/secret"])
    assert world.store.calls == []


@pytest.mark.parametrize(
    "paths", [["../x"], ["/etc/passwd"], ["a//b"], [""], ["log", "log"], ["a\0b"], ["\udcff"], ["x" * 1000]]
)
async def test_a_bad_path_is_refused_and_nothing_sent(world: World, paths: list[str]) -> None:
    world.host.write("log", b"x")
    with pytest.raises(InvalidRequestError):
        await world.host.archive.publish(SESSION, str(world.host.files), paths)
    assert world.store.calls == []


@pytest.mark.parametrize("session", ["", "..", "a/b", "a\0b", "x" * 129, "s.owner", "a%b"])
async def test_a_bad_session_id_is_refused_by_every_operation(world: World, session: str) -> None:
    requests: tuple[Callable[[], Awaitable[object]], ...] = (
        lambda: world.host.archive.publish(session, str(world.host.files)),
        lambda: world.host.archive.latest(session),
        lambda: world.host.archive.restore(session, str(world.host.restored)),
    )
    for request in requests:
        with pytest.raises(InvalidSessionIdError):
            await request()
    assert world.store.calls == []


async def test_a_missing_file_or_directory_is_not_found_and_nothing_sent(world: World) -> None:
    with pytest.raises(NotFoundError):
        await world.host.archive.publish(SESSION, str(world.host.files), ["missing"])
    with pytest.raises(NotFoundError):
        await world.host.archive.publish(SESSION, str(world.host.files / "missing"))
    assert world.store.calls == []


async def test_128_files_are_archived_and_one_more_is_refused_before_anything_is_sent(world: World) -> None:
    for number in range(MAX_FILES):
        world.host.write(f"d{number % 3}/{number}", b"%d" % number)
    await world.host.publish()
    assert await world.host.restore() == world.host.contents()
    world.store.calls.clear()
    world.host.write("one-more", b"x")
    with pytest.raises(TooLargeError):
        await world.host.publish()
    assert world.store.calls == []


async def test_a_manifest_that_would_be_too_long_is_refused_before_anything_is_sent(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.host.write("log", blocks(3))
    monkeypatch.setattr("sessionfs.sessions.archive.planning.MAX_OBJECT_BYTES", 300)
    with pytest.raises(TooLargeError):
        await world.host.publish()
    assert world.sent() == {}


async def test_paths_that_are_named_are_the_only_ones_archived(world: World) -> None:
    world.host.write("log", b"x")
    world.host.write("d/other", b"y")
    await world.host.archive.publish(SESSION, str(world.host.files), ["d/other"])
    assert await world.host.restore() == {"d/other": b"y"}


@pytest.mark.parametrize("session", ["of two words", "\u00fcbung", "\u6f22" * 42, "2026-01-01T10:00:00"])
async def test_a_session_of_any_name_has_an_archive_of_its_own(world: World, session: str) -> None:
    world.host.write("log", b"x")
    await world.host.archive.publish(session, str(world.host.files))
    await world.host.archive.restore(session, str(world.host.restored))
    assert world.host.contents(world.host.restored) == {"log": b"x"}
    assert await world.host.archive.latest(SESSION) is None


# --- files that change meanwhile


async def test_what_is_added_while_a_file_is_read_belongs_to_the_next_checkpoint(world: World) -> None:
    before = blocks(2) + b"tail"
    world.host.write("log", before)
    world.store.plan("get", Interfere(lambda: world.host.append("log", blocks(1))))
    world.store.plan("put", Interfere(lambda: world.host.append("log", blocks(1))))
    await world.host.publish()
    assert await world.host.restore() == {"log": before}
    await world.host.publish()
    assert await world.host.restore() == world.host.contents()


@pytest.mark.parametrize("length", [0, BLOCK_BYTES, 3 * BLOCK_BYTES])
async def test_a_file_that_is_rewritten_or_cut_while_it_is_sent_ends_the_publication(
    world: World, length: int
) -> None:
    world.host.write("log", b"old")
    await world.host.publish()
    world.host.write("log", blocks(3))
    changed = os.urandom(length)
    # All requests of a publication are sent one by one here: the change comes between two blocks.
    world.store.plan("put", Interfere(lambda: world.host.write("log", changed)))
    old_limit = "sessionfs.sessions.archive.publishing.REQUESTS_AT_ONCE"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(old_limit, 1)
        with pytest.raises(ConflictError):
            await world.host.publish()
    assert await world.host.restore() == {"log": b"old"}
    await world.host.publish()
    assert await world.host.restore() == {"log": changed}


# --- several publishers


async def test_of_two_publishers_at_once_the_later_gets_a_conflict_and_loses_nothing(world: World) -> None:
    world.host.write("log", b"base")
    await world.host.publish()
    world.host.append("log", b" of the first")
    other = world.new_host("other")
    other.write("log", b"base of the other")
    # Right before the manifest is put: after the pointer was read, before it is swapped.
    world.store.plan("put", Interfere(lambda: trio.run(other.publish)))
    with pytest.raises(ConflictError, match="published meanwhile"):
        await world.host.publish()
    assert await world.host.restore() == {"log": b"base of the other"}
    await world.host.publish()
    assert await world.host.restore() == world.host.contents()


async def test_hosts_that_grew_one_file_apart_never_share_a_block(world: World) -> None:
    base = blocks(1) + b"tail"
    world.host.write("log", base)
    first = await world.host.publish()
    other = world.new_host("other")
    other.write("log", base + blocks(2))
    # The other's blocks come there, its checkpoint does not.
    world.store.plan("put", Pass(), Pass(), FailBefore(AccessError("refused, as planned")))
    with pytest.raises(AccessError):
        await other.publish()
    world.host.append("log", blocks(3))
    second = await world.host.publish()
    assert world.generation(second, "log") != world.generation(first, "log")
    assert await world.host.restore() == world.host.contents()
    assert await world.host.restore(first) == {"log": base}


# --- the catalogue


async def test_the_catalogue_is_told_after_the_pointer_and_again_when_nothing_is_new(world: World) -> None:
    told: list[tuple[str, str, bool]] = []

    async def note(session: str, checkpoint: str) -> None:
        told.append((session, checkpoint, checkpoint.encode() in world.body(POINTER)))

    host = world.new_host("noting", note_checkpoint=note)
    host.write("log", b"x")
    checkpoint = await host.publish()
    await host.publish()
    assert told == [(SESSION, checkpoint, True)] * 2


async def test_a_catalogue_that_fails_is_told_by_the_repetition(world: World) -> None:
    told: list[str] = []

    async def note(_session: str, checkpoint: str) -> None:
        told.append(checkpoint)
        if len(told) == 1:
            raise UnavailableError("the catalogue is down")

    host = world.new_host("noting", note_checkpoint=note)
    host.write("log", b"x")
    with pytest.raises(UnavailableError, match="catalogue"):
        await host.publish()
    world.sent()
    checkpoint = await host.publish()
    assert told == [checkpoint, checkpoint]
    assert world.sent() == {}


# --- wrong archives


@pytest.mark.parametrize(
    ("key", "body", "error"),
    [
        ("latest", b"garbage", CorruptDataError),
        ("latest", b'{"format":2}', UnsupportedFormatError),
        ("manifest", b"garbage", CorruptDataError),
        ("manifest", b"", CorruptDataError),
    ],
)
async def test_a_wrong_newest_checkpoint_is_an_error_of_a_publication_that_sends_nothing(
    world: World, key: str, body: bytes, error: type[SessionFSError]
) -> None:
    world.host.write("log", b"x")
    checkpoint = await world.host.publish()
    world.overwrite(
        POINTER if key == "latest" else POINTER.replace("latest", f"checkpoints/{checkpoint}"), body
    )
    world.host.notes.unlink()
    world.host.append("log", b"y")
    world.sent()
    with pytest.raises(error):
        await world.host.publish()
    assert world.sent() == {}


async def test_the_newest_checkpoint_is_described(world: World) -> None:
    assert await world.host.archive.latest(SESSION) is None
    world.host.write("d/log", blocks(1))
    published = await world.host.archive.publish(SESSION, str(world.host.files))
    assert published.number == 1
    assert published.files == {"d/log": BLOCK_BYTES}
    assert await Archive(objects_in(world.store), CLOCK).latest(SESSION) == published


# --- cancellation


async def test_a_publication_that_is_cancelled_anywhere_leaves_the_old_checkpoint_or_the_new(
    world: World,
) -> None:
    world.host.write("log", blocks(1) + b"old")
    old = await world.host.publish()
    was_cancelled = True
    step = 0
    while was_cancelled:
        world.host.append("log", blocks(2))
        scope = trio.CancelScope()
        cancel = Interfere(_cancels(scope))
        world.store.plan("put", *[Pass()] * step, cancel)
        with scope:
            await world.host.publish()
        was_cancelled = scope.cancelled_caught
        world.store._planned.clear()
        restored = await world.host.restore()
        newest = await world.host.archive.latest(SESSION)
        assert newest is not None
        if newest.id == old:
            assert restored == {"log": world.host.contents()["log"][: len(restored["log"])]}
        else:
            assert restored == world.host.contents()
        old = await world.host.publish()
        assert await world.host.restore() == world.host.contents()
        step += 1
    assert step > 3


def _cancels(scope: trio.CancelScope) -> Callable[[], object]:
    return lambda: trio.from_thread.run_sync(scope.cancel)
