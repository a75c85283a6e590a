"""``sessionfs fork``."""

from __future__ import annotations

import click

from sessionfs.cli.bucket import (
    Bucket,
    no_wait_option,
    on_bucket,
    place_of,
    session_id_argument,
    steps,
    store_argument,
)
from sessionfs.cli.options import config_option
from sessionfs.cli.output import count_text, one_line, print_warning, size_text


@click.command()
@store_argument
@session_id_argument
@click.argument("new_id", metavar="NEWID")
@click.option(
    "--generation",
    type=click.IntRange(min=1),
    metavar="N",
    help="Which generation  [default: the newest one].",
)
@no_wait_option
@config_option
def fork(
    store: str, session: str, new_id: str, generation: int | None, no_wait: bool, config: str | None
) -> None:
    """Make a new session of a session's generation, by copies inside the store.

    The original goes on undisturbed; what it has not committed is not in the fork (`sessionfs snapshot DIR/ID` commits). Bytes pass this host
    only for logs of which the generation names the beginning.
    """
    from sessionfs.model.roots import named_unit  # noqa: PLC0415
    from sessionfs.replication.maintenance.command_ownership import command_ownership  # noqa: PLC0415
    from sessionfs.replication.maintenance.fork import Fork, Forked  # noqa: PLC0415

    identifier, new_identifier = named_unit(session), named_unit(new_id)
    with steps(f"forking {session}") as progress:

        async def copy(bucket: Bucket) -> Forked:
            settings = bucket.settings.replication
            async with command_ownership(
                bucket.store,
                settings,
                bucket.clock,
                host=bucket.host,
                on_wait=None if no_wait else print_warning,
            ) as owner:
                forking = Fork(bucket.store, owner, bucket.clock, settings)
                return await forking.fork(identifier, new_identifier, generation, progress=progress)

        done = on_bucket(place_of(store, config=config), copy, changes=True)
    what = f"{count_text(done.objects, 'path')}, {size_text(done.bytes)}, {size_text(done.sent_bytes)} sent"
    click.echo(one_line(f"{done.session} is generation {done.of_generation} of {done.of} ({what})"))
