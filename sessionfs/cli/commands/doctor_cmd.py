"""``sessionfs doctor``."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import click

from sessionfs.cli.exit_codes import DONE, FAILED, STORE
from sessionfs.cli.options import config_option, json_option
from sessionfs.cli.output import console, counted, print_json, size_text
from sessionfs.daemon.checks.environment import FuseEnvironment
from sessionfs.model.errors import MountError, SessionFSError

if TYPE_CHECKING:
    from sessionfs.model.clock import Clock
    from sessionfs.stores.base import ObjectStore

_PASSTHROUGH_KERNEL = (6, 9)
_LOW_SPACE_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at.

    Attributes:
        name: The thing.
        state: ``ok``; ``note``: works, with less; ``bad``: sessionfs cannot work.
        detail: What was found.
        remedy: What to do, "" when nothing.
    """

    name: str
    state: Literal["ok", "note", "bad"]
    detail: str
    remedy: str = ""


@click.command()
@click.argument("store", metavar="[STORE]", required=False)
@click.option(
    "--contract", is_flag=True, help="Run every promise of a store on STORE (scratch keys below probe/)."
)
@click.option("--single-host", is_flag=True, help="Accept a store that cannot refuse a second writer.")
@config_option
@json_option
def doctor(store: str | None, contract: bool, single_host: bool, config: str | None, as_json: bool) -> int:
    """Check this machine, and what STORE can do; each finding says what to do about it."""
    if contract and store is None:
        raise click.UsageError("--contract needs a STORE")
    environment = list(environment_findings(config))
    report: dict[str, Any] = {"environment": [asdict(finding) for finding in environment]}
    code = FAILED if any(finding.state == "bad" for finding in environment) else DONE
    problem: SessionFSError | None = None
    if store is not None:
        try:
            report["store"] = store_report(store, config, contract=contract, single_host=single_host)
        except SessionFSError as error:
            problem = error
            report["store"] = {
                "error": {"kind": type(error).__name__, "message": error.message, "remedy": error.remedy}
            }
    if as_json:
        print_json(report)
    else:
        _print(report)
    if problem is not None:
        raise problem
    if any(promise["problem"] for promise in report.get("store", {}).get("promises", ())):
        return STORE
    return code


def environment_findings(config: str | None) -> Iterator[Finding]:
    """Look at this machine; changes nothing."""
    yield Finding("python", "ok", f"{platform.python_version()} ({sys.executable})")
    yield _kernel()
    fuse = FuseEnvironment()
    yield _checked(fuse.device, "can be opened", fuse.check_device)
    yield _fusermount(fuse)
    yield _pyfuse3()
    if fuse.is_root:
        yield Finding("allow_other", "ok", "root may always use --allow-other")
    elif fuse.allows_others():
        yield Finding("allow_other", "ok", f"user_allow_other is in {fuse.configuration}")
    else:
        yield Finding(
            "allow_other",
            "note",
            f"user_allow_other is not in {fuse.configuration}: --allow-other will be refused",
            f"only if you need it, as root: echo user_allow_other >> {fuse.configuration}",
        )
    yield from _state(config)


def store_report(store: str, config: str | None, *, contract: bool, single_host: bool) -> dict[str, Any]:
    """Probe a store.

    Raises:
        SessionFSError: It cannot be used.
    """
    from sessionfs.cli.settings_sources import load_settings, store_url  # noqa: PLC0415
    from sessionfs.model.clock import SystemClock  # noqa: PLC0415
    from sessionfs.stores.open_store import open_store  # noqa: PLC0415
    from sessionfs.stores.probe import probe  # noqa: PLC0415

    url = store_url(store, load_settings(flags={}, config=config))
    opened, clock = open_store(url), SystemClock()
    try:
        found = probe(opened, clock, single_host=single_host)
        report: dict[str, Any] = {
            "url": url,
            "capabilities": asdict(found.capabilities),
            "quirks": list(found.quirks),
        }
        if contract:
            report["promises"] = _promises(opened.with_capabilities(found.capabilities), clock)
    finally:
        opened.close()
    return report


def _kernel() -> Finding:
    release = platform.release()
    match = re.match(r"(\d+)\.(\d+)", release)
    version = (int(match[1]), int(match[2])) if match else (0, 0)
    if version >= _PASSTHROUGH_KERNEL:
        return Finding("kernel", "ok", f"{release}, new enough for FUSE passthrough")
    return Finding(
        "kernel", "note", f"{release}, too old for FUSE passthrough (6.9)", "works; a newer kernel is faster"
    )


def _checked(name: str, good: str, check: Callable[[], None]) -> Finding:
    try:
        check()
    except MountError as error:
        return Finding(name, "bad", error.message, error.remedy)
    return Finding(name, "ok", good)


def _fusermount(fuse: FuseEnvironment) -> Finding:
    path = shutil.which(fuse.fusermount)
    if path:
        return Finding(fuse.fusermount, "ok", path)
    remedy = "install the package fuse3: apt-get install fuse3"
    if fuse.is_root:
        return Finding(fuse.fusermount, "note", "missing: only root can mount", remedy)
    return Finding(fuse.fusermount, "bad", "missing", remedy)


def _pyfuse3() -> Finding:
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415

    try:
        return Finding("pyfuse3", "ok", version("pyfuse3"))
    except PackageNotFoundError:
        return Finding("pyfuse3", "bad", "missing", "install sessionfs again: scripts/setup")


def _state(config: str | None) -> Iterator[Finding]:
    from sessionfs.cli.settings_sources import load_settings  # noqa: PLC0415
    from sessionfs.daemon.mount_request import state_base  # noqa: PLC0415

    try:
        settings = load_settings(flags={}, config=config)
        path = state_base(settings.mount.state_dir, os.environ)
    except SessionFSError as error:
        yield Finding("settings", "bad", error.message, error.remedy)
        return
    yield Finding("settings", "ok", "can be read")
    existing = path
    while not os.path.isdir(existing):
        existing = os.path.dirname(existing)
    if not os.access(existing, os.W_OK | os.X_OK):
        yield Finding("state directory", "bad", f"{path} cannot be written", "set SESSIONFS_STATE_DIR")
        return
    free = os.statvfs(existing)
    free_bytes = free.f_bavail * free.f_frsize
    detail = f"{path}, {size_text(free_bytes)} free"
    if free_bytes < _LOW_SPACE_BYTES:
        yield Finding("state directory", "note", detail, "make room: the sessions in use are kept there")
    else:
        yield Finding("state directory", "ok", detail)


def _promises(store: ObjectStore, clock: Clock) -> list[dict[str, str]]:
    from sessionfs.stores import contract  # noqa: PLC0415

    found = []
    with counted("promises", len(contract.PROMISES)) as advance:
        for outcome in contract.run(store, clock):
            advance()
            found.append(
                {"id": outcome.promise.id, "sentence": outcome.promise.sentence, "problem": outcome.error}
            )
    return found


def _print(report: dict[str, Any]) -> None:
    from rich.table import Table  # noqa: PLC0415 - rich only when something is drawn

    marks = {"ok": "[green]ok[/]", "note": "[yellow]note[/]", "bad": "[red]bad[/]"}
    screen = console()
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in report["environment"]:
        table.add_row(marks[finding["state"]], finding["name"], finding["detail"])
        if finding["remedy"]:
            table.add_row("", "", f"[dim]{finding['remedy']}[/]")
    screen.print(table)
    store = report.get("store")
    if store is None or "error" in store:
        return
    screen.print(f"\n[bold]{store['url']}[/]")
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    for name, value in store["capabilities"].items():
        shown = (
            {True: "[green]yes[/]", False: "[yellow]no[/]"}.get(value)
            if isinstance(value, bool)
            else str(value)
        )
        table.add_row(name.replace("_", " "), shown)
    screen.print(table)
    for quirk in store["quirks"]:
        screen.print(f"[yellow]note[/]  {quirk}")
    for promise in store.get("promises", ()):
        mark = "[red]broken[/]" if promise["problem"] else "[green]ok[/]    "
        screen.print(f"{mark}  {promise['id']}: {promise['sentence']}")
        if promise["problem"]:
            screen.print(f"        {promise['problem']}")
