"""What verification found, one line each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["corrupt", "missing", "lagging", "epoch", "orphan", "strange", "unfinished", "moving"]
"""``corrupt`` and ``missing`` are damage. ``lagging``: a marker behind its manifest. ``epoch``: an object of a later owner than the record knows.
``orphan``: bytes nobody names. ``strange``: keys of other tools. ``unfinished``: a commit or fork that never happened. ``moving``: it changed
while it was looked at."""


@dataclass(slots=True)
class Finding:
    """One thing that is not as it should be, or worth knowing.

    Attributes:
        kind: What it is.
        session: Which session.
        text: One line.
        key: The object, "" when it is about a path.
        generations: Which generations are hurt, empty for none.
        path: As a person reads it, "" when it is about an object.
        is_repaired: It was put right.
    """

    kind: Kind
    session: str
    text: str
    key: str = ""
    generations: tuple[int, ...] = ()
    path: str = ""
    is_repaired: bool = False

    @property
    def is_damage(self) -> bool:
        """Whether bytes or records are lost, and not put right."""
        return self.kind in {"corrupt", "missing"} and not self.is_repaired


@dataclass(slots=True)
class SessionReport:
    """One session.

    Attributes:
        session: Its id.
        generation: The newest, 0 for none.
        intact: Generations whose bytes are all there.
        hurt: Generations that lack bytes, or cannot be read.
        objects: Objects looked at.
        bytes: Their length.
        findings: In the order they were found.
    """

    session: str
    generation: int = 0
    intact: set[int] = field(default_factory=set)
    hurt: set[int] = field(default_factory=set)
    objects: int = 0
    bytes: int = 0
    findings: list[Finding] = field(default_factory=list)

    def add(
        self,
        kind: Kind,
        text: str,
        *,
        key: str = "",
        generations: Iterable[int] = (),
        path: str = "",
    ) -> Finding:
        """Add a finding about this session."""
        found = Finding(kind, self.session, text, key, tuple(sorted(generations)), path)
        self.findings.append(found)
        self.hurt.update(found.generations)
        return found

    @property
    def newest_intact(self) -> int:
        """The newest generation whose bytes are all there, 0 for none."""
        return max(self.intact - self.hurt, default=0)

    @property
    def is_damaged(self) -> bool:
        """Whether anything is lost and was not put right."""
        return any(finding.is_damage for finding in self.findings)
