"""``sessionfs log``."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

import click

from sessionfs.cli.bucket import Bucket, on_bucket, place_of, session_id_argument, store_argument
from sessionfs.cli.options import config_option

_WINDOW_BYTES = 64 << 10


@click.command()
@store_argument
@session_id_argument
@click.argument("path", metavar="PATH")
@click.option("--tail", type=click.IntRange(min=1), metavar="N", help="Only the last N lines.")
@click.option(
    "--before",
    type=click.IntRange(min=0),
    metavar="OFFSET",
    help="The lines before this offset of the file, 64 KiB of them; the offset to go on with is printed on standard error.",
)
@click.option("--all", "with_segments", is_flag=True, help="Its sealed segments first, the oldest first.")
@config_option
def log(
    store: str,
    session: str,
    path: str,
    tail: int | None,
    before: int | None,
    with_segments: bool,
    config: str | None,
) -> None:
    """Print a log of a session from the store: whole lines, those that were written twice only once.

    PATH is a file of lines of JSON, or a sealed segment (.jsonl.zst). A line that is still being written is not shown. A line whose "seq" is not
    above the last one of its file is a repetition.
    """
    if before is not None and (tail is not None or with_segments):
        raise click.UsageError("--before goes with neither --tail nor --all")
    from sessionfs.model.roots import named_unit  # noqa: PLC0415
    from sessionfs.replication.maintenance.log_reading import LogReader  # noqa: PLC0415

    identifier, wanted = named_unit(session), os.fsencode(path.strip("/"))

    async def read(bucket: Bucket) -> None:
        reader = LogReader(bucket.store)
        if before is not None:
            window = await reader.window(await reader.find(identifier, wanted), before, _WINDOW_BYTES)
            _print(window.lines)
            sys.stdout.flush()
            click.echo(f"--before {window.start}" if window.start else "this is the file's start", err=True)
            return
        if with_segments:
            found = await reader.segments(identifier, wanted)
        else:
            found = [await reader.find(identifier, wanted)]
        if tail is None:
            for one in found:
                async for line in reader.lines(one):
                    _print([line])
        else:
            _print(await reader.tail(found, tail))
        sys.stdout.flush()

    on_bucket(place_of(store, config=config), read)


def _print(lines: Iterable[bytes]) -> None:
    for line in lines:
        sys.stdout.buffer.write(line + b"\n")
