"""``sessionfs retry``."""

from __future__ import annotations

import click

from sessionfs.cli.options import connect, mount_argument, mount_point_of


@click.command()
@mount_argument
def retry(directory: str) -> None:
    """Try again now: uploads that wait or are stuck, and deletions that are held."""
    with connect(mount_point_of(directory)) as daemon:
        daemon.call("retry")
