"""The table from SDK errors to ours, row by row."""

from __future__ import annotations

import email.utils
from typing import Any, Literal

import pytest
from botocore import exceptions as sdk

from sessionfs.model.errors import (
    AccessError,
    BucketNotFoundError,
    ConcurrentRequestError,
    ConflictError,
    InvalidRequestError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    PreconditionFailedError,
    SessionFSError,
    ThrottledError,
    UnavailableError,
)
from sessionfs.stores.base import Condition, IfAbsent, IfMatch, Token, Unconditional
from sessionfs.stores.s3.errors import Request, Secrets, classify

NOW = 1_800_000_000.0
MATCH = IfMatch(Token("abc"))


def answer(status: int, code: str, headers: dict[str, str] | None = None, **details: str) -> sdk.ClientError:
    response: Any = {
        "Error": {"Code": code, "Message": "said by the server", **details},
        "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": headers or {}},
    }
    return sdk.ClientError(response, "Operation")


def meaning(
    error: Exception,
    effect: Literal["read", "changing"] = "changing",
    condition: Condition | None = None,
    secrets: Secrets | None = None,
) -> SessionFSError:
    request = Request("put", "bucket", "some/key", effect, condition or Unconditional())
    return classify(error, request, secrets or Secrets(), now_seconds=NOW)


@pytest.mark.parametrize(
    ("status", "code", "changing", "read"),
    [
        (404, "NoSuchKey", ObjectNotFoundError, ObjectNotFoundError),
        (404, "404", ObjectNotFoundError, ObjectNotFoundError),
        (404, "NoSuchBucket", BucketNotFoundError, BucketNotFoundError),
        (404, "NoSuchUpload", OutcomeUnknownError, ConcurrentRequestError),
        (412, "PreconditionFailed", PreconditionFailedError, PreconditionFailedError),
        (409, "ConditionalRequestConflict", ConcurrentRequestError, ConcurrentRequestError),
        (409, "OperationAborted", ConcurrentRequestError, ConcurrentRequestError),
        (409, "ExistingObjectIsFile", ConflictError, ConflictError),
        (429, "TooManyRequests", ThrottledError, ThrottledError),
        (503, "SlowDown", ThrottledError, ThrottledError),
        (503, "ErrTooManyRequest", ThrottledError, ThrottledError),
        (503, "ServiceUnavailable", OutcomeUnknownError, ThrottledError),
        (503, "", OutcomeUnknownError, ThrottledError),
        (500, "InternalError", OutcomeUnknownError, UnavailableError),
        (500, "SlowDown", OutcomeUnknownError, UnavailableError),
        (502, "502", OutcomeUnknownError, UnavailableError),
        (504, "504", OutcomeUnknownError, UnavailableError),
        (507, "507", OutcomeUnknownError, UnavailableError),
        (200, "InternalError", OutcomeUnknownError, UnavailableError),
        (400, "RequestTimeout", OutcomeUnknownError, UnavailableError),
        (501, "NotImplemented", InvalidRequestError, InvalidRequestError),
        (400, "BadDigest", InvalidRequestError, InvalidRequestError),
        (416, "InvalidRange", InvalidRequestError, InvalidRequestError),
        (403, "AccessDenied", AccessError, AccessError),
        (403, "403", AccessError, AccessError),
        (401, "Unauthorized", AccessError, AccessError),
        (403, "InvalidAccessKeyId", AccessError, AccessError),
        (403, "SignatureDoesNotMatch", AccessError, AccessError),
        (400, "ExpiredToken", AccessError, AccessError),
        (400, "InvalidToken", AccessError, AccessError),
        (403, "RequestTimeTooSkewed", AccessError, AccessError),
        (301, "PermanentRedirect", AccessError, AccessError),
        (307, "TemporaryRedirect", AccessError, AccessError),
        (400, "AuthorizationHeaderMalformed", AccessError, AccessError),
    ],
)
def test_answer_has_its_meaning(
    status: int, code: str, changing: type[SessionFSError], read: type[SessionFSError]
) -> None:
    assert type(meaning(answer(status, code), "changing")) is changing
    assert type(meaning(answer(status, code), "read")) is read


def test_missing_key_under_if_match_is_a_failed_condition_as_seaweedfs_says() -> None:
    assert type(meaning(answer(404, "NoSuchKey"), condition=MATCH)) is PreconditionFailedError
    assert type(meaning(answer(412, "PreconditionFailed"), condition=MATCH)) is PreconditionFailedError
    assert type(meaning(answer(404, "NoSuchKey"), "read", MATCH)) is ObjectNotFoundError


@pytest.mark.parametrize(
    ("error", "changing", "read"),
    [
        (sdk.EndpointConnectionError(endpoint_url="http://x"), UnavailableError, UnavailableError),
        (sdk.ConnectTimeoutError(endpoint_url="http://x"), UnavailableError, UnavailableError),
        (sdk.ReadTimeoutError(endpoint_url="http://x"), OutcomeUnknownError, UnavailableError),
        (sdk.ConnectionClosedError(endpoint_url="http://x"), OutcomeUnknownError, UnavailableError),
        (sdk.HTTPClientError(error="odd"), OutcomeUnknownError, UnavailableError),
        (sdk.ResponseStreamingError(error="cut"), OutcomeUnknownError, UnavailableError),
        (ConnectionResetError("reset"), OutcomeUnknownError, UnavailableError),
        (sdk.NoCredentialsError(), AccessError, AccessError),
        (sdk.CredentialRetrievalError(provider="p", error_msg="m"), AccessError, AccessError),
        (
            sdk.SSLError(endpoint_url="https://x", error=ValueError("CERTIFICATE_VERIFY_FAILED")),
            AccessError,
            AccessError,
        ),
        (sdk.ParamValidationError(report="bad"), InvalidRequestError, InvalidRequestError),
    ],
)
def test_failure_without_an_answer_has_its_meaning(
    error: Exception, changing: type[SessionFSError], read: type[SessionFSError]
) -> None:
    assert type(meaning(error, "changing")) is changing
    assert type(meaning(error, "read")) is read


def test_wrong_region_names_the_right_one() -> None:
    for error in (
        answer(301, "PermanentRedirect", {"x-amz-bucket-region": "eu-north-1"}),
        answer(400, "AuthorizationHeaderMalformed", Region="eu-north-1"),
        answer(301, "301", {"x-amz-bucket-region": "eu-north-1"}),
    ):
        found = meaning(error)
        assert "eu-north-1" in found.message
        assert found.remedy == "add region=eu-north-1 to the store URL"
    assert "s3.example" in meaning(answer(301, "PermanentRedirect", Endpoint="s3.example")).message


@pytest.mark.parametrize(("ahead_seconds", "word"), [(3600, "behind"), (-3600, "ahead")])
@pytest.mark.parametrize("code", ["RequestTimeTooSkewed", "AccessDenied", "403"])
def test_clock_skew_is_named_with_its_size(ahead_seconds: int, word: str, code: str) -> None:
    headers = {"date": email.utils.formatdate(NOW + ahead_seconds, usegmt=True)}
    found = meaning(answer(403, code, headers))
    assert isinstance(found, AccessError)
    assert "3600 s" in found.message
    assert word in found.message


def test_small_difference_of_clocks_is_no_skew() -> None:
    headers = {"date": email.utils.formatdate(NOW + 20, usegmt=True)}
    assert "clock" not in meaning(answer(403, "AccessDenied", headers)).message


def test_no_credential_is_in_any_text() -> None:
    secrets = Secrets(("AKIDEXAMPLE", "very-secret", ""))
    for error in (
        answer(403, "SignatureDoesNotMatch", Message="AKIDEXAMPLE signed with very-secret"),
        answer(400, "Odd", Message="AKIDEXAMPLE very-secret"),
        answer(500, "very-secret"),
        sdk.EndpointConnectionError(endpoint_url="http://AKIDEXAMPLE:very-secret@host"),
    ):
        shown = str(meaning(error, secrets=secrets))
        assert "AKIDEXAMPLE" not in shown
        assert "very-secret" not in shown
        assert "\n" not in shown
    assert "very-secret" not in repr(secrets)


def test_failed_condition_says_which() -> None:
    failed = answer(412, "PreconditionFailed")
    assert meaning(failed, condition=IfAbsent()).message == "'some/key' exists already"
    assert meaning(failed, condition=MATCH).message == "'some/key' is not at token abc"


def test_error_of_ours_stays_what_it_is() -> None:
    ours = ThrottledError("ours")
    assert meaning(ours) is ours
