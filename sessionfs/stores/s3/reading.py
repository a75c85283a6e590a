"""Answers of S3 read into records: stats, pages and bodies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from botocore.exceptions import BotoCoreError
from urllib3.exceptions import HTTPError

from sessionfs.model.errors import UnavailableError
from sessionfs.stores.base import ListPage, ObjectBody, ObjectMetadata, ObjectStat, Token
from sessionfs.stores.s3.connection import S3Connection
from sessionfs.stores.s3.errors import Request
from sessionfs.stores.s3.folders import plain_metadata


def stat_of(answer: Mapping[str, Any], key: str) -> ObjectStat:
    """Read the answer of HeadObject or GetObject; of a range, the size is the whole object's."""
    content_range = str(answer.get("ContentRange", ""))
    total = content_range.rpartition("/")[2]
    size = int(total) if total.isdigit() else int(answer["ContentLength"])
    encoding = str(answer.get("ContentEncoding", ""))
    metadata = ObjectMetadata(
        user={name.lower(): str(value) for name, value in answer.get("Metadata", {}).items()},
        content_type=str(answer.get("ContentType", "")),
        # What the SDK adds for its own framing is none of the object's.
        content_encoding="" if encoding == "aws-chunked" else encoding,
    )
    if key.endswith("/"):
        metadata = plain_metadata(metadata)
    return ObjectStat(key, size, _token(answer), _modified_ns(answer), metadata)


def page_of(answer: Mapping[str, Any], prefix: str) -> ListPage:
    """Read the answer of ListObjectsV2.

    Raises:
        UnavailableError: It says that there is more and does not say how to go on.
    """
    objects = tuple(
        ObjectStat(item["Key"], int(item["Size"]), _token(item), _modified_ns(item))
        for item in answer.get("Contents", ())
        if item["Key"].startswith(prefix)
    )
    prefixes = tuple(item["Prefix"] for item in answer.get("CommonPrefixes", ()))
    if not answer.get("IsTruncated"):
        return ListPage(objects, prefixes, None)
    following = answer.get("NextContinuationToken")
    if not following:
        raise UnavailableError(f"the listing of {prefix!r} breaks off")
    return ListPage(objects, prefixes, str(following))


class EmptyBody(ObjectBody):
    """A range that starts at or beyond the object's end.

    Args:
        stat: The object.
    """

    def __init__(self, stat: ObjectStat) -> None:
        self.stat = stat

    def chunks(self, size_bytes: int = 1 << 20) -> Iterator[bytes]:
        """Give nothing."""
        del size_bytes
        return iter(())


class S3Body(ObjectBody):
    """A GetObject being read.

    Args:
        answer: The SDK's answer.
        key: The key.
        connection: Gives errors their meaning.
        request: What was asked.
    """

    def __init__(
        self, answer: Mapping[str, Any], key: str, connection: S3Connection, request: Request
    ) -> None:
        self.stat = stat_of(answer, key)
        self._stream = answer["Body"]
        self._announced = int(answer["ContentLength"])
        self._connection = connection
        self._request = request

    def chunks(self, size_bytes: int = 1 << 20) -> Iterator[bytes]:
        """Give the bytes in order; exactly as many as were announced."""
        received = 0
        try:
            while received < self._announced:
                chunk = self._stream.read(size_bytes)
                if not chunk:
                    break
                received += len(chunk)
                yield chunk
            if received == self._announced:
                self._stream.read()  # lets the SDK give the connection back to the pool
        except (BotoCoreError, HTTPError, OSError) as error:
            raise UnavailableError(
                f"the body of {self.stat.key!r} ended after {received} of {self._announced} bytes"
            ) from error
        finally:
            self._stream.close()
        if received != self._announced:
            raise UnavailableError(
                f"the body of {self.stat.key!r} ended after {received} of {self._announced} bytes"
            )

    def close(self) -> None:
        """Close the stream."""
        self._stream.close()


def _token(answer: Mapping[str, Any]) -> Token:
    return Token(str(answer["ETag"]).removeprefix("W/").strip('"'))


def _modified_ns(answer: Mapping[str, Any]) -> int:
    moment: datetime = answer["LastModified"]
    return int(moment.timestamp()) * 1_000_000_000 + moment.microsecond * 1000
