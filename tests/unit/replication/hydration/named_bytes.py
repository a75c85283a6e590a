"""Manifests and kept bytes for tests, as an owner writes them."""

from __future__ import annotations

import hashlib
import stat
from dataclasses import replace
from typing import Literal

from sessionfs.formats import block_sums, content_alias, object_metadata
from sessionfs.formats import manifest as manifests
from sessionfs.formats.content_alias import ContentAlias
from sessionfs.formats.manifest import Manifest, ManifestEntry
from sessionfs.formats.object_metadata import FileAttributes, Provenance
from sessionfs.model import keys
from sessionfs.stores.base import ObjectMetadata, ObjectStore, Unconditional

from .hosts import PREFIX, SESSION, put, put_manifest

FILE = stat.S_IFREG | 0o644
DIRECTORY = stat.S_IFDIR | 0o755
LINK = stat.S_IFLNK | 0o777
MTIME_NS = 1_600_000_000_123_456_789


def sha(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def blocks_of(body: bytes) -> tuple[str, ...]:
    sums = block_sums.BlockSums(len(body))
    sums.update(body)
    return sums.finish()


def entry(
    path: str, body: bytes = b"", token: str = "", *, mode: int = FILE, mtime_ns: int = MTIME_NS
) -> ManifestEntry:
    """An entry as the uploader's objects have it."""
    return ManifestEntry(
        path.encode(),
        mode,
        len(body),
        sha(body) if not stat.S_ISDIR(mode) else "",
        token,
        1000,
        1001,
        mtime_ns,
        target=body if stat.S_ISLNK(mode) else b"",
        blocks=blocks_of(body),
    )


def put_named(store: ObjectStore, path: str, body: bytes = b"", *, mode: int = FILE) -> ManifestEntry:
    """Store a live object and give its entry; a path that ends in a slash (or is empty) is a directory."""
    if path == "" or path.endswith("/"):
        token = put(store, path, mode=DIRECTORY)
        return entry(path.rstrip("/"), token=token, mode=DIRECTORY)
    return entry(path, body, put(store, path, body, mode=mode), mode=mode)


def commit(
    store: ObjectStore,
    *entries: ManifestEntry,
    generation: int = 1,
    recovery: Literal["live", "committed"] = "committed",
    epoch: int = 0,
) -> Manifest:
    """Commit a generation of these entries."""
    manifest = Manifest(SESSION, generation, entries, generation - 1, recovery=recovery, epoch=epoch)
    put_manifest(store, manifest)
    return manifest


def fence(store: ObjectStore, manifest: Manifest, epoch: int) -> Manifest:
    """Rewrite ``manifest.json`` as whoever claims the session."""
    fenced = replace(manifest, epoch=epoch, holder="taker")
    put_raw(store, keys.manifest_key(SESSION), encoded(fenced))
    return fenced


def encoded(manifest: Manifest) -> bytes:
    return manifests.encode(manifest)[0]


def put_raw(store: ObjectStore, key: str, body: bytes, *, sha256: str = "") -> str:
    """Store an object that is no live one."""
    user = {"sessionfs-sha256": sha256} if sha256 else {}
    return store.put(key, body, condition=Unconditional(), metadata=ObjectMetadata(user))


def put_of_epoch(store: ObjectStore, path: str, body: bytes, epoch: int) -> str:
    """Let an owner's request arrive that put a file."""
    provenance = Provenance(sha(body), f"write-of-{epoch}", epoch, "l")
    user = object_metadata.encode(FileAttributes(FILE, 1000, 1001, MTIME_NS), provenance)
    return store.put(PREFIX + path, body, condition=Unconditional(), metadata=ObjectMetadata(user))


def keep(store: ObjectStore, body: bytes) -> str:
    """Keep bytes by their content, as before an overwrite."""
    return put_raw(store, keys.content_key(SESSION, sha(body)), body, sha256=sha(body))


def alias(store: ObjectStore, body: bytes, whole: bytes) -> str:
    """Note that bytes are the first ones of others that are kept."""
    note = content_alias.encode(ContentAlias(of=sha(whole), size=len(body)))
    return put_raw(store, keys.alias_key(SESSION, sha(body)), note)


def read(store: ObjectStore, key: str) -> bytes:
    with store.get(key, byte_range=None, expected=None) as body:
        return body.read()


def live(store: ObjectStore) -> dict[str, bytes]:
    """Every live object, by its path."""
    return {
        found.key.removeprefix(PREFIX): read(store, found.key)
        for page in store.list_all(PREFIX)
        for found in page.objects
    }


def kept_aside(store: ObjectStore) -> dict[str, bytes]:
    """What is in ``.conflicts/``, by the path it is of."""
    prefix = keys.conflicts_prefix(SESSION)
    return {
        found.key.removeprefix(prefix).rpartition("/")[0]: read(store, found.key)
        for page in store.list_all(prefix)
        for found in page.objects
    }
