"""``sessionfs release``."""

from __future__ import annotations

import click

from sessionfs.cli.options import connect, session_argument, session_of
from sessionfs.cli.output import one_line, waiting


@click.command()
@session_argument
def release(place: str) -> None:
    """Upload and commit a session, then give it up, so that another host may take it at once.

    Refused while something has a file of it open for writing. A later change in this mount claims it again.
    """
    mount_point, session = session_of(place)
    with connect(mount_point) as daemon, waiting(f"releasing {session}"):
        daemon.call("release", session=session)
    click.echo(one_line(f"{session} is released"))
