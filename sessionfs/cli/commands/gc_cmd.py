"""``sessionfs gc``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from sessionfs.cli.bucket import (
    Bucket,
    Place,
    no_wait_option,
    on_bucket,
    place_of,
    release_here,
    steps,
    store_argument,
)
from sessionfs.cli.exit_codes import DONE, exit_code_of
from sessionfs.cli.options import config_option, json_option
from sessionfs.cli.output import console, print_error, print_json, print_warning, size_text
from sessionfs.model.errors import SessionFSError
from sessionfs.model.roots import shown_id

if TYPE_CHECKING:
    from sessionfs.model.names import SessionId
    from sessionfs.replication.maintenance.collecting.garbage_plan import GarbagePlan

_CHANGES = ("retired", "removed_objects", "removed_generations", "aborted_uploads")


@click.command()
@store_argument
@click.argument("session", metavar="[ID]", required=False)
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@no_wait_option
@config_option
@json_option
def gc(
    store: str, session: str | None, dry_run: bool, no_wait: bool, config: str | None, as_json: bool
) -> int:
    """Retire generations beyond the setting keep_generations, and remove what no generation names any more.

    A retired generation can still be restored for a day; then it and the bytes that only it named are gone. Live files are never touched. Without ID:
    every session of the store. A mount of this host that owns a session releases it first; one that another host owns is left out, with exit code 5.
    """
    from sessionfs.model.roots import named_unit  # noqa: PLC0415

    place = place_of(store, config=config)
    sessions = [named_unit(session)] if session is not None else on_bucket(place, _sessions)
    rows: list[dict[str, Any]] = []
    code = DONE
    with steps("collecting") as progress:
        for done, identifier in enumerate(sessions, 1):
            try:
                if not dry_run:
                    release_here(place, identifier)
                rows.append(
                    _run(place, identifier, dry_run=dry_run, waits=session is not None and not no_wait)
                )
            except SessionFSError as problem:
                if session is not None:
                    raise
                print_error(problem)
                code = code or exit_code_of(problem)
            progress(done, len(sessions))
    if as_json:
        print_json(rows)
    else:
        _print(rows, dry_run=dry_run)
    return code


async def _sessions(bucket: Bucket) -> list[SessionId]:
    from sessionfs.replication.maintenance.verifying.verification import Verification  # noqa: PLC0415

    return await Verification(bucket.store, bucket.clock, bucket.settings.replication).sessions()


def _run(place: Place, session: SessionId, *, dry_run: bool, waits: bool) -> dict[str, Any]:
    from sessionfs.replication.maintenance.collecting.garbage import Garbage  # noqa: PLC0415
    from sessionfs.replication.maintenance.command_ownership import command_ownership  # noqa: PLC0415

    # Among many sessions none is waited for.
    on_wait = print_warning if waits else None

    async def collect(bucket: Bucket) -> dict[str, Any]:
        settings = bucket.settings.replication
        async with command_ownership(
            bucket.store, settings, bucket.clock, host=bucket.host, on_wait=on_wait
        ) as owner:
            garbage = Garbage(bucket.store, owner, bucket.clock, settings)
            if dry_run:
                return _row(await garbage.plan(session))
            return _row((await garbage.collect(session)).plan)

    return on_bucket(place, collect, changes=not dry_run)


def _row(plan: GarbagePlan) -> dict[str, Any]:
    """Give a session as in ``gc --json``."""
    return {
        "session": shown_id(plan.session),
        "retired": [number for number, _ in plan.to_retire],
        "removed_generations": [number for number, _ in plan.to_expire],
        "removed_objects": [found.key for found in plan.to_remove],
        "removed_bytes": plan.bytes,
        "too_young": [found.key for found in plan.young],
        "aborted_uploads": [upload.key for upload in plan.to_abort],
    }


def _print(rows: list[dict[str, Any]], *, dry_run: bool) -> None:
    busy = [row for row in rows if any(row[name] for name in _CHANGES)]
    if not busy:
        click.echo("nothing to collect")
        return
    from rich.table import Table  # noqa: PLC0415 - rich only when something is drawn

    verb = "would " if dry_run else ""
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("session", overflow="fold")
    for name in (f"{verb}retire", f"{verb}remove", "objects", "size", "uploads"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in busy:
        table.add_row(
            row["session"],
            _numbers(row["retired"]),
            _numbers(row["removed_generations"]),
            str(len(row["removed_objects"])),
            size_text(row["removed_bytes"]),
            str(len(row["aborted_uploads"])),
        )
    console().print(table)


def _numbers(found: list[int]) -> str:
    if not found:
        return "-"
    return str(found[0]) if len(found) == 1 else f"{found[0]}..{found[-1]}"
