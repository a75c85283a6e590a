"""Runs the asynchronous doors for programs that have no event loop: one thread with trio in it, calls from any other.

A blocking form of a door is thin: each method hands its call over and waits. Cancellation is the caller's interrupt: ``KeyboardInterrupt`` in the
waiting thread cancels the call.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Self, TypeVar

import trio

from sessionfs.model.errors import HandleClosedError

Result = TypeVar("Result")
_Entered = TypeVar("_Entered")


class Portal:
    """A thread with an event loop. Use as a context manager, or `close` it."""

    def __init__(self) -> None:
        self._ready = threading.Event()
        self._token: trio.lowlevel.TrioToken | None = None
        self._closing: trio.Event | None = None
        self._nursery: trio.Nursery | None = None
        self._thread = threading.Thread(
            target=trio.run, args=(self._serve,), name="sessionfs-doors", daemon=True
        )
        self._thread.start()
        self._ready.wait()

    def run(self, call: Callable[..., Awaitable[Result]], *arguments: Any) -> Result:
        """Run an asynchronous call to its end, and give what it gives.

        Args:
            call: The function.
            arguments: Its positional arguments; for others pass a closure.

        Raises:
            HandleClosedError: The portal is closed.
            BaseException: What the call raised.
        """
        token = self._token
        if token is None:
            raise self._closed()
        scope, ended = trio.CancelScope(), threading.Event()

        async def watched() -> list[Result]:
            try:
                with scope:
                    return [await call(*arguments)]
                return []
            finally:
                ended.set()

        try:
            return trio.from_thread.run(watched, trio_token=token)[0]
        except (trio.RunFinishedError, trio.Cancelled):
            raise self._closed() from None
        except KeyboardInterrupt:
            # The caller goes on when the call has ended; a second interrupt does not wait for it.
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(scope.cancel)
                ended.wait()
            raise

    def enter(self, manager: AbstractAsyncContextManager[_Entered]) -> tuple[_Entered, Callable[[], None]]:
        """Enter an asynchronous context manager in a task of its own.

        Returns:
            What it gives, and the function that leaves it.
        """
        left, done = trio.Event(), trio.Event()
        problem: list[BaseException] = []

        async def hold(task_status: trio.TaskStatus[_Entered]) -> None:
            try:
                async with manager as entered:
                    task_status.started(entered)
                    await left.wait()
            except Exception as error:
                if not left.is_set():
                    raise
                problem.append(error)
            finally:
                done.set()

        async def begin() -> _Entered:
            if self._nursery is None:
                raise self._closed()
            entered: _Entered = await self._nursery.start(hold)
            return entered

        async def leave() -> None:
            left.set()
            await done.wait()
            if problem:
                raise problem[0]

        return self.run(begin), lambda: self.run(leave)

    def close(self) -> None:
        """End the loop; whatever is still entered is left. Repeating it changes nothing."""
        token, self._token = self._token, None
        if token is not None and self._closing is not None:
            token.run_sync_soon(self._closing.set)
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _closed(self) -> HandleClosedError:
        return HandleClosedError("the blocking door is closed", remedy="open it again")

    async def _serve(self) -> None:
        self._closing = trio.Event()
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self._token = trio.lowlevel.current_trio_token()
            self._ready.set()
            await self._closing.wait()
            self._nursery = None
            nursery.cancel_scope.cancel()
