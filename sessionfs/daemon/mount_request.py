"""What the processes of a mount tell each other when they start, as MessagePack frames; never a secret."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Mapping

import msgspec

from sessionfs.formats.link_messages import (
    Failure,
)
from sessionfs.model.errors import SettingsError
from sessionfs.model.settings import ReplicationSettings, Settings

_LENGTH = struct.Struct("<I")


class MountRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a daemon must know.

    Attributes:
        store_url: Canonical URL of the store.
        mount_point: Absolute path.
        state_root: Absolute path of the store's state directory on this host.
        settings: Resolved.
        fuse_options: Further options for the kernel and libfuse, as after ``-o``.
    """

    store_url: str
    mount_point: str
    state_root: str
    settings: Settings
    fuse_options: tuple[str, ...] = ()


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The mount answers.

    Attributes:
        pid: The daemon.
        warnings: One line each.
    """

    pid: int
    warnings: tuple[str, ...] = ()


MountOutcome = Ready | Failure
"""What a starting daemon reports, once."""


class ReplicationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a replication process must know.

    Attributes:
        store_url: Canonical URL of the store.
        mount_point: For display.
        state_root: The state directory.
        settings: Its part of the settings.
        log_level: As in `MountSettings`.
        first: The mount is not up yet: a store that refuses us ends the start. Later it only degrades.
    """

    store_url: str
    mount_point: str
    state_root: str
    settings: ReplicationSettings
    log_level: str
    first: bool


class Started(msgspec.Struct, frozen=True, tag=True):
    """The replication process is up.

    Attributes:
        degraded: Why the store could not be asked, "" when it answered.
    """

    degraded: str = ""


ReplicationOutcome = Started | Failure
"""What a starting replication process reports, once."""


def frame(message: msgspec.Struct) -> bytes:
    """Give a message's bytes with their length before them."""
    payload = msgspec.msgpack.encode(message)
    return _LENGTH.pack(len(payload)) + payload


def receive_exactly(connection: socket.socket, length: int) -> bytes:
    """Read so many bytes from a blocking socket.

    Raises:
        EOFError: The other side closed first.
    """
    pieces: list[bytes] = []
    while length:
        piece = connection.recv(length)
        if not piece:
            raise EOFError
        pieces.append(piece)
        length -= len(piece)
    return b"".join(pieces)


def receive_frame(connection: socket.socket) -> bytes:
    """Read one frame's payload from a blocking socket.

    Raises:
        EOFError: The other side closed first.
    """
    (length,) = _LENGTH.unpack(receive_exactly(connection, _LENGTH.size))
    return receive_exactly(connection, length)


def state_base(state_dir: str, environment: Mapping[str, str]) -> str:
    """Give the directory that holds one state directory per store.

    Args:
        state_dir: The setting; "" for the platform's default.
        environment: The process's.

    Raises:
        SettingsError: The directory is named by a relative path.
    """
    if state_dir:
        path = os.path.expanduser(state_dir)
        if not os.path.isabs(path):
            raise SettingsError(f"state_dir {state_dir!r} is no absolute path")
        return os.path.normpath(path)
    base = environment.get("XDG_STATE_HOME", "")
    if not os.path.isabs(base):
        base = os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(base, "sessionfs")
