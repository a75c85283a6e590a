"""The daemon of a mount: ``python -m sessionfs.daemon.launch.daemon --fd N``, started by ``sessionfs mount``."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys

import msgspec
import structlog

from sessionfs.daemon.bootstrap import run_mount
from sessionfs.daemon.log_setup import configure_logs
from sessionfs.daemon.mount_request import MountOutcome, MountRequest, Ready, frame, receive_frame
from sessionfs.formats.link_messages import (
    failure_of,
)
from sessionfs.model.errors import InternalError, SessionFSError
from sessionfs.working_copy.layout import StateLayout

_LOG_BYTES = 16 << 20


def main() -> int:
    """Run the daemon.

    Returns:
        0, 1 when the mount could not be made (the reason was reported), or 4 when bytes stayed behind.
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    connection = socket.socket(fileno=int(sys.argv[sys.argv.index("--fd") + 1]))
    request = msgspec.msgpack.decode(receive_frame(connection), type=MountRequest)
    configure_logs(request.settings.mount.log_level, process="daemon")

    def report(outcome: MountOutcome) -> None:
        with contextlib.suppress(OSError):  # nobody waits any more; the mount is there all the same
            connection.sendall(frame(outcome))
        connection.close()

    def report_ready(ready: Ready) -> None:
        report(ready)

    try:
        return run_mount(request, report_ready, on_state=_log_to_file)
    except SessionFSError as error:
        structlog.get_logger("sessionfs.daemon").error("mount failed", problem=str(error))
        report(failure_of(error))
        return 1
    except Exception as error:
        structlog.get_logger("sessionfs.daemon").exception("mount failed")
        report(failure_of(InternalError(f"the daemon failed: {error!r}")))
        raise


def _log_to_file(layout: StateLayout) -> None:
    """Send standard output and error to the log file from now on."""
    path = layout.daemon_log
    with contextlib.suppress(FileNotFoundError):
        if os.stat(path).st_size > _LOG_BYTES:
            os.replace(path, path + ".1")
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
