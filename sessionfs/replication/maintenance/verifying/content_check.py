"""A session's bytes: every live object, everything kept by its content, and whether each generation has what it names.

Objects are read once. An entry that those readings do not prove is read the way a reader would, before anything is said: the session may be in use.
"""

from __future__ import annotations

import stat
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sessionfs.formats import content_alias
from sessionfs.formats.manifest import Manifest, ManifestEntry
from sessionfs.model import keys, names
from sessionfs.model.errors import CorruptDataError, NotFoundError, ObjectNotFoundError
from sessionfs.model.names import SessionId
from sessionfs.replication.hydration.fan_out import for_each
from sessionfs.replication.hydration.manifest_chain import ManifestChain, NewerGenerations
from sessionfs.replication.hydration.named_content import EMPTY_SHA256
from sessionfs.replication.maintenance.verified_bytes import VerifiedBytes, disk_error
from sessionfs.replication.maintenance.verifying.chain_check import Records
from sessionfs.replication.maintenance.verifying.findings import Finding, SessionReport
from sessionfs.replication.maintenance.verifying.proofs import Proof, Prover
from sessionfs.replication.trio_store import READ_TRIES, TrioStore
from sessionfs.stores.base import ObjectStat

AT_ONCE = 8


@dataclass(slots=True)
class Contents:
    """What a session's objects hold.

    Attributes:
        proofs: By key.
        aliases: By the sum that an alias is for: the object's sum, and how many of its first bytes.
        damaged: Entries whose bytes are nowhere, with what was said about them.
    """

    proofs: dict[str, Proof] = field(default_factory=dict)
    aliases: dict[str, tuple[str, int]] = field(default_factory=dict)
    damaged: list[tuple[ManifestEntry, Finding]] = field(default_factory=list)

    def holds(self, key: str | None, sha256: str) -> bool:
        """Whether an object is, or begins with, these bytes."""
        proof = self.proofs.get(key) if key is not None else None
        return proof is not None and proof.holds(sha256)


class ContentCheck:
    """Looks at bytes.

    Args:
        store: The bucket.
        prover: Looks at objects.
    """

    def __init__(self, store: TrioStore, prover: Prover) -> None:
        self._store = store
        self._prover = prover
        self._chain = ManifestChain(store)
        self._bytes = VerifiedBytes(store)

    async def check(self, session: SessionId, report: SessionReport, records: Records) -> Contents:
        """Look at a session's objects and report what is wrong.

        Raises:
            UnavailableError, AccessError: Nothing is known.
        """
        contents = Contents()
        live, _ = await self._store.list_all(keys.session_prefix(session), whole_segments=False)
        kept, _ = await self._store.list_all(keys.objects_prefix(session), whole_segments=False)
        await self._read_aliases(session, kept, contents)
        wanted = _wanted(session, records.kept, contents.aliases)
        await self._prove([*live, *kept], wanted, report, contents)
        self._check_live(session, live, report, records, contents)
        self._check_kept(session, kept, report, records, contents)
        for number, generation in sorted(records.kept.items(), reverse=True):
            if number not in report.hurt and await self._check_generation(
                session, number, generation, records, report, contents
            ):
                report.intact.add(number)
        return contents

    # --- the objects

    async def _read_aliases(self, session: SessionId, kept: list[ObjectStat], contents: Contents) -> None:
        async def read(pair: tuple[str, str]) -> None:
            key, sha256 = pair
            try:
                found = content_alias.decode(await self._store.read(key, tries=READ_TRIES), key)
            except (ObjectNotFoundError, CorruptDataError):
                return  # who needs it is told about its path
            contents.aliases[sha256] = (found.of, found.size)

        parsed = ((found.key, keys.parse_content_key(session, found.key)) for found in kept)
        await for_each([(key, sums[0]) for key, sums in parsed if sums and sums[1]], read, limit=AT_ONCE)

    async def _prove(
        self,
        found: list[ObjectStat],
        wanted: Mapping[str, Mapping[int, set[str]]],
        report: SessionReport,
        contents: Contents,
    ) -> None:
        async def prove(listed: ObjectStat) -> None:
            proof = await self._prover.prove(listed, wanted.get(listed.key, {}))
            report.objects += 1
            report.bytes += listed.size_bytes
            if proof is None:
                report.add("moving", f"{listed.key} changed while it was looked at", key=listed.key)
                return
            contents.proofs[listed.key] = proof

        bodies = [listed for listed in found if not listed.key.endswith(("/", ".alias"))]
        await for_each(bodies, prove, limit=AT_ONCE)

    def _check_live(
        self,
        session: SessionId,
        live: list[ObjectStat],
        report: SessionReport,
        records: Records,
        contents: Contents,
    ) -> None:
        removed = records.newest is not None and records.newest.manifest.removed
        if removed and live:
            report.add("orphan", f"{len(live)} objects of the removed session {session} are still there")
        for listed in live:
            if keys.parse_live_key(listed.key) is None:
                report.add("strange", f"{listed.key} is a key that no path has", key=listed.key)
            proof = contents.proofs.get(listed.key)
            if proof is None:
                continue
            if proof.stated and proof.whole and proof.whole != proof.stated:
                report.add("corrupt", f"{listed.key} has other bytes than its sha256 says", key=listed.key)
            if records.has_owner and proof.epoch > records.epoch:
                text = f"{listed.key} was written in epoch {proof.epoch}, and the owner record knows {records.epoch}"
                report.add("epoch", text, key=listed.key)

    def _check_kept(
        self,
        session: SessionId,
        kept: list[ObjectStat],
        report: SessionReport,
        records: Records,
        contents: Contents,
    ) -> None:
        named = {entry.sha256 for found in records.kept.values() for entry in found.entries}
        named |= {contents.aliases[sha256][0] for sha256 in named if sha256 in contents.aliases}
        orphans: list[ObjectStat] = []
        for listed in kept:
            parsed = keys.parse_content_key(session, listed.key)
            if parsed is None:
                report.add("strange", f"{listed.key} is no key of ours", key=listed.key)
                continue
            proof = contents.proofs.get(listed.key)
            if proof is not None and not parsed[1] and proof.whole and proof.whole != parsed[0]:
                report.add("corrupt", f"{listed.key} has other bytes than its name says", key=listed.key)
            if parsed[0] not in named:
                orphans.append(listed)
        if orphans:
            size_bytes = sum(listed.size_bytes for listed in orphans)
            text = f"{len(orphans)} objects ({size_bytes} bytes) below {session}.objects/ are named by no kept generation"
            report.add("orphan", text)

    # --- the generations

    async def _check_generation(
        self,
        session: SessionId,
        number: int,
        generation: Manifest,
        records: Records,
        report: SessionReport,
        contents: Contents,
    ) -> bool:
        newer = [found for above, found in sorted(records.kept.items()) if above > number]
        by_path = [{entry.path: entry for entry in found.entries} for found in newer]
        reader = NewerGenerations(self._chain, session, number)
        is_intact = True
        for entry in generation.entries:
            if not entry.sha256 or entry.sha256 == EMPTY_SHA256 or stat.S_ISDIR(entry.mode):
                continue
            if _is_proven(session, entry, by_path, contents) or await self._is_readable(
                session, entry, reader
            ):
                continue
            if not await self._is_still_there(session, number):
                return True
            is_intact = False
            _report_damage(session, number, entry, report, contents)
        return is_intact

    async def _is_readable(self, session: SessionId, entry: ManifestEntry, newer: NewerGenerations) -> bool:
        try:
            with tempfile.TemporaryFile() as file:
                await self._bytes.write(session, entry, newer, file.fileno())
        except CorruptDataError:
            return False
        except OSError as problem:
            raise disk_error("cannot keep an object for a moment", problem) from None
        return True

    async def _is_still_there(self, session: SessionId, number: int) -> bool:
        """Whether a generation was not retired and collected meanwhile."""
        try:
            await self._chain.read(session, number)
        except NotFoundError:
            return False
        except CorruptDataError:
            return True
        return True


def _report_damage(
    session: SessionId, number: int, entry: ManifestEntry, report: SessionReport, contents: Contents
) -> None:
    """Say once for each content of a path what is lost, with all generations that name it."""
    for known, finding in contents.damaged:
        if (known.path, known.sha256) == (entry.path, entry.sha256):
            finding.generations = tuple(sorted({*finding.generations, number}))
            report.hurt.add(number)
            return
    shown = f"{session}/{names.display(entry.path)}"
    key = keys.live_key(session, entry.path, is_directory=False)
    is_there = key is not None and key in contents.proofs
    kept = keys.content_key(session, entry.sha256)
    if is_there or kept in contents.proofs:
        text = f"{shown} has other bytes than its generation names"
        finding = report.add("corrupt", text, generations=(number,), path=shown)
    else:
        finding = report.add(
            "missing", f"the bytes of {shown} are in no object", generations=(number,), path=shown
        )
    contents.damaged.append((entry, finding))


def _is_proven(
    session: SessionId,
    entry: ManifestEntry,
    newer: Iterable[Mapping[bytes, ManifestEntry]],
    contents: Contents,
) -> bool:
    """Whether a reader finds an entry's bytes in one of the places where it looks."""
    live = keys.live_key(session, entry.path, is_directory=False)
    if contents.holds(live, entry.sha256) or _is_kept(session, entry.sha256, entry.sha256, contents):
        return True
    return any(
        named.sha256
        and named.size_bytes >= entry.size_bytes
        and _is_kept(session, named.sha256, entry.sha256, contents)
        for named in (found.get(entry.path) for found in newer)
        if named is not None
    )


def _is_kept(session: SessionId, sha256: str, wanted: str, contents: Contents) -> bool:
    if contents.holds(keys.content_key(session, sha256), wanted):
        return True
    alias = contents.aliases.get(sha256)
    return alias is not None and contents.holds(keys.content_key(session, alias[0]), wanted)


def _wanted(
    session: SessionId, kept: Mapping[int, Manifest], aliases: Mapping[str, tuple[str, int]]
) -> dict[str, dict[int, set[str]]]:
    """Give, for each object, the sums that its first bytes may have, by length."""
    wanted: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    of_path: dict[bytes, dict[str, int]] = defaultdict(dict)
    for found in kept.values():
        for entry in found.entries:
            if entry.sha256 and not stat.S_ISDIR(entry.mode):
                of_path[entry.path][entry.sha256] = entry.size_bytes
    for path, sums in of_path.items():
        live = keys.live_key(session, path, is_directory=False)
        places = [live] if live is not None else []
        for sha256 in sums:
            places.append(keys.content_key(session, sha256))
            if sha256 in aliases:
                places.append(keys.content_key(session, aliases[sha256][0]))
        for key in places:
            for sha256, size_bytes in sums.items():
                wanted[key][size_bytes].add(sha256)
    return {key: dict(sums) for key, sums in wanted.items()}
