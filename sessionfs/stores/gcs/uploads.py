"""Bodies of any length: one request where they are short, a resumable upload where they are not.

Order of steps of a long one: the session is made (with the condition of the object), all pieces but the last are sent, ``before_complete``,
the fallback check where the store has no condition, the last piece with the whole length. The object appears with the last piece, whole,
and the store checks the condition then. A resumable upload rather than parts that are composed: it leaves no objects behind that somebody
must pay for and remove, has no limit of 32 parts, and the object keeps an MD5.

Any failure gives the upload up, with one exception: when nobody knows whether the last piece was applied, giving up could race with it on
the server, so the session is left to end by itself (after a week).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from typing import Any, Self

import google_crc32c

from sessionfs.model.errors import OutcomeUnknownError, SessionFSError, UnavailableError
from sessionfs.stores.base import Condition, ObjectMetadata, Token
from sessionfs.stores.gcs.connection import GcsConnection, header_of
from sessionfs.stores.gcs.errors import Request, unclear
from sessionfs.stores.gcs.reading import encoded, new_checksum

PIECE_BYTES = 8 << 20
"""A multiple of 256 KiB, as GCS wants; the longest body that the library sends in one request."""

_RESUME_INCOMPLETE = 308
_CLIENT_CLOSED = 499
_PERSISTED = re.compile(r"bytes=0-(\d+)")
_ENDED = frozenset(
    {
        HTTPStatus.OK,
        HTTPStatus.NO_CONTENT,
        HTTPStatus.NOT_FOUND,
        HTTPStatus.GONE,
        HTTPStatus.NOT_IMPLEMENTED,
        _CLIENT_CLOSED,
    }
)


def pieces(parts: Iterable[bytes], piece_bytes: int) -> Iterator[tuple[bytes, bool]]:
    """Cut the same bytes into pieces of `piece_bytes`, each with whether it is the last.

    Args:
        parts: The bytes, in any lengths.
        piece_bytes: Length of all pieces but the last, which has at least one byte unless there are none at all.
    """
    pending = bytearray()
    for part in parts:
        pending += part
        start = 0
        while len(pending) - start > piece_bytes:
            yield bytes(pending[start : start + piece_bytes]), False
            start += piece_bytes
        del pending[:start]
    yield bytes(pending), True


def put_whole(
    connection: GcsConnection,
    key: str,
    body: bytes,
    *,
    metadata: ObjectMetadata,
    condition: Condition,
    if_generation: int | None,
) -> Token:
    """Store a body in one request, with its checksum.

    Args:
        connection: Where to.
        key: The object's key.
        body: At most `PIECE_BYTES`; the library sends longer ones in several requests.
        metadata: The object's.
        condition: What `if_generation` says, for messages.
        if_generation: The generation to replace, 0 for none, None for any.
    """
    request = Request("put", connection.bucket, key, "changing", condition, missing="bucket")
    blob = connection.blob(key, metadata)
    connection.send(
        request,
        blob.upload_from_string,
        data=body,
        content_type=metadata.content_type,
        checksum="crc32c" if google_crc32c.implementation == "c" else "md5",
        if_generation_match=if_generation,
    )
    return token_of(blob.generation, request)


def put_pieces(
    connection: GcsConnection,
    key: str,
    parts: Iterable[bytes],
    *,
    metadata: ObjectMetadata,
    condition: Condition,
    if_generation: int | None,
    before_complete: Callable[[], None],
) -> Token:
    """Store a body of any length; it appears whole after `before_complete`.

    Args:
        connection: Where to.
        key: The object's key.
        parts: The body, in any lengths.
        metadata: The object's.
        condition: What `if_generation` says, for messages.
        if_generation: The generation to replace, 0 for none, None for any.
        before_complete: Called before the request by which the object appears; when it raises, nothing does.
    """
    cut = pieces(parts, PIECE_BYTES)
    piece, is_last = next(cut)
    if is_last:
        before_complete()
        return put_whole(
            connection, key, piece, metadata=metadata, condition=condition, if_generation=if_generation
        )
    with ResumableUpload(
        connection, key, metadata=metadata, condition=condition, if_generation=if_generation
    ) as upload:
        upload.send(piece)
        for following, ends in cut:
            if ends:
                before_complete()
                return upload.finish(following)
            upload.send(following)
    raise AssertionError("the last piece ends the loop")


class ResumableUpload:
    """One upload in pieces. Use as a context manager around `send` and `finish`.

    Args:
        connection: Where to.
        key: The object's key.
        metadata: The object's.
        condition: What `if_generation` says, for messages.
        if_generation: The generation to replace, 0 for none, None for any; checked when the session is made, and when the object appears.
    """

    def __init__(
        self,
        connection: GcsConnection,
        key: str,
        *,
        metadata: ObjectMetadata,
        condition: Condition,
        if_generation: int | None,
    ) -> None:
        self._connection = connection
        self._key = key
        self._metadata = metadata
        self._condition = condition
        self._if_generation = if_generation
        self._url = ""
        self._offset = 0
        self._sum = new_checksum()

    def __enter__(self) -> Self:
        blob = self._connection.blob(self._key, self._metadata)
        bucket = self._connection.bucket
        self._url = self._connection.send(
            Request("start of an upload", bucket, self._key, "read", self._condition, missing="bucket"),
            blob.create_resumable_upload_session,
            content_type=self._metadata.content_type,
            if_generation_match=self._if_generation,
        )
        return self

    def __exit__(self, kind: object, error: BaseException | None, _trace: object) -> None:
        if error is not None and not isinstance(error, OutcomeUnknownError):
            self._give_up()

    def send(self, piece: bytes) -> None:
        """Send a piece that is not the last: a multiple of 256 KiB."""
        request = Request("part", self._connection.bucket, self._key, "read", missing="upload")
        self._sum.update(piece)
        self._transmit(request, piece, total="*")

    def finish(self, piece: bytes) -> Token:
        """Send the last piece, at least one byte; the object appears."""
        request = Request(
            "upload", self._connection.bucket, self._key, "changing", self._condition, missing="upload"
        )
        self._sum.update(piece)
        stored = self._transmit(request, piece, total=str(self._offset + len(piece)))
        return token_of(stored.get("generation"), request)

    def _transmit(self, request: Request, piece: bytes, *, total: str) -> dict[str, Any]:
        """Send a piece until the server has all of it; give the object's description once it is complete."""
        end = self._offset + len(piece)
        start = self._offset
        is_last = total != "*"
        while True:
            headers = {"Content-Range": f"bytes {start}-{end - 1}/{total}"}
            if is_last:
                headers["X-Goog-Hash"] = f"crc32c={encoded(self._sum)}"
            with self._connection.fetch(
                request,
                "PUT",
                self._url,
                data=piece if start == self._offset else piece[start - self._offset :],
                headers=headers,
                accepted=(_RESUME_INCOMPLETE, HTTPStatus.OK, HTTPStatus.CREATED),
            ) as answer:
                if answer.status_code != _RESUME_INCOMPLETE:
                    if not is_last:
                        raise UnavailableError(f"the upload of {self._key!r} was ended early by the server")
                    return _described(answer, request)
                persisted = _PERSISTED.fullmatch(header_of(answer, "range"))
            reached = int(persisted[1]) + 1 if persisted else 0
            if reached == end and not is_last:
                self._offset = end
                return {}
            if not start < reached < end:
                raise UnavailableError(
                    f"the store kept {reached} bytes of the upload of {self._key!r}, {end} were sent"
                )
            start = reached

    def _give_up(self) -> None:
        # Best effort: a session that could not be ended ends by itself.
        request = Request("end of an upload", self._connection.bucket, self._key, "read", missing="upload")
        with contextlib.suppress(SessionFSError):
            self._connection.fetch(
                request, "DELETE", self._url, accepted=_ENDED, headers={"Content-Length": "0"}
            ).close()


def token_of(generation: Any, request: Request) -> Token:
    """Give the token in an answer; an answer without one is no success.

    Raises:
        OutcomeUnknownError: There is none.
    """
    try:
        return Token(str(int(generation)))
    except (TypeError, ValueError):
        raise unclear(request, "the answer names no generation") from None


def _described(answer: Any, request: Request) -> dict[str, Any]:
    try:
        found = answer.json()
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise unclear(request, "the answer is no description of an object")
    return found
