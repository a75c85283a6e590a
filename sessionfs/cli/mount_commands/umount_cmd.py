"""``sessionfs umount``."""

from __future__ import annotations

import click

from sessionfs.cli.exit_codes import DONE, INTERRUPTED, LEFT_BEHIND
from sessionfs.cli.options import connect, mount_argument, mount_point_of
from sessionfs.cli.output import drain_progress, print_left_behind

_END_SECONDS = 20.0


@click.command()
@mount_argument
@click.option(
    "--timeout", type=click.FloatRange(min=0), metavar="S", help="Unmount after S seconds, whatever is owed."
)
@click.option("--abandon", is_flag=True, help="Unmount at once; send nothing, release nothing.")
@click.option("--force", is_flag=True, help="Detach the mount even while something uses it.")
def umount(directory: str, timeout: float | None, abandon: bool, force: bool) -> int:
    """Commit and release the sessions of a mount, and unmount DIR once nothing is owed to the store.

    What stays behind (--timeout, --abandon) is listed, kept on this host, and uploaded by the next mount; the exit
    code is 4 then.
    """
    from sessionfs.daemon.checks.unmount import clear_stale  # noqa: PLC0415

    mount_point = mount_point_of(directory)
    if force and clear_stale(mount_point):
        click.echo(
            f"the daemon of {mount_point} had ended; what it owed is uploaded by the next mount", err=True
        )
        return DONE
    with connect(mount_point) as daemon:
        try:
            with drain_progress("uploading") as show:
                result = daemon.call("shutdown", progress=show, timeout=timeout, abandon=abandon, force=force)
        except KeyboardInterrupt:
            # Hanging up takes the request back.
            click.echo(f"sessionfs: interrupted; {mount_point} stays mounted", err=True)
            return INTERRUPTED
        daemon.wait_until_gone(seconds=_END_SECONDS)
    if result["owed_files"]:
        print_left_behind(result)
        return LEFT_BEHIND
    return DONE
