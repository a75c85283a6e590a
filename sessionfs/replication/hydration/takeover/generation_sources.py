"""Objects that can be copied on the server as a generation's bytes, found or made, before the uploader puts those bytes back under their keys.

The uploader copies whole objects. Most contents that a generation names and no key has any more were copied aside as a whole; one that is only the
first bytes of a longer object comes here once, verified, and goes back under the key of its content.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable

import trio

from sessionfs.formats.manifest import ManifestEntry
from sessionfs.model import keys
from sessionfs.model.clock import Clock
from sessionfs.model.errors import CorruptDataError, UnavailableError
from sessionfs.model.names import SessionId
from sessionfs.replication.hydration.fetches.content_fetch import ContentFetcher, Named
from sessionfs.replication.hydration.named_content import NamedContent
from sessionfs.replication.trio_store import READ_TRIES, Landed, TrioStore
from sessionfs.stores.base import ObjectMetadata, Unconditional
from sessionfs.working_copy.journal_tree import Node
from sessionfs.working_copy.known_content import KnownObject
from sessionfs.working_copy.layout import StateLayout
from sessionfs.working_copy.upload_journal import UploadJournal

_PUT_BYTES = 64 << 20
_CHUNK_BYTES = 8 << 20


class GenerationSources:
    """Provides them.

    Args:
        journal: Told of them.
        store: The bucket.
        layout: Where bytes are read to.
        clock: Names of attempts.
        content: Finds the generation's bytes.
    """

    def __init__(
        self,
        journal: UploadJournal,
        store: TrioStore,
        layout: StateLayout,
        clock: Clock,
        content: ContentFetcher,
    ) -> None:
        self._journal = journal
        self._store = store
        self._layout = layout
        self._clock = clock
        self._content = content
        self._named = NamedContent(store)

    async def is_kept(self, session: SessionId, entry: ManifestEntry) -> bool:
        """Whether a file's bytes, or a note where they are, are under the key of their content.

        Raises:
            UnavailableError, AccessError: Nothing is known.
        """
        for key in (keys.content_key(session, entry.sha256), keys.alias_key(session, entry.sha256)):
            if await self._store.head(key, tries=READ_TRIES) is not None:
                return True
        return False

    async def provide(
        self, session: SessionId, generation: int, entry: ManifestEntry, node: Node, *, always: bool = False
    ) -> None:
        """Let the journal know an object that can be copied on the server as a file's bytes, unless they are on this disk.

        Bytes that are nowhere are no error: what is owed without a source is stuck, and says so.

        Args:
            session: The session.
            generation: The one that names them.
            entry: The file.
            node: Its inode here.
            always: Also when they are on this disk: the object that begins with them is about to go.

        Raises:
            LocalDiskError: The disk is full, or fails.
            UnavailableError, AccessError: Nothing is known.
        """
        if not stat.S_ISREG(entry.mode) or not entry.sha256 or not entry.size_bytes:
            return
        if node.present and not always:
            return
        source = await self._named.whole_source(session, entry)
        if source is not None and keys.parse_live_key(source.key) is None:
            self._note_source(source.key, source.token, "", entry, node)
            return
        try:
            staged, sha256 = await self._content.fetch(Named(session, generation, entry))
        except CorruptDataError:
            return
        path = os.path.join(self._layout.staging, staged)
        try:
            key = keys.content_key(session, sha256)
            write_id = self._clock.unique_id()
            metadata = ObjectMetadata({"sessionfs-sha256": sha256, "sessionfs-write": write_id})
            token = await self._store_file(key, path, entry.size_bytes, metadata)
            self._note_source(key, token, write_id, entry, node)
        finally:
            os.unlink(path)

    async def _store_file(self, key: str, path: str, size_bytes: int, metadata: ObjectMetadata) -> str:
        """Store a verified file under the key of its content: whoever wrote it, it is the same bytes."""
        if size_bytes <= _PUT_BYTES:
            body = await trio.to_thread.run_sync(_read, path)
            outcome = await self._store.put(key, body, condition=Unconditional(), metadata=metadata)
        else:
            outcome = await self._store.put_parts(
                key,
                _parts(path),
                condition=Unconditional(),
                metadata=metadata,
                before_complete=lambda: None,
            )
        if not isinstance(outcome, Landed):
            raise UnavailableError(f"{key} was sent, and not seen to arrive", remedy="try again")
        return outcome.token

    def _note_source(self, key: str, token: str, write_id: str, entry: ManifestEntry, node: Node) -> None:
        self._journal.put_object(
            KnownObject(
                key, node.number, token, write_id, entry.sha256, entry.size_bytes,
                entry.mode, entry.uid, entry.gid, entry.mtime_ns, "",
            )
        )  # fmt: skip


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _parts(path: str) -> Iterable[bytes]:
    with open(path, "rb") as file:
        while part := file.read(_CHUNK_BYTES):
            yield part
