"""A workspace: one live session of an agent, as the program that runs it sees it.

``create`` makes a session, ``recall`` goes on with one, ``open`` does whichever is possible; each is an asynchronous context manager that owns the
session while it is entered. A block that is left ends the session: ``ended``, or ``failed`` when an error or a cancellation left it.

A session exists for these doors when it has ``metadata/session.json``, which is written after everything else that belongs to a new one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import msgspec
import trio

from sessionfs.model import names, roots
from sessionfs.model.clock import utc_text
from sessionfs.model.errors import AlreadyExistsError, InvalidRequestError, NotFoundError
from sessionfs.model.names import SessionId
from sessionfs.model.session_ids import new_session_id
from sessionfs.sessions.port import SessionFiles, SessionPlace
from sessionfs.sessions.workspace import metadata as records
from sessionfs.sessions.workspace.directory import Directory, checked_component
from sessionfs.sessions.workspace.journal import Journal
from sessionfs.sessions.workspace.metadata import SessionMetadata
from sessionfs.sessions.workspace.observation.observed_files import ObservedFiles
from sessionfs.sessions.workspace.options import WorkspaceOptions
from sessionfs.sessions.workspace.owned_unit import OwnedUnit
from sessionfs.sessions.workspace.shared_root import SharedRoot

_Intent = Literal["create", "recall", "open"]
_ID_ATTEMPTS = 8
_FIXED = frozenset({"id", "started_at", "ended_at"})


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSession:
    """What a new session begins with.

    Attributes:
        config: A snapshot of its configuration, kept byte by byte; None for none.
        profile: What kind of agent it is of.
        plugins: Their names.
        labels: Free text by name.
    """

    config: bytes | None = None
    profile: str = ""
    plugins: Sequence[str] = ()
    labels: Mapping[str, str] = field(default_factory=dict)


class Workspace(OwnedUnit):
    """One live session. Opened by `create`, `recall` or `open`.

    Args:
        place: Where it is.
        session: Which.
        options: How it works.
        intent: Whether it must be new, or must be there.
        new: What it begins with when it is new.
    """

    def __init__(
        self,
        place: SessionPlace,
        session: SessionId,
        options: WorkspaceOptions,
        intent: _Intent,
        new: NewSession,
    ) -> None:
        self._beginning = records.checked(
            {
                "id": session,
                "started_at": utc_text(options.clock.wall_ns()),
                "profile": new.profile,
                "plugins": list(new.plugins),
                "labels": dict(new.labels),
            }
        )
        if new.config is not None and not isinstance(new.config, bytes):
            raise InvalidRequestError(f"a config snapshot is bytes, not {type(new.config).__name__}")
        super().__init__(place, session, options)
        self._intent = intent
        self._config = new.config
        self._metadata = self._beginning
        self._kept: dict[str, msgspec.Raw] = {}
        self._rewriting = trio.Lock()
        self._journal = Journal(self._files, options.journal_segment_bytes)

    # --- opening

    @classmethod
    @asynccontextmanager
    async def create(
        cls,
        place: SessionPlace,
        session: str | None = None,
        *,
        new: NewSession | None = None,
        options: WorkspaceOptions | None = None,
    ) -> AsyncIterator[Self]:
        """Make a session and own it.

        Args:
            place: Where.
            session: Its id; None makes one of the format in `options`.
            new: What it begins with.
            options: How it works.

        Raises:
            AlreadyExistsError: There is one; it was left as it is.
            InvalidRequestError: A bad id, or bad metadata; nothing was changed.
            SessionAlreadyOwnedError: Another process or host owns it.
            UnavailableError: The place did not answer.
        """
        async with cls._opened(place, session, "create", new, options) as workspace:
            yield workspace

    @classmethod
    @asynccontextmanager
    async def recall(
        cls, place: SessionPlace, session: str, *, options: WorkspaceOptions | None = None
    ) -> AsyncIterator[Self]:
        """Go on with a session, and own it; `config` gives the bytes it began with.

        Raises:
            NotFoundError: There is none; nothing was changed.
            UnsupportedFormatError: Its metadata was written by a later version; nothing was changed.
            CorruptDataError: Its metadata cannot be read; nothing was changed.
            InvalidRequestError, SessionAlreadyOwnedError, UnavailableError: As `create`.
        """
        async with cls._opened(place, session, "recall", None, options) as workspace:
            yield workspace

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        place: SessionPlace,
        session: str | None = None,
        *,
        new: NewSession | None = None,
        options: WorkspaceOptions | None = None,
    ) -> AsyncIterator[Self]:
        """Go on with a session, or make it when there is none; raises as `create` and `recall`.

        Args:
            place: Where.
            session: Its id; None makes a new one.
            new: What it begins with when it is made; one that is there keeps what it began with.
            options: How it works.
        """
        async with cls._opened(place, session, "open", new, options) as workspace:
            yield workspace

    @staticmethod
    @asynccontextmanager
    async def shared(
        place: SessionPlace, root: str, *, options: WorkspaceOptions | None = None
    ) -> AsyncIterator[SharedRoot]:
        """Own a shared root: files that belong to no session.

        Args:
            place: Where.
            root: As ``plugins/x``, ``agents/a/plugins/p`` or ``eval/run``.
            options: How it works.

        Raises:
            InvalidSessionIdError: That is no shared root.
            SessionAlreadyOwnedError: Another process or host owns it.
            UnavailableError: The place did not answer.
        """
        shared = SharedRoot(place, root, options or WorkspaceOptions())
        async with shared._lifetime():  # noqa: SLF001 - of the base of both
            yield shared

    @classmethod
    @asynccontextmanager
    async def _opened(
        cls,
        place: SessionPlace,
        session: str | None,
        intent: _Intent,
        new: NewSession | None,
        options: WorkspaceOptions | None,
    ) -> AsyncIterator[Self]:
        wanted = options or WorkspaceOptions()
        given = names.session_id(session) if session is not None else None
        for _ in range(_ID_ATTEMPTS):
            chosen = given if given is not None else new_session_id(wanted.clock, wanted.id_format)
            workspace = cls(place, chosen, wanted, "create" if given is None else intent, new or NewSession())
            try:
                # Before anything is claimed: what cannot be opened is left as it is.
                workspace._judge(await workspace._stored(place.files(chosen)))
            except AlreadyExistsError:
                if given is not None:
                    raise
                continue
            async with workspace._lifetime():
                yield workspace
            return
        raise AlreadyExistsError(
            f"{_ID_ATTEMPTS} ids of the format {wanted.id_format} are taken", remedy="use random_hex"
        )

    # --- what it is

    @property
    def metadata(self) -> SessionMetadata:
        """What ``metadata/session.json`` says, as it was last read or written."""
        return self._metadata

    async def config(self) -> bytes | None:
        """Give the configuration snapshot, byte by byte; None when it was made without one."""
        try:
            return await self._files.read(records.CONFIG_PATH)
        except NotFoundError:
            return None

    async def update_metadata(self, **changes: Any) -> SessionMetadata:
        """Change fields of ``metadata/session.json``; others, also unknown ones, are kept.

        Raises:
            InvalidRequestError: An unknown field, a bad value, or a field that is not yours: ``id``, ``started_at``, ``ended_at``.
            UnsupportedFormatError, CorruptDataError: Somebody wrote what this version cannot read; nothing was changed.
            UnavailableError: The place did not answer.
        """
        fixed = sorted(_FIXED & set(changes))
        if fixed:
            raise InvalidRequestError(f"session metadata: {fixed[0]} is not set by programs")
        return await self._rewrite(lambda _: changes)

    async def record_turn(
        self, *, prompt_tokens: int = 0, completion_tokens: int = 0, cost_usd: float = 0.0
    ) -> SessionMetadata:
        """Count a turn.

        Args:
            prompt_tokens: Tokens of its prompts, from 0.
            completion_tokens: Tokens of its answers, from 0.
            cost_usd: US dollars, from 0.

        Raises:
            InvalidRequestError: A number is negative or not finite.
            UnavailableError: The place did not answer.
        """
        if not (prompt_tokens >= 0 and completion_tokens >= 0 and cost_usd >= 0):
            raise InvalidRequestError("a turn uses no negative number of tokens or dollars")
        return await self._rewrite(
            lambda before: {
                "turn_count": before.turn_count + 1,
                "tokens_used": before.tokens_used + prompt_tokens + completion_tokens,
                "prompt_tokens_used": before.prompt_tokens_used + prompt_tokens,
                "completion_tokens_used": before.completion_tokens_used + completion_tokens,
                "cost_usd": before.cost_usd + cost_usd,
            }
        )

    # --- directories

    def context_dir(self) -> Directory:
        """Give ``context/``: what the agent knows."""
        return Directory(self, "context")

    def files_dir(self) -> Directory:
        """Give ``files/``: what the agent works on."""
        return Directory(self, "files")

    def metadata_dir(self) -> Directory:
        """Give ``metadata/``: what is said about the session."""
        return Directory(self, "metadata")

    async def plugin_dir(self, plugin: str) -> Directory:
        """Give ``plugins/<plugin>/``, made now where the place has real paths, else with its first file.

        Raises:
            InvalidRequestError: That is no name.
            HandleClosedError: It is closed.
        """
        directory = Directory(self, f"plugins/{checked_component(plugin, 'plugin')}")
        self._files.require_open()
        await directory.make()
        return directory

    def journal(self) -> Journal:
        """Give its journal."""
        return self._journal

    # --- how

    async def _stored(self, files: SessionFiles | ObservedFiles) -> bytes | None:
        try:
            return await files.read(records.PATH)
        except NotFoundError:
            return None

    def _judge(self, raw: bytes | None) -> bool:
        """Say whether the session is there, when it may be opened as it is wanted."""
        if raw is None:
            if self._intent == "recall":
                raise NotFoundError(f"there is no session {self.id}")
            return False
        if self._intent == "create":
            raise AlreadyExistsError(f"there is a session {self.id} already", remedy="recall it")
        self._metadata, self._kept = records.decode(raw, self._name)
        return True

    async def _establish(self) -> None:
        if self._judge(await self._stored(self._files)):
            await self._rewrite(
                lambda _: {"id": self._unit, "status": records.ACTIVE, "ended_at": None}, is_forced=True
            )
        else:
            if self._config is not None:
                await self._files.write(records.CONFIG_PATH, self._config)
            elif await self.config() is not None:
                # Of a creation that died half-way: it is none of this session.
                await self._files.remove(records.CONFIG_PATH)
            body = records.encode(self._beginning, self._kept)
            await self._files.write(records.PATH, body, is_new=True)
        for directory in (self.context_dir(), self.files_dir(), self.metadata_dir()):
            await directory.make()

    async def _say_end(self, status: str) -> None:
        ended_at = utc_text(self._clock.wall_ns())
        await self._rewrite(lambda _: {"status": status, "ended_at": ended_at}, is_forced=True)

    async def _rewrite(
        self, change: Callable[[SessionMetadata], dict[str, Any]], *, is_forced: bool = False
    ) -> SessionMetadata:
        """Change ``metadata/session.json`` as it is now.

        Args:
            change: Gives the fields that change.
            is_forced: Also while writes are refused: what follows asks the place anyway.
        """
        with self._files.changing():
            return await self._rewrite_alone(change, is_forced=is_forced)

    async def _rewrite_alone(
        self, change: Callable[[SessionMetadata], dict[str, Any]], *, is_forced: bool
    ) -> SessionMetadata:
        async with self._rewriting:
            raw = await self._stored(self._files)
            if raw is not None:
                self._metadata, self._kept = records.decode(raw, self._name)
            metadata = records.changed(self._metadata, change(self._metadata))
            await self._files.write(records.PATH, records.encode(metadata, self._kept), is_forced=is_forced)
            self._metadata = metadata
            return metadata

    @property
    def _name(self) -> str:
        return f"{roots.key_base(self._unit)}/{records.PATH}"
