"""What the journal says that generations name of objects, whatever becomes of those."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sessionfs.model.clock import SystemClock
from sessionfs.working_copy.known_content import KnownObject, Prefix
from sessionfs.working_copy.upload_journal import UploadJournal

KEY = "sessions/s/f"
ABOVE = "sessions/s/"
ASIDE = "sessions/s.conflicts/f/x-y"
SUM = "a" * 64

Named = tuple[str, int, bool]
"""Sum and length of what is named, and whether the object surely begins with it."""


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[UploadJournal]:
    made = UploadJournal(str(tmp_path / "journal.db"), clock=SystemClock())
    yield made
    made.close()


def an_object(size_bytes: int, sha256: str = "", *, key: str = KEY, token: str = "") -> KnownObject:
    """An object with bytes of a length, and a sum made of it unless another is given."""
    sha256 = sha256 or f"sum-{size_bytes}"
    mode = stat.S_IFREG | 0o644
    return KnownObject(
        key, 7, token or f"token-{sha256}", "write", sha256, size_bytes, mode, 0, 0, 0, "lineage", 1
    )


def named_of(journal: UploadJournal, key: str = KEY) -> list[Named]:
    return [(one.sha256, one.size_bytes, one.is_proven) for one in journal.prefixes(key)]


def put_named(journal: UploadJournal, known: KnownObject) -> None:
    journal.put_object(known, is_made=True)
    journal.name_object(known.key)


# --- objects that this host made


def test_an_object_that_this_host_made_out_of_a_named_one_begins_with_it(journal: UploadJournal) -> None:
    put_named(journal, an_object(10))
    put_named(journal, an_object(20))
    journal.put_object(an_object(30), is_made=True)
    assert named_of(journal) == [("sum-10", 10, True), ("sum-20", 20, True)]
    assert not journal.is_named(KEY)
    assert journal.object(KEY) == an_object(30)


def test_the_same_content_under_another_token_stays_named_and_is_no_prefix(journal: UploadJournal) -> None:
    for is_made in (True, False):
        put_named(journal, an_object(10))
        journal.put_object(an_object(10, token="another"), is_made=is_made)
        assert journal.is_named(KEY)
        assert named_of(journal) == []


def test_what_was_not_named_becomes_no_prefix(journal: UploadJournal) -> None:
    journal.put_object(an_object(10), is_made=True)
    journal.put_object(an_object(20), is_made=True)
    journal.put_object(an_object(5))
    assert named_of(journal) == []


@pytest.mark.parametrize("known", [an_object(0), replace(an_object(10), sha256="")])
def test_nothing_to_look_for_is_no_prefix(journal: UploadJournal, known: KnownObject) -> None:
    put_named(journal, known)
    journal.put_object(an_object(20))
    assert named_of(journal) == []


# --- objects that this host found


@pytest.mark.parametrize("found", [an_object(20), an_object(5), an_object(10, "other")])
def test_what_is_named_is_remembered_without_a_proof_when_another_object_is_found(
    journal: UploadJournal, found: KnownObject
) -> None:
    """Also when it is shorter: this host may put there again what was named."""
    put_named(journal, an_object(10))
    journal.put_object(found)
    assert named_of(journal) == [("sum-10", 10, False)]
    assert not journal.is_named(KEY)


def test_what_was_proven_of_an_object_is_not_of_the_one_found_in_its_place(journal: UploadJournal) -> None:
    put_named(journal, an_object(10))
    put_named(journal, an_object(20))
    journal.put_object(an_object(30))
    assert named_of(journal) == [("sum-10", 10, False), ("sum-20", 20, False)]


def test_an_object_made_out_of_a_found_one_proves_nothing_of_what_was_named_before(
    journal: UploadJournal,
) -> None:
    put_named(journal, an_object(10))
    journal.put_object(an_object(30))
    journal.name_object(KEY)
    journal.put_object(an_object(40), is_made=True)
    assert named_of(journal) == [("sum-10", 10, False), ("sum-30", 30, True)]


def test_other_keys_keep_their_proofs(journal: UploadJournal) -> None:
    other = f"{KEY}.other"
    for key in (KEY, other):
        put_named(journal, an_object(10, key=key))
        put_named(journal, an_object(20, key=key))
    journal.put_object(an_object(5))
    assert named_of(journal, other) == [("sum-10", 10, True)]
    journal.lose_object(KEY)
    assert named_of(journal, other) == [("sum-10", 10, True)]
    assert journal.is_named(other)


# --- objects that are gone


def test_what_is_named_of_a_lost_object_is_remembered_without_a_proof(journal: UploadJournal) -> None:
    put_named(journal, an_object(10))
    put_named(journal, an_object(20))
    journal.lose_object(KEY)
    assert journal.object(KEY) is None
    assert not journal.is_named(KEY)
    assert named_of(journal) == [("sum-10", 10, False), ("sum-20", 20, False)]


def test_what_is_put_where_an_object_was_lost_is_not_named_by_that(journal: UploadJournal) -> None:
    put_named(journal, an_object(10))
    journal.lose_object(KEY)
    journal.put_object(an_object(10), is_made=True)
    assert not journal.is_named(KEY)
    assert named_of(journal) == [("sum-10", 10, False)]


def test_losing_what_is_not_known_is_harmless(journal: UploadJournal) -> None:
    put_named(journal, an_object(10))
    journal.lose_object(KEY)
    journal.lose_object(KEY)
    assert named_of(journal) == [("sum-10", 10, False)]


def test_a_dropped_object_takes_with_it_what_was_named(journal: UploadJournal) -> None:
    put_named(journal, an_object(10))
    put_named(journal, an_object(20))
    journal.drop_object(KEY)
    assert journal.object(KEY) is None
    assert named_of(journal) == []
    journal.put_object(an_object(10), is_made=True)
    assert not journal.is_named(KEY)


# --- names and proofs


def test_a_proof_that_comes_later_counts_and_is_not_taken_back_by_a_doubt(journal: UploadJournal) -> None:
    journal.put_object(an_object(30))
    journal.name_prefix(KEY, Prefix("sum-10", 10, is_proven=False))
    assert named_of(journal) == [("sum-10", 10, False)]
    journal.name_prefix(KEY, Prefix("sum-10", 10))
    assert named_of(journal) == [("sum-10", 10, True)]
    journal.name_prefix(KEY, Prefix("sum-10", 10, is_proven=False))
    assert named_of(journal) == [("sum-10", 10, True)]


def test_a_doubt_about_one_prefix_is_none_about_another(journal: UploadJournal) -> None:
    journal.put_object(an_object(30))
    journal.name_prefix(KEY, Prefix("sum-10", 10, is_proven=False))
    journal.name_prefix(KEY, Prefix("other", 10))
    journal.name_prefix(KEY, Prefix("sum-20", 20))
    assert sorted(named_of(journal)) == [("other", 10, True), ("sum-10", 10, False), ("sum-20", 20, True)]


def test_a_prefix_is_the_same_whether_it_is_proven_or_not() -> None:
    assert Prefix("sum-10", 10) == Prefix("sum-10", 10, is_proven=False)
    assert len({Prefix("sum-10", 10), Prefix("sum-10", 10, is_proven=False)}) == 1
    assert Prefix("sum-10", 10) != Prefix("sum-10", 11)


def test_a_commit_names_again_what_was_lost_and_put_there_again(journal: UploadJournal) -> None:
    put_named(journal, an_object(10))
    journal.lose_object(KEY)
    journal.put_object(an_object(10), is_made=True)
    journal.name_settled(ABOVE)
    assert journal.is_named(KEY)
    journal.put_object(an_object(20), is_made=True)
    assert [(sha256, size_bytes) for sha256, size_bytes, _ in named_of(journal)] == [("sum-10", 10)]


@pytest.mark.parametrize(
    ("above_bytes", "left"), [(0, []), (9, []), (10, [10]), (15, [10]), (20, [10, 20]), (25, [10, 20])]
)
def test_names_are_forgotten_above_a_length(
    journal: UploadJournal, above_bytes: int, left: list[int]
) -> None:
    for size_bytes in (10, 20, 30):
        put_named(journal, an_object(size_bytes))
    journal.forget_named(KEY, above_bytes=above_bytes)
    assert not journal.is_named(KEY)
    assert journal.prefixes(KEY) == [Prefix(f"sum-{size_bytes}", size_bytes) for size_bytes in left]


def test_what_is_forgotten_with_no_length_is_everything(journal: UploadJournal) -> None:
    put_named(journal, an_object(10))
    put_named(journal, an_object(20))
    journal.forget_named(KEY)
    assert not journal.is_named(KEY)
    assert named_of(journal) == []
    assert journal.object(KEY) == an_object(20)


def test_proofs_outlive_a_process(tmp_path: Path) -> None:
    path = str(tmp_path / "journal.db")
    first = UploadJournal(path, clock=SystemClock())
    put_named(first, an_object(10))
    first.put_object(an_object(30))
    first.name_prefix(KEY, Prefix("sum-20", 20))
    first.close()
    again = UploadJournal(path, clock=SystemClock())
    assert named_of(again) == [("sum-10", 10, False), ("sum-20", 20, True)]
    again.close()


def test_a_few_of_many_objects_with_the_same_bytes_are_read_and_no_more(journal: UploadJournal) -> None:
    """Every empty file has the same bytes, and each of their uploads asks."""
    read: list[str] = []
    for number in range(2000):
        journal.put_object(an_object(3, SUM, key=f"{ABOVE}f{number}"))
    journal.put_object(an_object(3, SUM, key=ASIDE))
    journal._database.set_progress_handler(lambda: read.append("steps") or 0, 1000)  # type: ignore[func-returns-value]
    found = journal.objects_with(SUM)
    journal._database.set_progress_handler(None, 0)
    assert len(found) == 4
    assert all(known.key.startswith(ABOVE) for known in found)
    assert len(read) <= 1


def test_what_a_person_may_delete_is_given_when_nothing_else_has_the_bytes(journal: UploadJournal) -> None:
    journal.put_object(an_object(3, SUM, key=ASIDE))
    journal.put_object(an_object(3, SUM))
    found = [known.key for known in journal.objects_with(SUM)]
    assert found == [KEY, ASIDE]
