"""One S3 client, and one place where a request is sent and its errors get their meaning."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from botocore.handlers import add_expect_header

from sessionfs.model.clock import Clock
from sessionfs.model.errors import AccessError
from sessionfs.stores.s3.errors import CREDENTIALS_REMEDY, Request, Secrets, classify
from sessionfs.stores.store_urls import S3Location

CONNECT_TIMEOUT_SECONDS = 5.0
READ_TIMEOUT_SECONDS = 20.0
"""A silent server is given up on before anybody may take over the session that a request changes (``replication/ownership/lease.py``)."""

_DEFAULT_REGION = "us-east-1"


class S3Connection:
    """A thread-safe client of one bucket.

    Args:
        client: The SDK's client (its methods are made at run time: no types).
        bucket: The bucket.
        secrets: What no message may hold.
        clock: For naming a clock skew.
    """

    def __init__(self, client: Any, bucket: str, *, secrets: Secrets, clock: Clock) -> None:
        self.client = client
        self.bucket = bucket
        self._secrets = secrets
        self._clock = clock

    def send(self, request: Request, call: Callable[..., Any], **arguments: Any) -> Mapping[str, Any]:
        """Send one request, once.

        Args:
            request: What is asked.
            call: A method of `client`.
            arguments: Its arguments; ``Bucket`` is added.

        Raises:
            SessionFSError: As `errors.classify` says.
        """
        try:
            answer: Mapping[str, Any] = call(Bucket=self.bucket, **arguments)
        except (ClientError, BotoCoreError, OSError, UnicodeError) as error:
            raise self.meaning(error, request) from error
        return answer

    def meaning(self, error: Exception, request: Request) -> Exception:
        """Give the error of ours that an SDK exception means."""
        return classify(error, request, self._secrets, now_seconds=self._clock.wall_ns() / 1e9)


def connect(
    location: S3Location, *, max_connections: int, clock: Clock, environment: Mapping[str, str] = os.environ
) -> S3Connection:
    """Make a client; sends nothing to the store.

    Args:
        location: Bucket, endpoint, region.
        max_connections: Size of the connection pool, from 1.
        clock: Passed on.
        environment: Where SESSIONFS_ACCESS_KEY_ID and SESSIONFS_SECRET_ACCESS_KEY (and, for temporary credentials,
            SESSIONFS_SESSION_TOKEN) are looked up; without them the usual AWS chain is asked.

    Raises:
        AccessError: Credentials are named but incomplete, or the AWS profile does not exist.
    """
    key_id = environment.get("SESSIONFS_ACCESS_KEY_ID", "")
    secret = environment.get("SESSIONFS_SECRET_ACCESS_KEY", "")
    token = environment.get("SESSIONFS_SESSION_TOKEN", "")
    if bool(key_id) != bool(secret):
        missing = "SESSIONFS_SECRET_ACCESS_KEY" if key_id else "SESSIONFS_ACCESS_KEY_ID"
        raise AccessError(f"{missing} is not set, its other half is", remedy="set both or neither")
    request = Request("connection", location.bucket, location.prefix, "read")
    secrets = Secrets((key_id, secret, token))
    try:
        session = boto3.session.Session()
        client = session.client(
            "s3",
            endpoint_url=location.endpoint or None,
            region_name=location.region or session.region_name or _DEFAULT_REGION,
            aws_access_key_id=key_id or None,
            aws_secret_access_key=secret or None,
            aws_session_token=(token or None) if key_id else None,
            config=_config(max_connections),
        )
        # Saves a wait for each body: the SDK gives a server up to a second to answer "100 Continue", and SeaweedFS 4.48
        # lets it wait that long when several requests are on one key.
        client.meta.events.unregister("before-call.s3", add_expect_header)
        if not key_id:
            found = session.get_credentials()
            if found is None:
                raise AccessError("no credentials for the store were found", remedy=CREDENTIALS_REMEDY)
            frozen = found.get_frozen_credentials()
            secrets = Secrets((frozen.access_key or "", frozen.secret_key or "", frozen.token or ""))
    except (BotoCoreError, ClientError, ValueError) as error:
        raise classify(error, request, secrets, now_seconds=clock.wall_ns() / 1e9) from error
    return S3Connection(client, location.bucket, secrets=secrets, clock=clock)


def _config(max_connections: int) -> Config:
    return Config(
        signature_version="s3v4",
        connect_timeout=CONNECT_TIMEOUT_SECONDS,
        read_timeout=READ_TIMEOUT_SECONDS,
        max_pool_connections=max_connections,
        retries={"total_max_attempts": 1},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"addressing_style": "path"},
        user_agent_extra="sessionfs",
    )
