"""The bucket of a search: a memory store that notes what was written to chains of manifests, and a reader of generations of its own."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import trio

from sessionfs.stores.base import Condition, ObjectMetadata, Token
from sessionfs.stores.memory import MemoryStore

SESSION = "s"
PREFIX = f"sessions/{SESSION}"
MANIFEST_KEY = f"{PREFIX}.manifest/manifest.json"
_NUMBERED = re.compile(rf"^{PREFIX}\.manifest/(\d+)\.json$")
Tree = dict[bytes, bytes | None]
"""Bytes by path, None for directories."""


class BrokenPromise(Exception):  # noqa: N818 - what was found, not an error of the search
    """A promise does not hold."""


class ServerClock:
    """The store's: runs with the loop, and may be moved on by days."""

    def __init__(self, base_ns: int) -> None:
        self.base_ns = base_ns
        self._ids = itertools.count(1)

    def wall_ns(self) -> int:
        return self.base_ns + int(trio.current_time() * 1e9)

    def elapsed_seconds(self) -> float:
        return trio.current_time()

    def jitter(self) -> float:
        return 0.0

    def unique_id(self) -> str:
        return f"{next(self._ids):032x}"


class Bucket(MemoryStore):
    """Watches the promises that a single request can break.

    Attributes:
        server_clock: Its clock.
        highest_epoch: Gives the highest epoch of a host that was told that it is the owner.
        collected: Generations that garbage collection moved away.
        broken: The first broken promise, "" for none.
        numbered: Every body ever stored under a generation's number.
        chain: Every body ever stored as ``manifest.json``.
    """

    def __init__(self, clock: ServerClock) -> None:
        super().__init__(clock)
        self.server_clock = clock
        self.collected: set[int] = set()
        self.highest_epoch: Callable[[], int] = lambda: 0
        self.broken = ""
        self.numbered: dict[int, bytes] = {}
        self.chain: list[dict[str, Any]] = []

    def put(self, key: str, body: bytes, *, condition: Condition, metadata: ObjectMetadata) -> Token:
        token = super().put(key, body, condition=condition, metadata=metadata)
        numbered = _NUMBERED.match(key)
        if numbered:
            self._note_number(int(numbered[1]), body)
        elif key == MANIFEST_KEY:
            self._note_manifest(body)
        return token

    def delete(self, key: str, *, condition: Condition) -> None:
        super().delete(key, condition=condition)
        numbered = _NUMBERED.match(key)
        if numbered:
            number = int(numbered[1])
            self.collected.add(number)
            if all(manifest["generation"] != number for manifest in self.chain):
                # A commit that never counted: once it is collected its number is free.
                self.numbered.pop(number, None)

    def _note_number(self, number: int, body: bytes) -> None:
        if number in self.numbered and self.numbered[number] != body:
            self._break(f"generation {number} was written twice")
        self.numbered[number] = body

    def _note_manifest(self, body: bytes) -> None:
        manifest = json.loads(body)
        if manifest["epoch"] < self.highest_epoch():
            self._break(f"manifest.json of epoch {manifest['epoch']} when epoch {self.highest_epoch()} owns")
        if self.chain:
            before = self.chain[-1]
            if manifest["epoch"] < before["epoch"]:
                self._break(f"manifest.json of epoch {manifest['epoch']} after {before['epoch']} was fenced")
            if manifest["generation"] < before["generation"]:
                self._break(f"generation {manifest['generation']} follows {before['generation']}")
        self.chain.append(manifest)

    def _break(self, what: str) -> None:
        self.broken = self.broken or what

    # --- an independent reader

    def body(self, key: str) -> bytes | None:
        stored = self._contents.objects.get(key)
        return stored.body if stored is not None else None

    def keys_below(self, prefix: str) -> Iterator[str]:
        return iter(sorted(key for key in self._contents.objects if key.startswith(prefix)))

    def newest(self) -> dict[str, Any]:
        raw = self.body(MANIFEST_KEY)
        if raw is None:
            raise BrokenPromise("there is no manifest.json")
        return dict(json.loads(raw))

    def numbers(self) -> list[int]:
        """Generations that are kept."""
        found = (_NUMBERED.match(key) for key in self.keys_below(f"{PREFIX}.manifest"))
        return [int(match[1]) for match in found if match]

    def manifest(self, number: int) -> dict[str, Any]:
        raw = self.body(f"{PREFIX}.manifest/{number:010d}.json")
        if raw is None:
            raise BrokenPromise(f"generation {number} has no manifest")
        return dict(json.loads(raw))

    def committed(self) -> list[int]:
        """The chain from the newest generation on, as far as it is kept."""
        found: list[int] = []
        kept = set(self.numbers())
        number = self.newest()["generation"]
        while number in kept:
            found.append(number)
            number = self.manifest(number)["previous"]
        return found

    def read_generation(self, number: int) -> Tree:
        """Give what a generation says, byte for byte."""
        manifest = self.manifest(number)
        newer = [self.manifest(other) for other in reversed(self.committed()) if other > number]
        found: Tree = {}
        for entry in manifest["entries"]:
            path = entry["path"].encode()
            if not path:
                continue
            if entry["type"] == "directory":
                found[path] = None
            elif entry["type"] == "symlink":
                found[path] = b"-> " + entry["target"].encode()
            else:
                body = self._bytes_of(entry, newer)
                if body is None:
                    raise BrokenPromise(
                        f"generation {number} cannot be read: the bytes of {entry['path']} are nowhere"
                    )
                found[path] = body
        return found

    def _bytes_of(self, entry: dict[str, Any], newer: list[dict[str, Any]]) -> bytes | None:
        size, sha256 = entry["size"], entry["sha256"]
        for body in self._candidates(entry, newer):
            if body is not None and hashlib.sha256(body[:size]).hexdigest() == sha256:
                return body[:size]
        return None

    def _candidates(self, entry: dict[str, Any], newer: list[dict[str, Any]]) -> Iterator[bytes | None]:
        sha256 = entry["sha256"]
        yield self.body(f"{PREFIX}/{entry['path']}")
        yield self.body(f"{PREFIX}.objects/{sha256[:2]}/{sha256}")
        alias = self.body(f"{PREFIX}.objects/{sha256[:2]}/{sha256}.alias")
        if alias is not None:
            of = json.loads(alias)["of"]
            yield self.body(f"{PREFIX}.objects/{of[:2]}/{of}")
        for index, manifest in enumerate(newer):
            for other in manifest["entries"]:
                if other["path"] == entry["path"] and other.get("size", 0) > entry["size"]:
                    yield self._bytes_of(other, newer[index + 1 :])

    def live(self) -> Tree:
        """Live objects."""
        found: Tree = {}
        for key in self.keys_below(f"{PREFIX}/"):
            path = key.removeprefix(f"{PREFIX}/").encode()
            if path:
                found[path.rstrip(b"/")] = None if path.endswith(b"/") else self.body(key)
        return found

    def kept_aside(self) -> set[bytes]:
        """Bytes in conflicts."""
        bodies = (self.body(key) for key in self.keys_below(f"{PREFIX}.conflicts/"))
        return {body for body in bodies if body is not None}
