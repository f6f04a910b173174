"""Conducting a turn from its start to its end.

A turn is conducted in a task of its own, made by the task factory of the loop, whatever that is. There are
three cases:

1. The task comes to its first step. From there on `conduct` sees to the end of the turn: however the runner
   and the store go about it, its runs complete and the queue goes on.
2. The task is over without having come to its first step: it was cancelled before it, or the factory never
   ran it. Its done callback then has the turn conducted again, in a plain task and without the runner.
3. There is no task: the factory raised, or returned something else. It may have made one all the same, so a
   step of the loop later it is case 1 or case 2. On a closed loop the turn completes unwritten.
"""

from __future__ import annotations

import asyncio
import types
from asyncio import current_task
from typing import TYPE_CHECKING, Any, Final

from turngate._guard import complain, describe, let_out
from turngate._settle import settle

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Task
    from collections.abc import Coroutine, Generator
    from contextvars import Context

    from turngate._core import SessionCore
    from turngate._run import Turn
    from turngate._shell import Shell

CANCELLED_FROM_OUTSIDE: Final = "the turn was cancelled from outside the dispatcher"
CANCELLED_BY_ITSELF: Final = "CancelledError: the runner awaited something that was cancelled"
ENDED_UNBEGUN: Final = "the turn's task ended without calling the runner"
CLOSED_UNWRITTEN: Final = "the turn was closed before it could be written"


class StandIn(asyncio.Task[None]):
    """Conducts a turn whose own task came to nothing."""


def start_without_factory(
    loop: AbstractEventLoop, turn: Turn, conducting: Coroutine[Any, Any, None], context: Context | None
) -> None:
    """Make a plain task for a turn whose runner will not be called."""
    turn._conducting = conducting
    turn._made = StandIn(conducting, loop=loop, name=turn.run.run_id, context=context)
    turn._made.add_done_callback(turn._task_is_over)


async def conduct(d: Shell, core: SessionCore, turn: Turn, unbegun: str | None = None) -> None:
    """Call the runner unless a cancel came first, settle, complete: however it goes, the turn ends here.

    `unbegun` says why the runner is not to be called.
    """
    if turn._conducting is None:  # an eager task takes its first step before anyone has been given it
        await _pause()
    turn.task = current_task()
    if turn.task is None:
        raise RuntimeError("the task factory runs the turn outside of any task")
    if turn._made is not None and turn._by_factory:
        d._guard("what the task factory returned", forget_callback, turn)
    elif turn._made is not None:
        turn._made.remove_done_callback(turn._task_is_over)
    text: str | None = None
    error = unbegun
    stopped_by: KeyboardInterrupt | SystemExit | GeneratorExit | None = None
    if unbegun is None and core.begin(turn):
        try:
            runner = d._runner  # to look it up in the call takes longer
            text = await runner(turn)
            if text is not None and not isinstance(text, str):
                text, error = None, f"the runner returned {type(text).__name__}, not str or None"
        except BaseException as exc:
            error, stopped_by = _came_of(exc, d, turn)
    d._writing.acquire()  # what threads of the runner have written until now is part of the turn
    try:
        core.end(turn, text, error)
    finally:
        d._writing.release()  # `with` takes three times as long
    if turn._unsent is not None:
        d._guard("sending what threads have written", d._send_unsent, turn)
    if turn.has_place:
        d._give_back_place(turn)
    try:
        if stopped_by is not None and isinstance(stopped_by, GeneratorExit):
            raise stopped_by
        effects = settle(core, turn, d.messages, d._settle_timeout, d._look_whether_the_loop_ends)
        if not isinstance(effects, list):
            effects = await effects
    except GeneratorExit:
        d._complete_unwritten(core, turn)
        return
    if core.turn is None:
        d._forget_if_quiet(core)
    d._perform(effects)
    if stopped_by is not None:
        let_out(stopped_by)
        stopped_by = None  # it holds this frame


def _came_of(
    exc: BaseException, d: Shell, turn: Turn
) -> tuple[str, KeyboardInterrupt | SystemExit | GeneratorExit | None]:
    """Return the error of a turn whose runner raised, and the exception if more than the turn ends by it.

    There are four cases. A CancelledError: it is an error unless a cancel explains it, and whoever cancelled
    nothing but what the runner awaited is told so. KeyboardInterrupt and SystemExit: they go on when the turn
    is settled. A GeneratorExit from outside: the turn is being closed, and may not wait any more. Whatever
    else the runner raises is logged.
    """
    if isinstance(exc, asyncio.CancelledError):
        if turn.covered or turn.task is None or turn.task.cancelling():
            return CANCELLED_FROM_OUTSIDE, None
        complain(
            exc, "the runner was cancelled in run %s of session %r", turn.run.run_id, turn.run.session_id
        )
        return CANCELLED_BY_ITSELF, None
    error = describe(exc)
    if isinstance(exc, KeyboardInterrupt | SystemExit):
        return error, exc
    if isinstance(exc, GeneratorExit) and not _is_current(turn.task):
        return error, GeneratorExit()
    complain(exc, "the runner raised in run %s of session %r", turn.run.run_id, turn.run.session_id)
    return error, None


def forget_callback(turn: Turn) -> None:
    """Have the end of what the loop has made mean nothing any more: the turn is being conducted."""
    assert turn._made is not None
    turn._made.remove_done_callback(turn._task_is_over)


@types.coroutine
def _pause() -> Generator[None, None, None]:
    """Let the loop take a step."""
    yield


def _is_current(task: Task[None] | None) -> bool:
    try:
        return current_task() is task
    except RuntimeError:  # no loop is running
        return False
