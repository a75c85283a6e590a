from __future__ import annotations

import errno
import stat
import struct
from dataclasses import dataclass

import pytest

from sessionfs.filesystem.permissions import READ, SEARCH, WRITE, Permissions
from tests.unit.filesystem.conftest import Somebody


@dataclass
class Thing:
    mode: int
    uid: int = 1
    gid: int = 1


ROOT, OWNER, MEMBER, STRANGER = Somebody(0, 0), Somebody(1, 9), Somebody(2, 1), Somebody(3, 3, pid=33)
RULES = Permissions(lambda pid: (7,) if pid == 33 else (), enabled=True)


def access_list(*entries: tuple[int, int, int]) -> bytes:
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


@pytest.mark.parametrize(
    ("who", "mode", "wanted", "allowed"),
    [
        (OWNER, 0o400, READ, True),
        (OWNER, 0o077, READ, False),
        (MEMBER, 0o040, READ, True),
        (MEMBER, 0o707, READ, False),
        (STRANGER, 0o006, READ | WRITE, True),
        (STRANGER, 0o770, READ, False),
        (ROOT, 0o000, READ | WRITE, True),
        (ROOT, 0o666, SEARCH, False),
        (ROOT, 0o100, SEARCH, True),
    ],
)
def test_the_first_class_that_fits_decides(who: Somebody, mode: int, wanted: int, allowed: bool) -> None:
    assert RULES.allows(who, Thing(stat.S_IFREG | mode), wanted) is allowed


def test_supplementary_groups_are_groups() -> None:
    assert RULES.allows(STRANGER, Thing(stat.S_IFREG | 0o040, gid=7), READ)


def test_root_searches_any_directory() -> None:
    assert RULES.allows(ROOT, Thing(stat.S_IFDIR), SEARCH)


def test_named_users_and_groups_of_an_access_list_are_masked() -> None:
    thing = Thing(stat.S_IFREG | 0o660)
    acl = access_list((1, 6, 0), (2, 6, 3), (4, 6, 0), (8, 6, 5), (16, 4, 0), (32, 0, 0))
    assert RULES.allows(STRANGER, thing, READ, acl)
    assert not RULES.allows(STRANGER, thing, WRITE, acl)
    assert RULES.allows(Somebody(9, 5), thing, READ, acl)
    assert not RULES.allows(Somebody(9, 5), thing, WRITE, acl)
    assert not RULES.allows(Somebody(9, 9), thing, READ, acl)
    assert RULES.allows(OWNER, thing, READ | WRITE, acl)


def test_sticky_directories_protect_names_of_others() -> None:
    sticky, theirs = Thing(stat.S_IFDIR | 0o1777, uid=5), Thing(stat.S_IFREG, uid=1)
    for who in (ROOT, OWNER, Somebody(5, 5)):
        RULES.require_removal(who, sticky, theirs)
    with pytest.raises(PermissionError) as refused:
        RULES.require_removal(STRANGER, sticky, theirs)
    assert refused.value.errno == errno.EPERM


def test_owners_give_files_only_to_their_groups() -> None:
    thing = Thing(stat.S_IFREG)
    RULES.require_owner_change(OWNER, thing, 1, 9)
    RULES.require_owner_change(ROOT, thing, 77, 77)
    for uid, gid in ((2, None), (None, 8)):
        with pytest.raises(PermissionError):
            RULES.require_owner_change(OWNER, thing, uid, gid)
    with pytest.raises(PermissionError):
        RULES.require_owner_change(MEMBER, thing, None, 1)


def test_setgid_is_dropped_for_callers_outside_the_group() -> None:
    thing = Thing(stat.S_IFREG, gid=1)
    assert RULES.chmod_mode(OWNER, thing, 0o2755) == 0o755
    assert RULES.chmod_mode(MEMBER, thing, 0o2755) == 0o2755
    assert RULES.chmod_mode(ROOT, thing, 0o2755) == 0o2755


def test_nothing_is_checked_when_the_kernel_checks() -> None:
    rules = Permissions(lambda _pid: (), enabled=False)
    assert rules.allows(STRANGER, Thing(0), READ)
    rules.require_owner(STRANGER, Thing(0))
