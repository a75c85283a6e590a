"""``sessionfs verify``."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from sessionfs.cli.bucket import Bucket, Place, on_bucket, place_of, steps
from sessionfs.cli.exit_codes import CORRUPT, DONE
from sessionfs.cli.options import config_option, json_option
from sessionfs.cli.output import count_text, one_line, print_json, size_text
from sessionfs.model.names import display
from sessionfs.model.roots import mount_path, readable, shown_id

if TYPE_CHECKING:
    from sessionfs.model.names import SessionId
    from sessionfs.replication.maintenance.verifying.findings import Finding, SessionReport

_CHUNK_BYTES = 1 << 20


@click.command()
@click.argument("place", metavar="STORE|DIR")
@click.argument("session", metavar="[ID]", required=False)
@click.option("--repair", is_flag=True, help="Put right what can be; nothing is ever removed.")
@click.option("--quick", is_flag=True, help="Believe the metadata of objects instead of reading them.")
@config_option
@json_option
def verify(
    place: str, session: str | None, repair: bool, quick: bool, config: str | None, as_json: bool
) -> int:
    """Read every object of a store, and say which generations are whole.

    With DIR, a mount: its store, and each file whose bytes are on this host and uploaded. Each line names what is wrong; exit code 6 when bytes or
    records are lost, with the newest generation that is whole. Orphans, keys of other tools and commits that never happened are told, and are no
    damage.
    """
    from sessionfs.model.roots import named_unit  # noqa: PLC0415

    named = place_of(place, config=config)
    wanted = named_unit(session) if session is not None else None
    reports = _verify(named, wanted, repair=repair, quick=quick)
    if named.mount_point:
        for report in reports:
            directory = f"{named.mount_point}/{mount_path(report.session)}"
            for path in _differing_files(directory):
                shown = f"{directory}/{display(path)}"
                report.add("corrupt", f"{shown} has other bytes than were uploaded", path=shown)
    if as_json:
        print_json([_body(report) for report in reports])
    else:
        for report in reports:
            _print(report, place)
    return CORRUPT if any(report.is_damaged for report in reports) else DONE


def _verify(place: Place, session: SessionId | None, *, repair: bool, quick: bool) -> list[SessionReport]:
    from sessionfs.replication.maintenance.verifying.verification import Verification  # noqa: PLC0415

    with steps("verifying") as progress:

        async def run(bucket: Bucket) -> list[SessionReport]:
            verification = Verification(
                bucket.store,
                bucket.clock,
                bucket.settings.replication,
                is_quick=quick,
                is_repairing=repair,
            )
            sessions = [session] if session is not None else await verification.sessions()
            reports = []
            for done, identifier in enumerate(sessions, 1):
                reports.append(await verification.verify(identifier))
                progress(done, len(sessions))
            return reports

        return on_bucket(place, run, changes=repair)


def _differing_files(root: str) -> Iterator[bytes]:
    """Give the files of a mounted session that are uploaded, here, and not what was uploaded."""
    top = os.fsencode(root)
    for directory, _, files in os.walk(top):
        for name in files:
            path = os.path.join(directory, name)
            before = _stated(path)
            if before and _sha256(path) not in {before, ""} and _stated(path) == before:
                yield os.path.relpath(path, top)


def _stated(path: bytes) -> str:
    """The sha256 of a file whose bytes are on this host and in the store; "" for any other."""
    try:
        if os.getxattr(path, "user.sessionfs.state", follow_symlinks=False) != b"clean":
            return ""
        return os.getxattr(path, "user.sessionfs.sha256", follow_symlinks=False).decode("ascii", "replace")
    except OSError:
        return ""


def _sha256(path: bytes) -> str:
    digest = hashlib.sha256()
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return ""
    with open(descriptor, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _print(report: SessionReport, place: str) -> None:
    what = f"{count_text(report.objects, 'object')}, {size_text(report.bytes)}"
    whole = f"{count_text(len(report.intact - report.hurt), 'generation')} whole"
    state = "damaged" if report.is_damaged else "ok"
    click.echo(one_line(f"{report.session}: {state} ({what}; {whole})"))
    for finding in report.findings:
        click.echo("  " + one_line(_line(finding)), err=finding.is_damage)
    if report.is_damaged and report.newest_intact:
        offer = f"sessionfs restore {place} {shown_id(report.session)} --generation {report.newest_intact}"
        click.echo(f"  generation {report.newest_intact} is whole: {offer}", err=True)


def _line(finding: Finding) -> str:
    hurt = f" (generations {', '.join(map(str, finding.generations))})" if finding.generations else ""
    return f"{'repaired: ' if finding.is_repaired else ''}{finding.kind}: {finding.text}{hurt}"


def _body(report: SessionReport) -> dict[str, Any]:
    """Give a session as in ``verify --json``."""
    return {
        "session": shown_id(report.session),
        "damaged": report.is_damaged,
        "generation": report.generation,
        "newest_whole_generation": report.newest_intact,
        "whole_generations": sorted(report.intact - report.hurt),
        "objects": report.objects,
        "size_bytes": report.bytes,
        "findings": [
            asdict(finding) | {"text": readable(finding.text), "damage": finding.is_damage}
            for finding in report.findings
        ],
    }
