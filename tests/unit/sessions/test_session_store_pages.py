"""The pages about the session store and about backends of others: their blocks run as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from sessionfs.testing.contracts.session_store import PROMISES

PAGES = Path(__file__).resolve().parents[3] / "docs" / "python"


def _blocks(page: str, language: str) -> list[str]:
    text = (PAGES / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def _run(arguments: list[str], directory: Path, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=directory,
        env={**os.environ, **more},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_programs_of_the_session_store_page_run(tmp_path: Path) -> None:
    (program, blocking) = _blocks("session-store.md", "python")
    first = _run(["-W", "error", "-c", program], tmp_path)
    assert (first.returncode, first.stderr) == (0, "")
    assert (tmp_path / "STORE/sessions/s1/notes/today.md").read_bytes() == b"# Today\n"
    second = _run(["-W", "error", "-c", blocking], tmp_path)
    assert (second.returncode, second.stdout, second.stderr) == (0, "8\n", "")


def test_the_backend_of_the_page_is_registered_run_and_keeps_every_promise(tmp_path: Path) -> None:
    (module,) = _blocks("backends.md", "python")
    (project,) = _blocks("backends.md", "toml")
    (shell,) = _blocks("backends.md", "sh")
    (shown,) = _blocks("backends.md", "text")
    (tmp_path / "sqlite_sessions.py").write_text(module, encoding="utf-8")
    information = tmp_path / "sqlite_sessions-1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: sqlite-sessions\nVersion: 1\n", encoding="utf-8"
    )
    ((group, entries),) = tomllib.loads(project)["project"]["entry-points"].items()
    lines = [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items()), ""]
    (information / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")

    python, *arguments = shell.split()
    assert python == "python"
    done = _run(arguments, tmp_path, PYTHONPATH=str(tmp_path))
    assert done.stderr == ""
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["sqlite", promise.id, "holds"] for promise in PROMISES
    ]
    assert done.returncode == 0
    assert done.stdout.startswith(shown)
