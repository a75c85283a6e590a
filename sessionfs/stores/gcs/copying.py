"""Copies on the server. Most are one request; between storage classes a large one takes several, each bounded.

GCS gives the copy the metadata that was sent, and none of the source's. Emulators add one to the other, or keep the source's; the answer
says so, and then one more request puts it right. Between the two the copy has the wrong metadata: better than to leave it so.
"""

from __future__ import annotations

import urllib.parse
from http import HTTPStatus
from typing import Any

from sessionfs.model.errors import SessionFSError, UnavailableError
from sessionfs.stores.base import Condition, ObjectMetadata, Token
from sessionfs.stores.gcs.connection import GcsConnection
from sessionfs.stores.gcs.errors import Request, unclear
from sessionfs.stores.gcs.uploads import token_of

STEP_BYTES = 128 << 20
"""What one request moves where bytes must be moved; without a bound it may take 30 s, longer than we wait."""


def rewrite(
    connection: GcsConnection,
    source: str,
    target: str,
    *,
    metadata: ObjectMetadata,
    condition: Condition,
    if_generation: int | None,
    if_source_generation: int | None,
) -> Token:
    """Copy an object.

    The library's own call cannot bound a step, so the requests are made here.

    Args:
        connection: The bucket.
        source: Key to copy from.
        target: Key to copy to.
        metadata: The copy's, all of it: what is not named is not taken from the source.
        condition: What `if_generation` says, for messages.
        if_generation: The target's generation, 0 for no target, None for any.
        if_source_generation: The source's generation, None for any.

    Raises:
        ObjectNotFoundError, PreconditionFailedError: The store does not say which of the two objects it means.
    """
    request = Request("copy", connection.bucket, target, "changing", condition)
    described: dict[str, Any] = {"metadata": dict(metadata.user), "contentType": metadata.content_type}
    if metadata.content_encoding:
        described["contentEncoding"] = metadata.content_encoding
    bucket = urllib.parse.quote(connection.bucket, safe="")
    objects = f"{connection.endpoint}/storage/v1/b/{bucket}/o"
    copy_url = f"{objects}/{urllib.parse.quote(target, safe='')}"
    address = f"{objects}/{urllib.parse.quote(source, safe='')}/rewriteTo/b/{bucket}/o/{urllib.parse.quote(target, safe='')}"
    parameters: dict[str, str | int] = {"maxBytesRewrittenPerCall": STEP_BYTES}
    if if_generation is not None:
        parameters["ifGenerationMatch"] = if_generation
    if if_source_generation is not None:
        parameters["ifSourceGenerationMatch"] = if_source_generation
    moved_bytes = -1
    while True:
        with connection.fetch(
            request, "POST", address, params=parameters, json=described, accepted=(HTTPStatus.OK,)
        ) as answer:
            try:
                found = answer.json()
                if found["done"]:
                    break
                moved_now_bytes = int(found["totalBytesRewritten"])
                parameters["rewriteToken"] = str(found["rewriteToken"])
            except (ValueError, KeyError, TypeError):
                raise unclear(request, "the answer does not say how far the copy is") from None
        if moved_now_bytes <= moved_bytes:
            raise UnavailableError(f"the copy of {source!r} stands still at {moved_now_bytes} bytes")
        moved_bytes = moved_now_bytes
    resource = found.get("resource") or {}
    token = token_of(resource.get("generation"), request)
    _put_right(connection, request, copy_url, resource, metadata)
    return token


def _put_right(
    connection: GcsConnection, request: Request, url: str, resource: dict[str, Any], metadata: ObjectMetadata
) -> None:
    """Give a copy the metadata it was sent with, where the server did not."""
    found: dict[str, str] = resource.get("metadata") or {}
    described = (resource.get("contentType"), resource.get("contentEncoding") or "")
    if found == dict(metadata.user) and described == (metadata.content_type, metadata.content_encoding):
        return
    change: dict[str, Any] = {
        "metadata": {**dict.fromkeys(found), **metadata.user},
        "contentType": metadata.content_type,
        "contentEncoding": metadata.content_encoding,
    }
    parameters = {"ifGenerationMatch": str(resource["generation"])}
    try:
        connection.fetch(
            request, "PATCH", url, params=parameters, json=change, accepted=(HTTPStatus.OK,)
        ).close()
    except SessionFSError as error:
        # The copy is there, whatever the answer was.
        raise unclear(request, f"its metadata could not be put right: {error.message}") from error
