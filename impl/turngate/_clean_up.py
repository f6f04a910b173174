"""Clean-up that a second Escape does not cut short."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from turngate._log import log_error

if TYPE_CHECKING:
    from collections.abc import Awaitable

T = TypeVar("T")


class CleanUp(asyncio.Task[T]):
    """Cleans up. Made by no task factory, which might refuse."""


async def clean_up(awaitable: Awaitable[T], within: float) -> T:
    """Await to the end, for so many seconds, however often the caller is cancelled meanwhile.

    There are four ways to end. The awaitable returns: so does this. It raises: so does this. The time is up:
    it is cancelled, and TimeoutError is raised. The caller was cancelled meanwhile: then CancelledError is
    raised when it is over, whichever of the three it was.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within
    work = CleanUp(_awaited(awaitable), loop=loop, name="clean-up")
    interrupt: asyncio.CancelledError | None = None
    try:
        while not work.done() and (left := deadline - loop.time()) > 0:
            try:
                await asyncio.wait({work}, timeout=left)
            except asyncio.CancelledError as exc:
                interrupt = exc
        if interrupt is not None:
            raise interrupt
        if not work.done():
            raise TimeoutError(f"the clean-up took longer than {within:g} s")
        return work.result()
    finally:
        if (interrupt is not None or not work.done()) and not loop.is_closed():
            work.add_done_callback(_retrieve)
            work.cancel()
        del work, interrupt  # what is raised holds this frame


async def _awaited(awaitable: Awaitable[T]) -> T:
    return await awaitable


def _retrieve(work: asyncio.Future[Any]) -> None:
    """Log what nobody will be told: an interrupt, or a time-out, is raised instead."""
    if not work.cancelled() and (exc := work.exception()) is not None:
        log_error(exc, "a clean-up raised")
