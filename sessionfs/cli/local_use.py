"""Whether this host uses a store: a mount of it that runs, or files in its state directory that are not in the store yet."""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING

from sessionfs.model.errors import LeftBehindError, SessionAlreadyOwnedError

if TYPE_CHECKING:
    from sessionfs.cli.bucket import Place
    from sessionfs.model.clock import Clock
    from sessionfs.working_copy.layout import StateLayout


def require_unmounted(place: Place, clock: Clock, *, looks_into_journal: bool) -> None:
    """Require that no mount of this host uses a store, and that none left files behind.

    Args:
        place: The store.
        clock: For the journal.
        looks_into_journal: Whether to look for files that were left behind; the journal is a database and may be written by that.

    Raises:
        SessionAlreadyOwnedError: A mount uses it.
        LeftBehindError: Files of this host are not in the store yet.
    """
    from sessionfs.daemon.mount_request import state_base  # noqa: PLC0415
    from sessionfs.daemon.state_lock import read_holder  # noqa: PLC0415
    from sessionfs.stores.store_urls import store_id  # noqa: PLC0415
    from sessionfs.working_copy.layout import StateLayout  # noqa: PLC0415

    base = state_base(place.settings.mount.state_dir, os.environ)
    layout = StateLayout(os.path.join(base, store_id(place.url)))
    try:
        descriptor = os.open(layout.lock, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        if looks_into_journal:
            _require_nothing_owed(place, layout, clock)
    except BlockingIOError:
        holder = read_holder(layout.lock)
        pid, where = (holder.pid, holder.mount_point) if holder is not None else (0, "DIR")
        raise SessionAlreadyOwnedError(
            f"{place.url} is in use by process {pid} of this host, mounted on {where}",
            holder=str(pid),
            remedy=f"sessionfs umount {where}; then run this again",
        ) from None
    finally:
        os.close(descriptor)


def _require_nothing_owed(place: Place, layout: StateLayout, clock: Clock) -> None:
    from sessionfs.model.roots import shown_id  # noqa: PLC0415
    from sessionfs.working_copy.upload_journal import UploadJournal  # noqa: PLC0415

    if not os.path.exists(layout.journal):
        return
    journal = UploadJournal(layout.journal, clock=clock)
    try:
        owed = sorted(shown_id(session) for session in journal.work_counts())
        is_behind = _log_end(layout) > int(journal.meta("log_position", "0"))
    finally:
        journal.close()
    if not owed and not is_behind:
        return
    which = f": session {', '.join(owed)}" if owed else ""
    raise LeftBehindError(
        f"files of this host are not in {place.url} yet{which}",
        paths=tuple(owed),
        remedy="mount it once more and unmount it, which uploads them; then run this again",
    )


def _log_end(layout: StateLayout) -> int:
    """Give the position behind the last operation of the intent log."""
    from sessionfs.formats.intent_records import HEADER_BYTES, decode_header  # noqa: PLC0415

    try:
        with open(layout.intent_log, "rb") as log:
            header = decode_header(log.read(HEADER_BYTES), layout.intent_log)
            size_bytes = os.fstat(log.fileno()).st_size
    except FileNotFoundError:
        return 0
    return header[0] + size_bytes - HEADER_BYTES if header is not None else 0
