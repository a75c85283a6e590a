from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sessionfs.model.errors import CorruptDataError, InvalidRequestError, TooLargeError
from sessionfs.sessions.catalogue import record as records
from sessionfs.sessions.catalogue.record import checked, checked_page, from_row, next_revision, to_row
from sessionfs.testing.contracts.catalogue import example

STORED = example(revision=3)
ROW = to_row(STORED)


def test_a_row_gives_the_record_it_was_made_of() -> None:
    assert from_row(ROW) == STORED
    assert len(ROW) == len(records.COLUMNS.split(", "))


def test_labels_are_one_text_in_whatever_order_they_came() -> None:
    one = to_row(replace(STORED, labels={"a": "1", "ü": "2"}))
    other = to_row(replace(STORED, labels={"ü": "2", "a": "1"}))
    assert one == other
    assert '{"a":"1","ü":"2"}' in one


@pytest.mark.parametrize("column", range(len(ROW)))
@pytest.mark.parametrize("wrong", [None, 1.5, "nul\0", b"x" * ((64 << 10) + 1), -1], ids=repr)
def test_a_row_that_no_catalogue_wrote_is_corrupt(column: int, wrong: object) -> None:
    if isinstance(wrong, bytes):
        wrong = wrong.decode() if column != 7 else wrong
    row = [*ROW[:column], wrong, *ROW[column + 1 :]]
    with pytest.raises(CorruptDataError):
        from_row(row)


@pytest.mark.parametrize("labels", ["", "{", "[]", '{"a":1}', '{"a":null}', '{"":"x"}', "[" * 100_000])
def test_labels_that_are_no_names_with_values_are_corrupt(labels: str) -> None:
    with pytest.raises(CorruptDataError):
        from_row([*ROW[:6], labels, *ROW[7:]])


def test_a_checked_record_does_not_change_with_its_callers_labels() -> None:
    labels = {"a": "1"}
    record = checked(replace(STORED, labels=labels), least_revision=1)
    labels["a"] = "2"
    assert record.labels == {"a": "1"}


@pytest.mark.parametrize(
    ("revision", "least"), [(1, 0), (-1, 0), (0, 1), (records.MAX_NUMBER + 1, 1), (True, 1)]
)
def test_a_revision_out_of_place_is_refused(revision: int, least: int) -> None:
    with pytest.raises(InvalidRequestError):
        checked(replace(STORED, revision=revision), least_revision=least)


def test_the_last_revision_has_none_behind_it() -> None:
    assert next_revision(records.MAX_NUMBER - 1) == records.MAX_NUMBER
    with pytest.raises(TooLargeError):
        next_revision(records.MAX_NUMBER)


def test_what_is_far_too_long_is_refused_by_its_length_and_not_shown() -> None:
    with pytest.raises(TooLargeError) as refusal:
        checked(replace(STORED, title="secret" * 1_000_000), least_revision=1)
    assert len(str(refusal.value)) < 100


@pytest.mark.parametrize("limit", [1, 1000])
def test_a_page_has_one_to_a_thousand_records(limit: int) -> None:
    assert checked_page("", limit) == ("", limit)
    wrong: list[Any] = [0, 1001, "1", None, True]
    for bad in wrong:
        with pytest.raises(InvalidRequestError):
            checked_page("", bad)
