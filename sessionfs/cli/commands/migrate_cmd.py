"""``sessionfs migrate``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from sessionfs.cli.bucket import Place, open_place, place_of, run, steps
from sessionfs.cli.options import config_option, json_option
from sessionfs.cli.output import count_text, one_line, print_json, print_warning, size_text
from sessionfs.model.clock import Clock, SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from sessionfs.migration.migration import Result
    from sessionfs.migration.plan import Plan
    from sessionfs.migration.switch import Switched
    from sessionfs.model.names import SessionId
    from sessionfs.stores.base import ObjectStore

_SHOWN_KEYS = 10


@click.command()
@click.option("--to", "target", required=True, metavar="STORE", help="Where everything is brought.")
@click.option("--from", "source", metavar="STORE", help="Where it is now  [default: the configured store]")
@click.option("--dry-run", is_flag=True, help="Only say what would be done; nothing is written anywhere.")
@click.option(
    "--session", "sessions", multiple=True, metavar="ID", help="Bring only this session (repeatable)."
)
@config_option
@json_option
def migrate(
    target: str,
    source: str | None,
    dry_run: bool,
    sessions: tuple[str, ...],
    config: str | None,
    as_json: bool,
) -> None:
    """Copy all sessions from one store to another, verify every byte, then let session-store.json name the new one.

    STORE is a URL, a directory, `local` (the store of your own) or `local:DIR`. The source is only read, and stays as it is. Refused before anything
    is written: a source that a mount writes, and a destination with anything else in it. Run it again after an interruption: it goes on where it
    stopped, and a run that has nothing to do copies nothing. The checksum at the end is the same for the same sessions in any store.
    """
    from sessionfs.cli.local_use import require_unmounted  # noqa: PLC0415
    from sessionfs.cli.store_choice import configured_store, require_apart, spelled_out  # noqa: PLC0415
    from sessionfs.model.roots import named_unit  # noqa: PLC0415
    from sessionfs.stores.store_urls import store_id  # noqa: PLC0415

    scope = frozenset(named_unit(name) for name in sessions) or None
    there = place_of(spelled_out(target), config=config)
    configured = configured_store(there.settings)
    named = spelled_out(source) if source is not None else configured.url
    here = place_of(named, config=config)
    require_apart(here.url, there.url)
    clock = SystemClock()
    require_unmounted(here, clock, looks_into_journal=not dry_run)
    require_unmounted(there, clock, looks_into_journal=False)
    plan, result = _migrate(here, there, scope, clock, dry_run=dry_run)
    switched = None
    if result is not None and scope is None and store_id(here.url) == store_id(configured.url):
        switched = _switch(there.url, configured.file, clock)
    if as_json:
        print_json(_body(here, there, plan, result, switched))
    else:
        _print(here, there, plan, result, switched)
    for key in result.damaged if result is not None else ():
        print_warning(
            f"{key} was damaged at the source, and was copied as it is: sessionfs verify {here.url}"
        )


def _migrate(
    here: Place, there: Place, scope: frozenset[SessionId] | None, clock: Clock, *, dry_run: bool
) -> tuple[Plan, Result | None]:
    """Survey both stores, and bring what is missing unless this is a dry run."""
    from sessionfs.migration.liveness import Liveness  # noqa: PLC0415
    from sessionfs.migration.migration import Migration  # noqa: PLC0415
    from sessionfs.migration.survey import Survey  # noqa: PLC0415
    from sessionfs.replication.trio_store import TrioStore  # noqa: PLC0415

    settings = here.settings.replication
    source = _open_to_read(here, clock)
    destination: ObjectStore | None = None
    try:
        if not _is_missing(there):
            destination = _open_to_read(there, clock)

        async def survey() -> Plan:
            reading = TrioStore(source, clock, settings)
            looked_at = TrioStore(destination, clock, settings) if destination is not None else None
            liveness = Liveness(reading, clock, on_wait=print_warning)
            return await Survey(reading, looked_at, liveness, source_url=here.url).plan(scope)

        plan = run(survey)
        if dry_run:
            return plan, None
        if destination is not None:
            destination.close()
        # From here on things are written; a server that is not known yet is tried first.
        target = destination = open_place(there, clock, changes=not plan.is_done)

        async def bring(on_progress: Callable[[int, int], None]) -> Result:
            reading = TrioStore(source, clock, settings)
            migration = Migration(
                reading,
                source,
                TrioStore(target, clock, settings),
                clock,
                settings,
                Liveness(reading, clock, on_wait=print_warning),
                source_url=here.url,
                on_progress=on_progress,
            )
            return await migration.run(plan)

        with steps("migrating") as on_progress:
            return plan, run(lambda: bring(on_progress))
    finally:
        source.close()
        if destination is not None:
            destination.close()


def _open_to_read(place: Place, clock: Clock) -> ObjectStore:
    """Open a store so that nothing is written into it."""
    from sessionfs.stores.local_directory import open_for_reading  # noqa: PLC0415
    from sessionfs.stores.store_urls import scheme_of  # noqa: PLC0415

    if scheme_of(place.url) == "file":
        return open_for_reading(place.url)
    return open_place(place, clock, changes=False)


def _is_missing(place: Place) -> bool:
    """Whether a store is a directory that is made when it is first written."""
    from sessionfs.stores.store_urls import parse_file_url, scheme_of  # noqa: PLC0415

    return scheme_of(place.url) == "file" and not os.path.lexists(parse_file_url(place.url))


def _switch(url: str, file: str, clock: Clock) -> Switched | None:
    """Let the file that names the configured store name the new one; say so when a setting is in the way."""
    from sessionfs.cli.store_choice import as_backend  # noqa: PLC0415
    from sessionfs.migration.switch import switch_to  # noqa: PLC0415

    backend = as_backend(url)
    if backend is None:
        return None
    if not file:
        print_warning(f'a setting names the store: write store = "{url}" there to use the new one')
        return None
    return switch_to(file, backend, clock)


def _body(
    here: Place, there: Place, plan: Plan, result: Result | None, switched: Switched | None
) -> dict[str, Any]:
    """Give the outcome as in ``migrate --json``."""
    return {
        "source": here.url,
        "destination": there.url,
        "dry_run": result is None,
        "plan": plan.to_json(),
        "result": result.to_json() if result is not None else None,
        "switched": switched.path if switched is not None else "",
        "way_back": switched.way_back if switched is not None and switched.is_changed else "",
    }


def _print(here: Place, there: Place, plan: Plan, result: Result | None, switched: Switched | None) -> None:
    figures = plan.to_json()
    if result is None:
        click.echo(
            f"would copy {count_text(figures['to_copy'], 'object')} ({size_text(figures['bytes_to_copy'])}) "
            f"from {here.url} to {there.url}"
        )
        click.echo(f"  {figures['unchanged']} there already, {figures['stale']} to be removed there")
    else:
        click.echo(
            f"migrated {count_text(result.objects, 'object')} ({size_text(result.bytes)}) "
            f"from {here.url} to {there.url}"
        )
        click.echo(
            f"  {result.copied} copied ({size_text(result.copied_bytes)}), {result.kept + result.unchanged} "
            f"there already, {result.removed} removed there; every object verified"
        )
        click.echo(f"manifest checksum: sha256:{result.checksum}")
    for key in figures["left_out"][:_SHOWN_KEYS]:
        print_warning(f"not migrated, no object of a session: {one_line(key)}")
    if len(figures["left_out"]) > _SHOWN_KEYS:
        print_warning(f"... and {len(figures['left_out']) - _SHOWN_KEYS} more")
    if switched is None:
        return
    click.echo(f"{switched.path} names {there.url}")
    if switched.is_changed:
        click.echo(f"to go back: {switched.way_back}; the source is as it was")
