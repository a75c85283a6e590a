"""The page about the mirrored place: its programs run as they stand there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from sessionfs.daemon.launch.command import module_environment
from sessionfs.model.settings import NAMES

PAGE = Path(__file__).resolve().parents[4] / "docs" / "python" / "mirrored.md"


def test_the_programs_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in {f"SESSIONFS_{setting.upper()}" for setting in NAMES}:
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "store").mkdir()
    text = PAGE.read_text(encoding="utf-8")
    programs = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(programs) == 2
    # Nothing but what they print themselves: no line of our logs.
    for program, printed in zip(programs, ("1\n", ""), strict=True):
        source = program.replace('"STORE"', repr(str(tmp_path / "store")))
        source = source.replace('"STATE"', repr(str(tmp_path / "state")))
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", source],
            cwd=tmp_path,
            env=module_environment({"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, printed, "")
    assert (tmp_path / "store" / "sessions" / "s1" / "notes" / "today.md").read_bytes() == b"# Today\n"
