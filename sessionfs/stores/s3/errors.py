"""What an S3 error means: one table from botocore's exceptions and a server's status and code to our error tree.

Rules:

* Nothing was sent (refused, no address, no credentials): `UnavailableError` or `AccessError`.
* A changing request was sent and there is no clear answer (timeout, dropped connection, 500, 502, 504, an error inside a 200):
  `OutcomeUnknownError`. A 429 or a 503 that names throttling was not applied: `ThrottledError`.
* A read changes nothing, so everything unclear about it is `UnavailableError`. Requests about the parts of an upload are reads in
  this sense: no object appears by them.
* No text of ours holds a credential.
"""

from __future__ import annotations

import email.utils
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Literal

from botocore import exceptions as sdk

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
from sessionfs.stores.request_checks import collision, condition_text

CREDENTIALS_REMEDY = "set SESSIONFS_ACCESS_KEY_ID and SESSIONFS_SECRET_ACCESS_KEY, or AWS_PROFILE, or run where a role is attached"
_SKEW_LIMIT_SECONDS = 300.0
_SHOWN_TEXT = 200
_UNCONDITIONAL = Unconditional()

_THROTTLED_CODES = frozenset(
    {
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "ThrottledException",
        "RequestThrottled",
        "RequestLimitExceeded",
        "BandwidthLimitExceeded",
        "TooManyRequests",
        "TooManyRequestsException",
        "ErrTooManyRequest",
        "ErrRequestBytesExceed",
    }
)
_CREDENTIAL_CODES: Mapping[str, str] = {
    "InvalidAccessKeyId": "the server does not know this access key",
    "SignatureDoesNotMatch": "the secret access key does not fit the access key",
    "ExpiredToken": "the session token has expired",
    "InvalidToken": "the session token is not valid",
    "TokenRefreshRequired": "the session token must be renewed",
    "InvalidSecurity": "the credentials are not valid",
    "AccountProblem": "the account has a problem",
}
_REGION_CODES = frozenset(
    {
        "PermanentRedirect",
        "TemporaryRedirect",
        "AuthorizationHeaderMalformed",
        "IllegalLocationConstraintException",
    }
)
_REDIRECTS = frozenset(
    {HTTPStatus.MOVED_PERMANENTLY, HTTPStatus.TEMPORARY_REDIRECT, HTTPStatus.PERMANENT_REDIRECT}
)
_SKEW_CODES = frozenset({"RequestTimeTooSkewed", "RequestExpired"})
_FOLDER_CODES = frozenset({"ExistingObjectIsFile", "ExistingObjectIsDirectory"})
_NOT_SENT = (
    sdk.EndpointConnectionError,
    sdk.ConnectTimeoutError,
    sdk.ProxyConnectionError,
)
_NO_CREDENTIALS = (
    sdk.NoCredentialsError,
    sdk.PartialCredentialsError,
    sdk.CredentialRetrievalError,
    sdk.TokenRetrievalError,
    sdk.SSOError,
    sdk.ProfileNotFound,
    sdk.ConfigNotFound,
    sdk.UnauthorizedSSOTokenError,
)


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked, as far as the meaning of an error depends on it.

    Attributes:
        verb: What was tried, in words: ``put``, ``list``.
        bucket: The bucket.
        key: The key or prefix.
        effect: ``changing`` when an object may have changed.
        condition: The condition on `key`.
    """

    verb: str
    bucket: str
    key: str
    effect: Literal["read", "changing"]
    condition: Condition = _UNCONDITIONAL

    @property
    def subject(self) -> str:
        """The request in a message."""
        return f"{self.verb} of {self.key!r} in bucket {self.bucket!r}"


@dataclass(frozen=True, slots=True)
class Secrets:
    """Texts that no message may hold."""

    values: tuple[str, ...] = ()

    def scrub(self, text: str) -> str:
        """Give `text` without them, on one line and not too long."""
        for value in self.values:
            if value:
                text = text.replace(value, "***")
        return " ".join(text.split())[:_SHOWN_TEXT]

    def __repr__(self) -> str:
        return "Secrets(***)"


def classify(error: Exception, request: Request, secrets: Secrets, *, now_seconds: float) -> SessionFSError:
    """Give the error of our tree that an SDK exception means.

    Args:
        error: What the SDK raised; an error of ours is given back as it is.
        request: What was asked.
        secrets: What must not be shown.
        now_seconds: This host's wall clock, to name a clock skew.
    """
    if isinstance(error, SessionFSError):
        return error
    if isinstance(error, sdk.ClientError):
        return _of_answer(error, request, secrets, now_seconds)
    shown = secrets.scrub(str(error))
    if isinstance(error, _NO_CREDENTIALS):
        return AccessError(f"no usable credentials: {shown}", remedy=CREDENTIALS_REMEDY)
    if isinstance(error, _NOT_SENT):
        return UnavailableError(f"the store cannot be reached: {shown}")
    if isinstance(error, sdk.SSLError) and "CERTIFICATE_VERIFY_FAILED" in shown:
        return AccessError(f"the store's certificate is not trusted: {shown}", remedy="set AWS_CA_BUNDLE")
    if isinstance(error, (sdk.ParamValidationError, sdk.InvalidEndpointConfigurationError, UnicodeError)):
        return InvalidRequestError(f"{request.subject} cannot be sent: {shown}")
    return unclear(request, shown)


def unclear(request: Request, detail: str) -> SessionFSError:
    """Give the error of a request that was sent and not clearly answered."""
    if request.effect == "changing":
        return OutcomeUnknownError(f"{request.subject} may or may not have been applied: {detail}")
    return UnavailableError(f"{request.subject} was not answered: {detail}")


def error_code(error: sdk.ClientError) -> tuple[int, str]:
    """Give the HTTP status (0 when unknown) and the server's code."""
    response: Mapping[str, Any] = error.response
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return int(status or 0), str(response.get("Error", {}).get("Code", ""))


def _of_answer(
    error: sdk.ClientError, request: Request, secrets: Secrets, now_seconds: float
) -> SessionFSError:
    status, code = error_code(error)
    said = secrets.scrub(f"{code}: {error.response.get('Error', {}).get('Message', '')}")
    if status == HTTPStatus.TOO_MANY_REQUESTS or _asks_to_slow_down(status, code, request):
        return ThrottledError(f"the store asks to slow down: {said}")
    access = _access_problem(error, request, said, now_seconds)
    if access is not None:
        return access
    if status == HTTPStatus.NOT_IMPLEMENTED:
        return InvalidRequestError(f"{request.subject} was refused: {status} {said}")
    unsaid = status < HTTPStatus.MULTIPLE_CHOICES or status >= HTTPStatus.INTERNAL_SERVER_ERROR
    if unsaid or code == "RequestTimeout" or status == HTTPStatus.REQUEST_TIMEOUT:
        return unclear(request, said)
    if code == "NoSuchUpload":
        # Completed by a request whose answer was lost, or aborted by somebody else: the object says which.
        if request.effect == "changing":
            return unclear(request, said)
        return ConcurrentRequestError(f"the upload of {request.key!r} was ended by somebody else")
    return _of_refusal(status, code, request, said)


def _asks_to_slow_down(status: int, code: str, request: Request) -> bool:
    if status != HTTPStatus.SERVICE_UNAVAILABLE:
        return False
    # Without a word about throttling, a 503 may come from something that stopped waiting for the store.
    return request.effect == "read" or code in _THROTTLED_CODES


def _of_refusal(status: int, code: str, request: Request, said: str) -> SessionFSError:
    if code == "NoSuchBucket":
        return BucketNotFoundError(
            f"bucket {request.bucket!r} does not exist", remedy="create it, or correct the store URL"
        )
    if status == HTTPStatus.PRECONDITION_FAILED:
        return PreconditionFailedError(f"{request.key!r} {condition_text(request.condition)}")
    if status == HTTPStatus.NOT_FOUND:
        if request.effect == "changing" and isinstance(request.condition, IfMatch):
            return PreconditionFailedError(f"{request.key!r} does not exist any more")
        return ObjectNotFoundError(f"no object {request.key!r}")
    if code in _FOLDER_CODES:
        return collision(request.key)
    if status == HTTPStatus.CONFLICT:
        return ConcurrentRequestError(
            f"the store saw another request on {request.key!r} at the same time: {said}"
        )
    return InvalidRequestError(f"{request.subject} was refused: {status} {said}")


def _access_problem(
    error: sdk.ClientError, request: Request, said: str, now_seconds: float
) -> AccessError | None:
    status, code = error_code(error)
    if code in _REGION_CODES or status in _REDIRECTS:
        return _wrong_region(error, request, said)
    skew_seconds = _clock_skew(error, now_seconds)
    skewed = skew_seconds is not None and abs(skew_seconds) > _SKEW_LIMIT_SECONDS
    if code in _SKEW_CODES or (skewed and status == HTTPStatus.FORBIDDEN):
        by = (
            ""
            if skew_seconds is None
            else f" by {abs(skew_seconds):.0f} s, it is {'behind' if skew_seconds > 0 else 'ahead'}"
        )
        return AccessError(
            f"this host's clock differs from the store's{by}", remedy="set the clock, for example with NTP"
        )
    if code in _CREDENTIAL_CODES:
        return AccessError(f"access denied: {_CREDENTIAL_CODES[code]} ({code})", remedy=CREDENTIALS_REMEDY)
    if status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
        return AccessError(
            f"access denied: {request.subject}: {said}",
            remedy="check the credentials and that they may read, write, list and delete in this bucket",
        )
    return None


def _wrong_region(error: sdk.ClientError, request: Request, said: str) -> AccessError:
    response: Mapping[str, Any] = error.response
    headers = response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    details = response.get("Error", {})
    region = headers.get("x-amz-bucket-region") or details.get("Region") or details.get("BucketRegion")
    endpoint = details.get("Endpoint")
    if region:
        return AccessError(
            f"bucket {request.bucket!r} is in region {region}", remedy=f"add region={region} to the store URL"
        )
    if endpoint:
        return AccessError(
            f"bucket {request.bucket!r} is served by {endpoint}",
            remedy="set endpoint= or region= in the store URL",
        )
    return AccessError(
        f"bucket {request.bucket!r} is in another region: {said}", remedy="set region= in the store URL"
    )


def _clock_skew(error: sdk.ClientError, now_seconds: float) -> float | None:
    response: Mapping[str, Any] = error.response
    date = response.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date", "")
    try:
        return email.utils.parsedate_to_datetime(date).timestamp() - now_seconds
    except (TypeError, ValueError):
        return None
