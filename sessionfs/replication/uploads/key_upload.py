"""Makes one key's object what the tree wants: the steps, whatever happened before.

Steps: settle what is unknown; read what is wanted; take a stable image; compare with what is known; send the cheapest request under a
condition; look at what was found when the condition failed; confirm in one transaction. The row is removed
only if the key was not marked again meanwhile, so that no change is lost between two steps.
"""

from __future__ import annotations

import mimetypes
import os
import stat
from collections import Counter
from dataclasses import dataclass, replace

from sessionfs.formats import object_metadata
from sessionfs.formats.object_metadata import Provenance
from sessionfs.model import keys, names
from sessionfs.model.clock import Clock
from sessionfs.model.errors import (
    CorruptDataError,
    InvalidKeyError,
    OutcomeUnknownError,
    OwnershipLostError,
    SessionFSError,
)
from sessionfs.model.keys import LivePath
from sessionfs.model.settings import ReplicationSettings
from sessionfs.replication.trio_store import Landed, Moved, NotLanded, SourceMoved, TrioStore, write_id_of
from sessionfs.replication.uploads.aside.keeping import Keeping
from sessionfs.replication.uploads.aside.parking import Parking
from sessionfs.replication.uploads.attempts import Attempts, known_object
from sessionfs.replication.uploads.authority import Authority
from sessionfs.replication.uploads.conflicts import Conflicts, RaiseEvent
from sessionfs.replication.uploads.content_source import Append, Copy, Way, has_content, ways
from sessionfs.replication.uploads.sending import ImageChangedError, Sender, Sent
from sessionfs.replication.uploads.sqlite_image import Deferred
from sessionfs.replication.uploads.stable_image import Image
from sessionfs.replication.uploads.subjects import Missing, Subject, Subjects
from sessionfs.stores.base import (
    Condition,
    IfAbsent,
    IfMatch,
    ObjectMetadata,
    ObjectStat,
    Token,
    Unconditional,
)
from sessionfs.stores.request_checks import check_key
from sessionfs.working_copy.exclusions import Exclusions
from sessionfs.working_copy.journal_tree import Wanted
from sessionfs.working_copy.known_content import KnownObject
from sessionfs.working_copy.reconciliation.missing_files import MissingFiles
from sessionfs.working_copy.upload_journal import UploadJournal, Work

NOT_OURS = "this host does not own the session now"

_ROUNDS = 6
_MISSING_TRIES = 6
"""So often a file is looked for that the tree has and the disk has not: the log may be a moment behind."""
_DIRECTORY_TYPE = "application/x-directory"
_PLAIN_TYPE = "application/octet-stream"
_TYPES = mimetypes.MimeTypes()
_NO_IDENTITY = (-1, 0, 0)


@dataclass(frozen=True, slots=True)
class Processed:
    """A key was brought up to date, or needed nothing.

    Attributes:
        version: Of the row, when what is wanted was read.
    """

    version: int


class KeyUpload:
    """Processes keys, each by one task at a time.

    Args:
        journal: What is wanted and known.
        store: The bucket.
        subjects: Reads what is wanted.
        parking: Brings bytes to safety.
        keeping: Brings what generations name to safety.
        authority: Says whether a session may be changed, and with which epoch.
        settings: From which lengths copies and appends pay.
        clock: Names of attempts.
        exclusions: Names that never leave this host.
        attempts: Puts without an answer.
        conflicts: Keeps other writers' bytes.
        raise_event: Told of every upload.

    Attributes:
        uploads: Files brought to the bucket.
        uploaded_bytes: Bytes sent for them.
        sent_objects: Objects of any kind brought to the bucket, by session; whoever reports them starts the count anew.
        sent_bytes: Bytes sent for them, by session.
    """

    def __init__(
        self,
        journal: UploadJournal,
        store: TrioStore,
        *,
        subjects: Subjects,
        parking: Parking,
        keeping: Keeping,
        authority: Authority,
        settings: ReplicationSettings,
        clock: Clock,
        exclusions: Exclusions,
        attempts: Attempts,
        conflicts: Conflicts,
        raise_event: RaiseEvent,
    ) -> None:
        self._journal = journal
        self._store = store
        self._subjects = subjects
        self._parking = parking
        self._keeping = keeping
        self._authority = authority
        self._settings = settings
        self._clock = clock
        self._exclusions = exclusions
        self._attempts = attempts
        self._conflicts = conflicts
        self._raise_event = raise_event
        self.sender = Sender(store, settings)
        self.uploads = 0
        self.uploaded_bytes = 0
        self.sent_objects: Counter[str] = Counter()
        self.sent_bytes: Counter[str] = Counter()

    async def process(self, key: str) -> Processed | Deferred:
        """Make a key's object what the tree wants.

        Returns:
            That it is so, or why not now.

        Raises:
            SessionFSError: The store refused or did not answer.
            OSError: The file cannot be read.
        """
        if self._attempts.are_unsettled(key):
            await self._attempts.look(key)
        row = self._journal.work(key)
        if row is None:
            return Processed(0)
        live = keys.parse_live_key(key)
        if live is None or (live.path and self._exclusions.match(live.path)):
            return self._finish(row)
        wanted = self._journal.wanted(key)
        if wanted is None:
            return await self._bring(row, live, None)
        with self._journal.watch(wanted.node.number) as incarnation:
            subject = await self._subjects.read(key, live, wanted)
            if isinstance(subject, Missing):
                return self._lose(row, live, wanted)
            if isinstance(subject, Subject):
                subject.incarnation, subject.session = incarnation, live.session
            return subject if isinstance(subject, Deferred) else await self._bring(row, live, subject)

    async def _bring(self, row: Work, live: LivePath, subject: Subject | None) -> Processed | Deferred:
        try:
            if not self._authority.may_change(live.session):
                return Deferred(NOT_OURS)
            if not self._is_key(row.key):
                return await self._keep_by_content(row, live, subject)
            if subject is None:
                return await self._remove(row, live)
            return await self._publish(row, live, subject)
        except ImageChangedError:
            return Deferred("it changed while it was sent")
        finally:
            if subject is not None:
                subject.close()

    def _lose(self, row: Work, live: LivePath, wanted: Wanted) -> Processed | Deferred:
        """A file went from the disk and no record tells of it: it is what the bucket has, and nothing is deleted there."""
        if row.tries < _MISSING_TRIES:
            return Deferred("it is not on this disk")
        above, _, name = live.path.rpartition(b"/")
        with self._journal.transaction():
            parent = self._journal.resolve(live.session, above)
            if parent is not None and live.path and self._journal.wanted(row.key) == wanted:
                MissingFiles(self._journal, live.session).lose(parent, name, live.path)
                self._journal.mark(row.key, live.session, self._clock.wall_ns())
        return Deferred("it was not on this disk")

    def _is_key(self, key: str) -> bool:
        try:
            check_key(key, self._store.capabilities)
        except InvalidKeyError:
            return False
        return True

    # --- put

    async def _publish(self, row: Work, live: LivePath, subject: Subject) -> Processed | Deferred:
        key = row.key
        for _ in range(_ROUNDS):
            known = self._journal.object(key)
            if subject.is_known_as(known) and known is not None:
                return self._found_clean(row, known, subject)
            if known is not None and not has_content(known, subject.content):
                await self._keeping.before_change(known, subject.content)
                await self._keep_last_copy(known)
            condition: Condition = IfMatch(Token(known.token)) if known is not None else IfAbsent()
            sent, attempt = await self._send(key, known, subject, condition)
            outcome = sent.outcome
            if isinstance(outcome, Landed):
                return self._confirm(row, live, subject, sent, replace(attempt, token=outcome.token))
            if isinstance(outcome, NotLanded):
                self._attempts.settle_one(key, attempt.write_id)
                return Deferred("sent, and not seen to arrive")
            self._journal.end_attempt(attempt.write_id)
            if isinstance(outcome, Moved):
                await self._meet(live, key, subject, outcome.found)
        return Deferred("somebody else keeps changing it")

    async def _send(
        self,
        key: str,
        known: KnownObject | None,
        subject: Subject,
        condition: Condition,
        *,
        is_retry: bool = False,
    ) -> tuple[Sent, KnownObject]:
        """Send the first way whose source holds.

        Returns:
            What was sent, and the object that it makes, its token still missing.

        Raises:
            CorruptDataError: The bytes are neither on this disk nor in the bucket.
        """
        others = self._journal.objects_of(subject.content.number) if subject.content.number else []
        if subject.content.sha256:
            others += self._journal.objects_with(subject.content.sha256)
        possible = ways(subject.content, known, others, self._settings, self._store.capabilities)
        for way in possible:
            sent, attempt = await self._attempt(way, key, known, subject, condition)
            if not isinstance(sent.outcome, SourceMoved):
                return sent, attempt
            self._journal.end_attempt(attempt.write_id)
            if isinstance(way, Copy) and not subject.content.is_here and await self._refresh(way.source):
                return await self._send(key, self._journal.object(key), subject, condition)
        if subject.content.sha256 and not is_retry and await self._is_elsewhere(known, subject):
            return await self._send(key, known, subject, condition, is_retry=True)
        raise CorruptDataError(
            f"the bytes of {key!r} are neither on this disk nor in the bucket any more",
            remedy="put the file there again, or delete it",
        )

    async def _is_elsewhere(self, known: KnownObject | None, subject: Subject) -> bool:
        """Whether bytes that are not on this disk are under the key of their content, or can be: a kept object, or the one at their key begins so."""
        content = subject.content
        what = (content.number, content.sha256, content.size_bytes)
        if await self._parking.find(subject.session, *what):
            return True
        if await self._parking.find_beginning(subject.session, *what):
            return True
        return known is not None and await self._parking.cut_off(subject.session, known, *what) is not None

    async def _attempt(
        self, way: Way, key: str, known: KnownObject | None, subject: Subject, condition: Condition
    ) -> tuple[Sent, KnownObject]:
        write_id = self._clock.unique_id()
        lineage = self._clock.unique_id()
        if known is not None and known.lineage:
            same_bytes = has_content(known, subject.content)
            lineage = known.lineage if isinstance(way, Append) or same_bytes else lineage
        content, attributes = subject.content, subject.attributes
        epoch = self._authority.epoch(subject.session)
        made = KnownObject(
            key, content.number, "", write_id, content.sha256, content.size_bytes,
            attributes.mode, attributes.uid, attributes.gid, attributes.mtime_ns, lineage, epoch,
        )  # fmt: skip
        metadata = ObjectMetadata(
            user=object_metadata.encode(attributes, Provenance(content.sha256, write_id, epoch, lineage)),
            content_type=content_type_of(key, attributes.mode),
        )
        self._journal.begin_attempt(write_id, key)
        if known is not None and isinstance(condition, IfMatch):
            self._journal.note_base(known, self._clock.wall_ns())
        try:
            sent = await self.sender.send(
                way,
                key,
                subject.image,
                condition=condition,
                metadata=metadata,
                is_permitted=lambda: self._authority.may_change(subject.session),
            )
        except OutcomeUnknownError:
            raise
        except (SessionFSError, ImageChangedError, OSError):
            self._journal.end_attempt(write_id)
            raise
        return sent, made

    async def _refresh(self, source: KnownObject) -> bool:
        """Look at a source that the journal knows wrongly; whether it has the bytes after all, under a new token."""
        found = await self._store.head(source.key)
        if found is None or found.token == source.token:
            return False
        now = known_object(found, source.key, source.number)
        if now.size_bytes != source.size_bytes or not now.sha256 or now.sha256 != source.sha256:
            return False
        self._journal.put_object(now)
        return True

    async def _check_epoch(self, live: LivePath, found: ObjectStat) -> None:
        """An object of a later owner is the proof that this host is none."""
        epoch = known_object(found, found.key, 0).epoch
        if epoch > self._authority.latest_epoch(live.session):
            reason = f"{found.key!r} was written by a later owner (epoch {epoch})"
            if not await self._authority.is_ours_still(live.session, epoch, reason):
                raise OwnershipLostError(f"session {live.session} is owned by another host: {reason}")

    async def _meet(self, live: LivePath, key: str, subject: Subject, found: ObjectStat | None) -> None:
        """Somebody else's object (or none) is where ours was expected: make it the base of the next try.

        Raises:
            OwnershipLostError: It is a later owner's.
        """
        if found is None:
            with self._journal.transaction():
                self._journal.lose_object(key)
            return
        known = self._journal.object(key)
        if known is not None and (known.token, known.write_id) == (found.token, write_id_of(found)):
            # Nobody was here: the refusal was about a moment that has passed.
            return
        if self._attempts.is_ours(key, found):
            self._attempts.adopt(key, found)
            return
        await self._check_epoch(live, found)
        there = known_object(found, key, 0)
        is_empty_marker = key.endswith("/") and there.size_bytes == 0
        if not (is_empty_marker or (there.sha256 and has_content(there, subject.content))):
            if not await self._conflicts.keep_aside(key, found):
                return
        elif not subject.incarnation.is_over:
            there = replace(there, number=subject.content.number)
        with self._journal.transaction():
            self._journal.put_object(there)

    # --- confirm

    def _confirm(
        self, row: Work, live: LivePath, subject: Subject, sent: Sent, made: KnownObject
    ) -> Processed:
        if subject.incarnation.is_over:
            made = replace(made, number=0)
        with self._journal.transaction():
            self._journal.put_object(made, is_made=True)
            self._journal.end_attempt(made.write_id)
            self._note_clean(subject)
            if not live.is_directory:
                self._raise_event(
                    "session.file.uploaded",
                    {
                        "session_id": live.session,
                        "path": names.display(live.path),
                        "size": made.size_bytes,
                        "key": made.key,
                        "how": sent.how,
                    },
                )
            self._finish(row, subject)
        self.sent_objects[live.session] += 1
        self.sent_bytes[live.session] += sent.sent_bytes
        if not live.is_directory:
            self.uploads += 1
            self.uploaded_bytes += sent.sent_bytes
        return Processed(row.version)

    def _found_clean(self, row: Work, known: KnownObject, subject: Subject) -> Processed:
        with self._journal.transaction():
            if known.number != subject.content.number and not subject.incarnation.is_over:
                self._journal.put_object(replace(known, number=subject.content.number))
            self._note_clean(subject)
            self._finish(row, subject)
        return Processed(row.version)

    def _note_clean(self, subject: Subject) -> None:
        """Record which bytes and attributes of a file the bucket has."""
        if isinstance(subject.image, Image) and subject.image.blocks:
            self._journal.put_blocks(subject.image.sha256, subject.image.blocks)
        if not isinstance(subject.image, Image) or not subject.content.number or subject.incarnation.is_over:
            return
        size, mtime_ns, ctime_ns = subject.image.identity or _NO_IDENTITY
        self._journal.update_node(
            subject.content.number,
            sha256=subject.content.sha256,
            mode=subject.attributes.mode,
            uid=subject.attributes.uid,
            gid=subject.attributes.gid,
            size=subject.content.size_bytes,
            mtime_ns=subject.attributes.mtime_ns,
            clean_size=size,
            clean_mtime_ns=mtime_ns,
            clean_ctime_ns=ctime_ns,
        )

    def _finish(self, row: Work, subject: Subject | None = None) -> Processed:
        image = subject.image if subject is not None else None
        if (
            self._journal.finish_work(row.key, row.version)
            and isinstance(image, Image)
            and image.changed_since()
        ):
            # It grew on while it was sent, and no record may have told of that yet.
            self._journal.mark(row.key, row.session, self._clock.wall_ns())
        return Processed(row.version)

    # --- delete

    async def _remove(self, row: Work, live: LivePath) -> Processed | Deferred:
        key = row.key
        for _ in range(_ROUNDS):
            known = self._journal.object(key)
            if known is None:
                if not self._journal.attempts(key):
                    # Nobody has looked: somebody else's object may be there, and begin with what is named.
                    return self._finish(row)
                # Something was sent once: it may have arrived after it was given up.
                await self._attempts.look(key)
                known = self._journal.object(key)
                if known is None:
                    return self._finish_removal(row)
            await self._keeping.before_change(known, None)
            await self._keep_last_copy(known)
            if not self._authority.may_change(live.session):
                return Deferred(NOT_OURS)
            self._journal.note_base(known, self._clock.wall_ns())
            outcome = await self._store.delete(key, condition=IfMatch(Token(known.token)))
            if isinstance(outcome, NotLanded):
                return Deferred("the delete was sent, and not seen to arrive")
            if isinstance(outcome, Moved) and outcome.found is not None:
                if self._attempts.is_ours(key, outcome.found):
                    self._attempts.adopt(key, outcome.found)
                    continue
                await self._check_epoch(live, outcome.found)
                # It is another writer's now: theirs to delete.
                self._conflicts.announce(key, key, write_id_of(outcome.found)[:8] or "unknown")
            return self._finish_removal(row)
        return Deferred("somebody else keeps changing it")

    def _finish_removal(self, row: Work) -> Processed:
        with self._journal.transaction():
            self._journal.drop_object(row.key)
            return self._finish(row)

    # --- no valid key

    async def _keep_by_content(
        self, row: Work, live: LivePath, subject: Subject | None
    ) -> Processed | Deferred:
        """Bring the bytes of a path that no key can spell to a key of their own content; the manifest names them."""
        if subject is None or not isinstance(subject.image, Image | None):
            return self._finish(row)
        if not subject.content.sha256:
            return Deferred("its bytes have no known hash")
        target = keys.content_key(live.session, subject.content.sha256)
        if self._journal.object(target) is not None:
            with self._journal.transaction():
                self._note_clean(subject)
                return self._finish(row, subject)
        sent, attempt = await self._send(target, None, subject, Unconditional())
        if not isinstance(sent.outcome, Landed):
            self._journal.end_attempt(attempt.write_id)
            return Deferred("sent, and not seen to arrive")
        return self._confirm(row, live, subject, sent, replace(attempt, token=sent.outcome.token))

    async def make_safe(self, key: str) -> None:
        """Before an object goes whose bytes others still need: let them be elsewhere, unless they are on this disk.

        Raises:
            SessionFSError: The store refused or did not answer.
        """
        known = self._journal.object(key)
        node = self._journal.node(known.number) if known is not None and known.number else None
        if known is not None and node is not None and not node.present:
            await self._parking.park(known)

    async def _keep_last_copy(self, known: KnownObject) -> None:
        """Before an object goes: its file may have no other, under a name that has no object (excluded, or too long)."""
        node = self._journal.node(known.number) if known.number else None
        if node is None or node.present or not stat.S_ISREG(node.mode) or not known.size_bytes:
            return
        if not self._journal.names_of(known.number) or known.sha256 != node.sha256:
            return
        others = self._journal.objects_of(known.number)
        if known.sha256:
            others += self._journal.objects_with(known.sha256)
        if not any(
            other.key != known.key
            and _is_kept(other.key)
            and (other.sha256, other.size_bytes) == (known.sha256, known.size_bytes)
            for other in others
        ):
            await self._parking.park(known)


def _is_kept(key: str) -> bool:
    """Whether an object stays as long as something needs it; what is kept of a conflict a person may delete."""
    live = keys.parse_live_key(key)
    return live is not None or keys.parse_conflict_key(key) is None


def content_type_of(key: str, mode: int) -> str:
    """Give an object's media type by its name."""
    if stat.S_ISDIR(mode):
        return _DIRECTORY_TYPE
    if not stat.S_ISREG(mode):
        return _PLAIN_TYPE
    extension = os.path.splitext(key.rpartition("/")[2])[1]
    found, encoding = _TYPES.guess_type("x" + extension) if extension.isascii() else (None, None)
    return found if found and not encoding else _PLAIN_TYPE
