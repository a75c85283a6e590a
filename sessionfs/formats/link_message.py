"""The root of all messages between the daemon and the replication process, and what several of them carry (see ``link_messages``)."""

from __future__ import annotations

import msgspec


class Message(msgspec.Struct, frozen=True, tag=True):
    """Root of all messages; each class's name is its tag."""


class Entry(msgspec.Struct, frozen=True):
    """One name in a directory that the bucket (also) knows.

    Attributes:
        name: The file name.
        number: Inode number; from `FIRST_REMOTE_NUMBER` on unless it was made here.
        present: Whether its bytes (or directory, or link) are in the working copy.
        mode: As in ``st_mode``.
        uid: Owner.
        gid: Group.
        size_bytes: Length.
        mtime_ns: Modification time.
        nlink: Number of names.
        target: A symlink's text.
        xattrs: Extended attributes to set when it is made in the working copy.
        blocks_of: Sha256 of a content that may come block by block, because the sums of its blocks are known; "" for what comes whole.
    """

    name: bytes
    number: int
    present: bool
    mode: int
    uid: int
    gid: int
    size_bytes: int
    mtime_ns: int
    nlink: int = 1
    target: bytes = b""
    xattrs: dict[bytes, bytes] = {}
    blocks_of: str = ""


NOTHING_TOLD = -1
"""The version of a session of which nothing was heard."""


class SessionRefreshed(Message, frozen=True):
    """Reply to `RefreshSession`.

    Attributes:
        directories: Directories whose names changed.
        files: Files whose bytes or attributes changed, and links and directories that changed or went: what is here of
            them is old.
        foreign: As in `SessionFound`.
        attributes: Directories that are here and have other attributes now, as they must be.
        paths: A path, session first, of everything in `files` and `attributes`.
        version: Counts what was taken over in the session, to be named by the next request: an answer that was not heard is
            made good by the next, which then names every directory.
    """

    directories: list[int]
    files: list[int]
    foreign: bool
    attributes: list[Entry] = []
    paths: dict[int, bytes] = {}
    version: int = NOTHING_TOLD
