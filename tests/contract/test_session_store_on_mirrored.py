"""Every promise of a session store on the mirrored place: with the working copy to itself, and through a live mount."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sessionfs.model.clock import SystemClock
from sessionfs.sessions.store.place_session_store import PlaceSessionStore
from sessionfs.testing.contracts.promise import Promise
from sessionfs.testing.contracts.session_store import PROMISES, Backend
from tests.unit.daemon.doors.opened import Opened, opened_alone, opened_through_mount

EVERY = pytest.mark.parametrize("promise", PROMISES, ids=[promise.id for promise in PROMISES])


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    with opened_alone(tmp_path_factory.mktemp("alone")) as opened:
        yield opened


@pytest.fixture(scope="module")
def mounted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    with opened_through_mount(tmp_path_factory.mktemp("mounted")) as opened:
        yield opened


def _check(promise: Promise[Backend], opened: Opened) -> None:
    first, second = opened.fresh()
    clock = SystemClock()
    stores = (PlaceSessionStore(first, clock), PlaceSessionStore(second, clock))
    opened.portal.run(promise.check, stores)


@EVERY
def test_a_working_copy_without_a_mount_keeps_its_promise(promise: Promise[Backend], alone: Opened) -> None:
    _check(promise, alone)


@pytest.mark.fuse
@EVERY
def test_two_doors_of_a_mount_keep_their_promise(promise: Promise[Backend], mounted: Opened) -> None:
    _check(promise, mounted)
