"""Owning a session in the protocol model: claim, fence, open, release, crash.

Order: claim the record; fence the chain; only then read it, compare it with the journal (A21) and take the tokens of
one listing as the bases of later puts. Nothing is put or committed before.
"""

from __future__ import annotations

from collections.abc import Iterator

from .protocol_bucket import Live, Manifest, Record, Request
from .protocol_world import (
    CLAIMED,
    IDLE,
    NAMES,
    OWNER,
    Host,
    Row,
    Rule,
    Scenario,
    Step,
    World,
    change,
    next_write_id,
    send,
    spend,
)


def ownership_steps(world: World, number: int, rules: Scenario) -> Iterator[Step]:
    """Give what a host can do next about ownership."""
    host = world.hosts[number]
    if host.claiming:
        yield _look_at_claim(world, number, rules)
    elif host.releasing:
        yield _look_at_release(world, number, rules)
    elif host.phase == IDLE:
        yield from _claim(world, number, rules)
    elif host.phase == CLAIMED:
        yield from _fence(world, number, rules)
    else:
        yield from _release(world, number, rules)
    yield from _misfortunes(world, number)


def _claim(world: World, number: int, rules: Scenario) -> Iterator[Step]:
    record = world.bucket.record
    if record is None and number and not world.flight and not world.hosts[0].claiming:
        return  # the hosts are alike: the first to claim is called A
    known = world
    if record and not record.released and record.write_id != world.hosts[number].record_id:
        taken = spend(world, "takeovers")
        if taken is None:
            return
        known = taken
    write_id = next_write_id(known, number)
    epoch = record.epoch + 1 if record else 1
    body = Record(NAMES[number], epoch, released=False, write_id=write_id)
    request = Request("record", number, record.write_id if record else "", body)
    yield from send(
        "claims",
        known,
        request,
        lambda after, _held: _claimed(after, number, epoch, write_id, rules),
        lambda after: change(
            after, number, after.hosts[number]._replace(claiming=f"{epoch}" if _by_epoch(rules) else write_id)
        ),
    )


def _by_epoch(rules: Scenario) -> bool:
    return not rules.keeps(Rule.CLAIM_BY_WRITE_ID)


def _claimed(world: World, number: int, epoch: int, write_id: str, rules: Scenario) -> World:
    host = world.hosts[number]._replace(phase=CLAIMED, epoch=epoch, record_id=write_id, claiming="")
    if not rules.keeps(Rule.READ_AFTER_FENCE):
        host = host._replace(early=world.bucket.manifest)
    return change(world, number, host)


def _look_at_claim(world: World, number: int, rules: Scenario) -> Step:
    host, record = world.hosts[number], world.bucket.record
    if record and host.claiming == (f"{record.epoch}" if _by_epoch(rules) else record.write_id):
        return f"{host_name(number)} sees its claim", _claimed(
            world, number, record.epoch, record.write_id, rules
        )
    return f"{host_name(number)} sees no claim of its own", change(world, number, host._replace(claiming=""))


def host_name(number: int) -> str:
    """Give the host's name for traces."""
    return NAMES[number]


def lose(world: World, number: int) -> World:
    """The host learns that another owns the session: it stops, keeps everything, and claims anew if it is to."""
    return change(world, number, world.hosts[number]._replace(phase=IDLE, fencing=""))


def _fence(world: World, number: int, rules: Scenario) -> Iterator[Step]:
    host, current = world.hosts[number], world.bucket.manifest
    if host.fencing:
        if current and current.write_id == host.fencing:
            yield f"{host_name(number)} sees its fence, opens", open_session(world, number, current, rules)
        else:
            forgotten = change(world, number, host._replace(fencing=""))
            yield f"{host_name(number)} sees no fence of its own", forgotten
        return
    if current and current.epoch > host.epoch and rules.keeps(Rule.FENCE_RISES):
        yield f"{host_name(number)} finds a higher fence", lose(world, number)
        return
    known, write_id = _note_fence(world, number), next_write_id(world, number)
    if not rules.keeps(Rule.FENCE):
        base = current or Manifest(0, 0, (None,) * rules.paths, "")
        yield f"{host_name(number)} opens without a fence", open_session(known, number, base, rules)
        return
    entries = current.entries if current else (None,) * rules.paths
    body = Manifest(host.epoch, current.generation if current else 0, entries, write_id)
    yield from send(
        "fences",
        known,
        Request("manifest", number, current.write_id if current else "", body),
        lambda after, _held: open_session(after, number, body, rules),
        lambda after: change(after, number, after.hosts[number]._replace(fencing=write_id)),
    )


def _note_fence(world: World, number: int) -> World:
    """Write into the journal, before a fence is sent, which epoch it is to follow."""
    host, current = world.hosts[number], world.bucket.manifest
    over = current.epoch if current else 0
    if over and over == host.fence_epoch:
        over = host.fence_over
    return change(world, number, host._replace(fence_epoch=host.epoch, fence_over=over))


def open_session(world: World, number: int, fence: Manifest, rules: Scenario) -> World:
    """Read the chain and the listing behind the fence, compare with the journal, and become the owner."""
    host = world.hosts[number]
    base = fence
    if not rules.keeps(Rule.READ_AFTER_FENCE):
        early = host.early or Manifest(0, 0, (None,) * rules.paths, "")
        base = early._replace(epoch=host.epoch, write_id=fence.write_id)
    opened = host._replace(phase=OWNER, manifest=base, pending=None, sent=frozenset(), fencing="", early=None)
    world = world._replace(fenced=max(world.fenced, host.epoch))
    if not _is_warm(host, rules):
        opened = opened._replace(cold=host.fence_over > 0)
        for path in range(rules.paths):
            world, row = _compare(world, number, path, base, rules)
            opened = opened._replace(rows=(*opened.rows[:path], row, *opened.rows[path + 1 :]))
    return change(world, number, opened._replace(rebuilt=False, noted_epoch=host.epoch))


def _is_warm(host: Host, rules: Scenario) -> bool:
    """Say whether nobody else fenced the chain since this host opened the session."""
    if host.rebuilt or host.manifest is None:
        return False
    return host.fence_over == host.noted_epoch or not rules.keeps(Rule.WARM_COMPARE)


def _compare(world: World, number: int, path: int, base: Manifest, rules: Scenario) -> tuple[World, Row]:
    """Take over one path; what is here and owed, or there and uncommitted, is kept aside."""
    host, live = world.hosts[number], world.bucket.live[path]
    row, entry = host.rows[path], base.entries[path]
    there = live.value if live else None
    if host.rebuilt and row.work not in {None, there} and _rebuilt_wins(world, host, rules):
        return world, _known(row, live)
    if row.work not in {None, entry, there} and (row.work != row.stored or host.rebuilt):
        world = keep_aside(world, row.work)
    adopted = there if rules.recovery == "live" and there is not None else entry
    if there is not None and there != adopted and rules.keeps(Rule.KEEP_TAIL):
        world = keep_aside(world, there)
    row = _known(Row(work=adopted, seen=row.seen), live)
    return world, row._replace(seen=row.seen | ({adopted} if adopted else frozenset()))


def _rebuilt_wins(world: World, host: Host, rules: Scenario) -> bool:
    """A file of a rebuilt journal is owed only when no newer epoch than the working copy's was in the bucket."""
    newer = host.fence_over > host.noted_epoch
    return not newer or not rules.keeps(Rule.REBUILT_IS_OLDER)


def _known(row: Row, live: Live | None) -> Row:
    if live is None:
        return row._replace(base="", base_id="", stored=None)
    return row._replace(base=live.token, base_id=live.write_id, stored=live.value)


def keep_aside(world: World, value: str | None) -> World:
    """Copy a value to ``.conflicts/``. The copy names its source's token, so being late or repeated is harmless."""
    bucket = world.bucket
    return world._replace(bucket=bucket._replace(conflicts=bucket.conflicts | {value})) if value else world


def _release(world: World, number: int, rules: Scenario) -> Iterator[Step]:
    host = world.hosts[number]
    works = tuple(row.work for row in host.rows)
    clean = all(row.work == row.stored and row.attempt is None for row in host.rows)
    final = clean and host.pending is None and host.manifest is not None and host.manifest.entries == works
    if not final and rules.keeps(Rule.RELEASE_LAST):
        return
    spent = spend(world, "releases")
    if spent is None:
        return
    write_id = next_write_id(spent, number)
    body = Record(NAMES[number], host.epoch, released=True, write_id=write_id)
    yield from send(
        "releases",
        spent,
        Request("record", number, host.record_id, body),
        lambda after, _held: lose(after, number),
        lambda after: change(after, number, after.hosts[number]._replace(releasing=write_id)),
    )


def _look_at_release(world: World, number: int, rules: Scenario) -> Step:
    host, record = world.hosts[number], world.bucket.record
    settled = change(world, number, host._replace(releasing=""))
    if record and record.write_id == host.record_id and not rules.keeps(Rule.RELEASE_ENDS):
        return f"{host_name(number)} sees that it did not release, goes on", settled
    return f"{host_name(number)} looks at its release, stops", lose(settled, number)


def _misfortunes(world: World, number: int) -> Iterator[Step]:
    host = world.hosts[number]
    if host.phase != IDLE and (after := spend(world, "crashes")) is not None:
        yield f"{host_name(number)} crashes", lose(after, number)
    if host.noted_epoch and (after := spend(world, "wipes")) is not None:
        fresh = Host(rows=tuple(Row() for _ in host.rows))
        yield f"{host_name(number)} loses its disk", change(after, number, fresh)
    if host.noted_epoch and (after := spend(world, "lost_journals")) is not None:
        rows = tuple(Row(work=row.work, seen=row.seen) for row in host.rows)
        fresh = Host(rows=rows, rebuilt=True, noted_epoch=host.noted_epoch)
        yield f"{host_name(number)} loses its journal", change(after, number, fresh)
