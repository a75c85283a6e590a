"""Tests test something: none is skipped out of sight or always true; no work is left as a note."""

from __future__ import annotations

import ast
import re

from .source_files import files_of_product, files_of_tests, references

# The tiers of the tests live here: with SESSIONFS_REQUIRE a skip of a tier fails.
MAY_SKIP = "tests/conftest.py"
SKIPS = re.compile(
    r"pytest\.(skip|xfail|importorskip|mark\.(skip|skipif|xfail))$|unittest\.(skip\w*|SkipTest)$"
)


def test_no_test_is_skipped_but_by_its_tier() -> None:
    skips = [
        f"{file.path}:{line} {name}"
        for file in files_of_tests()
        if file.path != MAY_SKIP
        for line, name in references(file.tree)
        if SKIPS.match(name)
    ]
    assert skips == []


def test_no_assertion_is_a_constant() -> None:
    empty = [
        f"{file.path}:{node.lineno}"
        for file in (*files_of_tests(), *files_of_product())
        for node in ast.walk(file.tree)
        if isinstance(node, ast.Assert) and isinstance(node.test, ast.Constant)
    ]
    assert empty == []


def test_every_test_module_holds_a_test() -> None:
    silent = [
        file.path
        for file in files_of_tests()
        if file.path.rpartition("/")[2].startswith("test_")
        and not any(
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
            for node in ast.walk(file.tree)
        )
        and "TestCase" not in file.text
    ]
    assert silent == []


def test_no_product_code_is_a_stub() -> None:
    stubs = [
        f"{file.path}:{node.lineno}"
        for file in files_of_product()
        for node in ast.walk(file.tree)
        if isinstance(node, ast.Raise) and "NotImplementedError" in ast.dump(node)
    ]
    assert stubs == []


def test_no_work_is_left_as_a_note_in_the_code() -> None:
    note = re.compile(r"#.*\b(TO" + r"DO|FIX" + r"ME)\b")
    notes = [
        f"{file.path}:{number}"
        for file in (*files_of_product(), *files_of_tests())
        for number, line in enumerate(file.text.splitlines(), 1)
        if note.search(line)
    ]
    assert notes == []
