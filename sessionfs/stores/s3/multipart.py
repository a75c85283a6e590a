"""Uploads in parts: streams, appends by copying the base on the server, and copies over 5 GiB.

Order of steps: create, parts, ``before_complete``, the fallback check where the store cannot condition a Complete, Complete. Any
failure aborts the upload, with one exception: when nobody knows whether Complete was applied, an abort could race with
it on the server, so the upload is left to garbage collection (uploads older than 24 h).
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self

from sessionfs.model.errors import (
    ConcurrentRequestError,
    InvalidRequestError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    SessionFSError,
)
from sessionfs.stores.base import Condition, ObjectMetadata, Token, UploadUnderWay
from sessionfs.stores.s3.connection import S3Connection
from sessionfs.stores.s3.errors import Request, unclear

COPY_PART_BYTES = 256 << 20
SMALL_COPY_PART_BYTES = 64 << 20
COPY_THREADS = 4
PARTS_AT_ONCE = 2


def copy_ranges(size_bytes: int, minimum_part_bytes: int) -> list[tuple[int, int]]:
    """Cut an object into half-open ranges to be copied in parallel.

    Args:
        size_bytes: The object's length, from 1.
        minimum_part_bytes: No range but an only one is shorter.

    Returns:
        Ranges of 64 MiB up to 1 GiB, of 256 MiB above; the last takes a remainder that is too small to stand alone.
    """
    step = SMALL_COPY_PART_BYTES if size_bytes <= 4 * COPY_PART_BYTES else COPY_PART_BYTES
    starts = list(range(0, size_bytes, step))
    if len(starts) > 1 and size_bytes - starts[-1] < minimum_part_bytes:
        starts.pop()
    return list(zip(starts, [*starts[1:], size_bytes], strict=True))


def regroup(chunks: Iterable[bytes], part_bytes: int) -> Iterator[bytes]:
    """Give the same bytes in pieces of at least `part_bytes`, the last as it falls; nothing for no bytes."""
    pending = bytearray()
    for chunk in chunks:
        pending += chunk
        if len(pending) >= part_bytes:
            yield bytes(pending)
            pending.clear()
    if pending:
        yield bytes(pending)


class MultipartUpload:
    """One upload in parts. Use as a context manager around its parts and `complete`.

    Args:
        connection: Where to.
        key: The object's key.
        metadata: The object's.
        verify_parts: Send an MD5 with each part.
    """

    def __init__(
        self, connection: S3Connection, key: str, *, metadata: ObjectMetadata, verify_parts: bool
    ) -> None:
        self._connection = connection
        self._key = key
        self._metadata = metadata
        self._verify_parts = verify_parts
        self._upload_id = ""
        self._next_number = 1
        self._etags: dict[int, str] = {}

    def __enter__(self) -> Self:
        answer = self._connection.send(
            self._part_request("start of an upload"),
            self._connection.client.create_multipart_upload,
            Key=self._key,
            **metadata_arguments(self._metadata),
        )
        self._upload_id = str(answer["UploadId"])
        return self

    def __exit__(self, kind: object, error: BaseException | None, _trace: object) -> None:
        if error is not None and not isinstance(error, OutcomeUnknownError):
            self._abort()

    def take_numbers(self, count: int) -> int:
        """Give the first of `count` part numbers; parts are joined in the order of their numbers."""
        first = self._next_number
        self._next_number += count
        return first

    def send_part(self, number: int, body: bytes) -> None:
        """Send one part."""
        extra: dict[str, Any] = {}
        if self._verify_parts:
            digest = hashlib.md5(body, usedforsecurity=False).digest()
            extra["ContentMD5"] = base64.b64encode(digest).decode("ascii")
        answer = self._connection.send(
            self._part_request("part"),
            self._connection.client.upload_part,
            Key=self._key,
            UploadId=self._upload_id,
            PartNumber=number,
            Body=body,
            **extra,
        )
        self._etags[number] = str(answer["ETag"])

    def copy_parts(
        self,
        source: str,
        size_bytes: int,
        *,
        minimum_part_bytes: int,
        match: dict[str, str],
        condition: Condition,
    ) -> None:
        """Copy a whole object as the next parts, at most four at a time.

        Args:
            source: Its key.
            size_bytes: Its length, from 1.
            minimum_part_bytes: The store's.
            match: ``CopySourceIfMatch``, or nothing.
            condition: What `match` says, for messages.
        """
        ranges = copy_ranges(size_bytes, minimum_part_bytes)
        first = self.take_numbers(len(ranges))

        def copy_one(numbered: tuple[int, tuple[int, int]]) -> tuple[int, str]:
            number, (start, end) = numbered
            request = Request("copy", self._connection.bucket, source, "read", condition)
            answer = self._connection.send(
                request,
                self._connection.client.upload_part_copy,
                Key=self._key,
                UploadId=self._upload_id,
                PartNumber=number,
                CopySource={"Bucket": self._connection.bucket, "Key": source},
                CopySourceRange=f"bytes={start}-{end - 1}",
                **match,
            )
            etag = answer.get("CopyPartResult", {}).get("ETag")
            if not etag:
                raise unclear(request, "the answer names no part")
            return number, str(etag)

        numbered = list(enumerate(ranges, first))
        if len(numbered) == 1:
            self._etags.update([copy_one(numbered[0])])
            return
        with ThreadPoolExecutor(max_workers=COPY_THREADS) as threads:
            self._etags.update(threads.map(copy_one, numbered))

    def complete(self, *, condition: Condition, match: dict[str, str]) -> Token:
        """Make the object appear.

        Args:
            condition: What `match` says, for messages.
            match: ``IfMatch`` or ``IfNoneMatch``, or nothing.
        """
        parts = [{"PartNumber": number, "ETag": self._etags[number]} for number in sorted(self._etags)]
        request = Request("upload", self._connection.bucket, self._key, "changing", condition)
        answer = self._connection.send(
            request,
            self._connection.client.complete_multipart_upload,
            Key=self._key,
            UploadId=self._upload_id,
            MultipartUpload={"Parts": parts},
            **match,
        )
        return token_of(answer, request)

    def _part_request(self, verb: str) -> Request:
        return Request(verb, self._connection.bucket, self._key, "read")

    def _abort(self) -> None:
        # Best effort: what an abort could not remove, garbage collection does.
        with contextlib.suppress(SessionFSError):
            abort(self._connection, self._key, self._upload_id)


def list_uploads(connection: S3Connection, prefix: str) -> list[UploadUnderWay]:
    """List the uploads below a prefix that were begun, and neither completed nor aborted.

    Args:
        connection: The bucket.
        prefix: "" or whole segments that end in ``/``.
    """
    request = Request("list", connection.bucket, prefix, "read")
    found: list[UploadUnderWay] = []
    markers: dict[str, str] = {}
    while True:
        try:
            answer = connection.send(
                request, connection.client.list_multipart_uploads, Prefix=prefix, **markers
            )
        except InvalidRequestError:
            return found  # a server without this request: its own rules end old uploads, or nobody does
        for item in answer.get("Uploads", ()):
            # Some servers take the prefix for a hint.
            if item["Key"].startswith(prefix):
                started_ns = int(item["Initiated"].timestamp()) * 1_000_000_000
                found.append(UploadUnderWay(item["Key"], item["UploadId"], started_ns))
        following = {
            "KeyMarker": str(answer.get("NextKeyMarker") or ""),
            "UploadIdMarker": str(answer.get("NextUploadIdMarker") or ""),
        }
        if not answer.get("IsTruncated") or not following["KeyMarker"] or following == markers:
            return found
        markers = following


def abort(connection: S3Connection, key: str, identifier: str) -> None:
    """Give an upload up; one that is gone is success.

    Args:
        connection: The bucket.
        key: Where the upload would appear.
        identifier: The upload's.
    """
    # NoSuchUpload has two meanings in ``errors``; here both say that it is gone.
    with contextlib.suppress(ObjectNotFoundError, ConcurrentRequestError):
        connection.send(
            Request("abort", connection.bucket, key, "read"),
            connection.client.abort_multipart_upload,
            Key=key,
            UploadId=identifier,
        )


def send_parts(upload: MultipartUpload, parts: Iterable[bytes], before_complete: Callable[[], None]) -> None:
    """Send parts as they come, a few at a time, then ask whether to go on.

    Two connections carry about twice as much as one (SeaweedFS on loopback: 85 against 50 MiB/s), more cost more memory.
    """
    under_way: deque[Future[None]] = deque()
    # Leaving the block waits for what is under way, so that no part arrives after an abort.
    with ThreadPoolExecutor(max_workers=PARTS_AT_ONCE) as threads:
        for part in parts:
            if len(under_way) == PARTS_AT_ONCE:
                under_way.popleft().result()
            under_way.append(threads.submit(upload.send_part, upload.take_numbers(1), part))
        for sent in under_way:
            sent.result()
    before_complete()


def metadata_arguments(metadata: ObjectMetadata) -> dict[str, Any]:
    """Give the SDK's arguments for an object's metadata."""
    arguments: dict[str, Any] = {"Metadata": dict(metadata.user), "ContentType": metadata.content_type}
    if metadata.content_encoding:
        arguments["ContentEncoding"] = metadata.content_encoding
    return arguments


def token_of(answer: Any, request: Request) -> Token:
    """Give the token in an answer; an answer without one is no success.

    Raises:
        OutcomeUnknownError: There is none, for instance because a 200 carried an error.
    """
    etag = str(answer.get("ETag") or "").removeprefix("W/").strip('"')
    if not etag:
        raise unclear(request, "the answer names no ETag")
    return Token(etag)
