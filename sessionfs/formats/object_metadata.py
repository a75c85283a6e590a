"""User metadata of a live object: plain fields that s3fs and rclone read too, and ours.

``mode`` (decimal, with the file type), ``uid``, ``gid`` and ``mtime`` (seconds, a point, nine digits) are written as s3fs
writes them; rclone reads the same ``mtime``. Ours: ``sessionfs-sha256``, ``sessionfs-write`` (random, one per
attempt), ``sessionfs-epoch``, ``sessionfs-lineage`` (new at every rewrite, kept by appends and attribute copies). User metadata is limited to
2 KiB by S3, so nothing else may be here.

Source: s3fs-fuse doc/man/s3fs.1, "x-amz-meta"; rclone docs, S3 "Modification times".
"""

from __future__ import annotations

import stat
from collections.abc import Mapping
from dataclasses import dataclass

_NANOSECONDS = 1_000_000_000
_NANOSECOND_DIGITS = 9
DEFAULT_FILE_MODE = stat.S_IFREG | 0o644
DEFAULT_DIRECTORY_MODE = stat.S_IFDIR | 0o755


@dataclass(frozen=True, slots=True)
class FileAttributes:
    """Attributes of a file, directory or symlink as the bucket keeps them.

    Attributes:
        mode: File type and permission bits, as in ``st_mode``.
        uid: Owner.
        gid: Group.
        mtime_ns: Last change of the bytes, nanoseconds since the epoch; may be negative.
    """

    mode: int
    uid: int
    gid: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class Provenance:
    """Who wrote an object, and what it holds.

    Attributes:
        sha256: 64 hexadecimal digits of the whole object; "" when another tool wrote it.
        write_id: Random name of the attempt that wrote it; "" when another tool wrote it.
        epoch: The owner's epoch; 0 before ownership exists.
        lineage: Stays while the object only grows; "" when another tool wrote it.
    """

    sha256: str = ""
    write_id: str = ""
    epoch: int = 0
    lineage: str = ""


def encode(attributes: FileAttributes, provenance: Provenance) -> dict[str, str]:
    """Give the user metadata of an object."""
    return {
        "mode": str(attributes.mode),
        "uid": str(attributes.uid),
        "gid": str(attributes.gid),
        "mtime": encode_time(attributes.mtime_ns),
        "sessionfs-sha256": provenance.sha256,
        "sessionfs-write": provenance.write_id,
        "sessionfs-epoch": str(provenance.epoch),
        "sessionfs-lineage": provenance.lineage,
    }


def decode_attributes(user: Mapping[str, str], *, modified_ns: int, is_directory: bool) -> FileAttributes:
    """Read attributes; what is missing or unreadable gets a default (other tools write objects too).

    Args:
        user: User metadata.
        modified_ns: The store's time, used when ``mtime`` is missing.
        is_directory: Whether the key is a directory marker; its type wins over ``mode``.
    """
    default = DEFAULT_DIRECTORY_MODE if is_directory else DEFAULT_FILE_MODE
    mode = _integer(user.get("mode"), default)
    if is_directory:
        mode = stat.S_IFDIR | stat.S_IMODE(mode)
    elif not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
        mode = stat.S_IFREG | stat.S_IMODE(mode)
    return FileAttributes(
        mode=mode,
        uid=_integer(user.get("uid"), 0),
        gid=_integer(user.get("gid"), 0),
        mtime_ns=decode_time(user.get("mtime", ""), modified_ns),
    )


def decode_provenance(user: Mapping[str, str]) -> Provenance:
    """Read provenance; all fields are empty for an object that another tool wrote."""
    sha256 = user.get("sessionfs-sha256", "")
    return Provenance(
        sha256=sha256 if len(sha256) == 64 else "",  # noqa: PLR2004 - hexadecimal digits of a sha256
        write_id=user.get("sessionfs-write", ""),
        epoch=_integer(user.get("sessionfs-epoch"), 0),
        lineage=user.get("sessionfs-lineage", ""),
    )


def encode_time(time_ns: int) -> str:
    """Give nanoseconds as decimal seconds with nine digits."""
    sign = "-" if time_ns < 0 else ""
    seconds, rest = divmod(abs(time_ns), _NANOSECONDS)
    return f"{sign}{seconds}.{rest:09d}"


def decode_time(text: str, default_ns: int) -> int:
    """Read decimal seconds; `default_ns` when the text is none."""
    sign = -1 if text.startswith("-") else 1
    seconds, _, fraction = text.lstrip("-").partition(".")
    if not (seconds.isascii() and seconds.isdigit()) or (
        fraction and not (fraction.isascii() and fraction.isdigit())
    ):
        return default_ns
    digits = fraction[:_NANOSECOND_DIGITS].ljust(_NANOSECOND_DIGITS, "0")
    return sign * (int(seconds) * _NANOSECONDS + int(digits))


def _integer(text: str | None, default: int) -> int:
    if text is None or not (text.isascii() and text.isdigit()) or len(text) > 10:  # noqa: PLR2004 - 32 bits
        return default
    return int(text)
