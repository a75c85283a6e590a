from __future__ import annotations

import errno
import os
import stat
import subprocess
import time
from collections.abc import Callable

import pytest

from tests.filesystem.test_open_read_write import make
from tests.filesystem.test_rename_and_unlink import errno_of

pytestmark = pytest.mark.fuse

NOBODY, OTHER = 65534, 4711


def as_user(
    call: Callable[[], object], *, uid: int = NOBODY, gid: int = NOBODY, groups: tuple[int, ...] = ()
) -> int:
    """Run a call in a child process as somebody else; gives its errno."""
    child = os.fork()
    if child == 0:
        result = 255
        try:
            os.setgroups(groups)
            os.setgid(gid)
            os.setuid(uid)
            result = errno_of(call)
        finally:
            os._exit(result)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def mode_of(path: str) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


def test_modes_decide_who_may_open(session: str) -> None:
    path = make(os.path.join(session, "a"))
    for mode, reads, writes in (
        (0o600, False, False),
        (0o604, True, False),
        (0o602, False, True),
        (0o666, True, True),
    ):
        os.chmod(path, mode)
        assert as_user(lambda: os.open(path, os.O_RDONLY)) == (0 if reads else errno.EACCES)
        assert as_user(lambda: os.open(path, os.O_WRONLY)) == (0 if writes else errno.EACCES)
        assert as_user(lambda: os.truncate(path, 0)) == (0 if writes else errno.EACCES)


def test_supplementary_groups_count(session: str) -> None:
    path = make(os.path.join(session, "a"))
    os.chown(path, 0, OTHER)
    os.chmod(path, 0o640)
    assert as_user(lambda: os.open(path, os.O_RDONLY)) == errno.EACCES
    assert as_user(lambda: os.open(path, os.O_RDONLY), groups=(OTHER,)) == 0
    assert as_user(lambda: os.open(path, os.O_WRONLY), groups=(OTHER,)) == errno.EACCES


def test_a_closed_directory_closes_what_is_below_also_when_it_is_cached(session: str) -> None:
    inner = os.path.join(session, "d")
    os.mkdir(inner)
    path = make(os.path.join(inner, "a"), b"x")
    assert as_user(lambda: os.open(path, os.O_RDONLY)) == 0
    os.chmod(inner, 0o700)
    time.sleep(0.2)
    os.stat(path)
    assert as_user(lambda: os.open(path, os.O_RDONLY)) == errno.EACCES
    assert as_user(lambda: os.stat(path)) == errno.EACCES
    assert as_user(lambda: os.listdir(inner)) == errno.EACCES
    assert as_user(lambda: os.chdir(inner)) == errno.EACCES
    os.chmod(inner, 0o711)
    assert as_user(lambda: os.open(path, os.O_RDONLY)) == 0


def test_new_files_belong_to_their_maker_and_setgid_directories_pass_their_group_on(session: str) -> None:
    path = os.path.join(session, "a")
    assert as_user(lambda: make(path)) == 0
    assert (os.stat(path).st_uid, os.stat(path).st_gid) == (NOBODY, NOBODY)
    shared = os.path.join(session, "shared")
    os.mkdir(shared)
    os.chown(shared, 0, OTHER)
    os.chmod(shared, 0o2777)
    assert as_user(lambda: os.mkdir(os.path.join(shared, "d"))) == 0
    assert as_user(lambda: make(os.path.join(shared, "f"))) == 0
    status = os.stat(os.path.join(shared, "d"))
    assert (status.st_uid, status.st_gid, bool(status.st_mode & stat.S_ISGID)) == (NOBODY, OTHER, True)
    assert os.stat(os.path.join(shared, "f")).st_gid == OTHER


def test_a_directory_without_write_permission_takes_no_names(session: str) -> None:
    inner = os.path.join(session, "d")
    os.mkdir(inner, 0o755)
    path = make(os.path.join(inner, "a"))
    assert as_user(lambda: make(os.path.join(inner, "b"))) == errno.EACCES
    assert as_user(lambda: os.mkdir(os.path.join(inner, "b"))) == errno.EACCES
    assert as_user(lambda: os.symlink("x", os.path.join(inner, "b"))) == errno.EACCES
    assert as_user(lambda: os.unlink(path)) == errno.EACCES
    assert as_user(lambda: os.rename(path, os.path.join(inner, "b"))) == errno.EACCES


def test_sticky_directories_protect_the_files_of_others(session: str) -> None:
    os.chmod(session, 0o1777)
    path = make(os.path.join(session, "mine"))
    assert as_user(lambda: os.unlink(path)) == errno.EPERM
    assert as_user(lambda: os.rename(path, path + "2")) == errno.EPERM
    theirs = os.path.join(session, "theirs")
    assert as_user(lambda: make(theirs)) == 0
    assert as_user(lambda: os.rename(theirs, path)) == errno.EPERM
    assert as_user(lambda: os.unlink(theirs)) == 0


def test_only_owners_change_modes_owners_and_times(session: str) -> None:
    path = make(os.path.join(session, "a"))
    os.chmod(path, 0o666)
    assert as_user(lambda: os.chmod(path, 0o777)) == errno.EPERM
    assert as_user(lambda: os.chown(path, NOBODY, -1)) == errno.EPERM
    assert as_user(lambda: os.utime(path, ns=(1, 1))) == errno.EPERM
    assert as_user(lambda: os.utime(path)) == 0
    os.chmod(path, 0o644)
    assert as_user(lambda: os.utime(path)) == errno.EACCES
    os.chown(path, NOBODY, NOBODY)
    assert as_user(lambda: os.chmod(path, 0o600)) == 0
    assert as_user(lambda: os.utime(path, ns=(1, 1))) == 0
    assert as_user(lambda: os.chown(path, -1, OTHER)) == errno.EPERM
    assert as_user(lambda: os.chown(path, -1, OTHER), groups=(OTHER,)) == 0
    assert as_user(lambda: os.chown(path, OTHER, -1)) == errno.EPERM


def test_set_id_bits_go_when_somebody_else_writes(session: str) -> None:
    path = make(os.path.join(session, "a"), b"x")
    for change in (lambda: write(path), lambda: os.truncate(path, 0), lambda: make(path)):
        os.chmod(path, 0o6777)
        assert as_user(change) == 0
        assert mode_of(path) == 0o777
    os.chmod(path, 0o6777)
    write(path)
    assert mode_of(path) == 0o6777
    os.chown(path, NOBODY, OTHER)
    assert mode_of(path) == 0o777
    assert as_user(lambda: os.chmod(path, 0o2755)) == 0
    assert mode_of(path) == 0o755


def write(path: str) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    os.write(descriptor, b"y")
    os.close(descriptor)


def test_an_access_list_decides_before_the_group(session: str) -> None:
    path = make(os.path.join(session, "a"))
    os.chmod(path, 0o600)
    entries = [
        (1, 6, 0xFFFFFFFF),
        (2, 4, NOBODY),
        (4, 0, 0xFFFFFFFF),
        (16, 4, 0xFFFFFFFF),
        (32, 0, 0xFFFFFFFF),
    ]
    raw = (2).to_bytes(4, "little") + b"".join(
        tag.to_bytes(2, "little") + granted.to_bytes(2, "little") + number.to_bytes(4, "little")
        for tag, granted, number in entries
    )
    os.setxattr(path, "system.posix_acl_access", raw)
    assert os.getxattr(path, "system.posix_acl_access") == raw
    assert as_user(lambda: os.open(path, os.O_RDONLY)) == 0
    assert as_user(lambda: os.open(path, os.O_WRONLY)) == errno.EACCES
    assert as_user(lambda: os.open(path, os.O_RDONLY), uid=OTHER, gid=OTHER) == errno.EACCES


def test_programs_need_permission_to_execute(session: str) -> None:
    path = make(os.path.join(session, "program"), b"#!/bin/sh\nexit 0\n")
    os.chmod(path, 0o744)
    assert as_user(lambda: os.execv(path, [path])) == errno.EACCES  # noqa: S606 - the call under test
    assert subprocess.run([path], check=False).returncode == 0


def test_access_answers_for_the_caller(session: str) -> None:
    path = make(os.path.join(session, "a"))
    os.chmod(path, 0o604)

    def readable() -> None:
        if not os.access(path, os.R_OK) or os.access(path, os.W_OK):
            raise OSError(errno.EACCES, "")

    assert as_user(readable) == 0
