"""Whether a mount can be tried at all; imported by the command line, so it must be quick to import."""

from __future__ import annotations

import re

from sessionfs.daemon.checks.environment import FuseEnvironment
from sessionfs.daemon.checks.mount_points import check_apart, check_free
from sessionfs.daemon.mount_request import MountRequest
from sessionfs.model.errors import SettingsError
from sessionfs.stores.open_store import known_schemes, open_store
from sessionfs.stores.store_urls import parse_file_url, scheme_of


def check_request(request: MountRequest, environment: FuseEnvironment) -> None:
    """Check what can be known without starting or changing anything.

    Raises:
        MountError: FUSE or the mount point is not usable.
        StoreUrlError: The URL names no store.
        SettingsError: A setting that only its reader can judge.
    """
    scheme = scheme_of(request.store_url)
    # Looking for installed packages takes a while: only a scheme that is none of ours is worth it.
    if scheme not in {"file", "s3"} and scheme not in known_schemes():
        open_store(request.store_url)  # raises, naming the nearest scheme
    check_pattern(request.settings.filesystem.turn_pattern)
    environment.check_device()
    environment.check_fusermount()
    if request.settings.filesystem.allow_other:
        environment.check_allow_other()
    check_free(request.mount_point, request.store_url)
    check_apart(request.mount_point, named="the state directory", directory=request.state_root)
    if scheme == "file":
        store = parse_file_url(request.store_url)
        check_apart(request.mount_point, named="the store", directory=store)


def check_pattern(pattern: str) -> None:
    """Require a regular expression for lines that end a turn.

    Raises:
        SettingsError: It is none.
    """
    try:
        re.compile(pattern.encode())
    except re.error as problem:
        raise SettingsError(
            f"turn_pattern {pattern!r} is no regular expression: {problem}",
            remedy="see docs/CONFIGURATION.md",
        ) from None
