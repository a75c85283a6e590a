"""``sessionfs claim``."""

from __future__ import annotations

import click

from sessionfs.cli.options import connect, session_argument, session_of
from sessionfs.cli.output import one_line, print_warning, waiting


@click.command()
@session_argument
@click.option("--force", is_flag=True, help="Take over at once, although its owner may still live.")
def claim(place: str, force: bool) -> None:
    """Become the owner of a session, so that this host may change it.

    The first change claims a session by itself; this does it beforehand. A session of another host is refused with exit
    code 5 until that host released it, or its beat stood still for its whole lease.
    """
    mount_point, session = session_of(place)
    if force:
        print_warning(
            f"if the host that owns {session} still lives, its next commit is refused and its unsent files become conflicts"
        )
    with connect(mount_point) as daemon, waiting(f"claiming {session}"):
        daemon.call("claim", session=session, force=force)
    click.echo(one_line(f"{session} is owned by this host"))
