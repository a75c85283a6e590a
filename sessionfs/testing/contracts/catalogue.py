"""What every catalogue (`PROMISES`) and every shared index (`INDEX_PROMISES`) does; what both do is checked by each one's way to add a record."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import trio

from sessionfs.model.errors import (
    AlreadyExistsError,
    ForbiddenError,
    HandleClosedError,
    InvalidRequestError,
    InvalidSessionIdError,
    NotFoundError,
    PreconditionFailedError,
    TooLargeError,
)
from sessionfs.model.names import SessionId
from sessionfs.sessions.catalogue import record as limits
from sessionfs.sessions.catalogue.port import Catalogue, SessionIndex, SessionLookup
from sessionfs.sessions.catalogue.record import SessionRecord
from sessionfs.testing.contracts.promise import Promise, require, require_error

ACME, OTHER = "acme", "umbrella"
RACERS = 8
BAD_IDS = (
    "",
    ".",
    "..",
    "../x",
    "a/b",
    "/abs",
    "C:/x",
    "a\\b",
    "nul\0",
    "line\n",
    "%41",
    "x" * 129,
    "s.owner",
    "\ud800",
)
BAD_TENANTS = ("", "nul\0", "line\n", "x" * 129, "ü" * 65, "\ud800")
ODD_TEXTS = (
    "'; DROP TABLE sessions; --",
    '") OR 1=1 --',
    "$1 %s %(tenant)s ? :id {0}",
    "naïve ✓ 日本語 \U0001f600",
    "* % _ like",
    '{"json": [1]}',
    " spaces ",
)

Door = TypeVar("Door", bound=SessionLookup)
Add = Callable[[Any, SessionRecord], Awaitable[SessionRecord]]


def example(session: str = "s1", tenant: str = ACME, revision: int = 0, **values: Any) -> SessionRecord:
    """Give a record with something in each of its fields; a draft unless it has a revision."""
    filled = SessionRecord(
        tenant=tenant,
        id=SessionId(session),
        created_at_ms=1_700_000_000_000,
        updated_at_ms=1_700_000_000_000 + revision,
        status="active",
        title=f"Session {session}",
        labels={"owner": "ann", "empty": ""},
        metadata=bytes(range(256)),
        checkpoint="checkpoint-7",
        revision=revision,
    )
    return replace(filled, **values)


def _largest(session: str) -> SessionRecord:
    return example(
        session,
        status="s" * limits.MAX_STATUS_BYTES,
        title="ü" * (limits.MAX_TITLE_BYTES // 2),
        labels={
            f"{number:0{limits.MAX_LABEL_NAME_BYTES}d}": "v" * limits.MAX_LABEL_VALUE_BYTES
            for number in range(limits.MAX_LABELS)
        },
        metadata=b"\0" * limits.MAX_METADATA_BYTES,
        checkpoint="c" * limits.MAX_CHECKPOINT_BYTES,
    )


def _too_large() -> dict[str, SessionRecord]:
    most = _largest("s1")
    return {
        "status": replace(most, status=most.status + "s"),
        "title": replace(most, title=most.title + "ü"),
        "labels": replace(most, labels={**most.labels, "one": "more"}),
        "a label's name": example(labels={"n" * (limits.MAX_LABEL_NAME_BYTES + 1): ""}),
        "a label's value": example(labels={"n": "v" * (limits.MAX_LABEL_VALUE_BYTES + 1)}),
        "metadata": replace(most, metadata=most.metadata + b"\0"),
        "checkpoint": replace(most, checkpoint=most.checkpoint + "c"),
        "tenant": example(tenant="t" * (limits.MAX_TENANT_BYTES + 1)),
    }


def _invalid() -> dict[str, SessionRecord]:
    wrong: Any = {1: 2}
    return {
        "a NUL in the title": example(title="nul\0"),
        "two lines in the status": example(status="a\nb"),
        "half a character in a label": example(labels={"n": "\udc80"}),
        "a label without a name": example(labels={"": "v"}),
        "labels that are no text": example(labels=wrong),
        "a time before the epoch": example(created_at_ms=-1),
        "a time beyond every reader": example(updated_at_ms=limits.MAX_NUMBER + 1),
        **{f"id {bad!r}": example(bad) for bad in BAD_IDS},
        **{f"tenant {bad!r}": example(tenant=bad) for bad in BAD_TENANTS},
    }


# What both do --------------------------------------------------------------------------------------------------------


async def _get_as_stored(add: Add, door: SessionLookup) -> None:
    stored = await add(door, example())
    found = await door.get(ACME, SessionId("s1"))
    require(found == stored, f"{stored} was stored, {found} is read")
    same = replace(stored, created_at_ms=0, updated_at_ms=0, revision=0)
    require(same == replace(example(), created_at_ms=0, updated_at_ms=0), f"{stored} was made of {example()}")


async def _get_missing(add: Add, door: SessionLookup) -> None:
    await add(door, example("s1"))
    for missing in ("s", "s10", "S1"):
        await require_error(NotFoundError, partial(door.get, ACME, SessionId(missing)), f"get of {missing}")


async def _tenants_are_apart(add: Add, door: SessionLookup) -> None:
    await add(door, example("s1"))
    theirs = await add(door, example("s2", OTHER))
    unseen = await require_error(
        NotFoundError, partial(door.get, ACME, SessionId("s2")), "another tenant's get"
    )
    absent = await require_error(NotFoundError, partial(door.get, ACME, SessionId("s3")), "get of nothing")
    told = str(unseen).replace("s2", "") != str(absent).replace("s3", "")
    require(not told, f"existence is told: {unseen} / {absent}")
    require([one.id for one in await door.list(ACME)] == ["s1"], "another tenant's session is listed")
    require(await door.list(OTHER) == [theirs], "the tenant's own session is not listed")
    require(await door.list("acm") == [] and await door.list("acme2") == [], "a tenant's name is a pattern")


async def _list_pages(add: Add, door: SessionLookup) -> None:
    ids = ["a", "B", "a.b", "a-b", "a b", "ä", "z", "Z", "10", "9", "\U0001f600", "\uffee"]
    for number, session in enumerate(ids):
        await add(door, example(session, ACME if number % 5 else OTHER))
    own = sorted(session for number, session in enumerate(ids) if number % 5)
    for limit in (1, 3, len(own), limits.MAX_PAGE):
        found: list[str] = []
        while page := await door.list(ACME, found[-1] if found else "", limit):
            require(len(page) <= limit, f"{len(page)} sessions on a page of {limit}")
            found += [one.id for one in page]
            require(len(found) <= len(own), "the pages never end")
        require(found == own, f"pages of {limit} give {found}, not {own}")
    behind = await door.list(ACME, "a-c", limits.MAX_PAGE)
    require(
        [one.id for one in behind] == [one for one in own if one > "a-c"], "an id that is missing is no place"
    )


async def _odd_values(add: Add, door: SessionLookup) -> None:
    for number, text in enumerate(ODD_TEXTS):
        session = text.replace("/", "").replace("%", "") if number % 2 else f"s{number}"
        given = example(session, text, title=text, status=text[:20], labels={text: text}, checkpoint=text)
        stored = await add(door, given)
        require(await door.get(text, SessionId(session)) == stored, f"{text!r} is not read as it was stored")
        require(await door.list(text) == [stored], f"{text!r} is no tenant of its own")
    largest = await add(door, _largest("largest"))
    require(await door.get(ACME, largest.id) == largest, "the largest record is not read as it was stored")
    longest = await add(door, example("x" * 128, "t" * 128, labels={}, metadata=b"", title=""))
    require(await door.list("t" * 128) == [longest], "the longest id and tenant are not listed")


async def _bad_requests(add: Add, door: SessionLookup) -> None:
    stored = await add(door, example("s0"))
    for bad in BAD_IDS:
        await require_error(InvalidSessionIdError, partial(door.get, ACME, SessionId(bad)), f"get of {bad!r}")
        if bad:
            await require_error(InvalidSessionIdError, partial(door.list, ACME, bad), f"list behind {bad!r}")
    for bad in BAD_TENANTS:
        await require_error(InvalidRequestError, partial(door.get, bad, stored.id), f"get for tenant {bad!r}")
        await require_error(InvalidRequestError, partial(door.list, bad), f"list of tenant {bad!r}")
    bad_limits: tuple[Any, ...] = (0, -1, 1001, True, 1.5, None)
    for limit in bad_limits:
        await require_error(InvalidRequestError, partial(door.list, ACME, "", limit), f"a limit of {limit}")
    for what, record in _too_large().items():
        await require_error(TooLargeError, partial(add, door, record), f"a {what} too much")
    for what, record in _invalid().items():
        await require_error(InvalidRequestError, partial(add, door, record), what)
    require(await door.list(ACME) == [stored], "a request that was refused changed something")


async def _all_or_nothing(add: Add, door: SessionLookup) -> None:
    """Cancels each call after one more turn of the event loop than the one before."""
    for turns in range(16):
        session = f"s{turns}"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(add, door, example(session))
            for _ in range(turns):
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        first = await door.list(ACME, "", limits.MAX_PAGE)
        for found in first:
            same = replace(found, created_at_ms=0, updated_at_ms=0, revision=0)
            whole = replace(example(found.id), created_at_ms=0, updated_at_ms=0)
            require(same == whole, f"half of a record: {found}")
        later = await door.list(ACME, "", limits.MAX_PAGE)
        require(later == first, "a cancelled call went on behind its caller's back")
    stored = await add(door, example("last"))
    require(await door.get(ACME, stored.id) == stored, "nothing works any more behind a cancelled call")


async def _closed(add: Add, door: SessionLookup) -> None:
    stored = await add(door, example())
    await door.close()
    await door.close()
    for what, request in (
        ("get", partial(door.get, ACME, stored.id)),
        ("list", partial(door.list, ACME)),
        ("a change", partial(add, door, example("s2"))),
    ):
        await require_error(HandleClosedError, request, f"{what} behind close")


def _lookup(add: Add) -> tuple[Promise[Any], ...]:
    checks: tuple[tuple[str, str, Callable[[Add, Any], Awaitable[None]]], ...] = (
        ("get-as-stored", "What was stored is read, every field of it.", _get_as_stored),
        ("get-missing", "A session that is not there is reported as missing.", _get_missing),
        ("tenants-apart", "Another tenant's session is as one that is not there.", _tenants_are_apart),
        ("list-pages", "Pages of every size hold each session once, by ascending id.", _list_pages),
        ("odd-values", "Any text is data, and what is as large as may be is kept.", _odd_values),
        ("bad-requests", "A bad id, tenant, limit or record is refused and changes nothing.", _bad_requests),
        ("all-or-nothing", "A cancelled change happened whole or never does.", _all_or_nothing),
        ("closed", "What is closed says so; closing again is success.", _closed),
    )
    return tuple(Promise(name, sentence, partial(check, add)) for name, sentence, check in checks)


# The catalogue -------------------------------------------------------------------------------------------------------


async def _create(door: Any, record: SessionRecord) -> SessionRecord:
    made: SessionRecord = await door.create(record)
    return made


async def _create_sets(door: Catalogue) -> None:
    made = await door.create(SessionRecord(ACME, SessionId("s1")))
    require(made.revision == 1, f"the first revision is {made.revision}")
    require(made.created_at_ms == made.updated_at_ms > 0, f"its times are {made}")
    await require_error(
        InvalidRequestError, partial(door.create, example("s2", revision=1)), "create of one that exists"
    )


async def _create_twice(door: Catalogue) -> None:
    made = await door.create(example())
    for tenant in (ACME, OTHER):
        again = example(tenant=tenant, title="another")
        await require_error(AlreadyExistsError, partial(door.create, again), f"create again for {tenant}")
    require(await door.scan() == [made], "create changed what was there")


async def _create_race(door: Catalogue) -> None:
    won = await _race(AlreadyExistsError, lambda number: door.create(example(title=f"racer {number}")))
    require(len(won) == 1 and await door.scan() == won, f"{len(won)} of {RACERS} made the same session")


async def _save(door: Catalogue) -> None:
    made = await door.create(example())
    wanted = replace(
        made, created_at_ms=5, title="new", status="ended", labels={"x": "y"}, metadata=b"", checkpoint="c8"
    )
    saved = await door.save(wanted)
    same = replace(wanted, created_at_ms=made.created_at_ms, updated_at_ms=saved.updated_at_ms, revision=2)
    require(saved == same, f"save gives {saved}")
    require(saved.updated_at_ms >= made.updated_at_ms, "the time of change went back")
    require(await door.get(ACME, made.id) == saved, "save is not read back")


async def _save_never_creates(door: Catalogue) -> None:
    await require_error(NotFoundError, partial(door.save, example(revision=1)), "save of nothing")
    theirs = await door.create(example("s2", OTHER))
    mine = replace(theirs, tenant=ACME)
    await require_error(NotFoundError, partial(door.save, mine), "save of another tenant's session")
    await require_error(InvalidRequestError, partial(door.save, example("s2", OTHER)), "save of a draft")
    require(await door.scan() == [theirs], "a save that was refused changed something")


async def _save_stale(door: Catalogue) -> None:
    made = await door.create(example())
    saved = await door.save(replace(made, title="first"))
    for stale in (made, replace(saved, revision=3)):
        await require_error(PreconditionFailedError, partial(door.save, stale), f"save of {stale.revision}")
    require(await door.get(ACME, made.id) == saved, "a save that was refused changed something")


async def _save_race(door: Catalogue) -> None:
    made = await door.create(example())
    won = await _race(
        PreconditionFailedError, lambda number: door.save(replace(made, title=f"racer {number}"))
    )
    require(len(won) == 1 and await door.scan() == won, f"{len(won)} of {RACERS} saved from one revision")


async def _scan(door: Catalogue) -> None:
    for number in range(7):
        await door.create(example(f"s{number}", (ACME, OTHER)[number % 2]))
    found = [*await door.scan("", 3), *await door.scan("s2", 1000)]
    require([one.id for one in found] == [f"s{number}" for number in range(7)], f"scan gives {found}")
    for limit in (0, 1001):
        await require_error(InvalidRequestError, partial(door.scan, "", limit), f"a scan's limit of {limit}")
    await require_error(InvalidSessionIdError, partial(door.scan, "../x"), "a scan behind no id")


async def _import(door: Catalogue) -> None:
    given = example(revision=7)
    for _ in range(2):
        require(await door.import_(given) == given, "import does not keep a record as it is")
    saved = await door.save(replace(given, title="later"))
    back = await door.import_(given)
    require(back == replace(given, revision=saved.revision + 1), f"import over a later one gives {back}")
    require(await door.import_(given) == back, "import once more changed something")
    await require_error(PreconditionFailedError, partial(door.save, saved), "save from before an import")
    newer = example(revision=40)
    require(await door.import_(newer) == newer, "import of a newer one does not keep it")
    require(await door.scan() == [newer], "import is not read back")
    await require_error(InvalidRequestError, partial(door.import_, example("s2")), "import of a draft")


async def _import_never_moves(door: Catalogue) -> None:
    theirs = await door.create(example("s1", OTHER))
    mine = example("s1", ACME, revision=9)
    await require_error(ForbiddenError, partial(door.import_, mine), "import of another tenant's session")
    require(await door.scan() == [theirs], "an import that was refused changed something")


PROMISES: tuple[Promise[Catalogue], ...] = (
    *_lookup(_create),
    Promise("create-sets", "Create sets the revision, and the times that are not given.", _create_sets),
    Promise("create-twice", "An id is given once, whatever the tenant.", _create_twice),
    Promise("create-race", "Of those who create one session at once, one does.", _create_race),
    Promise("save", "Save replaces all but the time of creation, and gives the next revision.", _save),
    Promise("save-never-creates", "Save makes no session, and finds no other tenant's.", _save_never_creates),
    Promise("save-stale", "Save from a revision that has passed is refused.", _save_stale),
    Promise("save-race", "Of those who save from one revision at once, one does.", _save_race),
    Promise("scan", "A scan lists all tenants' sessions by ascending id.", _scan),
    Promise("import", "An import keeps a record as it is; repeating it changes nothing.", _import),
    Promise("import-never-moves", "An import moves no session to another tenant.", _import_never_moves),
)


# The shared index ----------------------------------------------------------------------------------------------------


async def _put(door: Any, record: SessionRecord) -> SessionRecord:
    noted = replace(record, revision=record.revision or 1)
    require(await door.put(noted), "a record was not taken")
    return noted


async def _put_replaces(door: SessionIndex) -> None:
    await door.put(example(revision=1))
    newer = example(revision=2, title="new", labels={}, metadata=b"", created_at_ms=1, checkpoint="c8")
    for _ in range(2):
        require(await door.put(newer), "a newer record, or the same again, was not taken")
        require(await door.list(ACME) == [newer], "put is not read back")
    await require_error(InvalidRequestError, partial(door.put, example()), "put of a draft")


async def _put_older(door: SessionIndex) -> None:
    newest = example(revision=5)
    await door.put(newest)
    earlier = newest.updated_at_ms - 1
    for older in (
        example(revision=4, updated_at_ms=2**50),
        replace(newest, updated_at_ms=earlier, title="x"),
    ):
        require(not await door.put(older), "an older record was taken")
        require(await door.get(ACME, newest.id) == newest, "an older record replaced a newer")


async def _put_never_moves(door: SessionIndex) -> None:
    theirs = example("s1", OTHER, revision=1)
    await door.put(theirs)
    for revision in (1, 9):
        mine = example("s1", ACME, revision=revision)
        await require_error(ForbiddenError, partial(door.put, mine), "put of another tenant's session")
    require(
        await door.list(OTHER) == [theirs] and await door.list(ACME) == [], "a refused put changed something"
    )


async def _put_race(door: SessionIndex) -> None:
    async with trio.open_nursery() as nursery:
        for revision in (3, 8, 1, 6, 2, 7, 5, 4):
            nursery.start_soon(door.put, example(revision=revision))
    require(await door.list(ACME) == [example(revision=8)], "of puts at once the newest did not stay")


INDEX_PROMISES: tuple[Promise[SessionIndex], ...] = (
    *_lookup(_put),
    Promise("put-replaces", "A put replaces what is there; repeating it changes nothing.", _put_replaces),
    Promise("put-older", "An older record never replaces a newer.", _put_older),
    Promise("put-never-moves", "A put moves no session to another tenant.", _put_never_moves),
    Promise("put-race", "Of puts at once the newest stays.", _put_race),
)


async def _race(
    losers: type[Exception], request: Callable[[int], Awaitable[SessionRecord]]
) -> list[SessionRecord]:
    won: list[SessionRecord] = []

    async def racer(number: int) -> None:
        try:
            won.append(await request(number))
        except losers:
            return

    async with trio.open_nursery() as nursery:
        for number in range(RACERS):
            nursery.start_soon(racer, number)
    return won
