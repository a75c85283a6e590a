"""Entries of a manifest: what was noted at the cut, with what only the disk knows (extended attributes, link targets) and what was brought since."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from sessionfs.formats import extended_attributes
from sessionfs.formats.manifest import BLOCK_BYTES, ManifestEntry
from sessionfs.formats.object_metadata import FileAttributes
from sessionfs.model.names import SessionId
from sessionfs.replication.commit.frozen_bytes import Measured
from sessionfs.replication.commit.noting import Noted
from sessionfs.replication.uploads.working_files import attributes_of
from sessionfs.working_copy.layout import StateLayout
from sessionfs.working_copy.open_below import short_path
from sessionfs.working_copy.upload_journal import UploadJournal


@dataclass(frozen=True, slots=True)
class Content:
    """Where the bytes of a path are.

    Attributes:
        measured: Length and sums.
        token: Of the live object that has them, or begins with them; "": they are under ``.objects/``.
    """

    measured: Measured
    token: str


@dataclass(frozen=True, slots=True)
class OnDisk:
    """What only the disk knows of a path.

    Attributes:
        attributes: Mode, owner and time.
        target: A link's text.
        xattrs: Extended attributes.
    """

    attributes: FileAttributes
    target: bytes
    xattrs: Mapping[bytes, bytes]


class Entries:
    """Builds entries.

    Args:
        journal: Block sums of contents.
        layout: Where the working copy is.
    """

    def __init__(self, journal: UploadJournal, layout: StateLayout) -> None:
        self._journal = journal
        self._layout = layout

    def read_disk(self, session: SessionId, noted: list[Noted]) -> dict[bytes, OnDisk]:
        """Read link targets and extended attributes of what is on this disk; blocks: call it in a thread.

        What vanished since has none: it is described by what was noted.
        """
        found: dict[bytes, OnDisk] = {}
        for one in noted:
            if not one.node.present:
                continue
            try:
                with short_path(self._layout.sessions, session, one.path) as path:
                    status = os.lstat(path)
                    target = os.readlink(path) if stat.S_ISLNK(one.node.mode) else b""
                    xattrs = {} if stat.S_ISLNK(one.node.mode) else _read_xattrs(path)
            except OSError:
                continue
            found[one.path] = OnDisk(attributes_of(status), target, xattrs)
        return found

    def build(
        self,
        noted: list[Noted],
        contents: Mapping[bytes, Content],
        disk: Mapping[bytes, OnDisk],
    ) -> list[ManifestEntry]:
        """Give the entries, by path.

        Args:
            noted: Everything at the cut.
            contents: Of the paths that were not settled.
            disk: From `read_disk`.
        """
        entries = [self._entry(one, contents.get(one.path), disk.get(one.path)) for one in noted]
        # Names of one file whose objects differ (another tool changed one) are no longer one file.
        names = Counter(
            (one.node.number, entry.sha256)
            for one, entry in zip(noted, entries, strict=True)
            if one.is_linked
        )
        groups: dict[tuple[int, str], int] = {}
        for index, (one, entry) in enumerate(zip(noted, entries, strict=True)):
            file = (one.node.number, entry.sha256)
            if one.is_linked and names[file] > 1:
                entries[index] = replace(entry, link_group=groups.setdefault(file, len(groups) + 1))
        return entries

    def _entry(self, one: Noted, content: Content | None, disk: OnDisk | None) -> ManifestEntry:
        node, known, frozen, kept = one.node, one.known, one.frozen, one.kept
        target, xattrs = (
            (disk.target, disk.xattrs) if disk is not None else (node.target, _shown(node.xattrs))
        )
        # The object's own attributes go with its bytes, whatever happens on the disk meanwhile.
        described = known or frozen or (disk.attributes if disk is not None else node)
        size_bytes, sha256, token = node.size_bytes, "", ""
        blocks: tuple[str, ...] = ()
        if content is not None:
            size_bytes, sha256 = content.measured.size_bytes, content.measured.sha256
            token, blocks = content.token, content.measured.blocks
        elif known is not None:
            size_bytes, sha256, token = known.size_bytes, known.sha256, known.token
        elif kept is not None:
            size_bytes, sha256 = kept.size_bytes, kept.sha256 or node.sha256
        if node.is_directory:
            size_bytes, sha256 = 0, ""
        elif not blocks and size_bytes > BLOCK_BYTES:
            blocks = self._journal.blocks(sha256)
        return ManifestEntry(
            one.path,
            described.mode,
            size_bytes,
            sha256,
            token,
            described.uid,
            described.gid,
            described.mtime_ns,
            dict(frozen.xattrs) if frozen is not None else xattrs,
            target,
            0,
            blocks,
        )


def _shown(packed: bytes) -> dict[bytes, bytes]:
    return {
        name: value for name, value in extended_attributes.unpack(packed).items() if name.startswith(b"user.")
    }


def _read_xattrs(path: bytes) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    for name in os.listxattr(path, follow_symlinks=False):
        if name.startswith("user.") and not name.startswith("user.sessionfs."):
            found[os.fsencode(name)] = os.getxattr(path, name, follow_symlinks=False)
    return found
