"""Messages between the daemon and the replication process."""

from __future__ import annotations

import inspect
import typing

import msgspec
import pytest

from sessionfs.formats import link_messages
from sessionfs.formats.link_message import Entry, Message
from sessionfs.formats.link_messages import (
    AnyMessage,
    Children,
    Envelope,
    Failure,
    Fetch,
)
from sessionfs.model import errors
from sessionfs.model.errors import (
    InternalError,
    LocalDiskError,
    SessionFSError,
    StateLockedError,
    UnavailableError,
)

ENTRY = Entry(
    b"\xff", 1 << 62, present=False, mode=0o100644, uid=1, gid=2, size_bytes=3, mtime_ns=-4, nlink=2,
    target=b"target", xattrs={b"user.a": b"\0"},
)  # fmt: skip


def test_a_message_comes_back_as_it_was() -> None:
    for body in (Fetch(7, 8), Children([ENTRY]), Failure("UnavailableError", "away", "wait")):
        envelope = Envelope(3, is_reply=False, body=body)
        raw = link_messages.encode(envelope)
        head, payload = raw[: link_messages.LENGTH_BYTES], raw[link_messages.LENGTH_BYTES :]
        assert link_messages.decode_length(head) == len(payload)
        assert link_messages.decode(payload) == envelope


def test_every_message_may_be_sent() -> None:
    kinds = {
        kind
        for kind in vars(link_messages).values()
        if inspect.isclass(kind) and issubclass(kind, Message) and kind is not Message
    }
    assert kinds == set(typing.get_args(AnyMessage))


def test_unknown_bytes_are_refused() -> None:
    with pytest.raises(msgspec.DecodeError):
        link_messages.decode(b"\x93\x01\xc2\x81\xa4type\xa1X")


@pytest.mark.parametrize("error", [UnavailableError("away", remedy="wait"), InternalError("fault")])
def test_an_error_comes_back_as_itself(error: SessionFSError) -> None:
    again = link_messages.error_of(link_messages.failure_of(error))
    assert type(again) is type(error)
    assert (again.message, again.remedy) == (error.message, error.remedy)


def test_an_error_with_more_fields_comes_back_as_an_ancestor() -> None:
    for error, ancestor in (
        (StateLockedError("locked", pid=1), errors.ConflictError),
        (LocalDiskError("full", errno_number=28), SessionFSError),
    ):
        assert type(link_messages.error_of(link_messages.failure_of(error))) is ancestor


def test_an_unknown_error_is_internal() -> None:
    for kind in ("Unheard", "annotations", ""):
        assert isinstance(link_messages.error_of(Failure(kind, "message")), InternalError)
