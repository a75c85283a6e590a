"""Promises about lines: appending, replays, tails and windows."""

from __future__ import annotations

import json

from sessionfs.formats.logs.json_lines import Window
from sessionfs.sessions.store.session_store import SessionStore
from sessionfs.testing.contracts.promise import require

_S = "contract-session"
_LOG = "journal/events.jsonl"
_LINES = (b"one", b"", b"three is longer", "vier \u00e4".encode(), b"5" * 20, b"6")


async def _append(store: SessionStore, second: SessionStore) -> None:
    await store.append(_S, _LOG, "text \u00e4")
    await second.append(_S, _LOG, b"bytes")
    await store.append(_S, _LOG, {"seq": 1, "what": "an object"})
    await store.append(_S, _LOG, "")
    found = await store.read_file(_S, _LOG)
    lines = found.split(b"\n")
    require(
        lines[:2] == ["text \u00e4".encode(), b"bytes"] and lines[3:] == [b"", b""], f"it reads {found!r}"
    )
    require(json.loads(lines[2]) == {"seq": 1, "what": "an object"}, "an object reads back otherwise")


async def _append_keeps(store: SessionStore, _second: SessionStore) -> None:
    await store.write_file(_S, "notes", b"first\nno newline")
    await store.append(_S, "notes", "added")
    require(await store.read_file(_S, "notes") == b"first\nno newlineadded\n", "what was there was changed")


async def _append_to_big(store: SessionStore, _second: SessionStore) -> None:
    body = (b"x" * 1023 + b"\n") * (6 << 10)
    await store.write_file(_S, _LOG, body)
    await store.append(_S, _LOG, "the first added")
    await store.append(_S, _LOG, "the second added")
    found = await store.read_file(_S, _LOG)
    require(found == body + b"the first added\nthe second added\n", "lines added to a big file are not there")
    tail = await store.read_tail(_S, _LOG, 40)
    require(tail.lines == (b"the first added", b"the second added"), f"its tail is {tail.lines}")


async def _replay(store: SessionStore, _second: SessionStore) -> None:
    for line in (
        '{"seq":1}', '{"seq":2}', '{"seq":2,"again":true}', "no json", '{"seq":1}', '{"seq":5}', "no json",
        '{"seq":4}', '{"other":1}', '{"seq":6}', '{"seq":"text"}',
    ):  # fmt: skip
        await store.append(_S, _LOG, line)
    wanted = [
        b'{"seq":1}', b'{"seq":2}', b"no json", b'{"seq":5}', b"no json", b'{"other":1}', b'{"seq":6}',
        b'{"seq":"text"}',
    ]  # fmt: skip
    found = await store.replay(_S, _LOG)
    require(found == wanted, f"replay gives {found}")
    await store.append(_S, "journal/other.jsonl", '{"seq":1}')
    require(await store.replay(_S, "journal/other.jsonl") == [b'{"seq":1}'], "files share their seq")


async def _torn(store: SessionStore, _second: SessionStore) -> None:
    whole = b'{"seq":1}\n{"seq":2}\n'
    await store.write_file(_S, _LOG, whole + b'{"seq":3,"to')
    require(await store.replay(_S, _LOG) == [b'{"seq":1}', b'{"seq":2}'], "replay shows a torn line")
    tail = await store.read_tail(_S, _LOG, 1000)
    require(tail.lines == (b'{"seq":1}', b'{"seq":2}'), "a tail shows a torn line")
    require(tail.end == len(whole), "a tail does not end behind its last whole line")


async def _tails(store: SessionStore, _second: SessionStore) -> None:
    body = b"".join(line + b"\n" for line in _LINES)
    await store.write_file(_S, _LOG, body)
    for budget in range(1, len(body) + 3):
        found = await store.read_tail(_S, _LOG, budget)
        _require_window(found, _expected(len(_LINES), budget), budget)


async def _windows(store: SessionStore, _second: SessionStore) -> None:
    body = b"".join(line + b"\n" for line in _LINES)
    await store.write_file(_S, _LOG, body)
    for offset in range(len(body) + 2):
        budget = (7, 30)[offset % 2]
        found = await store.read_before(_S, _LOG, offset, budget)
        _require_window(found, _expected(body[:offset].count(b"\n"), budget), budget)


async def _going_back(store: SessionStore, _second: SessionStore) -> None:
    lines = [b'{"seq":%d,"pad":"%s"}' % (n, b"p" * (n * 7 % 60)) for n in range(60)]
    await store.write_file(_S, _LOG, b"".join(line + b"\n" for line in lines))
    window = await store.read_tail(_S, _LOG, 200)
    found = list(window.lines)
    while window.start > 0:
        end = window.start
        window = await store.read_before(_S, _LOG, end, 200)
        require(window.start < end, f"going back from {end} gives a window that begins at {window.start}")
        found[:0] = window.lines
    require(found == lines, "going back window by window does not give every line once")


async def _no_lines(store: SessionStore, _second: SessionStore) -> None:
    for path, body in (("empty", b""), ("torn", b"no newline at all")):
        await store.write_file(_S, path, body)
        require(await store.read_tail(_S, path, 100) == Window((), 0, 0), f"a tail of {path} has lines")
        require(await store.read_before(_S, path, 50, 3) == Window((), 0, 0), f"a window of {path} has lines")
        require(await store.replay(_S, path) == [], f"a replay of {path} has lines")


async def _long_line(store: SessionStore, _second: SessionStore) -> None:
    line = b"l" * 300_000
    await store.write_file(_S, _LOG, b"short\n" + line + b"\n")
    found = await store.read_tail(_S, _LOG, 10)
    require(found == Window((line,), 6, 6 + len(line) + 1), "a line above the budget is not given")
    before = await store.read_before(_S, _LOG, found.start, 10)
    require(before == Window((b"short",), 0, 6), "the line before one above the budget is not given")


def _expected(count: int, budget_bytes: int) -> Window:
    """The window of the last of the first `count` lines, by counting."""
    starts = [0]
    for line in _LINES:
        starts.append(starts[-1] + len(line) + 1)
    first = count
    while first > 0 and starts[count] - starts[first - 1] <= budget_bytes:
        first -= 1
    if first == count and count > 0:
        first -= 1
    return Window(_LINES[first:count], starts[first], starts[count])


def _require_window(found: Window, wanted: Window, budget: int) -> None:
    require(found == wanted, f"a budget of {budget} gives {found}, due is {wanted}")


PROMISES = (
    ("append", "Each append is one line with its newline, in order, of text, bytes or an object.", _append),
    ("append-keeps", "An append leaves what is in the file.", _append_keeps),
    ("append-to-big", "A file of several parts can be appended to.", _append_to_big),
    ("replay", "A replay drops lines whose seq is not above the last, file by file.", _replay),
    ("torn-tail", "What follows the last newline is shown by no replay and no tail.", _torn),
    ("tail", "A tail has the last whole lines that fit its budget, at least one, at every budget.", _tails),
    ("window", "A window ends at the last whole line before its offset, at every offset.", _windows),
    ("going-back", "Going back from window to window gives every line once.", _going_back),
    ("no-lines", "A file without a whole line has no lines.", _no_lines),
    ("long-line", "A line longer than the budget is given alone.", _long_line),
)
