"""Bytes that were kept aside: shown, or put into the file they were meant for.

They go into the file as an editor would write them: into a new file beside it, which is then renamed over it, through the mount. So the file
is always whole, and programs see it change.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from typing import Any, BinaryIO

from sessionfs.formats.object_metadata import FileAttributes, decode_attributes
from sessionfs.model.errors import InvalidRequestError
from sessionfs.model.keys import parse_conflict_key
from sessionfs.model.roots import mount_path
from sessionfs.stores.base import ObjectBody
from sessionfs.stores.open_store import open_store


def show(store_url: str, conflict: dict[str, Any], output: str | None) -> None:
    """Print what was kept, or write it into a file.

    Args:
        store_url: The store.
        conflict: As the daemon lists it.
        output: The file; None for standard output.

    Raises:
        SessionFSError: The store did not give it.
        OSError: The file cannot be written.
    """
    with _kept(store_url, conflict) as body:
        if output is None:
            _pour(body, sys.stdout.buffer)
            sys.stdout.buffer.flush()
        else:
            with open(output, "wb") as file:
                _pour(body, file)


def put_into_file(store_url: str, conflict: dict[str, Any], mount_point: str) -> None:
    """Let what was kept be the content of its file.

    Args:
        store_url: The store.
        conflict: As the daemon lists it.
        mount_point: Of the mount.

    Raises:
        InvalidRequestError: It is of no file that has a path.
        SessionFSError: The store did not give it.
        OSError: The file cannot be written.
    """
    kept = parse_conflict_key(conflict["key"])
    if kept is None or kept.path is None:
        raise InvalidRequestError(
            f"{conflict['key']} does not say which file it is of",
            remedy="--show prints it, --take ours ends it",
        )
    path = os.path.join(os.fsencode(mount_point), mount_path(kept.session).encode(), kept.path)
    with _kept(store_url, conflict) as body:
        user = body.stat.metadata.user if body.stat.metadata is not None else {}
        theirs = decode_attributes(user, modified_ns=body.stat.modified_ns, is_directory=False)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        fresh = os.path.join(os.path.dirname(path), b".theirs-%d" % os.getpid())
        try:
            _write(fresh, body, theirs, _status(path))
            os.rename(fresh, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(fresh)
            raise


@contextlib.contextmanager
def _kept(store_url: str, conflict: dict[str, Any]) -> Any:
    store = open_store(store_url)
    try:
        with store.get(conflict["key"], byte_range=None, expected=None) as body:
            yield body
    finally:
        store.close()


def _pour(body: ObjectBody, file: BinaryIO) -> None:
    file.writelines(body.chunks())


def _status(path: bytes) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except FileNotFoundError:
        return None


def _write(fresh: bytes, body: ObjectBody, theirs: FileAttributes, before: os.stat_result | None) -> None:
    """Make the new file: with the mode and owner of the one it replaces, else with those that were kept."""
    if stat.S_ISLNK(theirs.mode):
        os.symlink(body.read(), fresh)
        return
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        _pour(body, file)
        if before is not None and stat.S_ISREG(before.st_mode):
            with contextlib.suppress(PermissionError):
                os.fchown(file.fileno(), before.st_uid, before.st_gid)
            os.fchmod(file.fileno(), stat.S_IMODE(before.st_mode))
        else:
            os.fchmod(file.fileno(), stat.S_IMODE(theirs.mode))
