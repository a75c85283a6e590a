"""``sessionfs conflicts``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from sessionfs.cli.mount_commands import conflict_ending
from sessionfs.cli.options import absolute, connect, json_option, mount_argument, mount_point_of
from sessionfs.cli.output import console, one_line, print_json
from sessionfs.model.errors import InvalidRequestError, NotFoundError
from sessionfs.model.roots import MOUNT_DIRECTORY

if TYPE_CHECKING:
    from sessionfs.daemon.control.client import ControlClient


@click.command()
@mount_argument
@click.option("--show", metavar="OBJECT|PATH", help="Print the bytes that were kept aside.")
@click.option("--output", type=click.Path(dir_okay=False), metavar="FILE", help="With --show: into FILE.")
@click.option(
    "--take",
    nargs=2,
    type=(click.Choice(["theirs", "ours"]), str),
    metavar="theirs|ours OBJECT|PATH",
    help="End a conflict: put the bytes kept aside into the file, or keep the file.",
)
@json_option
def conflicts(
    directory: str, show: str | None, output: str | None, take: tuple[str, str] | None, as_json: bool
) -> None:
    """List, show and end conflicts: bytes that were kept aside because two writers met.

    Nothing is thrown away: each line names the object in the store that holds the other bytes. Ending a conflict takes
    it off the list; the object stays. A conflict is named by its object, or by its path (MOUNT/ID/path, or ID/path).
    """
    if output is not None and show is None:
        raise click.UsageError("--output needs --show")
    if (show is not None) + (take is not None) + as_json > 1:
        raise click.UsageError("--show, --take and --json exclude one another")
    mount_point = mount_point_of(directory)
    with connect(mount_point) as daemon:
        found = daemon.call("conflicts")["conflicts"]
        if show is not None:
            conflict_ending.show(_store(daemon), _named(found, show, mount_point), output)
        elif take is not None:
            _take(daemon, mount_point, take[0], _named(found, take[1], mount_point))
        elif as_json:
            print_json(found)
        else:
            _print(found)


def _store(daemon: ControlClient) -> str:
    return str(daemon.call("status")["store"])


def _take(daemon: ControlClient, mount_point: str, take: str, conflict: dict[str, Any]) -> None:
    if take == "theirs":
        conflict_ending.put_into_file(_store(daemon), conflict, mount_point)
    daemon.call("resolve", key=conflict["key"], take=take)
    click.echo(one_line(f"{_path(conflict)}: {take} it is; {conflict['key']} stays in the store"))


def _named(found: list[dict[str, Any]], name: str, mount_point: str) -> dict[str, Any]:
    """Give the conflict that a person names by its object or its path."""
    inside = absolute(name).removeprefix(mount_point.rstrip("/") + "/").removeprefix(f"{MOUNT_DIRECTORY}/")
    matching = [one for one in found if one["key"] == name or _path(one) in {name, inside}]
    if not matching:
        raise NotFoundError(
            f"no conflict has the object or path {name}", remedy="see: sessionfs conflicts DIR"
        )
    if len(matching) > 1:
        objects = ", ".join(one["key"] for one in matching)
        raise InvalidRequestError(
            f"{len(matching)} conflicts are about {name}", remedy=f"name one object: {objects}"
        )
    return matching[0]


def _path(conflict: dict[str, Any]) -> str:
    return f"{conflict['session']}/{conflict['path']}"


def _print(found: list[dict[str, Any]]) -> None:
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
        table.add_row(_path(conflict), conflict["holder"], conflict["kept_at"], conflict["key"])
    console().print(table)
