"""Brings what a cut has to the bucket, and says where each path's bytes are.

Order for a path that was owed at the cut: its present state is uploaded as any file's (one request for what stands still). Then, with the key
held so that no upload of it is under way: has its live object exactly the bytes of the cut, or does it begin with them? Then the generation names
the object, and from this moment it is copied aside before it goes. Else the bytes of the cut, which the daemon or SQLite keeps, go to
``.objects/``. Those that were only in the bucket count as named since the cut, so that they are there when their key has others by now. So a
generation is never later than its cut, and never waits for a file to stand still.
"""

from __future__ import annotations

import stat
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

import structlog
import trio

from sessionfs.formats.commit_messages import FrozenFile
from sessionfs.model import keys, names
from sessionfs.model.errors import NotFoundError, PreconditionFailedError, SessionFSError, UnavailableError
from sessionfs.model.names import SessionId
from sessionfs.replication.commit.databases import DatabaseCut
from sessionfs.replication.commit.entries import Content
from sessionfs.replication.commit.frozen_bytes import FrozenBytes, Measured, MovingFileError
from sessionfs.replication.commit.hashing import Hashing
from sessionfs.replication.commit.held_keys import BusyError, HeldKey
from sessionfs.replication.commit.noting import Noted
from sessionfs.replication.hydration.fan_out import for_each
from sessionfs.replication.uploader import Uploader
from sessionfs.replication.uploads.authority import Authority
from sessionfs.working_copy.exclusions import Exclusions
from sessionfs.working_copy.known_content import KnownObject, Prefix
from sessionfs.working_copy.upload_journal import UploadJournal

_CONCURRENT = 8
_ROWS_AT_ONCE = 1000
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
        hashing: Hashes what other tools put there.
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
        hashing: Hashing,
        immutable: Exclusions,
        flush_seconds: float,
    ) -> None:
        self._immutable = immutable
        self._journal = journal
        self._uploader = uploader
        self._frozen = frozen
        self._hashing = hashing
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

    async def renew(
        self, session: SessionId, noted: list[Noted], unsure: Collection[str], *, is_cold: bool
    ) -> list[Noted]:
        """Give what was noted with the tokens that its objects have now; after the bucket was compared, and before anything is published.

        Args:
            session: The session.
            noted: Everything at the cut.
            unsure: Keys that were not as the journal had them; their uploads have looked since.
            is_cold: As for `locate`.

        Raises:
            UnavailableError: Somebody else replaced an object before its bytes could be copied aside: no generation can have them.
        """
        run = _Run(session, "", {}, Brought(), is_cold)
        objects = {known.key: known for known in self._journal.objects_below(keys.session_prefix(session))}
        renewed: list[Noted] = []
        for index, one in enumerate(noted):
            if index % _ROWS_AT_ONCE == 0:
                # A large session must not keep everything else from going on.
                await trio.lowlevel.checkpoint()
            known = one.known
            now = objects.get(known.key) if known is not None else None
            if known is None or (now is not None and now.token == known.token and known.key not in unsure):
                renewed.append(one)
            else:
                token = await self._renew(run, one, known)
                renewed.append(replace(one, known=replace(known, token=token)))
        return renewed

    async def _renew(self, run: _Run, one: Noted, known: KnownObject) -> str:
        """Name what a key has, if it is another object with the same bytes; give its token."""
        if not one.is_regular or not known.size_bytes or not known.sha256:
            now = self._journal.object(known.key)
            return now.token if now is not None else known.token
        try:
            async with self._held(known.key):
                now = self._journal.object(known.key)
                if now is not None and now.token != known.token and _has_same_bytes(now, known):
                    await self._name_object(run, now)
                    return now.token
        except BusyError:
            _log.debug("named object under way", key=known.key)
        prefix = Prefix(known.sha256, known.size_bytes)
        content = self._journal.object(keys.content_key(run.session, known.sha256))
        if content is None and not self._is_beginning(known, prefix):
            raise UnavailableError(
                f"{run.session}/{names.display(one.path)} was changed by somebody else while it was committed",
                remedy="commit again",
            )
        return known.token

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

        owed = [path for path in noted if path.known is None]
        await for_each(owed, one, limit=_CONCURRENT)
        return run.brought

    async def _locate(self, run: _Run, one: Noted, database: DatabaseCut | None) -> None:
        if stat.S_ISLNK(one.node.mode) or one.node.is_directory:
            known = self._journal.object(one.key) if one.key else None
            if known is not None:
                # The manifest itself says what it is; the object only tells its token.
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
        elif one.is_away:
            await self._locate_away(run, one)
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

    async def _locate_away(self, run: _Run, one: Noted) -> None:
        """A file whose bytes were only in the bucket at the cut; since then a program may have fetched and changed it."""
        node, sha256 = one.node, await self._sum_of_away(one)
        if sha256:
            measured = Measured(node.size_bytes, sha256, self._journal.blocks(sha256))
            token = await self._name(run, one, measured, may_have_grown=False)
            if token is not None or await self._is_by_content(run.session, one, measured):
                run.brought.contents[one.path] = Content(measured, token or "")
                return
        now = self._journal.object(one.key) if one.key is not None else None
        # Another tool's object that has no sum yet was at most copied to its new name since.
        is_other = sha256 != "" or (now is not None and now.sha256 != "")
        await self._locate_unfrozen(run, one)
        if is_other:
            _log.warning("bytes of the cut are nowhere", path=names.display(one.path))
            run.brought.moving.append(one.path)

    async def _sum_of_away(self, one: Noted) -> str:
        """The sum of a file that was only in the bucket; "" when another tool's object changed before it was hashed."""
        if one.node.sha256 or one.away is None:
            return one.node.sha256
        try:
            async with self._held(one.away.key):
                now = self._journal.object(one.away.key)
                if now is not None and now.token == one.away.token:
                    return (await self._hashing.hash_object(now)).sha256
        except (BusyError, NotFoundError, PreconditionFailedError):
            _log.debug("object not hashed", key=one.away.key)
        return ""

    async def _is_by_content(self, session: SessionId, one: Noted, measured: Measured) -> bool:
        """Whether bytes are under the key of their content, or can be: another name's object still has them."""
        keeping, wanted = self._uploader.keeping, (measured.sha256, measured.size_bytes)
        away = self._journal.object(one.away.key) if one.away is not None else None
        if away is not None and away.key != one.key and (away.sha256, away.size_bytes) == wanted:
            await keeping.keep(away, self._journal.prefixes(away.key))
        number, (sha256, size_bytes) = one.node.number, wanted
        return await keeping.has(session, number=number, sha256=sha256, size_bytes=size_bytes)

    async def _locate_unfrozen(self, run: _Run, one: Noted) -> None:
        """A file whose bytes could not be kept, or are nowhere: the object that its key has now."""
        shown = f"{run.session}/{names.display(one.path)}"
        if one.key is None:
            raise UnavailableError(f"{shown} has no key and could not be read", remedy="commit again")
        try:
            async with self._held(one.key):
                known = self._journal.object(one.key)
                if known is not None:
                    if known.size_bytes and not known.sha256:
                        known = await self._hashing.hash_object(known)
                    await self._name_object(run, known)
        except (BusyError, NotFoundError, PreconditionFailedError):
            raise UnavailableError(f"{shown} is being changed all the time", remedy="commit again") from None
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
                    await self._name_object(run, known)
                    return known.token
                # What could not be uploaded now is older than the cut, and says nothing of it.
                is_fresh = may_have_grown and one.key not in run.problems
                prefix = Prefix(measured.sha256, measured.size_bytes)
                if self._is_beginning(known, prefix) or (
                    is_fresh and await self._begins(run.commit, one, known, measured)
                ):
                    await self._name_object(run, known, prefix)
                    return known.token
        except BusyError:
            return None
        return None

    async def _name_object(self, run: _Run, known: KnownObject, prefix: Prefix | None = None) -> None:
        """Name an object, or its beginning; one that a request under way may still replace is copied aside first, else a failure would hide it."""
        if known.size_bytes and (run.is_cold or self._journal.is_base(known.key, known.token)):
            prefixes = self._journal.prefixes(known.key)
            await self._uploader.keeping.keep(known, [*prefixes, prefix] if prefix else prefixes)
        if prefix is None:
            self._journal.name_object(known.key)
        else:
            self._journal.name_prefix(known.key, prefix)

    def _is_beginning(self, known: KnownObject, prefix: Prefix) -> bool:
        """Whether an object is known to have grown out of bytes that are named."""
        return any(one == prefix and one.is_proven for one in self._journal.prefixes(known.key))

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

    def _held(self, key: str) -> HeldKey:
        return HeldKey(self._uploader, key)


def _has_same_bytes(now: KnownObject, known: KnownObject) -> bool:
    return (now.sha256, now.size_bytes) == (known.sha256, known.size_bytes)
