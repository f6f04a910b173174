"""Runs turns: one task per turn, which calls the runner and then has the turn settled.

The task factory of the loop, whatever that is, makes the task. There are three cases:

1. The task takes its first step. From then on it sees to it that the turn ends, whatever the runner and the
   host do.
2. The task ends without taking its first step: it was cancelled before that, or the factory never ran it.
Then
   a plain task ends the turn, without the runner.
3. There is no task: the factory raised, or returned something else. It may have made one anyway, so one
   step of the loop later this becomes case 1 or case 2. On a closed loop the turn ends at once.

Both dispatchers run their turns here. Where they differ, they implement `TurnHost`.
"""

from __future__ import annotations

import asyncio
import types
import weakref
from asyncio import current_task
from collections import deque
from contextvars import Context, ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from turngate._core import SETTLING
from turngate._log import describe, guard, log_error, log_or_propagate, raise_in_loop
from turngate._loop import StandIn
from turngate._prompt import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator

    from turngate._handles import Turn
    from turngate._loop import HomeLoop
    from turngate._places import Places
    from turngate._runner import Called

CANCELLED_FROM_OUTSIDE: Final = "the turn was cancelled from outside the dispatcher"
CANCELLED_BY_ITSELF: Final = "CancelledError: the runner awaited something that was cancelled"
CLOSED_UNWRITTEN: Final = "the turn was closed before it could be written"
ENDED_UNBEGUN: Final = "the turn's task ended without calling the runner"

_TURN: Final[ContextVar[weakref.ref[Turn]]] = ContextVar("turngate_turn")
"""The turn that a task is part of. It is held weakly, because the turn's task holds its context."""

ProcessExit = KeyboardInterrupt | SystemExit | GeneratorExit
"""Exceptions that end more than the turn in which they are raised."""


def current_turn() -> Turn | None:
    """Return the turn that the caller is part of, as its task or as a task that its runner has started."""
    reference = _TURN.get(None)
    turn = None if reference is None else reference()
    if turn is not None and turn.record.phase is SETTLING and current_task() is not turn.task:
        return None  # the runner has ended, so it does not wait any more
    return turn


class TurnHost(Protocol):
    """What a dispatcher does at the beginning and at the end of each turn."""

    async def begin(self, turn: Turn) -> bool:
        """Return whether the runner may be called: not if a cancel came first."""
        ...

    def end(self, turn: Turn, text: str | None, error: str | None) -> None:
        """Take the result of the runner."""

    async def settle(self, turn: Turn, *, wait: bool) -> None:
        """Put the outcome on record and complete the runs; with `wait`, return when that is done."""

    def settle_at_once(self, turn: Turn) -> None:
        """Complete the runs of a turn that must not wait any more."""


class Execution:
    """How far the start of a turn's task has come; a turn has one until it begins.

    `made` is what the loop returned, which may be a stand-in for the task; `coroutine` conducts the turn.
    `is_over` is called when `made` is done before the turn has begun.
    """

    __slots__ = ("by_factory", "coroutine", "is_over", "is_started", "made")

    def __init__(
        self, coroutine: Coroutine[Any, Any, None], is_over: Callable[[asyncio.Future[None]], None]
    ) -> None:
        self.coroutine = coroutine
        self.is_over = is_over
        self.made: asyncio.Future[None] | None = None
        self.by_factory = False
        self.is_started = False
        """Whether `TurnRunner.start` has finished with it; an eager task takes its first step before that."""


class TurnRunner:
    """Starts and interrupts turns."""

    def __init__(self, runner: Called, home: HomeLoop, places: Places | None) -> None:
        self._runner = runner
        self._home = home
        self._places = places
        self._conducted = 0
        self._to_end: deque[Turn] = deque()
        self._is_ending = False

    def __len__(self) -> int:
        """Count the turns that have begun and are not over."""
        return self._conducted

    def start(self, turn: Turn) -> None:
        """Begin the turn, in a task of its own, as soon as there is a place for its runner.

        The loop makes the task, in the context in which the lead run was accepted. `create_task` is called
        inside that context instead of being given it: a factory need not take a context, and a tracer that
        wraps `create_task` looks for its span in the calling context. The factory is not used for a covered
        turn, whose runner will not be called.
        """
        loop = self._home.loop
        assert loop is not None
        if self._places is not None and not self._places.take(turn):
            return
        if self._home.ends and self._home.hold_back(partial(self.start, turn)):
            return
        execution = turn.execution = Execution(self._conduct(turn), partial(self._task_is_over, turn))
        context = turn.run.context or Context()
        try:
            if loop.get_task_factory() is None:
                made = context.run(loop.create_task, execution.coroutine, name=turn.run.run_id)
            elif turn.covered:
                self._start_plainly(turn, execution, context)
                return
            else:
                execution.by_factory = True
                made = context.run(loop.create_task, execution.coroutine)
            made.add_done_callback(execution.is_over)
            execution.made = made
        except BaseException as exc:
            if loop.is_closed():
                execution.coroutine.close()
                turn.execution = None
                self._end_at_once(turn)
                return
            session_id, run_id = turn.run.session_id, turn.run.run_id
            log_or_propagate(exc, "the turn of run %s in session %r could not be started", run_id, session_id)
            loop.call_soon(self._give_up_start, turn, f"the turn could not be started: {describe(exc)}")
        finally:
            execution.is_started = True

    def _end_at_once(self, turn: Turn) -> None:
        """End a turn on a closed loop.

        Its place goes to the next turn that waits for one, and its session to its successor. These turns end
        one after the other, not one inside the other, because there may be many.
        """
        self._to_end.append(turn)
        if self._is_ending:
            return
        self._is_ending = True
        try:
            while self._to_end:
                turn = self._to_end.popleft()
                self._end(turn, None, CLOSED_UNWRITTEN)
                self._settle_at_once(turn)
        finally:
            self._is_ending = False

    def interrupt(self, turn: Turn) -> None:
        """Cancel the task of the turn.

        A task that has not taken its first step needs no cancel, because it checks first. The exception is a
        task made by a factory, which may make it wait for something else before.
        """
        execution = turn.execution
        if turn.task is not None:
            guard("cancelling a turn's task", turn.task.cancel)
        elif execution is not None and execution.by_factory and execution.made is not None:
            guard("cancelling a turn's task", execution.made.cancel)

    def leave_line(self, turn: Turn) -> None:
        """Let a turn that will not run here wait for a place no longer."""
        if self._places is not None:
            self._places.leave_line(turn)

    async def _conduct(self, turn: Turn, unbegun: str | None = None) -> None:
        """Call the runner unless a cancel came first, then settle. Whatever happens, the turn ends here.

        `unbegun` says why the runner must not be called.
        """
        execution = turn.execution
        assert execution is not None
        if not execution.is_started:
            await _pause()
        task = turn.task = current_task()
        if task is None:
            raise RuntimeError("the task factory runs the turn outside any task")
        if execution.made is task:
            task.remove_done_callback(execution.is_over)
        elif execution.made is not None:
            guard("what the task factory returned", _forget_callback, execution.made, execution.is_over)
        turn.execution = None
        _TURN.set(weakref.ref(turn))
        host = turn.home.turn_host
        text: str | None = None
        error = unbegun
        stopped_by: ProcessExit | None = None
        self._conducted += 1
        try:
            try:
                if unbegun is None and await host.begin(turn):
                    text = await self._runner(turn)
                    if isinstance(text, str):
                        text = plain(text)
                    elif text is not None:
                        text, error = None, f"the runner returned {type(text).__name__}, not str or None"
            except BaseException as exc:
                error, stopped_by = _failure(exc, turn)
            self._end(turn, text, error)
            if isinstance(stopped_by, GeneratorExit):
                raise stopped_by
            await host.settle(turn, wait=stopped_by is not None)
        except GeneratorExit:
            self._settle_at_once(turn)
            return
        finally:
            self._conducted -= 1
        if stopped_by is not None:
            raise_in_loop(stopped_by)
            stopped_by = None  # it holds this frame

    def _end(self, turn: Turn, text: str | None, error: str | None) -> None:
        turn.end_output()
        turn.home.turn_host.end(turn, text, error)
        if self._places is not None and self._places.has(turn):
            if turn.task is not None and turn.task.cancelling() and not turn.covered:
                self._home.look_whether_it_ends(turn.task)  # then the next turn must not begin
            following = self._places.give_back(turn)
            if following is not None:
                self.start(following)

    def _settle_at_once(self, turn: Turn) -> None:
        self._home.cut_short = True
        turn.home.turn_host.settle_at_once(turn)

    def _task_is_over(self, turn: Turn, made: asyncio.Future[None]) -> None:
        """End the turn if its task has ended without beginning it."""
        if turn.task is None:
            why = guard("what the task factory returned", self._why_unbegun, turn, made)
            self._conduct_without_runner(turn, str(why or ENDED_UNBEGUN))

    def _why_unbegun(self, turn: Turn, made: asyncio.Future[None]) -> str:
        if made.cancelled():
            if not turn.covered:
                self._home.look_whether_it_ends(turn.task)
            return CANCELLED_FROM_OUTSIDE
        if (exc := made.exception()) is not None:
            session_id, run_id = turn.run.session_id, turn.run.run_id
            log_error(exc, "the task of the turn of run %s in session %r raised", run_id, session_id)
            return f"the turn could not be started: {describe(exc)}"
        return ENDED_UNBEGUN

    def _give_up_start(self, turn: Turn, why: str) -> None:
        """Go on without a task, unless the factory made one before it raised."""
        if turn.task is None:
            self._conduct_without_runner(turn, why)

    def _conduct_without_runner(self, turn: Turn, why: str) -> None:
        assert turn.execution is not None
        guard("closing a turn that was not begun", turn.execution.coroutine.close)
        turn.execution = Execution(self._conduct(turn, why), partial(self._task_is_over, turn))
        self._start_plainly(turn, turn.execution, turn.run.context)

    def _start_plainly(self, turn: Turn, execution: Execution, context: Context | None) -> None:
        """Make a plain task for a turn whose runner will not be called."""
        execution.made = StandIn(
            execution.coroutine, loop=self._home.loop, name=turn.run.run_id, context=context
        )
        execution.made.add_done_callback(execution.is_over)
        execution.is_started = True


def _failure(exc: BaseException, turn: Turn) -> tuple[str, ProcessExit | None]:
    """Return the error of a turn whose runner raised, and the exception if it ends more than the turn.

    There are four cases. A CancelledError is an error unless a cancel explains it; it is logged if only what
    the runner awaited was cancelled. KeyboardInterrupt and SystemExit are raised again once the turn is
    settled. A GeneratorExit from outside closes the turn, which must not wait any more. Anything else that
    the runner raises is logged.
    """
    session_id, run_id = turn.run.session_id, turn.run.run_id
    if isinstance(exc, asyncio.CancelledError):
        if turn.covered or turn.task is None or turn.task.cancelling():
            return CANCELLED_FROM_OUTSIDE, None
        log_error(exc, "the runner was cancelled in run %s of session %r", run_id, session_id)
        return CANCELLED_BY_ITSELF, None
    error = describe(exc)
    if isinstance(exc, KeyboardInterrupt | SystemExit):
        return error, exc
    if isinstance(exc, GeneratorExit) and not is_current(turn.task):
        return error, GeneratorExit()
    log_error(exc, "the runner raised in run %s of session %r", run_id, session_id)
    return error, None


def is_current(task: asyncio.Task[None] | None) -> bool:
    """Return whether the caller is in the task; not when its coroutine is being closed from outside."""
    try:
        return current_task() is task
    except RuntimeError:  # no loop is running
        return False


def _forget_callback(made: asyncio.Future[None], callback: Callable[[asyncio.Future[None]], None]) -> None:
    made.remove_done_callback(callback)  # it may have no such method


@types.coroutine
def _pause() -> Generator[None, None, None]:
    """Let the loop take a step."""
    yield
