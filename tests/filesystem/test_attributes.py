from __future__ import annotations

import errno
import os
import stat

import pytest

from tests.filesystem.mounting import Mounted
from tests.filesystem.test_open_read_write import make
from tests.filesystem.test_rename_and_unlink import errno_of

pytestmark = pytest.mark.fuse


def test_times_are_kept_to_the_nanosecond(session: str) -> None:
    path = make(os.path.join(session, "a"))
    for atime_ns, mtime_ns in ((1, 2), (1_600_000_000_123_456_789, 4_000_000_000_987_654_321)):
        os.utime(path, ns=(atime_ns, mtime_ns))
        status = os.stat(path)
        assert (status.st_atime_ns, status.st_mtime_ns) == (atime_ns, mtime_ns)
    os.symlink("a", path + "l")
    os.utime(path + "l", ns=(5, 6), follow_symlinks=False)
    assert os.lstat(path + "l").st_mtime_ns == 6


def test_modes_and_umask_apply(session: str) -> None:
    before = os.umask(0o027)
    try:
        os.close(os.open(os.path.join(session, "f"), os.O_CREAT | os.O_WRONLY, 0o666))
        os.mkdir(os.path.join(session, "d"), 0o777)
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(os.path.join(session, "f")).st_mode) == 0o640
    assert stat.S_IMODE(os.stat(os.path.join(session, "d")).st_mode) == 0o750
    os.chmod(os.path.join(session, "f"), 0o4711)
    assert stat.S_IMODE(os.stat(os.path.join(session, "f")).st_mode) == 0o4711


def test_directories_show_changes_of_their_names(session: str) -> None:
    os.utime(session, ns=(1, 1))
    make(os.path.join(session, "a"))
    changed = os.stat(session).st_mtime_ns
    assert changed > 1
    os.utime(session, ns=(1, 1))
    os.rename(os.path.join(session, "a"), os.path.join(session, "b"))
    assert os.stat(session).st_mtime_ns > 1


def test_extended_attributes_are_kept(session: str) -> None:
    path = make(os.path.join(session, "a"))
    os.setxattr(path, "user.one", b"\x00value")
    assert os.getxattr(path, "user.one") == b"\x00value"
    assert errno_of(os.setxattr, path, "user.one", b"x", os.XATTR_CREATE) == errno.EEXIST
    assert errno_of(os.setxattr, path, "user.two", b"x", os.XATTR_REPLACE) == errno.ENODATA
    os.setxattr(path, "user.empty", b"")
    assert sorted(os.listxattr(path)) == ["user.empty", "user.one"]
    os.removexattr(path, "user.one")
    assert errno_of(os.getxattr, path, "user.one") == errno.ENODATA
    assert errno_of(os.removexattr, path, "user.one") == errno.ENODATA
    os.setxattr(session, "user.of-directory", b"d")
    assert os.getxattr(session, "user.of-directory") == b"d"


def test_our_attributes_are_read_only_and_not_listed(session: str) -> None:
    path = make(os.path.join(session, "a"))
    assert os.getxattr(path, "user.sessionfs.state") == b"clean"
    assert os.getxattr(path, "user.sessionfs.generation") == b"3"
    assert os.getxattr(path, "user.sessionfs.owner") == b"host"
    assert errno_of(os.getxattr, path, "user.sessionfs.other") == errno.ENODATA
    assert errno_of(os.setxattr, path, "user.sessionfs.state", b"x") == errno.EPERM
    assert errno_of(os.removexattr, path, "user.sessionfs.state") == errno.EPERM
    assert os.listxattr(path) == []


def test_the_root_names_the_control_socket(shared_mount: Mounted) -> None:
    named = os.getxattr(shared_mount.path, "user.sessionfs.control")
    assert named == shared_mount.layout.control_socket.encode()
    assert os.listxattr(shared_mount.path) == []
