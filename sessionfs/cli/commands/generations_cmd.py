"""``sessionfs generations``."""

from __future__ import annotations

from typing import Any

import click

from sessionfs.cli.bucket import Bucket, on_bucket, place_of, session_id_argument, store_argument
from sessionfs.cli.options import config_option, json_option
from sessionfs.cli.output import console, one_line, print_json, size_text


@click.command()
@store_argument
@session_id_argument
@config_option
@json_option
def generations(store: str, session: str, config: str | None, as_json: bool) -> None:
    """List the generations of a session: each is one commit, and can be restored or forked.

    STORE is a URL, a directory, or a mount. A generation on its way out is gone a day after `sessionfs gc` retired it.
    """
    from sessionfs.model.roots import named_unit  # noqa: PLC0415
    from sessionfs.replication.hydration.manifest_chain import ManifestChain  # noqa: PLC0415

    identifier = named_unit(session)

    async def read(bucket: Bucket) -> list[dict[str, Any]]:
        found = await ManifestChain(bucket.store).generations(identifier)
        return [_row(one.number, one.state, one.manifest) for one in found]

    rows = on_bucket(place_of(store, config=config), read)
    if as_json:
        print_json(rows)
        return
    if not rows:
        click.echo(one_line(f"session {session} has no generation yet"))
        return
    from rich.table import Table  # noqa: PLC0415 - rich only when something is drawn

    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name in ("generation", "files", "size"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("committed", "trigger", "state"):
        table.add_column(name, no_wrap=True)
    for row in rows:
        state = "removed" if row["removed"] else row["state"]
        created = row["created_at"].replace("T", " ")[:19] + " UTC" if row["created_at"] else "-"
        cells = (
            str(row["generation"]),
            str(row["files"]),
            size_text(row["size_bytes"]),
            created,
            row["trigger"],
            state,
        )
        table.add_row(*cells)
    console().print(table)


def _row(number: int, state: str, manifest: Any) -> dict[str, Any]:
    """Give a generation as in ``generations --json``."""
    entries = manifest.entries if manifest is not None else ()
    return {
        "generation": number,
        "state": state,
        "created_at": manifest.created_at if manifest is not None else "",
        "trigger": manifest.trigger if manifest is not None else "",
        "previous": manifest.previous if manifest is not None else 0,
        "removed": manifest is not None and manifest.removed,
        "files": sum(entry.type != "directory" for entry in entries),
        "size_bytes": sum(entry.size_bytes for entry in entries),
    }
