"""Messages about commits and generations (see ``link_messages``).

Order of a commit: the daemon sends `Commit`; the replication process asks for a `Barrier`, then for each changing file where its bytes are
(`FrozenImage`), as often as it needs; at the end, however it ends, it sends `Thaw`.
"""

from __future__ import annotations

import msgspec

from sessionfs.formats.link_message import Message


class CommitAll(Message, frozen=True):
    """Commit every owned session that changed. Reply: `Done`."""

    trigger: str
    log_position: int


class Commit(Message, frozen=True):
    """Commit one session now. Reply: `Committed`.

    Attributes:
        session: The session.
        trigger: What asked for it: ``command``, ``file``, ``fsync``, ``turn``, ``timer``, ``unmount``, ``sigterm``, ``release``.
        log_position: Operations that must be in it.
        is_turn: It ends a turn: the session is recovered at its newest generation from now on.
    """

    session: str
    trigger: str
    log_position: int
    is_turn: bool = False


class Committed(Message, frozen=True):
    """Reply to `Commit`; names are those of ``snapshot --json``.

    Attributes:
        session: The session.
        generation: Of the commit; the newest there is when nothing had changed.
        trigger: What asked for it.
        turn: The program's turn, 0 when it has none.
        completed_at: Time as text.
        objects: Files, directories and links of the generation.
        bytes: Their length together.
        objects_uploaded: Objects sent for it.
        objects_skipped: Objects that were there already.
        bytes_uploaded: Bytes sent for it.
        requests: Requests that the process sent meanwhile.
        duration_seconds: From the request to the confirmed manifest.
        barrier_seconds: How long programs had to wait.
        moving: Paths that programs changed without a pause: each is in the generation as it was at some moment near the cut.
        is_unchanged: Nothing had changed: no generation was made.
        manifest_key: As in the commit marker.
        manifest_sha256: As in the commit marker.
    """

    session: str
    generation: int
    trigger: str = ""
    turn: int = 0
    completed_at: str = ""
    objects: int = 0
    bytes: int = 0
    objects_uploaded: int = 0
    objects_skipped: int = 0
    bytes_uploaded: int = 0
    requests: int = 0
    duration_seconds: float = 0.0
    barrier_seconds: float = 0.0
    moving: list[str] = []
    is_unchanged: bool = False
    manifest_key: str = ""
    manifest_sha256: str = ""


class ListGenerations(Message, frozen=True):
    """Name the generations of a session that can be shown. Reply: `GenerationNumbers`."""

    session: str


class GenerationNumbers(Message, frozen=True):
    """Reply to `ListGenerations`; ascending."""

    numbers: list[int]


class Barrier(Message, frozen=True):
    """Note, between two operations of programs, how a session's changing files stand, and keep those bytes. Reply: `BarrierHeld`.

    Attributes:
        session: The session.
        commit: Names the commit; later requests about it repeat the name.
        numbers: Files that are owed as far as the journal knows.
        log_position: Up to where the journal knows the log.
        paths: Paths of `numbers` inside the session: the daemon does not know every file by its number.
        unkept: Files among `numbers` whose bytes the commit has from elsewhere (images of databases): described, and not kept.
    """

    session: str
    commit: str
    numbers: list[int]
    log_position: int
    paths: dict[int, bytes] = {}
    unkept: list[int] = []


class FrozenFile(msgspec.Struct, frozen=True):
    """How a file stood at a barrier.

    Attributes:
        number: The file.
        mode: As in ``st_mode``.
        uid: Owner.
        gid: Group.
        size_bytes: Length: the generation has as many of its first bytes.
        mtime_ns: Modification time.
        ctime_ns: Change time.
        writers: Descriptors that may write it.
        xattrs: Extended attributes.
    """

    number: int
    mode: int
    uid: int
    gid: int
    size_bytes: int
    mtime_ns: int
    ctime_ns: int
    writers: int
    xattrs: dict[bytes, bytes] = {}


class BarrierHeld(Message, frozen=True):
    """Reply to `Barrier`.

    Attributes:
        log_position: The cut: the generation has every operation before it, and none after.
        frozen: The changing files.
        pause_seconds: How long programs had to wait.
        is_behind: The log tells of changes after the request's position that cannot be followed from here (a directory was moved,
            a file is not known by its number): nothing was kept. Apply the log up to `log_position` and ask again.
    """

    log_position: int
    frozen: list[FrozenFile]
    pause_seconds: float
    is_behind: bool = False


class FrozenImage(Message, frozen=True):
    """Where a frozen file's bytes are now. Reply: `FrozenAt`.

    What was read from the file itself counts when a second request, after the reading, still gives the same place.
    """

    commit: str
    number: int


class FrozenAt(Message, frozen=True):
    """Reply to `FrozenImage`.

    Attributes:
        staged: Name below the staging directory, "" while the file itself still begins with those bytes.
        is_grown: Something was appended behind them.
        is_lost: They could not be kept (the disk is full, or they were changed below us).
    """

    staged: str = ""
    is_grown: bool = False
    is_lost: bool = False


class Thaw(Message, frozen=True):
    """A commit is over: its kept bytes may go. Reply: `Done`."""

    commit: str
