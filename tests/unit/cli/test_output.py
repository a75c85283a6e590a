"""How sizes, ages and errors look."""

from __future__ import annotations

import pytest

from sessionfs.cli import exit_codes
from sessionfs.cli.output import age_text, console, count_text, one_line, print_left_behind, size_text
from sessionfs.model import errors
from sessionfs.model.errors import SessionFSError


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (1023 * 1024, "0.999 MiB"),
        (999 * 1024, "999 KiB"),
        (3_000_000_000, "2.79 GiB"),
        (1 << 60, "1.02e+03 PiB"),
    ],
)
def test_sizes(size_bytes: int, text: str) -> None:
    assert size_text(size_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (99, "99 s"), (150, "2 min"), (7200, "2 h"), (900_000, "10 d")]
)
def test_ages(seconds: float, text: str) -> None:
    assert age_text(seconds) == text


def test_counts() -> None:
    assert [count_text(number, "file") for number in (0, 1, 2)] == ["0 files", "1 file", "2 files"]


def test_an_error_is_one_line_whatever_is_in_it() -> None:
    assert one_line("a\nb\t c\x1b[31m \udcff") == "a b c\\x1b[31m \\xff"


def test_what_is_left_behind_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    print_left_behind({"owed_files": 3, "owed_bytes": 2048, "left": ["s/a", "s/b"], "degraded": "no route"})
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == [
        "sessionfs: 3 files (2 KiB) stayed behind on this host: no route (the next mount uploads it)",
        "  s/a",
        "  s/b",
        "  ... and 1 more",
    ]


def test_without_a_terminal_tables_are_plain_and_wide(capsys: pytest.CaptureFixture[str]) -> None:
    console().print("[bold]x[/]" * 30)
    assert capsys.readouterr().out == "x" * 30 + "\n"


def test_an_unknown_error_takes_its_ancestors_exit_code() -> None:
    kind = type("NewError", (errors.AccessError,), {})
    assert exit_codes.exit_code_of(kind("x")) == exit_codes.STORE
    assert exit_codes.exit_code_of(SessionFSError("x")) == exit_codes.FAILED
    del kind


def test_every_exit_code_has_a_meaning() -> None:
    assert set(exit_codes.EXIT_CODE_BY_ERROR.values()) <= set(exit_codes.MEANINGS)
