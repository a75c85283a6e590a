"""Shared roots over a real server: owned, committed and seen by other hosts as sessions are, and beside them in the bucket."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest

from .conftest import MakeHost
from .rig import Bucket, Host, differences, errno_of, tree, wait_until

pytestmark = [pytest.mark.fuse, pytest.mark.s3, pytest.mark.slow]

LAG_SECONDS = 10


def run7(host: Host) -> Path:
    return host.directory / ".sessionfs" / "eval" / "run7"


def plugin_of_agent(host: Host) -> Path:
    return host.directory / ".sessionfs" / "agents" / "a" / "plugins" / "p"


def listed(host: Host) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(host.run("ls", host.store, "--json"))
    return found


@pytest.fixture
def pair(make_fast_host: MakeHost) -> tuple[Host, Host]:
    """The owner of ``eval/run7``, committed twice, and a host that has read it."""
    first, second = make_fast_host("a"), make_fast_host("b")
    first.mount()
    (run7(first) / "cases").mkdir(parents=True)
    (run7(first) / "score.json").write_text("{}")
    (run7(first) / "cases" / "1.jsonl").write_text('{"seq": 1}\n')
    first.run("snapshot", str(run7(first)))
    (run7(first) / "score.json").write_text('{"score": 1}')
    report = json.loads(first.run("snapshot", str(run7(first) / "cases"), "--json"))
    assert (report["session"], report["generation"]) == ("eval/run7", 2)
    second.mount()
    assert (run7(second) / "score.json").read_text() == '{"score": 1}'
    return first, second


def test_a_run_is_in_the_bucket_as_itself_and_under_no_session(
    pair: tuple[Host, Host], bucket: Bucket
) -> None:
    first, second = pair
    keys = bucket.listed()
    assert {"eval/run7/", "eval/run7/score.json", "eval/run7/cases/", "eval/run7/cases/1.jsonl"} <= keys
    assert {"eval/run7.manifest/manifest.json", "eval/run7.manifest/0000000002.json"} <= keys
    assert {"eval/run7.owner/owner.json", "eval/run7.snapshot.json"} <= keys
    assert {key for key in keys if "eval" in key} == {key for key in keys if key.startswith("eval/run7")}
    assert not any(key.startswith("sessions/") for key in keys)
    assert bucket.read("eval/run7/score.json") == b'{"score": 1}'
    for record in ("manifest/manifest.json", "owner/owner.json", "snapshot.json"):
        assert json.loads(bucket.read(f"eval/run7.{record}"))["session"] == "eval/run7"
    assert differences(tree(run7(first)), tree(run7(second))) == []


def test_another_host_reads_a_run_and_changes_nothing_until_it_is_released(
    pair: tuple[Host, Host], bucket: Bucket
) -> None:
    first, second = pair
    before = bucket.listed("eval/")
    assert errno_of(lambda: (run7(second) / "score.json").write_text("mine")) == errno.EROFS
    assert errno_of((run7(second) / "new").mkdir) == errno.EROFS
    refused = second.finished("claim", str(run7(second)))
    assert (refused.returncode, "eval/run7" in refused.stderr, "%" in refused.stderr) == (5, True, False)
    assert bucket.listed("eval/") == before
    assert first.session_status("eval/run7")["owned_here"] is True
    first.run("release", str(run7(first)))
    (run7(second) / "mine").write_text("of the second")
    second.run("snapshot", str(run7(second)))
    assert json.loads(bucket.read("eval/run7.owner/owner.json"))["epoch"] == 2
    assert errno_of(lambda: (run7(first) / "score.json").write_text("again")) == errno.EROFS
    wait_until((run7(first) / "mine").exists, LAG_SECONDS)
    assert (run7(first) / "mine").read_text() == "of the second"


def test_generations_of_a_run_are_shown_restored_and_forked(pair: tuple[Host, Host], tmp_path: Path) -> None:
    first, second = pair
    past = run7(second) / ".sessionfs" / "generations"
    assert sorted(entry.name for entry in past.iterdir()) == ["1", "2"]
    assert (past / "1" / "score.json").read_text() == "{}"
    assert (past / "1" / "cases" / "1.jsonl").read_text() == '{"seq": 1}\n'
    assert errno_of(lambda: (past / "1" / "score.json").write_text("x")) == errno.EROFS
    numbers = [
        row["generation"] for row in json.loads(first.run("generations", first.store, "eval/run7", "--json"))
    ]
    assert numbers == [1, 2]
    assert "~ score.json" in first.run("diff", first.store, "eval/run7", "1", "2")
    first.run("restore", first.store, "eval/run7", "--generation", "1", "--to", str(tmp_path / "aside"))
    assert (tmp_path / "aside" / "score.json").read_text() == "{}"
    shown = first.run("fork", first.store, "eval/run7", "eval/run8", "--generation", "1")
    assert shown.startswith("eval/run8 is generation 1 of eval/run7")
    run8 = run7(second).parent / "run8"
    wait_until(run8.exists, LAG_SECONDS)
    assert (run8 / "score.json").read_text() == "{}"
    first.run("restore", first.store, "eval/run7", "--generation", "1", "--in-place")
    wait_until(lambda: (run7(second) / "score.json").read_text() == "{}", LAG_SECONDS)


def test_names_of_sessions_and_of_roots_do_not_meet(make_fast_host: MakeHost, bucket: Bucket) -> None:
    first, second = make_fast_host("a"), make_fast_host("b")
    first.mount()
    plugin = first.directory / ".sessionfs" / "plugins" / "x"
    plugin.mkdir()
    (plugin / "f").write_text("of the plugin")
    for name in ("plugins", "x", "agents"):
        (first.directory / name).mkdir()
        (first.directory / name / "f").write_text(f"of the session {name}")
    plugin_of_agent(first).mkdir(parents=True)
    (plugin_of_agent(first) / "f").write_text("of the agent's plugin")
    first.umount()
    assert bucket.read("plugins/x/f") == b"of the plugin"
    assert bucket.read("sessions/plugins/f") == b"of the session plugins"
    assert bucket.read("agents/a/plugins/p/f") == b"of the agent's plugin"
    assert "agents/a/plugins/p.manifest/manifest.json" in bucket.listed("agents/")
    assert [row["id"] for row in listed(first)] == [
        "agents",
        "plugins",
        "x",
        "agents/a/plugins/p",
        "plugins/x",
    ]
    second.mount()
    assert sorted(entry.name for entry in second.directory.iterdir()) == ["agents", "plugins", "x"]
    assert (plugin_of_agent(second) / "f").read_text() == "of the agent's plugin"
    for root in (second.directory / ".sessionfs" / "plugins" / "x", plugin_of_agent(second)):
        (root / "f").unlink()
        root.rmdir()
    second.wait_until_clean()
    second.umount()
    assert [row["id"] for row in listed(second)] == ["agents", "plugins", "x"]
    assert bucket.read("sessions/x/f") == b"of the session x"


def test_verify_and_gc_look_at_every_root(pair: tuple[Host, Host], bucket: Bucket) -> None:
    first, second = pair
    plugin_of_agent(first).mkdir(parents=True)
    (plugin_of_agent(first) / "f").write_text("whole")
    first.run("snapshot", str(plugin_of_agent(first)))
    second.umount()
    first.umount()
    reports = json.loads(first.run("verify", first.store, "--json"))
    assert [(one["session"], one["damaged"]) for one in reports] == [
        ("agents/a/plugins/p", False),
        ("eval/run7", False),
    ]
    rows = json.loads(first.run("gc", first.store, "--json"))
    assert [row["session"] for row in rows] == ["agents/a/plugins/p", "eval/run7"]
    bucket.remove("eval/run7/cases/1.jsonl")
    done = first.finished("verify", first.store, "eval/run7")
    assert (done.returncode, "%" in done.stdout + done.stderr) == (6, False)
    assert "eval/run7: damaged" in done.stdout


def test_a_root_that_was_not_uploaded_is_after_a_crash(make_fast_host: MakeHost, bucket: Bucket) -> None:
    host = make_fast_host(SESSIONFS_UPLOAD_DELAY_SECONDS="60")
    host.mount()
    run7(host).mkdir()
    (run7(host) / "score.json").write_text("written before the crash")
    host.die()
    host.mount()
    assert (run7(host) / "score.json").read_text() == "written before the crash"
    host.umount()
    assert bucket.read("eval/run7/score.json") == b"written before the crash"
