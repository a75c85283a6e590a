"""The protocol of sync.md, searched: with all its rules no promise breaks, and without any one of them one does.

``SESSIONFS_TEST_DEPTH=1`` searches larger spaces too (some minutes and a few GB; scripts/torture).
"""

from __future__ import annotations

import os

import pytest

from .lease_model import END, lease_model
from .protocol_explorer import Model, SearchTooLargeError, explore, reach
from .protocol_model import model_of
from .protocol_world import IDLE, OWNER, Budget, Rule, Scenario, World

DEPTH = int(os.environ.get("SESSIONFS_TEST_DEPTH", "0"))


def scenario(without: Rule | None = None, **settings: object) -> Scenario:
    """Give a scenario; what is no setting of one is its budget."""
    own = {name: settings.pop(name) for name in ("paths", "recovery", "content_tokens") if name in settings}
    return Scenario(Budget(**settings), without=without, **own)  # type: ignore[arg-type]


SPACES = {
    "takeover with a late commit or put (A8)": scenario(writes=2, commits=2, takeovers=1, faults=1),
    "the same, recovering to the commit (A7)": scenario(
        writes=2, commits=2, takeovers=1, faults=1, recovery="committed"
    ),
    "crash and restart (A10)": scenario(writes=2, commits=2, faults=1, crashes=1),
    "crash and takeover": scenario(writes=1, commits=1, takeovers=1, faults=1, crashes=1),
    "deletes (A12, A18)": scenario(writes=1, deletes=1, commits=2, takeovers=1, faults=1),
    "claim --force, two requests of a stale host": scenario(writes=2, commits=1, takeovers=1, stale=2),
    "the same bytes again": scenario(writes=2, reverts=1, commits=1, takeovers=1, faults=1),
    "equal bytes have equal tokens (A11)": scenario(
        writes=2, reverts=1, commits=1, takeovers=1, faults=1, content_tokens=True
    ),
    "changes of the mode (A11)": scenario(
        writes=1, modes=1, commits=1, takeovers=1, faults=1, content_tokens=True
    ),
    "there and back, warm (A21)": scenario(writes=3, commits=2, takeovers=2),
    "writes without an answer of the store (A27)": scenario(writes=2, commits=2, takeovers=2, offline=1),
    "a lost journal (A20)": scenario(writes=2, commits=1, takeovers=2, lost_journals=1),
    "a lost disk": scenario(writes=1, commits=1, takeovers=2, wipes=1, faults=1),
    "release": scenario(writes=2, commits=1, takeovers=1, releases=1, faults=1),
    "gc (A17)": scenario(writes=2, reverts=2, commits=3, retirements=1, days=1),
    "gc with a late request, two days": scenario(
        writes=2, reverts=1, commits=2, retirements=1, days=2, faults=1
    ),
    "gc and takeover": scenario(writes=2, commits=2, takeovers=1, retirements=1, days=1, stale=1),
    "two files": scenario(writes=2, commits=1, takeovers=1, paths=2),
}

DEEPER_SPACES = {
    "crash between owners": scenario(writes=2, commits=2, takeovers=1, faults=1, crashes=1),
    "two late requests of three": scenario(writes=2, commits=1, takeovers=1, faults=2),
    "two late requests, deletes": scenario(writes=1, deletes=1, commits=1, takeovers=1, faults=2),
    "deletes and commits": scenario(writes=2, deletes=1, commits=2, takeovers=1, faults=1),
    "two late requests, modes": scenario(
        writes=1, modes=1, commits=1, takeovers=1, faults=2, content_tokens=True
    ),
    "a late deletion by gc": scenario(
        writes=1, reverts=1, deletes=2, commits=3, retirements=1, days=1, faults=1
    ),
    "a late deletion by gc, two values": scenario(
        writes=2, reverts=2, commits=3, retirements=1, days=1, faults=1
    ),
    "gc by a stale owner": scenario(
        writes=2, commits=2, takeovers=1, retirements=1, days=1, faults=1, stale=1
    ),
    "a lost disk, two writes": scenario(writes=2, commits=1, takeovers=2, wipes=1, faults=1),
    "two releases": scenario(writes=2, commits=2, takeovers=1, releases=2, faults=1),
    "equal tokens, committed": scenario(
        writes=2,
        reverts=1,
        commits=1,
        takeovers=1,
        faults=1,
        content_tokens=True,
        recovery="committed",
    ),
}

WITHOUT = {
    Rule.FENCE: scenario(Rule.FENCE, writes=1, commits=1, takeovers=1, faults=1),
    Rule.FENCE_RISES: scenario(Rule.FENCE_RISES, takeovers=1, stale=1),
    Rule.READ_AFTER_FENCE: scenario(Rule.READ_AFTER_FENCE, writes=2, commits=1, takeovers=1, faults=1),
    Rule.KEEP_BASE: scenario(Rule.KEEP_BASE, writes=1, commits=1, takeovers=1, faults=1, stale=1),
    Rule.COPY_NEWEST: scenario(Rule.COPY_NEWEST, writes=2, commits=1),
    Rule.COPY_PENDING: scenario(Rule.COPY_PENDING, writes=2, commits=1),
    Rule.COPY_SENT: scenario(Rule.COPY_SENT, writes=2, commits=1, faults=1),
    Rule.COPY_BEFORE_DELETE: scenario(Rule.COPY_BEFORE_DELETE, writes=1, deletes=1, commits=1),
    Rule.ADOPTION_COPY: scenario(Rule.ADOPTION_COPY, writes=2, commits=1, takeovers=1, faults=1),
    Rule.EXPOSED_COPY: scenario(Rule.EXPOSED_COPY, writes=2, reverts=1, commits=1, faults=1),
    Rule.EQUAL_TOKENS_COPY: scenario(
        Rule.EQUAL_TOKENS_COPY, writes=2, reverts=1, commits=1, takeovers=1, faults=1, content_tokens=True
    ),
    Rule.KEEP_TAIL: scenario(Rule.KEEP_TAIL, writes=2, commits=1, takeovers=1, recovery="committed"),
    Rule.WARM_COMPARE: scenario(Rule.WARM_COMPARE, writes=3, commits=2, takeovers=2),
    Rule.REBUILT_IS_OLDER: scenario(Rule.REBUILT_IS_OLDER, writes=2, commits=1, takeovers=2, lost_journals=1),
    Rule.OUTCOME_BY_WRITE_ID: scenario(Rule.OUTCOME_BY_WRITE_ID, writes=1, modes=1, faults=1),
    Rule.REMEMBER_LOST: scenario(Rule.REMEMBER_LOST, writes=1, deletes=1, faults=1),
    Rule.REMEMBER_LANDED: scenario(Rule.REMEMBER_LANDED, writes=1, deletes=1, faults=1),
    Rule.KEEP_STALE_ASIDE: scenario(Rule.KEEP_STALE_ASIDE, writes=2, takeovers=1, faults=1),
    Rule.CONDITIONAL_DELETE: scenario(
        Rule.CONDITIONAL_DELETE, writes=2, deletes=1, commits=1, takeovers=1, faults=1
    ),
    Rule.NUMBER_ONCE: scenario(Rule.NUMBER_ONCE, writes=2, commits=2, takeovers=1, faults=1, stale=1),
    Rule.CLAIM_BY_WRITE_ID: scenario(Rule.CLAIM_BY_WRITE_ID, faults=1),
    Rule.RELEASE_LAST: scenario(Rule.RELEASE_LAST, writes=1, releases=1),
    Rule.RELEASE_ENDS: scenario(Rule.RELEASE_ENDS, writes=1, releases=1, faults=1),
    Rule.GC_RETIRED_GRACE: scenario(Rule.GC_RETIRED_GRACE, writes=2, commits=2, retirements=1),
    Rule.GC_PENDING: scenario(Rule.GC_PENDING, writes=2, reverts=2, commits=3, retirements=1, days=1),
    Rule.GC_ONLY_RETIRED: scenario(Rule.GC_ONLY_RETIRED, writes=2, commits=1, takeovers=1, faults=1, stale=1),
    Rule.GC_SECOND_KEY: scenario(
        Rule.GC_SECOND_KEY, writes=1, reverts=1, deletes=2, commits=3, retirements=1, days=1, faults=1
    ),
}


@pytest.mark.parametrize("name", SPACES | DEEPER_SPACES if DEPTH else SPACES)
def test_no_order_of_events_breaks_a_promise(name: str) -> None:
    search = explore(model_of((SPACES | DEEPER_SPACES)[name]))
    assert search.finding is None, str(search.finding)
    assert search.states > 500


@pytest.mark.parametrize("rule", Rule, ids=lambda rule: rule.name.lower())
def test_without_any_one_rule_a_promise_breaks(rule: Rule) -> None:
    assert explore(model_of(WITHOUT[rule])).finding is not None


def test_a_restarted_owner_goes_on_at_once() -> None:
    """A10: no wait for a ttl, no takeover, and the epoch is higher."""
    space = scenario(writes=1, commits=1, crashes=1)
    reach(model_of(space), lambda world: world.hosts[0].epoch == 2 and len(world.bucket.chain) == 1)


def test_a_second_host_takes_over_and_commits() -> None:
    def goal(world: World) -> bool:
        first, second = world.hosts
        numbers = [(generation.number, generation.epoch) for generation in world.bucket.chain]
        return numbers == [(1, 1), (2, 2)] and first.phase == IDLE and second.phase == OWNER

    reach(model_of(SPACES["takeover with a late commit or put (A8)"]), goal)


def test_a_late_put_of_a_dead_owner_is_kept_and_put_right() -> None:
    """A8: the owner's bytes are live in the end, the late ones under ``.conflicts/``."""

    def goal(world: World) -> bool:
        live, owner = world.bucket.live[0], world.hosts[1]
        kept = any(value.startswith("A") for value in world.bucket.conflicts)
        return kept and live is not None and live.epoch == 2 and live.value == owner.rows[0].work

    reach(model_of(scenario(writes=2, takeovers=1, faults=1)), goal)


def test_an_uncommitted_tail_is_adopted_or_kept_aside() -> None:
    """A7: by the session's recovery."""

    def opened(world: World, *, kept: bool) -> bool:
        owner = world.hosts[1]
        live = world.bucket.live[0]
        same = live is not None and live.value == owner.rows[0].work
        return (
            owner.phase == OWNER
            and live is not None
            and same is not kept
            and bool(world.bucket.conflicts) is kept
        )

    live, committed = (scenario(writes=1, takeovers=1, recovery=mode) for mode in ("live", "committed"))
    reach(model_of(live), lambda world: opened(world, kept=False))
    reach(model_of(committed), lambda world: opened(world, kept=True))


def test_a_removed_session_stays_removed_and_its_last_generation_restorable() -> None:
    """A18: a removal is a commit that names nothing."""

    def goal(world: World) -> bool:
        entries = [generation.entries for generation in world.bucket.chain]
        removed = len(entries) == 2 and entries[0] != (None,) and entries[1] == (None,)
        return removed and world.hosts[1].phase == OWNER and world.hosts[1].rows[0].work is None

    reach(model_of(scenario(writes=1, deletes=1, commits=2, takeovers=1)), goal)


def test_gc_deletes_in_the_end() -> None:
    def goal(world: World) -> bool:
        return bool(world.bucket.outlived) and not world.bucket.objects and world.hosts[0].phase == OWNER

    reach(model_of(scenario(writes=2, commits=2, retirements=1, days=1)), goal)


def test_a_lease_and_a_takeover_never_overlap() -> None:
    """A9: without margin too, which is there for clocks that differ."""
    for margin in (0, 1):
        assert explore(lease_model(margin=margin)).finding is None
    reach(lease_model(), lambda lease: lease.taken and lease.now == END)


def test_a_lease_counted_from_the_answer_overlaps() -> None:
    assert explore(lease_model(counts_from_sending=False)).finding is not None


def test_a_lease_that_a_late_answer_revives_overlaps() -> None:
    assert explore(lease_model(ends_for_good=False)).finding is not None


def test_a_search_finds_the_shortest_way_and_is_never_cut_short_in_silence() -> None:
    def steps(state: int) -> list[tuple[str, int]]:
        return [("one", state + 1), ("double", state * 2)]

    model = Model(1, steps, lambda state: "eight" if state == 8 else "")
    finding = explore(model).finding
    assert finding is not None
    assert str(finding) == "eight\n   1. one\n   2. double\n   3. double"
    with pytest.raises(SearchTooLargeError):
        explore(Model(1, steps, lambda _: ""), maximum_states=100)
    with pytest.raises(AssertionError, match="unreachable in 1 states"):
        reach(Model(1, lambda _: [], lambda _: ""), lambda state: state == 2)
