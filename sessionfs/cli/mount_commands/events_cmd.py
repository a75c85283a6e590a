"""``sessionfs events``."""

from __future__ import annotations

import json
import sys

import click

from sessionfs.cli.options import connect, json_option, mount_argument, mount_point_of
from sessionfs.cli.output import one_line


@click.command()
@mount_argument
@click.option("--follow", is_flag=True, help="Go on with events as they happen.")
@click.option(
    "--after",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Only events after number N  [default: 0]",
)
@click.option(
    "--limit",
    type=click.IntRange(min=1, max=100_000),
    default=1000,
    metavar="N",
    help="At most N events at once  [default: 1000]",
)
@json_option
def events(directory: str, follow: bool, after: int, limit: int, as_json: bool) -> None:
    """Print what has happened in a mount, oldest first.

    On a terminal as text, else (or with --json) one JSON object a line. Numbers go on across restarts: --after with
    the last number seen misses nothing.
    """
    as_json = as_json or not sys.stdout.isatty()
    with connect(mount_point_of(directory)) as daemon:
        try:
            for raw in daemon.events(after=after, limit=limit, follow=follow):
                click.echo(raw if as_json else _line(raw))
        except KeyboardInterrupt:
            return


def _line(raw: bytes) -> str:
    event = json.loads(raw)
    fields = " ".join(f"{name}={value}" for name, value in event["fields"].items())
    return one_line(f"{event['number']:>6} {event['at']} {event['name']} {fields}")
