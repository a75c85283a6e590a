from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from sessionfs.filesystem.barrier import first_bytes
from sessionfs.filesystem.barrier.first_bytes import copy_first_bytes


def opened(path: Path, body: bytes) -> int:
    path.write_bytes(body)
    return os.open(path, os.O_RDONLY)


@pytest.mark.parametrize("within_kernel", [True, False])
def test_exactly_the_first_bytes_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, within_kernel: bool
) -> None:
    def refuse(*_: Any) -> int:
        raise OSError(errno.EOPNOTSUPP, "not here")

    monkeypatch.setattr(first_bytes, "_COPY_BYTES", 1000)
    if not within_kernel:
        monkeypatch.setattr(os, "copy_file_range", refuse)
    body = os.urandom(10_001)
    source = opened(tmp_path / "a", body)
    for size_bytes in (0, 1, 1000, 5432, 10_001):
        target = tmp_path / f"b{size_bytes}"
        copy_first_bytes(source, str(target), size_bytes)
        assert target.read_bytes() == body[:size_bytes]
    os.close(source)


def test_a_file_that_became_shorter_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    source = opened(tmp_path / "a", b"12345")
    with pytest.raises(OSError, match="became shorter"):
        copy_first_bytes(source, str(tmp_path / "b"), 6)
    os.close(source)
    assert os.listdir(tmp_path) == ["a"]


def test_a_full_disk_is_told_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "copy_file_range", full)
    source = opened(tmp_path / "a", b"12345")
    with pytest.raises(OSError, match="full"):
        copy_first_bytes(source, str(tmp_path / "b"), 5)
    os.close(source)
    assert os.listdir(tmp_path) == ["a"]
