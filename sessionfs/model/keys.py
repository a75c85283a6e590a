r"""The only place that builds or parses keys of the bucket.

Layout (all below the store's prefix)::

    sessions/<id>/<path>                         a file, as itself
    sessions/<id>/<dir>/                         the marker of a directory, for every directory; sessions/<id>/ is the root's
    sessions/<id>.manifest/manifest.json         manifest of the newest generation
    sessions/<id>.manifest/<10 digits>.json      every retained generation
    sessions/<id>.manifest/retired/<10 digits>.json   generations on their way out
    sessions/<id>.owner/owner.json               who may write the session
    sessions/<id>.snapshot.json                  commit marker
    sessions/<id>.objects/<aa>/<sha256>          bytes without a live object of their own
    sessions/<id>.objects/<aa>/<sha256>.alias    first bytes of such an object that a generation names
    sessions/<id>.conflicts/<path>/<stamp>-<holder>   bytes kept aside
    plugins/<plugin>/..., agents/<agent>/plugins/<plugin>/..., eval/<run>/...   shared roots, each with the same siblings
    hosts/<holder>.json                          beat of one daemon that owns sessions
    migration.json, migration/<10 digits>.json   where a store was migrated from, and the journal of that
    archive/...                                  the archive's own keys (sessions/archive/archive_keys.py)
    probe/<random>                               scratch of the store probe

"Session" stands for shared roots too (``model/roots.py``): every function here takes and gives ids of both.

Keys are checked here before any store is called: ``/``-separated, no empty, ``.`` or ``..`` segment, no ``\``, no
control character, at most 1024 bytes of UTF-8.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sessionfs.model import names, roots
from sessionfs.model.errors import InvalidKeyError
from sessionfs.model.names import SessionId

MAX_KEY_BYTES = 1024
SESSIONS_PREFIX = f"{roots.SESSIONS}/"
SHARED_PREFIXES = tuple(f"{kind}/" for kind in roots.SHAPES)
"""Prefixes of the shared roots of each kind."""
PROBE_PREFIX = "probe/"
HOSTS_PREFIX = "hosts/"
_SHA256_HEX_LENGTH = 64
_GENERATION = re.compile(r"(\d{10,19})\.json")
_CONTENT = re.compile(r"([0-9a-f]{2})/([0-9a-f]{64})(\.alias)?")
_CONFLICT = re.compile(r"(?P<stamp>\d{8}T\d{6}\.\d{6}Z)-(?P<holder>.*)")


@dataclass(frozen=True, slots=True)
class LivePath:
    """What a live key names.

    Attributes:
        session: The session.
        path: Path inside the session, ``/``-separated, no leading or trailing slash; empty for the session's root.
        is_directory: Whether the key is a directory marker.
    """

    session: SessionId
    path: bytes
    is_directory: bool


@dataclass(frozen=True, slots=True)
class KeptAside:
    """What a key below ``.conflicts/`` keeps.

    Attributes:
        session: The session.
        path: Path inside the session; None when the key does not tell it (the session's root, or one too long).
        stamp: When, as in `conflict_key`.
        holder: Who wrote the bytes.
    """

    session: SessionId
    path: bytes | None
    stamp: str
    holder: str


def validate_key(key: str) -> str:
    """Check a key that names an object which is no directory marker.

    Raises:
        InvalidKeyError: It breaks a rule of the module's docstring.
    """
    _validate(key, key)
    return key


def validate_marker_key(key: str) -> str:
    """Check the key of a directory marker: a valid key and one final slash.

    Raises:
        InvalidKeyError: It breaks a rule of the module's docstring.
    """
    if not key.endswith("/"):
        raise InvalidKeyError(f"marker key {key!r} does not end in a slash")
    _validate(key[:-1], key)
    return key


def validate_any_key(key: str) -> str:
    """Check a key of either kind.

    Raises:
        InvalidKeyError: It breaks a rule of the module's docstring.
    """
    return validate_marker_key(key) if key.endswith("/") else validate_key(key)


def validate_prefix(prefix: str) -> str:
    """Check a listing prefix: empty, or whole segments that end in a slash.

    Raises:
        InvalidKeyError: It breaks a rule of the module's docstring.
    """
    return prefix if prefix == "" else validate_marker_key(prefix)


def _validate(key: str, shown: str) -> None:
    try:
        size = len(shown.encode("utf-8"))
    except UnicodeEncodeError:
        raise InvalidKeyError(f"key {shown!r} is no valid UTF-8") from None
    if size > MAX_KEY_BYTES:
        raise InvalidKeyError(f"key {shown[:60]!r}... is longer than {MAX_KEY_BYTES} bytes")
    if "\\" in key or any(character < " " or character == "\x7f" for character in key):
        raise InvalidKeyError(f"key {shown!r} contains a backslash or a control character")
    if any(segment in {"", ".", ".."} for segment in key.split("/")):
        raise InvalidKeyError(f"key {shown!r} has an empty, '.' or '..' segment")


def session_prefix(session: SessionId) -> str:
    """Prefix of every live object of a session; also the key of its root's marker."""
    return f"{roots.key_base(session)}/"


def live_key(session: SessionId, path: bytes, *, is_directory: bool) -> str | None:
    """Build the key of a file or directory marker.

    Args:
        session: The session.
        path: Path inside the session; empty for the root (a directory).
        is_directory: Whether the marker's key is wanted.

    Returns:
        The key, or None when it would be longer than a key may be (the path is then ``manifest-only``).
    """
    segments = [names.encode_name(name) for name in path.split(b"/")] if path else []
    key = session_prefix(session) + "/".join(segments)
    if is_directory and segments:
        key += "/"
    return key if len(key.encode("utf-8")) <= MAX_KEY_BYTES else None


def parse_live_key(key: str) -> LivePath | None:
    """Say what a live key names; None when no path of a session has this key (another tool wrote it)."""
    unit, rest = _below(key)
    if unit is None:
        return None
    is_directory = rest == "" or rest.endswith("/")
    trimmed = rest.removesuffix("/")
    decoded: list[bytes] = []
    for segment in trimmed.split("/") if rest else []:
        name = names.decode_name(segment)
        if name is None:
            return None
        decoded.append(name)
    if decoded and decoded[0] == names.CONTROL_DIRECTORY:
        return None
    return LivePath(unit, b"/".join(decoded), is_directory)


def session_of_key(key: str) -> SessionId | None:
    """The session below whose prefix a key is, whether or not a path has this key; None for any other key."""
    return _below(key)[0]


def _below(key: str) -> tuple[SessionId | None, str]:
    """The session below whose prefix a key is, and the rest of the key."""
    depth = roots.key_depth(key.partition("/")[0])
    pieces = key.split("/", depth) if depth else []
    if len(pieces) <= depth or not depth:
        return None, ""
    return roots.of_key_segments(pieces[:depth]), pieces[depth]


def related(first: str, second: str) -> bool:
    """Whether two keys must change in the order of their operations: equal, or one a path prefix of the other."""
    a, b = first.rstrip("/"), second.rstrip("/")
    return a == b or a.startswith(b + "/") or b.startswith(a + "/")


def manifest_prefix(session: SessionId) -> str:
    """Prefix of a session's manifests."""
    return f"{roots.key_base(session)}.manifest/"


def manifest_key(session: SessionId) -> str:
    """Key of the newest generation's manifest."""
    return f"{manifest_prefix(session)}manifest.json"


def generation_key(session: SessionId, generation: int) -> str:
    """Key of one generation's manifest; generations count from 1."""
    return f"{manifest_prefix(session)}{generation:010d}.json"


def retired_prefix(session: SessionId) -> str:
    """Prefix of the generations that are on their way out."""
    return f"{manifest_prefix(session)}retired/"


def retired_key(session: SessionId, generation: int) -> str:
    """Key of a generation's manifest on its way out."""
    return f"{retired_prefix(session)}{generation:010d}.json"


def parse_generation_key(session: SessionId, key: str) -> int | None:
    """Number of the generation whose manifest has this key, retired or not; None for any other key."""
    rest = key.removeprefix(manifest_prefix(session))
    if rest == key:
        return None
    found = _GENERATION.fullmatch(rest.removeprefix("retired/"))
    return int(found.group(1)) if found else None


def owner_key(session: SessionId) -> str:
    """Key of a session's ownership record."""
    return f"{roots.key_base(session)}.owner/owner.json"


def beat_key(holder: str) -> str:
    """Key of the beat of one daemon."""
    return f"{HOSTS_PREFIX}{holder}.json"


def commit_marker_key(session: SessionId) -> str:
    """Key of the marker of the last commit."""
    return f"{roots.key_base(session)}.snapshot.json"


def content_key(session: SessionId, sha256: str) -> str:
    """Key of bytes that have no live object of their own.

    Args:
        session: The session.
        sha256: 64 lower-case hexadecimal digits.
    """
    if len(sha256) != _SHA256_HEX_LENGTH:
        raise InvalidKeyError(f"{sha256!r} is no sha256")
    return f"{roots.key_base(session)}.objects/{sha256[:2]}/{sha256}"


def objects_prefix(session: SessionId) -> str:
    """Prefix of everything that is kept by its content."""
    return f"{roots.key_base(session)}.objects/"


def alias_key(session: SessionId, sha256: str) -> str:
    """Key of the note that says which object's first bytes have this sum."""
    return f"{content_key(session, sha256)}.alias"


def parse_content_key(session: SessionId, key: str) -> tuple[str, bool] | None:
    """Sum that a key below ``.objects/`` is for, and whether the key is an alias; None for any other key."""
    rest = key.removeprefix(objects_prefix(session))
    found = _CONTENT.fullmatch(rest) if rest != key else None
    if found is None or not found.group(2).startswith(found.group(1)):
        return None
    return found.group(2), found.group(3) is not None


def conflict_key(live: str, *, stamp: str, holder: str) -> str:
    """Key under which the bytes of a live object are kept aside.

    Args:
        live: The live object's key.
        stamp: Sortable time, as ``20260131T235959.123456Z``.
        holder: Who wrote the bytes that are kept, or ``unknown``.

    Raises:
        InvalidKeyError: `live` is no live key.
    """
    session, rest = _below(live)
    if session is None:
        raise InvalidKeyError(f"{live!r} is no live key")
    path = rest.rstrip("/") or "_root"
    key = f"{roots.key_base(session)}.conflicts/{path}/{stamp}-{holder}"
    if len(key.encode("utf-8")) > MAX_KEY_BYTES:
        key = f"{roots.key_base(session)}.conflicts/_long/{stamp}-{holder}"
    return key


def parse_conflict_key(key: str) -> KeptAside | None:
    """Say whose bytes a key below ``.conflicts/`` keeps; None for any other key."""
    head, found, rest = key.partition(".conflicts/")
    path, slash, name = rest.rpartition("/")
    match = _CONFLICT.fullmatch(name)
    session = roots.of_key_segments(head.split("/"))
    if session is None or not found or not slash or match is None:
        return None
    if path in {"_root", "_long"}:
        # A file of that name is not told apart from the session's root: a person must look.
        return KeptAside(session, None, match["stamp"], match["holder"])
    decoded = [names.decode_name(segment) for segment in path.split("/")]
    known = [segment for segment in decoded if segment is not None]
    whole = b"/".join(known) if len(known) == len(decoded) else None
    return KeptAside(session, whole, match["stamp"], match["holder"])


def conflicts_prefix(session: SessionId) -> str:
    """Prefix of everything kept aside for a session."""
    return f"{roots.key_base(session)}.conflicts/"


def session_of_prefix(prefix: str) -> SessionId | None:
    """The session whose prefix this is, as ``sessions/<id>/``; None for any other, such as ``sessions/<id>.manifest/``."""
    return roots.of_key_segments(prefix.rstrip("/").split("/"))


def session_with(listed: str) -> SessionId | None:
    """The session that has a prefix or a key directly beside its own prefix, as ``sessions/<id>.manifest/``; None for any other."""
    bare = listed.rstrip("/")
    suffix = next((suffix for suffix in names.SIBLING_SUFFIXES if bare.endswith(suffix)), "")
    return session_of_prefix(bare.removesuffix(suffix))
