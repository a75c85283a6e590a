"""The object-store port: what every store does, one attempt per call.

Rules that hold for every store (``stores/contract.py`` has each as a promise with a test):

* An object appears whole or not at all, whatever the size and whenever a call dies.
* Every changing call names its condition; there is no default.
* A token names one stored state of one key; it is opaque, compared only for equality.
* Lists are complete, match whole segments, and have no promised order.
* ``ObjectNotFoundError`` is only raised when the store said so; a store that did not answer raises
  ``UnavailableError`` before anything was sent, ``OutcomeUnknownError`` once a changing request may have been applied.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NewType, Self

Token = NewType("Token", str)
"""Opaque name of one stored state of a key: an ETag on S3, a generation on GCS."""


@dataclass(frozen=True, slots=True)
class IfAbsent:
    """Only when no object has the key."""


@dataclass(frozen=True, slots=True)
class IfMatch:
    """Only when the key's object has exactly this token."""

    token: Token


@dataclass(frozen=True, slots=True)
class Unconditional:
    """Whatever is there: for scratch keys, content-addressed keys, and stores without the condition."""


Condition = IfAbsent | IfMatch | Unconditional


@dataclass(frozen=True, slots=True)
class ObjectMetadata:
    """What is stored beside an object's bytes.

    Attributes:
        user: User metadata: lower-case ASCII names and values, at most 2 KiB in all.
        content_type: The object's media type.
        content_encoding: ``zstd`` or "".
    """

    user: Mapping[str, str] = field(default_factory=dict)
    content_type: str = "application/octet-stream"
    content_encoding: str = ""


@dataclass(frozen=True, slots=True)
class ObjectStat:
    """What a store says about one object.

    Attributes:
        key: The key, below the store's prefix.
        size_bytes: Length of the stored bytes.
        token: Names this state of the key.
        modified_ns: The store's time of the last change, nanoseconds since the epoch; its precision is the store's.
        metadata: None in listings that carry none.
    """

    key: str
    size_bytes: int
    token: Token
    modified_ns: int
    metadata: ObjectMetadata | None = None


@dataclass(frozen=True, slots=True)
class ListPage:
    """One page of a listing.

    Attributes:
        objects: Objects whose key starts with the prefix.
        prefixes: Common prefixes (each ends in ``/``), only with a delimiter.
        next_page: Argument for the next page, None on the last.
    """

    objects: tuple[ObjectStat, ...]
    prefixes: tuple[str, ...]
    next_page: str | None


@dataclass(frozen=True, slots=True)
class ByteRange:
    """A half-open range of an object's bytes: ``start`` included, ``end`` excluded, both from 0."""

    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end:
            raise ValueError(f"range {self.start}..{self.end} is empty or negative")


@dataclass(frozen=True, slots=True)
class UploadUnderWay:
    """An upload in parts that was begun, and neither completed nor given up.

    Attributes:
        key: Where it would appear.
        identifier: The store's name of it.
        started_ns: The store's time of its beginning, nanoseconds since the epoch.
    """

    key: str
    identifier: str
    started_ns: int


class ObjectBody(ABC):
    """An object being read. Use as a context manager; chunks are read once."""

    stat: ObjectStat

    @abstractmethod
    def chunks(self, size_bytes: int = 1 << 20) -> Iterator[bytes]:
        """Give the bytes in order.

        Raises:
            UnavailableError: The connection ended early; a short body never ends silently.
        """

    def read(self) -> bytes:
        """Give all bytes at once."""
        return b"".join(self.chunks())

    def close(self) -> None:  # noqa: B027 - many bodies hold nothing
        """Let the connection go."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a store was seen to do by the probe, or knows of itself.

    Attributes:
        conditional_put: ``IfAbsent`` and ``IfMatch`` on put, with exactly one winner in a race. Required for shared use.
        conditional_delete: ``IfMatch`` on delete.
        conditional_copy: A condition on a copy's target.
        copy_source_match: A condition on a copy's source.
        conditional_complete: A condition on completing a multipart put.
        append_by_copy: ``append`` is one server-side copy and a tail.
        checksums_verified: A body whose checksum header is wrong is refused.
        marker_metadata: User metadata of a directory marker is kept as such; else the store keeps it in another place.
        etag_spelling: How If-Match wants an ETag.
        minimum_part_bytes: Smallest part that is not the last.
        maximum_segment_bytes: Longest key segment, 0 for no limit of its own.
        maximum_put_bytes: Largest single put.
    """

    conditional_put: bool = True
    conditional_delete: bool = True
    conditional_copy: bool = True
    copy_source_match: bool = True
    conditional_complete: bool = True
    append_by_copy: bool = True
    checksums_verified: bool = False
    marker_metadata: bool = False
    etag_spelling: Literal["quoted", "unquoted"] = "quoted"
    minimum_part_bytes: int = 5 << 20
    maximum_segment_bytes: int = 0
    maximum_put_bytes: int = 5 << 30


class ObjectStore(ABC):
    """A bucket (or directory) and prefix. Safe to use from several threads at once."""

    @property
    @abstractmethod
    def url(self) -> str:
        """The store's URL, without secrets: the name under which it is shown and its state is kept."""

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """What this store can do; what a probe found, once `with_capabilities` was told."""

    @abstractmethod
    def with_capabilities(self, capabilities: Capabilities) -> ObjectStore:
        """Give the same store, using (only) these capabilities."""

    @abstractmethod
    def put(self, key: str, body: bytes, *, condition: Condition, metadata: ObjectMetadata) -> Token:
        """Store an object in one request.

        Raises:
            PreconditionFailedError: The condition did not hold.
            ConcurrentRequestError: The store saw a racing request (409).
            OutcomeUnknownError: No answer, or a 5xx, after the request was sent.
            UnavailableError, AccessError, BucketNotFoundError, InvalidKeyError: Nothing was stored.
        """

    @abstractmethod
    def put_parts(
        self,
        key: str,
        parts: Iterable[bytes],
        *,
        condition: Condition,
        metadata: ObjectMetadata,
        before_complete: Callable[[], None],
    ) -> Token:
        """Store an object in several requests; it appears whole at the end.

        Args:
            key: The key.
            parts: At least one; all but the last at least ``capabilities.minimum_part_bytes``. Sent as they come.
            condition: Checked when completing, where the store can.
            metadata: Stored with the object.
            before_complete: Called after the last part was sent; when it raises, the upload is aborted and nothing appears.

        Raises:
            As `put`; and whatever `parts` or `before_complete` raises, after the abort.
        """

    @abstractmethod
    def append(
        self,
        key: str,
        tail: Iterable[bytes],
        *,
        base: ObjectStat,
        metadata: ObjectMetadata,
        before_complete: Callable[[], None],
    ) -> Token:
        """Replace an object by itself and a tail, without sending its bytes again.

        Args:
            key: The key.
            tail: The new bytes in order.
            base: The object that is extended; at least ``capabilities.minimum_part_bytes`` long.
            metadata: Stored with the new object.
            before_complete: As in `put_parts`.

        Raises:
            PreconditionFailedError: The object is no longer `base`.
            And as `put_parts`.
        """

    @abstractmethod
    def get(self, key: str, *, byte_range: ByteRange | None, expected: Token | None) -> ObjectBody:
        """Read an object.

        Args:
            key: The key.
            byte_range: The part wanted, None for all. A range beyond the end is cut to the object's length.
            expected: The token it must have, None for any.

        Raises:
            ObjectNotFoundError: No object.
            PreconditionFailedError: The object has another token.
            UnavailableError, AccessError: Nothing is known.
        """

    @abstractmethod
    def head(self, key: str) -> ObjectStat:
        """Describe an object, with its metadata.

        Raises:
            ObjectNotFoundError: No object.
            UnavailableError, AccessError: Nothing is known.
        """

    @abstractmethod
    def list_page(
        self, prefix: str, *, page: str | None, whole_segments: bool, limit: int = 1000
    ) -> ListPage:
        """List one page of the objects below a prefix, the marker with that very key included.

        Args:
            prefix: "" or whole segments that end in ``/``.
            page: None for the first, else ``next_page`` of the page before.
            whole_segments: True gives the direct children only: deeper keys as `prefixes`.
            limit: 1 to 1000 entries a page.

        Raises:
            UnavailableError, AccessError, BucketNotFoundError: Nothing is known.
        """

    @abstractmethod
    def delete(self, key: str, *, condition: Condition) -> None:
        """Remove an object.

        Args:
            key: The key.
            condition: ``IfMatch`` or ``Unconditional``; without a condition a missing object is success.

        Raises:
            PreconditionFailedError: ``IfMatch``, and the object is missing or has another token.
            And as `put`.
        """

    @abstractmethod
    def copy(
        self,
        source: str,
        target: str,
        *,
        source_token: Token,
        condition: Condition,
        metadata: ObjectMetadata,
    ) -> Token:
        """Copy an object on the server, of any size, giving the copy this metadata.

        Args:
            source: Key to copy from; may equal `target` (new metadata).
            target: Key to copy to.
            source_token: The source must have it.
            condition: On the target.
            metadata: The target's, replacing the source's.

        Raises:
            ObjectNotFoundError: The source is missing.
            PreconditionFailedError: The source has another token, or the condition on the target did not hold.
            And as `put`.
        """

    def refuses_wrong_checksum(self, key: str) -> bool:
        """Say whether a put whose checksum is wrong is refused, by trying it on a scratch key; False when not known."""
        del key
        return False

    def uploads_under_way(self, prefix: str) -> list[UploadUnderWay]:
        """List the uploads in parts below a prefix; a store that keeps no parts, or sweeps them itself, has none.

        Args:
            prefix: "" or whole segments that end in ``/``.

        Raises:
            UnavailableError, AccessError, BucketNotFoundError: Nothing is known.
        """
        del prefix
        return []

    def abort_upload(self, upload: UploadUnderWay) -> None:  # noqa: B027 - as above
        """Give an upload up: its parts are removed, and it can never be completed. One that is gone is success.

        Raises:
            UnavailableError, AccessError: It may still be there.
        """

    def close(self) -> None:  # noqa: B027 - many stores hold nothing
        """Let connections go."""

    def list_all(self, prefix: str, *, whole_segments: bool = False) -> Iterator[ListPage]:
        """Give every page of a listing."""
        page: str | None = None
        while True:
            found = self.list_page(prefix, page=page, whole_segments=whole_segments)
            yield found
            if found.next_page is None:
                return
            page = found.next_page
