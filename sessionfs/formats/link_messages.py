"""Messages between the daemon, which answers the kernel, and the replication process, which talks to the store.

Both directions are requests with one reply each (`Envelope.identifier` pairs them; notices have identifier 0 and no reply). Every request
that depends on operations names the intent log's position up to which the answer must know them.
"""

from __future__ import annotations

import struct

import msgspec

from sessionfs.formats.commit_messages import (
    Barrier,
    BarrierHeld,
    Commit,
    CommitAll,
    Committed,
    FrozenAt,
    FrozenImage,
    GenerationNumbers,
    ListGenerations,
    Thaw,
)
from sessionfs.formats.link_message import NOTHING_TOLD, Entry, Message, SessionRefreshed
from sessionfs.formats.ownership_messages import Claim, Claimed, Release, ReleaseAll, SessionState
from sessionfs.model import errors
from sessionfs.model.errors import (
    InternalError,
    OwnershipLostError,
    SessionAlreadyOwnedError,
    SessionFSError,
)

_LENGTH = struct.Struct("<I")
LENGTH_BYTES = _LENGTH.size
FIRST_REMOTE_NUMBER = 1 << 62
"""Inode numbers from here on are given by the journal to what came from the bucket; smaller ones are the working copy's own."""


# --- what both sides speak of


# --- daemon to replication


class OpenSession(Message, frozen=True):
    """Say what is known of a session, asking the store at first use. Reply: `SessionFound`.

    Attributes:
        session: The session's id.
        log_position: Operations the answer must know.
        patience_seconds: How long a session that is known already may wait for news of the store.
    """

    session: str
    log_position: int
    patience_seconds: float = 5.0


class SessionFound(Message, frozen=True):
    """Reply to `OpenSession`.

    Attributes:
        exists: Whether the bucket (or the journal) has it.
        root: The root directory, when it exists.
        foreign: This host does not own it: another host may change it.
        owned: This host owns it, and may change it without a claim.
        read_only: It is a generation of the past.
        version: As in `SessionRefreshed`.
    """

    exists: bool
    root: Entry | None = None
    foreign: bool = True
    owned: bool = False
    read_only: bool = False
    version: int = NOTHING_TOLD


class ListSessions(Message, frozen=True):
    """Name the sessions in the bucket, or the shared roots (``model/roots.py``). Reply: `SessionNames`."""

    shared: bool = False


class SessionNames(Message, frozen=True):
    """Reply to `ListSessions`."""

    names: list[str]


class ListChildren(Message, frozen=True):
    """List the names in a directory that are not present, or whose number is not the working copy's. Reply: `Children`."""

    directory: int
    log_position: int


class Children(Message, frozen=True):
    """Reply to `ListChildren`."""

    entries: list[Entry]


class RefreshSession(Message, frozen=True):
    """Compare a foreign session with the bucket. Reply: `SessionRefreshed`.

    Attributes:
        session: The session.
        log_position: Operations the answer must know.
        known: The version that was heard last.
    """

    session: str
    log_position: int
    known: int = NOTHING_TOLD


class Fetch(Message, frozen=True):
    """Bring a remote file's verified bytes into staging. Reply: `Fetched`."""

    number: int
    log_position: int


class Fetched(Message, frozen=True):
    """Reply to `Fetch`.

    Attributes:
        staged: Name below the staging directory; the daemon moves it into the working copy.
        entry: Attributes the file must have there.
    """

    staged: str
    entry: Entry


# A large file may come block by block, in any order, into one sparse file of the daemon's in staging. A block is `BLOCK_BYTES` long, the last one
# shorter. The daemon makes the file, as long as the whole content; the replication process writes blocks into it and answers when one verified.
# Until then the daemon shows nothing of it.


class FetchBlock(Message, frozen=True):
    """Write one verified block of a content into a file in staging. Reply: `BlockFetched`.

    Attributes:
        number: The file whose content it is.
        block: Which block, from 0.
        partial: Name below the staging directory; the file there is as long as the content.
        sha256: Of the whole content: the file may have another one by now.
        log_position: Operations the answer must know.
    """

    number: int
    block: int
    partial: str
    sha256: str
    log_position: int


class BlockFetched(Message, frozen=True):
    """Reply to `FetchBlock`: the block is there, and verified."""


class FinishBlocks(Message, frozen=True):
    """Bring a file in staging that has all its blocks to the disk, and say how it must look. Reply: `BlocksFinished`.

    Attributes:
        number: As in `FetchBlock`.
        partial: As there.
        sha256: As there; refused when the file has another content by now.
        log_position: Operations the answer must know.
    """

    number: int
    partial: str
    sha256: str
    log_position: int


class BlocksFinished(Message, frozen=True):
    """Reply to `FinishBlocks`.

    Attributes:
        entry: Attributes the file must have in the working copy.
    """

    entry: Entry


class Flush(Message, frozen=True):
    """Bring a file, or a directory's own entries, into the bucket now. Reply: `Done`, after it is there."""

    number: int
    log_position: int


class Describe(Message, frozen=True):
    """Say how a file stands. Reply: `Description`."""

    number: int
    log_position: int


class Description(Message, frozen=True):
    """Reply to `Describe`.

    Attributes:
        state: remote, clean, owed, uploading, stuck, conflict, local-only or manifest-only.
        reason: Why it is stuck, local-only or in conflict.
        key: Its key in the bucket, "" when it has none.
        etag: The token last seen there.
        sha256: Of the bytes last confirmed there.
        generation: Of the session's newest generation.
        owner: Who owns the session, "" when unknown.
    """

    state: str
    reason: str = ""
    key: str = ""
    etag: str = ""
    sha256: str = ""
    generation: int = 0
    owner: str = ""


class LogGrew(Message, frozen=True):
    """Notice: the intent log has records up to this position."""

    log_position: int


class GetStatus(Message, frozen=True):
    """Reply: `Status`."""

    log_position: int


class SessionStatus(msgspec.Struct, frozen=True):
    """One session in `Status`; names are those of ``status --json``."""

    id: str
    owner: str
    owned_here: bool
    state: str
    owed_files: int
    owed_bytes: int
    oldest_owed_seconds: float
    generation: int
    committed_at: str
    conflicts: int
    epoch: int = 0
    commit_problem: str = ""


class Status(Message, frozen=True):
    """Reply to `GetStatus`.

    Attributes:
        sessions: Known sessions.
        degraded: Why the store cannot be used now, "" when it can.
        owed_files: All sessions together.
        owed_bytes: All sessions together.
        uploaded_bytes: Since the process started.
        uploads: Since the process started.
        requests: Requests to the store by kind, since the process started.
        held: Why a batch of deletions waits for a person, "" when none does.
        downloaded_bytes: Since the process started; moves while a file is coming.
    """

    sessions: list[SessionStatus]
    degraded: str
    owed_files: int
    owed_bytes: int
    uploaded_bytes: int
    uploads: int
    requests: dict[str, int]
    held: str = ""
    downloaded_bytes: int = 0


class Drain(Message, frozen=True):
    """Upload everything that is owed now. Reply: `Drained`, at once with what is left when `seconds` is 0.

    The daemon asks again and again, so that progress can be shown and nothing hangs.

    Attributes:
        log_position: Operations that count.
        seconds: How long this call may wait.
    """

    log_position: int
    seconds: float


class Drained(Message, frozen=True):
    """Reply to `Drain`.

    Attributes:
        owed_files: What is left.
        owed_bytes: What is left.
        paths: The first 25 paths behind, as shown to a person.
        degraded: Why nothing moves, "" when it does.
        stuck_files: How many of them wait for a person: time alone brings none of these away.
    """

    owed_files: int
    owed_bytes: int
    paths: list[str]
    degraded: str
    stuck_files: int = 0


class ResolveConflict(Message, frozen=True):
    """Bytes kept aside are no conflict any more: whoever asks has put the file right, and the bytes stay in the bucket. Reply: `Done`.

    Attributes:
        key: Where they are.
        log_position: Operations that must be known.
    """

    key: str
    log_position: int


class Retry(Message, frozen=True):
    """Try everything again now: backed-off, stuck and held rows. Reply: `Done`."""


class ListConflicts(Message, frozen=True):
    """Reply: `ConflictList`."""


class Conflict(msgspec.Struct, frozen=True):
    """Bytes kept aside.

    Attributes:
        session: The session.
        path: As shown to a person.
        key: Where the bytes are in the bucket.
        kept_at: Time of the event.
        holder: Who wrote the bytes kept aside, "unknown" for another tool.
        reason: Why they were kept aside, in a few words.
    """

    session: str
    path: str
    key: str
    kept_at: str
    holder: str
    reason: str = ""


class ConflictList(Message, frozen=True):
    """Reply to `ListConflicts`."""

    conflicts: list[Conflict]


class ListEvents(Message, frozen=True):
    """Give events after a number. Reply: `EventList`."""

    after: int
    limit: int


class Event(msgspec.Struct, frozen=True):
    """One numbered event.

    Attributes:
        number: Counts from 1, kept across restarts.
        name: As ``session.file.uploaded``.
        at: Time as text.
        fields: Values by name.
    """

    number: int
    name: str
    at: str
    fields: dict[str, str | int | float | bool]


class EventList(Message, frozen=True):
    """Reply to `ListEvents`."""

    events: list[Event]


class Stop(Message, frozen=True):
    """End the process after its current transactions. Reply: `Done`."""


class Done(Message, frozen=True):
    """Reply of requests that only succeed."""


# --- replication to daemon


class BeginImage(Message, frozen=True):
    """A file's bytes are about to be read for an upload. Reply: `ImageGrant`, given between two writes."""

    number: int


class EndImage(Message, frozen=True):
    """They were read. Reply: `ImageGrant`."""

    number: int


class ImageGrant(Message, frozen=True):
    """How a file stood when no write was under way.

    Attributes:
        size_bytes: Its length: every prefix of this length ends where a write ended.
        rewrites: Counts changes below the end (overwrites, truncations); equal before and after means that the first `size_bytes` bytes stood still.
        writers: Descriptors that may write.
    """

    size_bytes: int
    rewrites: int
    writers: int


class Evict(Message, frozen=True):
    """Remove a clean file's bytes if nothing uses them and they are still the ones confirmed. Reply: `Evicted`.

    Attributes:
        number: The file.
        size_bytes: As confirmed in the bucket.
        mtime_ns: As confirmed.
        ctime_ns: As confirmed.
        path: Its path, session first: the daemon does not know every file by its number.
        blocks_of: As in `Entry`.
    """

    number: int
    size_bytes: int
    mtime_ns: int
    ctime_ns: int
    path: bytes = b""
    blocks_of: str = ""


class Evicted(Message, frozen=True):
    """Reply to `Evict`."""

    done: bool


class LogConsumed(Message, frozen=True):
    """Notice: the journal holds every record before this position; the log may be cut there."""

    log_position: int


# --- replies of either side


class Failure(Message, frozen=True):
    """Reply of a request that failed.

    Attributes:
        kind: Name of the error's class.
        message: Its message.
        remedy: Its remedy.
        holder: Of an error about ownership.
    """

    kind: str
    message: str
    remedy: str = ""
    holder: str = ""


AnyMessage = (
    OpenSession | SessionFound | ListSessions | SessionNames | ListChildren | Children | RefreshSession
    | SessionRefreshed | Claim | Claimed | Release | ReleaseAll | SessionState | Fetch | Fetched | FetchBlock
    | BlockFetched | FinishBlocks | BlocksFinished | Flush | Describe | Description | LogGrew | GetStatus | Status | Drain
    | Drained | CommitAll | Commit | Committed | ListGenerations | GenerationNumbers | Retry | ListConflicts | ConflictList
    | ResolveConflict | ListEvents | EventList | Stop | Done | BeginImage | EndImage | ImageGrant | Barrier | BarrierHeld
    | FrozenImage | FrozenAt | Thaw | Evict | Evicted | LogConsumed | Failure
)  # fmt: skip


class Envelope(msgspec.Struct, frozen=True, array_like=True):
    """One message on the link.

    Attributes:
        identifier: Pairs a reply with its request; 0 for notices. Each side counts its own.
        is_reply: Whether this answers the other side's request of that identifier.
        body: The message.
    """

    identifier: int
    is_reply: bool
    body: AnyMessage


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Envelope)


def encode(envelope: Envelope) -> bytes:
    """Give the bytes on the link: a u32 length and MessagePack."""
    payload = _encoder.encode(envelope)
    return _LENGTH.pack(len(payload)) + payload


def decode_length(raw: bytes) -> int:
    """Read the length before a payload."""
    (length,) = _LENGTH.unpack(raw)
    return int(length)


def decode(payload: bytes) -> Envelope:
    """Read one payload."""
    return _decoder.decode(payload)


def failure_of(error: SessionFSError) -> Failure:
    """Give the message of an error."""
    holder = getattr(error, "holder", "")
    return Failure(kind=type(error).__name__, message=error.message, remedy=error.remedy, holder=holder)


def error_of(failure: Failure) -> SessionFSError:
    """Give the error of a message; classes with more fields come back as their nearest plain ancestor."""
    kind = getattr(errors, failure.kind, None)
    if isinstance(kind, type) and issubclass(kind, SessionAlreadyOwnedError | OwnershipLostError):
        return kind(failure.message, holder=failure.holder, remedy=failure.remedy)
    candidates = kind.__mro__ if isinstance(kind, type) and issubclass(kind, SessionFSError) else ()
    for candidate in candidates:
        try:
            return candidate(failure.message, remedy=failure.remedy)  # type: ignore[no-any-return]
        except TypeError:
            continue
    return InternalError(failure.message, remedy=failure.remedy)
