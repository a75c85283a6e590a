"""Brings what a cut has to the bucket, and says where each path's bytes are.

Order for a path that was owed at the cut: its present state is uploaded as any file's (one request for what stands still). Then, with the key
held so that no upload of it is under way: has its live object exactly the bytes of the cut, or does it begin with them? Then the generation names
the object, and from this moment it is copied aside before it goes. Else the bytes of the cut, which the daemon or SQLite keeps, go to
``.objects/``. So a generation is never later than its cut, and never waits for a file to stand still.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import structlog
import trio

from sessionfs.formats.commit_messages import FrozenFile
from sessionfs.model import names
from sessionfs.model.errors import SessionFSError, UnavailableError
from sessionfs.model.names import SessionId
from sessionfs.replication.commit.databases import DatabaseCut
from sessionfs.replication.commit.entries import Content
from sessionfs.replication.commit.frozen_bytes import FrozenBytes, Measured, MovingFileError
from sessionfs.replication.commit.noting import Noted
from sessionfs.replication.hydration.fan_out import for_each
from sessionfs.replication.uploader import Uploader
from sessionfs.replication.uploads.authority import Authority
from sessionfs.working_copy.exclusions import Exclusions
from sessionfs.working_copy.known_content import KnownObject, Prefix
from sessionfs.working_copy.upload_journal import UploadJournal

_CONCURRENT = 8
_HOLD_TRIES = 40
_HOLD_PAUSE_SECONDS = 0.025
_log = structlog.get_logger("sessionfs.commit")


@dataclass(slots=True)
class Brought:
    """Where the bytes of a cut are.

    Attributes:
        contents: By path, of what was owed.
        moving: Paths whose bytes of the cut were lost: the generation has a moment near it.
        left_out: Immutable files that could not be brought: they stay owed, and a later generation names them.
        stored: Contents that went to ``.objects/``.
        stored_bytes: Bytes sent for them.
    """

    contents: dict[bytes, Content] = field(default_factory=dict)
    moving: list[bytes] = field(default_factory=list)
    left_out: set[bytes] = field(default_factory=set)
    stored: int = 0
    stored_bytes: int = 0

    def note_stored(self, sent_bytes: int) -> None:
        """Count one content that was stored."""
        self.stored += 1
        self.stored_bytes += sent_bytes


@dataclass(slots=True)
class _Run:
    """One commit under way."""

    session: SessionId
    commit: str
    problems: Mapping[str, str]
    brought: Brought
    is_cold: bool


class Bringing:
    """Brings cuts.

    Args:
        journal: What the bucket holds.
        uploader: Brings keys, and holds them.
        frozen: Bytes at the cut.
        authority: This host's epoch.
        immutable: Files that never change once they are closed.
        flush_seconds: How long the uploads of one commit may take without any progress.
    """

    def __init__(
        self,
        journal: UploadJournal,
        uploader: Uploader,
        frozen: FrozenBytes,
        authority: Authority,
        *,
        immutable: Exclusions,
        flush_seconds: float,
    ) -> None:
        self._immutable = immutable
        self._journal = journal
        self._uploader = uploader
        self._frozen = frozen
        self._authority = authority
        self._flush_seconds = flush_seconds

    async def flush(self, wanted: Iterable[str]) -> Mapping[str, str]:
        """Upload keys now.

        Returns:
            Why some could not be uploaded, by key.

        Raises:
            UnavailableError: The store does not answer.
        """
        return await self._uploader.flush_each(wanted, self._flush_seconds)

    async def locate(
        self,
        session: SessionId,
        commit: str,
        noted: list[Noted],
        *,
        databases: Mapping[bytes, DatabaseCut],
        problems: Mapping[str, str],
        is_cold: bool = False,
    ) -> Brought:
        """Find, or bring, the bytes of everything that was owed at the cut; after `flush`.

        Args:
            session: The session.
            commit: Its name for the daemon.
            noted: Everything at the cut.
            databases: Images by path.
            problems: Keys that `flush` could not upload: their objects are older than the cut.
            is_cold: Requests of another owner may still arrive: what is named is copied aside at once.

        Raises:
            SessionFSError: Bytes could not be stored: the commit must not go on.
        """
        run = _Run(session, commit, problems, Brought(), is_cold)

        async def one(path: Noted) -> None:
            try:
                await self._locate(run, path, databases.get(path.path))
            except SessionFSError as problem:
                # One blob that cannot be stored must not keep a whole session from being committed.
                if not self._immutable.match(path.path):
                    raise
                _log.warning("blob left out", path=names.display(path.path), problem=str(problem))
                run.brought.left_out.add(path.path)

        owed = [path for path in noted if path.known is None and not path.node.is_directory]
        await for_each(owed, one, limit=_CONCURRENT)
        return run.brought

    async def _locate(self, run: _Run, one: Noted, database: DatabaseCut | None) -> None:
        if stat.S_ISLNK(one.node.mode):
            known = self._journal.object(one.key) if one.key else None
            if known is not None:
                # Its text is in the manifest; the object only tells its token.
                measured = Measured(known.size_bytes, known.sha256)
                run.brought.contents[one.path] = Content(measured, known.token)
        elif one.key is None and one.node.present:
            await self._locate_keyless(run, one)
        elif one.kept is not None:
            return
        elif database is not None and database.measured is not None:
            await self._locate_database(run, one, database, database.measured)
        elif one.frozen is not None:
            await self._locate_frozen(run, one, one.frozen)
        else:
            await self._locate_unfrozen(run, one)

    async def _locate_frozen(self, run: _Run, one: Noted, frozen: FrozenFile) -> None:
        try:
            measured = await self._frozen.measure(run.session, run.commit, one, frozen)
            token = await self._name(run, one, measured, may_have_grown=True)
            if token is None:
                epoch = self._authority.epoch(run.session)
                sent = await self._frozen.store_by_content(run.session, run.commit, one, measured, epoch)
                run.brought.note_stored(sent)
            run.brought.contents[one.path] = Content(measured, token or "")
        except MovingFileError:
            _log.warning("file moved during a commit", path=names.display(one.path))
            run.brought.moving.append(one.path)
            await self._locate_unfrozen(run, one)

    async def _locate_database(
        self, run: _Run, one: Noted, database: DatabaseCut, measured: Measured
    ) -> None:
        token = await self._name(run, one, measured, may_have_grown=False)
        if token is None:
            epoch = self._authority.epoch(run.session)
            image = database.image
            run.brought.note_stored(
                await self._frozen.put_content(run.session, one.node, image, measured, epoch)
            )
        run.brought.contents[one.path] = Content(measured, token or "")

    async def _locate_keyless(self, run: _Run, one: Noted) -> None:
        """A file whose path no key can spell: no upload brings it, and nothing is owed for it."""
        try:
            measured, sent = await self._frozen.store_as_it_is(
                run.session, one, self._authority.epoch(run.session)
            )
        except MovingFileError:
            raise UnavailableError(
                f"{run.session}/{names.display(one.path)} changed while it was committed",
                remedy="commit again",
            ) from None
        if sent:
            run.brought.note_stored(sent)
        run.brought.contents[one.path] = Content(measured, "")

    async def _locate_unfrozen(self, run: _Run, one: Noted) -> None:
        """A file whose bytes are only in the bucket, or could not be kept: the object that its key has now."""
        shown = f"{run.session}/{names.display(one.path)}"
        if one.key is None:
            raise UnavailableError(f"{shown} has no key and could not be read", remedy="commit again")
        try:
            async with self._held(one.key):
                known = self._journal.object(one.key)
                if known is not None:
                    self._journal.name_object(one.key)
        except _BusyError:
            raise UnavailableError(f"{shown} is being uploaded all the time", remedy="commit again") from None
        if known is None:
            work = self._journal.work(one.key)
            reason = work.reason if work is not None and work.reason else "it was not uploaded"
            raise UnavailableError(f"{shown} is not in the bucket yet: {reason}", remedy="commit again")
        measured = Measured(known.size_bytes, known.sha256, self._journal.blocks(known.sha256))
        run.brought.contents[one.path] = Content(measured, known.token)

    async def _name(self, run: _Run, one: Noted, measured: Measured, *, may_have_grown: bool) -> str | None:
        """Let the generation name the live object, when it has the bytes of the cut; None when it has not."""
        if one.key is None:
            return None
        try:
            async with self._held(one.key):
                known = self._journal.object(one.key)
                if known is None or not known.sha256:
                    return None
                if (known.sha256, known.size_bytes) == (measured.sha256, measured.size_bytes):
                    self._journal.name_object(one.key)
                    if known.size_bytes and (run.is_cold or self._journal.is_base(one.key, known.token)):
                        await self._uploader.keeping.keep(known, self._journal.prefixes(one.key))
                    return known.token
                # What could not be uploaded now is older than the cut, and says nothing of it.
                is_fresh = may_have_grown and one.key not in run.problems
                if is_fresh and await self._begins(run.commit, one, known, measured):
                    self._journal.name_prefix(one.key, Prefix(measured.sha256, measured.size_bytes))
                    return known.token
        except _BusyError:
            return None
        return None

    async def _begins(self, commit: str, one: Noted, known: KnownObject, measured: Measured) -> bool:
        """Whether an object begins with the bytes of the cut: it was taken from the file, to which programs only appended since."""
        node = self._journal.node(one.node.number)
        return (
            known.size_bytes > measured.size_bytes > 0
            and known.number == one.node.number
            and node is not None
            and node.sha256 == known.sha256
            and await self._frozen.is_prefix_of_file(commit, one)
        )

    def _held(self, key: str) -> _Held:
        return _Held(self._uploader, key)


class _BusyError(Exception):
    """A key is under way all the time."""


class _Held:
    """Keeps a key from being touched inside the block."""

    def __init__(self, uploader: Uploader, key: str) -> None:
        self._uploader = uploader
        self._key = key

    async def __aenter__(self) -> None:
        for _ in range(_HOLD_TRIES):
            if self._uploader.hold(self._key):
                return
            await trio.sleep(_HOLD_PAUSE_SECONDS)
        raise _BusyError

    async def __aexit__(self, *_: object) -> None:
        self._uploader.release(self._key)
