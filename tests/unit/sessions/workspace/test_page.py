"""The page about workspaces: its programs run as they stand, and it names what there is."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from sessionfs.sessions.workspace.metadata import FIELDS
from sessionfs.sessions.workspace.options import WorkspaceOptions

PAGE = Path(__file__).resolve().parents[4] / "docs" / "python" / "workspace.md"


def run(program: str, directory: Path) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=directory, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def test_the_programs_of_the_page_run(tmp_path: Path) -> None:
    text = PAGE.read_text(encoding="utf-8")
    asynchronous, blocking, retention = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert run(asynchronous, tmp_path) == (0, "", "")
    assert (tmp_path / "STORE/sessions/s1/files/notes.md").read_bytes() == b"# Notes\n- one\n- two\n"
    assert (tmp_path / "STORE/eval/run7/published.json").exists()
    assert run(blocking, tmp_path) == (0, "3\n[{'seq': 2, 'type': 'turn.ended'}]\n", "")
    assert run(retention, tmp_path) == (0, "[]\n", "")


def test_the_page_names_every_field_of_the_metadata_and_no_option_that_does_not_exist() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [field for field in FIELDS if f"`{field}`" not in text] == []
    named = set(re.findall(r"`([a-z]+_(?:bytes|seconds|limit|format|directory))`", text))
    assert {"sum_bytes", "probe_seconds"} <= named <= set(WorkspaceOptions.__dataclass_fields__)
