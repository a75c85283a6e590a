"""Two hosts and one session: one may write, the other may read, and the session goes from one to the other without a wait."""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from .conftest import MakeHost
from .rig import FAST, Bucket, Host, differences, errno_of, tree, wait_until

pytestmark = [pytest.mark.fuse, pytest.mark.s3, pytest.mark.slow]

LAG_SECONDS = 10
"""5 s of promised lag, and the time of a listing on a loaded machine."""


@pytest.fixture
def pair(make_fast_host: MakeHost) -> tuple[Host, Host]:
    """The owner of a session ``s``, and a host that has read it."""
    first, second = make_fast_host("a"), make_fast_host("b")
    first.mount()
    session = first.directory / "s"
    (session / "d").mkdir(parents=True)
    (session / "empty").mkdir()
    (session / "f").write_text("one")
    (session / "d" / "inner").write_text("inner")
    first.wait_until_clean()
    second.mount()
    assert (second.directory / "s" / "f").read_text() == "one"
    return first, second


def record(bucket: Bucket) -> dict[str, object]:
    found: dict[str, object] = json.loads(bucket.read("sessions/s.owner/owner.json"))
    return found


def changes(session: Path) -> dict[str, Callable[[], object]]:
    """Every kind of change, each on something that is there."""
    return {
        "write": lambda: (session / "f").write_text("mine"),
        "append": lambda: (session / "f").open("a"),
        "create": lambda: (session / "new").write_text("new"),
        "truncate": lambda: os.truncate(session / "f", 0),
        "mkdir": (session / "e").mkdir,
        "rmdir": (session / "empty").rmdir,
        "unlink": (session / "f").unlink,
        "rename": lambda: (session / "f").rename(session / "g"),
        "link": lambda: os.link(session / "f", session / "g"),
        "symlink": lambda: (session / "l").symlink_to("f"),
        "chmod": lambda: (session / "f").chmod(0o600),
        "utime": lambda: os.utime(session / "f"),
        "setxattr": lambda: os.setxattr(session / "f", "user.x", b"x"),
        "remove the session": lambda: os.rename(session, session.parent / "other"),
    }


def test_a_second_host_cannot_change_anything_and_is_told_who_owns_the_session(
    pair: tuple[Host, Host], bucket: Bucket
) -> None:
    first, second = pair
    there = second.directory / "s"
    before = bucket.listed("sessions/s")
    refused = {name: errno_of(change) for name, change in changes(there).items()}
    wanted = dict.fromkeys(refused, errno.EROFS)
    # A whole session is never renamed, whoever owns it.
    wanted["remove the session"] = refused["remove the session"]
    assert refused == wanted
    assert refused["remove the session"] != 0
    holder = str(record(bucket)["holder"])
    assert holder[:8] in second.owner("s")
    done = second.finished("claim", str(there))
    assert done.returncode == 5
    assert holder[:8] in done.stderr
    assert second.finished("snapshot", str(there)).returncode == 5
    assert differences(tree(first.directory / "s"), tree(there)) == []
    assert bucket.listed("sessions/s") == before


def test_a_second_host_sees_what_the_owner_does_within_seconds(pair: tuple[Host, Host]) -> None:
    first, second = pair
    session, there = first.directory / "s", second.directory / "s"
    assert errno_of(lambda: (there / "f").write_text("mine")) == errno.EROFS
    (session / "f").write_text("one, two and three")
    (session / "g").write_text("new")
    (session / "d" / "inner").unlink()
    first.wait_until_clean()
    wait_until(lambda: sorted(os.listdir(there)) == ["d", "empty", "f", "g"], LAG_SECONDS)
    wait_until(lambda: (there / "f").read_text() == "one, two and three", LAG_SECONDS)
    wait_until(lambda: os.listdir(there / "d") == [], LAG_SECONDS)
    assert differences(tree(session), tree(there)) == []


def test_after_an_unmount_another_host_writes_at_once(pair: tuple[Host, Host], bucket: Bucket) -> None:
    first, second = pair
    session, there = first.directory / "s", second.directory / "s"
    (session / "last words").write_text("of the first")
    first.umount()
    assert record(bucket)["state"] == "released"
    assert {"last words", "f", "d/inner"} == set(bucket.files_of("s"))
    started = time.monotonic()
    (there / "mine").write_text("of the second")
    taken = time.monotonic() - started
    assert taken < float(FAST["SESSIONFS_LEASE_SECONDS"]) / 2, "nothing was waited for"
    assert (there / "last words").read_text() == "of the first"
    assert (record(bucket)["epoch"], record(bucket)["state"]) == (2, "held")
    second.snapshot("s")
    assert bucket.manifest("s")["epoch"] == 2
    assert set(bucket.files_of("s")) == {"last words", "f", "d/inner", "mine"}
    first.mount()
    assert differences(tree(there), tree(session)) == []
    assert errno_of(lambda: (session / "f").write_text("mine again")) == errno.EROFS


def test_release_on_a_living_mount_lets_another_host_write_until_it_releases_too(
    pair: tuple[Host, Host], bucket: Bucket
) -> None:
    first, second = pair
    session, there = first.directory / "s", second.directory / "s"
    (session / "f").write_text("changed before the release")
    with (session / "open").open("w") as file:
        done = first.finished("release", str(session))
        assert (done.returncode, "open" in done.stderr) == (1, True), done.stderr
        file.write("still ours")
    first.run("release", str(session))
    assert record(bucket)["state"] == "released"
    assert bucket.content("s", bucket.numbers("s")[-1], "f") == b"changed before the release"
    wait_until((there / "open").exists, LAG_SECONDS)
    assert (there / "open").read_text() == "still ours"
    (there / "f").write_text("of the second")
    assert record(bucket)["epoch"] == 2
    assert errno_of(lambda: (session / "f").write_text("of the first")) == errno.EROFS
    assert first.finished("claim", str(session)).returncode == 5
    second.run("release", str(there))
    first.run("claim", str(session))
    assert record(bucket)["epoch"] == 3
    assert (session / "f").read_text() == "of the second"
    (session / "f").write_text("of the first")
    first.wait_until_clean()
    wait_until(lambda: (there / "f").read_text() == "of the first", LAG_SECONDS)
    assert first.conflicts() == second.conflicts() == []


def test_of_a_state_directory_and_its_copy_exactly_one_owns(
    make_fast_host: MakeHost, bucket: Bucket, tmp_path: Path
) -> None:
    first = make_fast_host("a", SESSIONFS_MAX_UPLOAD_DELAY_SECONDS="600")
    first.environment["SESSIONFS_UPLOAD_DELAY_SECONDS"] = "600"
    first.mount()
    session = first.directory / "s"
    session.mkdir()
    (session / "committed").write_text("committed")
    first.snapshot("s")
    (session / "owed").write_text("written before the machine was copied")
    first.die()
    assert "sessions/s/owed" not in bucket.listed("sessions/s/")
    copy = make_fast_host("b")
    shutil.copytree(first.state, copy.state, symlinks=True)
    first.environment["SESSIONFS_UPLOAD_DELAY_SECONDS"] = "0.2"
    first.environment["SESSIONFS_MAX_UPLOAD_DELAY_SECONDS"] = "1"
    for one in (first, copy):
        one.mount()
    hosts = {"first": first, "copy": copy}
    ended: dict[str, int] = {}
    for name, one in hosts.items():
        ended[name] = errno_of(partial((one.directory / "s" / name).write_text, name))
    assert sorted(ended.values()) == [0, errno.EROFS], ended
    (winner,) = [name for name, code in ended.items() if code == 0]
    (loser,) = ended.keys() - {winner}
    hosts[winner].snapshot("s")
    assert hosts[loser].finished("snapshot", str(hosts[loser].directory / "s")).returncode == 5
    assert set(bucket.files_of("s")) >= {"committed", "owed", winner}
    there = hosts[loser].directory / "s"
    wait_until(lambda: set(os.listdir(there)) >= {"committed", "owed", winner}, 2 * LAG_SECONDS)
    wait_until(lambda: not hosts[loser].session_status("s")["owed_files"], LAG_SECONDS)
    # Both had the same file owed: the owner's is in place, and nothing else was written by the other one.
    assert (there / "owed").read_text() == "written before the machine was copied"
    for conflict in hosts[loser].conflicts():
        assert bucket.read(conflict["key"]) == b"written before the machine was copied"
    epochs = {int(bucket.metadata(key)["sessionfs-epoch"]) for key in bucket.listed("sessions/s/")}
    assert max(epochs) == record(bucket)["epoch"]


def test_a_host_that_comes_back_shows_nothing_old(pair: tuple[Host, Host]) -> None:
    first, second = pair
    session, there = first.directory / "s", second.directory / "s"
    first.umount()
    (there / "f").write_text("of the second")
    (there / "d" / "new").write_text("new")
    (there / "empty").rmdir()
    second.wait_until_clean()
    first.mount()
    assert (session / "f").read_text() == "of the second"
    assert differences(tree(there), tree(session)) == []
