"""Tails that wait to be composed onto their object: temporary objects of ours, below a prefix that no listing shows.

A tail is stored first, then composed with its object and removed, whatever came of it. A process that dies in between leaves one behind: it
counts as an upload under way, and garbage collection gives it up when it is old. Its user metadata names the key it was meant for.
"""

from __future__ import annotations

import urllib.parse

from sessionfs.stores.base import IfMatch, ObjectMetadata, ObjectStat, Token, UploadUnderWay
from sessionfs.stores.gcs.connection import GcsConnection
from sessionfs.stores.gcs.errors import Request
from sessionfs.stores.gcs.uploads import token_of

TAILS = ".sessionfs-tails/"
"""Below the store's own prefix, so that rights on that prefix are enough."""

_KEY = "sessionfs-key"
_FIELDS = "items(name,metadata,timeCreated),nextPageToken"


def tail_metadata(key: str) -> ObjectMetadata:
    """Give the metadata of the tail of an object."""
    return ObjectMetadata({_KEY: urllib.parse.quote(key, safe="/")})


def list_tails(connection: GcsConnection, tails_prefix: str, prefix: str) -> list[UploadUnderWay]:
    """List the tails whose object would be below a prefix.

    Args:
        connection: The bucket.
        tails_prefix: Where the tails are.
        prefix: "" or whole segments that end in ``/``.
    """
    request = Request("list", connection.bucket, tails_prefix, "read", missing="bucket")
    found: list[UploadUnderWay] = []
    page: str | None = None
    while True:
        # Page by page, each asked for once: the library's own walk would repeat requests.
        listing = connection.send(
            request,
            connection.client.list_blobs,
            bucket_or_name=connection.bucket,
            prefix=tails_prefix,
            page_token=page,
            fields=_FIELDS,
        )
        blobs = connection.send(request, lambda listing=listing, **_: next(listing.pages, ()))
        for blob in blobs:
            key = urllib.parse.unquote((blob.metadata or {}).get(_KEY, ""))
            if key.startswith(prefix):
                started_ns = int(blob.time_created.timestamp()) * 1_000_000_000
                found.append(UploadUnderWay(key, blob.name, started_ns))
        page = listing.next_page_token
        if not page:
            return found


def compose(
    connection: GcsConnection,
    base: ObjectStat,
    tail: tuple[str, Token] | None,
    *,
    metadata: ObjectMetadata,
    conditional: bool,
) -> Token:
    """Make an object its own bytes and a tail's, on the server, in one request.

    Args:
        connection: The bucket.
        base: The object; it must have this token, as source and as target.
        tail: Key and token of the tail; None for no bytes.
        metadata: The object's from now on.
        conditional: Whether to ask for the tokens; not of a store that ignores them.
    """
    request = Request("append", connection.bucket, base.key, "changing", IfMatch(base.token))
    target = connection.blob(base.key, metadata)
    sources = [(base.key, base.token), *([tail] if tail is not None else [])]
    connection.send(
        request,
        target.compose,
        sources=[connection.blob(key) for key, _ in sources],
        if_generation_match=generation_of(base.token) if conditional else None,
        if_source_generation_match=[generation_of(token) if conditional else None for _, token in sources],
    )
    return token_of(target.generation, request)


def generation_of(token: Token) -> int:
    """Give the generation that a token names; one that no object ever has for a token that is no generation.

    Zero would mean that nothing is there, and a refusal of our own would hide a store that ignores conditions.
    """
    return int(token) if token.isascii() and token.isdigit() and 0 < int(token) < 1 << 63 else 1
