"""The page that both processes map."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sessionfs.model.errors import LocalDiskError
from sessionfs.working_copy.lease_page import LeasePage


def test_a_new_page_has_no_lease_and_no_outage(tmp_path: Path) -> None:
    page = LeasePage.open(str(tmp_path / "lease"), "boot")
    assert (page.deadline_seconds, page.is_outage) == (0.0, False)
    assert (tmp_path / "lease").stat().st_mode & 0o777 == 0o600
    page.close()


def test_the_other_mapping_sees_every_change(tmp_path: Path) -> None:
    writer = LeasePage.open(str(tmp_path / "lease"), "boot")
    reader = LeasePage.open(str(tmp_path / "lease"), "boot")
    writer.set_deadline(12345.678)
    writer.set_outage(is_outage=True)
    assert (reader.deadline_seconds, reader.is_outage) == (12345.678, True)
    writer.set_deadline(0.0)
    writer.set_outage(is_outage=False)
    assert (reader.deadline_seconds, reader.is_outage) == (0.0, False)


def test_another_process_sees_every_change(tmp_path: Path) -> None:
    path = str(tmp_path / "lease")
    LeasePage.open(path, "boot").set_deadline(77.5)
    program = (
        "import sys; from sessionfs.working_copy.lease_page import LeasePage;"
        " page = LeasePage.open(sys.argv[1], 'boot'); print(page.deadline_seconds); page.set_outage(is_outage=True)"
    )
    shown = subprocess.run([sys.executable, "-c", program, path], check=True, capture_output=True, text=True)
    assert shown.stdout.strip() == "77.5"
    assert LeasePage.open(path, "boot").is_outage


def test_a_page_that_is_opened_again_keeps_its_deadline(tmp_path: Path) -> None:
    path = str(tmp_path / "lease")
    page = LeasePage.open(path, "boot")
    page.set_deadline(50.0)
    page.close()
    assert LeasePage.open(path, "boot").deadline_seconds == 50.0


def test_a_page_of_another_boot_has_no_lease(tmp_path: Path) -> None:
    path = str(tmp_path / "lease")
    page = LeasePage.open(path, "boot")
    page.set_deadline(50.0)
    page.set_outage(is_outage=True)
    again = LeasePage.open(path, "another")
    assert (again.deadline_seconds, again.is_outage) == (0.0, False)


@pytest.mark.parametrize("raw", [b"", b"x", b"\xff" * 4096, b"\xff" * 10_000])
def test_a_page_that_is_none_has_no_lease(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "lease").write_bytes(raw)
    page = LeasePage.open(str(tmp_path / "lease"), "boot")
    assert (page.deadline_seconds, page.is_outage) == (0.0, False)
    page.set_deadline(3.0)
    assert LeasePage.open(str(tmp_path / "lease"), "boot").deadline_seconds == 3.0


def test_a_page_that_cannot_be_made_names_its_path(tmp_path: Path) -> None:
    with pytest.raises(LocalDiskError, match="missing/lease"):
        LeasePage.open(str(tmp_path / "missing" / "lease"), "boot")
