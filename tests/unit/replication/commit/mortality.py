"""Processes that die: at a call of the store, or at a transaction of the journal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio

from sessionfs.testing.stopping_store import ProcessDied, StoppingStore
from sessionfs.working_copy.upload_journal import UploadJournal


class Steps:
    """Counts transactions of the journal as steps too: before they begin, and once they are on the disk.

    Attributes:
        journal: Of the host.
        mortal: Of the process.
        is_counting: Whether what happens is the process's doing.
    """

    journal: UploadJournal
    mortal: StoppingStore
    is_counting = False
    _first = 0

    @property
    def taken(self) -> int:
        """Steps since the counting began."""
        return self.mortal.steps - self._first

    @contextmanager
    def steps(self) -> Iterator[None]:
        """Count inside the block."""
        plain = self.journal.transaction

        @contextmanager
        def counted() -> Iterator[None]:
            is_outer = self.is_counting and self.journal._depth == 0
            if is_outer and not self.mortal.step():
                raise ProcessDied
            with plain():
                yield
            if is_outer and not self.mortal.step():
                raise ProcessDied

        self.journal.transaction = counted  # type: ignore[method-assign]
        self._first = self.mortal.steps
        self.is_counting = True
        try:
            yield
        finally:
            self.is_counting = False
            self.journal.transaction = plain  # type: ignore[method-assign]


def died(problem: BaseException) -> bool:
    """Whether nothing but the death of the process came out."""
    if isinstance(problem, BaseExceptionGroup):
        return all(died(inner) for inner in problem.exceptions)
    return isinstance(problem, ProcessDied | trio.Cancelled)
