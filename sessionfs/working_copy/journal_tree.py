"""The tree part of the upload journal: sessions, inodes and names, as the intent log tells them (tables: ``journal_schema``)."""

from __future__ import annotations

import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sessionfs.formats import extended_attributes
from sessionfs.formats.link_message import Entry
from sessionfs.formats.link_messages import (
    FIRST_REMOTE_NUMBER,
)
from sessionfs.model import keys
from sessionfs.model.clock import Clock
from sessionfs.model.names import SessionId
from sessionfs.working_copy import journal_schema
from sessionfs.working_copy.layout import ROOT_NUMBER


@dataclass(frozen=True, slots=True)
class Node:
    """One inode, as ``nodes`` keeps it. Attributes count only while `present` is False.

    Attributes:
        number: Inode number.
        mode: As in ``st_mode``.
        uid: Owner.
        gid: Group.
        size_bytes: Length.
        mtime_ns: Modification time.
        present: Whether the bytes are in the working copy.
        reserved: Whether a number of the working copy's own stands for bytes elsewhere (it was evicted once).
        target: A symlink's text.
        xattrs: MessagePack of the extended attributes, for what is not present.
        writers: Descriptors that may write.
        sha256: Of the bytes when they were last hashed or fetched.
        clean_identity: (size, mtime_ns, ctime_ns) of the file when it had `sha256` and the bucket had it; size -1 for never.
    """

    number: int
    mode: int
    uid: int
    gid: int
    size_bytes: int
    mtime_ns: int
    present: bool
    reserved: bool
    target: bytes
    xattrs: bytes
    writers: int
    sha256: str
    clean_identity: tuple[int, int, int]

    @property
    def is_directory(self) -> bool:
        """Whether it is a directory."""
        return stat.S_ISDIR(self.mode)


@dataclass(slots=True)
class Incarnation:
    """One inode among those that have the same number one after the other.

    Attributes:
        is_over: Whether the number was given up, or means another inode by now.
    """

    is_over: bool = False


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the tree has at a key.

    Attributes:
        path: Path inside the session, empty for its root.
        node: The inode.
    """

    path: bytes
    node: Node


@dataclass(frozen=True, slots=True)
class SessionRow:
    """One session.

    Attributes:
        id: The session.
        root: Number of its root directory.
        known: Whether the bucket's tree was read.
        written: Whether something was changed here since it was last released.
        changed: Whether something was changed since the last commit.
        generation: The newest generation known, 0 for none.
        manifest_token: Token of ``manifest.json``, "" for none.
        committed_at: Time of the last commit as text, "" for none.
        epoch: Of the newest acquisition known, ours or another's.
        owner_state: ``held`` by us, ``released`` by us, ``lost`` to another; "" when it was never ours.
        owner_token: Token of the ownership record as it was last seen.
        holder: In that record.
        recovery: What the next manifest says of it; "" for the setting's.
        turn: The program's turns so far.
        tree_of: Of which generation this is a read-only tree; 0 for the session itself.
    """

    id: SessionId
    root: int
    known: bool
    written: bool
    changed: bool
    generation: int
    manifest_token: str
    committed_at: str
    epoch: int = 0
    owner_state: str = ""
    owner_token: str = ""
    holder: str = ""
    recovery: str = ""
    turn: int = 0
    tree_of: int = 0


_NODE = (
    "number, mode, uid, gid, size, mtime_ns, present, reserved, target, xattrs, writers, sha256,"
    " clean_size, clean_mtime_ns, clean_ctime_ns"
)
_NODE_OF_TREE = ", ".join(f"nodes.{column.strip()}" for column in _NODE.split(","))
_SESSION = (
    "id, root, known, written, changed, generation, manifest_token, committed_at, epoch, owner_state, owner_token,"
    " holder, recovery, turn, tree_of"
)


def _node(row: tuple[Any, ...]) -> Node:
    *head, writers, sha256, size, mtime_ns, ctime_ns = row
    number, mode, uid, gid, length, modified, present, reserved, target, xattrs = head
    return Node(
        number, mode, uid, gid, length, modified, bool(present), bool(reserved), target, xattrs,
        writers, sha256, (size, mtime_ns, ctime_ns),
    )  # fmt: skip


class JournalTree:
    """Sessions, inodes and names.

    Args:
        path: The database file.
        clock: Gives events their time.

    Attributes:
        fresh: Whether the database was made new: the working copy must be walked.
    """

    def __init__(self, path: str, *, clock: Clock) -> None:
        self._database, self.fresh = journal_schema.open_journal(path)
        self._clock = clock
        self._depth = 0
        self._watches: dict[int, list[Incarnation]] = {}

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Make everything inside one transaction; nesting joins the outer one."""
        if self._depth:
            yield
            return
        self._database.execute("BEGIN IMMEDIATE")
        self._depth = 1
        try:
            yield
            self._database.execute("COMMIT")
        except BaseException:
            # A full disk may end the transaction by itself, or fail the commit and leave it open.
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise
        finally:
            self._depth = 0

    # --- meta

    def meta(self, name: str, default: str = "") -> str:
        """Read a value."""
        row = self._database.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
        return str(row[0]) if row else default

    def set_meta(self, name: str, value: str) -> None:
        """Write a value."""
        self._database.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, value))

    def next_remote_number(self) -> int:
        """Give a fresh inode number for something that came from the bucket; never given twice."""
        number = int(self.meta("next_remote_number", str(FIRST_REMOTE_NUMBER)))
        self.set_meta("next_remote_number", str(number + 1))
        return number

    # --- sessions

    def session(self, session: str) -> SessionRow | None:
        """Read a session by id."""
        row = self._database.execute(f"SELECT {_SESSION} FROM sessions WHERE id = ?", (session,)).fetchone()
        return _session(row) if row else None

    def sessions(self) -> list[SessionRow]:
        """Read all sessions, by id."""
        rows = self._database.execute(f"SELECT {_SESSION} FROM sessions ORDER BY id").fetchall()
        return [_session(row) for row in rows]

    def add_session(self, session: str, root: int, *, known: bool, written: bool) -> None:
        """Add a session, or give it a new root."""
        self._database.execute(
            "INSERT INTO sessions (id, root, known, written, changed) VALUES (?, ?, ?, ?, ?)"
            " ON CONFLICT (id) DO UPDATE SET root = excluded.root, known = excluded.known,"
            " written = excluded.written, changed = excluded.changed",
            (session, root, known, written, written),
        )

    def update_session(self, session: str, **values: str | int | bool) -> None:
        """Change fields of a session; names are those of `SessionRow`."""
        fields = ", ".join(f"{name} = ?" for name in values)
        self._database.execute(
            f"UPDATE sessions SET {fields} WHERE id = ?",
            (*values.values(), session),
        )

    def remove_session(self, session: str) -> None:
        """Forget a session."""
        self._database.execute("DELETE FROM sessions WHERE id = ?", (session,))

    # --- the tree

    def node(self, number: int) -> Node | None:
        """Read an inode."""
        row = self._database.execute(f"SELECT {_NODE} FROM nodes WHERE number = ?", (number,)).fetchone()
        return _node(row) if row else None

    def put_node(
        self, number: int, *, mode: int, uid: int = 0, gid: int = 0, size_bytes: int = 0, mtime_ns: int = 0,
        present: bool, target: bytes = b"", xattrs: bytes = b"", sha256: str = "",
    ) -> None:  # fmt: skip
        """Write an inode, replacing whatever had the number."""
        self._database.execute(
            "INSERT OR REPLACE INTO nodes (number, mode, uid, gid, size, mtime_ns, present, target, xattrs, sha256)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (number, mode, uid, gid, size_bytes, mtime_ns, present, target, xattrs, sha256),
        )
        self._end_incarnation(number)

    @contextmanager
    def watch(self, number: int) -> Iterator[Incarnation]:
        """Tell whether a number goes on meaning the same inode: a filesystem gives the number of a removed file to the next one."""
        watch = Incarnation()
        self._watches.setdefault(number, []).append(watch)
        try:
            yield watch
        finally:
            self._watches[number].remove(watch)
            if not self._watches[number]:
                del self._watches[number]

    def _end_incarnation(self, number: int) -> None:
        for watch in self._watches.get(number, ()):
            watch.is_over = True

    def update_node(self, number: int, **values: str | int | bool | bytes) -> None:
        """Change columns of an inode; names are those of the table ``nodes``."""
        fields = ", ".join(f"{name} = ?" for name in values)
        self._database.execute(
            f"UPDATE nodes SET {fields} WHERE number = ?",
            (*values.values(), number),
        )

    def add_writers(self, number: int, count: int) -> None:
        """Count descriptors that may write; never below zero."""
        self._database.execute(
            "UPDATE nodes SET writers = max(0, writers + ?) WHERE number = ?", (count, number)
        )

    def nodes_with_writers(self) -> list[int]:
        """Numbers of the files that a descriptor may write."""
        rows = self._database.execute("SELECT number FROM nodes WHERE writers > 0").fetchall()
        return [row[0] for row in rows]

    def clean_files(self, after: int, limit: int) -> list[tuple[int, tuple[int, int, int]]]:
        """Numbers above `after` of files thought clean, with the identity they had then."""
        rows = self._database.execute(
            "SELECT number, clean_size, clean_mtime_ns, clean_ctime_ns FROM nodes"
            " WHERE number > ? AND clean_size >= 0 AND present = 1 ORDER BY number LIMIT ?",
            (after, limit),
        ).fetchall()
        return [(row[0], (row[1], row[2], row[3])) for row in rows]

    def child(self, parent: int, name: bytes) -> int | None:
        """Number of a name in a directory."""
        row = self._database.execute(
            "SELECT number FROM names WHERE parent = ? AND name = ?", (parent, name)
        ).fetchone()
        return int(row[0]) if row else None

    def forget_former(self, number: int) -> None:
        """Forget what is still thought of the inode that had a number before: its names, what is in it, its objects."""
        self._database.execute("DELETE FROM names WHERE number = ? OR parent = ?", (number, number))
        self._database.execute("UPDATE objects SET number = 0 WHERE number = ?", (number,))

    def renumber(self, number: int) -> int:
        """Give an inode a fresh number that the disk never gives: its own may mean another inode there."""
        fresh = self.next_remote_number()
        for change in (
            "UPDATE nodes SET number = ? WHERE number = ?",
            "UPDATE names SET number = ? WHERE number = ?",
            "UPDATE names SET parent = ? WHERE parent = ?",
            "UPDATE objects SET number = ? WHERE number = ?",
            "UPDATE sessions SET root = ? WHERE root = ?",
        ):
            self._database.execute(change, (fresh, number))
        self._end_incarnation(number)
        return fresh

    def children(self, parent: int) -> list[tuple[bytes, int]]:
        """Names in a directory with their numbers."""
        return self._database.execute(
            "SELECT name, number FROM names WHERE parent = ? ORDER BY name", (parent,)
        ).fetchall()

    def names_of(self, number: int) -> list[tuple[int, bytes]]:
        """Every (directory, name) of an inode."""
        return self._database.execute(
            "SELECT parent, name FROM names WHERE number = ? ORDER BY parent, name", (number,)
        ).fetchall()

    def link(self, parent: int, name: bytes, number: int) -> None:
        """Let a name mean an inode, replacing what it meant."""
        self._database.execute("INSERT OR REPLACE INTO names VALUES (?, ?, ?)", (parent, name, number))

    def unlink(self, parent: int, name: bytes) -> None:
        """Remove a name; the inode goes with its last one."""
        number = self.child(parent, name)
        if number is None:
            return
        self._database.execute("DELETE FROM names WHERE parent = ? AND name = ?", (parent, name))
        if not self.names_of(number):
            self._database.execute("DELETE FROM nodes WHERE number = ?", (number,))
            self._end_incarnation(number)

    def move(self, parent: int, name: bytes, new_parent: int, new_name: bytes, number: int) -> None:
        """Rename, keeping the inode."""
        self._database.execute("DELETE FROM names WHERE parent = ? AND name = ?", (parent, name))
        self.link(new_parent, new_name, number)

    def path_of(self, number: int) -> tuple[SessionId, bytes] | None:
        """Session and path of an inode's first name; None when it hangs in no session."""
        pieces: list[bytes] = []
        here = number
        for _ in range(4096):
            row = self._database.execute(
                "SELECT parent, name FROM names WHERE number = ? ORDER BY parent, name LIMIT 1", (here,)
            ).fetchone()
            if row is None:
                return None
            here = row[0]
            if here == ROOT_NUMBER:
                return SessionId(row[1].decode()), b"/".join(reversed(pieces))
            pieces.append(row[1])
        return None

    def path_in(self, parent: int, name: bytes) -> tuple[SessionId, bytes] | None:
        """Session and path of a name in a directory."""
        if parent == ROOT_NUMBER:
            return SessionId(name.decode()), b""
        above = self.path_of(parent)
        return (above[0], above[1] + b"/" + name if above[1] else name) if above else None

    def paths_of(self, number: int) -> list[tuple[SessionId, bytes]]:
        """Session and path of every name of an inode."""
        found = (self.path_in(parent, name) for parent, name in self.names_of(number))
        return [path for path in found if path is not None]

    def resolve(self, session: str, path: bytes) -> int | None:
        """Number of a path."""
        here = self.child(ROOT_NUMBER, session.encode())
        for name in path.split(b"/") if path else []:
            if here is None:
                return None
            here = self.child(here, name)
        return here

    def wanted(self, key: str) -> Wanted | None:
        """What the tree has at a live key; None when the object should not be."""
        live = keys.parse_live_key(key)
        if live is None:
            return None
        number = self.resolve(live.session, live.path)
        node = self.node(number) if number is not None else None
        if node is None or node.is_directory != live.is_directory:
            return None
        return Wanted(live.path, node)

    def present_at(self, live_keys: Iterable[str]) -> list[tuple[int, bytes]]:
        """Number and path of what is on this disk at live keys; what is not is left out. Each directory is looked up once."""
        found: list[tuple[int, bytes]] = []
        directories: dict[tuple[SessionId, bytes], int | None] = {}
        for key in live_keys:
            live = keys.parse_live_key(key)
            if live is None:
                continue
            above, _, name = live.path.rpartition(b"/")
            if live.path:
                place = (live.session, above)
                if place not in directories:
                    directories[place] = self.resolve(live.session, above)
                parent = directories[place]
            else:
                parent, name = ROOT_NUMBER, live.session.encode()
            row = self._database.execute(
                "SELECT nodes.number, nodes.mode FROM names JOIN nodes ON nodes.number = names.number"
                " WHERE names.parent = ? AND names.name = ? AND nodes.present = 1",
                (parent, name),
            ).fetchone()
            if row is not None and stat.S_ISDIR(row[1]) == live.is_directory:
                found.append((row[0], live.path))
        return found

    def below(self, number: int, path: bytes) -> Iterator[tuple[bytes, int, bool]]:
        """Every path at and below an inode with its number and whether it is a directory; children after their directory."""
        stack = [(path, number)]
        while stack:
            here, current = stack.pop()
            node = self.node(current)
            if node is None:
                continue
            yield here, current, node.is_directory
            if node.is_directory:
                stack.extend((here + b"/" + n if here else n, c) for n, c in self.children(current))

    def tree(self, root: int) -> list[tuple[bytes, Node]]:
        """Every path at and below a directory with its inode, in one statement; in no order."""
        rows = self._database.execute(
            "WITH RECURSIVE tree (path, number) AS (SELECT x'', ? UNION ALL"
            " SELECT CASE WHEN tree.path = x'' THEN names.name ELSE CAST(tree.path || x'2f' || names.name AS BLOB) END,"
            " names.number FROM tree JOIN names ON names.parent = tree.number)"
            f" SELECT tree.path, {_NODE_OF_TREE} FROM tree JOIN nodes ON nodes.number = tree.number",
            (root,),
        )
        return [(row[0], _node(row[1:])) for row in rows]

    def directories_below(self, root: int) -> set[int]:
        """Numbers of a directory and of all directories below it, in one statement."""
        rows = self._database.execute(
            "WITH RECURSIVE tree (number) AS (SELECT ? UNION SELECT names.number FROM tree"
            " JOIN names ON names.parent = tree.number JOIN nodes ON nodes.number = names.number"
            f" WHERE nodes.mode & {stat.S_IFMT(0xFFFF)} = {stat.S_IFDIR}) SELECT number FROM tree",
            (root,),
        )
        return {number for (number,) in rows}

    def entry(self, name: bytes, number: int) -> Entry | None:
        """One name as the daemon wants to know it."""
        node = self.node(number)
        if node is None:
            return None
        return Entry(
            name, number, node.present, node.mode, node.uid, node.gid, node.size_bytes, node.mtime_ns,
            len(self.names_of(number)), node.target, extended_attributes.unpack(node.xattrs),
        )  # fmt: skip

    def remote_entries(self, directory: int) -> list[Entry]:
        """Names in a directory that are not present, or whose number is not the working copy's own."""
        rows = self._database.execute(
            "SELECT names.name, names.number FROM names JOIN nodes ON nodes.number = names.number"
            " WHERE names.parent = ? AND (names.number >= ? OR nodes.present = 0 OR nodes.reserved = 1)",
            (directory, FIRST_REMOTE_NUMBER),
        ).fetchall()
        entries = (self.entry(name, number) for name, number in rows)
        return [entry for entry in entries if entry is not None]


def _session(row: tuple[Any, ...]) -> SessionRow:
    session, root, known, written, changed, *others = row
    return SessionRow(session, root, bool(known), bool(written), bool(changed), *others)
