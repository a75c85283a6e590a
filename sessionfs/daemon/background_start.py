"""Starts a daemon in the background and waits until its mount answers."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile

import msgspec

from sessionfs.daemon.control.protocol import revived_error
from sessionfs.daemon.launch.command import module_command, module_environment
from sessionfs.daemon.mount_request import MountOutcome, MountRequest, Ready, frame, receive_frame
from sessionfs.formats.link_messages import (
    Failure,
)
from sessionfs.model.errors import InternalError

_START_SECONDS = 150.0
_LAST_WORDS_BYTES = 2000


def start_in_background(request: MountRequest) -> Ready:
    """Start the daemon of a mount, detached from this process and its terminal.

    Returns:
        Its report, once the mount answers.

    Raises:
        SessionFSError: The daemon's own error, or that it ended without one.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with tempfile.TemporaryFile() as last_words, ours:
        with theirs:
            process = subprocess.Popen(
                module_command("sessionfs.daemon.launch.daemon", "--fd", str(theirs.fileno())),
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=last_words,
                stderr=last_words,
                cwd="/",
                env=module_environment(os.environ),
                start_new_session=True,
            )
        ours.settimeout(_START_SECONDS)
        try:
            ours.sendall(frame(request))
            outcome = msgspec.msgpack.decode(receive_frame(ours), type=MountOutcome)
        except (EOFError, ConnectionError):
            code = process.wait()
            last_words.seek(0)
            said = last_words.read()[-_LAST_WORDS_BYTES:].decode("utf-8", "replace").strip().splitlines()
            why = f": {said[-1]}" if said else ""
            raise InternalError(
                f"the daemon ended with {code}{why}", remedy=f"see {request.state_root}/daemon.log"
            ) from None
        except TimeoutError:
            process.terminate()
            raise InternalError(f"the daemon said nothing for {_START_SECONDS:.0f} s") from None
        except KeyboardInterrupt:
            process.terminate()
            raise
    if isinstance(outcome, Failure):
        process.wait()
        raise revived_error(outcome.kind, outcome.message, outcome.remedy)
    # The daemon outlives this process, which must not be told that it forgot it.
    process.returncode = 0
    return outcome
