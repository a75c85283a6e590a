"""The state of the protocol model: bucket, two hosts, requests under way; how a request is sent and what is watched.

A host waits for the answer of its request, so request and answer are one step, but for the faults: the answer is lost
(the request was applied), the request is late (it may be applied at any later time, also when its host is dead, or
never), or it is applied a second time later. In each a host knows no more than that the outcome is unknown. A paused
host is one that takes no step. There are no clocks: a takeover is possible at any time, because a machine that is
paused defeats every clock; ``lease_model`` is about clocks. What the lease does give: a host whose record was replaced
sends nothing new (a test of the lease just before a pause is a late request), it notices its loss. ``stale`` in the
budget allows such requests all the same: that is what ``claim --force`` risks.

One assumption: no request is late by more than a day (``a day passes``), the time gc waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from .protocol_bucket import Bucket, Entries, Live, Manifest, Record, Request, apply, second_key, unrestorable

NAMES = "AB"
IDLE, CLAIMED, OWNER = "idle", "claimed", "owner"
NOTED, LISTED, SENT = "noted", "listed", "sent"


class Rule(StrEnum):
    """The rules of the protocol. Leaving out any one of them must show (test_protocol)."""

    FENCE = "an owner rewrites manifest.json with its epoch before it does anything else (A8)"
    FENCE_RISES = "a fence never lowers the epoch of manifest.json"
    READ_AFTER_FENCE = "the base is read after the fence (A8)"
    KEEP_BASE = "a commit that lost its base is not repeated on a newer one"
    COPY_NEWEST = "a live object that the newest generation names is copied before it is replaced"
    COPY_PENDING = "so is one that the commit in progress names (A1)"
    COPY_SENT = (
        "so is one that a commit names that was sent and not seen to land, until manifest.json moved on"
    )
    COPY_BEFORE_DELETE = "a delete copies first, as a put does"
    ADOPTION_COPY = (
        "before a commit, objects of a lower epoch that it is the first to name are copied to .objects/"
    )
    EXPOSED_COPY = "so are objects that an earlier request of the host itself may still replace"
    EQUAL_TOKENS_COPY = (
        "where equal bytes have equal tokens, commits of the day after a takeover copy what they name"
    )
    KEEP_TAIL = "what a predecessor left uncommitted is kept aside before it is replaced (A7)"
    WARM_COMPARE = "a warm working copy of an older epoch is no base for uploads (A21)"
    REBUILT_IS_OLDER = "rows of a rebuilt journal do not win over a newer epoch (A20)"
    OUTCOME_BY_WRITE_ID = "only the write id says that a put landed (A11)"
    REMEMBER_LOST = "the write id of a put settled as not landed is remembered (A12)"
    REMEMBER_LANDED = "the write id of a put that landed is remembered as long (A12)"
    KEEP_STALE_ASIDE = "a stale owner's late write is kept aside before it is put right (A8)"
    CONDITIONAL_DELETE = "a delete is conditional"
    NUMBER_ONCE = "<n>.json is never written twice"
    CLAIM_BY_WRITE_ID = "who won the owner record is told by its write id, not by its epoch (A10)"
    RELEASE_LAST = "released is written after the final commit"
    RELEASE_ENDS = "a host that sent its release goes on only after a new claim"
    GC_RETIRED_GRACE = "gc's day counts from the retirement of a manifest, not from the object's age (A17)"
    GC_PENDING = "gc keeps what a commit in progress or sent names (A17)"
    GC_ONLY_RETIRED = (
        "gc deletes only what a manifest named that was retired a day ago, never a mere unknown (A17)"
    )
    GC_SECOND_KEY = (
        "a value whose deletion may be under way is copied to a second key, the first is not relied on (A17)"
    )


class Attempt(NamedTuple):
    """A sent change of a live object: ``value`` None is a delete."""

    write_id: str
    value: str | None
    condition: str


class Row(NamedTuple):
    """A path: the working copy, and what the journal knows of the bucket.

    ``base`` is the token and ``base_id`` the write id of the live object that the journal knows, ``stored`` its
    value. ``attempt`` was sent and its outcome is unknown; ``past`` were settled. ``seen`` belongs to the watch.
    """

    work: str | None = None
    base: str = ""
    base_id: str = ""
    stored: str | None = None
    attempt: Attempt | None = None
    past: frozenset[Attempt] = frozenset()
    seen: frozenset[str] = frozenset()


class Commit(NamedTuple):
    """A commit in progress; ``done`` says of each path that its noted value is in the bucket."""

    entries: Entries
    done: tuple[bool, ...]
    stage: str = NOTED
    number: int = 0
    write_id: str = ""


class Host(NamedTuple):
    """A host. Everything but ``phase`` survives a crash.

    ``record_id``, ``claiming``, ``fencing`` and ``releasing`` are write ids: of the owner record it last wrote, and of
    requests whose outcome is unknown. ``manifest`` is the chain's end as its journal knows it, ``sent`` the commits
    that were sent from there and not seen to land. ``noted_epoch`` stands on the working copy's root: the last fence
    behind which the session was opened. ``cold``: it was opened within a day
    without a journal that knows what the last owner sent. ``fence_epoch`` is the newest fence that was sent, ``fence_over`` the last
    epoch of the chain before the host's own fences.
    """

    phase: str = IDLE
    epoch: int = 0
    record_id: str = ""
    claiming: str = ""
    fencing: str = ""
    releasing: str = ""
    rows: tuple[Row, ...] = (Row(),)
    manifest: Manifest | None = None
    pending: Commit | None = None
    sent: frozenset[tuple[str, Entries]] = frozenset()
    early: Manifest | None = None
    rebuilt: bool = False
    cold: bool = False
    noted_epoch: int = 0
    fence_epoch: int = 0
    fence_over: int = 0


class Budget(NamedTuple):
    """How often a thing may still happen."""

    writes: int = 0
    reverts: int = 0
    modes: int = 0
    deletes: int = 0
    commits: int = 0
    faults: int = 0
    crashes: int = 0
    wipes: int = 0
    lost_journals: int = 0
    takeovers: int = 0
    stale: int = 0
    releases: int = 0
    retirements: int = 0
    days: int = 0
    offline: int = 0


@dataclass(frozen=True)
class Scenario:
    """What is searched: how often things happen, how a session recovers, and the rule that is left out.

    Attributes:
        budget: How often each thing happens at most.
        paths: Number of files.
        recovery: ``live`` or ``committed``.
        content_tokens: Tokens of live objects are equal for equal bytes.
        without: The rule that the hosts do not follow.
    """

    budget: Budget
    paths: int = 1
    recovery: str = "live"
    content_tokens: bool = False
    without: Rule | None = None

    def keeps(self, rule: Rule) -> bool:
        """Say whether hosts follow a rule."""
        return rule is not self.without


class World(NamedTuple):
    """A state. ``fenced`` is the highest epoch that was told to be fenced, ``broken`` the promise that was broken."""

    bucket: Bucket
    hosts: tuple[Host, Host]
    flight: frozenset[Request]
    left: Budget
    fenced: int = 0
    broken: str = ""


Step = tuple[str, World]


def change(world: World, number: int, host: Host) -> World:
    """Put a host into the world."""
    return world._replace(hosts=(host, world.hosts[1]) if number == 0 else (world.hosts[0], host))


def change_row(world: World, number: int, path: int, row: Row) -> World:
    """Put a row of a host into the world."""
    host = world.hosts[number]
    return change(world, number, host._replace(rows=(*host.rows[:path], row, *host.rows[path + 1 :])))


def spend(world: World, what: str) -> World | None:
    """Take one from a budget; None when nothing is left."""
    left: int = getattr(world.left, what)
    return world._replace(left=world.left._replace(**{what: left - 1})) if left else None


def next_write_id(world: World, number: int) -> str:
    """Give a write id that stands nowhere in the world (a used one that all forgot is as good as a new one)."""
    used = set(_write_ids(world))
    prefix = NAMES[number].lower()
    return next(name for name in (f"{prefix}{count}" for count in range(1, 99)) if name not in used)


def _write_ids(world: World) -> Iterator[str]:
    bucket = world.bucket
    bodies = (bucket.record, bucket.manifest, *bucket.live, *(request.body for request in world.flight))
    for body in bodies:
        if body is not None:
            yield body.write_id
    for request in world.flight:
        yield request.condition
    for host in world.hosts:
        yield from (host.record_id, host.claiming, host.fencing, host.releasing)
        if host.manifest is not None:
            yield host.manifest.write_id
        if host.pending is not None:
            yield host.pending.write_id
        for write_id, _ in host.sent:
            yield write_id
        for row in host.rows:
            yield row.base_id
            for attempt in (*row.past, *((row.attempt,) if row.attempt else ())):
                yield attempt.write_id
                yield attempt.condition


def is_stale(world: World, number: int) -> bool:
    """Say whether a host believes that it owns the session and the record says otherwise."""
    host, record = world.hosts[number], world.bucket.record
    return host.phase != IDLE and (record is None or record.write_id != host.record_id)


def send(
    label: str,
    world: World,
    request: Request,
    answered: Callable[[World, bool], World],
    unknown: Callable[[World], World],
) -> Iterator[Step]:
    """Send a request: answered; or, as long as faults are left, its answer lost, it late, or it applied twice."""
    label = f"{NAMES[request.sender]} {label} [{request}]"
    if is_stale(world, request.sender):
        allowed = spend(world, "stale")
        if allowed is None:
            return
        world = allowed
    after, held = land(world, request)
    yield label if held else f"{label}: refused", answered(after, held)
    faulty = spend(world, "faults")
    if faulty is None:
        return
    late = faulty._replace(flight=faulty.flight | {request})
    yield f"{label}: late, outcome unknown", unknown(late)
    if held:
        lost, _ = land(faulty, request)
        yield f"{label}: applied, answer lost", unknown(lost)
        twice, _ = land(late, request)
        yield f"{label}: applied, and will be repeated", answered(twice, True)  # noqa: FBT003


def late_arrivals(world: World) -> Iterator[Step]:
    """Apply the requests that are under way."""
    for request in world.flight:
        after, held = land(world._replace(flight=world.flight - {request}), request)
        if held:
            yield f"late: {NAMES[request.sender]}'s [{request}] is applied", after


def land(world: World, request: Request) -> tuple[World, bool]:
    """Apply a request and watch the promises that a single request can break."""
    before = world.bucket
    bucket, held = apply(before, request)
    if not held:
        return world, False
    world = world._replace(bucket=bucket)
    if request.kind == "manifest":
        return _watch_chain(world, before), True
    if request.kind in {"put", "delete"}:
        return _watch_replaced(world, request, before.live[request.path]), True
    if isinstance(request.body, Record) and request.body.released:
        return _watch_release(world, request), True
    return world, True


def _watch_chain(world: World, before: Bucket) -> World:
    chain, manifest = world.bucket.chain, world.bucket.manifest
    assert manifest is not None
    if manifest.epoch < world.fenced:
        return broken(world, f"manifest.json of epoch {manifest.epoch} after epoch {world.fenced} was fenced")
    if len(chain) == len(before.chain):
        return world
    newest = chain[-1]
    if before.manifest and newest.number <= before.manifest.generation:
        return broken(world, f"generation {newest.number} follows generation {before.manifest.generation}")
    return world


def _watch_replaced(world: World, request: Request, old: Live | None) -> World:
    """What was in the bucket is replaced only by one whose user had it before him, or it is kept."""
    if old is None or old.value in request.seen:
        return world
    kept = {*world.bucket.objects, *world.bucket.conflicts}
    rows = (host.rows[request.path] for host in world.hosts)
    if (
        old.value in kept
        or second_key(old.value) in kept
        or any(row.work == old.value and row.stored != old.value for row in rows)
    ):
        return world
    return broken(world, f"{old.value} was replaced by a host that never showed it, and is nowhere")


def _watch_release(world: World, request: Request) -> World:
    host, manifest = world.hosts[request.sender], world.bucket.manifest
    works = tuple(row.work for row in host.rows)
    if host.phase == OWNER and (manifest is None or manifest.entries != works):
        return broken(world, "the record says released, its holder has uncommitted changes and goes on")
    return world


def broken(world: World, what: str) -> World:
    """Note a broken promise; the first one stays."""
    return world if world.broken else world._replace(broken=what)


def wrong(world: World) -> str:
    """Say which promise a state breaks, "" when none."""
    if world.broken:
        return world.broken
    first, second = world.hosts
    if IDLE not in {first.phase, second.phase} and first.epoch == second.epoch:
        return f"both hosts own epoch {first.epoch}"
    return unrestorable(world.bucket)
