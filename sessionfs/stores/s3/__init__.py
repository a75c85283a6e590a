"""The S3 store, the only place with boto3: connection, meaning of errors, reading, uploads in parts, the store itself."""

from sessionfs.stores.s3.store import S3Store, open_url

__all__ = ["S3Store", "open_url"]
