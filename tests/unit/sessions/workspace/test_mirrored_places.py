"""A workspace over a working copy, in its own process and through a mount: what programs do there is told as exactly as what it does itself."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sessionfs.daemon.doors.mirrored import open_mirrored
from sessionfs.formats import manifest as manifests
from sessionfs.model.names import session_id
from sessionfs.sessions.workspace import NewSession, Workspace, WorkspaceOptions
from tests.e2e.rig import FAST, Host

from .world import Heard

S = session_id("s")


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    (tmp_path / "store").mkdir()
    made = Host(f"file://{tmp_path}/store", tmp_path / "host", FAST)
    yield made
    made.clean_up()


def work_in(directory: Path) -> None:
    """Do what programs do."""
    with (directory / "log").open("ab") as log:
        log.write(b"two\n")
        log.write(b"three\n")
    with (directory / "text").open("r+b") as text:
        text.seek(3)
        text.write(b"X")
    (directory / "old").rename(directory / "young")
    (directory / "gone").unlink()
    (directory / "deep" / "er").mkdir(parents=True)
    (directory / "deep" / "er" / "new").write_bytes(b"12")
    os.truncate(directory / "long", 2)


def manifest_of(store: Path) -> dict[bytes, int]:
    raw = (store / "sessions" / "s.manifest" / "manifest.json").read_bytes()
    return {entry.path: entry.size_bytes for entry in manifests.decode(raw, "manifest").entries}


@pytest.mark.fuse
async def test_what_programs_do_in_the_mount_is_told_to_the_byte_and_is_in_the_last_generation(
    host: Host, tmp_path: Path, heard: Heard
) -> None:
    host.mount()
    options = WorkspaceOptions(subscriber=heard)
    async with (
        open_mirrored(host.store, state_directory=str(host.state)) as place,
        Workspace.create(place, "s", new=NewSession(config=b"c"), options=options) as workspace,
    ):
        for path, body in (
            ("log", b"one\n"),
            ("text", b"abcdef"),
            ("old", b"same"),
            ("gone", b"1"),
            ("long", b"long"),
        ):
            await workspace.write_file(path, body)
        heard.events.clear()
        work_in(host.directory / "s")
        await workspace.changes()
        assert {event.is_foreign for event in heard.events} == {True}
        assert sorted(heard.files()) == [
            ("created", "deep/er/new", 2, 0, 2),
            ("deleted", "gone", 0, 0, -1),
            ("renamed", "young", 4, 4, 0),
            ("updated", "log", 14, 4, 10),
            ("updated", "long", 2, 2, -2),
            ("updated", "text", 6, 3, 0),
        ]
        # Right before an append of ours, too.
        with (host.directory / "s" / "log").open("ab") as log:
            log.write(b"four\n")
        await workspace.append_file("log", b"five\n")
        assert heard.files() == [("updated", "log", 19, 14, 5), ("updated", "log", 24, 19, 5)]
        generation = await workspace.snapshot("turn")
        assert generation >= 1
        (host.directory / "s" / "last").write_bytes(b"words")
    assert heard.files()[0] == ("created", "last", 5, 0, 5)
    assert not place.owns(S)
    found = manifest_of(tmp_path / "store")
    assert (found[b"log"], found[b"last"], found[b"young"], found[b"deep/er/new"]) == (24, 5, 4, 2)
    assert b"metadata/session.json" in found
    assert (host.directory / "s" / "metadata" / "config").read_bytes() == b"c"
    host.umount()


async def test_a_working_copy_of_this_process_makes_generations_and_keeps_what_was_abandoned(
    host: Host, tmp_path: Path, heard: Heard
) -> None:
    options = WorkspaceOptions(subscriber=heard, journal_segment_bytes=60)
    async with open_mirrored(host.store, state_directory=str(host.state)) as place:
        async with Workspace.create(place, "s", options=options) as workspace:
            for number in range(4):
                await workspace.journal().append({"n": number, "text": "x" * 30})
            put = await workspace.blobs().put(b"blob")
            await place.files(S).write("theirs", b"1")
            heard.events.clear()
            first = await workspace.snapshot("turn")
            assert [record["n"] async for record in workspace.journal().replay()] == [0, 1, 2, 3]
        assert {event.path for event in heard.events if event.is_foreign} == {"theirs"}
        found = manifest_of(tmp_path / "store")
        assert found[f"blobs/{put.sha256[:2]}/{put.sha256}.bin".encode()] == 4
        assert found[b"journal/active.jsonl"] == 0
        async with Workspace.recall(place, "s") as again:
            await again.write_file("owed", b"1")
            await again.abandon()
        assert place.owns(S)
        async with Workspace.recall(place, "s") as again:
            assert await again.read_file("owed") == b"1"
            assert await again.snapshot("turn") > first
        async with Workspace.shared(place, "eval/run") as run:
            await run.write_file("result", b"1")
            assert await run.publish() == 1
    assert (tmp_path / "store/eval/run/published.json").exists()
