"""Makes a checkpoint of local files.

Order of steps: new blocks, tails, the manifest, the pointer. Whatever dies between two steps, the pointer names a checkpoint of which every object
is there: the old one, or the new one. What was sent before is then only unreachable.

Invariants:

* A block is sent with the bytes that were summed: a file that was rewritten meanwhile ends the publication.
* When a generation has other bytes under a block's key (two hosts grew one file apart), the file gets a new generation.
* The pointer moves only from what was read at the beginning: of two publishers at once one wins, and the other gets `ConflictError`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import trio

from sessionfs.formats.archive import records as archive_records
from sessionfs.formats.archive.records import (
    BLOCK_BYTES,
    ManifestRecord,
    PointerRecord,
    UploadedRecord,
)
from sessionfs.model.clock import Clock
from sessionfs.model.errors import (
    AlreadyExistsError,
    ConflictError,
    CorruptDataError,
    PreconditionFailedError,
)
from sessionfs.replication.hydration.fan_out import for_each
from sessionfs.sessions.archive import archive_keys
from sessionfs.sessions.archive.objects import Objects
from sessionfs.sessions.archive.planning import NewBlock, Plan, Planner
from sessionfs.sessions.archive.source_files import Source, Summed, sum_source
from sessionfs.sessions.archive.uploaded_notes import UploadedNotes

REQUESTS_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Newest:
    """What the archive has as a session's newest checkpoint.

    Attributes:
        pointer: The pointer's bytes, None when there is no checkpoint.
        manifest: The checkpoint, None when there is none.
    """

    pointer: bytes | None
    manifest: ManifestRecord | None


async def read_newest(objects: Objects, session: str, remembered: ManifestRecord | None) -> Newest:
    """Read a session's newest checkpoint.

    Args:
        objects: The archive's objects.
        session: The session.
        remembered: A manifest that may be the one; it is asked for only when it is not.

    Raises:
        CorruptDataError: The pointer or its manifest is wrong or missing.
        UnsupportedFormatError: One is of a newer version.
    """
    key = archive_keys.pointer_key(session)
    try:
        body = await objects.get(key)
    except FileNotFoundError:
        return Newest(None, None)
    pointer = archive_records.decode_pointer(body, key)
    if pointer.session != session:
        raise CorruptDataError(f"{key} is of another session")
    if (
        remembered
        and archive_records.sha256_of(archive_records.encode(remembered)) == pointer.manifest_sha256
    ):
        return Newest(body, remembered)
    raw = await read_manifest_bytes(objects, session, pointer.checkpoint)
    if archive_records.sha256_of(raw) != pointer.manifest_sha256:
        raise CorruptDataError(
            f"the manifest of {pointer.checkpoint} has not the sum that {key} names",
            remedy=f"restore an older checkpoint, or remove {key} to begin anew",
        )
    return Newest(body, decode_manifest(raw, session, pointer.checkpoint))


async def read_manifest_bytes(objects: Objects, session: str, checkpoint: str) -> bytes:
    """Read the manifest of a checkpoint that must be there.

    Raises:
        CorruptDataError: It is missing.
    """
    key = archive_keys.manifest_key(session, checkpoint)
    try:
        return await objects.get(key)
    except FileNotFoundError:
        raise CorruptDataError(f"{key} is missing, and a pointer names it") from None


def decode_manifest(raw: bytes, session: str, checkpoint: str) -> ManifestRecord:
    """Read a manifest that must be of a session and checkpoint.

    Raises:
        CorruptDataError: It is none, or another's.
        UnsupportedFormatError: It is of a newer version.
    """
    key = archive_keys.manifest_key(session, checkpoint)
    manifest = archive_records.decode_manifest(raw, key)
    if (manifest.session, manifest.checkpoint) != (session, checkpoint):
        raise CorruptDataError(f"{key} is the manifest of another checkpoint")
    return manifest


class Publication:
    """One publication of one session.

    Args:
        objects: The archive's objects.
        notes: What this host remembers.
        clock: Gives ids and the time.
        session: The session.
    """

    def __init__(self, objects: Objects, notes: UploadedNotes, clock: Clock, session: str) -> None:
        self._objects = objects
        self._notes = notes
        self._clock = clock
        self._session = session
        self._refused: set[str] = set()
        self._sent: set[tuple[str, int]] = set()

    async def publish(self, sources: Sequence[Source]) -> ManifestRecord:
        """Make open files the newest checkpoint; when they are that already, nothing is sent.

        Raises:
            ConflictError: Another publisher was first, or a file was rewritten or cut meanwhile.
            TooLargeError: The manifest would be too long; nothing was sent.
            CorruptDataError, UnsupportedFormatError: As `read_newest`.
            UnavailableError, AccessError, OutcomeUnknownError: The newest checkpoint is the old one or this one.
        """
        remembered = await trio.to_thread.run_sync(self._notes.load, self._session)
        newest = await read_newest(self._objects, self._session, remembered.manifest)
        begun = remembered.begun
        while True:
            summed = await self._sum(sources, newest.manifest)
            planner = Planner(self._session, newest.manifest, begun, self._refused, self._clock)
            plan = planner.plan(summed)
            if plan is None:
                assert newest.manifest is not None  # noqa: S101 - only a checkpoint makes a plan needless
                return newest.manifest
            if await self._send_blocks(plan, newest.manifest):
                break
            begun = ()
        await for_each(plan.tails, lambda tail: self._send_tail(plan, *tail), limit=REQUESTS_AT_ONCE)
        key = archive_keys.manifest_key(self._session, plan.manifest.checkpoint)
        await self._objects.put(key, plan.manifest_body, immutable=True)
        await self._move_pointer(plan, newest.pointer)
        return plan.manifest

    async def remember(self, manifest: ManifestRecord) -> None:
        """Write down what is known to be up."""
        record = UploadedRecord(session=self._session, manifest=manifest)
        await trio.to_thread.run_sync(self._notes.save, record)

    async def _sum(self, sources: Sequence[Source], base: ManifestRecord | None) -> list[Summed]:
        known = {file.path: file for file in base.files} if base else {}

        def sum_all() -> list[Summed]:
            found: list[Summed] = []
            for source in sources:
                entry = known.get(source.path)
                if entry is not None and entry.generation in self._refused:
                    entry = None
                found.append(sum_source(source, entry, trio.from_thread.check_cancelled))
            return found

        return await trio.to_thread.run_sync(sum_all)

    async def _send_blocks(self, plan: Plan, base: ManifestRecord | None) -> bool:
        """Send what is new; False when a generation is refused, and another plan is needed."""
        waiting = [block for block in plan.blocks if (block.generation, block.index) not in self._sent]
        if waiting:
            record = UploadedRecord(session=self._session, manifest=base, begun=plan.begun)
            await trio.to_thread.run_sync(self._notes.save, record)
        await for_each(waiting, self._send_block, limit=REQUESTS_AT_ONCE)
        return not any(block.generation in self._refused for block in plan.blocks)

    async def _send_block(self, block: NewBlock) -> None:
        if block.generation in self._refused:
            return
        body = await trio.to_thread.run_sync(block.source.read, block.index * BLOCK_BYTES, BLOCK_BYTES)
        if hashlib.sha256(body).digest() != block.sha256:
            raise ConflictError(
                f"{block.source.path!r} was rewritten while it was read", remedy="publish again"
            )
        key = archive_keys.block_key(self._session, block.generation, block.index)
        if block.may_be_there:
            try:
                held = await self._objects.get(key)
            except FileNotFoundError:
                held = None
            if held == body:
                self._sent.add((block.generation, block.index))
                return
        try:
            await self._objects.put(key, body, immutable=True)
        except AlreadyExistsError:
            self._refused.add(block.generation)
            return
        self._sent.add((block.generation, block.index))

    async def _send_tail(self, plan: Plan, generation: str, tail: bytes) -> None:
        key = archive_keys.tail_key(self._session, plan.manifest.checkpoint, generation)
        await self._objects.put(key, tail, immutable=True)

    async def _move_pointer(self, plan: Plan, old: bytes | None) -> None:
        pointer = PointerRecord(
            session=self._session,
            checkpoint=plan.manifest.checkpoint,
            number=plan.manifest.number,
            manifest_sha256=archive_records.sha256_of(plan.manifest_body),
        )
        body = archive_records.encode(pointer)
        try:
            await self._objects.swap(archive_keys.pointer_key(self._session), body, old=old)
        except PreconditionFailedError:
            raise ConflictError(
                f"another checkpoint of {self._session!r} was published meanwhile", remedy="publish again"
            ) from None
