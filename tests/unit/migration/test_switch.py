"""``session-store.json`` is replaced whole, and the way back is told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sessionfs.formats.store_settings import StoreSettings, decode
from sessionfs.migration.switch import switch_to
from sessionfs.model.clock import SystemClock
from sessionfs.model.errors import LocalDiskError

NEW = StoreSettings(backend="s3", bucket="b-1", prefix="p")
CLOCK = SystemClock()


def test_without_a_file_it_is_made_and_the_way_back_is_to_remove_it(tmp_path: Path) -> None:
    path = tmp_path / "config" / "session-store.json"
    done = switch_to(str(path), NEW, CLOCK)
    assert decode(path.read_bytes(), str(path)) == NEW
    assert done.way_back == f"remove {path}"
    assert os.listdir(path.parent) == [path.name]


def test_the_former_file_is_kept_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "session-store.json"
    path.write_bytes(b'{"backend": "local"}')
    done = switch_to(str(path), NEW, CLOCK)
    assert decode(path.read_bytes(), str(path)) == NEW
    assert (tmp_path / "session-store.json.before").read_bytes() == b'{"backend": "local"}'
    assert "session-store.json.before" in done.way_back


def test_a_second_switch_changes_nothing_and_keeps_the_way_back(tmp_path: Path) -> None:
    path = tmp_path / "session-store.json"
    path.write_bytes(b'{"backend": "local"}')
    switch_to(str(path), NEW, CLOCK)
    before = path.stat().st_ino
    assert not switch_to(str(path), NEW, CLOCK).is_changed
    assert path.stat().st_ino == before
    assert (tmp_path / "session-store.json.before").read_bytes() == b'{"backend": "local"}'


def test_a_disk_that_refuses_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(LocalDiskError, match="the migration itself is complete"):
        switch_to(str(tmp_path / "file" / "session-store.json"), NEW, CLOCK)
    assert os.listdir(tmp_path) == ["file"]
