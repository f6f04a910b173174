"""Keeps the user's code out of the way of the dispatcher: callables that raise, log filters that raise.

Rule 1: whatever a hook, a recording, a subscriber, a store or a log handler raises, the dispatcher goes on.
Rule 2: the exception is logged, with its traceback, on the logger `turngate`.
Rule 3: KeyboardInterrupt and SystemExit are meant for the process. They leave the event loop from a callback
of their own, so that they break no run.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import sys
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

if TYPE_CHECKING:
    from turngate._events import RunComplete
    from turngate._prompt import OnComplete

T = TypeVar("T")

logger = logging.getLogger("turngate")

_NAMED: Final = 5
"""How many exceptions of a group are named; the rest are counted."""


def log_or_propagate(exc: BaseException, message: str, *args: object) -> None:
    """Log an exception of the user's code, unless it is meant for the process."""
    if isinstance(exc, KeyboardInterrupt | SystemExit):
        raise_in_loop(exc)
    else:
        log_error(exc, message, *args)


def guard(about: str, call: Callable[..., T], *args: Any) -> T | None:
    """Call something that is the user's, or may call it; return its answer, or None if it raised."""
    try:
        return call(*args)
    except BaseException as exc:
        log_or_propagate(exc, "%s raised", about)
        return None


def call_back(what: str, callback: OnComplete, complete: RunComplete) -> None:
    """Call a hook or a callback; close the awaitable that it should not have returned."""
    about = f"{what} of run {complete.run_id} in session {complete.session_id!r}"
    answer = guard(about, callback, complete)
    guard(f"closing what {about} returned", _close_awaitable, about, answer)


def _close_awaitable(about: str, answer: object) -> None:
    """Close and report an awaitable that will never be awaited; leave a future to its maker."""
    if inspect.isawaitable(answer) and not asyncio.isfuture(answer):
        log_error(None, "%s returned an awaitable, which is not awaited", about)
        if (close := getattr(answer, "close", None)) is not None:
            close()


def log_error(exc: BaseException | None, message: str, *args: object) -> None:
    """Log an error, with the traceback of the exception if there is one."""
    log(logging.ERROR, message, *args, exc_info=exc)


def log(level: int, message: str, *args: object, **more: Any) -> None:
    """Log. If a filter or a handler raises, report that on standard error, as `logging` does, and go on."""
    try:
        logger.log(level, message, *args, **more)
    except BaseException as exc:
        if logging.raiseExceptions and sys.stderr is not None:
            with contextlib.suppress(Exception):
                traceback.print_exception(exc)
        if isinstance(exc, KeyboardInterrupt | SystemExit):
            raise_in_loop(exc)


def raise_in_loop(exc: BaseException) -> None:
    """Raise an exception that is meant for the process from the running loop, if there is one."""
    with contextlib.suppress(RuntimeError):
        asyncio.get_running_loop().call_soon(_raise, exc)


def _raise(exc: BaseException) -> NoReturn:
    raise exc


def describe(exc: BaseException) -> str:
    """Describe an exception for a RunComplete: its type and text, and those of a group's members."""
    name = type(exc).__name__
    try:
        text = str(exc)
    except Exception:
        text = ""
    said = f"{name}: {text}" if text else name
    if isinstance(exc, BaseExceptionGroup):
        leaves = _leaves(exc)
        named = [describe(leaf) for leaf in leaves[:_NAMED]]
        more = [f"{len(leaves) - _NAMED} more"] if len(leaves) > _NAMED else []
        said = f"{said}: {'; '.join(named + more)}"
    return said


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    """Return the exceptions of a group and, at any depth, of the groups in it."""
    leaves: list[BaseException] = []
    inside: list[BaseException] = [group]
    while inside:
        exc = inside.pop()
        if isinstance(exc, BaseExceptionGroup):
            inside += reversed(exc.exceptions)
        else:
            leaves.append(exc)
    return leaves
