"""The cheapest proven way to let an object have the wanted bytes: pure.

In this order: the object itself with new attributes, another object known to have the same bytes, the object and a tail, the bytes. A
source is proven by its token, which the store compares; a way whose source fails falls back to the next.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sessionfs.model.settings import ReplicationSettings
from sessionfs.stores.base import Capabilities
from sessionfs.working_copy.known_content import KnownObject


@dataclass(frozen=True, slots=True)
class Content:
    """The bytes that a key should have.

    Attributes:
        number: Inode whose bytes they are.
        size_bytes: Length.
        sha256: "" when unknown: bytes of another tool that are not on this disk.
        is_here: Whether they are on this disk.
        prefix_sha256: Of as many first bytes as the key's known object has, "" when not taken.
    """

    number: int
    size_bytes: int
    sha256: str
    is_here: bool
    prefix_sha256: str = ""


@dataclass(frozen=True, slots=True)
class Copy:
    """A server-side copy of a whole object."""

    source: KnownObject


@dataclass(frozen=True, slots=True)
class Append:
    """The object itself and a tail."""

    base: KnownObject


@dataclass(frozen=True, slots=True)
class Body:
    """All the bytes."""


Way = Copy | Append | Body


def ways(
    content: Content,
    known: KnownObject | None,
    others: Iterable[KnownObject],
    settings: ReplicationSettings,
    capabilities: Capabilities,
) -> list[Way]:
    """List what can be tried, cheapest first.

    Args:
        content: The wanted bytes.
        known: What the key's object is known to be.
        others: Other objects that may have the bytes.
        settings: From which length a copy or an append pays.
        capabilities: What the store can do.
    """
    found: list[Way] = []
    is_safe = capabilities.copy_source_match and capabilities.conditional_copy
    if not content.is_here or (is_safe and content.size_bytes >= settings.copy_minimum_bytes):
        candidates = [known, *others] if known is not None else list(others)
        seen: set[str] = set()
        for candidate in candidates:
            if candidate is not None and candidate.key not in seen and has_content(candidate, content):
                seen.add(candidate.key)
                found.append(Copy(candidate))
    if known is not None and _is_grown(content, known, settings, capabilities):
        found.append(Append(known))
    if content.is_here:
        found.append(Body())
    return found


def has_content(known: KnownObject, content: Content) -> bool:
    """Whether an object is known to have exactly these bytes."""
    if known.size_bytes != content.size_bytes:
        return False
    if content.sha256:
        return known.sha256 == content.sha256
    return not known.sha256 and known.number == content.number != 0


def is_extension(content: Content, known: KnownObject) -> bool:
    """Whether the wanted bytes are proven to be an object's with more behind them."""
    return (
        content.size_bytes > known.size_bytes and known.sha256 != "" and content.prefix_sha256 == known.sha256
    )


def _is_grown(
    content: Content, known: KnownObject, settings: ReplicationSettings, capabilities: Capabilities
) -> bool:
    least = max(settings.append_minimum_bytes, capabilities.minimum_part_bytes)
    return (
        capabilities.append_by_copy
        and content.is_here
        and known.size_bytes >= least
        and is_extension(content, known)
    )
