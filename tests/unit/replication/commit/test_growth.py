"""A long session with a commit after every turn: the bucket grows with what changed, and with one manifest for each generation."""

from __future__ import annotations

from pathlib import Path

from sessionfs.model import keys
from tests.unit.replication.commit.commit_world import CommitWorld, read_generation
from tests.unit.replication.uploads.tree_world import SESSION

TURNS = 60
UNCHANGED_BYTES = 2_000_000
FILE_BYTES = 1_000


def bytes_below(world: CommitWorld, prefix: str) -> int:
    pages = world.memory.list_all(prefix)
    return sum(found.size_bytes for page in pages for found in page.objects)


def contents_bytes(world: CommitWorld) -> int:
    """Live objects and what is kept by its content, without manifests."""
    return bytes_below(world, keys.session_prefix(SESSION)) + bytes_below(world, keys.objects_prefix(SESSION))


async def test_an_hour_of_turns_costs_what_changed(tmp_path: Path) -> None:
    world = CommitWorld(tmp_path)
    world.write(b"large", b"u" * UNCHANGED_BYTES)
    for number in range(20):
        world.write(b"f%d" % number, b"%d" % number * FILE_BYTES)
    world.write(b"log.jsonl", b"")
    await world.commit("turn")
    before, sent = contents_bytes(world), 0
    trees = []
    for turn in range(TURNS):
        line = b'{"seq": %d, "text": "%s"}\n' % (turn, b"x" * 100)
        world.append(b"log.jsonl", line)
        body = (b"turn %d " % turn * FILE_BYTES)[:FILE_BYTES]
        world.write(b"f%d" % (turn % 20), body)
        report = await world.commit("turn")
        sent += report.bytes_uploaded
        trees.append(world.tree())
    log_bytes = len(trees[-1][b"log.jsonl"] or b"")
    # Each rewritten file leaves the content that a generation names; the log is one object that grew.
    assert contents_bytes(world) - before <= TURNS * FILE_BYTES + log_bytes
    # Below 5 MiB a log is sent whole each time; the rest is what was rewritten.
    assert sent <= TURNS * (FILE_BYTES + log_bytes)
    manifests = bytes_below(world, keys.manifest_prefix(SESSION))
    assert manifests <= (TURNS + 2) * 25 * 400
    for number in (1, 2, TURNS // 2, TURNS):
        assert read_generation(world.memory, number + 1) == trees[number - 1]
    print(
        f"{TURNS} turns: contents {contents_bytes(world) - before}, manifests {manifests}, sent {sent} bytes"
    )
