"""A host that claims, commits and gives up its session: everything of the replication process but the link and the log."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from sessionfs.formats import ownership as records
from sessionfs.formats.intent_records import Operation
from sessionfs.formats.link_message import SessionRefreshed
from sessionfs.formats.ownership import OwnerRecord
from sessionfs.formats.ownership_messages import SessionState
from sessionfs.model import keys
from sessionfs.model.errors import SessionFSError
from sessionfs.model.names import SessionId
from sessionfs.model.settings import ReplicationSettings
from sessionfs.replication.hydrator import Hydrator
from sessionfs.replication.ownership.estrangement import Estrangement
from sessionfs.replication.ownership.holdings import Claim
from sessionfs.replication.ownership.owner import Ownership
from sessionfs.replication.session_control import SessionControl
from sessionfs.replication.trio_store import TrioStore
from sessionfs.stores.base import ObjectStore
from sessionfs.working_copy.exclusions import Exclusions
from sessionfs.working_copy.layout import ROOT_NUMBER
from sessionfs.working_copy.lease_page import LeasePage
from tests.unit.replication.commit.commit_world import CommitWorld
from tests.unit.replication.hydration.hosts import Host
from tests.unit.replication.uploads.tree_world import FAST, SESSION


class ControlWorld(CommitWorld):
    """One host.

    Attributes:
        states: What the daemon was told.
    """

    def __init__(
        self,
        directory: Path,
        store: ObjectStore,
        *,
        settings: ReplicationSettings = FAST,
        mount_point: str = "",
    ) -> None:
        self.states: list[SessionState] = []
        super().__init__(directory, store=store, settings=settings, mount_point=mount_point)

    def start(self) -> None:
        exclusions = Exclusions(self.settings.exclude_globs)
        self.ownership = Ownership(
            self.journal,
            TrioStore(self.store, self.clock, self.settings),
            self.settings,
            self.clock,
            page=LeasePage.open(self.layout.lease, "boot"),
            raise_event=self.journal.add_event,
            tell=self._note_state,
            host=self.layout.root,
            on_claimed=self._note_claimed,
        )
        self.authority = self.ownership
        super().start()
        self.trio_store.guard = self.ownership.guard
        self.hydrator = Hydrator(
            self.journal,
            self.trio_store,
            self.layout,
            self.settings,
            self.clock,
            exclusions,
            raise_event=self.journal.add_event,
        )
        self.control = SessionControl(
            self.journal,
            ownership=self.ownership,
            estrangement=Estrangement(
                self.journal,
                self.trio_store,
                self.clock,
                exclusions,
                uploader=self.uploader,
                holder=lambda: self.ownership.holder,
                raise_event=self.journal.add_event,
            ),
            committer=self.committer,
            hydrator=self.hydrator,
            uploader=self.uploader,
            layout=self.layout,
            settings=self.settings,
            clock=self.clock,
            tell=self.states.append,
        )

    def _note_state(self, state: SessionState) -> None:
        self.control.note_lost(state)

    def _note_claimed(self, session: SessionId, claim: Claim) -> None:
        self.control.note_claimed(session, claim)

    @asynccontextmanager
    async def at_work(self, *, chores: bool = False) -> AsyncIterator[SessionControl]:
        """Run the uploader, and if wanted also beats and what nobody asks for."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.uploader.run)
            if chores:
                nursery.start_soon(self.ownership.run)
                nursery.start_soon(self.control.run)
            yield self.control
            nursery.cancel_scope.cancel()

    def record(self, session: SessionId = SESSION) -> OwnerRecord:
        key = keys.owner_key(session)
        return records.decode_owner(self.body(key), key)

    def told(self, session: str = SESSION) -> SessionState:
        """What the daemon was told last."""
        return next(state for state in reversed(self.states) if state.session == session)

    async def drop(self, changes: SessionRefreshed | None) -> None:
        """Remove what is old from this disk, as the daemon does, and ask again."""
        while changes is not None and changes.files:
            for number in changes.files:
                self._drop(number)
            changes = await self.hydrator.refresh_session(SESSION)

    def _drop(self, number: int) -> None:
        places = self.journal.paths_of(number)
        if places and os.path.lexists(self.path(places[0][1])):
            self.evict(places[0][1])

    def make_session(self, name: str) -> SessionId:
        """Make another session."""
        path = os.path.join(self.layout.sessions, name)
        os.mkdir(path)
        made = os.lstat(path).st_ino
        self.tell(Operation.MKDIR, parent=ROOT_NUMBER, name=name.encode(), mode=0o755, made=made)
        return SessionId(name)

    def remove_session(self) -> None:
        """Remove the session of which nothing but the root is left."""
        root = self.number(b"")
        os.rmdir(self.path(b""))
        self.tell(Operation.RMDIR, number=root, parent=ROOT_NUMBER, name=SESSION.encode())


async def other_host(directory: Path, store: ObjectStore) -> ControlWorld:
    """A host that opened the session, and has fetched everything."""
    host = Host(directory / "state", store)
    await host.hydrator.open_session(SESSION)
    await host.materialise(SESSION)
    host.journal.close()
    return ControlWorld(directory, store)


async def commit_session(world: ControlWorld) -> int:
    """Commit while the host is at work; what the commit raised comes out alone."""
    problem: SessionFSError | None = None
    generation = 0
    async with world.at_work() as control:
        try:
            generation = (await control.commit(SESSION, "test")).generation
        except SessionFSError as error:
            problem = error
    if problem is not None:
        raise problem
    return generation


async def claim_session(world: ControlWorld, *, force: bool = False) -> None:
    """Claim, and drop what is old, as the daemon does."""
    async with world.at_work() as control:
        claimed = await control.claim(SESSION, force=force)
        await world.drop(claimed.changes)
        await control.claim(SESSION)


async def overtaken(a: ControlWorld, directory: Path) -> ControlWorld:
    """A committed, and went away; another host took the session over, wrote and committed."""
    await commit_session(a)
    b = await other_host(directory / "b", a.memory)
    await claim_session(b, force=True)
    b.write(b"f", b"of b")
    b.write(b"g", b"new from b")
    await commit_session(b)
    return b


def restart(world: ControlWorld) -> None:
    world.states.clear()
    world.start()
