"""docs/CONFIGURATION.md says what the program does."""

from __future__ import annotations

from pathlib import Path

from sessionfs.cli.reference_page import page
from sessionfs.model.settings import NAMES

ROOT = Path(__file__).resolve().parents[3]


def test_the_page_is_current() -> None:
    current = (ROOT / "docs" / "CONFIGURATION.md").read_text(encoding="utf-8")
    assert current == page(), "run: python -m sessionfs.cli.reference_page > docs/CONFIGURATION.md"


def test_every_setting_is_on_it_with_a_meaning() -> None:
    rows = [line for line in page().splitlines() if line.startswith("| `")]
    for name in NAMES:
        (row,) = [line for line in rows if line.startswith(f"| `{name}` ")]
        assert len(row.split(" | ")[-1]) > 10
