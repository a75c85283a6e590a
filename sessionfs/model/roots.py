"""Ids of what is owned, committed and hydrated as one: sessions, and the shared roots beside them.

A shared root is a directory that belongs to no session. Its id begins with a percent sign and has its components separated by percent signs:

==================================  ===================================  ==============================================
id (journal, messages, disk)        as people write it, and in keys      in a mount
==================================  ===================================  ==============================================
``s1``                              ``s1`` (keys: ``sessions/s1``)       ``s1/``
``%plugins%<plugin>``               ``plugins/<plugin>``                 ``.sessionfs/plugins/<plugin>/``
``%agents%<agent>%plugins%<p>``     ``agents/<agent>/plugins/<p>``       ``.sessionfs/agents/<agent>/plugins/<p>/``
``%eval%<run>``                     ``eval/<run>``                       ``.sessionfs/eval/<run>/``
==================================  ===================================  ==============================================

Invariants:

* A component follows the rules of a session id, which has neither a slash nor a percent sign: no two ids, and no two keys, meet.
* Behind any of these ids, one more percent sign and a name make a read-only tree of it, as ``s1%g3`` or ``%eval%run7%g3``.
* An id with the name of a tree behind it is a name that the disk takes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from sessionfs.model import names
from sessionfs.model.errors import InvalidSessionIdError
from sessionfs.model.names import SessionId

SESSIONS = "sessions"
MAX_ROOT_ID_BYTES = 240
MOUNT_DIRECTORY = names.CONTROL_DIRECTORY.decode()

_FREE = ""
"""Stands for a component that people choose."""
SHAPES: dict[str, tuple[str, ...]] = {
    "plugins": ("plugins", _FREE),
    "agents": ("agents", _FREE, "plugins", _FREE),
    "eval": ("eval", _FREE),
}
"""Components of the shared roots of each kind; "" is one that people choose."""

_AGENT = re.compile(r"%agents%([^%/]{1,128})%plugins%")
_OTHER = re.compile(r"%(plugins|eval)%")


def unit_id(text: str) -> SessionId:
    """Check an id of a session or of a shared root; read-only trees are neither.

    Raises:
        InvalidSessionIdError: It is none.
    """
    if not text.startswith("%"):
        return names.session_id(text)
    return _root(text[1:].split("%"), text)


def named_unit(text: str) -> SessionId:
    """Give the id of what a person names, as ``s1`` or ``eval/run7``.

    Raises:
        InvalidSessionIdError: It can be no session and no shared root.
    """
    if "/" not in text:
        return names.session_id(text)
    return _root(text.split("/"), text)


def internal_id(text: str) -> str:
    """Give the id of what is shown as `shown_id` shows it; any other text is given back."""
    try:
        return named_unit(text)
    except InvalidSessionIdError:
        return text


def shown_id(unit: str) -> str:
    """Give an id, or that of a read-only tree, as people read it; any other text is given back."""
    base, what = split_tree(unit)
    return _spelled(base, what) if is_shared_root(base) else unit


def readable(text: str) -> str:
    """Give a line in which ids of shared roots are as people read them."""
    if "%" not in text:
        return text
    return _OTHER.sub(r"\1/", _AGENT.sub(r"agents/\1/plugins/", text))


def is_shared_root(unit: str) -> bool:
    """Say whether an id is that of a shared root."""
    if not unit.startswith("%"):
        return False
    try:
        unit_id(unit)
    except InvalidSessionIdError:
        return False
    return True


def is_tree_of_the_past(unit: str) -> bool:
    """Say whether an id is that of a read-only tree: a generation, or what no path shows."""
    return "%" in unit and bool(split_tree(unit)[1])


def split_tree(tree: str) -> tuple[str, str]:
    """Give the id of what a read-only tree is of, unchecked, and which tree, as ``g3``; "" when it is none."""
    if not tree.startswith("%"):
        base, _, what = tree.partition("%")
        return base, what
    pieces = tree[1:].split("%")
    length = len(SHAPES.get(pieces[0], pieces))
    return "%" + "%".join(pieces[:length]), "%".join(pieces[length:])


def key_depth(first: str) -> int:
    """Give how many segments of a key name a unit, by the first of them; 0 when none can."""
    return 2 if first == SESSIONS else len(SHAPES.get(first, ()))


def of_key_segments(segments: Sequence[str]) -> SessionId | None:
    """Give the unit that the first segments of a key name; None when they name none."""
    try:
        if segments[0] == SESSIONS and len(segments) == 2:  # noqa: PLR2004 - the prefix and the id
            return names.session_id(segments[1])
        return _root(segments, "/".join(segments))
    except InvalidSessionIdError:
        return None


def key_base(unit: str) -> str:
    """Give the first segments of every key of a unit, with no slash behind them."""
    return _spelled(*split_tree(unit)) if unit.startswith("%") else f"{SESSIONS}/{unit}"


def mount_path(unit: str) -> str:
    """Give the path of a unit's directory below a mount."""
    return f"{MOUNT_DIRECTORY}/{shown_id(unit)}" if unit.startswith("%") else unit


def of_mount_path(path: str) -> SessionId | None:
    """Give the unit that a path below a mount is in; None when it is in none.

    Args:
        path: ``/``-separated, without a slash at its start.
    """
    first, _, rest = path.partition("/")
    try:
        if first != MOUNT_DIRECTORY:
            return names.session_id(first)
        segments = rest.split("/")
        return _root(segments[: len(SHAPES.get(segments[0], segments))], path)
    except InvalidSessionIdError:
        return None


def _spelled(base: str, what: str) -> str:
    shown = base[1:].replace("%", "/")
    return f"{shown}%{what}" if what else shown


def checked_path(components: tuple[str, ...]) -> tuple[str, ...]:
    """Check the components of a shared root, or the first of them; they are given back.

    Raises:
        InvalidSessionIdError: No shared root is there, or below.
    """
    text = "/".join(components)
    shape = SHAPES.get(components[0], ())
    if len(components) > len(shape):
        kinds = ", ".join("/".join(part or "NAME" for part in kind) for kind in SHAPES.values())
        raise InvalidSessionIdError(f"session id {text!r} contains a slash, and is no shared root ({kinds})")
    for component, fixed in zip(components, shape, strict=False):
        if fixed and component != fixed:
            raise InvalidSessionIdError(f"shared root {text!r} has {component!r} where {fixed!r} belongs")
        if not fixed:
            names.session_id(component)
    if len(text.encode("utf-8")) >= MAX_ROOT_ID_BYTES:
        raise InvalidSessionIdError(f"shared root {text!r} is longer than {MAX_ROOT_ID_BYTES - 1} bytes")
    return components


def _root(components: Sequence[str], text: str) -> SessionId:
    checked = checked_path(tuple(components))
    if len(checked) < len(SHAPES[checked[0]]):
        raise InvalidSessionIdError(f"{text!r} is no shared root: there are some below it")
    return SessionId("%" + "%".join(checked))
