"""What a store really does: tried on scratch keys below ``probe/<random>/``, which are removed again.

Both forms of conditional put are required for shared use, each with exactly one winner among 32 racers: a store that passes one after
the other may still fail in a race (OpenStack Swift 2.38 did in half of the rounds, so several are run). Everything else is
a capability with a fallback.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import msgspec

from sessionfs.model.clock import Clock, utc_text
from sessionfs.model.errors import (
    ConflictError,
    CorruptDataError,
    InvalidRequestError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    PreconditionFailedError,
    SessionFSError,
    StoreRefusedError,
    UnavailableError,
    UnsupportedFormatError,
)
from sessionfs.model.keys import PROBE_PREFIX
from sessionfs.stores.base import (
    Capabilities,
    Condition,
    IfAbsent,
    IfMatch,
    ObjectMetadata,
    ObjectStore,
    Token,
    Unconditional,
)

FORMAT = 1
RACERS = 32
ROUNDS = 3
SKEW_LIMIT_SECONDS = 60

_PLAIN = ObjectMetadata()
_STALE = Token("0123456789abcdef0123456789abcdef")
_IGNORES_IF_MATCH = "the store ignores If-Match on put, the condition on what is there"
_REMEDY = "use another store for sharing; --single-host accepts it knowingly, for one host at a time"
_FALLBACKS = {
    "conditional_delete": "ignores conditions on delete: a look comes before instead",
    "conditional_copy": "ignores conditions on a copy's target: a look comes before instead",
    "copy_source_match": "ignores conditions on a copy's source: a look comes before instead",
    "conditional_complete": "ignores conditions on completing an upload in parts: a look comes before instead",
    "append_by_copy": "cannot extend an object by copying it: appends send the whole object",
    "marker_metadata": "drops user metadata of directory markers: it travels in their content type",
    "checksums_verified": "does not verify checksums",
}


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What a probe found.

    Attributes:
        capabilities: What the store can do.
        quirks: What a person may want to know, one line each.
        probed_at: When, UTC.
        format: Version of this record.
    """

    capabilities: Capabilities
    quirks: tuple[str, ...] = ()
    probed_at: str = ""
    format: int = field(default=FORMAT)

    def to_json(self) -> bytes:
        """Give the record as JSON."""
        return msgspec.json.encode(self)

    @classmethod
    def from_json(cls, data: bytes, *, name: str = "probe record") -> ProbeResult:
        """Read a record.

        Args:
            data: What `to_json` gave.
            name: Shown in errors.

        Raises:
            UnsupportedFormatError: A newer version wrote it.
            CorruptDataError: It cannot be read.
        """
        try:
            found = msgspec.json.decode(data, type=_Versioned).format
            if found > FORMAT:
                raise UnsupportedFormatError(name, found=found, supported=FORMAT)
            return msgspec.json.decode(data, type=cls)
        except msgspec.DecodeError as error:
            raise CorruptDataError(f"{name} cannot be read: {error}") from error


class _Versioned(msgspec.Struct):
    format: int


FILE_SYSTEM_SEGMENT_BYTES = 255
"""Servers that keep a key's segments as names of files refuse longer ones."""


def probe(store: ObjectStore, clock: Clock, *, single_host: bool = False) -> ProbeResult:
    """Try what a store does.

    Args:
        store: The store; its own idea of its capabilities is only believed about sizes.
        clock: Names the scratch keys; compared with the store's.
        single_host: Accept a store without conditional puts, and say so among the quirks.

    Raises:
        StoreRefusedError: The store ignores the condition of a put, or lets two racers win.
        SessionFSError: The store cannot be used at all: as its methods say.
    """
    trial = store.with_capabilities(
        replace(
            store.capabilities,
            conditional_put=True,
            conditional_delete=True,
            conditional_copy=True,
            copy_source_match=True,
            conditional_complete=True,
            append_by_copy=True,
            checksums_verified=False,
            marker_metadata=True,
            etag_spelling="quoted",
        )
    )
    run = _Run(trial, f"{PROBE_PREFIX}{clock.unique_id()}/")
    with _cleaned(run):
        quirks = run.check_basics(clock)
        try:
            run = run.with_spelling()
            run.race_if_absent()
            run.race_if_match()
            conditional = True
        except StoreRefusedError as error:
            if not single_host:
                raise
            conditional = False
            quirks.append(f"{error.message}: accepted for a single host")
        found = _optional_capabilities(run, conditional=conditional)
        if found.etag_spelling == "unquoted":
            quirks.append("wants If-Match with the ETag unquoted")
        quirks += [text for name, text in _FALLBACKS.items() if not getattr(found, name)]
    return ProbeResult(found, tuple(quirks), utc_text(clock.wall_ns()))


def _optional_capabilities(run: _Run, *, conditional: bool) -> Capabilities:
    return replace(
        run.store.capabilities,
        conditional_put=conditional,
        conditional_delete=conditional and run.deletes_conditionally(),
        conditional_copy=conditional and run.copies_conditionally(),
        copy_source_match=run.matches_copy_source(),
        conditional_complete=conditional and run.completes_conditionally(),
        append_by_copy=run.appends_by_copy(),
        checksums_verified=run.verifies_checksums(),
        marker_metadata=run.keeps_marker_metadata(),
        maximum_segment_bytes=run.maximum_segment_bytes(),
    )


@contextlib.contextmanager
def _cleaned(run: _Run) -> Iterator[None]:
    try:
        yield
    finally:
        remove_scratch(run.store, run.prefix)


def remove_scratch(store: ObjectStore, prefix: str) -> None:
    """Remove everything below a scratch prefix, as far as the store lets."""
    with contextlib.suppress(SessionFSError):
        for page in list(store.list_all(prefix)):
            for stat in page.objects:
                store.delete(stat.key, condition=Unconditional())


@dataclass(frozen=True, slots=True)
class _Run:
    """One probe: a store and its scratch prefix."""

    store: ObjectStore
    prefix: str

    def check_basics(self, clock: Clock) -> list[str]:
        """Put, head, get and list one key; give quirks seen on the way."""
        key = self._put("basics", b"basics")
        before_ns = clock.wall_ns()
        stat = self.store.head(key)
        if self._body(key) != b"basics" or stat.size_bytes != len(b"basics"):
            raise StoreRefusedError("the store gives back other bytes than were put")
        if key not in {found.key for page in self.store.list_all(self.prefix) for found in page.objects}:
            raise StoreRefusedError("the store does not list an object that was just put")
        skew_seconds = (stat.modified_ns - before_ns) // 1_000_000_000
        if abs(skew_seconds) > SKEW_LIMIT_SECONDS:
            return [f"the store's clock differs from this host's by {skew_seconds:+d} s"]
        return []

    def with_spelling(self) -> _Run:
        """Find the spelling of If-Match that works, and check both conditions one after the other.

        Raises:
            StoreRefusedError: A condition is ignored, or no spelling works.
        """
        key = self._put("spelling", b"1")
        if self._accepted(lambda: self._put("spelling", b"2", IfAbsent())):
            raise StoreRefusedError(
                "the store ignores If-None-Match on put, the condition that nothing is there", remedy=_REMEDY
            )
        if self._accepted(lambda: self._put("spelling", b"3", IfMatch(_STALE))):
            raise StoreRefusedError(_IGNORES_IF_MATCH, remedy=_REMEDY)
        for spelling in ("quoted", "unquoted"):
            run = _Run(
                self.store.with_capabilities(replace(self.store.capabilities, etag_spelling=spelling)),
                self.prefix,
            )
            token = run.store.head(key).token
            if run._accepted(lambda: run._put("spelling", b"4", IfMatch(token))):  # noqa: B023
                if run._accepted(lambda: run._put("spelling", b"5", IfMatch(_STALE))):  # noqa: B023
                    raise StoreRefusedError(_IGNORES_IF_MATCH, remedy=_REMEDY)
                return run
        raise StoreRefusedError("the store refuses If-Match in every spelling", remedy=_REMEDY)

    def race_if_absent(self) -> None:
        """Let racers create the same key.

        Raises:
            StoreRefusedError: Not exactly one wins.
        """
        for number in range(ROUNDS):
            self._race(f"race-absent-{number}", IfAbsent())

    def race_if_match(self) -> None:
        """Let racers replace the same object.

        Raises:
            StoreRefusedError: Not exactly one wins.
        """
        for number in range(ROUNDS):
            key = self._put(f"race-match-{number}", b"before")
            self._race(f"race-match-{number}", IfMatch(self.store.head(key).token))

    def deletes_conditionally(self) -> bool:
        """Whether a delete with a stale token is refused and one with the right token works."""
        key = self._put("delete", b"kept")
        if self._accepted(lambda: self.store.delete(key, condition=IfMatch(_STALE))) or not self._has(
            key, b"kept"
        ):
            return False
        token = self.store.head(key).token
        return self._accepted(lambda: self.store.delete(key, condition=IfMatch(token))) and not self._has(
            key, b"kept"
        )

    def copies_conditionally(self) -> bool:
        """Whether conditions on a copy's target count."""
        source = self._put("copy-source", b"source")
        target = self._put("copy-target", b"target")
        source_token, target_token = self.store.head(source).token, self.store.head(target).token

        def copied(condition: Condition) -> bool:
            return self._accepted(
                lambda: self.store.copy(
                    source, target, source_token=source_token, condition=condition, metadata=_PLAIN
                )
            )

        refused = not copied(IfAbsent()) and not copied(IfMatch(_STALE)) and self._has(target, b"target")
        return refused and copied(IfMatch(target_token)) and self._has(target, b"source")

    def matches_copy_source(self) -> bool:
        """Whether a copy with a stale token of its source is refused."""
        source = self._put("match-source", b"source")
        target = self.prefix + "match-target"

        def copied(token: Token) -> bool:
            return self._accepted(
                lambda: self.store.copy(
                    source, target, source_token=token, condition=Unconditional(), metadata=_PLAIN
                )
            )

        return (
            not copied(_STALE) and not self._has(target, b"source") and copied(self.store.head(source).token)
        )

    def completes_conditionally(self) -> bool:
        """Whether conditions on completing an upload in parts count."""
        key = self._put("complete", b"before")
        token = self.store.head(key).token

        def completed(condition: Condition) -> bool:
            return self._accepted(
                lambda: self.store.put_parts(
                    key, [b"after"], condition=condition, metadata=_PLAIN, before_complete=_go_on
                )
            )

        refused = not completed(IfAbsent()) and not completed(IfMatch(_STALE)) and self._has(key, b"before")
        return refused and completed(IfMatch(token)) and self._has(key, b"after")

    def appends_by_copy(self) -> bool:
        """Whether an object of the smallest part's size can be extended by copying it on the server."""
        body = bytes(self.store.capabilities.minimum_part_bytes)
        key = self._put("append", body)
        base = self.store.head(key)
        appended = self._accepted(
            lambda: self.store.append(key, [b"tail"], base=base, metadata=_PLAIN, before_complete=_go_on)
        )
        return appended and self._has(key, body + b"tail")

    def verifies_checksums(self) -> bool:
        """Whether a body with a wrong checksum is refused."""
        try:
            return self.store.refuses_wrong_checksum(self.prefix + "checksum")
        except OutcomeUnknownError:
            return False

    def maximum_segment_bytes(self) -> int:
        """Longest key segment: what the store says of itself, else what file systems allow where a longer one is refused; 0 for no limit."""
        said = self.store.capabilities.maximum_segment_bytes
        if said:
            return said
        key = self.prefix + "s" * (FILE_SYSTEM_SEGMENT_BYTES + 1)
        taken = self._accepted(
            lambda: self.store.put(key, b"", condition=Unconditional(), metadata=_PLAIN)
        ) and self._has(key, b"")
        return 0 if taken else FILE_SYSTEM_SEGMENT_BYTES

    def keeps_marker_metadata(self) -> bool:
        """Whether a directory marker's user metadata comes back."""
        user = {"mode": "040755"}
        try:
            self.store.put(
                self.prefix + "marker/", b"", condition=Unconditional(), metadata=ObjectMetadata(user)
            )
            return dict((self.store.head(self.prefix + "marker/").metadata or _PLAIN).user) == user
        except (InvalidRequestError, ObjectNotFoundError):
            return False

    def _race(self, name: str, condition: Condition) -> None:
        start = threading.Barrier(RACERS)

        def racer(number: int) -> str:
            start.wait()
            try:
                self._put(name, b"racer %d" % number, condition)
            except ConflictError:
                return "lost"
            except (OutcomeUnknownError, UnavailableError):
                return "unknown"
            return "won"

        with ThreadPoolExecutor(RACERS) as threads:
            results = list(threads.map(racer, range(RACERS)))
        winners = [number for number, result in enumerate(results) if result == "won"]
        if len(winners) > 1:
            raise StoreRefusedError(
                f"{len(winners)} of {RACERS} racing conditional puts won in the store, one may",
                remedy=_REMEDY,
            )
        if (
            winners
            and not self._has(self.prefix + name, b"racer %d" % winners[0])
            and "unknown" not in results
        ):
            raise StoreRefusedError(
                "the store keeps other bytes than those of the put that won", remedy=_REMEDY
            )

    def _put(self, name: str, body: bytes, condition: Condition | None = None) -> str:
        key = self.prefix + name
        self.store.put(key, body, condition=condition or Unconditional(), metadata=_PLAIN)
        return key

    def _body(self, key: str) -> bytes:
        with self.store.get(key, byte_range=None, expected=None) as body:
            return body.read()

    def _has(self, key: str, body: bytes) -> bool:
        try:
            return self._body(key) == body
        except ObjectNotFoundError:
            return False

    def _accepted(self, request: Callable[[], object]) -> bool:
        """Whether a request succeeds; one the store refuses, or does not know, does not."""
        try:
            request()
        except (PreconditionFailedError, ConflictError, InvalidRequestError, ObjectNotFoundError):
            return False
        return True


def _go_on() -> None:
    return None
