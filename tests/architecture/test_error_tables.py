"""Every error has its own row in the errno and exit code tables: none gets a number by accident."""

from __future__ import annotations

import errno
import importlib
import pkgutil
from collections.abc import Iterator, Mapping

import pytest

import sessionfs
from sessionfs.cli.exit_codes import EXIT_CODE_BY_ERROR
from sessionfs.filesystem.errno_map import ERRNO_BY_ERROR
from sessionfs.model import errors
from sessionfs.model.errors import SessionFSError

DOCUMENTED_EXIT_CODES = range(1, 8)


def _all_errors() -> tuple[type[SessionFSError], ...]:
    for module in pkgutil.walk_packages(sessionfs.__path__, "sessionfs."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    ours = {kind for kind in _subclasses(SessionFSError) if kind.__module__.partition(".")[0] == "sessionfs"}
    return tuple(sorted(ours, key=lambda kind: kind.__qualname__))


def _subclasses(kind: type[SessionFSError]) -> Iterator[type[SessionFSError]]:
    for child in kind.__subclasses__():
        yield child
        yield from _subclasses(child)


ALL_ERRORS = _all_errors()
TABLES: dict[str, Mapping[type[SessionFSError], int]] = {
    "errno": ERRNO_BY_ERROR,
    "exit code": EXIT_CODE_BY_ERROR,
}


@pytest.mark.parametrize("table", TABLES)
def test_every_error_has_its_own_row(table: str) -> None:
    assert [kind.__qualname__ for kind in ALL_ERRORS if kind not in TABLES[table]] == []


@pytest.mark.parametrize("table", TABLES)
def test_no_row_names_an_error_outside_the_tree(table: str) -> None:
    assert set(TABLES[table]) - {SessionFSError, *ALL_ERRORS} == set()


def test_every_errno_is_one_that_the_kernel_knows() -> None:
    assert {kind.__qualname__: n for kind, n in ERRNO_BY_ERROR.items() if n not in errno.errorcode} == {}


def test_no_error_says_enoent_unless_absence_is_certain() -> None:
    liars = [
        kind.__qualname__
        for kind, number in ERRNO_BY_ERROR.items()
        if number == errno.ENOENT and not issubclass(kind, errors.NotFoundError)
    ]
    assert liars == []


def test_every_exit_code_is_a_documented_one() -> None:
    assert {
        kind.__qualname__: code
        for kind, code in EXIT_CODE_BY_ERROR.items()
        if code not in DOCUMENTED_EXIT_CODES
    } == {}


def test_the_tree_is_defined_and_drawn_in_one_module() -> None:
    drawn = errors.__doc__ or ""
    assert [kind.__qualname__ for kind in ALL_ERRORS if kind.__module__ != errors.__name__] == []
    assert [kind.__qualname__ for kind in ALL_ERRORS if f" {kind.__qualname__}" not in drawn] == []


@pytest.mark.parametrize("kind", ALL_ERRORS, ids=lambda kind: kind.__qualname__)
def test_an_error_name_ends_in_error(kind: type[SessionFSError]) -> None:
    assert kind.__qualname__.endswith("Error")
