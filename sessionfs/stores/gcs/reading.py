"""Answers of GCS read into records: stats, pages and bodies.

A body comes as it is stored: nothing is unpacked on the way. One that is read whole is compared with the store's CRC32C.
"""

from __future__ import annotations

import base64
import email.utils
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import google_crc32c
import requests
from urllib3.exceptions import HTTPError

from sessionfs.model.errors import UnavailableError
from sessionfs.stores.base import ListPage, ObjectBody, ObjectMetadata, ObjectStat, Token
from sessionfs.stores.gcs.connection import header_of

_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_CRC32C = re.compile(r"crc32c=([A-Za-z0-9+/=]+)")
_USER_PREFIX = "x-goog-meta-"


def stat_of(blob: Any) -> ObjectStat:
    """Read a blob whose properties came from the store."""
    metadata = ObjectMetadata(
        user={name.lower(): str(value) for name, value in (blob.metadata or {}).items() if value is not None},
        content_type=str(blob.content_type or ""),
        content_encoding=str(blob.content_encoding or ""),
    )
    return ObjectStat(str(blob.name), _size_bytes(blob), _token(blob), _modified_ns(blob.updated), metadata)


def listed_stat(blob: Any) -> ObjectStat:
    """Read a blob of a listing, which carries no metadata."""
    return ObjectStat(str(blob.name), _size_bytes(blob), _token(blob), _modified_ns(blob.updated))


def stat_of_answer(answer: requests.Response, key: str) -> ObjectStat | None:
    """Read the headers of a GET; None when the server does not name the object's state there, as some emulators."""
    headers: Mapping[str, str] = answer.headers
    generation = headers.get("x-goog-generation", "")
    size = headers.get("x-goog-stored-content-length", "")
    modified = headers.get("last-modified", "")
    if not (generation.isdigit() and size.isdigit()):
        return None
    try:
        changed_ns = int(email.utils.parsedate_to_datetime(modified).timestamp()) * 1_000_000_000
    except (TypeError, ValueError):
        return None
    encoding = headers.get("x-goog-stored-content-encoding", "identity")
    metadata = ObjectMetadata(
        user={
            name[len(_USER_PREFIX) :].lower(): value
            for name, value in headers.items()
            if name.lower().startswith(_USER_PREFIX)
        },
        content_type=headers.get("content-type", ""),
        content_encoding="" if encoding == "identity" else encoding,
    )
    return ObjectStat(key, int(size), Token(generation), changed_ns, metadata)


def page_of(found: Any) -> ListPage:
    """Read the first page of the library's listing."""
    page = next(found.pages, None)
    objects = tuple(listed_stat(blob) for blob in page) if page is not None else ()
    return ListPage(objects, tuple(sorted(found.prefixes)), found.next_page_token or None)


def range_of(answer: requests.Response) -> tuple[int, int] | None:
    """Give start and end (excluded) of the part of an object in an answer; None when it does not say, or the part is empty."""
    found = _CONTENT_RANGE.fullmatch(header_of(answer, "content-range"))
    if found is None or int(found[1]) >= int(found[3]):
        return None
    return int(found[1]), int(found[2]) + 1


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


class GcsBody(ObjectBody):
    """A GET being read.

    Args:
        answer: The answer, its body not read yet.
        stat: The object.
        announced_bytes: How many must come.
    """

    def __init__(self, answer: requests.Response, stat: ObjectStat, *, announced_bytes: int) -> None:
        self.stat = stat
        self._answer = answer
        self._announced = announced_bytes
        # Of a part, the header names the whole object's sum.
        whole = announced_bytes == stat.size_bytes
        expected = _CRC32C.search(header_of(answer, "x-goog-hash")) if whole else None
        self._expected_crc32c = expected[1] if expected else ""

    def chunks(self, size_bytes: int = 1 << 20) -> Iterator[bytes]:
        """Give the bytes in order; exactly as many as were announced, with the sum that the store keeps."""
        received = 0
        sum_so_far = new_checksum()
        try:
            while received < self._announced:
                chunk = self._answer.raw.read(
                    min(size_bytes, self._announced - received), decode_content=False
                )
                if not chunk:
                    break
                received += len(chunk)
                sum_so_far.update(chunk)
                if received == self._announced:
                    self._check(received, sum_so_far)
                yield chunk
            self._check(received, sum_so_far)
        except (HTTPError, OSError) as error:
            raise UnavailableError(self._broken_off(received)) from error
        finally:
            self._answer.close()

    def close(self) -> None:
        """Close the stream."""
        self._answer.close()

    def _check(self, received: int, found: Any) -> None:
        if received != self._announced:
            raise UnavailableError(self._broken_off(received))
        if self._expected_crc32c and encoded(found) != self._expected_crc32c:
            raise UnavailableError(
                f"the body of {self.stat.key!r} came with other bytes than the store keeps: CRC32C {encoded(found)}, "
                f"wanted {self._expected_crc32c}"
            )

    def _broken_off(self, received: int) -> str:
        return f"the body of {self.stat.key!r} ended after {received} of {self._announced} bytes"


def new_checksum() -> Any:
    """Give a CRC32C of no bytes yet."""
    return google_crc32c.Checksum()  # type: ignore[no-untyped-call]


def encoded(checksum: Any) -> str:
    """Give a CRC32C as GCS writes it."""
    return base64.b64encode(checksum.digest()).decode("ascii")


def _size_bytes(blob: Any) -> int:
    # Servers that make JSON from protocol buffers leave a zero out.
    return int(blob.size or 0)


def _token(blob: Any) -> Token:
    return Token(str(int(blob.generation)))


def _modified_ns(moment: datetime | None) -> int:
    if moment is None:
        return 0
    return int(moment.timestamp()) * 1_000_000_000 + moment.microsecond * 1000
