"""Mirrored places that many tests of contracts use one after another, each with an empty store: opening one takes most of a second."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import trio

from sessionfs.daemon.doors.in_process.core_place import CorePlace
from sessionfs.daemon.doors.mirrored import open_mirrored
from sessionfs.daemon.doors.through_mount.mount_place import MountPlace
from sessionfs.model.errors import ConflictError, OwnershipLostError
from sessionfs.model.names import SessionId
from sessionfs.sessions.port import SessionPlace
from sessionfs.sessions.portal import Portal
from tests.e2e.rig import Host

Places = tuple[SessionPlace, SessionPlace]


class Opened:
    """A place, or two doors of one mount, in a loop of their own.

    Attributes:
        portal: The loop.
    """

    def __init__(self, portal: Portal, store: Path, places: Places) -> None:
        self.portal = portal
        self._store = store
        self._places = places

    def fresh(self) -> Places:
        """Empty the store; give its places."""
        first = self._places[0]
        for place in self._places:
            for session in self.portal.run(first.list_sessions):
                self.portal.run(_released, place, session)
        for session in self.portal.run(first.list_sessions):
            self.portal.run(first.remove_session, session)
        for index in self._store.glob("sessions.json*"):
            index.unlink()
        return self._places


async def _released(place: SessionPlace, session: SessionId) -> None:
    """Release; what a promise has cancelled may still be written at this moment."""
    with trio.fail_after(30):
        while True:
            try:
                await place.release(session)
            except OwnershipLostError:
                raise
            except ConflictError:
                await trio.sleep(0.05)
            else:
                return


@asynccontextmanager
async def _alone(url: str, state: str) -> AsyncIterator[Places]:
    async with open_mirrored(url, state_directory=state) as place:
        assert isinstance(place, CorePlace)
        yield place, place


@asynccontextmanager
async def _two_doors(url: str, state: str) -> AsyncIterator[Places]:
    async with (
        open_mirrored(url, state_directory=state) as first,
        open_mirrored(url, state_directory=state) as second,
    ):
        assert isinstance(first, MountPlace)
        yield first, second


@contextmanager
def opened_alone(base: Path) -> Iterator[Opened]:
    """Open a place without a mount; both of its places are the same."""
    (base / "store").mkdir()
    with Portal() as portal:
        places, leave = portal.enter(_alone(f"file://{base}/store", str(base / "state")))
        yield Opened(portal, base / "store", places)
        leave()


@contextmanager
def opened_through_mount(base: Path) -> Iterator[Opened]:
    """Mount, and open two doors of the mount."""
    (base / "store").mkdir()
    host = Host(f"file://{base}/store", base)
    try:
        host.mount()
        with Portal() as portal:
            places, leave = portal.enter(_two_doors(host.store, str(host.state)))
            yield Opened(portal, base / "store", places)
            leave()
        host.umount()
    finally:
        host.clean_up()
