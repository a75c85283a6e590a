"""The archive's door: publish a checkpoint, say which is the newest, restore one.

Invariants:

* A checkpoint is complete as soon as it can be found: the pointer is the last object that a publication writes.
* Repeating a publication is safe, whatever became of the one before; with nothing new it sends nothing, and tells the catalogue again.
* Every operation honours cancellation: a cancelled one has the outcome of one that failed.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import trio

from sessionfs.formats.archive.records import ManifestRecord
from sessionfs.model import names
from sessionfs.model.clock import Clock
from sessionfs.model.errors import InvalidRequestError, NotFoundError
from sessionfs.model.names import SessionId
from sessionfs.sessions.archive import archive_keys, publishing, restoring, source_files
from sessionfs.sessions.archive.objects import Objects
from sessionfs.sessions.archive.publishing import Publication
from sessionfs.sessions.archive.restoring import Restoration
from sessionfs.sessions.archive.source_files import Source
from sessionfs.sessions.archive.uploaded_notes import UploadedNotes

NoteCheckpoint = Callable[[SessionId, str], Awaitable[None]]
"""Tells a catalogue that a session has a checkpoint; told again of the same one, it must change nothing."""

_CHECKPOINT_ID = re.compile(r"[0-9]{10,19}-[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint that can be restored.

    Attributes:
        session: The session.
        id: Its name, kept for ever.
        number: Counts the checkpoints of the session, from 1.
        previous: The checkpoint before, "" for none.
        created_at: Time as text, for people.
        files: Length in bytes of each file, by path.
    """

    session: SessionId
    id: str
    number: int
    previous: str
    created_at: str
    files: dict[str, int]


class Archive:
    """Checkpoints of sessions.

    Args:
        objects: Where they are kept.
        clock: Gives ids and the time.
        state_directory: Where this host remembers what is up, to save requests; None to remember nothing.
        note_checkpoint: Called when a checkpoint was published, or found to be published already; None for nobody.
    """

    def __init__(
        self,
        objects: Objects,
        clock: Clock,
        *,
        state_directory: str | None = None,
        note_checkpoint: NoteCheckpoint | None = None,
    ) -> None:
        self._objects = objects
        self._clock = clock
        self._notes = UploadedNotes(state_directory, clock)
        self._note_checkpoint = note_checkpoint

    async def publish(self, session: str, directory: str, paths: Sequence[str] | None = None) -> Checkpoint:
        """Make local files the newest checkpoint of a session. Sends what they grew by since the last one.

        Args:
            session: The session.
            directory: Where the files are.
            paths: Relative to it, at most 128; None for all files below it. A file that is not named is not in the checkpoint.

        Returns:
            The new checkpoint, or the newest one when it has exactly these files.

        Raises:
            InvalidRequestError: The id, a path, or what a path names cannot be archived; nothing was sent.
            NotFoundError: A file is missing; nothing was sent.
            TooLargeError: There are more than 128 files, or too much of them; nothing was sent.
            ConflictError: Another publisher was first, or a file was rewritten or cut meanwhile: publish again.
            CorruptDataError, UnsupportedFormatError: The newest checkpoint is wrong, or of a newer version; nothing was sent.
            UnavailableError, AccessError, OutcomeUnknownError: The newest checkpoint is the old one or this one: publish again.
            LocalDiskError: A file cannot be read.
        """
        checked = names.session_id(session)

        publication = Publication(self._objects, self._notes, self._clock, checked)
        closing = ExitStack()

        def open_all() -> list[Source]:
            found = source_files.find_paths(directory) if paths is None else paths
            return source_files.open_sources(directory, source_files.checked_paths(found), closing)

        try:
            manifest = await publication.publish(await trio.to_thread.run_sync(open_all))
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(closing.close)
        try:
            if self._note_checkpoint is not None:
                await self._note_checkpoint(checked, manifest.checkpoint)
        finally:
            with trio.CancelScope(shield=True):
                await publication.remember(manifest)
        return _checkpoint(manifest)

    async def latest(self, session: str) -> Checkpoint | None:
        """Describe the newest checkpoint of a session; None when there is none.

        Raises:
            InvalidSessionIdError: It is no session's id.
            CorruptDataError, UnsupportedFormatError: It is wrong, or of a newer version.
            UnavailableError, AccessError: Nothing is known.
        """
        newest = await publishing.read_newest(self._objects, names.session_id(session), None)
        return _checkpoint(newest.manifest) if newest.manifest else None

    async def restore(self, session: str, directory: str, *, checkpoint: str = "") -> Checkpoint:
        """Bring the files of a checkpoint back, byte for byte.

        Args:
            session: The session.
            directory: Absent or empty; the directory above exists.
            checkpoint: Its id; "" for the newest.

        Raises:
            InvalidRequestError: The id of the session or of the checkpoint can be none.
            NotFoundError: There is no such checkpoint, or no directory above.
            AlreadyExistsError: The directory is not empty.
            UnsupportedFormatError: The checkpoint is of a newer version.
            CorruptDataError: It is not complete or not as it was.
            UnavailableError, AccessError, LocalDiskError: It could not be fetched or written. After each of these the directory is as it was.
        """
        checked = names.session_id(session)
        target = await trio.to_thread.run_sync(restoring.checked_target, directory)
        manifest = await self._manifest(checked, checkpoint)
        restoring.check_paths(manifest, archive_keys.manifest_key(checked, manifest.checkpoint))
        await Restoration(self._objects, self._clock, manifest, target).restore()
        return _checkpoint(manifest)

    async def _manifest(self, session: SessionId, checkpoint: str) -> ManifestRecord:
        if not checkpoint:
            newest = await publishing.read_newest(self._objects, session, None)
            if newest.manifest is None:
                raise NotFoundError(f"session {session!r} has no checkpoint")
            return newest.manifest
        if not _CHECKPOINT_ID.fullmatch(checkpoint):
            raise InvalidRequestError(f"{checkpoint!r} is no checkpoint's id")
        try:
            raw = await self._objects.get(archive_keys.manifest_key(session, checkpoint))
        except FileNotFoundError:
            raise NotFoundError(f"session {session!r} has no checkpoint {checkpoint!r}") from None
        return publishing.decode_manifest(raw, session, checkpoint)


def _checkpoint(manifest: ManifestRecord) -> Checkpoint:
    return Checkpoint(
        session=SessionId(manifest.session),
        id=manifest.checkpoint,
        number=manifest.number,
        previous=manifest.previous,
        created_at=manifest.created_at,
        files={file.path: file.size for file in manifest.files},
    )
