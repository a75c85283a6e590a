"""Live objects in the protocol model: the user's changes, uploads, and what a host makes of what it finds.

Order of an upload: what the newest generation or a commit in progress names is copied to ``.objects/``; the attempt is
noted; one conditional request. An unknown outcome is settled by one look at the object.
"""

from __future__ import annotations

from collections.abc import Iterator

from .protocol_bucket import Live, Request, bytes_of, copy_aside, is_kept
from .protocol_ownership import host_name, keep_aside, lose
from .protocol_world import (
    IDLE,
    NOTED,
    OWNER,
    Attempt,
    Host,
    Row,
    Rule,
    Scenario,
    Step,
    World,
    broken,
    change,
    change_row,
    next_write_id,
    send,
    spend,
)


def user_steps(world: World, number: int, rules: Scenario) -> Iterator[Step]:
    """Give what the user can change: in a session that is owned, or (A27) was last owned here and never released."""
    host, allowed = world.hosts[number], world
    if host.phase != OWNER or host.releasing:
        offline = spend(world, "offline")
        if host.phase != IDLE or not host.record_id or offline is None:
            return
        allowed = offline
    for path in range(rules.paths):
        row = world.hosts[number].rows[path]
        for budget, value in _choices(allowed, number, row, world.hosts[1 - number].rows[path]):
            spent = spend(allowed, budget)
            if spent is not None and value != row.work:
                seen = row.seen | ({value} if value is not None else frozenset())
                after = change_row(spent, number, path, row._replace(work=value, seen=seen))
                yield f"{host_name(number)}'s user makes file {path} {value}", after


def _choices(world: World, number: int, row: Row, other: Row) -> Iterator[tuple[str, str | None]]:
    yield "writes", f"{host_name(number)}{world.left.writes}"
    yield "deletes", None
    if row.work is not None:
        yield "modes", f"{row.work}+"
    for value in row.seen | other.seen:
        yield (
            "reverts",
            value,
        )  # the older bytes again, or what the other's agent wrote: agents repeat themselves


def upload_steps(world: World, number: int, rules: Scenario) -> Iterator[Step]:
    """Give the uploads and looks that an owner can do next."""
    host = world.hosts[number]
    if host.phase != OWNER or host.releasing:
        return
    for path in range(rules.paths):
        row = host.rows[path]
        if row.attempt is not None:
            yield _settle(world, number, path, rules)
            continue
        live = world.bucket.live[path]
        if (live.token, live.write_id) != (row.base, row.base_id) if live else row.base != "":
            yield (
                f"{host_name(number)} finds {live and live.value} at file {path}",
                _differs(world, number, path, live, rules),
            )
        wanted = _wanted(host, path)
        if wanted != row.stored:
            yield from _upload(world, number, path, wanted, rules)
        elif host.pending and not host.pending.done[path]:
            yield f"{host_name(number)} has file {path} as noted", _done(world, number, path)


def _wanted(host: Host, path: int) -> str | None:
    """Give the value to upload: what a commit in progress noted goes first, then what the user has now."""
    pending = host.pending
    if pending is not None and pending.stage == NOTED and not pending.done[path]:
        return pending.entries[path]
    return host.rows[path].work


def _done(world: World, number: int, path: int, *, done: bool = True) -> World:
    host = world.hosts[number]
    if host.pending is None:
        return world
    marks = (*host.pending.done[:path], done, *host.pending.done[path + 1 :])
    return change(world, number, host._replace(pending=host.pending._replace(done=marks)))


def _upload(world: World, number: int, path: int, wanted: str | None, rules: Scenario) -> Iterator[Step]:
    host, live = world.hosts[number], world.bucket.live[path]
    row = host.rows[path]
    if _must_be_kept(host, path, wanted, rules):
        if live is None or live.token != row.base:
            return  # the copy is refused: what is there is looked at first
        second = rules.keeps(Rule.GC_SECOND_KEY)
        world = world._replace(bucket=copy_aside(world.bucket, live.value, use_second_key=second))
    write_id = next_write_id(world, number)
    if wanted is None:
        condition = row.base if rules.keeps(Rule.CONDITIONAL_DELETE) else "*"
        request = Request("delete", number, condition, path=path, seen=row.seen)
        token = ""
    else:
        token = bytes_of(wanted) if rules.content_tokens else write_id
        body = Live(wanted, token, host.epoch, write_id)
        request = Request("put", number, row.base, body, path, seen=row.seen)
    attempt = Attempt(write_id, wanted, row.base)
    yield from send(
        f"uploads file {path}",
        world,
        request,
        lambda after, held: _landed(after, number, path, attempt, token, rules) if held else world,
        lambda after: change_row(
            after, number, path, after.hosts[number].rows[path]._replace(attempt=attempt)
        ),
    )


def _must_be_kept(host: Host, path: int, wanted: str | None, rules: Scenario) -> bool:
    stored = host.rows[path].stored
    if stored is None or (wanted is None and not rules.keeps(Rule.COPY_BEFORE_DELETE)):
        return False
    if rules.keeps(Rule.COPY_NEWEST) and host.manifest is not None and host.manifest.entries[path] == stored:
        return True
    if rules.keeps(Rule.COPY_PENDING) and host.pending is not None and host.pending.entries[path] == stored:
        return True
    return rules.keeps(Rule.COPY_SENT) and any(entries[path] == stored for _, entries in host.sent)


def _landed(world: World, number: int, path: int, attempt: Attempt, token: str, rules: Scenario) -> World:
    """Acknowledge an upload."""
    row, live = world.hosts[number].rows[path], world.bucket.live[path]
    if (live.value if live else None) != attempt.value:
        world = broken(world, f"{attempt.value} is acknowledged and not in the bucket")
    past = row.past | {attempt} if rules.keeps(Rule.REMEMBER_LANDED) else row.past
    write_id = attempt.write_id if attempt.value is not None else ""
    row = row._replace(base=token, base_id=write_id, stored=attempt.value, attempt=None, past=past)
    return _reconsider(change_row(world, number, path, row), number, path)


def _reconsider(world: World, number: int, path: int) -> World:
    """Note whether the noted value of a commit in progress is there."""
    host = world.hosts[number]
    if host.pending is None:
        return world
    noted = host.pending.entries[path]
    if host.rows[path].stored == noted:
        return _done(world, number, path)
    kept = noted is None or is_kept(world.bucket, noted)
    return _done(world, number, path, done=host.pending.done[path] and kept)


def _settle(world: World, number: int, path: int, rules: Scenario) -> Step:
    """Look at the object after an unknown outcome."""
    row, live = world.hosts[number].rows[path], world.bucket.live[path]
    attempt = row.attempt
    assert attempt is not None
    if live is not None and attempt.value is not None:
        ours = live.write_id == attempt.write_id
        same_bytes = bytes_of(live.value) == bytes_of(attempt.value)
        if ours or (same_bytes and not rules.keeps(Rule.OUTCOME_BY_WRITE_ID)):
            return (
                f"{host_name(number)} sees that file {path} landed",
                _landed(world, number, path, attempt, live.token, rules),
            )
    if live is None and attempt.value is None:
        return f"{host_name(number)} sees file {path} gone", _landed(world, number, path, attempt, "", rules)
    past = row.past | {attempt} if rules.keeps(Rule.REMEMBER_LOST) else row.past
    settled = change_row(world, number, path, row._replace(attempt=None, past=past))
    return f"{host_name(number)} sees that file {path} did not land", settled


def _differs(world: World, number: int, path: int, live: Live | None, rules: Scenario) -> World:
    """Find another object than the journal's. The owner's bytes win the key, the others are kept."""
    host = world.hosts[number]
    row = host.rows[path]
    if live is None:
        row = row._replace(base="", base_id="", stored=None)
        return _reconsider(change_row(world, number, path, row), number, path)
    if live.epoch > host.epoch:
        return lose(world, number)
    if live.write_id not in {attempt.write_id for attempt in row.past}:
        if live.epoch == host.epoch:
            world = broken(world, f"{live.value}, once ours and out of date, is taken for another's")
        if rules.keeps(Rule.KEEP_STALE_ASIDE):
            world = keep_aside(world, live.value)
    row = row._replace(base=live.token, base_id=live.write_id, stored=live.value)
    return _reconsider(change_row(world, number, path, row), number, path)
