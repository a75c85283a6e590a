"""A store below a prefix of another store: backends take whole keys, the prefix is handled here once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from sessionfs.model.errors import InvalidKeyError
from sessionfs.model.keys import validate_prefix
from sessionfs.stores.base import (
    ByteRange,
    Capabilities,
    Condition,
    ListPage,
    ObjectBody,
    ObjectMetadata,
    ObjectStat,
    ObjectStore,
    Token,
    UploadUnderWay,
)
from sessionfs.stores.request_checks import check_key, check_prefix


class PrefixedStore(ObjectStore):
    """The part of a store whose keys start with a prefix.

    Args:
        inner: The whole store.
        prefix: Whole segments ending in ``/``.
        url: The URL that names store and prefix together.
    """

    def __init__(self, inner: ObjectStore, prefix: str, *, url: str) -> None:
        if not validate_prefix(prefix):
            raise InvalidKeyError("an empty prefix needs no PrefixedStore")
        self._inner = inner
        self._prefix = prefix
        self._url = url

    @property
    def url(self) -> str:
        """The URL of store and prefix."""
        return self._url

    @property
    def capabilities(self) -> Capabilities:
        """The whole store's."""
        return self._inner.capabilities

    def with_capabilities(self, capabilities: Capabilities) -> ObjectStore:
        """Give the same part of the store."""
        return PrefixedStore(self._inner.with_capabilities(capabilities), self._prefix, url=self._url)

    def put(self, key: str, body: bytes, *, condition: Condition, metadata: ObjectMetadata) -> Token:
        """Put below the prefix."""
        return self._inner.put(self._whole(key), body, condition=condition, metadata=metadata)

    def put_parts(
        self,
        key: str,
        parts: Iterable[bytes],
        *,
        condition: Condition,
        metadata: ObjectMetadata,
        before_complete: Callable[[], None],
    ) -> Token:
        """Put in parts below the prefix."""
        return self._inner.put_parts(
            self._whole(key), parts, condition=condition, metadata=metadata, before_complete=before_complete
        )

    def append(
        self,
        key: str,
        tail: Iterable[bytes],
        *,
        base: ObjectStat,
        metadata: ObjectMetadata,
        before_complete: Callable[[], None],
    ) -> Token:
        """Append below the prefix."""
        return self._inner.append(
            self._whole(key),
            tail,
            base=replace(base, key=self._prefix + base.key),
            metadata=metadata,
            before_complete=before_complete,
        )

    def get(self, key: str, *, byte_range: ByteRange | None, expected: Token | None) -> ObjectBody:
        """Get from below the prefix."""
        return _PrefixedBody(self._inner.get(self._whole(key), byte_range=byte_range, expected=expected), key)

    def head(self, key: str) -> ObjectStat:
        """Head below the prefix."""
        return replace(self._inner.head(self._whole(key)), key=key)

    def list_page(
        self, prefix: str, *, page: str | None, whole_segments: bool, limit: int = 1000
    ) -> ListPage:
        """List below the prefix; the prefix itself is no key."""
        check_prefix(prefix, self.capabilities)
        found = self._inner.list_page(
            self._prefix + prefix, page=page, whole_segments=whole_segments, limit=limit
        )
        start = len(self._prefix)
        return ListPage(
            tuple(replace(stat, key=stat.key[start:]) for stat in found.objects if len(stat.key) > start),
            tuple(common[start:] for common in found.prefixes),
            found.next_page,
        )

    def delete(self, key: str, *, condition: Condition) -> None:
        """Delete below the prefix."""
        self._inner.delete(self._whole(key), condition=condition)

    def copy(
        self,
        source: str,
        target: str,
        *,
        source_token: Token,
        condition: Condition,
        metadata: ObjectMetadata,
    ) -> Token:
        """Copy below the prefix."""
        return self._inner.copy(
            self._whole(source),
            self._whole(target),
            source_token=source_token,
            condition=condition,
            metadata=metadata,
        )

    def refuses_wrong_checksum(self, key: str) -> bool:
        """Ask the whole store, with a key below the prefix."""
        return self._inner.refuses_wrong_checksum(self._whole(key))

    def uploads_under_way(self, prefix: str) -> list[UploadUnderWay]:
        """List those below the prefix."""
        check_prefix(prefix, self.capabilities)
        found = self._inner.uploads_under_way(self._prefix + prefix)
        return [replace(upload, key=upload.key[len(self._prefix) :]) for upload in found]

    def abort_upload(self, upload: UploadUnderWay) -> None:
        """Give up one below the prefix."""
        self._inner.abort_upload(replace(upload, key=self._whole(upload.key)))

    def close(self) -> None:
        """Close the whole store."""
        self._inner.close()

    def _whole(self, key: str) -> str:
        check_key(key, self.capabilities)
        return self._prefix + key


class _PrefixedBody(ObjectBody):
    def __init__(self, inner: ObjectBody, key: str) -> None:
        self._inner = inner
        self.stat = replace(inner.stat, key=key)

    def chunks(self, size_bytes: int = 1 << 20) -> Iterator[bytes]:
        return self._inner.chunks(size_bytes)

    def close(self) -> None:
        self._inner.close()
