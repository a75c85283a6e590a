"""Verifies every session of a bucket, one after the other.

Read-only unless told to repair, and then nothing is ever removed. A session in use can be verified: what is missing is looked for again before it is
said.
"""

from __future__ import annotations

from sessionfs.model import keys
from sessionfs.model.clock import Clock
from sessionfs.model.names import SessionId
from sessionfs.model.settings import ReplicationSettings
from sessionfs.replication.hydration.bucket_listing import names_of_sessions, names_of_shared_roots
from sessionfs.replication.maintenance.verifying.chain_check import ChainCheck
from sessionfs.replication.maintenance.verifying.content_check import ContentCheck
from sessionfs.replication.maintenance.verifying.findings import SessionReport
from sessionfs.replication.maintenance.verifying.proofs import Prover
from sessionfs.replication.maintenance.verifying.repair import Repair
from sessionfs.replication.trio_store import TrioStore


class Verification:
    """Verifies sessions.

    Args:
        store: The bucket.
        clock: Times and write ids of repairs.
        settings: How long to back off.
        is_quick: Believe metadata instead of hashing every object.
        is_repairing: Put right what can be.
    """

    def __init__(
        self,
        store: TrioStore,
        clock: Clock,
        settings: ReplicationSettings,
        *,
        is_quick: bool = False,
        is_repairing: bool = False,
    ) -> None:
        self._store = store
        prover = Prover(store, is_quick=is_quick)
        self._chain = ChainCheck(store)
        self._content = ContentCheck(store, prover)
        # What is put right must be proven, however quickly it was found.
        self._repair = Repair(store, Prover(store, is_quick=False), clock, settings) if is_repairing else None

    async def sessions(self) -> list[SessionId]:
        """List every session, then every shared root, that has anything in the bucket, removed ones too."""
        return [
            *sessions_of(await names_of_sessions(self._store)),
            *sessions_of(await names_of_shared_roots(self._store)),
        ]

    async def verify(self, session: SessionId) -> SessionReport:
        """Verify one session.

        Raises:
            UnsupportedFormatError: A newer version wrote one of its records.
            UnavailableError, AccessError: Nothing is known.
        """
        report = SessionReport(session)
        records = await self._chain.check(session, report)
        contents = await self._content.check(session, report, records)
        if self._repair is not None:
            await self._repair.repair(session, report, records, contents)
        return report


def sessions_of(found: list[str]) -> list[SessionId]:
    """Give the sessions that prefixes and keys at their level belong to, sorted."""
    sessions = (keys.session_with(key) for key in found)
    return sorted({session for session in sessions if session is not None})
