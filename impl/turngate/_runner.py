"""The kinds of runners, and how each is called.

A runner is usually an async function. It may also be an async generator function, whose strings are written
to the turn, or anything that takes a turn and returns an awaitable or an async iterator of strings.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterable, Awaitable, Callable
from contextlib import aclosing, nullcontext
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from turngate._handles import Runner, Turn

Called = Callable[["Turn"], Awaitable[str | None]]
"""A runner as a dispatcher calls it."""


def prepare_runner(runner: Runner) -> Called:
    """Return the runner as a dispatcher calls it; raise TypeError if it cannot be called with a turn."""
    _check_runner(runner)
    if inspect.iscoroutinefunction(runner):
        called: Called = runner
        return called
    return functools.partial(_call, runner)


def _check_runner(runner: object) -> None:
    """Raise TypeError if this is certainly not a runner."""
    if inspect.iscoroutine(runner) or inspect.isasyncgen(runner):
        name = runner.__name__
        if inspect.iscoroutine(runner):
            runner.close()  # it would warn that it was never awaited
        raise TypeError(
            f"the runner must be a function that takes a turn, not the result of a call: "
            f"pass {name}, not {name}()"
        )
    if not callable(runner):
        raise TypeError(
            f"the runner must be callable, such as an async function that takes a turn, "
            f"not {type(runner).__name__}"
        )
    if not _may_take(runner, None):
        name = getattr(runner, "__qualname__", None) or type(runner).__name__
        hint = f"; pass an instance: {name}()" if isinstance(runner, type) else ""
        raise TypeError(f"the runner must take one argument, the turn, which {name} does not{hint}")


def _may_take(runner: Any, *given: object) -> bool:
    """Return whether a call with these arguments may work; False only if it certainly does not.

    The signature that a decorator or a proxy shows may be wrong, because it may add or remove arguments.
    """
    kind = type(runner)
    if kind is MethodType:
        return _may_take(runner.__func__, runner.__self__, *given)
    if kind is functools.partial:
        certain = type(runner.func) is FunctionType and "__signature__" not in vars(runner.func)
        return not certain or _binds(runner, given)
    if kind is FunctionType:
        return "__signature__" in vars(runner) or _binds(runner, given)
    if kind is type:
        return _binds(runner, given)
    call = getattr(kind, "__call__", None)  # noqa: B004 - the method itself, to look at its signature
    return type(call) is not FunctionType or _may_take(call, runner, *given)


def _binds(function: Callable[..., object], given: tuple[object, ...]) -> bool:
    try:
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):  # it has no readable signature
        return True
    try:
        signature.bind(*given)
    except TypeError:
        return False
    return True


async def _call(runner: Runner, turn: Turn) -> str | None:
    """Call a runner that is not simply an async function, and await or iterate over what it returns."""
    answer: object = runner(turn)
    if inspect.isawaitable(answer):
        text: str | None = await answer
        return text
    if isinstance(answer, AsyncIterable):
        await _write_all(answer, turn)
        return None
    raise TypeError(
        f"the runner returned {type(answer).__name__}, which cannot be awaited; a runner is an async "
        "function that returns str or None, or an async generator that yields str"
    )


async def _write_all(pieces: AsyncIterable[object], turn: Turn) -> None:
    """Write what an async generator yields; close it, so that its clean-up runs within the turn."""
    iterator: Any = aiter(pieces)
    async with aclosing(iterator) if hasattr(iterator, "aclose") else nullcontext():
        async for piece in iterator:
            if not isinstance(piece, str):
                raise TypeError(
                    f"the runner yielded {type(piece).__name__}; an async generator must yield str"
                )
            turn.write(piece)
