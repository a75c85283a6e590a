"""Any S3 server, through boto3: path style, one attempt per call, every error with its meaning.

A token is the ETag without quotes. S3 gives equal bytes equal ETags, also under other metadata: two puts of the same bytes are told
apart by metadata only.

Where the store lacks a condition, the nearest there is stands in: a HEAD right before the request.
"""

from __future__ import annotations

import base64
import copy as shallow
import zlib
from collections.abc import Callable, Iterable
from typing import Any, Literal

from sessionfs.model.clock import Clock, SystemClock
from sessionfs.model.errors import (
    BucketNotFoundError,
    InvalidRequestError,
    ObjectNotFoundError,
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
from sessionfs.stores.prefixed import PrefixedStore
from sessionfs.stores.request_checks import (
    check_copy,
    check_delete_condition,
    check_key,
    check_limit,
    check_parts_key,
    check_prefix,
    check_put,
    collision,
    condition_text,
)
from sessionfs.stores.s3.connection import S3Connection, connect
from sessionfs.stores.s3.errors import Request
from sessionfs.stores.s3.folders import marker_metadata, may_be_implied
from sessionfs.stores.s3.multipart import (
    MultipartUpload,
    abort,
    list_uploads,
    metadata_arguments,
    regroup,
    send_parts,
    token_of,
)
from sessionfs.stores.s3.reading import EmptyBody, S3Body, page_of, stat_of
from sessionfs.stores.store_urls import S3Location, parse_s3_url

SINGLE_COPY_BYTES = 512 << 20
"""Objects of several parts above this are copied in parts: one long request could outlast its timeout."""

_UNCONDITIONAL = Unconditional()
_TAIL_PART_BYTES = 8 << 20
_TOO_LARGE_CODES = ("InvalidRequest", "EntityTooLarge")


def open_url(url: str, *, max_connections: int = 32, clock: Clock | None = None) -> ObjectStore:
    """Open ``s3://bucket[/prefix]?endpoint=URL&region=R``; sends nothing yet.

    Args:
        url: The store's URL.
        max_connections: Size of the connection pool.
        clock: The system's when None.

    Raises:
        StoreUrlError: The URL is malformed.
        AccessError: No usable credentials.
    """
    location = parse_s3_url(url)
    connection = connect(location, max_connections=max_connections, clock=clock or SystemClock())
    whole = S3Location(location.bucket, "", location.endpoint, location.region)
    store = S3Store(connection, url=whole.url)
    return PrefixedStore(store, location.prefix, url=location.url) if location.prefix else store


class S3Store(ObjectStore):
    """A bucket.

    Args:
        connection: How it is reached.
        url: Its URL.
        capabilities: What it can do: everything, until a probe found otherwise.
    """

    def __init__(
        self, connection: S3Connection, *, url: str, capabilities: Capabilities | None = None
    ) -> None:
        self._connection = connection
        self._client = connection.client
        self._url = url
        self._capabilities = capabilities or Capabilities()

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
        """PutObject."""
        check_put(key, len(body), metadata, self._capabilities)
        request = self._request("put", key, "changing", condition)
        if key.endswith("/") and not self._capabilities.marker_metadata:
            metadata = marker_metadata(metadata)
        extra = metadata_arguments(metadata)
        if self._capabilities.checksums_verified:
            extra["ChecksumCRC32"] = _crc32(body)

        def send(match: dict[str, str]) -> Token:
            answer = self._connection.send(
                request, self._client.put_object, Key=key, Body=body, **extra, **match
            )
            return token_of(answer, request)

        return self._publish(key, condition, send, conditional=self._capabilities.conditional_put)

    def put_parts(
        self,
        key: str,
        parts: Iterable[bytes],
        *,
        condition: Condition,
        metadata: ObjectMetadata,
        before_complete: Callable[[], None],
    ) -> Token:
        """A multipart upload."""
        check_parts_key(key, metadata, self._capabilities)
        with self._upload(key, metadata) as upload:
            send_parts(upload, parts, before_complete)
            return self._complete(upload, key, condition)

    def append(
        self,
        key: str,
        tail: Iterable[bytes],
        *,
        base: ObjectStat,
        metadata: ObjectMetadata,
        before_complete: Callable[[], None],
    ) -> Token:
        """A multipart upload whose first parts are copied from the object itself."""
        check_parts_key(key, metadata, self._capabilities)
        condition = IfMatch(base.token)
        least = self._capabilities.minimum_part_bytes
        if base.size_bytes < least:
            raise InvalidRequestError(
                f"{key!r} is too short to be extended: {base.size_bytes} bytes, least {least}"
            )
        tail_parts = regroup(tail, max(least, _TAIL_PART_BYTES))
        with self._upload(key, metadata) as upload:
            try:
                if self._capabilities.append_by_copy:
                    self._copy_into(upload, key, base)
                else:
                    with self.get(key, byte_range=None, expected=base.token) as body:
                        for part in regroup(body.chunks(), max(least, _TAIL_PART_BYTES)):
                            upload.send_part(upload.take_numbers(1), part)
            except ObjectNotFoundError:
                raise PreconditionFailedError(f"{key!r} {condition_text(condition)}") from None
            send_parts(upload, tail_parts, before_complete)
            return self._complete(upload, key, condition)

    def get(self, key: str, *, byte_range: ByteRange | None, expected: Token | None) -> ObjectBody:
        """GetObject, its body checked against the announced length."""
        check_key(key, self._capabilities)
        if key.endswith("/"):
            stat = self.head(key)
            if stat.size_bytes == 0:
                _require_token(stat, expected)
                return EmptyBody(stat)
        request = self._request("get", key, "read", IfMatch(expected) if expected else Unconditional())
        extra: dict[str, Any] = {}
        if byte_range is not None:
            extra["Range"] = f"bytes={byte_range.start}-{byte_range.end - 1}"
        if expected is not None:
            extra["IfMatch"] = self._spelled(expected)
        try:
            answer = self._connection.send(request, self._client.get_object, Key=key, **extra)
        except InvalidRequestError as error:
            if byte_range is None or "InvalidRange" not in error.message:
                raise
            answer = None
        if answer is None:
            stat = self.head(key)
            if byte_range is not None and byte_range.start < stat.size_bytes:
                raise UnavailableError(f"{key!r} changed while it was read")
            _require_token(stat, expected)
            return EmptyBody(stat)
        body = S3Body(answer, key, self._connection, request)
        try:
            _require_token(body.stat, expected)
        except PreconditionFailedError:
            body.close()
            raise
        return body

    def head(self, key: str) -> ObjectStat:
        """HeadObject; a 404 says nothing about the bucket, so that is asked then."""
        check_key(key, self._capabilities)
        try:
            answer = self._connection.send(
                self._request("head", key, "read"), self._client.head_object, Key=key
            )
        except ObjectNotFoundError:
            self._require_bucket()
            raise
        stat = stat_of(answer, key)
        if may_be_implied(stat) and not self._is_listed(key):
            raise ObjectNotFoundError(f"no object {key!r}")
        return stat

    def list_page(
        self, prefix: str, *, page: str | None, whole_segments: bool, limit: int = 1000
    ) -> ListPage:
        """ListObjectsV2."""
        check_prefix(prefix, self._capabilities)
        check_limit(limit)
        extra: dict[str, Any] = {"Delimiter": "/"} if whole_segments else {}
        if page is not None:
            extra["ContinuationToken"] = page
        request = self._request("list", prefix, "read")
        answer = self._connection.send(
            request, self._client.list_objects_v2, Prefix=prefix, MaxKeys=limit, **extra
        )
        return page_of(answer, prefix)

    def delete(self, key: str, *, condition: Condition) -> None:
        """DeleteObject."""
        check_key(key, self._capabilities)
        check_delete_condition(condition)
        request = self._request("delete", key, "changing", condition)
        extra: dict[str, str] = {}
        if isinstance(condition, IfMatch):
            if self._capabilities.conditional_delete:
                extra = self._match(condition)
            else:
                self._check_by_head(key, condition)
        try:
            self._connection.send(request, self._client.delete_object, Key=key, **extra)
        except ObjectNotFoundError:
            # Some servers answer 404 where S3 answers 204; without a condition a missing object is success.
            return

    def copy(
        self,
        source: str,
        target: str,
        *,
        source_token: Token,
        condition: Condition,
        metadata: ObjectMetadata,
    ) -> Token:
        """CopyObject, in parts where one request could take too long or is too large for the server."""
        check_copy(source, target, metadata, self._capabilities)
        if source.endswith("/"):
            stat = self.head(source)
            _require_token(stat, source_token)
            if stat.size_bytes == 0:
                return self.put(target, b"", condition=condition, metadata=metadata)
        if "-" in source_token:
            stat = self.head(source)
            _require_token(stat, source_token)
            if stat.size_bytes > SINGLE_COPY_BYTES:
                return self._copy_in_parts(stat, target, condition, metadata)
        try:
            return self._copy_whole(source, target, source_token, condition, metadata)
        except InvalidRequestError as error:
            if not any(code in error.message for code in _TOO_LARGE_CODES):
                raise
            stat = self.head(source)
            _require_token(stat, source_token)
            if stat.size_bytes <= SINGLE_COPY_BYTES:
                raise
            return self._copy_in_parts(stat, target, condition, metadata)

    def refuses_wrong_checksum(self, key: str) -> bool:
        """Put with a wrong CRC32; true when the server answers that it is wrong."""
        check_key(key, self._capabilities)
        body = b"these bytes have another checksum"
        request = self._request("put", key, "changing")
        try:
            self._connection.send(
                request, self._client.put_object, Key=key, Body=body, ChecksumCRC32=_crc32(body + b"!")
            )
        except InvalidRequestError:
            return True
        return False

    def uploads_under_way(self, prefix: str) -> list[UploadUnderWay]:
        """ListMultipartUploads, every page."""
        check_prefix(prefix, self._capabilities)
        return list_uploads(self._connection, prefix)

    def abort_upload(self, upload: UploadUnderWay) -> None:
        """AbortMultipartUpload."""
        abort(self._connection, upload.key, upload.identifier)

    def close(self) -> None:
        """Close the pool."""
        self._client.close()

    def _copy_whole(
        self, source: str, target: str, source_token: Token, condition: Condition, metadata: ObjectMetadata
    ) -> Token:
        extra = metadata_arguments(metadata) | self._source_match(source, source_token)
        request = self._request("copy", target, "changing", condition)

        def send(match: dict[str, str]) -> Token:
            answer = self._connection.send(
                request,
                self._client.copy_object,
                Key=target,
                CopySource={"Bucket": self._connection.bucket, "Key": source},
                MetadataDirective="REPLACE",
                **extra,
                **match,
            )
            return token_of(answer.get("CopyObjectResult", {}), request)

        try:
            return self._publish(target, condition, send, conditional=self._capabilities.conditional_copy)
        except (PreconditionFailedError, ObjectNotFoundError):
            # S3 does not say which of the two objects did not match.
            _require_token(self.head(source), source_token)
            raise

    def _copy_in_parts(
        self, source: ObjectStat, target: str, condition: Condition, metadata: ObjectMetadata
    ) -> Token:
        with self._upload(target, metadata) as upload:
            self._copy_into(upload, source.key, source)
            return self._complete(upload, target, condition)

    def _copy_into(self, upload: MultipartUpload, source: str, stat: ObjectStat) -> None:
        upload.copy_parts(
            source,
            stat.size_bytes,
            minimum_part_bytes=self._capabilities.minimum_part_bytes,
            match=self._source_match(source, stat.token),
            condition=IfMatch(stat.token),
        )

    def _upload(self, key: str, metadata: ObjectMetadata) -> MultipartUpload:
        return MultipartUpload(
            self._connection, key, metadata=metadata, verify_parts=self._capabilities.checksums_verified
        )

    def _complete(self, upload: MultipartUpload, key: str, condition: Condition) -> Token:
        def send(match: dict[str, str]) -> Token:
            return upload.complete(condition=condition, match=match)

        return self._publish(key, condition, send, conditional=self._capabilities.conditional_complete)

    def _publish(
        self,
        key: str,
        condition: Condition,
        send: Callable[[dict[str, str]], Token],
        *,
        conditional: bool,
    ) -> Token:
        """Make an object appear: under its condition, or after a look where the store has no such condition."""
        if not conditional:
            self._check_by_head(key, condition)
            return send({})
        try:
            return send(self._match(condition))
        except PreconditionFailedError:
            if not isinstance(condition, IfAbsent) or self._exists(key):
                raise
        # The store says that something is there, and that nothing is: a folder (see s3/folders.py).
        if key.endswith("/"):
            return send({})
        if self._first_below(key + "/") is not None:
            raise collision(key)
        self.delete(key + "/", condition=Unconditional())
        try:
            return send(self._match(condition))
        except PreconditionFailedError:
            # Empty folders inside the folder, which no request can name; the look right before is the condition.
            self._check_by_head(key, condition)
            return send({})

    def _exists(self, key: str) -> bool:
        try:
            self.head(key)
        except ObjectNotFoundError:
            return False
        return True

    def _is_listed(self, key: str) -> bool:
        return self._first_below(key) == key

    def _first_below(self, prefix: str) -> str | None:
        found = self.list_page(prefix, page=None, whole_segments=False, limit=1)
        return found.objects[0].key if found.objects else None

    def _match(self, condition: Condition) -> dict[str, str]:
        if isinstance(condition, IfAbsent):
            return {"IfNoneMatch": "*"}
        if isinstance(condition, IfMatch):
            return {"IfMatch": self._spelled(condition.token)}
        return {}

    def _source_match(self, source: str, token: Token) -> dict[str, str]:
        if self._capabilities.copy_source_match:
            return {"CopySourceIfMatch": self._spelled(token)}
        _require_token(self.head(source), token)
        return {}

    def _spelled(self, token: Token) -> str:
        return token if self._capabilities.etag_spelling == "unquoted" else f'"{token}"'

    def _check_by_head(self, key: str, condition: Condition) -> None:
        if isinstance(condition, Unconditional):
            return
        try:
            found: Token | None = self.head(key).token
        except ObjectNotFoundError:
            found = None
        wanted = condition.token if isinstance(condition, IfMatch) else None
        if found != wanted:
            raise PreconditionFailedError(f"{key!r} {condition_text(condition)}")

    def _require_bucket(self) -> None:
        try:
            self._connection.send(self._request("head", "", "read"), self._client.head_bucket)
        except ObjectNotFoundError:
            bucket = self._connection.bucket
            raise BucketNotFoundError(
                f"bucket {bucket!r} does not exist", remedy="create it, or correct the store URL"
            ) from None
        except UnavailableError:
            raise
        except SessionFSError:
            # Not everybody who may read objects may ask for the bucket; then the 404 stands as it was.
            return

    def _request(
        self, verb: str, key: str, effect: Literal["read", "changing"], condition: Condition = _UNCONDITIONAL
    ) -> Request:
        return Request(verb, self._connection.bucket, key, effect, condition)


def _require_token(stat: ObjectStat, expected: Token | None) -> None:
    if expected is not None and stat.token != expected:
        raise PreconditionFailedError(f"{stat.key!r} {condition_text(IfMatch(expected))}")


def _crc32(body: bytes) -> str:
    return base64.b64encode(zlib.crc32(body).to_bytes(4, "big")).decode("ascii")
