"""A session's records: manifests, marker, owner record, and whether they agree."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from sessionfs.formats import commit_marker, ownership
from sessionfs.formats import manifest as manifests
from sessionfs.formats.commit_marker import CommitMarker
from sessionfs.formats.manifest import Manifest
from sessionfs.model import keys
from sessionfs.model.errors import CorruptDataError, ObjectNotFoundError
from sessionfs.model.names import SessionId
from sessionfs.replication.hydration.manifest_chain import ListedChain, ManifestChain, Newest, abandoned
from sessionfs.replication.maintenance.verifying.findings import SessionReport
from sessionfs.replication.trio_store import READ_TRIES, TrioStore

LAGGING = "lags behind generation"


@dataclass(slots=True)
class Records:
    """What the records say.

    Attributes:
        newest: ``manifest.json``, None when there is none that can be read.
        kept: The generations that can be read, without those that were never committed.
        raw: Stored bytes of each ``<n>.json``.
        marker_token: Token of the marker, "" for none.
        is_marker_wrong: The marker lags, is missing, or cannot be read.
        epoch: Of the owner record, 0 for none.
        has_owner: Whether there is one.
    """

    newest: Newest | None = None
    kept: dict[int, Manifest] = field(default_factory=dict)
    raw: dict[int, bytes] = field(default_factory=dict)
    marker_token: str = ""
    is_marker_wrong: bool = False
    epoch: int = 0
    has_owner: bool = False


class ChainCheck:
    """Reads records.

    Args:
        store: The bucket.
    """

    def __init__(self, store: TrioStore) -> None:
        self._store = store
        self._chain = ManifestChain(store)

    async def check(self, session: SessionId, report: SessionReport) -> Records:
        """Read a session's records and report what is wrong.

        Raises:
            UnsupportedFormatError: A newer version wrote one.
            UnavailableError, AccessError: Nothing is known.
        """
        records = Records()
        listed = await self._chain.listed(session)
        try:
            records.newest = await self._chain.newest(session)
        except CorruptDataError as problem:
            report.add("corrupt", problem.message, key=keys.manifest_key(session))
        await self._read_kept(session, listed, report, records)
        if records.newest is not None:
            report.generation = records.newest.manifest.generation
            self._check_newest(session, listed, report, records, records.newest)
        elif listed.kept and not listed.has_newest:
            report.add(
                "missing",
                f"session {session} has generations and no manifest.json",
                key=keys.manifest_key(session),
            )
        for key in listed.strange:
            report.add("strange", f"{key} is no manifest", key=key)
        await self._check_owner(session, report, records)
        await self._check_marker(session, report, records)
        return records

    async def _read_kept(
        self, session: SessionId, listed: ListedChain, report: SessionReport, records: Records
    ) -> None:
        for number, stored in sorted(listed.kept.items()):
            try:
                raw = await self._store.read(stored.key, tries=READ_TRIES)
                found = manifests.decode(raw, stored.key)
            except ObjectNotFoundError:
                continue  # retired meanwhile
            except CorruptDataError as problem:
                report.add("corrupt", problem.message, key=stored.key, generations=(number,))
                continue
            if found.format != manifests.OLDER_FORMAT and (found.session, found.generation) != (
                session,
                number,
            ):
                text = f"{stored.key} is the manifest of generation {found.generation} of {found.session!r}"
                report.add("corrupt", text, key=stored.key, generations=(number,))
                continue
            records.kept[number] = found
            records.raw[number] = raw

    def _check_newest(
        self, session: SessionId, listed: ListedChain, report: SessionReport, records: Records, newest: Newest
    ) -> None:
        number = newest.manifest.generation
        key = keys.generation_key(session, number)
        if number and number not in listed.kept:
            report.add("missing", f"{key} is missing; manifest.json has the same generation", key=key)
            records.kept[number] = newest.manifest
        elif number in records.kept and records.kept[number].entries != newest.manifest.entries:
            report.add("corrupt", f"{key} and manifest.json name other files", key=key, generations=(number,))
        elif number in report.hurt and number not in records.kept:
            # Its own manifest is broken, the same one in manifest.json is not.
            report.hurt.discard(number)
            records.kept[number] = newest.manifest
        for lost in sorted(
            abandoned(records.kept, newest.manifest) | {n for n in records.kept if n > number}
        ):
            del records.kept[lost]
            report.add(
                "unfinished",
                f"generation {lost} of {session} was never committed",
                key=keys.generation_key(session, lost),
            )
        if not number and newest.manifest.removed:
            report.add("unfinished", f"session {session} is a fork that was never finished")

    async def _check_owner(self, session: SessionId, report: SessionReport, records: Records) -> None:
        key = keys.owner_key(session)
        try:
            record = ownership.decode_owner(await self._store.read(key, tries=READ_TRIES), key)
        except ObjectNotFoundError:
            return
        except CorruptDataError as problem:
            report.add("corrupt", problem.message, key=key)
            return
        records.has_owner = True
        records.epoch = record.epoch
        if records.newest is not None and records.newest.manifest.epoch > record.epoch:
            report.add(
                "epoch",
                f"{key} knows epoch {record.epoch}, manifest.json {records.newest.manifest.epoch}",
                key=key,
            )

    async def _check_marker(self, session: SessionId, report: SessionReport, records: Records) -> None:
        key = keys.commit_marker_key(session)
        marker: CommitMarker | None = None
        try:
            stored, raw = await self._store.read_with_stat(key, tries=READ_TRIES)
            records.marker_token = stored.token
            marker = commit_marker.decode(raw, key)
        except ObjectNotFoundError:
            pass
        except CorruptDataError as problem:
            records.is_marker_wrong = True
            report.add("corrupt", problem.message, key=key)
            return
        newest = report.generation
        if marker is None or marker.generation < newest:
            if newest:
                records.is_marker_wrong = True
                behind = marker.generation if marker is not None else 0
                report.add("lagging", f"{key} is at generation {behind} and {LAGGING} {newest}", key=key)
            return
        body = records.raw.get(marker.generation)
        if body is not None and hashlib.sha256(body).hexdigest() != marker.manifest_sha256:
            records.is_marker_wrong = True
            report.add("corrupt", f"{key} says another sha256 than {marker.manifest_key} has", key=key)
