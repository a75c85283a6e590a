"""Options and arguments that commands share."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from sessionfs.model.errors import InvalidRequestError, MountError
from sessionfs.model.roots import MOUNT_DIRECTORY, of_mount_path, shown_id

if TYPE_CHECKING:
    from sessionfs.daemon.control.client import ControlClient

Command = TypeVar("Command", bound=Callable[..., Any])


class _Place(click.Path):
    """A path that is completed by the shell and looked at by nobody: a dead mount is named here too."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Take it as it is."""
        del param, ctx
        return value


DIRECTORY = _Place(file_okay=False)


def json_option(command: Command) -> Command:
    """``--json``: the result as JSON."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")(command)


def config_option(command: Command) -> Command:
    """``--config``: the settings file."""
    return click.option(
        "--config",
        type=click.Path(dir_okay=False),
        metavar="FILE",
        help="Settings file  [default: $SESSIONFS_CONFIG, ~/.config/sessionfs/sessionfs.toml]",
    )(command)


def mount_argument(command: Command) -> Command:
    """``DIR``: a mount, or anything inside one."""
    return click.argument("directory", metavar="DIR", type=DIRECTORY)(command)


def absolute(directory: str) -> str:
    """Give a directory's absolute path with symlinks resolved, without touching what is mounted there."""
    parent, name = os.path.split(os.path.abspath(directory))
    if not name:
        return parent
    base = os.path.realpath(parent)
    path = os.path.join(base, name)
    # Only a symlink is followed further; looking at a dead mount would fail, and at a stuck one hang.
    try:
        return os.path.realpath(path) if os.path.islink(path) else path
    except OSError:
        return path


def mount_point_of(directory: str | None) -> str:
    """Give the mount point that a command is about.

    Args:
        directory: A mount or anything in it; None for the only mount there is, or the one of the current directory.

    Raises:
        MountError: There is none, or none can be chosen.
    """
    from sessionfs.daemon.checks.mount_points import mount_of, our_mounts  # noqa: PLC0415

    if directory is not None:
        path = absolute(directory)
        found = mount_of(path)
        if found is None:
            raise MountError(
                f"{path} is in no sessionfs mount", remedy="sessionfs mount [STORE] DIR makes one"
            )
        return found.mount_point
    here = mount_of(os.environ.get("PWD", "/"))
    if here is not None:
        return here.mount_point
    mounts = sorted({entry.mount_point for entry in our_mounts()})
    if len(mounts) == 1:
        return mounts[0]
    if not mounts:
        raise MountError("nothing is mounted", remedy="sessionfs mount [STORE] DIR")
    raise MountError(f"{len(mounts)} sessionfs mounts: {', '.join(mounts)}", remedy="name one")


def session_argument(command: Command) -> Command:
    """``DIR/ID``: a session in a mount (a shared root: ``DIR/.sessionfs/eval/RUN``), or anything inside it."""
    return click.argument("place", metavar="DIR/ID", type=DIRECTORY)(command)


def session_of(place: str) -> tuple[str, str]:
    """Give the mount point and the id, as people write it, of the session or shared root that a path is in.

    Args:
        place: A session's directory in a mount, or anything in it.

    Raises:
        MountError: It is in no mount.
        InvalidRequestError: It is a mount itself, or a directory above shared roots.
    """
    from sessionfs.daemon.checks.mount_points import mount_of  # noqa: PLC0415

    path = absolute(place)
    found = mount_of(path)
    if found is None:
        raise MountError(f"{path} is in no sessionfs mount", remedy="name a session: MOUNT/ID")
    inside = path[len(found.mount_point.rstrip("/")) :].strip("/")
    if not inside:
        raise InvalidRequestError(f"{path} is a mount, not a session", remedy=f"name one: {path}/ID")
    unit = of_mount_path(inside)
    first = inside.partition("/")[0]
    if unit is None and first == MOUNT_DIRECTORY:
        raise InvalidRequestError(
            f"{path} is no shared root",
            remedy=f"name one: {found.mount_point}/{MOUNT_DIRECTORY}/eval/RUN, .../plugins/PLUGIN, "
            ".../agents/AGENT/plugins/PLUGIN",
        )
    return found.mount_point, shown_id(unit) if unit is not None else first


def connect(mount_point: str) -> ControlClient:
    """Connect to the daemon of a mount.

    Raises:
        MountError: It is dead, stuck, or belongs to another user.
    """
    from sessionfs.daemon.checks.mount_points import control_socket_of  # noqa: PLC0415
    from sessionfs.daemon.control.client import ControlClient  # noqa: PLC0415

    return ControlClient(control_socket_of(mount_point), mount_point=mount_point)
