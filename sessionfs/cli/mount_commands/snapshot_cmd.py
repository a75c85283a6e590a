"""``sessionfs snapshot``."""

from __future__ import annotations

from typing import Any

import click

from sessionfs.cli.options import connect, json_option, session_argument, session_of
from sessionfs.cli.output import count_text, one_line, print_json, print_warning, size_text, waiting

JSON_KEYS = (
    "session",
    "generation",
    "manifest_key",
    "manifest_sha256",
    "trigger",
    "turn",
    "completed_at",
    "objects",
    "bytes",
    "objects_uploaded",
    "objects_skipped",
    "bytes_uploaded",
    "duration_seconds",
    "barrier_seconds",
    "requests",
)
_SHOWN_PATHS = 5


@click.command()
@session_argument
@json_option
def snapshot(place: str, as_json: bool) -> None:
    """Commit a session now and print its generation.

    DIR/ID is the session's directory in a mount, or anything inside it. With --json: the commit marker's fields, and
    how long it took, how long programs had to wait, and how many requests were sent.
    """
    mount_point, session = session_of(place)
    with connect(mount_point) as daemon, waiting(f"committing {session}"):
        result = daemon.call("snapshot", session=session)
    if as_json:
        print_json({key: result[key] for key in JSON_KEYS})
        return
    if result["moving"]:
        shown = ", ".join(result["moving"][:_SHOWN_PATHS])
        print_warning(f"programs changed these without a pause: {shown}")
    click.echo(one_line(_sentence(result)))


def _sentence(result: dict[str, Any]) -> str:
    head = f"{result['session']}: generation {result['generation']}"
    if result["is_unchanged"]:
        return f"{head}, nothing had changed"
    return (
        f"{head}, {count_text(result['objects'], 'object')}, {size_text(result['bytes'])}; "
        f"sent {count_text(result['objects_uploaded'], 'object')}, {size_text(result['bytes_uploaded'])} in "
        f"{count_text(result['requests'], 'request')}, {result['duration_seconds']:.2f} s, "
        f"programs waited {result['barrier_seconds'] * 1000:.1f} ms"
    )
