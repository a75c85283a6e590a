"""Whether a store may be used: probed once, asked later, and known when it is away."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from sessionfs.daemon.replication import admission
from sessionfs.daemon.replication.admission import admit_store, read_record, record_path
from sessionfs.model.clock import SystemClock
from sessionfs.model.errors import (
    AccessError,
    BucketNotFoundError,
    SessionFSError,
    StoreRefusedError,
    UnavailableError,
    UnsupportedFormatError,
)
from sessionfs.stores.base import Capabilities, ListPage, ObjectStore
from sessionfs.stores.memory import MemoryStore
from sessionfs.stores.probe import ProbeResult
from sessionfs.working_copy.layout import StateLayout


class Store(MemoryStore):
    """A store that may fail, and counts what it is asked."""

    error: SessionFSError | None = None
    listed = 0

    def list_page(
        self, prefix: str, *, page: str | None, whole_segments: bool, limit: int = 1000
    ) -> ListPage:
        self.listed += 1
        if self.error is not None:
            raise self.error
        return super().list_page(prefix, page=page, whole_segments=whole_segments, limit=limit)

    def with_capabilities(self, capabilities: Capabilities) -> ObjectStore:
        self.wanted = capabilities
        return self


@pytest.fixture
def layout(tmp_path: Path) -> StateLayout:
    made = StateLayout(str(tmp_path))
    made.create()
    return made


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    made = Store()
    monkeypatch.setattr(admission, "open_store", lambda _url, **_connections: made)
    return made


@pytest.fixture
def probes(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Each probe that ran, with whether a single host was accepted."""
    ran: list[bool] = []

    def probe(store: ObjectStore, _clock: SystemClock, *, single_host: bool) -> ProbeResult:
        ran.append(single_host)
        if isinstance(store, Store) and store.error is not None:
            raise store.error
        return ProbeResult(replace(Capabilities(), conditional_put=not single_host))

    monkeypatch.setattr(admission, "probe", probe)
    return ran


def admit(layout: StateLayout, *, single_host: bool = False, first: bool = True) -> tuple[ObjectStore, str]:
    return admit_store(
        "file:///x", layout=layout, clock=SystemClock(), connections=4, single_host=single_host, first=first
    )


def test_the_probe_runs_once_and_its_record_is_kept(
    layout: StateLayout, store: Store, probes: list[bool]
) -> None:
    assert admit(layout) == (store, "")
    assert admit(layout) == (store, "")
    assert probes == [False]
    assert store.listed == 1
    assert json.loads(Path(record_path(layout)).read_text())["capabilities"]["conditional_put"] is True


def test_a_known_store_that_is_away_is_used_degraded(
    layout: StateLayout, store: Store, probes: list[bool]
) -> None:
    admit(layout)
    store.error = UnavailableError("no route")
    assert admit(layout) == (store, "no route")


def test_an_unknown_store_that_is_away_is_an_error_and_leaves_no_record(
    layout: StateLayout, store: Store, probes: list[bool]
) -> None:
    store.error = UnavailableError("no route")
    with pytest.raises(UnavailableError):
        admit(layout)
    assert read_record(layout) is None


@pytest.mark.parametrize("error", [AccessError("wrong secret"), BucketNotFoundError("no bucket")])
def test_a_refusal_ends_a_start_but_not_a_mount(
    layout: StateLayout, store: Store, probes: list[bool], error: SessionFSError
) -> None:
    admit(layout)
    store.error = error
    with pytest.raises(type(error)):
        admit(layout)
    assert admit(layout, first=False) == (store, error.message)


def test_a_store_accepted_for_one_host_is_probed_again_for_sharing(
    layout: StateLayout, store: Store, probes: list[bool]
) -> None:
    admit(layout, single_host=True)
    admit(layout, single_host=True)
    assert probes == [True]
    store.error = StoreRefusedError("ignores conditions")
    with pytest.raises(StoreRefusedError):
        admit(layout)
    assert probes == [True, False]


def test_a_broken_record_is_made_anew_and_a_newer_one_is_refused(
    layout: StateLayout, store: Store, probes: list[bool]
) -> None:
    Path(record_path(layout)).write_text("{")
    admit(layout)
    assert read_record(layout) is not None
    Path(record_path(layout)).write_text('{"format": 99}')
    with pytest.raises(UnsupportedFormatError, match=r"capabilities\.json has format 99"):
        admit(layout)
