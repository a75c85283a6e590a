"""Which files the intent log speaks of, and where: a commit must know what changed since the journal last read the log."""

from __future__ import annotations

from collections.abc import Iterator


class RecentRecords:
    """Positions of the newest record of each file, oldest first.

    Records that the journal holds are forgotten, so that this is as small as what is not applied yet.

    Attributes:
        directory_moved: Position of the newest move of a directory: everything below it has other names since.
    """

    def __init__(self) -> None:
        self._positions: dict[int, int] = {}
        self.directory_moved = -1

    def note(self, number: int, position: int) -> None:
        """Note a record about a file.

        Args:
            number: The file.
            position: Behind the record.
        """
        self._positions.pop(number, None)
        self._positions[number] = position

    def forget(self, number: int) -> None:
        """Drop a file that has lost its last name."""
        self._positions.pop(number, None)

    def consume(self, position: int) -> None:
        """Drop what the journal holds.

        Args:
            position: Up to where.
        """
        positions = self._positions
        while positions:
            number = next(iter(positions))
            if positions[number] > position:
                return
            del positions[number]

    def after(self, position: int) -> Iterator[int]:
        """Give the files with a record behind a position."""
        for number, here in reversed(self._positions.items()):
            if here <= position:
                return
            yield number
