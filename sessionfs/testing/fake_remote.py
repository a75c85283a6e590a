"""A replication process in memory, for tests of the filesystem without a store."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable

import msgspec
import trio

from sessionfs.formats.commit_messages import Committed
from sessionfs.formats.link_message import Entry, SessionRefreshed
from sessionfs.formats.link_messages import (
    FIRST_REMOTE_NUMBER,
    Children,
    Description,
    Fetched,
    SessionFound,
)
from sessionfs.formats.manifest import BLOCK_BYTES
from sessionfs.formats.ownership_messages import Claimed
from sessionfs.model import roots
from sessionfs.model.errors import (
    CorruptDataError,
    InternalError,
    ObjectNotFoundError,
    SessionFSError,
    UnavailableError,
)
from sessionfs.working_copy.layout import StateLayout


class FakeRemote:
    """Implements ``filesystem.remote_side.RemoteSide``; a test writes a tree into it.

    Unlike the real one it does not read the intent log: a test that needs an answer to follow an operation changes the tree itself.

    Args:
        layout: Where fetched files are staged.

    Attributes:
        calls: Each call as (name, argument), in order.
        error: Raised by every call while it is not None.
        fetch_error: Raised by `fetch` while it is not None.
        silent: Whether `fetch` does not answer.
        refreshed: The next reply of `refresh_session`.
        known: The version that was named last, by session.
        description: The reply of `describe`.
        generations: Generations by session; each commit adds one.
        commits: Each commit that succeeded, as (session, trigger, whether it ended a turn).
        claims: The next answers of `claim`, in order; errors are raised.
        claim_error: Raised by `claim` while it is not None.
        commit_error: Raised by `commit` while it is not None.
        bad_blocks: Blocks that no object has as their sums say.
        lost: Contents, by sha256, that are nowhere any more.
    """

    def __init__(self, layout: StateLayout) -> None:
        self._layout = layout
        self._next_number = FIRST_REMOTE_NUMBER
        self._staged = 0
        self.calls: list[tuple[str, str | int]] = []
        self.error: SessionFSError | None = None
        self.fetch_error: SessionFSError | None = None
        self.silent = False
        self.refreshed = SessionRefreshed([], [], foreign=True)
        self.known: dict[str, int] = {}
        self.description = Description("clean", etag="e1", sha256="s1", key="k1", generation=3, owner="host")
        self.generations: dict[str, list[int]] = {}
        self.commits: list[tuple[str, str, bool]] = []
        self.claims: list[Claimed | SessionFSError] = []
        self.claim_error: SessionFSError | None = None
        self.commit_error: SessionFSError | None = None
        self.bad_blocks: set[int] = set()
        self.lost: set[str] = set()
        self._contents: dict[str, bytes] = {}
        self._blocks_go_on = trio.Event()
        self._blocks_go_on.set()
        self._commits_go_on = trio.Event()
        self._commits_go_on.set()
        self.roots: dict[str, SessionFound] = {}
        self.children: dict[int, dict[bytes, Entry]] = {}
        self.bodies: dict[int, bytes] = {}
        self._afterwards: Callable[[], None] | None = None

    # --- building the tree

    def add_session(self, session: str, *, foreign: bool = True) -> int:
        """Put a session into the bucket; gives its root's number."""
        number = self._number()
        root = _entry(b"", number, stat.S_IFDIR | 0o755, mtime_ns=1_000_000_000_000_000_001, nlink=2)
        self.roots[session] = SessionFound(
            exists=True, root=root, foreign=foreign, read_only=roots.is_tree_of_the_past(session)
        )
        self.children[number] = {}
        return number

    def known_here(self, session: str, number: int) -> SessionFound:
        """Describe a session that was made on this host, for a Core that starts again."""
        self.children.setdefault(number, {})
        root = _entry(session.encode(), number, stat.S_IFDIR | 0o755, mtime_ns=1, nlink=2)
        return SessionFound(exists=True, root=root, foreign=False, owned=True)

    def add_file(
        self, directory: int, name: bytes, body: bytes, *, mode: int = 0o644, uid: int = 0, gid: int = 0,
        mtime_ns: int = 1_600_000_000_123_456_789, nlink: int = 1, xattrs: dict[bytes, bytes] | None = None,
        number: int = 0,
    ) -> int:  # fmt: skip
        """Put a file into a directory; gives its number."""
        number = number or self._number()
        entry = Entry(
            name=name, number=number, present=False, mode=stat.S_IFREG | mode, uid=uid, gid=gid, size_bytes=len(body),
            mtime_ns=mtime_ns, nlink=nlink, xattrs=xattrs or {},
        )  # fmt: skip
        self.children[directory][name] = entry
        self.bodies[number] = body
        return number

    def add_large_file(self, directory: int, name: bytes, body: bytes) -> int:
        """Put a file into a directory that may come block by block; gives its number."""
        number = self.add_file(directory, name, body)
        self.sum_blocks(number)
        return number

    def sum_blocks(self, number: int) -> str:
        """Let a file come block by block from now on; gives the sha256 of its content."""
        body = self.bodies[number]
        sha256 = hashlib.sha256(body).hexdigest()
        self._contents[sha256] = body
        for names in self.children.values():
            for name, entry in names.items():
                if entry.number == number:
                    names[name] = msgspec.structs.replace(entry, blocks_of=sha256)
        return sha256

    def hold_blocks(self) -> None:
        """Let blocks wait until `let_blocks_go`."""
        self._blocks_go_on = trio.Event()

    def let_blocks_go(self) -> None:
        """End `hold_blocks`."""
        self._blocks_go_on.set()

    def blocks_asked(self) -> list[int]:
        """Give the blocks that were asked for, in order."""
        return [int(block) for name, block in self.calls if name == "fetch_block"]

    def add_directory(self, directory: int, name: bytes, *, mode: int = 0o755) -> int:
        """Put a directory into another; gives its number."""
        number = self._number()
        entry = _entry(name, number, stat.S_IFDIR | mode, mtime_ns=1_500_000_000_000_000_009, nlink=2)
        self.children[directory][name] = entry
        self.children[number] = {}
        return number

    def add_symlink(self, directory: int, name: bytes, target: bytes) -> int:
        """Put a symlink into a directory; gives its number."""
        number = self._number()
        self.children[directory][name] = _entry(
            name, number, stat.S_IFLNK | 0o777, mtime_ns=1_400_000_000_000_000_007, target=target
        )
        return number

    def replace_file(self, directory: int, name: bytes, body: bytes, *, mtime_ns: int) -> int:
        """Let another host write a file; the next refresh tells of it."""
        entry = self.children[directory][name]
        self.children[directory][name] = msgspec.structs.replace(
            entry, size_bytes=len(body), mtime_ns=mtime_ns, present=False
        )
        self.bodies[entry.number] = body
        self.refreshed = SessionRefreshed([directory], [entry.number], foreign=True)
        return entry.number

    def change_entry(self, number: int, **fields: int) -> None:
        """Let the journal know of a change that the intent log told it; fields are those of `Entry`."""
        for names in self.children.values():
            for name, entry in names.items():
                if entry.number == number:
                    names[name] = msgspec.structs.replace(entry, **fields)

    def change_directory(self, above: int, name: bytes, path: bytes, *, mode: int) -> int:
        """Let another host change a directory's mode; the next refresh tells of it."""
        entry = msgspec.structs.replace(self.children[above][name], mode=stat.S_IFDIR | mode)
        self.children[above][name] = entry
        self.refreshed = SessionRefreshed(
            [entry.number], [], foreign=True, attributes=[entry], paths={entry.number: path}
        )
        return entry.number

    def replace_names(
        self, directory: int, paths: dict[int, bytes], build: Callable[[FakeRemote], None]
    ) -> None:
        """Let another host replace names of a directory: the next refresh says what is old, the one after it what is new.

        Args:
            directory: Its number.
            paths: Paths of what is old, by number.
            build: Makes the new tree, once the old is gone.
        """
        self.refreshed = SessionRefreshed([directory], list(paths), foreign=True, paths=paths)
        self._afterwards = lambda: build(self)

    def remove_name(self, directory: int, name: bytes) -> None:
        """Let another host remove a name; the next refresh tells of it."""
        entry = self.children[directory].pop(name)
        self.refreshed = SessionRefreshed([directory], [entry.number], foreign=True)

    def fail(self, message: str) -> None:
        """Let every fetch fail as if the store did not answer; "" ends it."""
        self.fetch_error = UnavailableError(message) if message else None

    def hold_commits(self) -> None:
        """Let commits wait until `let_commits_go`."""
        self._commits_go_on = trio.Event()

    def let_commits_go(self) -> None:
        """End `hold_commits`."""
        self._commits_go_on.set()

    def take_calls(self) -> list[tuple[str, str | int]]:
        """Give the calls since the last time."""
        calls, self.calls = self.calls, []
        return calls

    def _number(self) -> int:
        self._next_number += 1
        return self._next_number

    # --- the protocol

    async def open_session(self, session: str) -> SessionFound:
        """Say what is known of a session."""
        self._called("open_session", session)
        return self.roots.get(session, SessionFound(exists=False))

    async def list_sessions(self) -> list[str]:
        """Name the sessions."""
        self._called("list_sessions", "")
        return [session for session in self.roots if "%" not in session]

    async def list_shared_roots(self) -> list[str]:
        """Name the shared roots."""
        self._called("list_shared_roots", "")
        return [session for session in self.roots if roots.is_shared_root(session)]

    async def list_children(self, directory: int) -> Children:
        """List a directory."""
        self._called("list_children", directory)
        return Children(list(self.children.get(directory, {}).values()))

    async def refresh_session(self, session: str, *, known: int) -> SessionRefreshed:
        """Give `refreshed` once."""
        self._called("refresh_session", session)
        self.known[session] = known
        if not self.refreshed.files and self._afterwards is not None:
            afterwards, self._afterwards = self._afterwards, None
            afterwards()
        answer, self.refreshed = self.refreshed, SessionRefreshed([], [], foreign=True)
        return answer

    async def fetch(self, number: int) -> Fetched:
        """Stage a file's bytes."""
        self._called("fetch", number)
        if self.silent:
            await trio.sleep_forever()
        if self.fetch_error is not None:
            raise self.fetch_error
        entry = next(
            entry for names in self.children.values() for entry in names.values() if entry.number == number
        )
        self._staged += 1
        staged = f"fetched-{self._staged}"
        self._write(staged, self.bodies[number])
        return Fetched(staged, entry)

    async def fetch_block(self, number: int, block: int, partial: str, sha256: str) -> None:
        """Write a block into a file in staging."""
        self._called("fetch_block", block)
        await self._blocks_go_on.wait()
        if self.silent:
            await trio.sleep_forever()
        if self.fetch_error is not None:
            raise self.fetch_error
        if block in self.bad_blocks:
            self._write_block(partial, block, b"bad")
            raise CorruptDataError(f"block {block} of file {number} is nowhere")
        if sha256 in self.lost:
            raise ObjectNotFoundError(f"file {number} was replaced while it was read")
        start = block * BLOCK_BYTES
        self._write_block(partial, block, self._contents[sha256][start : start + BLOCK_BYTES])

    async def finish_blocks(self, number: int, partial: str, sha256: str) -> Entry:
        """Describe a file whose blocks are in staging."""
        self._called("finish_blocks", number)
        entries = (entry for names in self.children.values() for entry in names.values())
        entry = next((one for one in entries if one.number == number), None)
        if entry is None or entry.blocks_of != sha256:
            raise ObjectNotFoundError(f"file {number} has other bytes by now")
        if self._sha256(partial) != sha256:
            raise InternalError(f"staging/{partial} lacks a block")
        return entry

    async def flush(self, number: int) -> None:
        """Note the call."""
        self._called("flush", number)

    async def describe(self, number: int) -> Description:
        """Give `description`."""
        self._called("describe", number)
        return self.description

    async def claim(self, session: str, *, known: int, force: bool = False) -> Claimed:
        """Give the next answer of `claims`, or `claim_error`, or an epoch without news."""
        self._called("claim by force" if force else "claim", session)
        self.known[session] = known
        if self.claim_error is not None:
            raise self.claim_error
        answer = self.claims.pop(0) if self.claims else Claimed()
        if isinstance(answer, SessionFSError):
            raise answer
        return answer

    async def commit(self, session: str, trigger: str, *, is_turn: bool = False) -> Committed:
        """Count a generation."""
        self._called("commit", session)
        await self._commits_go_on.wait()
        if self.commit_error is not None:
            raise self.commit_error
        numbers = self.generations.setdefault(session, [])
        numbers.append(len(numbers) + 1)
        self.commits.append((session, trigger, is_turn))
        return Committed(session, len(numbers), trigger=trigger)

    async def release(self, session: str) -> None:
        """Note the call."""
        self._called("release", session)

    async def list_generations(self, session: str) -> list[int]:
        """Give `generations`."""
        self._called("list_generations", session)
        return list(self.generations.get(session, []))

    async def session_status(self, session: str) -> bytes:
        """Give the status as JSON."""
        self._called("session_status", session)
        return json.dumps({"id": session}).encode() + b"\n"

    def _write(self, staged: str, body: bytes) -> None:
        with open(os.path.join(self._layout.staging, staged), "wb") as file:
            file.write(body)

    def _write_block(self, partial: str, block: int, body: bytes) -> None:
        with open(os.path.join(self._layout.staging, partial), "rb+") as file:
            file.seek(block * BLOCK_BYTES)
            file.write(body)

    def _sha256(self, staged: str) -> str:
        with open(os.path.join(self._layout.staging, staged), "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def _called(self, name: str, argument: str | int) -> None:
        self.calls.append((name, argument))
        if self.error is not None:
            raise self.error


def _entry(
    name: bytes, number: int, mode: int, *, mtime_ns: int, nlink: int = 1, target: bytes = b""
) -> Entry:
    return Entry(
        name=name, number=number, present=False, mode=mode, uid=0, gid=0, size_bytes=len(target), mtime_ns=mtime_ns,
        nlink=nlink, target=target,
    )  # fmt: skip
