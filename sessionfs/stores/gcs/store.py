"""Google Cloud Storage: one attempt per call, every error with its meaning.

A token is an object's generation, as text: each state of a key has another, also when only the metadata was replaced (by a copy onto
itself). An object whose metadata another tool patches keeps its generation.

All conditions are GCS's own. Where an emulator lacks one, the nearest there is stands in: a look right before the request.
"""

from __future__ import annotations

import contextlib
import copy as shallow
import itertools
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Literal

from sessionfs.model.clock import Clock, SystemClock
from sessionfs.model.errors import (
    ConflictError,
    InvalidKeyError,
    InvalidRequestError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    PreconditionFailedError,
    SessionFSError,
    UnavailableError,
)
from sessionfs.stores.base import (
    ByteRange,
    Capabilities,
    Condition,
    IfAbsent,
    IfMatch,
    ListPage,
    ObjectBody,
    ObjectMetadata,
    ObjectStat,
    ObjectStore,
    Token,
    Unconditional,
    UploadUnderWay,
)
from sessionfs.stores.gcs import uploads
from sessionfs.stores.gcs.connection import GcsConnection, connect
from sessionfs.stores.gcs.copying import rewrite
from sessionfs.stores.gcs.errors import Request
from sessionfs.stores.gcs.objects import Objects, require_token
from sessionfs.stores.gcs.reading import EmptyBody
from sessionfs.stores.gcs.tails import TAILS, compose, generation_of, list_tails, tail_metadata
from sessionfs.stores.gcs.uploads import put_pieces, put_whole
from sessionfs.stores.prefixed import PrefixedStore
from sessionfs.stores.request_checks import (
    check_copy,
    check_delete_condition,
    check_key,
    check_limit,
    check_parts_key,
    check_prefix,
    check_put,
    condition_text,
)
from sessionfs.stores.store_urls import GsLocation

_UNCONDITIONAL = Unconditional()
_CAPABILITIES = Capabilities(
    checksums_verified=True, marker_metadata=True, minimum_part_bytes=1, maximum_put_bytes=5 << 40
)


def open_location(location: GsLocation, *, max_connections: int, clock: Clock | None) -> ObjectStore:
    """Open what a URL named; sends nothing to the bucket yet.

    Args:
        location: Bucket, prefix and endpoint.
        max_connections: Size of the connection pool.
        clock: The system's when None.

    Raises:
        AccessError: No usable credentials.
    """
    store = GcsStore(
        connect(location, max_connections=max_connections),
        url=GsLocation(location.bucket, "", location.endpoint).url,
        tails_prefix=location.prefix + TAILS,
        clock=clock or SystemClock(),
    )
    return PrefixedStore(store, location.prefix, url=location.url) if location.prefix else store


class GcsStore(ObjectStore):
    """A bucket.

    Args:
        connection: How it is reached.
        url: Its URL.
        tails_prefix: Where tails wait to be composed; nothing below it is ever shown.
        clock: Names the tails.
    """

    def __init__(self, connection: GcsConnection, *, url: str, tails_prefix: str, clock: Clock) -> None:
        self._connection = connection
        self._objects = Objects(connection)
        self._url = url
        self._tails_prefix = tails_prefix
        self._clock = clock
        self._capabilities = _CAPABILITIES

    @property
    def url(self) -> str:
        """The bucket's URL."""
        return self._url

    @property
    def capabilities(self) -> Capabilities:
        """What the probe found, or everything."""
        return self._capabilities

    def with_capabilities(self, capabilities: Capabilities) -> ObjectStore:
        """Give the same bucket over the same connections."""
        other = shallow.copy(self)
        other._capabilities = capabilities  # noqa: SLF001 - its own class
        return other

    def put(self, key: str, body: bytes, *, condition: Condition, metadata: ObjectMetadata) -> Token:
        """An upload in one request; a resumable one above 8 MiB."""
        check_put(key, len(body), metadata, self._capabilities)
        self._check_shown(key)
        if len(body) > uploads.PIECE_BYTES:
            return self._put_pieces(
                key, [body], condition, metadata, _go_on, conditional=self._capabilities.conditional_put
            )
        return put_whole(
            self._connection,
            key,
            body,
            metadata=metadata,
            condition=condition,
            if_generation=self._required(key, condition, conditional=self._capabilities.conditional_put),
        )

    def put_parts(
        self,
        key: str,
        parts: Iterable[bytes],
        *,
        condition: Condition,
        metadata: ObjectMetadata,
        before_complete: Callable[[], None],
    ) -> Token:
        """A resumable upload."""
        check_parts_key(key, metadata, self._capabilities)
        self._check_shown(key)
        return self._put_pieces(
            key,
            parts,
            condition,
            metadata,
            before_complete,
            conditional=self._capabilities.conditional_complete,
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
        """A compose of the object and its tail, which is stored as a temporary object before."""
        check_parts_key(key, metadata, self._capabilities)
        self._check_shown(key)
        if not self._capabilities.append_by_copy:
            return self._append_by_reading(key, tail, base, metadata, before_complete)
        name = f"{self._tails_prefix}{self._clock.unique_id()}"
        nonempty = (piece for piece in tail if piece)
        first = next(nonempty, b"")
        try:
            stored: tuple[str, Token] | None = None
            if first:
                stored = (name, self._put_tail(name, key, itertools.chain([first], nonempty)))
            before_complete()
            conditional = self._capabilities.conditional_complete
            if not conditional:
                self._objects.look(key, IfMatch(base.token))
            return compose(
                self._connection,
                replace(base, key=key),
                stored,
                metadata=metadata,
                conditional=conditional,
            )
        finally:
            if first:
                # Also when nobody knows what came of the compose: one that is late finds no tail, and changes nothing.
                with contextlib.suppress(SessionFSError):
                    self._delete(name, _UNCONDITIONAL)

    def get(self, key: str, *, byte_range: ByteRange | None, expected: Token | None) -> ObjectBody:
        """One GET, its body checked."""
        check_key(key, self._capabilities)
        self._check_shown(key)
        if key.endswith("/"):
            stat = self._objects.describe(key)
            if stat.size_bytes == 0:
                require_token(stat, expected)
                return EmptyBody(stat)
        return self._objects.read(key, byte_range, expected)

    def head(self, key: str) -> ObjectStat:
        """The object's description."""
        check_key(key, self._capabilities)
        self._check_shown(key)
        return self._objects.describe(key)

    def list_page(
        self, prefix: str, *, page: str | None, whole_segments: bool, limit: int = 1000
    ) -> ListPage:
        """One page of objects, without our own tails."""
        check_prefix(prefix, self._capabilities)
        check_limit(limit)
        found = self._objects.page(prefix, page, limit, delimiter="/" if whole_segments else None)
        return ListPage(
            tuple(stat for stat in found.objects if not stat.key.startswith(self._tails_prefix)),
            tuple(common for common in found.prefixes if common != self._tails_prefix),
            found.next_page,
        )

    def delete(self, key: str, *, condition: Condition) -> None:
        """A delete under the object's generation."""
        check_key(key, self._capabilities)
        self._check_shown(key)
        check_delete_condition(condition)
        self._delete(key, condition)

    def copy(
        self,
        source: str,
        target: str,
        *,
        source_token: Token,
        condition: Condition,
        metadata: ObjectMetadata,
    ) -> Token:
        """A rewrite, of any size."""
        check_copy(source, target, metadata, self._capabilities)
        self._check_shown(source)
        self._check_shown(target)
        by_source = self._capabilities.copy_source_match
        if not by_source:
            require_token(self._objects.describe(source), source_token)
        try:
            return rewrite(
                self._connection,
                source,
                target,
                metadata=metadata,
                condition=condition,
                if_generation=self._required(
                    target, condition, conditional=self._capabilities.conditional_copy
                ),
                if_source_generation=generation_of(source_token) if by_source else None,
            )
        except (PreconditionFailedError, ObjectNotFoundError):
            # GCS does not say which of the two objects did not match.
            require_token(self._objects.describe(source), source_token)
            raise

    def refuses_wrong_checksum(self, key: str) -> bool:
        """Put with a wrong CRC32C; true when the server answers that it is wrong."""
        check_key(key, self._capabilities)
        blob = self._connection.blob(key)
        blob.crc32c = "AAAAAA=="
        try:
            self._connection.send(
                self._request("put", key, "changing"),
                blob.upload_from_string,
                data=b"these bytes have another checksum",
                checksum=None,
            )
        except (InvalidRequestError, ConflictError):
            return True
        return False

    def uploads_under_way(self, prefix: str) -> list[UploadUnderWay]:
        """Tails that were never composed. Resumable uploads cannot be listed; GCS ends them itself after a week."""
        check_prefix(prefix, self._capabilities)
        return list_tails(self._connection, self._tails_prefix, prefix)

    def abort_upload(self, upload: UploadUnderWay) -> None:
        """Remove a tail."""
        if not upload.identifier.startswith(self._tails_prefix):
            raise InvalidRequestError(f"{upload.identifier!r} is no upload of this store")
        self._delete(upload.identifier, _UNCONDITIONAL)

    def close(self) -> None:
        """Close the pool."""
        self._connection.close()

    def _put_pieces(
        self,
        key: str,
        parts: Iterable[bytes],
        condition: Condition,
        metadata: ObjectMetadata,
        before_complete: Callable[[], None],
        *,
        conditional: bool,
    ) -> Token:
        def check() -> None:
            before_complete()
            if not conditional:
                self._objects.look(key, condition)

        return put_pieces(
            self._connection,
            key,
            parts,
            metadata=metadata,
            condition=condition,
            if_generation=_generation(condition) if conditional else None,
            before_complete=check,
        )

    def _put_tail(self, name: str, key: str, tail: Iterable[bytes]) -> Token:
        try:
            return put_pieces(
                self._connection,
                name,
                tail,
                metadata=tail_metadata(key),
                condition=IfAbsent(),
                if_generation=0,
                before_complete=_go_on,
            )
        except OutcomeUnknownError as error:
            # Whatever became of the tail, its object is as it was.
            raise UnavailableError(f"the tail of {key!r} was not stored: {error.message}") from error

    def _append_by_reading(
        self,
        key: str,
        tail: Iterable[bytes],
        base: ObjectStat,
        metadata: ObjectMetadata,
        before_complete: Callable[[], None],
    ) -> Token:
        try:
            with self.get(key, byte_range=None, expected=base.token) as body:
                return self.put_parts(
                    key,
                    itertools.chain(body.chunks(), tail),
                    condition=IfMatch(base.token),
                    metadata=metadata,
                    before_complete=before_complete,
                )
        except ObjectNotFoundError:
            raise PreconditionFailedError(f"{key!r} {condition_text(IfMatch(base.token))}") from None

    def _delete(self, key: str, condition: Condition) -> None:
        required = self._required(key, condition, conditional=self._capabilities.conditional_delete)
        try:
            self._connection.send(
                self._request("delete", key, "changing", condition),
                self._connection.blob(key).delete,
                if_generation_match=required,
            )
        except ObjectNotFoundError:
            # Without a condition a missing object is success; with one, the error is another.
            return

    def _required(self, key: str, condition: Condition, *, conditional: bool) -> int | None:
        """Give the generation to ask for; where the store has no such condition, look first and ask for none."""
        if conditional:
            return _generation(condition)
        self._objects.look(key, condition)
        return None

    def _check_shown(self, key: str) -> None:
        if key.startswith(self._tails_prefix):
            raise InvalidKeyError(f"{key!r} is below {self._tails_prefix!r}, where only tails are kept")

    def _request(
        self,
        verb: str,
        key: str,
        effect: Literal["read", "changing"],
        condition: Condition = _UNCONDITIONAL,
        *,
        missing: Literal["object", "bucket"] = "object",
    ) -> Request:
        return Request(verb, self._connection.bucket, key, effect, condition, missing)


def _generation(condition: Condition) -> int | None:
    if isinstance(condition, IfAbsent):
        return 0
    return generation_of(condition.token) if isinstance(condition, IfMatch) else None


def _go_on() -> None:
    return None
