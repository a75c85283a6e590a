"""Every promise of event logs on the mirrored place; through a live mount two doors are to one another what two processes are."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sessionfs.testing.contracts.event_log import PROMISES, TwoPlaces
from sessionfs.testing.contracts.promise import BrokenPromiseError, Promise
from tests.unit.daemon.doors.opened import Opened, opened_alone, opened_through_mount

OF_TWO_PLACES = {"one-writer"}
"""Promises about two places: a working copy without a mount is one place, which owns a session once."""

EVERY = pytest.mark.parametrize("promise", PROMISES, ids=[promise.id for promise in PROMISES])


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    with opened_alone(tmp_path_factory.mktemp("alone")) as opened:
        yield opened


@pytest.fixture(scope="module")
def mounted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    with opened_through_mount(tmp_path_factory.mktemp("mounted")) as opened:
        yield opened


@EVERY
def test_a_working_copy_without_a_mount_keeps_its_promise(promise: Promise[TwoPlaces], alone: Opened) -> None:
    places = TwoPlaces(*alone.fresh())
    if promise.id not in OF_TWO_PLACES:
        alone.portal.run(promise.check, places)
        return
    with pytest.raises(BrokenPromiseError):
        alone.portal.run(promise.check, places)


@pytest.mark.fuse
@EVERY
def test_two_doors_of_a_mount_keep_their_promise(promise: Promise[TwoPlaces], mounted: Opened) -> None:
    mounted.portal.run(promise.check, TwoPlaces(*mounted.fresh()))
