from __future__ import annotations

import errno

import pytest

from sessionfs.filesystem.errno_map import errno_of
from sessionfs.model import errors


@pytest.mark.parametrize(
    ("problem", "number"),
    [
        (OSError(errno.ENOSPC, "full"), errno.ENOSPC),
        (OSError("no number"), errno.EIO),
        (errors.UnavailableError("away"), errno.EIO),
        (errors.ObjectNotFoundError("gone"), errno.EIO),
        (errors.InvalidSessionIdError("bad"), errno.EINVAL),
        (errors.SessionAlreadyOwnedError("held", holder="other"), errno.EROFS),
        (errors.LocalDiskError("full", errno_number=errno.EDQUOT), errno.EDQUOT),
        (errors.LocalDiskError("odd", errno_number=0), errno.EIO),
        (ValueError("ours"), errno.EIO),
    ],
)
def test_each_exception_has_its_errno(problem: Exception, number: int) -> None:
    assert errno_of(problem) == number


def test_no_error_of_a_store_says_that_a_name_is_missing() -> None:
    for error in (
        errors.UnavailableError,
        errors.ThrottledError,
        errors.AccessError,
        errors.OutcomeUnknownError,
    ):
        assert errno_of(error("x")) != errno.ENOENT
