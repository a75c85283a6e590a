"""The last step: ``session-store.json`` names the destination. The file is replaced whole, or not at all."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass

from sessionfs.formats.store_settings import StoreSettings, encode
from sessionfs.model.clock import Clock
from sessionfs.model.errors import LocalDiskError


@dataclass(frozen=True, slots=True)
class Switched:
    """What a switch did.

    Attributes:
        path: Of the file.
        before: What it held, None when there was none.
        is_changed: Whether it had to be written at all.
    """

    path: str
    before: bytes | None
    is_changed: bool

    @property
    def way_back(self) -> str:
        """What a person does to go back."""
        if self.before is None:
            return f"remove {self.path}"
        return f"put the former file back: {self.path}.before has it"


def switch_to(path: str, settings: StoreSettings, clock: Clock) -> Switched:
    """Let the file name a store; what it held is kept beside it as ``<path>.before``.

    Args:
        path: Absolute path of the file; its directory is made when it is missing.
        settings: The store.
        clock: Names the temporary file.

    Raises:
        LocalDiskError: The disk refused; the file is as it was.
    """
    raw = encode(settings)
    try:
        before = _read(path)
        if before == raw:
            return Switched(path, before, is_changed=False)
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        if before is not None:
            _replace(f"{path}.before", before, clock)
        _replace(path, raw, clock)
    except OSError as problem:
        raise LocalDiskError(
            f"cannot write {path}: {problem.strerror}",
            errno_number=problem.errno or 0,
            remedy="the migration itself is complete; run it again, or write that file",
        ) from None
    return Switched(path, before, is_changed=True)


def _read(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


def _replace(path: str, raw: bytes, clock: Clock) -> None:
    fresh = f"{path}.{clock.unique_id()}"
    try:
        with open(fresh, "xb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(fresh)
    directory = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
