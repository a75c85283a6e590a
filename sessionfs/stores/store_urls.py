"""Store URLs: parsing, the canonical form, and the directory name under which a store's local state is kept.

``file:///dir`` (also ``file:dir`` and a bare path), ``s3://bucket[/prefix]?endpoint=URL&region=R``,
``gs://bucket[/prefix]?endpoint=URL``. Never a secret.
"""

from __future__ import annotations

import hashlib
import os
import re
import urllib.parse
from dataclasses import dataclass

from sessionfs.model.errors import InvalidKeyError, StoreUrlError
from sessionfs.model.keys import validate_prefix

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")
_REGION = re.compile(r"[A-Za-z0-9-]{1,64}")
_UNSAFE = re.compile(r"[^A-Za-z0-9._]+")
_DEFAULT_PORTS = {"http": 80, "https": 443}
_CREDENTIALS_REMEDY = (
    "credentials are never part of a store URL: set SESSIONFS_ACCESS_KEY_ID and SESSIONFS_SECRET_ACCESS_KEY, "
    "or use an AWS profile"
)
_GOOGLE_CREDENTIALS_REMEDY = (
    "credentials are never part of a store URL: Application Default Credentials are used, "
    "for example of `gcloud auth application-default login` or GOOGLE_APPLICATION_CREDENTIALS"
)


@dataclass(frozen=True, slots=True)
class S3Location:
    """What an ``s3://`` URL names.

    Attributes:
        bucket: The bucket's name.
        prefix: "" or whole segments ending in ``/``.
        endpoint: The server's URL, "" for AWS.
        region: The region, "" for the environment's.
    """

    bucket: str
    prefix: str
    endpoint: str
    region: str

    @property
    def url(self) -> str:
        """The canonical URL."""
        return _bucket_url("s3", self.bucket, self.prefix, endpoint=self.endpoint, region=self.region)


@dataclass(frozen=True, slots=True)
class GsLocation:
    """What a ``gs://`` URL names.

    Attributes:
        bucket: The bucket's name.
        prefix: "" or whole segments ending in ``/``.
        endpoint: The server's URL, "" for Google's.
    """

    bucket: str
    prefix: str
    endpoint: str

    @property
    def url(self) -> str:
        """The canonical URL."""
        return _bucket_url("gs", self.bucket, self.prefix, endpoint=self.endpoint)


def scheme_of(url: str) -> str:
    """Give the URL's scheme in lower case; "" for a bare path."""
    match = _SCHEME.match(url)
    return match.group(1).lower() if match else ""


def parse_s3_url(url: str) -> S3Location:
    """Take an ``s3://`` URL apart.

    Raises:
        StoreUrlError: It is malformed, has an unknown option, or carries credentials. The message never repeats them.
    """
    bucket, prefix, options = _parse_bucket_url(
        url, example="s3://BUCKET[/PREFIX]?endpoint=URL&region=REGION", known=("endpoint", "region")
    )
    region = options.get("region", "")
    if region and not _REGION.fullmatch(region):
        raise StoreUrlError(f"{region!r} is no region name")
    return S3Location(bucket, prefix, _endpoint(options.get("endpoint", "")), region)


def parse_gs_url(url: str) -> GsLocation:
    """Take a ``gs://`` URL apart.

    Raises:
        StoreUrlError: As `parse_s3_url`.
    """
    bucket, prefix, options = _parse_bucket_url(
        url, example="gs://BUCKET[/PREFIX]?endpoint=URL", known=("endpoint",)
    )
    return GsLocation(bucket, prefix, _endpoint(options.get("endpoint", "")))


def parse_file_url(url: str) -> str:
    """Give the absolute directory that a ``file:`` URL or a bare path names.

    Raises:
        StoreUrlError: It is empty or names another host.
    """
    if scheme_of(url) != "file":
        path = url
    else:
        parts = _split(url)
        if parts.netloc not in {"", "localhost"}:
            raise StoreUrlError(
                f"file URL names the host {parts.netloc!r}",
                remedy="write file:///DIRECTORY with three slashes",
            )
        if parts.query or parts.fragment:
            raise StoreUrlError(
                "a file URL has no ?options or #fragment", remedy="write ? as %3F and # as %23"
            )
        path = urllib.parse.unquote(parts.path)
    if not path or "\0" in path:
        raise StoreUrlError("the store's directory is not named", remedy="write file:///DIRECTORY")
    return os.path.abspath(os.path.expanduser(path) if path.startswith("~") else path)


def file_url(directory: str) -> str:
    """Give the URL of a directory."""
    return "file://" + urllib.parse.quote(os.path.abspath(directory))


def canonical_url(url: str) -> str:
    """Give one spelling for all URLs of one store.

    Args:
        url: Any accepted form.

    Raises:
        StoreUrlError: As `parse_s3_url` and `parse_file_url`.
    """
    scheme = scheme_of(url)
    if scheme == "s3":
        return parse_s3_url(url).url
    if scheme == "gs":
        return parse_gs_url(url).url
    if scheme in {"", "file"}:
        return file_url(os.path.realpath(parse_file_url(url)))
    return url


def store_id(url: str) -> str:
    """Give a short readable directory name for a store's local state.

    The region is no part of it: naming it later must not orphan what is already kept.

    Raises:
        StoreUrlError: As `canonical_url`.
    """
    scheme = scheme_of(url)
    if scheme == "s3":
        location = parse_s3_url(url)
        identity = S3Location(location.bucket, location.prefix, location.endpoint, "").url
        readable = f"s3-{location.bucket}-{location.prefix}"
    elif scheme == "gs":
        place = parse_gs_url(url)
        identity = place.url
        readable = f"gs-{place.bucket}-{place.prefix}"
    else:
        identity = canonical_url(url)
        readable = identity.replace("file:///", "file-")
    digest = hashlib.sha256(identity.encode("utf-8")).hexdigest()[:8]
    return f"{_UNSAFE.sub('-', readable).strip('-.')[:60].strip('-.')}-{digest}"


def _bucket_url(scheme: str, bucket: str, prefix: str, **options: str) -> str:
    query = {name: value for name, value in options.items() if value}
    text = f"{scheme}://{bucket}"
    if prefix:
        text += "/" + urllib.parse.quote(prefix.rstrip("/"), safe="/ ~!'()*,;=:@+$&")
    return text + ("?" + urllib.parse.urlencode(query, safe=":/") if query else "")


def _parse_bucket_url(url: str, *, example: str, known: tuple[str, ...]) -> tuple[str, str, dict[str, str]]:
    """Give bucket, prefix and options."""
    scheme = example.partition(":")[0]
    credentials_remedy = _CREDENTIALS_REMEDY if scheme == "s3" else _GOOGLE_CREDENTIALS_REMEDY
    parts = _split(url)
    if "@" in parts.netloc:
        raise StoreUrlError(f"the {scheme}:// URL carries a user name or password", remedy=credentials_remedy)
    if not _BUCKET.fullmatch(parts.netloc):
        raise StoreUrlError(f"{parts.netloc!r} is no bucket name", remedy=f"write {example}")
    if parts.fragment:
        raise StoreUrlError("a store URL has no #fragment", remedy="write # in a prefix as %23")
    options = _options(parts.query, known=known, credentials_remedy=credentials_remedy)
    trimmed = urllib.parse.unquote(parts.path).strip("/")
    prefix = trimmed + "/" if trimmed else ""
    try:
        validate_prefix(prefix)
    except InvalidKeyError as error:
        raise StoreUrlError(f"the prefix of the store URL cannot be used: {error.message}") from None
    return parts.netloc, prefix, options


def _split(url: str) -> urllib.parse.SplitResult:
    if any(character < " " or character == "\x7f" for character in url):
        raise StoreUrlError("the store URL contains a control character")
    try:
        return urllib.parse.urlsplit(url)
    except ValueError as error:
        raise StoreUrlError(f"the store URL cannot be read: {error}") from None


def _options(query: str, *, known: tuple[str, ...], credentials_remedy: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in urllib.parse.parse_qsl(query, keep_blank_values=True):
        if name not in known:
            secret = any(word in name.lower() for word in ("key", "secret", "token", "password"))
            remedy = credentials_remedy if secret else f"known options: {', '.join(known)}"
            raise StoreUrlError(f"unknown option {name!r} in the store URL", remedy=remedy)
        if name in found:
            raise StoreUrlError(f"option {name!r} is given twice in the store URL")
        found[name] = value
    return found


def _endpoint(text: str) -> str:
    if not text:
        return ""
    try:
        parts = urllib.parse.urlsplit(text)
        port = parts.port
    except ValueError:
        raise StoreUrlError("the endpoint is no URL", remedy="write endpoint=https://HOST[:PORT]") from None
    if "@" in parts.netloc:
        raise StoreUrlError("the endpoint carries a user name or password", remedy=_CREDENTIALS_REMEDY)
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname or parts.query or parts.fragment:
        raise StoreUrlError(
            f"endpoint {text!r} is no http or https URL", remedy="write endpoint=https://HOST[:PORT]"
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    shown_port = f":{port}" if port and port != _DEFAULT_PORTS[parts.scheme] else ""
    return f"{parts.scheme}://{host}{shown_port}{parts.path.rstrip('/')}"
