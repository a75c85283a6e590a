"""What the bucket is known to hold, and which of it generations name (tables: ``journal_schema``).

All methods are synchronous and short. A content that a generation names stays named while its key has exactly it, or it and more behind; before
anything else takes the key it is copied aside (``replication/uploads/aside/keeping.py``). When somebody else has taken the key, what was named is
remembered without a proof: his object may begin with it, and this host may put it there again.
"""

from __future__ import annotations

import stat
from dataclasses import dataclass, field

import msgspec

from sessionfs.formats.link_message import Entry
from sessionfs.formats.manifest import BLOCK_BYTES
from sessionfs.working_copy.journal_tree import JournalTree

_OBJECT = "key, number, token, write_id, sha256, size, mode, uid, gid, mtime_ns, lineage, epoch"

_MOST_HOLDERS = 4


@dataclass(frozen=True, slots=True)
class KnownObject:
    """What the bucket is known to hold under a key.

    Attributes:
        key: The key.
        number: Inode whose content it is; 0 for another tool's.
        token: The store's name of this state.
        write_id: Of the attempt that wrote it, "" for another tool's.
        sha256: "" when unknown.
        size_bytes: Length.
        mode: As in ``st_mode``.
        uid: Owner.
        gid: Group.
        mtime_ns: Modification time.
        lineage: Stays while the object only grows.
        epoch: Of the owner that wrote it, 0 when unknown.
    """

    key: str
    number: int
    token: str
    write_id: str
    sha256: str
    size_bytes: int
    mode: int
    uid: int
    gid: int
    mtime_ns: int
    lineage: str
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Prefix:
    """First bytes of an object that a generation names.

    Attributes:
        sha256: Of them.
        size_bytes: How many.
        is_proven: Whether the object, as it is known, surely begins with them.
    """

    sha256: str
    size_bytes: int
    is_proven: bool = field(default=True, compare=False)


class KnownContent(JournalTree):
    """`JournalTree`, and what the bucket is known to hold.

    Args:
        path: The database file.
        clock: Gives events their time.
    """

    # --- the bucket

    def object(self, key: str) -> KnownObject | None:
        """What the bucket is known to hold under a key."""
        row = self._database.execute(f"SELECT {_OBJECT} FROM objects WHERE key = ?", (key,)).fetchone()
        return KnownObject(*row) if row else None

    def put_object(self, known: KnownObject, *, is_made: bool = False) -> None:
        """Record what the bucket holds under a key.

        The same content stays named when it was; of other content what was named becomes a named prefix.

        Args:
            known: The object.
            is_made: This host made it, out of what it knew: the old content with more behind it (anything else is copied aside first).
                Otherwise it was found, and nothing is proven.
        """
        is_other = self._database.execute(
            "SELECT 1 FROM objects WHERE key = ? AND (sha256 != ? OR size != ?)",
            (known.key, known.sha256, known.size_bytes),
        ).fetchone()
        if is_other is not None:
            self._name_as_prefix(known.key, is_proven=is_made)
        self._database.execute(
            f"INSERT INTO objects ({_OBJECT}, named) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0)"
            " ON CONFLICT (key) DO UPDATE SET named = named AND sha256 != '' AND sha256 = excluded.sha256"
            " AND size = excluded.size, number = excluded.number, token = excluded.token,"
            " write_id = excluded.write_id, sha256 = excluded.sha256, size = excluded.size, mode = excluded.mode,"
            " uid = excluded.uid, gid = excluded.gid, mtime_ns = excluded.mtime_ns, lineage = excluded.lineage,"
            " epoch = excluded.epoch",
            (
                known.key,
                known.number,
                known.token,
                known.write_id,
                known.sha256,
                known.size_bytes,
                known.mode,
                known.uid,
                known.gid,
                known.mtime_ns,
                known.lineage,
                known.epoch,
            ),
        )

    def _name_as_prefix(self, key: str, *, is_proven: bool) -> None:
        """Let what generations name of an object stay named, as beginnings of the object that comes next."""
        if not is_proven:
            self._database.execute("UPDATE prefixes SET proven = 0 WHERE key = ?", (key,))
        # Whoever finds out that ours begin with the whole of it knows that they begin with the shorter ones too.
        self._database.execute(
            "INSERT INTO prefixes SELECT key, sha256, size, ? FROM objects WHERE key = ? AND sha256 != '' AND size > 0"
            " AND (named = 1 OR (? AND EXISTS (SELECT 1 FROM prefixes WHERE prefixes.key = objects.key)))"
            " ON CONFLICT DO UPDATE SET proven = max(proven, excluded.proven)",
            (is_proven, key, not is_proven),
        )

    def lose_object(self, key: str) -> None:
        """Record that somebody else removed an object: what is named of it stays so, for this host may put it there again."""
        self._name_as_prefix(key, is_proven=False)
        self._database.execute("DELETE FROM objects WHERE key = ?", (key,))

    def drop_object(self, key: str) -> None:
        """Record that the bucket holds nothing under a key."""
        self._database.execute("DELETE FROM objects WHERE key = ?", (key,))
        self._database.execute("DELETE FROM prefixes WHERE key = ?", (key,))

    def objects_of(self, number: int) -> list[KnownObject]:
        """Objects whose content is an inode's."""
        rows = self._database.execute(f"SELECT {_OBJECT} FROM objects WHERE number = ?", (number,)).fetchall()
        return [KnownObject(*row) for row in rows]

    def objects_with(self, sha256: str) -> list[KnownObject]:
        """Some objects that hold these bytes; those that a person may delete come last."""
        found: list[KnownObject] = []
        # Two queries that end at their limit: thousands of files may have the same bytes, and sorting reads them all.
        for is_kept_aside in (False, True):
            rows = self._database.execute(
                f"SELECT {_OBJECT} FROM objects WHERE sha256 = ? AND (instr(key, '.conflicts/') > 0) = ? LIMIT ?",
                (sha256, is_kept_aside, _MOST_HOLDERS - len(found)),
            )
            found += [KnownObject(*row) for row in rows]
            if len(found) == _MOST_HOLDERS:
                break
        return found

    def objects_below(self, prefix: str) -> list[KnownObject]:
        """Objects whose key starts with a prefix that ends in a slash."""
        rows = self._database.execute(
            f"SELECT {_OBJECT} FROM objects WHERE key >= ? AND key < ?", (prefix, prefix[:-1] + "0")
        ).fetchall()
        return [KnownObject(*row) for row in rows]

    def count_objects(self, prefix: str) -> int:
        """How many objects have a key that starts with a prefix that ends in a slash."""
        row = self._database.execute(
            "SELECT count(*) FROM objects WHERE key >= ? AND key < ?", (prefix, prefix[:-1] + "0")
        ).fetchone()
        return int(row[0])

    # --- what generations name

    def is_named(self, key: str) -> bool:
        """Whether the newest generation, or a commit under way, names an object's content."""
        row = self._database.execute("SELECT named FROM objects WHERE key = ?", (key,)).fetchone()
        return bool(row and row[0])

    def prefixes(self, key: str) -> list[Prefix]:
        """Shorter contents that generations name of an object, shortest first."""
        rows = self._database.execute(
            "SELECT sha256, size, proven FROM prefixes WHERE key = ? ORDER BY size", (key,)
        ).fetchall()
        return [Prefix(sha256, size_bytes, bool(proven)) for sha256, size_bytes, proven in rows]

    def name_settled(self, session_prefix: str) -> None:
        """Note that a commit names everything of a session that the bucket has and no work may change."""
        self._database.execute(
            "UPDATE objects SET named = 1 WHERE key >= ? AND key < ? AND named = 0"
            " AND NOT EXISTS (SELECT 1 FROM work WHERE work.key = objects.key)",
            (session_prefix, session_prefix[:-1] + "0"),
        )

    def note_base(self, known: KnownObject, now_ns: int) -> None:
        """Note that a request was sent which replaces or removes an object."""
        self._database.execute(
            "INSERT OR REPLACE INTO bases (key, token, write_id, sent_ns) VALUES (?, ?, ?, ?)",
            (known.key, known.token, known.write_id, now_ns),
        )

    def was_base(self, key: str, write_id: str) -> bool:
        """Whether a request of the last hour was to replace what this attempt had written: an object of it that shows up is one of before."""
        row = self._database.execute(
            "SELECT 1 FROM bases WHERE key = ? AND write_id = ? AND write_id != ''", (key, write_id)
        ).fetchone()
        return row is not None

    def forget_bases(self, before_ns: int) -> None:
        """Forget those of requests that arrive no more."""
        self._database.execute("DELETE FROM bases WHERE sent_ns < ?", (before_ns,))

    def endangered(self, session_prefix: str, epoch: int, *, all_of_them: bool) -> list[str]:
        """Settled objects that no generation names yet, and that a request which is under way may still replace.

        Those are what earlier owners wrote, whose late requests do not know what is named; and what a request of ours was conditional on
        within the last hour, which may arrive late or twice.

        Args:
            session_prefix: Of the session's live objects.
            epoch: Of this host's ownership.
            all_of_them: Give every settled object that no generation names yet.
        """
        rows = self._database.execute(
            "SELECT key FROM objects WHERE key >= ? AND key < ? AND named = 0 AND size > 0 AND (? OR epoch < ?"
            " OR EXISTS (SELECT 1 FROM bases WHERE bases.key = objects.key AND bases.token = objects.token))"
            " AND NOT EXISTS (SELECT 1 FROM work WHERE work.key = objects.key)",
            (session_prefix, session_prefix[:-1] + "0", all_of_them, epoch),
        ).fetchall()
        return [row[0] for row in rows]

    def is_base(self, key: str, token: str) -> bool:
        """Whether a request of the last hour was conditional on this very object."""
        row = self._database.execute(
            "SELECT 1 FROM bases WHERE key = ? AND token = ?", (key, token)
        ).fetchone()
        return row is not None

    def name_object(self, key: str) -> None:
        """Note that a generation names an object's content."""
        self._database.execute("UPDATE objects SET named = 1 WHERE key = ?", (key,))

    def name_prefix(self, key: str, prefix: Prefix) -> None:
        """Note that a generation names first bytes of an object."""
        self._database.execute(
            "INSERT INTO prefixes VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET proven = max(proven, excluded.proven)",
            (key, prefix.sha256, prefix.size_bytes, prefix.is_proven),
        )

    def forget_named(self, key: str, *, above_bytes: int = 0, unproven_above_bytes: int = 0) -> None:
        """Note that what generations name of an object is kept elsewhere too, or is gone.

        Args:
            key: Of the object.
            above_bytes: Named prefixes up to this length stay.
            unproven_above_bytes: So do unproven ones up to this length.
        """
        self._database.execute("UPDATE objects SET named = 0 WHERE key = ?", (key,))
        self._database.execute(
            "DELETE FROM prefixes WHERE key = ? AND size > CASE proven WHEN 1 THEN ? ELSE ? END",
            (key, above_bytes, max(above_bytes, unproven_above_bytes)),
        )

    # --- blocks

    def blocks(self, sha256: str) -> tuple[str, ...]:
        """Sums of the blocks of a content, empty when they are not known or it is one block."""
        row = self._database.execute("SELECT hashes FROM blocks WHERE sha256 = ?", (sha256,)).fetchone()
        raw: bytes = row[0] if row else b""
        return tuple(raw[at : at + 32].hex() for at in range(0, len(raw), 32))

    def can_come_by_blocks(self, sha256: str, size_bytes: int) -> bool:
        """Whether every block of a content verifies alone."""
        if size_bytes <= BLOCK_BYTES or not sha256:
            return False
        return len(self.blocks(sha256)) == -(-size_bytes // BLOCK_BYTES)

    def entry(self, name: bytes, number: int) -> Entry | None:
        """As `JournalTree.entry`, with what may come block by block."""
        entry = super().entry(name, number)
        if entry is None or entry.size_bytes <= BLOCK_BYTES or not stat.S_ISREG(entry.mode):
            return entry
        node = self.node(number)
        if node is None or not self.can_come_by_blocks(node.sha256, entry.size_bytes):
            return entry
        return msgspec.structs.replace(entry, blocks_of=node.sha256)

    def put_blocks(self, sha256: str, hashes: tuple[str, ...]) -> None:
        """Record the sums of the blocks of a content."""
        self._database.execute(
            "INSERT OR REPLACE INTO blocks VALUES (?, ?)", (sha256, bytes.fromhex("".join(hashes)))
        )

    def drop_unused_blocks(self) -> None:
        """Forget the blocks of contents that neither the bucket nor this disk is known to have."""
        self._database.execute(
            "DELETE FROM blocks WHERE NOT EXISTS (SELECT 1 FROM objects WHERE objects.sha256 = blocks.sha256)"
            " AND NOT EXISTS (SELECT 1 FROM nodes WHERE nodes.sha256 = blocks.sha256)"
        )
