"""Promises about whole files: bytes, names, lists, removal, renaming."""

from __future__ import annotations

import hashlib
from functools import partial

from sessionfs.model.errors import NotFoundError
from sessionfs.sessions.store.session_store import SessionStore
from sessionfs.testing.contracts.promise import require, require_error

ODD_NAMES = (
    "a file with spaces",
    "übung/日本語/🙂.txt",
    "100%/50%25.txt",
    "...three dots/.hidden",
    "quote'\"&<>;?#*[x]{y}.txt",
    "+plus=and,comma~tilde!@$",
    "tab\tand\x7fcontrol\x01.bin",
    "deep/" * 20 + "file",
    "n" * 200,
)
"""Names that a key, a URL or a shell could spoil."""

_BIG_BYTES = 9 << 20
_S = "contract-session"


async def _round_trip(store: SessionStore, _second: SessionStore) -> None:
    every_byte = bytes(range(256)) * 16
    await store.write_file(_S, "a/b.bin", every_byte)
    require(await store.read_file(_S, "a/b.bin") == every_byte, "a file reads back otherwise")


async def _replace(store: SessionStore, second: SessionStore) -> None:
    await store.write_file(_S, "f", b"a longer first version")
    await second.write_file(_S, "f", b"second")
    require(await store.read_file(_S, "f") == b"second", "a replaced file does not have its new bytes alone")


async def _empty(store: SessionStore, _second: SessionStore) -> None:
    await store.write_file(_S, "empty", b"")
    require(await store.read_file(_S, "empty") == b"", "an empty file is not empty")
    require(await store.list_files(_S) == ["empty"], "an empty file is not listed")
    require((await store.stat(_S, "empty")).size_bytes == 0, "an empty file has a size")


async def _big(store: SessionStore, _second: SessionStore) -> None:
    body = b"0123456789abcdef" * (_BIG_BYTES // 16) + b"end"
    await store.write_file(_S, "big", body)
    found = await store.read_file(_S, "big")
    require(
        hashlib.sha256(found).digest() == hashlib.sha256(body).digest(), "a big file reads back otherwise"
    )
    require((await store.stat(_S, "big")).size_bytes == len(body), "a big file's size is wrong")


async def _odd_names(store: SessionStore, _second: SessionStore) -> None:
    for number, name in enumerate(ODD_NAMES):
        await store.write_file(_S, name, b"%d" % number)
    require(await store.list_files(_S) == sorted(ODD_NAMES, key=str.encode), "odd names are listed otherwise")
    for number, name in enumerate(ODD_NAMES):
        require(await store.read_file(_S, name) == b"%d" % number, f"{name!r} reads back otherwise")


async def _list_order(store: SessionStore, _second: SessionStore) -> None:
    # A directory's files sort by the whole path: "a-b" < "a/b" < "a0", though the directory is "a".
    wanted = ["B", "a-b", "a/b", "a/c/d", "a0", "z", "é", "\uffee", "\U00010000"]
    for path in reversed(wanted):
        await store.write_file(_S, path, b"x")
    await store.write_file("another-session", "a/other", b"x")
    require(await store.list_files(_S) == wanted, f"files are listed as {await store.list_files(_S)}")


async def _list_nothing(store: SessionStore, _second: SessionStore) -> None:
    require(await store.list_files("never-made") == [], "a session that does not exist has files")
    require(await store.list_sessions() == [], "a fresh store has sessions")


async def _sessions(store: SessionStore, second: SessionStore) -> None:
    for session in ("s2", "s10", "S", "ü", "s 1"):
        await store.write_file(session, "f", b"x")
    await store.append("only-a-log", "log.jsonl", "line")
    found = await second.list_sessions()
    require(found == sorted(["S", "only-a-log", "s 1", "s10", "s2", "ü"]), f"sessions are listed as {found}")


async def _neighbours(store: SessionStore, _second: SessionStore) -> None:
    # One id begins with the other: removing the shorter must leave the longer.
    for session in ("s1", "s10", "s1-more"):
        await store.write_file(session, "f", session.encode())
    await store.remove_session("s1")
    require(await store.list_sessions() == ["s1-more", "s10"], "removing a session touched another")
    require(await store.read_file("s10", "f") == b"s10", "removing a session touched another's file")


async def _missing(store: SessionStore, _second: SessionStore) -> None:
    await store.write_file(_S, "there/file", b"x")
    for path in ("missing", "there", "there/file2", "there/file/below"):
        await require_error(NotFoundError, partial(store.read_file, _S, path), f"reading {path}")
    await require_error(
        NotFoundError, lambda: store.read_file("no-session", "f"), "reading without a session"
    )
    await require_error(NotFoundError, lambda: store.stat(_S, "missing"), "stat of a missing file")
    await require_error(NotFoundError, lambda: store.replay(_S, "missing"), "replay of a missing file")
    await require_error(NotFoundError, lambda: store.read_tail(_S, "missing", 10), "tail of a missing file")
    await require_error(
        NotFoundError, lambda: store.read_before(_S, "missing", 0, 10), "window of a missing file"
    )
    await require_error(
        NotFoundError, lambda: store.rename_file(_S, "missing", "new"), "renaming a missing file"
    )
    await require_error(
        NotFoundError, lambda: store.rename_file(_S, "missing", "missing"), "renaming it to itself"
    )
    require(await store.list_files(_S) == ["there/file"], "a failed request made a file")


async def _remove_session(store: SessionStore, second: SessionStore) -> None:
    for path in ("a", "d/b", "d/e/c", "odd %name"):
        await store.write_file(_S, path, b"x")
    await second.remove_session(_S)
    require(await store.list_files(_S) == [], "a removed session has files")
    require(await store.list_sessions() == [], "a removed session is listed")
    await store.remove_session(_S)
    await store.remove_session("never-made")
    await store.write_file(_S, "d", b"again")
    require(await store.list_files(_S) == ["d"], "a session made again has files of before")
    require(await store.read_file(_S, "d") == b"again", "a session made again reads otherwise")


async def _remove_file(store: SessionStore, _second: SessionStore) -> None:
    await store.write_file(_S, "a", b"a")
    await store.write_file(_S, "ab", b"ab")
    await store.write_file(_S, "a.d/b", b"b")
    await store.remove_file(_S, "a")
    await store.remove_file(_S, "a")
    await store.remove_file("never-made", "a")
    require(await store.list_files(_S) == ["a.d/b", "ab"], "removing a file removed another, or not that one")
    require(await store.read_file(_S, "ab") == b"ab", "removing a file changed another")
    await require_error(NotFoundError, lambda: store.read_file(_S, "a"), "reading a removed file")
    await store.write_file(_S, "a", b"new")
    require(await store.read_file(_S, "a") == b"new", "a file made again reads otherwise")


async def _rename(store: SessionStore, second: SessionStore) -> None:
    await store.write_file(_S, "old", b"moved")
    await store.write_file(_S, "other", b"other")
    await store.rename_file(_S, "old", "new dir/new %")
    require(await second.read_file(_S, "new dir/new %") == b"moved", "a renamed file reads otherwise")
    require(await store.list_files(_S) == ["new dir/new %", "other"], "a renamed file has two names")
    await store.rename_file(_S, "new dir/new %", "other")
    require(await store.read_file(_S, "other") == b"moved", "renaming did not replace what was there")
    require(await store.list_files(_S) == ["other"], "a file renamed over another has two names")
    await store.rename_file(_S, "other", "other")
    require(await store.read_file(_S, "other") == b"moved", "renaming to itself changed the file")


async def _stat(store: SessionStore, second: SessionStore) -> None:
    await store.write_file(_S, "f", b"12345")
    first = await store.stat(_S, "f")
    require((first.path, first.size_bytes) == ("f", 5), f"stat says {first}")
    require(await second.stat(_S, "f") == first, "nobody wrote, and stat says otherwise")
    await store.write_file(_S, "f", b"54321")
    changed = await store.stat(_S, "f")
    require(changed.revision != first.revision, "other bytes have the same revision")
    await store.append(_S, "f", "6")
    require((await second.stat(_S, "f")).revision != changed.revision, "an append left the revision")


async def _private(store: SessionStore, second: SessionStore) -> None:
    await store.write_private(_S, "vm/token", b"secret")
    require(await second.read_file(_S, "vm/token") == b"secret", "a private file reads otherwise")
    await store.write_private(_S, "vm/token", b"new secret")
    require(await store.read_file(_S, "vm/token") == b"new secret", "a private file is not replaced")
    require(await store.list_files(_S) == ["vm/token"], "a private file is not listed")


PROMISES = (
    ("write-read", "A file reads back with the bytes that were written.", _round_trip),
    ("write-replaces", "A write replaces the whole file, whoever wrote it.", _replace),
    ("empty-file", "An empty file is a file.", _empty),
    ("big-file", "A file of several parts reads back whole.", _big),
    ("odd-names", "Any name that a file can have reads and lists as it was written.", _odd_names),
    ("list-order", "A list is recursive, relative and sorted by the UTF-8 bytes of the paths.", _list_order),
    ("list-nothing", "What does not exist has no files and no sessions.", _list_nothing),
    ("list-sessions", "Sessions that have a file are named, sorted.", _sessions),
    ("neighbours", "An id that begins with another's is another session.", _neighbours),
    ("missing", "What does not exist raises NotFoundError, and is not made by asking.", _missing),
    ("remove-session", "A removed session has no files; removing it again is success.", _remove_session),
    ("remove-file", "A removed file is gone and no other; removing it again is success.", _remove_file),
    ("rename", "A renamed file has its new name alone, and replaces what was there.", _rename),
    ("stat", "stat tells the size, and a revision that changes with the bytes only.", _stat),
    ("private", "A private file is a file like others to its owner.", _private),
)
