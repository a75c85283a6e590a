"""The header of an event log: a small file of its own, written before the first event and never changed.

So whoever lists sessions reads no log. A header of a newer format is refused before the log is read.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from sessionfs.formats import versioned_json
from sessionfs.formats.events.event import FORMAT
from sessionfs.model import names
from sessionfs.model.errors import (
    CorruptDataError,
    InvalidRequestError,
    InvalidSessionIdError,
    TooLargeError,
    UnsupportedFormatError,
)

HEADER_PATH = "events.header.json"
Encoding = Literal["zstd", "lines"]
"""``zstd``: checksummed zstd frames of whole lines, one after the other; ``lines``: the lines themselves."""
LOG_PATHS: dict[Encoding, str] = {"zstd": "events.jsonl.zst", "lines": "events.jsonl"}
MAX_HEADER_BYTES = 64 << 10


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """What a session's log is, apart from its events.

    Attributes:
        id: The session.
        created_at: When, milliseconds since the epoch.
        version: Format of the log.
        cwd: Where the agent worked, "" when it does not matter.
        parent_session: The session it was forked or delegated from, "" for none.
        is_seeded: It began with events of `parent_session`.
        inherited_event_count: How many: the event with this ``seq`` is the end of the seed.
        origin: What made it, for people.
        delegation_depth: How many sessions delegated to one another above it, from 0.
        agent_preset: The preset it began with, "" for none.
        encoding: How the log is written.
    """

    id: str
    created_at: int
    version: int = FORMAT
    cwd: str = ""
    parent_session: str = ""
    is_seeded: bool = False
    inherited_event_count: int = 0
    origin: str = ""
    delegation_depth: int = 0
    agent_preset: str = ""
    encoding: Encoding = "zstd"

    @property
    def log_path(self) -> str:
        """The raw file of the log, below the session."""
        return LOG_PATHS[self.encoding]


class _Head(msgspec.Struct, frozen=True):
    """What is read first, whatever the rest looks like."""

    version: int
    encoding: str = "zstd"


def check(header: Header) -> None:
    """Check a header that is to be written.

    Raises:
        InvalidSessionIdError: The session or its parent can be none.
        InvalidRequestError: A count is negative, it has another format, or says that it is seeded and by nobody.
        TooLargeError: It is longer than `MAX_HEADER_BYTES`.
    """
    try:
        again = msgspec.json.decode(msgspec.json.encode(header), type=Header)
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError) as problem:
        raise InvalidRequestError(f"the header cannot be written: {problem}") from None
    problem_found = _problem_of(again)
    if problem_found:
        raise InvalidRequestError(f"the header of {header.id} {problem_found}")
    names.session_id(header.id)
    if header.parent_session:
        names.session_id(header.parent_session)
    if len(encode(header)) > MAX_HEADER_BYTES:
        raise TooLargeError(f"the header of {header.id} is longer than {MAX_HEADER_BYTES} bytes")


def encode(header: Header) -> bytes:
    """Give the file's bytes: canonical JSON with every field, and a newline."""
    return versioned_json.encode(header) + b"\n"


def decode(raw: bytes, session: str) -> Header:
    """Read a header.

    Args:
        raw: The file's bytes.
        session: Whose it must be.

    Raises:
        UnsupportedFormatError: A newer format; the error names the raw file of the log.
        CorruptDataError: It is no header, or another session's.
    """
    name = f"{session}/{HEADER_PATH}"
    head = versioned_json.decode(raw, _Head, name)
    if head.version > FORMAT:
        ours = [path for encoding, path in LOG_PATHS.items() if encoding == head.encoding]
        raw_file = f"{session}/{ours[0]}" if ours else name
        raise UnsupportedFormatError(raw_file, found=head.version, supported=FORMAT)
    header = versioned_json.decode(raw, Header, name)
    problem = _problem_of(header)
    if problem:
        raise CorruptDataError(f"{name} {problem}")
    try:
        names.session_id(header.id)
    except InvalidSessionIdError as error:
        raise CorruptDataError(f"{name}: {error.message}") from None
    if header.id != session:
        raise CorruptDataError(f"{name} is the header of session {header.id!r}")
    return header


def _problem_of(header: Header) -> str:
    if header.version != FORMAT:
        return f"has format {header.version}, {FORMAT} is written"
    if min(header.created_at, header.inherited_event_count, header.delegation_depth) < 0:
        return "has a negative number"
    if header.is_seeded != bool(header.inherited_event_count):
        return "says that it is seeded, and by no event, or the other way round"
    if header.is_seeded and not header.parent_session:
        return "is seeded by no session"
    return ""
