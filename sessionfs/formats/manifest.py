"""The manifest: one generation of a session, entry by entry.

``manifest.json`` is canonical JSON (sorted keys, no spaces), entries sorted by path; above 1 MiB it is stored as zstd, which
its first bytes say (so it also opens where a client has undone the content encoding). Entries name content:

* A path is spelled as in keys: each segment by `names.encode_name`.
* ``mode`` is as in ``st_mode``, type included.
* An entry with a token had a live object with that token; a file or symlink without one has its bytes under
  ``sessions/<id>.objects/`` (no key can be its own). A directory without one has no marker.
* Paths with the same ``link_group`` other than 0 are one file.
* ``blocks`` has a sha256 for each 8 MiB of a longer file; shorter files do not have the field.

The older layout ``{"generation": n, "paths": [...]}`` is read as format 0: a set of paths without digests.
"""

from __future__ import annotations

import itertools
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

import msgspec
import zstandard

from sessionfs.formats import extended_attributes, versioned_json
from sessionfs.model import names, roots
from sessionfs.model.errors import CorruptDataError

FORMAT = 1
OLDER_FORMAT = 0
COMPRESS_ABOVE_BYTES = 1 << 20
MAX_DECODED_BYTES = 1 << 30
"""A manifest that unpacks to more is refused: about five million files."""
ZSTD = "zstd"
BLOCK_BYTES = 8 << 20
"""Files longer than this carry one sha256 for each block of this length, so that a part verifies alone."""

EntryType = Literal["file", "directory", "symlink"]

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_SHA256 = re.compile(r"[0-9a-f]{64}|")
_BLOCK_SHA256 = re.compile(r"[0-9a-f]{64}")
_KINDS: dict[EntryType, int] = {"file": stat.S_IFREG, "directory": stat.S_IFDIR, "symlink": stat.S_IFLNK}

_Natural = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_Identity = Annotated[int, msgspec.Meta(ge=0, le=(1 << 32) - 1)]
_Mode = Annotated[int, msgspec.Meta(ge=0, le=0o177777)]
_Time = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


@dataclass(frozen=True, slots=True)
class ManifestEntry:
    """One path of a generation.

    Attributes:
        path: Path inside the session; empty for its root.
        mode: Type and permission bits, as in ``st_mode``: a file, directory or symlink.
        size_bytes: Length of the bytes; a symlink's is its target's.
        sha256: Of the object's bytes; "" for a directory.
        token: Of the live object; "" for none.
        uid: Owner.
        gid: Group.
        mtime_ns: Modification time, nanoseconds since the epoch.
        xattrs: Extended attributes.
        target: A symlink's text.
        link_group: Equal for all names of one file; 0 for a file with one name.
        blocks: sha256 of each `BLOCK_BYTES` of a file that is longer than one block, the last one shorter; else empty.
    """

    path: bytes
    mode: int
    size_bytes: int = 0
    sha256: str = ""
    token: str = ""
    uid: int = 0
    gid: int = 0
    mtime_ns: int = 0
    xattrs: Mapping[bytes, bytes] = field(default_factory=dict)
    target: bytes = b""
    link_group: int = 0
    blocks: tuple[str, ...] = ()

    @property
    def type(self) -> EntryType:
        """The type that `mode` says; a file for anything else."""
        return next((name for name, kind in _KINDS.items() if kind == stat.S_IFMT(self.mode)), "file")


@dataclass(frozen=True, slots=True)
class Manifest:
    """One generation.

    Attributes:
        session: The session.
        generation: Counts from 1, with gaps.
        entries: By path, the session's root included.
        previous: The generation before, 0 for none.
        created_at: Time as text.
        trigger: What asked for the commit.
        epoch: The owner's epoch, 0 in a manifest of a version without ownership.
        holder: The owner, "" in a manifest of a version without ownership.
        recovery: ``live``: newer live objects belong to the session; ``committed``: only this generation does.
        removed: The session was removed.
        format: `FORMAT`, or `OLDER_FORMAT` for a set of paths without digests.
    """

    session: str
    generation: int
    entries: tuple[ManifestEntry, ...] = ()
    previous: int = 0
    created_at: str = ""
    trigger: str = ""
    epoch: int = 0
    holder: str = ""
    recovery: Literal["live", "committed"] = "live"
    removed: bool = False
    format: int = FORMAT


class _WireEntry(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    type: EntryType
    mode: _Mode
    size: _Natural = 0
    sha256: str = ""
    token: str = ""
    uid: _Identity = 0
    gid: _Identity = 0
    mtime_ns: _Time = 0
    xattrs: dict[str, str] = {}
    target: str = ""
    link_group: _Natural = 0
    blocks: list[str] | msgspec.UnsetType = msgspec.UNSET


class _WireManifest(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    session: str
    generation: _Natural
    previous: _Natural = 0
    created_at: str = ""
    trigger: str = ""
    epoch: _Natural = 0
    holder: str = ""
    recovery: Literal["live", "committed"] = "live"
    removed: bool = False
    entries: list[_WireEntry]


class _OlderManifest(msgspec.Struct, frozen=True, kw_only=True):
    generation: _Natural
    paths: list[str]


def encode(manifest: Manifest) -> tuple[bytes, str]:
    """Give the stored bytes of a manifest of `FORMAT`, and their content encoding (``zstd`` or "")."""
    entries = sorted((_wire_entry(entry) for entry in manifest.entries), key=lambda entry: entry.path)
    raw = versioned_json.encode(
        _WireManifest(
            format=FORMAT,
            session=roots.shown_id(manifest.session),
            generation=manifest.generation,
            previous=manifest.previous,
            created_at=manifest.created_at,
            trigger=manifest.trigger,
            epoch=manifest.epoch,
            holder=manifest.holder,
            recovery=manifest.recovery,
            removed=manifest.removed,
            entries=entries,
        )
    )
    if len(raw) <= COMPRESS_ABOVE_BYTES:
        return raw, ""
    return zstandard.ZstdCompressor(write_checksum=True).compress(raw), ZSTD


def decode(raw: bytes, key: str, *, limit_bytes: int = MAX_DECODED_BYTES) -> Manifest:
    """Read a manifest.

    Args:
        raw: The stored bytes, compressed or not.
        key: Where they are, for errors.
        limit_bytes: Longest JSON text accepted.

    Raises:
        UnsupportedFormatError: A format this version does not know.
        CorruptDataError: No manifest, or longer than the limit.
    """
    text = _unpack(raw, key, limit_bytes) if raw.startswith(_ZSTD_MAGIC) else raw
    if len(text) > limit_bytes:
        raise CorruptDataError(f"{key} is longer than {limit_bytes} bytes")
    if versioned_json.decode_format(text, key, supported=FORMAT) is None:
        return _decode_older(text, key)
    wire = versioned_json.decode(text, _WireManifest, key)
    entries = sorted((_entry(entry, key) for entry in wire.entries), key=lambda entry: entry.path)
    for entry, following in itertools.pairwise(entries):
        if entry.path == following.path:
            raise CorruptDataError(f"{key} names {names.display(entry.path)!r} twice")
    return Manifest(
        session=roots.internal_id(wire.session),
        generation=wire.generation,
        entries=tuple(entries),
        previous=wire.previous,
        created_at=wire.created_at,
        trigger=wire.trigger,
        epoch=wire.epoch,
        holder=wire.holder,
        recovery=wire.recovery,
        removed=wire.removed,
    )


def encode_path(path: bytes) -> str:
    """Spell a path as its key does."""
    return "/".join(names.encode_name(name) for name in path.split(b"/")) if path else ""


def decode_path(text: str) -> bytes | None:
    """Read `encode_path`'s spelling; None when no path has it."""
    decoded = [names.decode_name(segment) for segment in text.split("/")] if text else []
    known = [name for name in decoded if name is not None]
    return b"/".join(known) if len(known) == len(decoded) else None


def _wire_entry(entry: ManifestEntry) -> _WireEntry:
    return _WireEntry(
        path=encode_path(entry.path),
        type=entry.type,
        mode=entry.mode,
        size=entry.size_bytes,
        sha256=entry.sha256,
        token=entry.token,
        uid=entry.uid,
        gid=entry.gid,
        mtime_ns=entry.mtime_ns,
        xattrs=extended_attributes.encode_values(entry.xattrs),
        target=extended_attributes.encode_text(entry.target),
        link_group=entry.link_group,
        blocks=list(entry.blocks) if entry.blocks else msgspec.UNSET,
    )


def _entry(wire: _WireEntry, key: str) -> ManifestEntry:
    path = decode_path(wire.path)
    if path is None:
        raise CorruptDataError(f"{key} has the path {wire.path!r}, which names no file")
    if _KINDS[wire.type] != stat.S_IFMT(wire.mode):
        raise CorruptDataError(f"{key} calls {wire.path!r} a {wire.type}, but its mode says otherwise")
    if not _SHA256.fullmatch(wire.sha256):
        raise CorruptDataError(f"{key} has no sha256 at {wire.path!r}")
    blocks = () if wire.blocks is msgspec.UNSET else tuple(wire.blocks)
    if blocks and (
        len(blocks) != -(-wire.size // BLOCK_BYTES) or not all(map(_BLOCK_SHA256.fullmatch, blocks))
    ):
        raise CorruptDataError(f"{key} has other blocks at {wire.path!r} than its length says")
    return ManifestEntry(
        path=path,
        mode=wire.mode,
        size_bytes=wire.size,
        sha256=wire.sha256,
        token=wire.token,
        uid=wire.uid,
        gid=wire.gid,
        mtime_ns=wire.mtime_ns,
        xattrs=extended_attributes.decode_values(wire.xattrs, key),
        target=extended_attributes.decode_text(wire.target),
        link_group=wire.link_group,
        blocks=blocks,
    )


def _decode_older(text: bytes, key: str) -> Manifest:
    """Read the older layout; its paths are plain text, and one that names no file says nothing."""
    older = versioned_json.decode(text, _OlderManifest, key)
    plain = {path.encode("utf-8", "surrogatepass") for path in older.paths}
    paths = sorted(path for path in plain if path and decode_path(encode_path(path)) == path)
    entries = tuple(ManifestEntry(path, stat.S_IFREG | 0o644) for path in paths)
    return Manifest("", older.generation, entries, format=OLDER_FORMAT)


def _unpack(raw: bytes, key: str, limit_bytes: int) -> bytes:
    try:
        with zstandard.ZstdDecompressor().stream_reader(raw) as reader:
            return reader.read(limit_bytes + 1)
    except (zstandard.ZstdError, MemoryError) as problem:
        raise CorruptDataError(f"{key} cannot be unpacked: {problem}") from None
