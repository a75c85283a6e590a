"""``sessionfs bench``."""

from __future__ import annotations

import os
import platform
import tempfile
from typing import TYPE_CHECKING, Any

import click

from sessionfs.cli.options import json_option
from sessionfs.cli.output import console, print_json, waiting
from sessionfs.model.errors import InvalidRequestError

if TYPE_CHECKING:
    from sessionfs.bench.contest import Count, Figure


@click.command()
@click.argument("place", metavar="[DIR|STORE]", required=False)
@click.option(
    "--rounds", type=click.IntRange(1, 1000), default=5, show_default=True, help="Rounds of each contest."
)
@json_option
def bench(place: str | None, rounds: int, as_json: bool) -> None:
    """Measure the doors for programs beside what a program would do without them.

    In a directory (a temporary one without an argument): EventLog against write and fsync, and what an Archive sends. In an
    s3:// store: SessionStore against boto3. Ratios are of one run, in turns; 1 is as fast as the bare program. The files are
    removed again.
    """
    if place is not None and "://" in place and not place.startswith("s3://"):
        raise InvalidRequestError(
            f"nothing is measured on {place.partition(':')[0]}:// stores",
            remedy="name s3://BUCKET, or a directory",
        )
    with waiting("measuring"):
        figures, counts = _measured(place, rounds)
    machine = {"cpus": os.cpu_count() or 1, "load": os.getloadavg()[0], "kernel": platform.release()}
    if as_json:
        shown: list[dict[str, Any]] = [
            {
                "name": one.name, "what": one.sentence, "ours_seconds": one.ours_seconds, "bare_seconds": one.bare_seconds,
                "ratio": one.ratio, "target": one.target, "reached": one.is_reached, "rounds": one.rounds,
            }
            for one in figures
        ]  # fmt: skip
        shown += [
            {
                "name": one.name,
                "what": one.sentence,
                "counts": one.counts,
                "expected": one.expected,
                "reached": one.is_reached,
            }
            for one in counts
        ]
        print_json({"machine": machine, "figures": shown})
        return
    _print(figures, counts)
    click.echo(f"{machine['cpus']} processors, load {machine['load']:.1f}, Linux {machine['kernel']}")


def _measured(place: str | None, rounds: int) -> tuple[list[Figure], list[Count]]:
    import trio  # noqa: PLC0415

    from sessionfs.bench import doors  # noqa: PLC0415
    from sessionfs.bench.contest import measure  # noqa: PLC0415
    from sessionfs.model.clock import SystemClock  # noqa: PLC0415

    clock = SystemClock()

    async def on_store(url: str) -> tuple[list[Figure], list[Count]]:
        async with doors.session_store_requests(url, clock) as contests:
            return [await measure(contest, rounds) for contest in contests], []

    async def on_directory(directory: str) -> tuple[list[Figure], list[Count]]:
        async with doors.event_log_appends(directory, clock) as contest:
            figures = [await measure(contest, rounds)]
        return figures, [await doors.archive_growth(directory, clock)]

    if place is not None and place.startswith("s3://"):
        return trio.run(on_store, place)
    if place is not None:
        return trio.run(on_directory, place)
    with tempfile.TemporaryDirectory(prefix="sessionfs-bench-") as directory:
        return trio.run(on_directory, directory)


def _print(figures: list[Figure], counts: list[Count]) -> None:
    from rich.table import Table  # noqa: PLC0415 - rich only when something is drawn

    if figures:
        table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
        for title in ("contest", "ours", "bare", "ratio", "target"):
            table.add_column(title, justify="left" if title == "contest" else "right", no_wrap=True)
        for one in figures:
            colour = "green" if one.is_reached else "yellow"
            table.add_row(
                one.name, _time(one.ours_seconds), _time(one.bare_seconds),
                f"[{colour}]{one.ratio:.2f}[/{colour}]", f"{one.target:.2f}",
            )  # fmt: skip
        console().print(table)
    for count in counts:
        shown = ", ".join(f"{number} {kind}" for kind, number in sorted(count.counts.items()))
        click.echo(
            f"{count.name}: {shown} ({'as it is to be' if count.is_reached else 'not as it is to be'})"
        )


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} us"  # noqa: PLR2004
