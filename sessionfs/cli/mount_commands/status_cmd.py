"""``sessionfs status``."""

from __future__ import annotations

import time
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from sessionfs.cli.exit_codes import DONE, LEFT_BEHIND
from sessionfs.cli.options import DIRECTORY, connect, json_option, mount_point_of
from sessionfs.cli.output import (
    age_text,
    console,
    count_text,
    drain_progress,
    one_line,
    print_json,
    print_left_behind,
    size_text,
)
from sessionfs.model.clock import SystemClock

if TYPE_CHECKING:
    from rich.console import Group

    from sessionfs.daemon.control.client import ControlClient

MOUNT_KEYS = (
    "mount",
    "store",
    "engine",
    "supervisor_pid",
    "daemon_pid",
    "replication_pid",
    "policy",
    "degraded",
    "sessions",
)
_WATCH_SECONDS = 0.5


@click.command()
@click.argument("directory", metavar="[DIR]", type=DIRECTORY, required=False)
@click.option("--wait", is_flag=True, help="Return when nothing is owed to the store.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    metavar="S",
    help="With --wait: at most S seconds; exit 4 then.",
)
@click.option("--watch", is_flag=True, help="Show it live until Ctrl-C.")
@json_option
def status(directory: str | None, wait: bool, timeout: float | None, watch: bool, as_json: bool) -> int:
    """Show the sessions of a mount and what is owed to the store.

    Without DIR: the mount of the current directory, or the only one there is.
    """
    mount_point = mount_point_of(directory)
    with connect(mount_point) as daemon:
        if wait:
            with drain_progress("waiting") as show:
                result = daemon.call("drain", progress=show, timeout=timeout)
            if result["owed_files"]:
                print_left_behind(result)
                return LEFT_BEHIND
            if not as_json and not watch:
                return DONE
        if watch:
            _watch(daemon, as_json=as_json)
        elif as_json:
            print_json(documented(daemon.call("status")))
        else:
            console().print(picture(daemon.call("status")))
    return DONE


def documented(body: dict[str, Any]) -> dict[str, Any]:
    """Give the part of a status whose names are kept."""
    return {key: body[key] for key in MOUNT_KEYS}


def picture(body: dict[str, Any]) -> Group:
    """Draw a status for a person."""
    from rich.console import Group  # noqa: PLC0415 - rich only when something is drawn
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    lines = [Text.assemble((body["mount"], "bold"), "  ", body["store"], overflow="fold")]
    if body["degraded"]:
        lines.append(Text(f"degraded: {one_line(body['degraded'])}", style="yellow"))
    if body.get("held"):
        lines.append(Text(f"held: {one_line(body['held'])}", style="yellow"))
    if not body["sessions"]:
        return Group(*lines, Text(f"no sessions yet: mkdir {body['mount']}/ID makes one", style="dim"))
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("session", overflow="fold", min_width=12)
    for name in ("state", "owner"):
        table.add_column(name, no_wrap=True)
    for name in ("owed", "oldest", "generation"):
        table.add_column(name, justify="right", no_wrap=True)
    with_conflicts = any(session["conflicts"] for session in body["sessions"])
    if with_conflicts:
        table.add_column("conflicts", justify="right", style="yellow")
    problems = []
    for session in body["sessions"]:
        if session.get("commit_problem"):
            problems.append(f"{session['id']} is not committed: {one_line(session['commit_problem'])}")
        cells = _cells(session)
        table.add_row(*cells, *([str(session["conflicts"] or "")] if with_conflicts else []))
    return Group(*lines, *(Text(problem, style="yellow") for problem in problems), table)


def _cells(session: dict[str, Any]) -> list[str]:
    owed = session["owed_files"]
    generation = str(session["generation"] or "-")
    if session["committed_at"]:
        generation += f" ({_ago(session['committed_at'])})"
    return [
        session["id"],
        session["state"],
        "here" if session["owned_here"] else session["owner"] or "-",
        f"{count_text(owed, 'file')}, {size_text(session['owed_bytes'])}" if owed else "-",
        age_text(session["oldest_owed_seconds"]) if owed else "-",
        generation,
    ]


def _ago(moment: str) -> str:
    try:
        then_seconds = datetime.fromisoformat(moment).timestamp()
    except ValueError:
        return moment
    return f"{age_text(max(0.0, SystemClock().wall_ns() / 1e9 - then_seconds))} ago"


def _watch(daemon: ControlClient, *, as_json: bool) -> None:
    screen = console()
    try:
        if as_json or not screen.is_terminal:
            while True:
                body = daemon.call("status")
                if as_json:
                    print_json(documented(body))
                else:
                    screen.print(picture(body))
                time.sleep(_WATCH_SECONDS)
        from rich.live import Live  # noqa: PLC0415

        with Live(picture(daemon.call("status")), console=screen, auto_refresh=False) as live:
            while True:
                time.sleep(_WATCH_SECONDS)
                live.update(picture(daemon.call("status")), refresh=True)
    except KeyboardInterrupt:
        return
