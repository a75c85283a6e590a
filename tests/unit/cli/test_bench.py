"""``sessionfs bench``: what it measures, shows, and leaves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from sessionfs.bench import doors
from sessionfs.cli.main import main
from sessionfs.stores.open_store import open_store
from sessionfs.testing.s3_servers import SeaweedServer


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same workloads, with less to do."""
    monkeypatch.setattr(doors, "_APPENDS", 3)
    monkeypatch.setattr(doors, "_OBJECTS", 4)
    monkeypatch.setattr(doors, "_LOG_BYTES", 1 << 20)


def run(*arguments: str) -> str:
    result = CliRunner().invoke(main, ["bench", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_directory_is_measured_and_left_as_it_was(tmp_path: Path) -> None:
    shown = json.loads(run(str(tmp_path), "--rounds", "2", "--json"))
    assert shown["machine"]["cpus"] >= 1
    log, archive = shown["figures"]
    assert (log["name"], log["rounds"], log["target"]) == ("event-log", 2, 0.5)
    assert log["ours_seconds"] > 0
    assert log["ratio"] > 0
    assert archive["counts"] == archive["expected"] == {"objects": 3, "log bytes": 1024}
    assert archive["reached"]
    assert list(tmp_path.iterdir()) == []


def test_people_see_a_table() -> None:
    text = run("--rounds", "1")
    assert "event-log" in text
    assert "archive-growth: 1024 log bytes, 3 objects (as it is to be)" in text


@pytest.mark.s3
def test_a_bucket_is_measured_and_left_as_it_was(seaweed: SeaweedServer) -> None:
    url = seaweed.fresh_bucket()
    shown = json.loads(run(url, "--rounds", "1", "--json"))
    assert [one["name"] for one in shown["figures"]] == [
        "session-store-make",
        "session-store-rewrite",
        "session-store-read",
    ]
    store = open_store(url)
    # The record of who owned the session stays, as of every session that was claimed.
    left = [one.key for page in store.list_all("sessions/") for one in page.objects]
    assert [key for key in left if ".owner/" not in key and ".manifest/" not in key] == []
    store.close()


def test_a_store_that_nothing_is_measured_on_is_refused() -> None:
    result = CliRunner().invoke(main, ["bench", "gs://bucket"])
    assert result.exit_code == 2
    assert "s3://BUCKET" in result.stderr
