"""Which store is opened, what is asked of it, and what comes out when it cannot be."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import trio
from click.testing import CliRunner

from sessionfs.cli.exit_codes import FAILED
from sessionfs.cli.main import main
from sessionfs.formats.migration.records import RECORD_KEY, MigrationRecord, encode_record
from sessionfs.formats.store_settings import StoreSettings
from sessionfs.model.errors import (
    BucketNotFoundError,
    ConflictError,
    LocalDiskError,
    NotFoundError,
    SettingsError,
    StoreUrlError,
    UnsupportedFormatError,
)
from sessionfs.sessions.blocking_session_store import open_blocking_session_store
from sessionfs.sessions.object_place import ObjectPlace
from sessionfs.sessions.store import PlaceSessionStore, open_session_store, opening
from sessionfs.stores.base import Capabilities, IfAbsent, ObjectMetadata
from sessionfs.stores.local_directory import LocalDirectoryStore
from sessionfs.stores.probe import ProbeResult
from sessionfs.testing.s3_servers import MotoServer


def _bucket(store: PlaceSessionStore) -> ObjectPlace:
    assert isinstance(store.place, ObjectPlace)
    return store.place


def _record_in(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_bytes())
    return found


def _write(file: Path, text: str) -> None:
    file.write_text(text, encoding="utf-8")


async def test_a_directory_has_the_layout_of_the_format(tmp_path: Path) -> None:
    async with open_session_store(str(tmp_path)) as store:
        await store.write_index({"s1": {"title": "one"}})
        await store.append("s1", "journal/events.jsonl", {"seq": 1})
    assert json.loads((tmp_path / "sessions.json").read_bytes()) == {"s1": {"title": "one"}}
    assert (tmp_path / "sessions/s1/journal/events.jsonl").read_bytes() == b'{"seq":1}\n'
    async with open_session_store(f"file://{tmp_path}") as store:
        assert await store.replay("s1", "journal/events.jsonl") == [b'{"seq":1}']


async def test_a_store_that_a_migration_has_not_finished_is_no_store_yet(tmp_path: Path) -> None:
    store = LocalDirectoryStore(str(tmp_path))
    record = MigrationRecord(source="s3://old", source_id="x", state="copying")
    store.put(RECORD_KEY, encode_record(record), condition=IfAbsent(), metadata=ObjectMetadata())
    with pytest.raises(ConflictError, match="holds a part of s3://old"):
        async with open_session_store(str(tmp_path)):
            pass
    done = await trio.to_thread.run_sync(lambda: CliRunner().invoke(main, ["gc", str(tmp_path), "s"]))
    assert (done.exit_code, "holds a part of s3://old" in done.stderr) == (FAILED, True), done


async def test_memory_is_fresh_each_time() -> None:
    async with open_session_store("memory:") as store:
        await store.write_file("s", "f", b"x")
        assert await store.list_sessions() == ["s"]
    async with open_session_store("memory:") as store:
        assert await store.list_sessions() == []


async def test_with_nothing_named_the_default_directory_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    async with open_session_store() as store:
        await store.write_file("s", "f", b"x")
    assert (tmp_path / "sessionfs/store/sessions/s/f").read_bytes() == b"x"
    async with open_session_store(StoreSettings(backend="local")) as store:
        assert await store.read_file("s", "f") == b"x"


async def test_a_settings_file_names_the_store(tmp_path: Path) -> None:
    file = tmp_path / "session-store.json"
    (tmp_path / "kept here").mkdir()
    file.write_text('{"backend": "local", "directory": "kept here"}', encoding="utf-8")
    async with open_session_store(str(file)) as store:
        await store.write_file("s", "f", b"x")
    assert (tmp_path / "kept here/sessions/s/f").read_bytes() == b"x"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"backend": "tape"}', '{"backend": "s3"}'])
async def test_a_settings_file_that_names_no_store_is_an_error_with_its_path(
    tmp_path: Path, text: str
) -> None:
    file = tmp_path / "session-store.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(SettingsError, match=str(file)):
        async with open_session_store(str(file)):
            pass
    assert os.listdir(tmp_path) == ["session-store.json"]


async def test_what_does_not_exist_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"session-store\.json"):
        async with open_session_store(str(tmp_path / "session-store.json")):
            pass
    with pytest.raises(BucketNotFoundError):
        async with open_session_store(str(tmp_path / "missing" / "below")):
            pass
    (tmp_path / "session-store.json").mkdir()
    with pytest.raises(LocalDiskError, match=r"session-store\.json"):
        async with open_session_store(str(tmp_path / "session-store.json")):
            pass
    with pytest.raises(StoreUrlError):
        async with open_session_store("s4://bucket"):
            pass
    assert os.listdir(tmp_path) == ["session-store.json"]


async def test_an_error_of_the_block_comes_out_as_it_is(tmp_path: Path) -> None:
    for error in (ValueError("mine"), NotFoundError("mine"), OSError("mine")):
        with pytest.raises(type(error), match="mine") as caught:
            async with open_session_store(str(tmp_path)):
                raise error
        assert caught.value is error


@pytest.fixture(scope="module")
def probed(moto_server: MotoServer, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A bucket, and the record of what its server can do, made by opening it."""
    url, record = moto_server.fresh_bucket(), str(tmp_path_factory.mktemp("state") / "made/capabilities.json")
    with open_blocking_session_store(url, capabilities_file=record):
        return url, record


@pytest.fixture
def record(probed: tuple[str, str], tmp_path: Path) -> Path:
    """A copy of the record."""
    return Path(shutil.copy(probed[1], tmp_path))


def test_what_a_bucket_can_do_is_kept_for_later(probed: tuple[str, str]) -> None:
    known = json.loads(Path(probed[1]).read_bytes())
    assert known["capabilities"]["conditional_put"] is True
    assert os.listdir(os.path.dirname(probed[1])) == ["capabilities.json"]


async def test_what_is_known_of_a_bucket_is_believed(probed: tuple[str, str], record: Path) -> None:
    known = _record_in(record)
    can = known["capabilities"]["append_by_copy"]
    known["capabilities"]["append_by_copy"] = not can
    _write(record, json.dumps(known))
    # A probe would find that it is otherwise.
    async with open_session_store(probed[0], capabilities_file=str(record)) as store:
        assert _bucket(store).store.capabilities.append_by_copy is not can
        await store.append("s", "f", "line")
        assert await store.replay("s", "f") == [b"line"]


async def test_a_damaged_record_is_made_again(probed: tuple[str, str], record: Path) -> None:
    before = _record_in(record)
    _write(record, "damaged")
    async with open_session_store(probed[0], capabilities_file=str(record)):
        pass
    assert _record_in(record)["capabilities"] == before["capabilities"]


async def test_a_record_of_a_newer_version_is_left_alone(probed: tuple[str, str], record: Path) -> None:
    newer = json.dumps(_record_in(record) | {"format": 99})
    _write(record, newer)
    with pytest.raises(UnsupportedFormatError, match=r"capabilities\.json"):
        async with open_session_store(probed[0], capabilities_file=str(record)):
            pass
    assert _record_in(record)["format"] == 99


async def test_a_settings_file_of_a_bucket_opens_it(
    probed: tuple[str, str], record: Path, tmp_path: Path
) -> None:
    options = {name: values[0] for name, values in parse_qs(urlsplit(probed[0]).query).items()}
    named = {"backend": "s3", "bucket": urlsplit(probed[0]).netloc, "prefix": "team/a", **options}
    file = tmp_path / "session-store.json"
    file.write_text(json.dumps(named), encoding="utf-8")
    async with open_session_store(str(file), capabilities_file=str(record)) as store:
        await store.write_file("s", "f", b"x")
    async with open_session_store(probed[0].replace("?", "/team/a?"), capabilities_file=str(record)) as store:
        assert await store.read_file("s", "f") == b"x"


async def test_a_bucket_that_is_missing_is_an_error_known_or_not(
    probed: tuple[str, str], record: Path, tmp_path: Path
) -> None:
    missing = probed[0].replace("bucket-", "missing-")
    for capabilities_file in (record, tmp_path / "unknown.json"):
        with pytest.raises(BucketNotFoundError):
            async with open_session_store(missing, capabilities_file=str(capabilities_file)):
                pass
    assert os.listdir(tmp_path) == [record.name]


async def test_a_record_that_cannot_be_kept_is_an_error_with_its_path(
    probed: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "probe", lambda *_stores, **_options: ProbeResult(Capabilities()))
    _write(tmp_path / "file", "")
    with pytest.raises(LocalDiskError, match="file/capabilities"):
        async with open_session_store(probed[0], capabilities_file=str(tmp_path / "file/capabilities.json")):
            pass
    async with open_session_store(probed[0]) as store:
        assert _bucket(store).store.capabilities == Capabilities()
