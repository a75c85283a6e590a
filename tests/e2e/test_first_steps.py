"""The newcomer's first command: it mounts, shows the file in the store, and can be run again."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.fuse, pytest.mark.slow]


@dataclass(frozen=True)
class Newcomer:
    """Somebody whose home directory is empty."""

    home: Path

    @property
    def mount(self) -> Path:
        return self.home / "sessions"

    @property
    def environment(self) -> dict[str, str]:
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("SESSIONFS_", "XDG_"))
        }
        return {**kept, "HOME": str(self.home)}

    def runs(self, *command: str) -> str:
        done = subprocess.run(
            command,
            cwd=self.home,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture
def newcomer(tmp_path: Path) -> Iterator[Newcomer]:
    somebody = Newcomer(tmp_path)
    yield somebody
    if os.path.ismount(somebody.mount):
        somebody.runs(str(ROOT / ".venv/bin/sessionfs"), "umount", str(somebody.mount))


def test_up_mounts_a_session_and_shows_its_file_in_the_store(newcomer: Newcomer) -> None:
    output = newcomer.runs(str(ROOT / "scripts/up"))
    stored = newcomer.home / ".local/share/sessionfs/store/sessions/hello/notes.txt"
    assert stored.read_bytes() == (newcomer.mount / "hello/notes.txt").read_bytes()
    assert str(stored) in output
    assert f"umount {newcomer.mount}" in output


def test_up_again_finds_the_mount_and_changes_nothing(newcomer: Newcomer) -> None:
    newcomer.runs(str(ROOT / "scripts/up"))
    (newcomer.mount / "hello/notes.txt").write_text("mine\n")
    output = newcomer.runs(str(ROOT / "scripts/up"))
    assert "Already mounted" in output
    assert (newcomer.mount / "hello/notes.txt").read_text() == "mine\n"
    lines = Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
    assert sum(line.split()[1] == str(newcomer.mount) for line in lines) == 1
