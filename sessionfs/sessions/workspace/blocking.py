"""Workspaces for programs without an event loop: each operation is a call that waits, described, with what it raises, in the asynchronous form.

Safe to use from several threads at once. After the end of its ``with`` every call raises `HandleClosedError`. Subscribers are called in the thread of
the portal: they must not call back into the workspace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import partial
from typing import Any, Generic, TypeVar

from sessionfs.model.errors import SessionFSError
from sessionfs.sessions.port import FileStat, SessionPlace
from sessionfs.sessions.portal import Portal
from sessionfs.sessions.workspace.blobs import BlobDescription, Blobs, StoredBlob
from sessionfs.sessions.workspace.directory import Directory
from sessionfs.sessions.workspace.journal import Journal
from sessionfs.sessions.workspace.metadata import FAILED, SessionMetadata
from sessionfs.sessions.workspace.observation.event_history import Changes
from sessionfs.sessions.workspace.options import WorkspaceOptions
from sessionfs.sessions.workspace.owned_unit import OwnedUnit
from sessionfs.sessions.workspace.shared_root import SharedRoot
from sessionfs.sessions.workspace.workspace import NewSession, Workspace

Unit = TypeVar("Unit", bound=OwnedUnit)
State = TypeVar("State")


class BlockingUnit(Generic[Unit]):
    """What `OwnedUnit` does, waiting.

    Args:
        unit: The workspace or shared root.
        portal: Runs its operations.
    """

    def __init__(self, unit: Unit, portal: Portal) -> None:
        self._unit = unit
        self._portal = portal

    @property
    def id(self) -> str:
        """The session or shared root, as people write it."""
        return self._unit.id

    @property
    def is_closed(self) -> bool:
        """Whether it was closed or abandoned."""
        return self._unit.is_closed

    @property
    def degraded_reason(self) -> str:
        """Why the place does not answer; "" while it does."""
        return self._unit.degraded_reason

    def write_file(
        self, path: str, body: bytes, *, is_private: bool = False, is_new: bool = False
    ) -> FileStat:
        """Replace a file, or make it."""
        return self._portal.run(
            partial(self._unit.write_file, path, body, is_private=is_private, is_new=is_new)
        )

    def read_file(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        """Read a part of a file."""
        return self._portal.run(self._unit.read_file, path, start, end)

    def append_file(self, path: str, tail: bytes, *, is_synced: bool = False) -> FileStat:
        """Add to a file."""
        return self._portal.run(partial(self._unit.append_file, path, tail, is_synced=is_synced))

    def remove_file(self, path: str) -> None:
        """Remove a file."""
        self._portal.run(self._unit.remove_file, path)

    def rename_file(self, path: str, new: str) -> None:
        """Give a file another path."""
        self._portal.run(self._unit.rename_file, path, new)

    def list_files(self, below: str = "") -> list[str]:
        """List the files at and below a directory, sorted."""
        return self._portal.run(self._unit.list_files, below)

    def stat_file(self, path: str) -> FileStat:
        """Describe a file."""
        return self._portal.run(self._unit.stat_file, path)

    def file_exists(self, path: str) -> bool:
        """Whether there is such a file."""
        return self._portal.run(self._unit.file_exists, path)

    def blobs(self) -> BlockingBlobs:
        """Give its blobs."""
        return BlockingBlobs(self._unit.blobs(), self._portal)

    def changes(self, since: int = 0) -> Changes:
        """Look for changes that others made, and give all events behind a number."""
        return self._portal.run(self._unit.changes, since)

    def snapshot(self, trigger: str = "snapshot") -> int:
        """Make a generation, and give its number."""
        return self._portal.run(self._unit.snapshot, trigger)

    def close(self, status: str = "ended") -> None:
        """Make the final generation and let others own it."""
        self._portal.run(self._unit.close, status)

    def abandon(self) -> None:
        """Give up."""
        self._portal.run(self._unit.abandon)


class BlockingWorkspace(BlockingUnit[Workspace]):
    """What `Workspace` does, waiting. Opened by `create`, `recall` or `open`."""

    @classmethod
    @contextmanager
    def create(
        cls,
        portal: Portal,
        place: SessionPlace,
        session: str | None = None,
        *,
        new: NewSession | None = None,
        options: WorkspaceOptions | None = None,
    ) -> Iterator[BlockingWorkspace]:
        """Make a session and own it; `place` was opened in `portal`."""
        opening = Workspace.create(place, session, new=new, options=options)
        with _entered(portal, opening, cls) as workspace:
            yield workspace

    @classmethod
    @contextmanager
    def recall(
        cls, portal: Portal, place: SessionPlace, session: str, *, options: WorkspaceOptions | None = None
    ) -> Iterator[BlockingWorkspace]:
        """Go on with a session, and own it."""
        with _entered(portal, Workspace.recall(place, session, options=options), cls) as workspace:
            yield workspace

    @classmethod
    @contextmanager
    def open(
        cls,
        portal: Portal,
        place: SessionPlace,
        session: str | None = None,
        *,
        new: NewSession | None = None,
        options: WorkspaceOptions | None = None,
    ) -> Iterator[BlockingWorkspace]:
        """Go on with a session, or make it when there is none."""
        opening = Workspace.open(place, session, new=new, options=options)
        with _entered(portal, opening, cls) as workspace:
            yield workspace

    @staticmethod
    @contextmanager
    def shared(
        portal: Portal, place: SessionPlace, root: str, *, options: WorkspaceOptions | None = None
    ) -> Iterator[BlockingSharedRoot]:
        """Own a shared root."""
        opening = Workspace.shared(place, root, options=options)
        with _entered(portal, opening, BlockingSharedRoot) as shared:
            yield shared

    @property
    def metadata(self) -> SessionMetadata:
        """What ``metadata/session.json`` says."""
        return self._unit.metadata

    def config(self) -> bytes | None:
        """Give the configuration snapshot, byte by byte."""
        return self._portal.run(self._unit.config)

    def update_metadata(self, **changes: Any) -> SessionMetadata:
        """Change fields of ``metadata/session.json``."""
        return self._portal.run(partial(self._unit.update_metadata, **changes))

    def record_turn(
        self, *, prompt_tokens: int = 0, completion_tokens: int = 0, cost_usd: float = 0.0
    ) -> SessionMetadata:
        """Count a turn."""
        return self._portal.run(
            partial(
                self._unit.record_turn,
                prompt_tokens=prompt_tokens,
                completion_tokens=completion_tokens,
                cost_usd=cost_usd,
            )
        )

    def context_dir(self) -> BlockingDirectory:
        """Give ``context/``."""
        return BlockingDirectory(self._unit.context_dir(), self._portal)

    def files_dir(self) -> BlockingDirectory:
        """Give ``files/``."""
        return BlockingDirectory(self._unit.files_dir(), self._portal)

    def metadata_dir(self) -> BlockingDirectory:
        """Give ``metadata/``."""
        return BlockingDirectory(self._unit.metadata_dir(), self._portal)

    def plugin_dir(self, plugin: str) -> BlockingDirectory:
        """Give ``plugins/<plugin>/``, made at first use."""
        return BlockingDirectory(self._portal.run(self._unit.plugin_dir, plugin), self._portal)

    def journal(self) -> BlockingJournal:
        """Give its journal."""
        return BlockingJournal(self._unit.journal(), self._portal)


class BlockingSharedRoot(BlockingUnit[SharedRoot]):
    """What `SharedRoot` does, waiting."""

    @property
    def is_published(self) -> bool:
        """Whether it was published."""
        return self._unit.publication is not None

    def publish(self) -> int | None:
        """Publish an evaluation run, once and for good."""
        return self._portal.run(self._unit.publish)


class BlockingDirectory:
    """What `Directory` does, waiting.

    Args:
        directory: The directory.
        portal: Runs its operations.
    """

    def __init__(self, directory: Directory, portal: Portal) -> None:
        self._directory = directory
        self._portal = portal

    @property
    def path(self) -> str | None:
        """The directory on this host; None when the place has no real paths."""
        return self._directory.path

    def write(self, name: str, body: bytes, *, is_private: bool = False) -> FileStat:
        """Replace a file, or make it."""
        return self._portal.run(partial(self._directory.write, name, body, is_private=is_private))

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """Read a part of a file."""
        return self._portal.run(self._directory.read, name, start, end)

    def append(self, name: str, tail: bytes) -> FileStat:
        """Add to a file."""
        return self._portal.run(self._directory.append, name, tail)

    def remove(self, name: str) -> None:
        """Remove a file."""
        self._portal.run(self._directory.remove, name)

    def exists(self, name: str) -> bool:
        """Whether there is such a file."""
        return self._portal.run(self._directory.exists, name)

    def list(self) -> list[str]:
        """List the files below, sorted."""
        return self._portal.run(self._directory.list)


class BlockingBlobs:
    """What `Blobs` does, waiting.

    Args:
        blobs: The blobs.
        portal: Runs its operations.
    """

    def __init__(self, blobs: Blobs, portal: Portal) -> None:
        self._blobs = blobs
        self._portal = portal

    def put(
        self, body: bytes, *, content_type: str = "application/octet-stream", name: str = ""
    ) -> StoredBlob:
        """Store bytes."""
        return self._portal.run(partial(self._blobs.put, body, content_type=content_type, name=name))

    def get(self, sha256: str) -> bytes:
        """Give a blob."""
        return self._portal.run(self._blobs.get, sha256)

    def describe(self, sha256: str) -> BlobDescription:
        """Give a blob's description."""
        return self._portal.run(self._blobs.describe, sha256)

    def exists(self, sha256: str) -> bool:
        """Whether the place has a blob."""
        return self._portal.run(self._blobs.exists, sha256)

    def list(self) -> list[str]:
        """Give the sums of all blobs, sorted."""
        return self._portal.run(self._blobs.list)


class BlockingJournal:
    """What `Journal` does, waiting.

    Args:
        journal: The journal.
        portal: Runs its operations.
    """

    def __init__(self, journal: Journal, portal: Portal) -> None:
        self._journal = journal
        self._portal = portal

    def append(self, record: Mapping[str, Any]) -> int:
        """Add a record."""
        return self._portal.run(self._journal.append, record)

    def append_all(self, records: Iterable[Mapping[str, Any]]) -> int:
        """Add records in one request, all or none."""
        return self._portal.run(self._journal.append_all, records)

    def rotate(self) -> None:
        """Seal the active file now."""
        self._portal.run(self._journal.rotate)

    def replay(self, after: int = 0) -> list[dict[str, Any]]:
        """Give the records in order, each once."""

        async def replay() -> list[dict[str, Any]]:
            return [record async for record in self._journal.replay(after)]

        return self._portal.run(replay)

    def project(self, reducer: Callable[[State, dict[str, Any]], State], initial: State) -> State:
        """Fold the records into a state."""
        state: State = self._portal.run(self._journal.project, reducer, initial)
        return state


_Blocking = TypeVar("_Blocking", bound=BlockingUnit[Any])


@contextmanager
def _entered(
    portal: Portal, opening: AbstractAsyncContextManager[Any], form: Callable[[Any, Portal], _Blocking]
) -> Iterator[_Blocking]:
    entered, leave = portal.enter(opening)
    unit = form(entered, portal)
    try:
        yield unit
    except BaseException as problem:
        try:
            unit.close(FAILED)
        except SessionFSError as also:
            problem.add_note(f"{unit.id} could not be closed: {also}")
            unit.abandon()
        raise
    finally:
        leave()
