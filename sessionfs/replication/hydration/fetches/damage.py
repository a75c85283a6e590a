"""What a person can do about a damaged session: the newest generation that can still be read. Nothing is changed, nothing deleted."""

from __future__ import annotations

from sessionfs.formats.manifest import Manifest
from sessionfs.model.errors import CorruptDataError, SessionFSError, UnsupportedFormatError
from sessionfs.model.names import SessionId
from sessionfs.replication.hydration.manifest_chain import ManifestChain

_TRIED = 10


class Damage:
    """Looks for intact generations.

    Args:
        chain: Reads manifests.
    """

    def __init__(self, chain: ManifestChain) -> None:
        self._chain = chain

    async def of_manifest(
        self, session: SessionId, problem: CorruptDataError, *, below: int | None = None
    ) -> CorruptDataError:
        """Give the error of an unreadable manifest with a remedy.

        Args:
            session: The session.
            problem: Why it cannot be read.
            below: The generation whose manifest it is, None for ``manifest.json``.
        """
        found = await self._newest(session, below=below)
        if found is None:
            return CorruptDataError(problem.message, remedy="no other generation of the session can be read")
        return CorruptDataError(problem.message, remedy=_restore(session, found.generation))

    async def of_file(self, session: SessionId, generation: int, path: bytes, sha256: str) -> str:
        """Give the remedy for a file that cannot be read: the newest older generation that names other bytes, or none, for it.

        Args:
            session: The session.
            generation: The one whose bytes are lost; 0 when they never were in one.
            path: The file.
            sha256: Of its bytes.
        """
        found = await self._newest(session, below=generation, lacks=(path, sha256)) if generation else None
        look = "'sessionfs verify STORE' says what is damaged"
        return f"{look}; {_restore(session, found.generation)}" if found is not None else look

    async def _newest(
        self, session: SessionId, *, below: int | None, lacks: tuple[bytes, str] | None = None
    ) -> Manifest | None:
        try:
            listed = await self._chain.listed(session)
            numbers = sorted((n for n in listed.kept if below is None or n < below), reverse=True)
            for number in numbers[:_TRIED]:
                found = await self._readable(session, number)
                if found is not None and not found.removed and not _names(found, lacks):
                    return found
        except SessionFSError:
            # The damage is what is reported; that no more could be learnt is no news.
            return None
        return None

    async def _readable(self, session: SessionId, number: int) -> Manifest | None:
        try:
            return await self._chain.read(session, number)
        except (CorruptDataError, UnsupportedFormatError):
            return None


def _names(manifest: Manifest, content: tuple[bytes, str] | None) -> bool:
    return content is not None and any((e.path, e.sha256) == content for e in manifest.entries)


def _restore(session: SessionId, generation: int) -> str:
    return f"'sessionfs restore STORE {session} --generation {generation}' gives the newest intact generation"
