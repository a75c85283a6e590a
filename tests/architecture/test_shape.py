"""Sizes, names and places of modules."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import PurePosixPath

from .source_files import SourceFile, files_of_product, files_of_tests

MAXIMUM_MODULE_LINES = 599
MAXIMUM_FUNCTION_LINES = 60
MAXIMUM_MODULES_A_FOLDER = 13

EMPTY_WORDS = {
    "util",
    "utils",
    "utility",
    "utilities",
    "helper",
    "helpers",
    "common",
    "misc",
    "manager",
    "managers",
}


def test_no_module_reaches_600_lines() -> None:
    sizes = {file.path: file.text.count("\n") for file in (*files_of_product(), *files_of_tests())}
    assert {path: lines for path, lines in sizes.items() if lines > MAXIMUM_MODULE_LINES} == {}


def test_no_function_is_longer_than_60_lines() -> None:
    too_long = [
        f"{file.path}:{node.lineno} {node.name}: {lines}"
        for file in (*files_of_product(), *files_of_tests())
        for node in ast.walk(file.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := _code_lines(node)) > MAXIMUM_FUNCTION_LINES
    ]
    assert too_long == []


def test_no_folder_holds_more_than_13_modules() -> None:
    modules = Counter(
        PurePosixPath(file.path).parent.as_posix()
        for file in files_of_product()
        if PurePosixPath(file.path).name not in {"__init__.py", "__main__.py"}
    )
    assert {folder: n for folder, n in modules.items() if n > MAXIMUM_MODULES_A_FOLDER} == {}


def test_no_module_folder_or_class_has_a_name_that_says_nothing() -> None:
    offenders = [
        file.path
        for file in (*files_of_product(), *files_of_tests())
        if any(_words(part) & EMPTY_WORDS for part in PurePosixPath(file.path).with_suffix("").parts)
    ]
    offenders += [
        f"{file.path}:{node.lineno} {node.name}"
        for file in files_of_product()
        for node in ast.walk(file.tree)
        if isinstance(node, ast.ClassDef) and _words(node.name) & EMPTY_WORDS
    ]
    assert offenders == []


def test_every_package_folder_says_what_lives_there() -> None:
    by_path = {file.path: file for file in files_of_product()}
    folders = {PurePosixPath(path).parent for path in by_path}
    silent = [folder.as_posix() for folder in folders if not _docstring_of(by_path, folder)]
    assert silent == []


def test_every_product_module_has_a_docstring() -> None:
    assert [file.path for file in files_of_product() if not ast.get_docstring(file.tree)] == []


def _code_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Count from ``def`` to the last line; a docstring is not counted, so that none is kept short for it."""
    lines = (node.end_lineno or node.lineno) - node.lineno + 1
    first = node.body[0]
    if ast.get_docstring(node, clean=False) is not None:
        lines -= (first.end_lineno or first.lineno) - first.lineno + 1
    return lines


def _words(name: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}


def _docstring_of(by_path: dict[str, SourceFile], folder: PurePosixPath) -> str | None:
    init = by_path.get(f"{folder.as_posix()}/__init__.py")
    return ast.get_docstring(init.tree) if init else None
