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
from typing import TYPE_CHECKING, Any, Final

from turngate._guard import complain, describe, let_out
from turngate._settle import settle

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future
    from collections.abc import Coroutine, Generator

    from turngate._core import SessionCore
    from turngate._run import Turn
    from turngate._shell import Shell

CANCELLED_FROM_OUTSIDE: Final = "the turn was cancelled from outside the dispatcher"
CLOSED_UNWRITTEN: Final = "the turn was closed before it could be written"


class StandIn(asyncio.Task[None]):
    """Conducts a turn whose own task came to nothing."""


def start_without_factory(loop: AbstractEventLoop, turn: Turn, conducting: Coroutine[Any, Any, None]) -> None:
    """Make a task for a turn whose own task came to nothing."""
    turn._conducting = conducting
    turn._made = StandIn(conducting, loop=loop, name=turn.run.run_id)
    turn._made.add_done_callback(turn._task_is_over)


async def conduct(d: Shell, core: SessionCore, turn: Turn, unbegun: str | None = None) -> None:
    """Call the runner unless a cancel came first, settle, complete: however it goes, the turn ends here.

    `unbegun` says why the runner is not to be called.
    """
    if turn._conducting is None:  # an eager task takes its first step before anyone has been given it
        await _pause()
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("the task factory runs the turn outside of any task")
    turn.task = task
    if turn._made is not None:
        turn._made.remove_done_callback(turn._task_is_over)
    text: str | None = None
    error = unbegun
    ends_process: KeyboardInterrupt | SystemExit | None = None
    closed = False
    if unbegun is None and core.begin(turn):
        try:
            runner = d._runner  # to look it up in the call takes longer
            text = await runner(turn)
            if text is not None and not isinstance(text, str):
                text, error = None, f"the runner returned {type(text).__name__}, not str or None"
        except asyncio.CancelledError:
            error = CANCELLED_FROM_OUTSIDE
            if not turn.covered:
                d._look_whether_the_loop_ends()
        except BaseException as exc:
            error = describe(exc)
            if isinstance(exc, KeyboardInterrupt | SystemExit):
                ends_process = exc
            elif isinstance(exc, GeneratorExit) and not _is_current(turn.task):
                closed = True  # from outside: the runner has not raised it
            else:
                run = turn.run
                complain(exc, "the runner raised in run %s of session %r", run.run_id, run.session_id)
    with d._writing:  # what threads of the runner have written until now is part of the turn
        core.end(turn, text, error)
    if turn._unsent is not None:
        d._send_unsent(turn)
    effects = None if closed else settle(core, turn, d.messages, d._settle_timeout)
    if effects is not None and not isinstance(effects, list):
        try:
            effects = await effects
        except GeneratorExit:
            effects = None
    if effects is None:
        d._complete_unwritten(core, turn)
    else:
        if core.turn is None:
            d._forget_if_quiet(core)
        d._perform(effects)
    if ends_process is not None:
        let_out(ends_process)
        ends_process = None  # it holds this frame


@types.coroutine
def _pause() -> Generator[None, None, None]:
    """Let the loop take a step."""
    yield


def _is_current(task: Future[None]) -> bool:
    try:
        return asyncio.current_task() is task
    except RuntimeError:  # no loop is running
        return False
