"""``sessionfs restore``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from sessionfs.cli.bucket import (
    Bucket,
    Place,
    no_wait_option,
    on_bucket,
    place_of,
    release_here,
    session_id_argument,
    steps,
    store_argument,
)
from sessionfs.cli.options import config_option
from sessionfs.cli.output import count_text, one_line, print_warning, size_text
from sessionfs.model.roots import shown_id

if TYPE_CHECKING:
    from sessionfs.model.names import SessionId


@click.command()
@store_argument
@session_id_argument
@click.option(
    "--generation", type=click.IntRange(min=1), required=True, metavar="N", help="Which generation."
)
@click.option(
    "--to",
    "directory",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="A new directory for it  [default: ./ID-N].",
)
@click.option("--in-place", is_flag=True, help="Make it the session's newest generation instead.")
@no_wait_option
@config_option
def restore(
    store: str,
    session: str,
    generation: int,
    directory: str | None,
    in_place: bool,
    no_wait: bool,
    config: str | None,
) -> None:
    """Bring a past generation of a session back: to a directory of its own, or in place.

    To a directory: contents, modes, times, extended attributes and links, each file verified; it appears whole or not at all. In place: the
    session's files become those of that generation, as a new generation; what they replace stays in the generations before. A mount of this host that
    owns the session releases it first.
    """
    if in_place and directory is not None:
        raise click.UsageError("--to and --in-place exclude one another")
    from sessionfs.model.roots import named_unit  # noqa: PLC0415

    place, identifier = place_of(store, config=config), named_unit(session)
    if in_place:
        _in_place(place, identifier, generation, waits=not no_wait)
    else:
        target = os.path.abspath(os.path.expanduser(directory or f"{session.replace('/', '-')}-{generation}"))
        _aside(place, identifier, generation, target)


def _aside(place: Place, session: SessionId, generation: int, target: str) -> None:
    from sessionfs.replication.maintenance.restoration import Restoration, Restored  # noqa: PLC0415

    with steps(f"restoring {shown_id(session)}") as progress:

        async def bring(bucket: Bucket) -> Restored:
            restoration = Restoration(bucket.store, bucket.settings.replication)
            return await restoration.restore(session, generation, target, progress=progress)

        done = on_bucket(place, bring)
    what = f"{count_text(done.files, 'path')}, {size_text(done.bytes)}"
    click.echo(one_line(f"generation {done.generation} of {session} is in {done.directory} ({what})"))


def _in_place(place: Place, session: SessionId, generation: int, *, waits: bool) -> None:
    from sessionfs.replication.maintenance.command_ownership import command_ownership  # noqa: PLC0415
    from sessionfs.replication.maintenance.in_place import InPlaceRestoration, RestoredInPlace  # noqa: PLC0415

    release_here(place, session)
    with steps(f"restoring {shown_id(session)}") as progress:

        async def bring(bucket: Bucket) -> RestoredInPlace:
            settings = bucket.settings.replication
            async with command_ownership(
                bucket.store,
                settings,
                bucket.clock,
                host=bucket.host,
                on_wait=print_warning if waits else None,
            ) as owner:
                restoration = InPlaceRestoration(bucket.store, owner, bucket.clock, settings)
                return await restoration.restore(session, generation, progress=progress)

        done = on_bucket(place, bring, changes=True)
    what = f"{done.placed} written, {done.removed} removed, {done.kept} kept before, {size_text(done.sent_bytes)} sent"
    click.echo(
        one_line(
            f"{session} is at generation {done.generation}, which is generation {generation} again ({what})"
        )
    )
