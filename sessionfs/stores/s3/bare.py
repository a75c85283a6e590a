"""A bare SDK client as a program without us would use it: what ``sessionfs bench`` compares with. Nothing else uses it."""

from __future__ import annotations

import os

import boto3
from botocore.config import Config

from sessionfs.stores.store_urls import parse_s3_url

_CONNECTIONS = 32


class BareObjects:
    """Objects of a bucket through the SDK's own client, with its defaults.

    Args:
        url: An ``s3://`` URL.

    Raises:
        StoreUrlError: It is none.
    """

    def __init__(self, url: str) -> None:
        location = parse_s3_url(url)
        self._bucket, self._prefix = location.bucket, location.prefix
        self._client = boto3.client(
            "s3",
            endpoint_url=location.endpoint or None,
            region_name=location.region or None,
            aws_access_key_id=os.environ.get("SESSIONFS_ACCESS_KEY_ID") or None,
            aws_secret_access_key=os.environ.get("SESSIONFS_SECRET_ACCESS_KEY") or None,
            config=Config(max_pool_connections=_CONNECTIONS, s3={"addressing_style": "path"}),
        )

    def put(self, key: str, body: bytes) -> None:
        """Store an object."""
        self._client.put_object(Bucket=self._bucket, Key=self._prefix + key, Body=body)

    def get(self, key: str) -> bytes:
        """Read an object."""
        body: bytes = self._client.get_object(Bucket=self._bucket, Key=self._prefix + key)["Body"].read()
        return body

    def delete(self, key: str) -> None:
        """Remove an object."""
        self._client.delete_object(Bucket=self._bucket, Key=self._prefix + key)
