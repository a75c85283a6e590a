"""Whose turn it is."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from sessionfs.model.settings import ReplicationSettings
from sessionfs.replication.uploads.content_source import Append, Body, Content, Copy, ways
from sessionfs.replication.uploads.schedule import Blockers, blockers, due_ns, fair_order, find_knot
from sessionfs.replication.uploads.turns import Turns
from sessionfs.stores.base import Capabilities
from sessionfs.working_copy.known_content import KnownObject
from sessionfs.working_copy.upload_journal import Work

from .tree_world import SESSION, World

SECOND = 1_000_000_000
NOW = 1_000 * SECOND
DEFAULTS = ReplicationSettings()


def work(
    key: str, *, session: str = "s", first: float = 0, changed: float = 0, not_before: float = 0
) -> Work:
    first_ns, changed_ns = NOW + int(first * SECOND), NOW + int(changed * SECOND)
    wait_ns = NOW + int(not_before * SECOND) if not_before else 0
    return Work(key, session, first_ns, changed_ns, wait_ns, 0, 0, "owed", "", held=False)


def known(key: str, sha256: str = "", size_bytes: int = 0, number: int = 1) -> KnownObject:
    return KnownObject(key, number, "t", "w", sha256, size_bytes, 0o100644, 0, 0, 0, "l")


@pytest.mark.parametrize(
    ("row", "size_bytes", "due_seconds"),
    [
        (work("quiet since it was made"), 0, 1.0),
        (work("written all the time", first=-8.0, changed=0), 0, 0.5),
        (work("large and growing"), 4 << 20, 8.0),
        (work("very large"), 1 << 40, 8.5),
        (work("backing off", not_before=30), 0, 30.0),
    ],
)
def test_a_row_is_due_when_quiet_or_at_the_latest(row: Work, size_bytes: int, due_seconds: float) -> None:
    assert due_ns(row, size_bytes, DEFAULTS, NOW) == NOW + int(due_seconds * SECOND)


def test_a_change_from_the_future_is_due_at_once() -> None:
    assert due_ns(work("clock set back", changed=3600), 0, DEFAULTS, NOW) == 0


def test_sessions_take_turns_oldest_first() -> None:
    rows = [work(f"a{n}", session="a", first=n) for n in range(4)] + [work("b0", session="b", first=10)]
    assert [row.key for row in fair_order(rows, {})] == ["a0", "b0", "a1", "a2", "a3"]
    assert [row.key for row in fair_order(rows, {"a": 2})][:2] == ["b0", "a0"]


def test_two_that_wait_for_each_other_are_untied_by_the_oldest() -> None:
    exchange = {"a": Blockers(content=frozenset("b")), "b": Blockers(content=frozenset("a"))}
    assert find_knot(exchange) == "a"
    assert find_knot({"a": Blockers(content=frozenset("b"))}) is None
    chain = {"a": Blockers(content=frozenset("b")), "b": Blockers(content=frozenset("c"))}
    assert find_knot(chain) is None


def test_what_waits_for_order_is_never_the_one_that_goes_first() -> None:
    tied = {"x": Blockers(related=frozenset({"x/y"})), "x/y": Blockers(content=frozenset("x"))}
    assert find_knot(tied) == "x/y"


async def test_a_delete_waits_for_the_contents_new_name(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.write(b"a", b"x")
    await world.settle()
    world.rename(b"a", b"b")
    found = blockers(world.journal, world.key(b"a"), set())
    assert found.all == {world.key(b"b")}
    assert not blockers(world.journal, world.key(b"b"), set()).all


def turns(world: World, settings: ReplicationSettings, in_flight: set[str]) -> Turns:
    sessions: Counter[str] = Counter()
    return Turns(
        world.journal,
        settings,
        world.clock,
        in_flight=in_flight,
        sessions=sessions,
        is_hurried=lambda _: False,
    )


def test_a_full_window_of_one_session_leaves_room_for_another(tmp_path: Path) -> None:
    world = World(tmp_path)
    now_ns = world.clock.wall_ns()
    with world.journal.transaction():
        world.journal.finish_work(world.key(b"", is_directory=True), 0)
        for number in range(2000):
            world.journal.mark(f"sessions/s1/f{number}", SESSION, now_ns - 10**12 + number)
        world.journal.mark("sessions/s2/late", "s2", now_ns - 10**11)
    started: set[str] = set()
    turns(world, DEFAULTS, started).choose(lambda row, _: started.add(row.key))
    assert "sessions/s2/late" in started
    assert len(started) == DEFAULTS.concurrent_uploads


def test_blockers_far_behind_in_the_journal_go_first(tmp_path: Path) -> None:
    """A thousand deletes fill the window; the puts that they wait for are behind it."""
    world = World(tmp_path)
    now_ns = world.clock.wall_ns() - 10**12
    journal = world.journal
    with journal.transaction():
        journal.finish_work(world.key(b"", is_directory=True), 0)
        root = world.number(b"")
        for number in range(1000):
            journal.put_node(10**6 + number, mode=0o100644, present=True)
            journal.link(root, b"new%d" % number, 10**6 + number)
            journal.put_object(known(f"sessions/s1/a{number}", number=10**6 + number))
            journal.mark(f"sessions/s1/a{number}", SESSION, now_ns)
            journal.mark(f"sessions/s1/new{number}", SESSION, now_ns + 1)
    started: set[str] = set()
    turns(world, DEFAULTS, started).choose(lambda row, _: started.add(row.key))
    assert len(started) == DEFAULTS.concurrent_uploads
    assert all(key.startswith("sessions/s1/new") for key in started)


def test_an_empty_journal_needs_no_timer(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.journal.finish_work(world.key(b"", is_directory=True), 0)
    assert turns(world, DEFAULTS, set()).choose(lambda _row, _safe: None) is None


def test_the_timer_is_the_next_due_time(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.journal.finish_work(world.key(b"", is_directory=True), 0)
    world.journal.mark("sessions/s1/a", SESSION, world.clock.wall_ns())
    pause = turns(world, DEFAULTS, set()).choose(lambda _row, _safe: None)
    assert pause is not None
    assert 0.8 < pause <= 1.0


# --- what is sent

BIG = DEFAULTS.append_minimum_bytes


def test_known_content_is_copied_above_the_minimum_and_sent_below() -> None:
    other = known("b", "s", 2 << 20)
    content = Content(1, 2 << 20, "s", is_here=True)
    assert ways(content, None, [other], DEFAULTS, Capabilities()) == [Copy(other), Body()]
    small = Content(1, 10, "s", is_here=True)
    assert ways(small, None, [known("b", "s", 10)], DEFAULTS, Capabilities()) == [Body()]


def test_bytes_that_are_not_here_are_copied_whatever_their_length() -> None:
    other = known("b", "s", 10)
    assert ways(Content(1, 10, "s", is_here=False), None, [other], DEFAULTS, Capabilities()) == [Copy(other)]


def test_bytes_of_another_tool_are_known_by_their_inode() -> None:
    theirs, others = known("b", "", 10, number=7), known("c", "", 10, number=8)
    content = Content(7, 10, "", is_here=False)
    assert ways(content, None, [theirs, others], DEFAULTS, Capabilities()) == [Copy(theirs)]


def test_only_a_proven_prefix_is_appended_to() -> None:
    base = known("a", "s", BIG)
    grown = Content(1, BIG + 1, "t", is_here=True, prefix_sha256="s")
    assert ways(grown, base, [], DEFAULTS, Capabilities()) == [Append(base), Body()]
    changed = Content(1, BIG + 1, "t", is_here=True, prefix_sha256="x")
    assert ways(changed, base, [], DEFAULTS, Capabilities()) == [Body()]
    assert ways(grown, base, [], DEFAULTS, Capabilities(append_by_copy=False)) == [Body()]
    short = known("a", "s", BIG - 1)
    assert ways(grown, short, [], DEFAULTS, Capabilities()) == [Body()]


def test_a_store_without_conditions_on_copies_is_sent_the_body() -> None:
    other = known("b", "s", 2 << 20)
    content = Content(1, 2 << 20, "s", is_here=True)
    assert ways(content, None, [other], DEFAULTS, Capabilities(copy_source_match=False)) == [Body()]
