"""The project's source files, parsed once, and what a file refers to by its full dotted name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "sessionfs"
TESTS = ROOT / "tests"


@dataclass(frozen=True)
class SourceFile:
    """One Python file.

    Attributes:
        path: Below the project's root, with ``/``.
        text: Its source.
        tree: Its syntax tree.
    """

    path: str
    text: str
    tree: ast.Module


@cache
def files_of_product() -> tuple[SourceFile, ...]:
    """Give every file of the package."""
    return tuple(_read(path) for path in sorted(PACKAGE.rglob("*.py")))


@cache
def files_of_tests() -> tuple[SourceFile, ...]:
    """Give every file of the tests."""
    return tuple(_read(path) for path in sorted(TESTS.rglob("*.py")))


def _read(path: Path) -> SourceFile:
    text = path.read_text(encoding="utf-8")
    return SourceFile(path.relative_to(ROOT).as_posix(), text, ast.parse(text, str(path)))


def imported_modules(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Give the line and full name of every module that a file imports, late and type-only imports too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"


def references(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Give the line and full dotted name of everything that a file uses from an import.

    ``from datetime import datetime as d; d.now()`` gives ``datetime.datetime.now`` (and its prefixes).
    """
    full_names = _full_names(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute):
            dotted = _dotted(node)
            first, _, rest = dotted.partition(".")
            if first in full_names:
                yield node.lineno, full_names[first] + ("." + rest if rest else "")


def _full_names(tree: ast.Module) -> dict[str, str]:
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname:
                    names[alias.asname] = alias.name
                else:
                    top = alias.name.partition(".")[0]
                    names[top] = top
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        inner = _dotted(node.value)
        return f"{inner}.{node.attr}" if inner else ""
    return ""
