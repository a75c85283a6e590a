"""What a GCS error means: one table from the library's exceptions and a server's status to our error tree.

Rules:

* Nothing was sent (refused, no address, no credentials, no fresh access token): `UnavailableError` or `AccessError`.
* A changing request was sent and there is no clear answer (timeout, dropped connection, 408, any 5xx): `OutcomeUnknownError`.
  A 429, or a 403 that names a rate, was not applied: `ThrottledError`.
* A read changes nothing, so everything unclear about it is `UnavailableError`. Requests about the pieces of an upload are reads in
  this sense: no object appears by them.
* GCS repeats the key in what it says, so no text that may hold one decides: the status, the names that an answer has for programs,
  and the types of exceptions do.
* No text of ours holds a credential, nor the address of an upload, which is one. The library's exceptions do: none of ours has one as
  its cause.
"""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Literal

import requests
from google.api_core.exceptions import GoogleAPICallError
from google.auth import exceptions as auth
from urllib3 import exceptions as transport

from sessionfs.model.errors import (
    AccessError,
    BucketNotFoundError,
    ConcurrentRequestError,
    InvalidRequestError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    PreconditionFailedError,
    SessionFSError,
    ThrottledError,
    UnavailableError,
)
from sessionfs.stores.base import Condition, IfMatch, Unconditional
from sessionfs.stores.request_checks import condition_text

CREDENTIALS_REMEDY = "run `gcloud auth application-default login`, set GOOGLE_APPLICATION_CREDENTIALS, or run where a service account is attached"
RAISED = (GoogleAPICallError, auth.GoogleAuthError, requests.RequestException, transport.HTTPError, OSError)
"""What the library lets through."""

_SHOWN_TEXT = 200
_UNCONDITIONAL = Unconditional()
_NOT_SENT = (transport.NewConnectionError, transport.ConnectTimeoutError, transport.NameResolutionError)
_MALFORMED = (
    requests.exceptions.InvalidURL,
    requests.exceptions.InvalidHeader,
    requests.exceptions.InvalidSchema,
    requests.exceptions.MissingSchema,
)
_RATE_NAMES = frozenset({"rateLimitExceeded", "userRateLimitExceeded", "quotaExceeded"})
_NO_BUCKET = "NoSuchBucket"
_NO_BUCKET_MESSAGE = "The specified bucket does not exist."
"""The JSON API names a missing bucket and a missing object alike. It says this of the one, whole and without any name, and
``No such object: BUCKET/KEY`` of the other."""
_XML_NAME = re.compile(rb"\s*(?:<\?xml[^>]*>\s*)?<Error(?:\s[^>]*)?>\s*<Code>\s*(\w+)\s*</Code>")
_SECRET = re.compile(r"(upload_id=|access_token=|Bearer )[^&\s\"')]+")
_METHOD_AND_URL = re.compile(r"^[A-Z]+ https?://\S+: ")


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked, as far as the meaning of an error depends on it.

    Attributes:
        verb: What was tried, in words: ``put``, ``list``.
        bucket: The bucket.
        key: The key or prefix.
        effect: ``changing`` when an object may have changed.
        condition: The condition on `key`.
        missing: What a 404 says is not there.
    """

    verb: str
    bucket: str
    key: str
    effect: Literal["read", "changing"]
    condition: Condition = _UNCONDITIONAL
    missing: Literal["object", "bucket", "upload"] = "object"

    @property
    def subject(self) -> str:
        """The request in a message."""
        return f"{self.verb} of {self.key!r} in bucket {self.bucket!r}"


def classify(error: Exception, request: Request) -> SessionFSError:
    """Give the error of our tree that an exception of the library means.

    Args:
        error: What was raised; an error of ours is given back as it is.
        request: What was asked.
    """
    if isinstance(error, SessionFSError):
        return error
    if isinstance(error, GoogleAPICallError):
        return _of_answer(error, request)
    shown = scrubbed(str(error))
    if isinstance(error, auth.TransportError) or (isinstance(error, auth.RefreshError) and error.retryable):
        # Raised while an access token is fetched: the request itself was not sent.
        return UnavailableError(f"no access token could be fetched: {shown}")
    if isinstance(error, auth.GoogleAuthError):
        return AccessError(f"no usable credentials: {shown}", remedy=CREDENTIALS_REMEDY)
    if any(isinstance(cause, _NOT_SENT) for cause in _causes(error)):
        return UnavailableError(f"the store cannot be reached: {shown}")
    if any(isinstance(cause, ssl.SSLCertVerificationError) for cause in _causes(error)):
        return AccessError(
            f"the store's certificate is not trusted: {shown}", remedy="set REQUESTS_CA_BUNDLE"
        )
    if isinstance(error, _MALFORMED):
        return InvalidRequestError(f"{request.subject} cannot be sent: {shown}")
    return unclear(request, shown)


def unclear(request: Request, detail: str) -> SessionFSError:
    """Give the error of a request that was sent and not clearly answered."""
    if request.effect == "changing":
        return OutcomeUnknownError(f"{request.subject} may or may not have been applied: {detail}")
    return UnavailableError(f"{request.subject} was not answered: {detail}")


def no_bucket(bucket: str) -> BucketNotFoundError:
    """Give the error of a bucket that is not there."""
    return BucketNotFoundError(
        f"bucket {bucket!r} does not exist", remedy="create it, or correct the store URL"
    )


def scrubbed(text: str) -> str:
    """Give `text` without secrets, on one line and not too long."""
    plain = _SECRET.sub(r"\1***", _METHOD_AND_URL.sub("", text))
    return " ".join(plain.split())[:_SHOWN_TEXT]


def _of_answer(error: GoogleAPICallError, request: Request) -> SessionFSError:
    status = int(error.code or 0)
    said = f"{status} {scrubbed(str(error.message))}"
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return ThrottledError(f"the store asks to slow down: {said}")
    if status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
        return _of_access(status, request, _names(error), said)
    if status == HTTPStatus.NOT_IMPLEMENTED:
        return InvalidRequestError(f"{request.subject} was refused: {said}")
    unsaid = status < HTTPStatus.MULTIPLE_CHOICES or status >= HTTPStatus.INTERNAL_SERVER_ERROR
    if unsaid or status == HTTPStatus.REQUEST_TIMEOUT:
        return unclear(request, said)
    if status in {HTTPStatus.PRECONDITION_FAILED, HTTPStatus.NOT_MODIFIED}:
        return PreconditionFailedError(f"{request.key!r} {condition_text(request.condition)}")
    if status in {HTTPStatus.NOT_FOUND, HTTPStatus.GONE}:
        return _of_missing(request, _names(error), said)
    if status == HTTPStatus.CONFLICT:
        return ConcurrentRequestError(
            f"the store saw another request on {request.key!r} at the same time: {said}"
        )
    return InvalidRequestError(f"{request.subject} was refused: {said}")


def _names(error: GoogleAPICallError) -> frozenset[str]:
    """Give what an answer says to programs: the reasons of the JSON API, or the code of the XML API; nothing that repeats a key."""
    body = error.response.content if error.response is not None else b""
    named = _XML_NAME.match(body)
    if named is not None:
        return frozenset({named[1].decode("utf-8")})
    try:
        told = json.loads(body)["error"]
        reasons = {str(part.get("reason")) for part in told.get("errors", ())}
        message = told.get("message")
    except (ValueError, LookupError, TypeError, AttributeError):
        return frozenset()
    return frozenset(reasons | {_NO_BUCKET} if message == _NO_BUCKET_MESSAGE else reasons)


def _of_access(status: int, request: Request, names: frozenset[str], said: str) -> SessionFSError:
    if names & _RATE_NAMES:
        return ThrottledError(f"the store asks to slow down: {said}")
    if status == HTTPStatus.UNAUTHORIZED:
        return AccessError(f"the store does not accept the credentials: {said}", remedy=CREDENTIALS_REMEDY)
    return AccessError(
        f"{request.subject} is not allowed: {said}",
        remedy="grant the role Storage Object User (roles/storage.objectUser) on the bucket",
    )


def _of_missing(request: Request, names: frozenset[str], said: str) -> SessionFSError:
    if _NO_BUCKET in names or request.missing == "bucket":
        return no_bucket(request.bucket)
    if request.missing == "upload":
        # Ended by a request whose answer was lost, or given up by somebody else: the object says which.
        if request.effect == "changing":
            return unclear(request, said)
        return ConcurrentRequestError(f"the upload of {request.key!r} was ended by somebody else")
    if request.effect == "changing" and isinstance(request.condition, IfMatch):
        return PreconditionFailedError(f"{request.key!r} does not exist any more")
    return ObjectNotFoundError(f"no object {request.key!r}")


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Give the exceptions inside an exception: requests keeps urllib3's as an argument, and that one its reason."""
    seen: list[BaseException] = []
    waiting: list[object] = [error]
    while waiting:
        found = waiting.pop()
        if isinstance(found, BaseException) and found not in seen:
            seen.append(found)
            yield found
            waiting += [*found.args, getattr(found, "reason", None), found.__cause__]
