"""Puts right what can be put right without removing anything.

* A marker that is behind or broken is written anew, on the condition that it is still the one that was read: a living owner wins.
* A missing ``<n>.json`` of the newest generation is written from ``manifest.json``.
* Bytes that a generation lacks are looked for everywhere in the session, ``.conflicts/`` too, and put under their own sum: as a copy on the server,
  as a body when they are only the beginning of an object.
"""

from __future__ import annotations

import hashlib
import os
import tempfile

import trio

from sessionfs.formats import commit_marker
from sessionfs.formats import manifest as manifests
from sessionfs.formats.manifest import ManifestEntry
from sessionfs.model import keys
from sessionfs.model.clock import Clock, utc_text
from sessionfs.model.errors import ObjectNotFoundError, PreconditionFailedError
from sessionfs.model.names import SessionId
from sessionfs.model.settings import ReplicationSettings
from sessionfs.replication.maintenance.chain_writing import marker_of
from sessionfs.replication.maintenance.patient_store import PatientStore
from sessionfs.replication.maintenance.verified_bytes import disk_error
from sessionfs.replication.maintenance.verifying.chain_check import Records
from sessionfs.replication.maintenance.verifying.content_check import Contents
from sessionfs.replication.maintenance.verifying.findings import SessionReport
from sessionfs.replication.maintenance.verifying.proofs import Proof, Prover
from sessionfs.replication.trio_store import READ_TRIES, Landed, TrioStore
from sessionfs.stores.base import ByteRange, IfAbsent, IfMatch, ObjectStat, Token, Unconditional

_WHOLE_BODY_BYTES = 1 << 30


class Repair:
    """Repairs sessions.

    Args:
        store: The bucket.
        prover: Looks at objects.
        clock: Times and write ids.
        settings: How long to back off.
    """

    def __init__(self, store: TrioStore, prover: Prover, clock: Clock, settings: ReplicationSettings) -> None:
        self._store = store
        self._prover = prover
        self._clock = clock
        self._patient = PatientStore(store, clock, settings, lambda: None)

    async def repair(
        self, session: SessionId, report: SessionReport, records: Records, contents: Contents
    ) -> None:
        """Put right what a report says; findings that were put right say so.

        Raises:
            UnavailableError, AccessError: The store does not answer, or lets nobody write.
        """
        if contents.damaged:
            await self._look_aside(session, contents)
        for entry, finding in contents.damaged:
            if await self._bring_back(session, entry, contents):
                finding.is_repaired = True
        if report.generation:
            await self._write_manifest(session, report, records)
        if records.is_marker_wrong:
            await self._write_marker(session, report, records)
        still_hurt = {
            number
            for finding in report.findings
            if finding.kind in {"corrupt", "missing"} and not finding.is_repaired
            for number in finding.generations
        }
        report.intact |= report.hurt - still_hurt
        report.hurt &= still_hurt

    async def _look_aside(self, session: SessionId, contents: Contents) -> None:
        """Look at what was kept aside for conflicts too."""
        wanted: dict[int, set[str]] = {}
        for entry, _ in contents.damaged:
            wanted.setdefault(entry.size_bytes, set()).add(entry.sha256)
        prefix = keys.conflicts_prefix(session)
        listed, _ = await self._store.list_all(prefix, whole_segments=False)
        for found in [*listed, *(await self._others(session, contents))]:
            if found.size_bytes >= min(wanted) and not found.key.endswith("/"):
                proof = await self._prover.prove(found, wanted)
                if proof is not None:
                    contents.proofs[found.key] = proof

    async def _others(self, session: SessionId, contents: Contents) -> list[ObjectStat]:
        """Objects that were looked at for other contents only: what is lost may begin any of them."""
        found, _ = await self._store.list_all(keys.session_prefix(session), whole_segments=False)
        kept, _ = await self._store.list_all(keys.objects_prefix(session), whole_segments=False)
        return [stat for stat in (*found, *kept) if stat.key in contents.proofs]

    async def _bring_back(self, session: SessionId, entry: ManifestEntry, contents: Contents) -> bool:
        """Put an entry's bytes under their own sum, from any object that has them."""
        key = keys.content_key(session, entry.sha256)
        for proof in contents.proofs.values():
            if proof.key == key and proof.whole != entry.sha256:
                continue
            if proof.whole == entry.sha256:
                outcome = await self._patient.copy(
                    proof.key,
                    key,
                    source_token=proof.token,
                    condition=Unconditional(),
                    metadata=self._patient.content_metadata(entry.sha256, epoch=proof.epoch),
                )
                if isinstance(outcome, Landed):
                    return True
            elif proof.holds(entry.sha256) and await self._send_prefix(proof, entry, key):
                return True
        return False

    async def _send_prefix(self, proof: Proof, entry: ManifestEntry, key: str) -> bool:
        if entry.size_bytes > _WHOLE_BODY_BYTES:
            return False
        try:
            with tempfile.TemporaryFile() as file:
                got = await self._store.download(
                    proof.key,
                    file.fileno(),
                    byte_range=ByteRange(0, entry.size_bytes),
                    expected=Token(proof.token),
                    tries=READ_TRIES,
                )
                if got.sha256 != entry.sha256:
                    return False
                body = await trio.to_thread.run_sync(os.pread, file.fileno(), got.size_bytes, 0)
        except (ObjectNotFoundError, PreconditionFailedError):
            return False
        except OSError as problem:
            raise disk_error("cannot keep an object for a moment", problem) from None
        if hashlib.sha256(body).hexdigest() != entry.sha256:
            return False
        metadata = self._patient.content_metadata(entry.sha256, epoch=proof.epoch)
        return isinstance(
            await self._patient.put(key, body, condition=Unconditional(), metadata=metadata), Landed
        )

    async def _write_manifest(self, session: SessionId, report: SessionReport, records: Records) -> None:
        key = keys.generation_key(session, report.generation)
        missing = next((one for one in report.findings if (one.kind, one.key) == ("missing", key)), None)
        if missing is None or records.newest is None:
            return
        raw, encoding = manifests.encode(records.newest.manifest)
        metadata = self._patient.record_metadata(encoding=encoding)
        outcome = await self._patient.put(key, raw, condition=IfAbsent(), metadata=metadata)
        missing.is_repaired = isinstance(outcome, Landed)
        records.raw[report.generation] = raw
        # The marker has the sum of the bytes that were there.
        records.is_marker_wrong = records.is_marker_wrong or missing.is_repaired

    async def _write_marker(self, session: SessionId, report: SessionReport, records: Records) -> None:
        newest = records.newest.manifest if records.newest is not None else None
        raw = records.raw.get(report.generation)
        if newest is None or raw is None:
            return
        key = keys.commit_marker_key(session)
        marker = marker_of(
            newest,
            hashlib.sha256(raw).hexdigest(),
            records.kept.get(newest.previous),
            completed_at=newest.created_at or utc_text(self._clock.wall_ns()),
        )
        outcome = await self._patient.put(
            key,
            commit_marker.encode(marker),
            condition=IfMatch(Token(records.marker_token)) if records.marker_token else IfAbsent(),
            metadata=self._patient.record_metadata(),
        )
        for finding in report.findings:
            if finding.key == key and isinstance(outcome, Landed):
                finding.is_repaired = True
