"""The upload journal: the tree, what the bucket holds, and which keys may differ (tables: ``journal_schema``).

All methods are synchronous and short; `transaction` groups them. One writer, one thread at a time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from sessionfs.formats.link_messages import (
    Conflict,
    Event,
)
from sessionfs.model import keys, names, roots
from sessionfs.model.clock import utc_text
from sessionfs.model.names import SessionId
from sessionfs.working_copy.known_content import KnownContent
from sessionfs.working_copy.layout import ROOT_NUMBER

MAX_EVENTS = 10_000
_SENTENCES = frozenset({"problem", "reason"})
_EVENTS_BETWEEN_CUTS = 1024
Mark = tuple[int, int]
"""(version, changed_ns) of a row: whatever is marked again has another, also when its row went and came back."""
_WORK = "key, session, first_owed_ns, changed_ns, not_before_ns, version, tries, state, reason, held"


@dataclass(frozen=True, slots=True)
class Work:
    """A key whose object may differ from the tree.

    Attributes:
        key: The key.
        session: Its session.
        first_owed_ns: When it first differed, wall clock.
        changed_ns: The last change seen.
        not_before_ns: Wait until then.
        version: Counts marks: a key marked again while in flight stays.
        tries: Failed tries since the last success.
        state: ``owed`` or ``stuck``.
        reason: Why the last try failed.
        held: Whether it waits for a person or a commit (the brake on mass deletion).
    """

    key: str
    session: str
    first_owed_ns: int
    changed_ns: int
    not_before_ns: int
    version: int
    tries: int
    state: str
    reason: str
    held: bool


@dataclass(frozen=True, slots=True)
class WorkSummary:
    """What one session owes.

    Attributes:
        rows: How many keys.
        oldest_ns: When the oldest became owed, wall clock.
        is_stuck: Whether one is refused for good.
        sample: Some of the keys.
    """

    rows: int
    oldest_ns: int
    is_stuck: bool
    sample: tuple[str, ...]


class UploadJournal(KnownContent):
    """The journal of one state directory: the tree, what the bucket holds, and what is owed.

    Args:
        path: The database file.
        clock: Gives events their time.
    """

    # --- what is owed

    def mark(self, key: str, session: str, now_ns: int) -> None:
        """Let a key be looked at: its object may differ from the tree."""
        self._database.execute(
            "INSERT INTO work (key, session, first_owed_ns, changed_ns) VALUES (?, ?, ?, ?)"
            " ON CONFLICT (key) DO UPDATE SET changed_ns = max(changed_ns, excluded.changed_ns),"
            " version = version + 1, state = 'owed', reason = '', held = 0",
            (key, session, now_ns, now_ns),
        )
        self._database.execute("UPDATE sessions SET changed = 1 WHERE id = ? AND changed = 0", (session,))

    def work(self, key: str) -> Work | None:
        """Read one row."""
        row = self._database.execute(f"SELECT {_WORK} FROM work WHERE key = ?", (key,)).fetchone()
        return Work(*row) if row else None

    def oldest_work(self, now_ns: int, limit: int) -> list[Work]:
        """Rows that may run now, oldest first; held and stuck ones left out."""
        rows = self._database.execute(
            f"SELECT {_WORK} FROM work WHERE held = 0 AND state = 'owed' AND not_before_ns <= ?"
            " ORDER BY first_owed_ns LIMIT ?",
            (now_ns, limit),
        ).fetchall()
        return [Work(*row) for row in rows]

    def all_work(self, limit: int = 1_000_000) -> list[Work]:
        """All rows, oldest first."""
        rows = self._database.execute(
            f"SELECT {_WORK} FROM work ORDER BY first_owed_ns LIMIT ?", (limit,)
        ).fetchall()
        return [Work(*row) for row in rows]

    def session_work(self, session: str) -> list[Work]:
        """All rows of a session, oldest first."""
        rows = self._database.execute(
            f"SELECT {_WORK} FROM work WHERE session = ? ORDER BY first_owed_ns", (session,)
        ).fetchall()
        return [Work(*row) for row in rows]

    def owed_keys(self, session: str) -> dict[str, Mark]:
        """Keys of a session's rows, oldest first, each with its last mark."""
        rows = self._database.execute(
            "SELECT key, version, changed_ns FROM work WHERE session = ? ORDER BY first_owed_ns", (session,)
        )
        return {key: (version, changed_ns) for key, version, changed_ns in rows}

    def owes_anything(self) -> bool:
        """Whether any key is owed."""
        return self._database.execute("SELECT 1 FROM work LIMIT 1").fetchone() is not None

    def owes(self, session: str) -> bool:
        """Whether a session has rows."""
        found = self._database.execute("SELECT 1 FROM work WHERE session = ? LIMIT 1", (session,))
        return found.fetchone() is not None

    def work_count(self, session: str) -> int:
        """Rows of a session."""
        found = self._database.execute("SELECT count(*) FROM work WHERE session = ?", (session,))
        return int(found.fetchone()[0])

    def owing_sessions(self) -> list[tuple[SessionId, str]]:
        """Known sessions that have rows, each with its ``owner_state``; there are few sessions, and may be many rows."""
        return self._database.execute(
            "SELECT id, owner_state FROM sessions WHERE EXISTS (SELECT 1 FROM work WHERE work.session = sessions.id)"
        ).fetchall()

    def unnamed_sessions(self) -> list[SessionId]:
        """Sessions that were removed here and whose end is not committed yet."""
        rows = self._database.execute(
            "SELECT id FROM sessions WHERE NOT EXISTS (SELECT 1 FROM names WHERE names.parent = ?"
            " AND names.name = CAST(sessions.id AS BLOB))",
            (ROOT_NUMBER,),
        ).fetchall()
        return [row[0] for row in rows]

    def work_in(self, prefix: str) -> list[str]:
        """Keys with work just below a prefix that ends in a slash."""
        rows = self._database.execute(
            "SELECT key FROM work WHERE key > ? AND key < ?", (prefix, prefix[:-1] + "0")
        ).fetchall()
        return [row[0] for row in rows if "/" not in row[0][len(prefix) : -1]]

    def related_work(self, key: str) -> list[str]:
        """Keys with work that cannot be in the bucket together with this one: ``a`` against ``a/`` and ``a/...``."""
        bare = key.rstrip("/")
        parts = bare.split("/")
        ancestors = ["/".join(parts[:count]) for count in range(3, len(parts))]
        if key.endswith("/"):
            ancestors.append(bare)
        found = [name for name in ancestors if self.work(name) is not None]
        if not key.endswith("/"):
            rows = self._database.execute(
                "SELECT key FROM work WHERE key >= ? AND key < ? LIMIT 50", (bare + "/", bare + "0")
            ).fetchall()
            found.extend(row[0] for row in rows)
        return found

    def finish_work(self, key: str, version: int) -> bool:
        """Remove a row unless it was marked again since.

        Returns:
            Whether the key is clean now.
        """
        done = self._database.execute("DELETE FROM work WHERE key = ? AND version = ?", (key, version))
        if done.rowcount:
            return True
        # What changed while it was in flight has waited since then, not since the first change.
        self._database.execute("UPDATE work SET first_owed_ns = changed_ns, tries = 0 WHERE key = ?", (key,))
        return False

    def defer_work(self, key: str, *, not_before_ns: int, reason: str, tries: int) -> None:
        """Let a row wait."""
        self._database.execute(
            "UPDATE work SET not_before_ns = ?, reason = ?, tries = ? WHERE key = ?",
            (not_before_ns, reason, tries, key),
        )

    def explain_work(self, key: str, reason: str) -> None:
        """Say why a row waits, when it does not say so yet."""
        self._database.execute(
            "UPDATE work SET reason = ? WHERE key = ? AND reason != ?", (reason, key, reason)
        )

    def stick_work(self, key: str, reason: str) -> None:
        """Let a row wait for a person."""
        self._database.execute("UPDATE work SET state = 'stuck', reason = ? WHERE key = ?", (reason, key))

    def hold_work(self, keys_held: list[str]) -> None:
        """Let deletions wait for ``sessionfs retry`` or a commit."""
        self._database.executemany("UPDATE work SET held = 1 WHERE key = ?", [(key,) for key in keys_held])

    def release_work(self) -> None:
        """Let everything run now: backed off, stuck or held."""
        self._database.execute(
            "UPDATE work SET not_before_ns = 0, held = 0, state = 'owed', version = version + 1"
        )

    def held_counts(self) -> dict[str, int]:
        """Rows that wait for a person, by session."""
        rows = self._database.execute("SELECT session, count(*) FROM work WHERE held = 1 GROUP BY session")
        return dict(rows.fetchall())

    def release_held(self, session: str) -> None:
        """Let a session's held deletions run."""
        self._database.execute("UPDATE work SET held = 0 WHERE held = 1 AND session = ?", (session,))

    def stuck_count(self) -> int:
        """Rows that failed for good."""
        row = self._database.execute("SELECT count(*) FROM work WHERE state = 'stuck'").fetchone()
        return int(row[0])

    def held_count(self) -> int:
        """Rows that wait for a person."""
        return int(self._database.execute("SELECT count(*) FROM work WHERE held = 1").fetchone()[0])

    def work_summaries(self, sample: int) -> dict[str, WorkSummary]:
        """Count what is owed, by session.

        Args:
            sample: So many keys of each session are given too, whichever they are.
        """
        rows = self._database.execute(
            "SELECT session, count(*), min(first_owed_ns), max(state = 'stuck') FROM work GROUP BY session"
        )
        return {
            row[0]: WorkSummary(row[1], row[2], bool(row[3]), self._work_sample(row[0], sample))
            for row in rows.fetchall()
        }

    def _work_sample(self, session: str, sample: int) -> tuple[str, ...]:
        prefix = roots.key_base(session)
        rows = self._database.execute(
            "SELECT key FROM work WHERE key >= ? AND key < ? LIMIT ?", (prefix + "/", prefix + "0", sample)
        )
        return tuple(row[0] for row in rows)

    def work_counts(self) -> dict[str, tuple[int, int]]:
        """Rows and oldest ``first_owed_ns`` by session."""
        rows = self._database.execute(
            "SELECT session, count(*), min(first_owed_ns) FROM work GROUP BY session"
        ).fetchall()
        return {row[0]: (row[1], row[2]) for row in rows}

    # --- puts whose outcome is not known

    def begin_attempt(self, write_id: str, key: str) -> None:
        """Record a put before it is sent."""
        self._database.execute(
            "INSERT INTO attempts (write_id, key, sent_ns) VALUES (?, ?, ?)",
            (write_id, key, self._clock.wall_ns()),
        )

    def end_attempt(self, write_id: str) -> None:
        """Forget a put whose outcome is certain."""
        self._database.execute("DELETE FROM attempts WHERE write_id = ?", (write_id,))

    def settle_attempt(self, write_id: str) -> None:
        """Record that a put was not seen to land; it may still, late."""
        self._database.execute("UPDATE attempts SET settled = 1 WHERE write_id = ?", (write_id,))

    def attempts(self, key: str) -> list[tuple[str, bool]]:
        """Write ids sent to a key, with whether they were settled as not landed."""
        rows = self._database.execute(
            "SELECT write_id, settled FROM attempts WHERE key = ?", (key,)
        ).fetchall()
        return [(row[0], bool(row[1])) for row in rows]

    def attempted_keys(self, *, settled: bool) -> list[tuple[str, int]]:
        """Keys with attempts, and when the newest was sent."""
        return self._database.execute(
            "SELECT key, max(sent_ns) FROM attempts WHERE settled = ? GROUP BY key", (settled,)
        ).fetchall()

    def forget_attempts(self, before_ns: int) -> None:
        """Forget settled attempts sent before a time."""
        self._database.execute("DELETE FROM attempts WHERE settled = 1 AND sent_ns < ?", (before_ns,))

    # --- conflicts and events

    def add_conflict(self, key: str, *, live_key: str, holder: str, reason: str = "") -> None:
        """Record bytes kept aside."""
        live = keys.parse_live_key(live_key)
        session, path = (live.session, live.path) if live else ("", live_key.encode())
        self._database.execute(
            "INSERT OR REPLACE INTO conflicts VALUES (?, ?, ?, ?, ?, ?, ?)",
            (key, session, path, live_key, utc_text(self._clock.wall_ns()), holder, reason),
        )

    def conflicts(self) -> list[Conflict]:
        """Bytes kept aside, oldest first."""
        rows = self._database.execute(
            "SELECT session, path, key, kept_at, holder, reason FROM conflicts ORDER BY kept_at"
        ).fetchall()
        return [Conflict(row[0], names.display(row[1]), *row[2:]) for row in rows]

    def drop_conflict(self, key: str) -> None:
        """Forget bytes kept aside: somebody decided."""
        self._database.execute("DELETE FROM conflicts WHERE key = ?", (key,))
        self.drop_object(key)

    def conflict_of(self, live_key: str) -> str:
        """Key of the bytes kept aside for a live key, "" for none."""
        row = self._database.execute(
            "SELECT key FROM conflicts WHERE live_key = ? ORDER BY kept_at DESC LIMIT 1", (live_key,)
        ).fetchone()
        return str(row[0]) if row else ""

    def conflict_counts(self) -> dict[str, int]:
        """Number of conflicts by session."""
        rows = self._database.execute("SELECT session, count(*) FROM conflicts GROUP BY session").fetchall()
        return dict(rows)

    def add_event(self, name: str, fields: Mapping[str, str | int | float | bool]) -> None:
        """Announce something; the newest `MAX_EVENTS` about files and as many about everything else are kept."""
        at = utc_text(self._clock.wall_ns())
        number = self._database.execute(
            "INSERT INTO events (name, at, fields) VALUES (?, ?, ?)", (name, at, _shown(fields))
        ).lastrowid
        if number is not None and number % _EVENTS_BETWEEN_CUTS == 0:
            # An outage must not be pushed out by the writes that went on during it.
            for pattern in ("name LIKE 'session.file.%'", "name NOT LIKE 'session.file.%'"):
                self._database.execute(
                    f"DELETE FROM events WHERE {pattern} AND number <= coalesce((SELECT number FROM events"
                    f" WHERE {pattern} ORDER BY number DESC LIMIT 1 OFFSET ?), 0)",
                    (MAX_EVENTS,),
                )

    def events(self, after: int, limit: int) -> list[Event]:
        """Events after a number, oldest first."""
        rows = self._database.execute(
            "SELECT number, name, at, fields FROM events WHERE number > ? ORDER BY number LIMIT ?",
            (after, limit),
        ).fetchall()
        return [Event(row[0], row[1], row[2], json.loads(row[3])) for row in rows]


def _shown(fields: Mapping[str, str | int | float | bool]) -> str:
    """Give an event's fields as people and programs read them: shared roots have their ids on this host only."""
    shown = dict(fields)
    if "session_id" in shown:
        shown["session_id"] = roots.shown_id(str(shown["session_id"]))
    for name in _SENTENCES & shown.keys():
        shown[name] = roots.readable(str(shown[name]))
    return json.dumps(shown)
