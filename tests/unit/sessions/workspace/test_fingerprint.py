"""What is known of a file's bytes without having them."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from sessionfs.sessions.workspace.observation.fingerprint import (
    Comparison,
    Fingerprint,
    KnownBytes,
    common_prefix_bytes,
)

texts = st.text(alphabet="ab", max_size=40).map(str.encode)


@given(st.lists(texts, max_size=5), st.lists(texts, max_size=5), st.booleans())
def test_what_grew_is_the_same_up_to_its_old_length_and_what_differs_never_seems_the_same_too_far(
    old: list[bytes], new: list[bytes], is_restart: bool
) -> None:
    before = Fingerprint()
    for tail in old:
        before.extend(tail)
        if is_restart:
            before = Fingerprint(before.dump())
    comparison = Comparison(before)
    for chunk in new:
        comparison.feed(chunk)
    was, now = b"".join(old), b"".join(new)
    assert before.size_bytes == len(was)
    assert comparison.same_bytes <= common_prefix_bytes(was, now)
    assert (comparison.same_bytes == len(was)) == now.startswith(was)
    assert comparison.now.dump() == Fingerprint.of(now).dump()


@given(texts, texts)
def test_the_common_prefix_is_the_longest(first: bytes, second: bytes) -> None:
    pairs = zip(first, second, strict=False)
    naive = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    assert common_prefix_bytes(first, second) == naive


def test_bytes_that_nobody_looked_at_are_like_no_others() -> None:
    unknown = Fingerprint.unknown(3)
    assert unknown.size_bytes == 3
    comparison = Comparison(unknown)
    comparison.feed(b"abcdef")
    assert comparison.same_bytes == 0


def test_the_bytes_of_few_small_files_are_kept_and_the_oldest_leave_first() -> None:
    known = KnownBytes(10, 6)
    known.put("a", b"aaaa")
    known.put("b", b"bbbb")
    known.append("b", b"bb")
    assert (known.get("a"), known.get("b")) == (b"aaaa", b"bbbbbb")
    known.put("c", b"c")
    assert (known.get("a"), known.get("b"), known.get("c")) == (None, b"bbbbbb", b"c")
    known.append("b", b"b")
    assert known.get("b") is None
    known.put("c", b"1234567")
    assert known.get("c") is None
