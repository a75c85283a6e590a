"""No task waits inside a transaction: another task's statements would fall into it, and go with it when it is rolled back."""

from __future__ import annotations

import ast
from pathlib import Path

import sessionfs

ROOT = Path(sessionfs.__file__).parent


def _is_transaction(node: ast.With) -> bool:
    return any(ast.unparse(item.context_expr).endswith(".transaction()") for item in node.items)


def test_no_transaction_has_an_await_in_it() -> None:
    found = 0
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.With) and _is_transaction(node):
                found += 1
                waits = [
                    part
                    for part in ast.walk(node)
                    if isinstance(part, ast.Await | ast.AsyncWith | ast.AsyncFor)
                ]
                assert not waits, f"{path.relative_to(ROOT)}:{node.lineno}"
    assert found > 10
