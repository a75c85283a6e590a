"""What a host remembers of the archive, in ``<directory>/<session>/uploaded.json``: it only saves requests.

Invariants:

* What is remembered is used as a manifest only when it has the sum that the archive's own pointer names, and as blocks only after each was looked
  at. So a file that is lost, old, of another store or wrong never makes a wrong checkpoint.
* The file is replaced whole. One that cannot be read or written is as good as none: a full disk keeps nobody from archiving.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, suppress

from sessionfs.formats.archive import records as archive_records
from sessionfs.formats.archive.records import UploadedRecord
from sessionfs.model.clock import Clock
from sessionfs.model.errors import CorruptDataError, UnsupportedFormatError
from sessionfs.sessions.archive import archive_keys

FILE_NAME = "uploaded.json"


class UploadedNotes:
    """Reads and writes what is remembered.

    Args:
        directory: Where, made when it is missing; None to remember nothing.
        clock: Names the temporary files.
    """

    def __init__(self, directory: str | None, clock: Clock) -> None:
        self._directory = directory
        self._clock = clock

    def load(self, session: str) -> UploadedRecord:
        """Give what is remembered of a session, an empty record for nothing."""
        nothing = UploadedRecord(session=session)
        if self._directory is None:
            return nothing
        path = self._path(self._directory, session)
        try:
            with open(path, "rb") as file:
                found = archive_records.decode_uploaded(file.read(), path)
        except (OSError, CorruptDataError, UnsupportedFormatError):
            return nothing
        return found if found.session == session else nothing

    def save(self, record: UploadedRecord) -> None:
        """Replace what is remembered of a session, as far as the disk lets us."""
        if self._directory is None:
            return
        path = self._path(self._directory, record.session)
        fresh = f"{path}.{self._clock.unique_id()}"
        with suppress(OSError):
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            with ExitStack() as leaving:
                leaving.callback(_remove, fresh)
                with open(fresh, "xb") as file:
                    file.write(archive_records.encode(record))
                os.replace(fresh, path)

    @staticmethod
    def _path(directory: str, session: str) -> str:
        return os.path.join(directory, archive_keys.session_segment(session), FILE_NAME)


def _remove(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)
