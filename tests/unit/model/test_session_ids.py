"""Ids of new sessions."""

from __future__ import annotations

import re

import pytest

from sessionfs.model import names
from sessionfs.model.clock import SystemClock
from sessionfs.model.errors import InvalidRequestError
from sessionfs.model.session_ids import FORMS, new_session_id


class StoppedClock(SystemClock):
    """Stands still; its random digits are given."""

    def wall_ns(self) -> int:
        return 1_769_903_999_123_456_789

    def unique_id(self) -> str:
        return "0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("random_hex", "0123456789abcdef0123456789abcdef"),
        ("timestamp", "20260131T235959.123456Z"),
        ("datetime_short", "260131-2359-cdef"),
    ],
)
def test_an_id_has_its_form(form: str, expected: str) -> None:
    assert new_session_id(StoppedClock(), form) == expected


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_valid_ids(form: str) -> None:
    made = new_session_id(SystemClock(), form)
    assert names.session_id(made) == made


def test_random_ids_differ_and_are_the_default() -> None:
    made = {new_session_id(SystemClock()) for _ in range(100)}
    assert len(made) == 100
    assert all(re.fullmatch("[0-9a-f]{32}", one) for one in made)


def test_ids_with_a_time_sort_by_it() -> None:
    class LaterClock(StoppedClock):
        def wall_ns(self) -> int:
            return super().wall_ns() + 61_000_000_000

    for form in ("timestamp", "datetime_short"):
        assert new_session_id(StoppedClock(), form) < new_session_id(LaterClock(), form)


def test_a_form_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(InvalidRequestError, match=r"uuid.*datetime_short"):
        new_session_id(SystemClock(), "uuid")
