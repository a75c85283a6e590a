"""A host that reads a session sees within seconds what the host that writes it has done to names, kinds and attributes."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import pytest

from .conftest import MakeHost
from .rig import Host, differences, tree, wait_until

pytestmark = [pytest.mark.fuse, pytest.mark.s3, pytest.mark.slow]

LAG_SECONDS = 10
"""5 s of promised lag, and the time of a listing on a loaded machine."""


@pytest.fixture
def pair(host: Host, make_host: MakeHost) -> tuple[Path, Path, Host]:
    """A session as its writer and as a reader that has read everything see it."""
    session = host.directory / "s"
    (session / "d" / "inner" / "deep").mkdir(parents=True)
    (session / "kept").mkdir()
    (session / "kept" / "file").write_text("kept")
    for path in ("d/one", "d/inner/two", "d/inner/deep/three", "turns", "other"):
        (session / path).write_text(path)
    os.symlink("kept/file", session / "link")
    os.symlink("nowhere", session / "d" / "inner" / "dangling")
    host.wait_until_clean()
    reader = make_host("b")
    reader.mount()
    there = reader.directory / "s"
    assert differences(tree(session), tree(there)) == []
    return session, there, host


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_new_attributes_of_a_directory_are_seen(pair: tuple[Path, Path, Host]) -> None:
    session, there, host = pair
    os.chmod(session / "kept", 0o711)
    os.chmod(session, 0o750)
    os.utime(session / "d", ns=(1, 1_500_000_000_123_456_789))
    host.wait_until_clean()
    wait_until(lambda: mode_of(there / "kept") == 0o711, LAG_SECONDS)
    wait_until(lambda: mode_of(there) == 0o750, LAG_SECONDS)
    wait_until(lambda: (there / "d").stat().st_mtime_ns == 1_500_000_000_123_456_789, LAG_SECONDS)
    assert differences(tree(session), tree(there)) == []


def test_a_file_that_became_a_directory_is_seen_and_back(pair: tuple[Path, Path, Host]) -> None:
    session, there, host = pair
    os.unlink(session / "turns")
    (session / "turns").mkdir()
    (session / "turns" / "inside").write_text("new")
    host.wait_until_clean()
    wait_until((there / "turns" / "inside").is_file, LAG_SECONDS)
    assert (there / "turns" / "inside").read_text() == "new"
    assert differences(tree(session), tree(there)) == []
    shutil.rmtree(session / "turns")
    (session / "turns").write_text("a file again")
    host.wait_until_clean()
    wait_until((there / "turns").is_file, LAG_SECONDS)
    assert (there / "turns").read_text() == "a file again"
    assert differences(tree(session), tree(there)) == []


def test_a_link_that_points_elsewhere_is_seen(pair: tuple[Path, Path, Host]) -> None:
    session, there, host = pair
    os.symlink("other", session / "new")
    os.rename(session / "new", session / "link")
    host.wait_until_clean()
    wait_until(lambda: os.readlink(there / "link") == "other", LAG_SECONDS)
    assert (there / "link").read_text() == "other"
    os.unlink(session / "other")
    os.symlink("kept/file", session / "other")
    host.wait_until_clean()
    wait_until((there / "other").is_symlink, LAG_SECONDS)
    assert (there / "link").read_text() == "kept"
    assert differences(tree(session), tree(there)) == []


def test_a_removed_tree_is_gone(pair: tuple[Path, Path, Host]) -> None:
    session, there, host = pair
    opened = (there / "d" / "one").open()
    shutil.rmtree(session / "d" / "inner")
    host.wait_until_clean()
    wait_until(lambda: not (there / "d" / "inner").exists(), LAG_SECONDS)
    assert sorted(os.listdir(there / "d")) == ["one"]
    os.unlink(session / "d" / "one")
    os.rmdir(session / "d")
    host.wait_until_clean()
    assert opened.read() == "d/one"
    opened.close()
    wait_until(lambda: not (there / "d").exists(), 2 * LAG_SECONDS)
    assert differences(tree(session), tree(there)) == []


def test_a_removed_session_is_gone(pair: tuple[Path, Path, Host]) -> None:
    session, there, host = pair
    # Only a manifest can say that a session was removed: a bucket that is empty may be one that lost everything.
    host.umount()
    host.mount()
    shutil.rmtree(session)
    host.umount()
    wait_until(lambda: not there.exists(), 2 * LAG_SECONDS)


def test_a_reader_that_starts_to_write_keeps_what_it_wrote(pair: tuple[Path, Path, Host]) -> None:
    session, there, host = pair
    reading = (there / "other").open()
    (session / "other").write_text("theirs")
    host.wait_until_clean()
    wait_until(lambda: (there / "other").stat().st_size >= 0, LAG_SECONDS)
    host.run("release", str(session))
    with (there / "other").open("a") as file:
        file.write(" and ours")
    reading.close()
    assert (there / "other").read_text().endswith(" and ours")
