"""How results look: one-line errors, sizes and ages for people, JSON for programs, progress on a terminal only."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from sessionfs.model.errors import SessionFSError
from sessionfs.model.names import display
from sessionfs.model.roots import readable

if TYPE_CHECKING:
    from rich.console import Console

_STEP = 1024
_THREE_DIGITS = 1000
_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")


def print_error(error: SessionFSError) -> None:
    """Print one line on standard error."""
    click.echo(f"sessionfs: {one_line(str(error))}", err=True)


def print_warning(text: str) -> None:
    """Print one line on standard error that is no failure."""
    click.echo(f"sessionfs: warning: {one_line(text)}", err=True)


def print_json(body: Any) -> None:
    """Print one JSON document."""
    click.echo(json.dumps(body, indent=2, ensure_ascii=False))


def one_line(text: str) -> str:
    """Give a text without line breaks and control characters; ids of shared roots are as people write them."""
    return display(readable(" ".join(text.split())).encode("utf-8", "surrogateescape"))


def size_text(size_bytes: int) -> str:
    """Give a size as a person reads it, as ``1.5 MiB``: three digits."""
    if size_bytes < _STEP:
        return f"{size_bytes} B"
    value = size_bytes / _STEP
    for unit in _UNITS:
        if round(value) < _THREE_DIGITS or unit == _UNITS[-1]:
            return f"{value:.3g} {unit}"
        value /= _STEP
    return f"{size_bytes} B"


def age_text(seconds: float) -> str:
    """Give a duration as a person reads it, as ``3 min``."""
    for limit, divisor, unit in ((100, 1, "s"), (6000, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / divisor:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"


def count_text(number: int, noun: str) -> str:
    """Give a count with its noun, as ``1 file`` or ``2 files``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def console(*, to_stderr: bool = False) -> Console:
    """Give a rich console; without a terminal it is 100 columns of plain text."""
    from rich.console import Console  # noqa: PLC0415 - only when something is shown

    stream = sys.stderr if to_stderr else sys.stdout
    return Console(file=stream, highlight=False, soft_wrap=False, width=None if stream.isatty() else 100)


@contextmanager
def drain_progress(label: str) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Show a progress bar while files are brought away, on a terminal; say nothing anywhere else.

    Gives the function to call with each progress body of the control socket.
    """
    if not sys.stderr.isatty():
        yield lambda _body: None
        return
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn  # noqa: PLC0415

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(24),
        TextColumn("{task.fields[left]}"),
    )
    with Progress(*columns, console=console(to_stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None, left="")
        most = 0

        def show(body: dict[str, Any]) -> None:
            nonlocal most
            files, size = body["owed_files"], body["owed_bytes"]
            most = max(most, files)
            left = f"{count_text(files, 'file')}, {size_text(size)} to go"
            if body["degraded"]:
                left += f" [yellow]- {one_line(body['degraded'])[:60]}[/]"
            bar.update(task, total=most or None, completed=most - files, left=left)

        yield show


@contextmanager
def waiting(label: str) -> Iterator[None]:
    """Show that something goes on, on a terminal only."""
    if not sys.stderr.isatty():
        yield
        return
    with console(to_stderr=True).status(label):
        yield


@contextmanager
def counted(label: str, total: int) -> Iterator[Callable[[], None]]:
    """Show a progress bar over a known number of steps, on a terminal only; gives the function to call for each."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn  # noqa: PLC0415

    columns = (TextColumn("{task.description}"), BarColumn(24), MofNCompleteColumn())
    with Progress(*columns, console=console(to_stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda: bar.advance(task)


def print_left_behind(result: dict[str, Any]) -> None:
    """List on standard error what stayed behind."""
    files = result["owed_files"]
    what = (
        "something"
        if files < 0
        else f"{count_text(files, 'file')} ({size_text(max(0, result['owed_bytes']))})"
    )
    why = f": {one_line(result['degraded'])}" if result["degraded"] else ""
    click.echo(f"sessionfs: {what} stayed behind on this host{why} (the next mount uploads it)", err=True)
    for path in result["left"]:
        click.echo(f"  {path}", err=True)
    if files > len(result["left"]):
        click.echo(f"  ... and {files - len(result['left'])} more", err=True)
