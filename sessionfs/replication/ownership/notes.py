"""What the journal remembers of ownership, so that a process that died at any step is understood by the next.

Order of a claim, each step in the journal before or right after its request:

1. the write id of the record, before it is sent: a record with it is ours, whatever the journal knew when its process died; and whether
   somebody else may have owned the session since this host did (*news*);
2. the record is ours: epoch, token, holder;
3. the manifest is fenced: without news it is the base of the next commit. With news that is so only once the session was
   compared with the bucket (`note_caught_up`).

*News* survives everything until then. Without a foreign owner in between, a manifest of an epoch of ours is no news, although the journal may not
know it: the process died before it noted its own fence or commit.
"""

from __future__ import annotations

import msgspec

from sessionfs.formats.manifest import Manifest
from sessionfs.model.names import SessionId
from sessionfs.working_copy.journal_tree import SessionRow
from sessionfs.working_copy.upload_journal import UploadJournal

HELD, RELEASED, LOST = "held", "released", "lost"
_REMEMBERED_CLAIMS = 16


def latest_epoch(journal: UploadJournal, session: str, epoch: int) -> int:
    """Give the highest epoch of an object that proves no other owner.

    Args:
        journal: Has the notes.
        session: The session.
        epoch: Of this host's ownership.
    """
    return max(epoch, int(journal.meta(_copied(session)) or 0))


def note_copied(journal: UploadJournal, session: str, epoch: int) -> None:
    """Note that an object shows an epoch that no owner of this session had: a tool copied it from another."""
    journal.set_meta(_copied(session), str(max(epoch, latest_epoch(journal, session, 0))))


def _copied(session: str) -> str:
    return f"copied_epoch:{session}"


class _Notes(msgspec.Struct, frozen=True):
    """One session's notes.

    Attributes:
        claims: Write ids of records that were sent since the last one that is known to have landed.
        first_epoch: First of the epochs that follow one another and are all ours.
        has_news: Somebody else may have owned the session since it was last compared with the bucket.
    """

    claims: tuple[str, ...] = ()
    first_epoch: int = 0
    has_news: bool = False


class OwnershipNotes:
    """Reads and writes them.

    Args:
        journal: Where they are.
    """

    def __init__(self, journal: UploadJournal) -> None:
        self._journal = journal

    def claims(self, session: SessionId) -> tuple[str, ...]:
        """Write ids of records of ours that may be in the bucket."""
        return self._read(session).claims

    def has_news(self, session: SessionId) -> bool:
        """Whether the session must be compared with the bucket before anything of it is sent."""
        return self._read(session).has_news

    def note_claim(self, session: SessionId, write_id: str, *, epoch: int, is_continued: bool) -> None:
        """Note a record that is about to be sent.

        Args:
            session: The session.
            write_id: Of the record.
            epoch: In the record.
            is_continued: Nobody else owned the session since this host last did.
        """
        notes = self._read(session)
        claims = (*notes.claims, write_id)[-_REMEMBERED_CLAIMS:]
        first_epoch = notes.first_epoch if is_continued and notes.first_epoch else epoch
        # Before it is sent: whoever finds it there after a crash knows that it is ours, and no longer whose it was before.
        self._write(session, _Notes(claims, first_epoch, notes.has_news or not is_continued))

    def note_acquired(self, session: SessionId, *, epoch: int, token: str, holder: str) -> None:
        """Note that the record is ours.

        Args:
            session: The session.
            epoch: Of this acquisition.
            token: Of the record.
            holder: In the record.
        """
        with self._journal.transaction():
            self._write(session, msgspec.structs.replace(self._read(session), claims=()))
            self._journal.update_session(
                session, epoch=epoch, owner_state=HELD, owner_token=token, holder=holder
            )

    def judge(self, row: SessionRow, manifest: Manifest | None, token: str) -> bool:
        """Say, and note, whether the manifest that is about to be fenced is news.

        Args:
            row: The session as the journal has it.
            manifest: Read just now, None for none.
            token: Its token, "" for none.
        """
        notes = self._read(row.id)
        is_new_here = row.written and not row.manifest_token
        if manifest is None:
            news = row.manifest_token != ""
        elif manifest.removed and is_new_here:
            # Made here on top of a session that was removed: nothing of it is waited for.
            self._write(row.id, msgspec.structs.replace(notes, has_news=False))
            return False
        else:
            is_ours = 0 < notes.first_epoch <= manifest.epoch
            news = token != row.manifest_token and not is_ours
        if news and not notes.has_news:
            self._write(row.id, msgspec.structs.replace(notes, has_news=True))
        return news or notes.has_news

    def note_base(self, session: SessionId, manifest: Manifest, token: str) -> None:
        """Note the manifest that the next commit follows."""
        self._journal.update_session(
            session,
            manifest_token=token,
            generation=manifest.generation,
            committed_at=manifest.created_at if manifest.generation else "",
        )

    def note_caught_up(self, session: SessionId) -> None:
        """Note that the session was compared with the bucket."""
        self._write(session, msgspec.structs.replace(self._read(session), has_news=False))

    def note_released(self, session: SessionId, token: str) -> None:
        """Note that the session was given up, or may have been; the record is still recognised by its token."""
        self._journal.update_session(session, owner_state=RELEASED, owner_token=token)

    def note_kept(self, session: SessionId) -> None:
        """Note that the session was not given up after all: nothing was sent."""
        self._journal.update_session(session, owner_state=HELD)

    def note_lost(self, session: SessionId, holder: str) -> None:
        """Note that another host owns the session."""
        with self._journal.transaction():
            self._write(session, _Notes(has_news=True))
            self._journal.update_session(session, owner_state=LOST, owner_token="", holder=holder)

    def _read(self, session: SessionId) -> _Notes:
        raw = self._journal.meta(_name(session))
        return msgspec.json.decode(raw, type=_Notes) if raw else _Notes()

    def _write(self, session: SessionId, notes: _Notes) -> None:
        self._journal.set_meta(_name(session), msgspec.json.encode(notes).decode())


def _name(session: SessionId) -> str:
    return f"ownership:{session}"
