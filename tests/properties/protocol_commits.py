"""Generations in the protocol model: note, upload, look at the listing, number, publish; and gc.

The commit point is the conditional put of ``manifest.json``. A commit that was sent and not seen to land may land
until that object's token has moved on: up to then its entries are protected like those of a commit in progress.
"""

from __future__ import annotations

from collections.abc import Iterator

from .protocol_bucket import RETAINED, RETIRED, Bucket, Manifest, Request, copy_aside, is_kept, named
from .protocol_ownership import host_name, lose
from .protocol_world import (
    LISTED,
    NOTED,
    OWNER,
    SENT,
    Commit,
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


def commit_steps(world: World, number: int, rules: Scenario) -> Iterator[Step]:
    """Give the next step of an owner's commit."""
    host = world.hosts[number]
    if host.phase != OWNER or host.releasing:
        return
    if host.pending is None:
        yield from _note(world, number)
    elif host.pending.stage == NOTED and all(host.pending.done):
        yield _look_at_listing(world, number, rules)
    elif host.pending.stage == LISTED:
        yield from _publish(world, number, rules)
    else:
        yield from look_at_chain(world, number, rules)


def _note(world: World, number: int) -> Iterator[Step]:
    host = world.hosts[number]
    entries = tuple(row.work for row in host.rows)
    spent = spend(world, "commits")
    if spent is not None and host.manifest is not None and entries != host.manifest.entries:
        pending = Commit(entries, tuple(row.work == row.stored and row.attempt is None for row in host.rows))
        yield f"{host_name(number)} notes {entries}", change(spent, number, host._replace(pending=pending))


def _look_at_listing(world: World, number: int, rules: Scenario) -> Step:
    """Look whether everything noted is there, copy what a request of another epoch, or an old one, may replace."""
    host = world.hosts[number]
    pending = host.pending
    assert pending is not None
    bucket, done = world.bucket, list(pending.done)
    for path, value in enumerate(pending.entries):
        live = bucket.live[path]
        if value is None or is_kept(bucket, value):
            continue
        if live is None or live.value != value or live.write_id != host.rows[path].base_id:
            done[path] = False
        elif _is_exposed(host, path, live.epoch, live.token, rules):
            bucket = copy_aside(bucket, value)
    pending = pending._replace(done=tuple(done), stage=LISTED if all(done) else NOTED)
    pending = pending._replace(number=1 + (host.manifest.generation if host.manifest else 0))
    world = change(world._replace(bucket=bucket), number, host._replace(pending=pending))
    return f"{host_name(number)} looks at the listing", world


def _is_exposed(host: Host, path: int, epoch: int, token: str, rules: Scenario) -> bool:
    row: Row = host.rows[path]
    named_before = host.manifest is not None and host.manifest.entries[path] == row.stored
    if named_before:
        return False  # by induction: whoever could replace it knew that it was named, and copied it first
    if epoch < host.epoch and rules.keeps(Rule.ADOPTION_COPY):
        return True
    if rules.content_tokens and host.cold and rules.keeps(Rule.EQUAL_TOKENS_COPY):
        return True
    return rules.keeps(Rule.EXPOSED_COPY) and any(attempt.condition == token for attempt in row.past)


def _publish(world: World, number: int, rules: Scenario) -> Iterator[Step]:
    host = world.hosts[number]
    pending, base = host.pending, host.manifest
    assert pending is not None
    assert base is not None
    generation, bucket = pending.number, world.bucket
    taken = {taken for taken, _ in bucket.numbers}
    if rules.keeps(Rule.NUMBER_ONCE):
        while generation in taken:
            generation += 1
    else:
        bucket = bucket._replace(numbers=frozenset(n for n in bucket.numbers if n[0] != generation))
    bucket = bucket._replace(numbers=bucket.numbers | {(generation, pending.entries)})
    write_id = next_write_id(world, number)
    body = Manifest(host.epoch, generation, pending.entries, write_id)
    sent = pending._replace(stage=SENT, write_id=write_id, number=generation)
    yield from send(
        "commits",
        world._replace(bucket=bucket),
        Request("manifest", number, base.write_id, body),
        lambda after, held: (
            _committed(after, number, body)
            if held
            else change(after, number, after.hosts[number]._replace(pending=sent))
        ),
        lambda after: change(after, number, after.hosts[number]._replace(pending=sent)),
    )


def _committed(world: World, number: int, manifest: Manifest) -> World:
    host = world.hosts[number]._replace(manifest=manifest, pending=None, sent=frozenset())
    return change(world, number, host)


def look_at_chain(world: World, number: int, rules: Scenario) -> Iterator[Step]:
    """Settle a commit whose outcome is unknown, or that was refused."""
    host, current = world.hosts[number], world.bucket.manifest
    pending, name = host.pending, host_name(number)
    if pending is None or pending.stage != SENT or host.manifest is None or current is None:
        return
    if current.write_id == pending.write_id:
        yield f"{name} sees its commit", _committed(world, number, current)
        return
    again = pending._replace(stage=NOTED, write_id="")
    if current.epoch > host.epoch and rules.keeps(Rule.KEEP_BASE):
        yield f"{name} sees a higher epoch", lose(world, number)
    elif current.write_id == host.manifest.write_id:
        sent = host.sent | {(pending.write_id, pending.entries)}
        host = host._replace(sent=sent)
        yield f"{name} sees no commit, repeats it", change(world, number, host._replace(pending=again))
        yield f"{name} sees no commit, gives up", change(world, number, host._replace(pending=None))
    else:  # an earlier commit of ours landed; or, without the rule, anybody's
        host = host._replace(manifest=current._replace(epoch=host.epoch), sent=frozenset(), pending=again)
        yield f"{name} sees another commit", change(world, number, host)


def collection_steps(world: World, number: int, rules: Scenario) -> Iterator[Step]:
    """Give the steps of gc: retire the oldest generation, later delete what nothing names."""
    host, bucket = world.hosts[number], world.bucket
    if host.phase != OWNER or host.releasing:
        return
    spent = spend(world, "retirements")
    retained = [generation for generation in bucket.chain if generation.age == RETAINED]
    if spent is not None and len(retained) > 1:
        oldest = retained[0]
        chain = tuple(g._replace(age=RETIRED) if g is oldest else g for g in bucket.chain)
        yield (
            f"{host_name(number)} retires generation {oldest.number}",
            spent._replace(bucket=bucket._replace(chain=chain)),
        )
    for value in _candidates(bucket, host, rules):
        request = Request("collect", number, value=value)
        yield from send(
            "deletes from .objects/", world, request, lambda after, _held: after, lambda after: after
        )


def _candidates(bucket: Bucket, host: Host, rules: Scenario) -> frozenset[str]:
    kept = named(bucket, (RETAINED, RETIRED) if rules.keeps(Rule.GC_RETIRED_GRACE) else (RETAINED,))
    if rules.keeps(Rule.GC_PENDING):
        pending = host.pending.entries if host.pending else ()
        kept |= {value for entries in (pending, *(e for _, e in host.sent)) for value in entries if value}
    candidates = bucket.objects - kept
    by_age = not rules.keeps(Rule.GC_ONLY_RETIRED) or not rules.keeps(Rule.GC_RETIRED_GRACE)
    return candidates if by_age else candidates & bucket.outlived


def a_day_passes(world: World) -> Iterator[Step]:
    """No request is late by a day; what was retired before it is gone.

    A write id is forgotten after a last look at its object: hosts that have one to forget have looked.
    """
    spent = spend(world, "days")
    if spent is None or any(_unseen(world.bucket, host) for host in world.hosts):
        return
    bucket = spent.bucket
    old = named(bucket, (RETIRED,)) - named(bucket, (RETAINED,))
    chain = tuple(generation for generation in bucket.chain if generation.age == RETAINED)
    bucket = bucket._replace(chain=chain, outlived=bucket.outlived | old)
    first, second = (_forget(host) for host in spent.hosts)
    yield "a day passes", spent._replace(bucket=bucket, flight=frozenset(), hosts=(first, second))


def _unseen(bucket: Bucket, host: Host) -> bool:
    if host.sent and bucket.manifest != host.manifest:
        return True
    return any(
        row.attempt is not None or (row.past and live is not None and live.write_id != row.base_id)
        for row, live in zip(host.rows, bucket.live, strict=True)
    )


def _forget(host: Host) -> Host:
    return host._replace(
        rows=tuple(row._replace(past=frozenset()) for row in host.rows), sent=frozenset(), cold=False
    )
