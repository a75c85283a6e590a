"""Grants for images of single files."""

from __future__ import annotations

import os

from tests.unit.filesystem.conftest import ME, Rig, answer


async def test_what_is_written_beside_a_database_after_its_image_is_told_of_at_once(rig: Rig) -> None:
    root = await rig.session()
    database, shown = await answer(rig.core.create(root, b"a.db", 0o644, os.O_RDWR, ME))
    log, _ = await answer(rig.core.create(root, b"a.db-wal", 0o644, os.O_RDWR, ME))
    other, _ = await answer(rig.core.create(root, b"b.db-wal", 0o644, os.O_RDWR, ME))
    for handle in (database.handle, log.handle, other.handle):
        rig.core.write(handle, 0, b"one")
    before = rig.operations().count("WRITTEN")
    rig.core.begin_image(shown.number)
    rig.core.write(log.handle, 3, b"two")
    assert rig.operations().count("WRITTEN") == before + 1
    rig.core.write(other.handle, 3, b"two")
    assert rig.operations().count("WRITTEN") == before + 1
    rig.core.write(database.handle, 3, b"two")
    assert rig.operations().count("WRITTEN") == before + 2
