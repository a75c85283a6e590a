"""What a manifest names: the journal's tree and objects, and what only the disk knows.

The journal is read at one moment, when nothing is owed, so that entries and objects agree; extended attributes and link targets
are read from the working copy afterwards.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import trio

from sessionfs.formats import extended_attributes
from sessionfs.formats.manifest import ManifestEntry
from sessionfs.model import keys, names
from sessionfs.model.clock import Clock
from sessionfs.model.errors import LocalDiskError, UnavailableError
from sessionfs.model.names import SessionId
from sessionfs.replication.trio_store import Landed, TrioStore
from sessionfs.stores.base import ObjectMetadata, Unconditional
from sessionfs.working_copy.exclusions import Exclusions
from sessionfs.working_copy.journal_tree import Node, SessionRow
from sessionfs.working_copy.known_content import KnownObject
from sessionfs.working_copy.layout import StateLayout
from sessionfs.working_copy.open_below import short_path
from sessionfs.working_copy.upload_journal import UploadJournal

_CHUNK_BYTES = 4 << 20
_SINGLE_PUT_BYTES = 64 << 20
_KINDS = (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK)

Noted = list[tuple[ManifestEntry, Node]]


class _Place(NamedTuple):
    """A file of the working copy."""

    root: str
    session: str
    path: bytes

    @property
    def shown(self) -> str:
        """The path as a person reads it."""
        return f"{self.session}/{names.display(self.path)}"


class GenerationEntries:
    """Notes a session's entries.

    Args:
        journal: The tree, and what the bucket holds.
        store: Where bytes without a key go.
        layout: Where the working copy is.
        clock: Names of attempts.
        exclusions: Names that no manifest names.
    """

    def __init__(
        self,
        journal: UploadJournal,
        store: TrioStore,
        layout: StateLayout,
        clock: Clock,
        exclusions: Exclusions,
    ) -> None:
        self._journal = journal
        self._store = store
        self._layout = layout
        self._clock = clock
        self._exclusions = exclusions

    def note(self, row: SessionRow) -> Noted:
        """Give an entry for everything the bucket holds, or should hold, of a session; read at one moment."""
        noted: Noted = []
        groups: dict[tuple[int, str], int] = {}
        for path, number, is_directory in self._journal.below(row.root, b""):
            node = self._journal.node(number)
            if node is None or stat.S_IFMT(node.mode) not in _KINDS:
                continue
            if path and self._exclusions.match(path):
                continue
            key = keys.live_key(row.id, path, is_directory=is_directory)
            known = self._journal.object(key) if key is not None else None
            kept = self._kept(row.id, node) if known is None and not is_directory else None
            if known is None and kept is None and key is not None and not is_directory:
                # It has a key and no object though nothing is owed: it never leaves this host.
                continue
            group = 0
            if not is_directory and len(self._journal.names_of(number)) > 1:
                group = groups.setdefault((number, known.sha256 if known else ""), len(groups) + 1)
            entry = self._entry(path, node, known, group)
            if kept is not None:
                entry = replace(entry, sha256=kept.sha256, size_bytes=kept.size_bytes)
            noted.append((entry, node))
        return noted

    def _entry(self, path: bytes, node: Node, known: KnownObject | None, group: int) -> ManifestEntry:
        base = ManifestEntry(
            path, node.mode, node.size_bytes, uid=node.uid, gid=node.gid, mtime_ns=node.mtime_ns,
            target=node.target, link_group=group,
        )  # fmt: skip
        if known is None:
            return base
        return replace(
            base,
            # The object's own attributes go with its bytes, whatever happens on the disk meanwhile.
            mode=known.mode,
            uid=known.uid,
            gid=known.gid,
            mtime_ns=known.mtime_ns,
            size_bytes=known.size_bytes,
            sha256="" if node.is_directory else known.sha256,
            token=known.token,
        )

    def _kept(self, session: SessionId, node: Node) -> KnownObject | None:
        """The object under a key of its content that holds a file's bytes."""
        own = (known for known in self._journal.objects_of(node.number) if not _is_live(known))
        found = next((known for known in own if known.sha256 in {"", node.sha256}), None)
        if found is None and node.sha256:
            return self._journal.object(keys.content_key(session, node.sha256))
        return found

    async def finish(self, session: SessionId, noted: Noted) -> list[ManifestEntry]:
        """Add what only the disk knows, and bring bytes that no key can spell to ``.objects/``: nobody else does.

        Raises:
            UnavailableError, AccessError, OutcomeUnknownError, LocalDiskError: Bytes could not be stored there.
        """
        root = self._layout.sessions
        entries = await trio.to_thread.run_sync(_read_disk, root, session, noted)
        for index, (entry, node) in enumerate(zip(entries, (node for _, node in noted), strict=True)):
            untold = keys.live_key(session, entry.path, is_directory=False) is None
            if stat.S_ISREG(entry.mode) and node.present and untold:
                entries[index] = await self._store_content(session, entry, node)
        return entries

    async def _store_content(self, session: SessionId, entry: ManifestEntry, node: Node) -> ManifestEntry:
        path = _Place(self._layout.sessions, session, entry.path)
        size_bytes, sha256 = await trio.to_thread.run_sync(_measure, path)
        key = keys.content_key(session, sha256)
        if self._journal.object(key) is not None:
            return replace(entry, sha256=sha256, size_bytes=size_bytes)
        write_id = self._clock.unique_id()
        metadata = ObjectMetadata({"sessionfs-sha256": sha256, "sessionfs-write": write_id})
        # The key is the content: whoever wrote it, it is the same bytes.
        if size_bytes <= _SINGLE_PUT_BYTES:
            body = await trio.to_thread.run_sync(_read_whole, path)
            _require(hashlib.sha256(body).hexdigest() == sha256, path)
            outcome = await self._store.put(key, body, condition=Unconditional(), metadata=metadata)
        else:
            digest = hashlib.sha256()
            outcome = await self._store.put_parts(
                key,
                _parts(path, digest),
                condition=Unconditional(),
                metadata=metadata,
                before_complete=lambda: _require(digest.hexdigest() == sha256, path),
            )
        if not isinstance(outcome, Landed):
            raise UnavailableError(
                f"{key} could not be stored", remedy="it is tried again at the next commit"
            )
        self._journal.put_object(
            KnownObject(
                key=key,
                number=node.number,
                token=outcome.token,
                write_id=write_id,
                sha256=sha256,
                size_bytes=size_bytes,
                mode=entry.mode,
                uid=entry.uid,
                gid=entry.gid,
                mtime_ns=entry.mtime_ns,
                lineage="",
            )
        )
        return replace(entry, sha256=sha256, size_bytes=size_bytes)


def _is_live(known: KnownObject) -> bool:
    return keys.parse_live_key(known.key) is not None


def _read_disk(root: str, session: str, noted: Noted) -> list[ManifestEntry]:
    """Add xattrs and link targets, and attributes where no object keeps them; what vanished meanwhile stays as it was noted."""
    entries: list[ManifestEntry] = []
    for entry, node in noted:
        if not node.present:
            kept = extended_attributes.unpack(node.xattrs)
            shown = {name: value for name, value in kept.items() if name.startswith(b"user.")}
            entries.append(replace(entry, xattrs=shown))
            continue
        try:
            with short_path(root, session, entry.path) as path:
                status = os.lstat(path)
                target = os.readlink(path) if stat.S_ISLNK(entry.mode) else b""
                xattrs = {} if stat.S_ISLNK(entry.mode) else _read_xattrs(path)
        except OSError:
            entries.append(entry)
            continue
        full = replace(entry, target=target, xattrs=xattrs)
        if not entry.token:
            full = replace(
                full, mode=status.st_mode, uid=status.st_uid, gid=status.st_gid, mtime_ns=status.st_mtime_ns
            )
        entries.append(full)
    return entries


def _read_xattrs(path: bytes) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    for name in os.listxattr(path, follow_symlinks=False):
        if name.startswith("user.") and not name.startswith("user.sessionfs."):
            found[os.fsencode(name)] = os.getxattr(path, name, follow_symlinks=False)
    return found


def _measure(path: _Place) -> tuple[int, str]:
    digest = hashlib.sha256()
    size_bytes = sum(len(part) for part in _parts(path, digest))
    return size_bytes, digest.hexdigest()


def _parts(path: _Place, digest: hashlib._Hash) -> Iterator[bytes]:
    try:
        with short_path(*path) as short:
            file = open(short, "rb")  # noqa: SIM115 - closed below, when all parts were taken
        with file:
            while part := file.read(_CHUNK_BYTES):
                digest.update(part)
                yield part
    except OSError as problem:
        raise LocalDiskError(
            f"cannot read {path.shown}: {problem.strerror}", errno_number=problem.errno or 0
        ) from None


def _read_whole(path: _Place) -> bytes:
    return b"".join(_parts(path, hashlib.sha256()))


def _require(holds: bool, path: _Place) -> None:
    if not holds:
        raise UnavailableError(f"{path.shown} changed while it was committed", remedy="commit again")
