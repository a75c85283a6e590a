"""What a survey of a session in the bucket finds: its objects, its manifest's entries, and what both make of each path."""

from __future__ import annotations

import stat
from dataclasses import dataclass, field

from sessionfs.formats.manifest import Manifest, ManifestEntry
from sessionfs.formats.object_metadata import FileAttributes
from sessionfs.model.names import SessionId
from sessionfs.stores.base import ObjectStat

PRIVATE_MODE = stat.S_IFREG | 0o600
YOUNG_NS = 1_000_000_000
"""Times of a store are whole seconds on some."""


@dataclass(frozen=True, slots=True)
class RemoteEntry:
    """One path of a session in the bucket.

    Attributes:
        path: Path inside the session; empty for its root.
        key: Of the object that holds its bytes, target or attributes; "" for a directory without a marker.
        mode: As this host shows it: `attributes` says what the bucket keeps.
        attributes: As the bucket keeps them.
        size_bytes: Length of the object.
        sha256: Of the object, "" when unknown.
        token: Of the object.
        write_id: Of the attempt that wrote it, "" when unknown.
        lineage: As in the metadata, "" when unknown.
        xattrs: Extended attributes, None when no manifest tells.
        target: A symlink's text.
        link_group: Equal for all names of one file, 0 for one name.
        epoch: Of the owner that wrote the object, 0 when unknown.
    """

    path: bytes
    key: str
    mode: int
    attributes: FileAttributes
    size_bytes: int = 0
    sha256: str = ""
    token: str = ""
    write_id: str = ""
    lineage: str = ""
    xattrs: dict[bytes, bytes] | None = None
    target: bytes = b""
    link_group: int = 0
    epoch: int = 0

    @property
    def is_directory(self) -> bool:
        """Whether it is a directory."""
        return stat.S_ISDIR(self.mode)


@dataclass(frozen=True, slots=True)
class Skipped:
    """An object that cannot be shown.

    Attributes:
        key: Its key.
        reason: Why, in a few words.
    """

    key: str
    reason: str


@dataclass(slots=True)
class Survey:
    """What one manifest and one listing say.

    Attributes:
        session: The session.
        manifest: The newest manifest, None for none.
        manifest_token: Its token, "" for none.
        listed: Every key below the session, whatever it is.
        live: Live objects by path.
        implied: Directories that only have something below them.
        stored: Entries of the manifest without a live object, whose bytes are elsewhere.
        skipped: What cannot be shown.
        entries: Entries of the manifest by path.
        broken_groups: Link groups that are no longer one file.
        manifest_ns: The store's time of ``manifest.json``.
        generation_ns: The store's time of the commit: what is older is as its entry says.
        newest_ns: The store's time of the newest object listed, 0 for none.
        manifest_unchanged: The manifest is the one the caller knows: it was not read again, and `manifest` is None.
        is_exact: Only the manifest counts: nothing was listed.
    """

    session: SessionId
    manifest: Manifest | None
    manifest_token: str
    listed: dict[str, ObjectStat] = field(default_factory=dict)
    live: dict[bytes, ObjectStat] = field(default_factory=dict)
    implied: set[bytes] = field(default_factory=set)
    stored: dict[bytes, ManifestEntry] = field(default_factory=dict)
    skipped: list[Skipped] = field(default_factory=list)
    entries: dict[bytes, ManifestEntry] = field(default_factory=dict)
    broken_groups: set[int] = field(default_factory=set)
    manifest_ns: int = 0
    generation_ns: int = 0
    newest_ns: int = 0
    manifest_unchanged: bool = False
    is_exact: bool = False

    @property
    def is_removed(self) -> bool:
        """Whether the newest manifest says that the session was removed."""
        return self.manifest is not None and self.manifest.removed

    @property
    def exists(self) -> bool:
        """Whether the session exists: a manifest says so, or something is listed and none says otherwise."""
        if self.manifest is not None and (self.manifest.generation or self.manifest.removed):
            return not self.manifest.removed
        return self.manifest_unchanged or bool(self.listed)

    @property
    def paths(self) -> list[bytes]:
        """Every path, directories before what is in them."""
        return sorted({b"", *self.live, *self.implied, *self.stored}, key=lambda path: path.split(b"/"))

    def has(self, path: bytes) -> bool:
        """Whether the session has a path."""
        return path == b"" or path in self.live or path in self.implied or path in self.stored

    def has_directory(self, path: bytes) -> bool:
        """Whether the session has a directory at a path."""
        live, kept = self.live.get(path), self.stored.get(path)
        marked = live is not None and live.key.endswith("/")
        return marked or path in self.implied or (kept is not None and stat.S_ISDIR(kept.mode))

    def named_by_manifest(self, path: bytes) -> ManifestEntry | None:
        """The manifest's entry for a live object, when it is of this very object."""
        entry, live = self.entries.get(path), self.live.get(path)
        same = (
            entry is not None
            and live is not None
            and entry.token == live.token
            and stat.S_ISDIR(entry.mode) == live.key.endswith("/")
        )
        return entry if same else None

    def needs_head(self, path: bytes) -> bool:
        """Whether a live object must be asked for its attributes."""
        return (
            self.named_by_manifest(path) is None
            or self.live[path].modified_ns + YOUNG_NS >= self.generation_ns
        )


@dataclass(frozen=True, slots=True)
class RemoteTree:
    """A whole session.

    Attributes:
        survey: What it was read from.
        entries: By path, directories before what is in them; the root is the first.
    """

    survey: Survey
    entries: tuple[RemoteEntry, ...]

    @property
    def skipped(self) -> list[Skipped]:
        """What cannot be shown."""
        return self.survey.skipped


def above(path: bytes) -> list[bytes]:
    """Every directory above a path, the root (empty) included; none for the root."""
    parts = path.split(b"/") if path else []
    return [b"/".join(parts[:count]) for count in range(len(parts))]
