"""A shared root: files of a plugin, of an agent's plugin or of an evaluation run, which belong to no session.

One owner at a time, and generations of its own, as a session has. An evaluation run is published once: from then on it is only read. What says so is
``published.json``, written last.
"""

from __future__ import annotations

import msgspec

from sessionfs.formats import versioned_json
from sessionfs.model import roots
from sessionfs.model.clock import utc_text
from sessionfs.model.errors import (
    AlreadyExistsError,
    InvalidRequestError,
    InvalidSessionIdError,
    NotFoundError,
)
from sessionfs.sessions.port import SessionPlace
from sessionfs.sessions.workspace.options import WorkspaceOptions
from sessionfs.sessions.workspace.owned_unit import OwnedUnit

PUBLISHED = "published.json"
FORMAT = 1
_EVAL = "eval/"


class Publication(msgspec.Struct, frozen=True):
    """What ``published.json`` says.

    Attributes:
        published_at: As ``2026-01-31T23:59:59.123456Z``.
        format: Of this record.
    """

    published_at: str
    format: int = FORMAT


class SharedRoot(OwnedUnit):
    """A shared root that this program owns; opened by ``Workspace.shared``.

    Args:
        place: Where it is.
        root: As ``plugins/x``, ``agents/a/plugins/p`` or ``eval/run``.
        options: How it works.
    """

    def __init__(self, place: SessionPlace, root: str, options: WorkspaceOptions) -> None:
        unit = roots.named_unit(root)
        if not roots.is_shared_root(unit):
            raise InvalidSessionIdError(f"{root!r} is a session, no shared root")
        super().__init__(place, unit, options)
        self._publication: Publication | None = None

    @property
    def publication(self) -> Publication | None:
        """When it was published; None while it was not."""
        return self._publication

    async def publish(self) -> int | None:
        """Publish an evaluation run, once and for good, and make a generation of it.

        Changes that are under way are waited for and belong to it; new ones are refused.

        Returns:
            The generation; None where the place makes none.

        Raises:
            AlreadyExistsError: It was published.
            InvalidRequestError: It is no evaluation run; nothing was changed.
            UnavailableError: The place did not answer; publish it again, `AlreadyExistsError` says then that it was.
        """
        if not self.id.startswith(_EVAL):
            raise InvalidRequestError(f"{self.id} is no evaluation run: only those are published")
        async with self._files.shut(lambda: AlreadyExistsError(f"{self.id} is being published")):
            publication = Publication(utc_text(self._clock.wall_ns()))
            await self._files.write(PUBLISHED, versioned_json.encode(publication), is_new=True)
            self._note(publication)
            if self._place.makes_generations:
                return await self.snapshot("publish")
            await self._files.sync()
            return None

    async def _establish(self) -> None:
        if not self.id.startswith(_EVAL):
            return
        try:
            raw = await self._files.read(PUBLISHED)
        except NotFoundError:
            return
        name = f"{self.id}/{PUBLISHED}"
        versioned_json.decode_format(raw, name, supported=FORMAT)
        self._note(versioned_json.decode(raw, Publication, name))

    def _note(self, publication: Publication) -> None:
        self._publication = publication
        self._files.refuse_changes(f"{self.id} was published at {publication.published_at}")
