"""What this host owed of a session that is another's by now: bytes are kept aside, and the paths become what the bucket has.

For each key that is owed, while the uploader leaves it alone:

1. a stable image of what is on this disk, unless the bucket was seen to have these bytes under this key, or they are not on this disk at all;
2. it is stored below ``.conflicts/``, only if absent: that overwrites nothing, so no ownership is needed;
3. in one transaction: the conflict is listed and announced, the key is owed no more, and what the journal thought of its object is forgotten, so that
   the next comparison with the bucket finds the path changed and lets the daemon drop the old bytes.

Deletions that were owed are dropped: the bucket's objects come back. A file that was changed again meanwhile goes through it again; one that
cannot be imaged now stays owed, for another `set_aside`. A process that dies in between leaves at most one copy too many.
"""

from __future__ import annotations

import stat
from collections.abc import Callable
from typing import Protocol

import trio

from sessionfs.formats import object_metadata
from sessionfs.formats.object_metadata import Provenance
from sessionfs.model import keys, names
from sessionfs.model.clock import Clock, sortable_stamp
from sessionfs.model.errors import InvalidKeyError
from sessionfs.model.keys import LivePath
from sessionfs.model.names import SessionId
from sessionfs.replication.hydration.fan_out import for_each
from sessionfs.replication.ownership.notes import LOST
from sessionfs.replication.trio_store import Landed, TrioStore
from sessionfs.replication.uploads.conflicts import HOLDER_DIGITS, RaiseEvent
from sessionfs.replication.uploads.content_source import Body, has_content
from sessionfs.replication.uploads.key_upload import content_type_of
from sessionfs.replication.uploads.sending import ImageChangedError, Sender
from sessionfs.replication.uploads.sqlite_image import Deferred
from sessionfs.replication.uploads.stable_image import Image
from sessionfs.replication.uploads.subjects import Subject, Subjects
from sessionfs.stores.base import IfAbsent, ObjectMetadata
from sessionfs.stores.request_checks import check_key
from sessionfs.working_copy.exclusions import Exclusions
from sessionfs.working_copy.known_content import KnownObject
from sessionfs.working_copy.upload_journal import UploadJournal, Work

REASON = "owed when ownership was lost"

_CONCURRENT = 4


class Uploads(Protocol):
    """The uploader: it must not touch a key meanwhile, and has what images are taken and sent with."""

    subjects: Subjects
    sender: Sender

    def hold(self, key: str) -> bool:
        """Keep a key from being touched; False when it is under way."""

    def release(self, key: str) -> None:
        """Let it be touched again."""


class Estrangement:
    """Puts aside what is owed.

    Args:
        journal: What is owed.
        store: Where it is kept.
        clock: Names of what is kept.
        exclusions: Names that never leave this host.
        uploader: Leaves held keys alone.
        holder: Gives the name of this process: it wrote the bytes that are kept.
        raise_event: Told of each file that is kept.
    """

    def __init__(
        self,
        journal: UploadJournal,
        store: TrioStore,
        clock: Clock,
        exclusions: Exclusions,
        *,
        uploader: Uploads,
        holder: Callable[[], str],
        raise_event: RaiseEvent,
    ) -> None:
        self._journal = journal
        self._store = store
        self._clock = clock
        self._exclusions = exclusions
        self._uploader = uploader
        self._holder = holder
        self._raise_event = raise_event
        self._alone = trio.Lock()

    async def set_aside(self, session: SessionId) -> int:
        """Put aside everything that a session owes.

        Args:
            session: A session that another host owns, or has owned since this one did; its uploads are stopped.

        Returns:
            How many keys are left: under way, or being written just now. Call again when it is not 0.

        Raises:
            SessionFSError: The store does not answer; the rest is still owed.
        """
        async with self._alone:
            await for_each(self._journal.session_work(session), self._one, limit=_CONCURRENT)
            left = self._journal.work_count(session)
            if not left:
                self._finish_session(session)
            return left

    def _finish_session(self, session: SessionId) -> None:
        row = self._journal.session(session)
        if row is not None and row.owner_state == LOST:
            # What is on this disk is no longer the truth, and nothing here waits for a commit.
            with self._journal.transaction():
                self._journal.update_session(session, written=False, changed=False)
                for is_settled in (False, True):
                    for key, _sent_ns in self._journal.attempted_keys(settled=is_settled):
                        if key.startswith(keys.session_prefix(session)):
                            self._end_attempts(key)

    async def _one(self, row: Work) -> None:
        if not self._uploader.hold(row.key):
            return
        try:
            live = keys.parse_live_key(row.key)
            wanted = self._journal.wanted(row.key) if live is not None else None
            if live is None or (live.path and self._exclusions.match(live.path)):
                self._journal.finish_work(row.key, row.version)
            elif wanted is None:
                self._forget(row)
            else:
                with self._journal.watch(wanted.node.number):
                    subject = await self._uploader.subjects.read(row.key, live, wanted)
                    await self._settle(row, live, wanted.node.number, subject)
        except OSError as problem:
            self._journal.explain_work(row.key, f"it cannot be read: {problem.strerror}")
        finally:
            self._uploader.release(row.key)

    async def _settle(self, row: Work, live: LivePath, number: int, subject: object) -> None:
        if isinstance(subject, Deferred):
            self._journal.explain_work(row.key, subject.reason)
            return
        if not isinstance(subject, Subject):
            # No object can hold it, or no record tells where it went: there are no bytes to keep.
            self._give_way(row, number, None)
            return
        try:
            kept = await self._keep(row, live, subject) if self._is_worth_keeping(row, subject) else ""
            if kept is not None:
                with self._journal.transaction():
                    if kept:
                        self._note_kept(row, live, kept)
                    self._give_way(row, number, subject)
        except ImageChangedError:
            self._journal.explain_work(row.key, "it changed while it was kept aside")
        finally:
            subject.close()

    def _is_worth_keeping(self, row: Work, subject: Subject) -> bool:
        """Whether these are bytes that the bucket may not have."""
        if subject.image is None or stat.S_ISDIR(subject.attributes.mode):
            return False
        known = self._journal.object(row.key)
        return known is None or not has_content(known, subject.content)

    async def _keep(self, row: Work, live: LivePath, subject: Subject) -> str | None:
        """Store a subject aside; give its key, None when it is not seen to have arrived."""
        target = self._target(row.key, live)
        attributes = subject.attributes
        session = self._journal.session(live.session)
        epoch = session.epoch if session is not None else 0
        provenance = Provenance(
            subject.content.sha256, self._clock.unique_id(), epoch, self._clock.unique_id()
        )
        sent = await self._uploader.sender.send(
            Body(),
            target,
            subject.image,
            condition=IfAbsent(),
            metadata=ObjectMetadata(
                object_metadata.encode(attributes, provenance), content_type_of(row.key, attributes.mode)
            ),
        )
        return target if isinstance(sent.outcome, Landed) else None

    def _target(self, key: str, live: LivePath) -> str:
        stamp, holder = sortable_stamp(self._clock.wall_ns()), self._holder()[:HOLDER_DIGITS]
        target = keys.conflict_key(key, stamp=stamp, holder=holder)
        try:
            check_key(target, self._store.capabilities)
        except InvalidKeyError:
            short = keys.session_prefix(live.session) + "_long"
            target = keys.conflict_key(short, stamp=stamp, holder=f"{holder}-{self._clock.unique_id()}")
        return target

    def _note_kept(self, row: Work, live: LivePath, kept: str) -> None:
        holder = self._holder()[:HOLDER_DIGITS]
        self._journal.add_conflict(kept, live_key=row.key, holder=holder, reason=REASON)
        self._raise_event(
            "session.conflict.kept",
            {
                "session_id": live.session,
                "path": names.display(live.path),
                "key": kept,
                "holder": holder,
                "reason": REASON,
            },
        )

    def _forget(self, row: Work) -> None:
        """Drop a deletion: the bucket's object is as new to this host."""
        with self._journal.transaction():
            if self._journal.finish_work(row.key, row.version):
                self._end_attempts(row.key)
                self._journal.drop_object(row.key)

    def _give_way(self, row: Work, number: int, subject: Subject | None) -> None:
        """Let a path be the bucket's: what is here is old, whatever is there, also when it did not change or is nothing."""
        with self._journal.transaction():
            if not self._journal.finish_work(row.key, row.version):
                return
            image = subject.image if subject is not None else None
            if isinstance(image, Image) and image.changed_since():
                # Changed after it was kept, and no record may have told of that yet.
                self._journal.mark(row.key, row.session, self._clock.wall_ns())
                return
            self._end_attempts(row.key)
            known = self._journal.object(row.key)
            self._journal.update_node(number, clean_size=-1)
            # Also what generations name of it is the other owner's to say.
            self._journal.drop_object(row.key)
            if subject is not None:
                self._journal.put_object(_unknown_state(row.key, number, known, subject))

    def _end_attempts(self, key: str) -> None:
        """Puts of ours that may still arrive are the other owner's to find, by their epoch."""
        for write_id, _settled in self._journal.attempts(key):
            self._journal.end_attempt(write_id)


def _unknown_state(key: str, number: int, known: KnownObject | None, subject: Subject) -> KnownObject:
    """Give an object of which nothing is known but the file that it belongs to: no state of the bucket is equal to it."""
    attributes = subject.attributes
    return KnownObject(
        key=key,
        number=number,
        token="",
        write_id="",
        sha256="",
        size_bytes=known.size_bytes if known is not None else 0,
        mode=attributes.mode,
        uid=attributes.uid,
        gid=attributes.gid,
        mtime_ns=attributes.mtime_ns,
        lineage="",
    )
