"""The header of a log: checked before it is written, refused before the log is read."""

from __future__ import annotations

import msgspec
import pytest

from sessionfs.formats.events import header as headers
from sessionfs.formats.events.header import Header
from sessionfs.model.errors import (
    CorruptDataError,
    InvalidRequestError,
    InvalidSessionIdError,
    TooLargeError,
    UnsupportedFormatError,
)

FULL = Header(
    id="s1", created_at=1_700_000_000_000, cwd="/src", parent_session="s0", is_seeded=True, inherited_event_count=7,
    origin="cli", delegation_depth=2, agent_preset="coder", encoding="lines",
)  # fmt: skip


def test_a_header_comes_back() -> None:
    headers.check(FULL)
    assert headers.decode(headers.encode(FULL), "s1") == FULL
    assert FULL.log_path == "events.jsonl"
    assert Header(id="s1", created_at=1).log_path == "events.jsonl.zst"


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"id": "a/b"}, InvalidSessionIdError),
        ({"parent_session": ".."}, InvalidSessionIdError),
        ({"version": 3}, InvalidRequestError),
        ({"created_at": -1}, InvalidRequestError),
        ({"delegation_depth": -1}, InvalidRequestError),
        ({"is_seeded": False}, InvalidRequestError),
        ({"inherited_event_count": 0}, InvalidRequestError),
        ({"parent_session": ""}, InvalidRequestError),
        ({"encoding": "gzip"}, InvalidRequestError),
        ({"cwd": 5}, InvalidRequestError),
        ({"origin": "\ud800"}, InvalidRequestError),
        ({"cwd": "x" * headers.MAX_HEADER_BYTES}, TooLargeError),
    ],
)
def test_a_bad_header_is_refused(changes: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error):
        headers.check(msgspec.structs.replace(FULL, **changes))


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b'{"version":2}',
        b'{"version":1,"id":"s1","created_at":1}',
        b'{"version":2,"id":"other","created_at":1}',
        b'{"version":2,"id":"..","created_at":1}',
        b'{"version":2,"id":"s1","created_at":-1}',
        b'{"version":2,"id":"s1","created_at":1,"encoding":"gzip"}',
        b'{"version":2,"id":"s1","created_at":1,"is_seeded":true}',
    ],
)
def test_a_damaged_header_is_named(raw: bytes) -> None:
    with pytest.raises(CorruptDataError, match=r"s1/events\.header\.json|\.\./events"):
        headers.decode(raw, ".." if b'".."' in raw else "s1")


@pytest.mark.parametrize(
    ("encoding", "raw_file"),
    [
        ("zstd", "s1/events.jsonl.zst"),
        ("lines", "s1/events.jsonl"),
        ("unheard of", "s1/events.header.json"),
    ],
)
def test_a_newer_header_is_refused_whatever_else_is_in_it(encoding: str, raw_file: str) -> None:
    raw = msgspec.json.encode({"version": 9, "encoding": encoding, "id": ["another", "shape"]})
    with pytest.raises(UnsupportedFormatError) as caught:
        headers.decode(raw, "s1")
    assert (caught.value.name, caught.value.found, caught.value.supported) == (raw_file, 9, 2)


def test_fields_of_a_newer_program_are_passed_over() -> None:
    assert headers.decode(b'{"version":2,"id":"s1","created_at":1,"new":{}}', "s1").created_at == 1
