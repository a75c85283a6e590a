"""Adds batches to a log: each once, in order, and only behind what this writer knows to be there.

Invariants:

* The header is written before the first byte of the log; the first batch makes the log, and only when there is none.
* A later batch is added under the condition that the log is as this writer left it: whoever changed it meanwhile wins, and nothing is written.
* When it is not known whether a batch arrived (no answer, cancelled), the place is looked at before anything is sent again.
* The whole part of a log is never changed. What is torn behind it is replaced by its complete records in one write of the whole file.
* After a sync that failed the file is not trusted: an operating system tells of pages that it could not write once, and takes them for written from
  then on. So the next ``sync`` writes a whole new file of the same events, and nothing is added before that.
* No write of the whole file replaces one that this writer does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import trio

from sessionfs.formats.events import header as headers
from sessionfs.formats.events import log_bytes
from sessionfs.formats.events.header import Header
from sessionfs.model.errors import (
    AlreadyExistsError,
    CorruptDataError,
    NotFoundError,
    OwnershipLostError,
    PreconditionFailedError,
    SessionFSError,
)
from sessionfs.sessions.port import FileStat, SessionFiles

_TRIES = 3
"""A file whose revision moved and whose bytes did not is tried again."""


class LogWriter:
    """The one who writes a log; its session is owned.

    Args:
        files: The session's files.
        header: The log's header.
        count: Events in the log.
        end: Where its whole part ends, bytes.
        base: The raw file as it was then; None when there is none.
        has_header: The header is there.
        stored: Gives the lines of the log as the caller knows them, at least those that this writer told it of.
    """

    def __init__(
        self,
        files: SessionFiles,
        header: Header,
        *,
        count: int,
        end: int,
        base: FileStat | None,
        has_header: bool,
        stored: Callable[[], Sequence[bytes]],
    ) -> None:
        self._files = files
        self._header = header
        self._count = count
        self._end = end
        self._base = base
        self._has_header = has_header
        self._stored = stored
        self._is_unsure = False
        self._unsynced: set[str] = set()
        self._distrusted: set[str] = set()

    @property
    def _name(self) -> str:
        return f"{self._files.session}/{self._header.log_path}"

    async def store(self, lines: Sequence[bytes], *, is_synced: bool = False) -> int:
        """Add the first of some lines, usually all.

        Args:
            lines: What is to follow, in order; at least one. After an error give the same again, more behind them or not.
            is_synced: `sync` follows; where that is cheaper, it is done in the same step.

        Returns:
            How many were added, at least one.

        Raises:
            OwnershipLostError: The log was changed by somebody else; nothing was written.
            SessionFSError: The place refused; the lines may have arrived, which the next call finds out.
        """
        if self._is_unsure:
            landed = await self._settle(lines)
            if landed:
                return landed
        if self._distrusted:
            await self._write_again()
        body = log_bytes.encode(lines, self._header.encoding)
        for _ in range(_TRIES):
            self._is_unsure = True
            try:
                self._base = await self._add(body, is_synced=is_synced)
            except (PreconditionFailedError, AlreadyExistsError):
                landed = await self._settle(lines)
                if landed:
                    return landed
                continue
            self._is_unsure = False
            self._end += len(body)
            self._count += len(lines)
            return len(lines)
        raise self._lost()

    async def replace_torn(self, lines: Sequence[bytes]) -> None:
        """Replace what is torn behind the whole part by lines, in one write.

        Raises:
            OwnershipLostError: The log was changed by somebody else; nothing was written.
            SessionFSError: The place refused; the whole part is as it was.
        """
        path = self._header.log_path
        whole = await self._files.read(path, 0, self._end) if self._end else b""
        if len(whole) != self._end:
            raise self._lost()
        body = log_bytes.encode(lines, self._header.encoding)
        self._unsynced.add(path)
        try:
            self._base = await self._files.write(path, whole + body, base=self._base)
        except PreconditionFailedError as problem:
            raise self._lost() from problem
        self._end += len(body)
        self._count += len(lines)

    async def sync(self) -> None:
        """Return when everything that was added would survive a power cut.

        Raises:
            OwnershipLostError: It may not, and the log was changed by somebody else.
            SessionFSError: It may not; asked again, all of it is written again.
        """
        if self._distrusted:
            await self._write_again()
        for path in sorted(self._unsynced):
            with self._distrusting(path):
                await self._files.sync(path)
            self._unsynced.discard(path)

    async def _add(self, body: bytes, *, is_synced: bool) -> FileStat:
        path = self._header.log_path
        self._unsynced.add(path)
        if not self._has_header:
            await self._write_header()
        if self._base is None:
            return await self._files.write(path, body, is_new=True)
        if not is_synced:
            return await self._files.append(path, body, base=self._base)
        with self._distrusting(path):
            stat = await self._files.append(path, body, base=self._base, is_synced=True)
        self._unsynced.discard(path)
        return stat

    @contextmanager
    def _distrusting(self, path: str) -> Iterator[None]:
        try:
            yield
        except PreconditionFailedError:
            # Refused before anything was written.
            raise
        except (SessionFSError, OSError):
            self._distrusted.add(path)
            raise

    async def _write_again(self) -> None:
        """Write whole new files in the place of those whose sync failed.

        Raises:
            OwnershipLostError: The log was changed by somebody else; nothing was written.
            SessionFSError: The place refused; it is to be done again.
        """
        lines = tuple(self._stored()[: self._count])
        body = await trio.to_thread.run_sync(log_bytes.encode, lines, self._header.encoding)
        # The log first, whatever failed: it says whether the session is still this writer's.
        path = self._header.log_path
        self._distrusted.add(path)
        self._unsynced.add(path)
        for _ in range(_TRIES):
            try:
                self._base = await self._files.write(path, body, base=self._base)
            except PreconditionFailedError:
                await self._require_same(lines)
                continue
            break
        else:
            raise self._lost()
        self._end = len(body)
        self._distrusted.discard(path)
        if self._distrusted:
            self._unsynced.add(headers.HEADER_PATH)
            await self._replace(headers.HEADER_PATH, headers.encode(self._header))
            self._distrusted.clear()

    async def _require_same(self, lines: Sequence[bytes]) -> None:
        """Go on with a file that has these lines and no others: an answer may have been lost, with the frames of before or those of after."""
        path = self._header.log_path
        try:
            stat = await self._files.stat(path)
            found = log_bytes.split(await self._files.read(path), self._header.encoding, 0, self._name)
        except (NotFoundError, CorruptDataError) as problem:
            raise self._lost() from problem
        if found.is_torn or list(found.lines) != list(lines):
            raise self._lost()
        self._base = stat

    async def _replace(self, path: str, body: bytes) -> None:
        """Write a file anew that is there."""
        try:
            await self._files.write(path, body, base=await self._files.stat(path))
        except (NotFoundError, PreconditionFailedError) as problem:
            raise self._lost() from problem

    async def _write_header(self) -> None:
        body = headers.encode(self._header)
        self._unsynced.add(headers.HEADER_PATH)
        try:
            await self._files.write(headers.HEADER_PATH, body, is_new=True)
        except AlreadyExistsError:
            # Ours, or the rest of a session that never materialised: then there is no log beside it.
            if await self._files.read(headers.HEADER_PATH) != body:
                await self._require_no_log()
                await self._replace(headers.HEADER_PATH, body)
        self._has_header = True

    async def _require_no_log(self) -> None:
        for path in headers.LOG_PATHS.values():
            try:
                stat = await self._files.stat(path)
            except NotFoundError:
                continue
            if stat.size_bytes:
                raise self._lost()

    async def _settle(self, lines: Sequence[bytes]) -> int:
        """Find out how many of the lines arrived, and what the log is now.

        Raises:
            OwnershipLostError: There is something else behind what this writer knows.
        """
        path = self._header.log_path
        try:
            stat = await self._files.stat(path)
        except NotFoundError:
            if self._base is not None:
                raise self._lost() from None
            self._is_unsure = False
            return 0
        if stat.size_bytes < self._end:
            raise self._lost()
        raw = b""
        if stat.size_bytes > self._end:
            raw = await self._files.read(path, self._end, stat.size_bytes)
        try:
            rest = log_bytes.split(raw, self._header.encoding, self._count, self._name)
        except CorruptDataError as problem:
            raise self._lost() from problem
        landed = (*rest.lines, *rest.recovered)
        if landed != tuple(lines[: len(landed)]):
            raise self._lost()
        self._base = stat
        if rest.is_torn:
            await self.replace_torn(landed)
        else:
            self._end += rest.whole_bytes
            self._count += len(landed)
        self._is_unsure = False
        return len(landed)

    def _lost(self) -> OwnershipLostError:
        return OwnershipLostError(
            f"the log of session {self._files.session} was changed by somebody else; nothing was written",
            remedy="open it again",
        )
