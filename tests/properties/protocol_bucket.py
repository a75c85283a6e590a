"""The bucket of the protocol model: what lies in it, and what one request does to it at the moment it arrives.

A request is a value. It may be applied at once, late, twice or never; its condition is tested when it is applied. That
is all the bucket knows: rules of hosts are in ``protocol_hosts``.

Tokens of live objects are as weak as the weakest store's: either new at every write, or (``content_tokens``) equal
for equal bytes. A value is a name such as ``A3``; ``A3+`` has the same bytes and another mode.
"""

from __future__ import annotations

from typing import NamedTuple

Entries = tuple[str | None, ...]

RETAINED, RETIRED = "retained", "retired"


class Record(NamedTuple):
    """``owner.json``. Its token is its write id."""

    holder: str
    epoch: int
    released: bool
    write_id: str


class Manifest(NamedTuple):
    """``manifest.json``: the newest generation and the fence. Its token is its write id."""

    epoch: int
    generation: int
    entries: Entries
    write_id: str


class Live(NamedTuple):
    """A live object."""

    value: str
    token: str
    epoch: int
    write_id: str


class Generation(NamedTuple):
    """A generation that ``manifest.json`` has shown."""

    number: int
    epoch: int
    entries: Entries
    age: str


class Bucket(NamedTuple):
    """Everything of one session.

    ``numbers`` are the ``<n>.json``, ``objects`` what lies under ``.objects/``, ``conflicts`` under ``.conflicts/``.
    ``outlived`` is what manifests named that were retired a day ago (a list gc keeps).
    ``chain`` is what readers can restore: every committed generation that is retained or retired within a day.
    """

    record: Record | None = None
    manifest: Manifest | None = None
    numbers: frozenset[tuple[int, Entries]] = frozenset()
    live: tuple[Live | None, ...] = (None,)
    objects: frozenset[str] = frozenset()
    conflicts: frozenset[str] = frozenset()
    chain: tuple[Generation, ...] = ()
    outlived: frozenset[str] = frozenset()


class Request(NamedTuple):
    """One request.

    ``condition`` is the token for ``If-Match``, "" for ``If-None-Match: *``, ``*`` for no condition. ``seen`` are the
    values that the sender's user had in front of him at this path: those he may overwrite.
    """

    kind: str
    sender: int
    condition: str = "*"
    body: Record | Manifest | Live | None = None
    path: int = 0
    value: str = ""
    seen: frozenset[str] = frozenset()

    def __str__(self) -> str:
        """Give the request for a trace."""
        what = f"{self.body}" if self.body is not None else self.value
        condition = {"*": "", "": " if absent"}.get(self.condition, f" if {self.condition}")
        return f"{self.kind} {what}{condition}"


def bytes_of(value: str) -> str:
    """Give a value without its mode."""
    return value.rstrip("+")


def second_key(value: str) -> str:
    """Give the name of a value's second copy under ``.objects/``, at a key that no delete under way names."""
    return f"{value}~"


def copy_aside(bucket: Bucket, value: str, *, use_second_key: bool = True) -> Bucket:
    """Copy a live object to ``.objects/``. The copy names its source's token: late or repeated it does no harm."""
    name = second_key(value) if use_second_key and value in bucket.outlived else value
    return bucket._replace(objects=bucket.objects | {name})


def is_kept(bucket: Bucket, value: str) -> bool:
    """Say whether ``.objects/`` holds a value at a key that one may rely on."""
    first = value in bucket.objects and value not in bucket.outlived
    return first or second_key(value) in bucket.objects


def apply(bucket: Bucket, request: Request) -> tuple[Bucket, bool]:
    """Apply a request; give the bucket after it and whether its condition held."""
    if request.kind == "record":
        return _put_record(bucket, request)
    if request.kind == "manifest":
        return _put_manifest(bucket, request)
    if request.kind == "collect":
        return bucket._replace(objects=bucket.objects - {request.value}), True
    before = bucket.live[request.path]
    if not _holds(request.condition, before.token if before else ""):
        return bucket, False
    body = request.body if isinstance(request.body, Live) else None
    return bucket._replace(live=(*bucket.live[: request.path], body, *bucket.live[request.path + 1 :])), True


def _holds(condition: str, token: str) -> bool:
    return condition in {"*", token}


def _put_record(bucket: Bucket, request: Request) -> tuple[Bucket, bool]:
    assert isinstance(request.body, Record)
    if not _holds(request.condition, bucket.record.write_id if bucket.record else ""):
        return bucket, False
    return bucket._replace(record=request.body), True


def _put_manifest(bucket: Bucket, request: Request) -> tuple[Bucket, bool]:
    new = request.body
    assert isinstance(new, Manifest)
    before = bucket.manifest
    if not _holds(request.condition, before.write_id if before else ""):
        return bucket, False
    chain = bucket.chain
    if new.generation and not (
        before and before.generation == new.generation and before.entries == new.entries
    ):
        chain = (*chain, Generation(new.generation, new.epoch, new.entries, RETAINED))
    return bucket._replace(manifest=new, chain=chain), True


def named(bucket: Bucket, ages: tuple[str, ...]) -> frozenset[str]:
    """Give every value that a generation of one of these ages names."""
    return frozenset(v for g in bucket.chain if g.age in ages for v in g.entries if v is not None)


def unrestorable(bucket: Bucket) -> str:
    """Say which generation cannot be restored, "" when all can."""
    for generation in bucket.chain:
        if (generation.number, generation.entries) not in bucket.numbers:
            return f"{generation.number}.json is not what was committed as generation {generation.number}"
        for live, value in zip(bucket.live, generation.entries, strict=True):
            if value is None or (live is not None and live.value == value):
                continue
            if not {value, second_key(value)} & bucket.objects:
                return f"{value} of generation {generation.number} is nowhere"
    return ""
