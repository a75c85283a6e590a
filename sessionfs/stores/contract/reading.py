"""Promises about reading and listing."""

from __future__ import annotations

from sessionfs.model.errors import InvalidRequestError, ObjectNotFoundError, PreconditionFailedError
from sessionfs.stores.base import ByteRange, IfMatch, ListPage, Unconditional
from sessionfs.stores.contract.promise import Promise, Scratch, pattern, require, require_error


def _missing(scratch: Scratch) -> None:
    scratch.put("name-longer", b"x")
    for name in ("missing", "name", "dir/"):
        require_error(ObjectNotFoundError, lambda name=name: scratch.head(name), f"head of {name}")  # type: ignore[misc]
        require_error(ObjectNotFoundError, lambda name=name: scratch.body(name), f"get of {name}")  # type: ignore[misc]


def _range(scratch: Scratch) -> None:
    body = pattern(10_000)
    token = scratch.put("file", body)
    for start, end in ((0, 1), (5, 10), (9_999, 10_000), (0, 10_000), (9_990, 20_000), (0, 99_999)):
        got = scratch.body("file", ByteRange(start, end), token)
        require(got == body[start:end], f"range {start}..{end} gives {len(got)} bytes")
    for start in (10_000, 50_000):
        require(scratch.body("file", ByteRange(start, start + 5)) == b"", "bytes beyond the end")
    with scratch.store.get(scratch.key("file"), byte_range=ByteRange(5, 10), expected=None) as ranged:
        require(ranged.stat.size_bytes == len(body), "a range's stat is not the object's")
    scratch.put("empty", b"")
    require(scratch.body("empty", ByteRange(0, 5)) == b"", "bytes in an empty object")


def _pinned(scratch: Scratch) -> None:
    first = scratch.put("file", b"first")
    require(scratch.body("file", expected=first) == b"first", "the pinned read failed")
    second = scratch.put("file", b"second", IfMatch(first))
    require_error(PreconditionFailedError, lambda: scratch.body("file", expected=first), "a moved object")
    require_error(
        PreconditionFailedError,
        lambda: scratch.body("file", ByteRange(0, 2), first),
        "a range of a moved object",
    )
    require(scratch.body("file", ByteRange(0, 3), second) == b"sec", "the pinned range failed")


def _chunks(scratch: Scratch) -> None:
    body = pattern(300_001)
    scratch.put("file", body)
    with scratch.store.get(scratch.key("file"), byte_range=None, expected=None) as reader:
        chunks = list(reader.chunks(4096))
    require(b"".join(chunks) == body and max(map(len, chunks)) <= 4096, "the chunks differ")  # noqa: PLR2004
    with scratch.store.get(scratch.key("file"), byte_range=None, expected=None) as reader:
        next(iter(reader.chunks(10)))
    require(scratch.body("file") == body, "a read after one that was broken off fails")


def _pages(scratch: Scratch) -> None:
    names = [f"{number % 3}/{number:02d}" for number in range(25)]
    for name in names:
        scratch.put(name, b"x")
    found = _all_pages(scratch, "", whole_segments=False, limit=7)
    keys = [stat.key for page in found for stat in page.objects]
    require(
        sorted(keys) == sorted(scratch.key(name) for name in names),
        f"{len(keys)} of {len(names)} keys, or twice",
    )
    require(all(len(page.objects) <= 7 for page in found) and len(found) >= 4, "pages are larger than asked")  # noqa: PLR2004
    for limit in (0, 1001, -1):
        require_error(
            InvalidRequestError,
            lambda limit=limit: scratch.store.list_page(  # type: ignore[misc]
                scratch.prefix, page=None, whole_segments=False, limit=limit
            ),
            f"a limit of {limit}",
        )


def _segments(scratch: Scratch) -> None:
    for name in ("a/1", "ab", "a.b", "a/2/3", "abc/1", "a0"):
        scratch.put(name, b"x")
    require(scratch.names("a/") == ["a/1", "a/2/3"], f"a/ matches {scratch.names('a/')}")
    require(scratch.names("nothing/") == [], "an empty prefix has objects")


def _children(scratch: Scratch) -> None:
    _check_children(scratch, 1000, 3, 2)


def _children_singly(scratch: Scratch) -> None:
    _check_children(scratch, 1)


def _check_children(scratch: Scratch, *limits: int) -> None:
    for name in ("d/", "d/file", "d/sub/1", "d/sub/2", "d/marked/", "d.x", "d/z", "d/sub.x"):
        scratch.put(name, b"")
    expected_objects = [scratch.key(name) for name in ("d/", "d/file", "d/sub.x", "d/z")]
    expected_prefixes = [scratch.key(name) for name in ("d/marked/", "d/sub/")]
    for limit in limits:
        found = _all_pages(scratch, "d/", whole_segments=True, limit=limit)
        objects = sorted(stat.key for page in found for stat in page.objects)
        prefixes = sorted(prefix for page in found for prefix in page.prefixes)
        require(objects == expected_objects, f"limit {limit}: objects {objects}")
        require(prefixes == expected_prefixes, f"limit {limit}: prefixes {prefixes}")


def _listed_as_head(scratch: Scratch) -> None:
    scratch.put("file", b"12345")
    scratch.put("dir/", b"")
    for page in scratch.store.list_all(scratch.prefix):
        for stat in page.objects:
            head = scratch.store.head(stat.key)
            same = (stat.size_bytes, stat.token) == (head.size_bytes, head.token)
            require(same, f"listing says {stat}, head says {head}")


def _listed_at_once(scratch: Scratch) -> None:
    for number in range(10):
        token = scratch.put("file", b"%d" % number)
        require(scratch.names() == ["file"], "an object that was just put is not listed")
        require(scratch.body("file") == b"%d" % number, "an object that was just put has other bytes")
        scratch.store.delete(scratch.key("file"), condition=IfMatch(token))
        require(scratch.names() == [], "an object that was just deleted is listed")
    scratch.store.delete(scratch.key("file"), condition=Unconditional())


def _all_pages(scratch: Scratch, prefix: str, *, whole_segments: bool, limit: int) -> list[ListPage]:
    pages: list[ListPage] = []
    page: str | None = None
    while True:
        found = scratch.store.list_page(
            scratch.key(prefix), page=page, whole_segments=whole_segments, limit=limit
        )
        pages.append(found)
        page = found.next_page
        require(len(pages) < 100, "the pages never end")  # noqa: PLR2004
        if page is None:
            return pages


READING = (
    Promise("get-missing", "A missing object is reported as missing.", _missing),
    Promise("get-range", "A range gives exactly its bytes, cut at the object's end.", _range),
    Promise("get-pinned", "A read pinned to a token fails once the object has another.", _pinned),
    Promise("get-chunks", "A body comes in chunks of the size asked for, and may be left unread.", _chunks),
    Promise("list-pages", "All pages together hold every key exactly once.", _pages),
    Promise("list-segments", "A prefix matches whole segments only.", _segments),
    Promise(
        "list-children",
        "A listing of children gives objects, common prefixes and the marker itself.",
        _children,
    ),
    Promise("list-children-singly", "A listing of children may have one entry a page.", _children_singly),
    Promise("list-as-head", "A listing gives the same sizes and tokens as head.", _listed_as_head),
    Promise("list-at-once", "What was put or deleted is seen at once.", _listed_at_once),
)
