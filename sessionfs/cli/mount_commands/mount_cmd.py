"""``sessionfs mount``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click
import msgspec

from sessionfs.cli.options import absolute, config_option
from sessionfs.cli.output import print_warning
from sessionfs.model.errors import SettingsError
from sessionfs.model.settings import NAMES, Settings

if TYPE_CHECKING:
    from sessionfs.daemon.mount_request import MountRequest

# Options of mount(8) that say nothing to a filesystem, or are this command's flags.
_IGNORED_OPTIONS = frozenset({"rw", "defaults"})
_FLAG_OPTIONS = {
    "ro": "read_only",
    "allow_other": "allow_other",
    "default_permissions": "default_permissions",
}


@click.command()
@click.argument("places", nargs=-1, required=True, metavar="[STORE] DIR")
@click.option("-f", "--foreground", is_flag=True, help="Stay in the foreground; Ctrl-C unmounts.")
@click.option("--read-only", is_flag=True, default=None, help="Refuse every change.")
@click.option(
    "--at",
    metavar="live|committed|GENERATION",
    help="What of a session is shown: with the newest uploaded bytes, as last committed, or a generation, read-only  "
    "[default: as the session says]",
)
@click.option(
    "--prefetch", is_flag=True, default=None, help="Fetch files in the background, small ones first."
)
@click.option("--eager", is_flag=True, default=None, help="Fetch a session whole before it is shown.")
@click.option("--allow-other", is_flag=True, default=None, help="Let other users see the mount.")
@click.option(
    "--fsync",
    type=click.Choice(["local", "bucket"]),
    help="Where fsync brings bytes before it returns  [default: local]",
)
@click.option(
    "--policy",
    type=click.Choice(["degrade", "strict"]),
    help="What a failed commit means for programs  [default: degrade]",
)
@click.option(
    "--single-host", is_flag=True, default=None, help="Accept a store that cannot refuse a second writer."
)
@click.option(
    "--session", "sessions", multiple=True, metavar="ID", help="Show only this session (repeatable)."
)
@click.option("-o", "options", multiple=True, metavar="OPTS", help="FUSE options, or settings as name=value.")
@config_option
def mount(
    places: tuple[str, ...],
    foreground: bool,
    sessions: tuple[str, ...],
    options: tuple[str, ...],
    config: str | None,
    **flags: Any,
) -> int:
    """Mount STORE on DIR and return when it answers.

    STORE is a URL (s3://BUCKET[/PREFIX]?endpoint=URL&region=R, gs://BUCKET[/PREFIX], file:///DIR), a directory, or a session-store.json.
    Without one it is a directory of your own, made at first use.
    """
    if len(places) > 2:  # noqa: PLR2004 - STORE and DIR
        raise click.UsageError(f"unexpected argument {places[2]!r}: at most STORE and DIR")
    store = places[0] if len(places) == 2 else None  # noqa: PLR2004
    from_options, fuse_options = split_options(",".join(options))
    given = {name: value for name, value in flags.items() if value is not None}
    if sessions:
        given["sessions"] = list(sessions)
    request = build_request(store, places[-1], {**from_options, **given}, fuse_options, config)
    return run_request(request, foreground=foreground)


def split_options(text: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Divide the options after ``-o`` into settings and options for FUSE.

    Args:
        text: Comma-separated.
    """
    settings: dict[str, Any] = {}
    others: list[str] = []
    for option in filter(None, text.split(",")):
        name, equals, value = option.partition("=")
        if name in _IGNORED_OPTIONS:
            continue
        if name in _FLAG_OPTIONS and not equals:
            settings[_FLAG_OPTIONS[name]] = True
        elif name in NAMES:
            settings[name] = value if equals else True
        else:
            others.append(option)
    return settings, tuple(others)


def build_request(
    store: str | None,
    directory: str,
    flags: dict[str, Any],
    fuse_options: tuple[str, ...],
    config: str | None,
) -> MountRequest:
    """Resolve settings, store and paths, and check what can be checked before a process starts.

    Raises:
        SessionFSError: Something is wrong; nothing was changed.
    """
    from sessionfs.cli.settings_sources import load_settings, store_url  # noqa: PLC0415
    from sessionfs.daemon.checks.environment import FuseEnvironment  # noqa: PLC0415
    from sessionfs.daemon.checks.requests import check_request  # noqa: PLC0415
    from sessionfs.daemon.mount_request import MountRequest, state_base  # noqa: PLC0415
    from sessionfs.stores.store_urls import store_id  # noqa: PLC0415

    settings = _read_only_in_the_past(load_settings(flags=flags, config=config))
    url = store_url(store, settings)
    request = MountRequest(
        store_url=url,
        mount_point=absolute(directory),
        state_root=os.path.join(state_base(settings.mount.state_dir, os.environ), store_id(url)),
        settings=settings,
        fuse_options=fuse_options,
    )
    for name in fuse_options:
        if name.startswith(("fsname", "subtype", "fd=")):
            raise SettingsError(f"option {name!r} is set by sessionfs itself")
    check_request(request, FuseEnvironment())
    return request


def _read_only_in_the_past(settings: Settings) -> Settings:
    """A generation never changes: a mount that shows one takes no changes."""
    if not settings.replication.at.isdigit():
        return settings
    filesystem = msgspec.structs.replace(settings.filesystem, read_only=True)
    return msgspec.structs.replace(settings, filesystem=filesystem)


def run_request(request: MountRequest, *, foreground: bool) -> int:
    """Mount, in this process or in the background.

    Returns:
        The exit code.
    """
    if not foreground:
        from sessionfs.daemon.background_start import start_in_background  # noqa: PLC0415

        for warning in start_in_background(request).warnings:
            print_warning(warning)
        click.echo(f"mounted {request.store_url} on {request.mount_point}")
        return 0
    from sessionfs.daemon.bootstrap import run_mount  # noqa: PLC0415
    from sessionfs.daemon.log_setup import configure_logs  # noqa: PLC0415

    configure_logs(request.settings.mount.log_level, process="daemon")
    # A process whose current directory is on its own mount would wait for itself.
    os.chdir("/")
    return run_mount(request, lambda _ready: None, on_state=lambda _layout: None)
