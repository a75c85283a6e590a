"""One GCS client, and one place where a request is sent, once, and its errors get their meaning."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import google.auth
import requests
from google.api_core.client_info import ClientInfo
from google.api_core.exceptions import from_http_response
from google.auth.credentials import AnonymousCredentials
from google.auth.transport.requests import AuthorizedSession
from google.cloud import storage
from requests.adapters import HTTPAdapter

from sessionfs.model.errors import AccessError
from sessionfs.stores.base import ObjectMetadata
from sessionfs.stores.gcs.errors import CREDENTIALS_REMEDY, RAISED, Request, classify, scrubbed
from sessionfs.stores.store_urls import GsLocation

CONNECT_TIMEOUT_SECONDS = 5.0
READ_TIMEOUT_SECONDS = 20.0
"""A silent server is given up on before anybody may take over the session that a request changes (``replication/ownership/lease.py``)."""

_TIMEOUT = (CONNECT_TIMEOUT_SECONDS, READ_TIMEOUT_SECONDS)
_FILE_REMEDY = "let GOOGLE_APPLICATION_CREDENTIALS name a readable file of credentials, or unset it and run `gcloud auth application-default login`"
_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"


class GcsConnection:
    """A thread-safe client of one bucket.

    Args:
        client: The library's client (it has no types).
        session: The HTTP session below it, for what the library only does in ways of its own: streamed reads, uploads that
            can be given up, and copies in bounded steps.
        bucket: The bucket.
        endpoint: Where the API is.
    """

    def __init__(self, client: Any, session: requests.Session, *, bucket: str, endpoint: str) -> None:
        self.client = client
        self.bucket = bucket
        self.endpoint = endpoint
        self._session = session

    def blob(self, key: str, metadata: ObjectMetadata | None = None) -> Any:
        """Give the library's name of an object; blobs are no thread's but one's, so each request has its own."""
        blob = self.client.bucket(self.bucket).blob(key)
        if metadata is not None:
            blob.metadata = dict(metadata.user)
            blob.content_type = metadata.content_type
            if metadata.content_encoding:
                blob.content_encoding = metadata.content_encoding
        return blob

    def send(self, request: Request, call: Callable[..., Any], **arguments: Any) -> Any:
        """Call the library once, without its repetitions.

        Args:
            request: What is asked.
            call: A method that takes ``timeout`` and ``retry``.
            arguments: Its other arguments.

        Raises:
            SessionFSError: As `errors.classify` says.
        """
        try:
            return call(timeout=_TIMEOUT, retry=None, **arguments)
        except RAISED as error:
            meaning = classify(error, request)
        # Raised here, without the library's exception behind it: that one shows the address of an upload, which is a credential.
        raise meaning

    def fetch(
        self, request: Request, method: str, url: str, *, accepted: Collection[int], **arguments: Any
    ) -> requests.Response:
        """Send one HTTP request, once.

        Args:
            request: What is asked.
            method: The HTTP method.
            url: Absolute.
            accepted: Statuses that are no error.
            arguments: More for `requests.Session.request`.

        Raises:
            SessionFSError: As `errors.classify` says.
        """
        try:
            answer = self._session.request(method, url, timeout=_TIMEOUT, allow_redirects=False, **arguments)
            if answer.status_code not in accepted:
                with answer:
                    raise from_http_response(answer)  # type: ignore[no-untyped-call]
        except RAISED as error:
            meaning = classify(error, request)
        else:
            return answer
        # As in `send`.
        raise meaning

    def close(self) -> None:
        """Close the pool."""
        self._session.close()


def connect(location: GsLocation, *, max_connections: int) -> GcsConnection:
    """Make a client; sends nothing to the store.

    Args:
        location: Bucket and endpoint. An endpoint with ``http:`` is an emulator's: no credentials are sent there. Everything
            else gets Application Default Credentials.
        max_connections: Size of the connection pool, from 1.

    Raises:
        AccessError: There are no Application Default Credentials, or they cannot be read.
    """
    credentials: Any
    session: requests.Session
    if location.endpoint.startswith("http:"):
        credentials, session = AnonymousCredentials(), requests.Session()  # type: ignore[no-untyped-call]
    else:
        credentials = _default_credentials()
        session = AuthorizedSession(credentials)  # type: ignore[no-untyped-call]
    universe: str = credentials.universe_domain
    endpoint = location.endpoint or f"https://storage.{universe}"
    adapter = HTTPAdapter(pool_maxsize=max_connections, max_retries=0)
    session.mount("https://", adapter)
    session.mount("http://", adapter)
    client = storage.Client(
        project=None,
        credentials=credentials,
        _http=session,
        client_info=ClientInfo(user_agent="sessionfs"),  # type: ignore[no-untyped-call]
        client_options={"api_endpoint": endpoint, "universe_domain": universe},
    )
    # The library (3.17) asks for the bucket in a thread of its own, with repetitions and a right that nobody else needs here.
    client._bucket_metadata_cache = None  # noqa: SLF001 - its own code allows for a client without one
    return GcsConnection(client, session, bucket=location.bucket, endpoint=endpoint)


def _default_credentials() -> Any:
    try:
        credentials, _ = google.auth.default(scopes=[_SCOPE])
    except google.auth.exceptions.GoogleAuthError as error:
        raise AccessError(
            f"no credentials for the store were found: {scrubbed(str(error))}", remedy=CREDENTIALS_REMEDY
        ) from None
    except OSError as error:
        raise AccessError(
            f"the credentials for the store cannot be read: {error}", remedy=_FILE_REMEDY
        ) from None
    except (AttributeError, LookupError, TypeError, ValueError):
        # The library looks at fields of what a file holds before it knows that it has any.
        raise AccessError("the credentials for the store have no known form", remedy=_FILE_REMEDY) from None
    return credentials


def header_of(answer: requests.Response, name: str) -> str:
    """Give a header of an answer, "" when it has none."""
    headers: Mapping[str, str] = answer.headers
    return headers.get(name, "")
