"""The uploader on a real S3 server: the same outcome as on the memory store."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from sessionfs.model.settings import ReplicationSettings
from sessionfs.stores.open_store import open_store
from sessionfs.testing.faulty_store import LostResponse
from sessionfs.testing.s3_servers import SeaweedServer
from tests.unit.replication.uploads.tree_world import World

SETTINGS = ReplicationSettings(
    upload_delay_seconds=0.0,
    max_upload_delay_seconds=0.0,
    retry_minimum_seconds=0.05,
    retry_maximum_seconds=0.2,
)


@pytest.fixture(params=["everything", "conditional puts only"])
def world(request: pytest.FixtureRequest, tmp_path: Path, seaweed: SeaweedServer) -> World:
    store = open_store(seaweed.fresh_bucket())
    if request.param != "everything":
        store = store.with_capabilities(
            replace(
                store.capabilities,
                conditional_delete=False,
                conditional_copy=False,
                copy_source_match=False,
                conditional_complete=False,
                append_by_copy=False,
            )
        )
    return World(tmp_path, settings=SETTINGS, store=store)


@pytest.mark.s3
async def test_a_tree_its_changes_and_lost_responses_end_equal(world: World) -> None:
    large = os.urandom(6 << 20)
    world.make_directory(b"d")
    world.write(b"d/small", b"x")
    world.write(b"large", large)
    world.write(b"empty", b"")
    world.make_symlink(b"link", b"d/small")
    await world.settle(60)
    world.assert_equal({b"d": None, b"d/small": b"x", b"large": large, b"empty": b"", b"link": b"d/small"})

    can_copy = world.trio_store.capabilities.append_by_copy
    if can_copy:
        world.store.plan("append", LostResponse())
    world.store.plan("put", LostResponse())
    world.append(b"large", b"tail")
    world.change_mode(b"d/small", 0o600)
    world.unlink(b"link")
    await world.settle(60)
    world.assert_equal({b"d": None, b"d/small": b"x", b"large": large + b"tail", b"empty": b""})

    if can_copy:
        world.store.plan("copy", LostResponse())
    world.change_mode(b"large", 0o755)
    world.rename(b"d", b"e")
    world.exchange(b"empty", b"e/small")
    await world.settle(60)
    world.assert_equal({b"e": None, b"e/small": b"", b"large": large + b"tail", b"empty": b"x"})

    world.rename(b"e/small", b"z")
    world.remove_directory(b"e")
    world.rename(b"z", b"e")
    await world.settle(60)
    world.assert_equal({b"e": b"", b"large": large + b"tail", b"empty": b"x"})
    assert world.kept_aside() == []
    world.store.assert_all_used()


@pytest.mark.s3
async def test_another_writers_object_is_kept_aside(world: World) -> None:
    world.write(b"a", b"one")
    await world.settle(60)
    world.put_foreign(b"a", b"theirs")
    world.write(b"a", b"two")
    await world.settle(60)
    world.assert_equal({b"a": b"two"})
    assert world.kept_aside() == [b"theirs"]
