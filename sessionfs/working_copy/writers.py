"""The lease test: asks the kernel whether anybody may write a file. Counts of handles cannot say: a mapping outlives its descriptor.

Source: fcntl(2), F_SETLEASE: a read lease is refused while the file is open for writing or mapped shared and writable.
"""

from __future__ import annotations

import fcntl
import signal

_F_SETSIG = 10
_F_SETLEASE = fcntl.F_SETLEASE


def has_writer(descriptor: int) -> bool:
    """Whether a descriptor or mapping that may write the file exists; also when the kernel cannot say.

    Args:
        descriptor: Open for reading only. The lease is given back before this returns.
    """
    try:
        # An opener in the middle of the test would send SIGIO, which ends a process; SIGURG is ignored.
        fcntl.fcntl(descriptor, _F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, _F_SETLEASE, fcntl.F_RDLCK)
    except OSError:
        return True
    fcntl.fcntl(descriptor, _F_SETLEASE, fcntl.F_UNLCK)
    return False
