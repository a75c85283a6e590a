"""``sessionfs conflicts``."""

from __future__ import annotations

import click

from sessionfs.cli.options import connect, json_option, mount_argument, mount_point_of
from sessionfs.cli.output import console, print_json


@click.command()
@mount_argument
@json_option
def conflicts(directory: str, as_json: bool) -> None:
    """List bytes that were kept aside because two writers met.

    Nothing is thrown away: each line names the object in the store that holds the other bytes.
    """
    with connect(mount_point_of(directory)) as daemon:
        found = daemon.call("conflicts")["conflicts"]
    if as_json:
        print_json(found)
        return
    if not found:
        click.echo("no conflicts")
        return
    from rich.table import Table  # noqa: PLC0415 - rich only when something is drawn

    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("path", overflow="fold")
    table.add_column("written by", overflow="fold")
    table.add_column("kept at", no_wrap=True)
    table.add_column("object", overflow="fold")
    for conflict in found:
        table.add_row(
            f"{conflict['session']}/{conflict['path']}",
            conflict["holder"],
            conflict["kept_at"],
            conflict["key"],
        )
    console().print(table)
