"""The journal: one JSON object a line in ``journal/active.jsonl``, each with its ``seq``, sealed to ``journal/events-NNN.jsonl.zst`` when it is long.

Invariants:

* `seq` counts from 1 and is contiguous over all segments and the active file. A record that was acknowledged survives a power cut.
* The order of sealing is: write the segment, make it durable, then cut the active file to what came behind. A crash between leaves lines in both;
  readers leave out a line whose ``seq`` is not above the last one they saw. Nothing is ever in neither.
* A segment is never written again; its number goes on after a restart.
* What follows the last newline of the active file was never acknowledged: it is given to nobody. Before the first append a whole record that lacks
  only its newline gets it, anything else is cut off.
* Every change of the active file names the one whose last record is known, and is sent once: a request whose answer was lost and that arrives late
  either finds its file changed and does nothing, or makes the next one look and number anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
import trio

from sessionfs.formats.logs import json_lines, zstd_log
from sessionfs.model.errors import (
    AlreadyExistsError,
    InvalidRequestError,
    NotFoundError,
    PreconditionFailedError,
    SessionFSError,
)
from sessionfs.sessions.port import FileStat
from sessionfs.sessions.workspace.journal_replay import ACTIVE, DIRECTORY, Replay, lines_of, segments
from sessionfs.sessions.workspace.observation.observed_files import ObservedFiles

MAX_RECORD_BYTES = 16 << 20
_SEALING_ATTEMPTS = 3
_CHANGE_ATTEMPTS = 8

State = TypeVar("State")


class Journal:
    """The journal of a workspace. Safe to use from several tasks: records get their numbers one after the other.

    Args:
        files: Where it is.
        segment_bytes: The active file is sealed when it has this length, from 1.
    """

    def __init__(self, files: ObservedFiles, segment_bytes: int) -> None:
        self._files = files
        self._segment_bytes = segment_bytes
        self._turn = trio.Lock()
        self._last: int | None = None
        """The last `seq` that is there; None when it must be looked up."""
        self._base: FileStat | None = None
        """The active file as it was then; None when there was none."""
        self._next_segment = 1

    async def append(self, record: Mapping[str, Any]) -> int:
        """Add a record.

        Args:
            record: What it says; anything that JSON can say, at most 16 MiB. `seq` is given by the journal.

        Returns:
            Its `seq`.

        Raises:
            InvalidRequestError: It has a `seq`, or JSON cannot say it, or it is too long.
            UnavailableError: The place did not answer.
            PreconditionFailedError: Others change the active file all the time.
        """
        return await self.append_all([record])

    async def append_all(self, records: Iterable[Mapping[str, Any]]) -> int:
        """Add records in one request, all or none; gives the `seq` of the last, as `append`."""
        texts = [_text(record) for record in records]
        with self._files.changing():
            async with self._turn:
                last = await self._append(texts)
                if self._base is not None and self._base.size_bytes >= self._segment_bytes and texts:
                    # The record is there: what goes wrong with sealing is tried again after the next one.
                    with suppress(SessionFSError):
                        await self._seal()
                return last

    async def rotate(self) -> None:
        """Seal the active file now; one that is empty or missing stays."""
        with self._files.changing():
            async with self._turn:
                if self._last is None:
                    await self._recover()
                await self._seal()

    def replay(self, after: int = 0) -> Replay:
        """Give the records in order, each once; an asynchronous iterator, whose steps raise what `Replay` says.

        Args:
            after: Leave out those up to this `seq`, from 0.

        Raises:
            InvalidRequestError: `after` is negative.
        """
        if after < 0:
            raise InvalidRequestError(f"seq {after} is negative")
        return Replay(self._files, after)

    async def project(self, reducer: Callable[[State, dict[str, Any]], State], initial: State) -> State:
        """Fold the records into a state.

        Args:
            reducer: Gives the next state of a state and a record; it must not depend on anything else.
            initial: The state before the first record.

        Raises:
            CorruptDataError: As `Replay`.
        """
        state = initial
        async for record in self.replay():
            state = reducer(state, record)
        return state

    # --- how

    async def _append(self, texts: list[bytes]) -> int:
        for _ in range(_CHANGE_ATTEMPTS):
            last = self._last if self._last is not None else await self._recover()
            if not texts:
                return last
            lines = b"".join(
                b'{"seq":%d%s%s\n' % (number, b"," if text != b"{}" else b"", text[1:])
                for number, text in enumerate(texts, last + 1)
            )
            # Unless it certainly arrived the next append looks: a number that is used twice loses a record.
            self._last = None
            try:
                self._base = await self._add(lines)
            except (PreconditionFailedError, AlreadyExistsError):
                continue
            self._last = last + len(texts)
            return self._last
        raise _contended()

    async def _add(self, lines: bytes) -> FileStat:
        if self._base is not None:
            return await self._files.append(ACTIVE, lines, base=self._base, is_synced=True)
        stat = await self._files.write(ACTIVE, lines, is_new=True)
        await self._files.sync(ACTIVE)
        return stat

    async def _active(self) -> tuple[FileStat | None, bytes]:
        """Give the active file as it is, or an older description of it: then a change that names it is refused."""
        try:
            stat = await self._files.stat(ACTIVE)
            return stat, await self._files.read(ACTIVE)
        except NotFoundError:
            return None, b""

    async def _recover(self) -> int:
        """Find the last `seq`, and make the active file end with a line."""
        for _ in range(_CHANGE_ATTEMPTS):
            with suppress(PreconditionFailedError):
                return await self._recover_once()
        raise _contended()

    async def _recover_once(self) -> int:
        found = await segments(self._files)
        self._next_segment = max(found, default=0) + 1
        sealed = await lines_of(self._files, found[max(found)]) if found else []
        last = max((json_lines.seq_of(line) or 0 for line in sealed), default=0)
        stat, raw = await self._active()
        whole, torn = json_lines.split_torn(raw)
        lines = whole.split(json_lines.NEWLINE)[:-1]
        last = max([last, *(json_lines.seq_of(line) or 0 for line in lines)])
        if torn and json_lines.seq_of(torn) == last + 1:
            stat = await self._files.append(ACTIVE, json_lines.NEWLINE, base=stat)
            last += 1
        elif torn:
            stat = await self._files.write(ACTIVE, whole, base=stat)
        self._last, self._base = last, stat
        return last

    async def _seal(self) -> None:
        """Write the active file as a segment, then cut it to what came behind."""
        _, raw = await self._active()
        whole, _ = json_lines.split_torn(raw)
        if not whole:
            return
        lines = whole.split(json_lines.NEWLINE)[:-1]
        segment = await trio.to_thread.run_sync(lambda: b"".join(zstd_log.seal(lines)))
        for _ in range(_SEALING_ATTEMPTS):
            path = f"{DIRECTORY}/events-{self._next_segment:03d}.jsonl.zst"
            self._next_segment += 1
            try:
                await self._files.write(path, segment, is_new=True)
            except AlreadyExistsError:
                continue
            await self._files.sync(path)
            await self._cut(whole)
            return
        raise AlreadyExistsError(f"{path} is there already: another program seals this journal")

    async def _cut(self, sealed: bytes) -> None:
        """Leave what another program added meanwhile, or wrote instead, against the rules."""
        for _ in range(_CHANGE_ATTEMPTS):
            stat, now = await self._active()
            if stat is None or not now.startswith(sealed):
                self._last = None
                return
            rest = now[len(sealed) :]
            with suppress(PreconditionFailedError):
                self._base = await self._files.write(ACTIVE, rest, base=stat)
                if rest:
                    self._last = None
                return
        raise _contended()


def _contended() -> PreconditionFailedError:
    return PreconditionFailedError(f"{ACTIVE} is changed all the time by others")


def _text(record: Mapping[str, Any]) -> bytes:
    if "seq" in record:
        raise InvalidRequestError("a record of a journal has a seq of its own")
    try:
        text = msgspec.json.encode(dict(record))
    except (TypeError, ValueError, RecursionError) as problem:
        raise InvalidRequestError(f"a record of a journal is no JSON: {problem}") from None
    if len(text) > MAX_RECORD_BYTES:
        raise InvalidRequestError(
            f"a record of a journal has {len(text)} bytes, more than {MAX_RECORD_BYTES}"
        )
    return text
