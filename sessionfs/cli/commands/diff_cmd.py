"""``sessionfs diff``."""

from __future__ import annotations

import click

from sessionfs.cli.bucket import Bucket, on_bucket, place_of, session_id_argument, store_argument
from sessionfs.cli.options import config_option, json_option
from sessionfs.cli.output import print_json, size_text

_SIGNS = {"added": "+", "removed": "-", "changed": "~"}
_COLOURS = {"added": "green", "removed": "red", "changed": "yellow"}


@click.command()
@store_argument
@session_id_argument
@click.argument("first", metavar="A", type=click.IntRange(min=0))
@click.argument("second", metavar="B", type=click.IntRange(min=0))
@config_option
@json_option
def diff(store: str, session: str, first: int, second: int, config: str | None, as_json: bool) -> None:
    """List the paths that differ between two generations of a session; no file is read.

    Generation 0 is nothing at all, so `diff STORE ID 0 N` lists what N has. Lines begin with + (added), - (removed) or ~ (changed, with what).
    """
    from sessionfs.model.names import display  # noqa: PLC0415
    from sessionfs.model.roots import named_unit  # noqa: PLC0415
    from sessionfs.replication.maintenance.differences import Difference, Differences  # noqa: PLC0415

    identifier = named_unit(session)

    async def compare(bucket: Bucket) -> list[Difference]:
        return await Differences(bucket.store).diff(identifier, first, second)

    found = on_bucket(place_of(store, config=config), compare)
    if as_json:
        print_json(
            [
                {
                    "path": display(one.path),
                    "kind": one.kind,
                    "what": list(one.what),
                    "before_bytes": one.before_bytes,
                    "after_bytes": one.after_bytes,
                }
                for one in found
            ]
        )
        return
    for one in found:
        sizes = f"{size_text(one.before_bytes)} -> {size_text(one.after_bytes)}"
        note = f"  ({', '.join(one.what)}; {sizes})" if one.what else ""
        line = f"{_SIGNS[one.kind]} {display(one.path) or '.'}{note}"
        click.secho(line, fg=_COLOURS[one.kind])
