"""Looking at objects: descriptions, bodies and listings; and the look that stands in for a condition a store lacks."""

from __future__ import annotations

import urllib.parse
from http import HTTPStatus

import requests

from sessionfs.model.errors import (
    BucketNotFoundError,
    ObjectNotFoundError,
    PreconditionFailedError,
    SessionFSError,
    UnavailableError,
)
from sessionfs.stores.base import (
    ByteRange,
    Condition,
    IfMatch,
    ListPage,
    ObjectBody,
    ObjectStat,
    Token,
    Unconditional,
)
from sessionfs.stores.gcs.connection import GcsConnection
from sessionfs.stores.gcs.errors import Request
from sessionfs.stores.gcs.reading import EmptyBody, GcsBody, page_of, range_of, stat_of, stat_of_answer
from sessionfs.stores.gcs.tails import generation_of
from sessionfs.stores.request_checks import condition_text

_LOOKS = 5
_LIST_FIELDS = "items(name,size,generation,updated),prefixes,nextPageToken"


class Objects:
    """What a bucket holds, asked once per call.

    Args:
        connection: The bucket.
    """

    def __init__(self, connection: GcsConnection) -> None:
        self._connection = connection

    def describe(self, key: str) -> ObjectStat:
        """Describe an object; a 404 may say nothing about the bucket, so that is asked then.

        Raises:
            ObjectNotFoundError, BucketNotFoundError, UnavailableError, AccessError: As ``ObjectStore.head``.
        """
        blob = self._connection.blob(key)
        try:
            self._connection.send(Request("head", self._connection.bucket, key, "read"), blob.reload)
        except ObjectNotFoundError:
            self._require_bucket()
            raise
        return stat_of(blob)

    def read(self, key: str, byte_range: ByteRange | None, expected: Token | None) -> ObjectBody:
        """Read an object by a GET of the XML API, which tells bytes and metadata in one answer.

        Raises:
            SessionFSError: As ``ObjectStore.get``.
        """
        answer, stat = self._answered(key, byte_range, expected)
        part = range_of(answer)
        if byte_range is not None and part is None:
            answer.close()
            if byte_range.start < stat.size_bytes:
                raise UnavailableError(f"{key!r} changed while it was read, or its ranges are ignored")
            return EmptyBody(stat)
        announced = part[1] - part[0] if part is not None else stat.size_bytes
        return GcsBody(answer, stat, announced_bytes=announced)

    def page(self, prefix: str, page: str | None, limit: int, *, delimiter: str | None) -> ListPage:
        """List one page.

        Raises:
            UnavailableError, AccessError, BucketNotFoundError: As ``ObjectStore.list_page``.
        """
        request = Request("list", self._connection.bucket, prefix, "read", missing="bucket")
        listing = self._connection.send(
            request,
            self._connection.client.list_blobs,
            bucket_or_name=self._connection.bucket,
            prefix=prefix,
            delimiter=delimiter,
            page_token=page,
            page_size=limit,
            fields=_LIST_FIELDS,
        )
        # The library sends the request when the first page is taken.
        found: ListPage = self._connection.send(request, lambda **_: page_of(listing))
        return found

    def look(self, key: str, condition: Condition) -> None:
        """Look whether a condition holds, right before a request of a store that does not check it.

        Raises:
            PreconditionFailedError: It does not.
        """
        if isinstance(condition, Unconditional):
            return
        try:
            found: Token | None = self.describe(key).token
        except ObjectNotFoundError:
            found = None
        wanted = condition.token if isinstance(condition, IfMatch) else None
        if found != wanted:
            raise PreconditionFailedError(f"{key!r} {condition_text(condition)}")

    def _answered(
        self, key: str, byte_range: ByteRange | None, expected: Token | None
    ) -> tuple[requests.Response, ObjectStat]:
        """Get an answer, and whose bytes it has: it says so itself, but for every 416 and all answers of some emulators."""
        answer = self._fetch(key, byte_range, expected)
        named = stat_of_answer(answer, key)
        if named is not None:
            if expected not in {None, named.token}:
                answer.close()
            require_token(named, expected)
            return answer, named
        # Closed before another request: an emulator may serve one at a time.
        answer.close()
        for _ in range(_LOOKS):
            stat = self.describe(key)
            require_token(stat, expected)
            if answer.status_code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                return answer, stat
            try:
                return self._fetch(key, byte_range, stat.token), stat
            except PreconditionFailedError:
                if expected is not None:
                    raise
        raise UnavailableError(f"{key!r} changes faster than it can be read")

    def _fetch(self, key: str, byte_range: ByteRange | None, expected: Token | None) -> requests.Response:
        # What is stored with an encoding comes as it is stored, packed.
        headers = {"Accept-Encoding": "gzip"}
        if byte_range is not None:
            headers["Range"] = f"bytes={byte_range.start}-{byte_range.end - 1}"
        if expected is not None:
            headers["x-goog-if-generation-match"] = str(generation_of(expected))
        condition: Condition = IfMatch(expected) if expected is not None else Unconditional()
        return self._connection.fetch(
            Request("get", self._connection.bucket, key, "read", condition),
            "GET",
            f"{self._connection.endpoint}/{self._connection.bucket}/{urllib.parse.quote(key, safe='/')}",
            headers=headers,
            stream=True,
            accepted=(
                HTTPStatus.OK,
                HTTPStatus.PARTIAL_CONTENT,
                HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE,
            ),
        )

    def _require_bucket(self) -> None:
        try:
            self.page("", None, 1, delimiter="/")
        except (UnavailableError, BucketNotFoundError):
            raise
        except SessionFSError:
            # Not everybody who may read objects may list them; then the 404 stands as it was.
            return


def require_token(stat: ObjectStat, expected: Token | None) -> None:
    """Compare an object's token.

    Raises:
        PreconditionFailedError: It is not `expected`, None for any.
    """
    if expected is not None and stat.token != expected:
        raise PreconditionFailedError(f"{stat.key!r} {condition_text(IfMatch(expected))}")
