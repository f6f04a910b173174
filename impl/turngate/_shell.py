"""The shell around the cores: performs the effects that a core step returns, and hears from turns.

The shell takes no decision about a run. Every core step, what the journal has of it and the effects that
follow are one uninterrupted stretch on the event loop. Nothing that belongs to the user (runner, hook, store,
recording, log handler) is called inside a core step, and nothing that it raises stops an effect.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import secrets
import threading
import weakref
from typing import TYPE_CHECKING, Any, Final, assert_never

from turngate._core import SessionCore
from turngate._errors import TurnEnded, WrongLoop
from turngate._events import Delta, Subscribers
from turngate._guard import complain, deal_with, describe, log
from turngate._journal import Journal, JournaledCore
from turngate._lifecycle import SETTLING, STARTING
from turngate._turn import (
    CANCELLED_FROM_OUTSIDE,
    CLOSED_UNWRITTEN,
    StandIn,
    conduct,
    start_without_factory,
)
from turngate._waiters import Waiters

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future
    from collections.abc import Callable
    from typing import TextIO

    from turngate._completions import Completions
    from turngate._core import Effect
    from turngate._events import RunComplete
    from turngate._journal import Entry
    from turngate._messages import Messages
    from turngate._run import OnComplete, Run, Runner, Turn

_SECOND_LOOK: Final = 1.0
"""Seconds after which a loop that seemed to come to its end is looked at again."""
_THE_LOOPS_OWN: Final = frozenset({"shutdown_asyncgens", "shutdown_default_executor"})
"""What `asyncio.run` still runs on a loop that comes to its end."""
_CANCELLED_FROM_OUTSIDE: Final[weakref.WeakSet[asyncio.Task[None]]] = weakref.WeakSet()
"""The tasks that do no more than to write a turn, for which their cancels had to be forgotten."""


running_loop = asyncio._get_running_loop  # None where `get_running_loop` raises


class Shell:
    """What a dispatcher holds, and how it performs what the cores of its sessions ask for."""

    def __init__(
        self,
        runner: Runner,
        messages: Messages,
        record: TextIO | Callable[[Entry], object] | None,
        completions: Completions,
        settle_timeout: float,
    ) -> None:
        self.messages = messages
        self._runner = runner
        self._completions = completions
        self._settle_timeout = settle_timeout
        unique = secrets.token_hex(6)
        self._run_prefix = f"run-{unique}-"
        self._message_prefix = f"msg-{unique}-"
        self._loop: AbstractEventLoop | None = None
        self._thread = 0
        self._sessions: dict[str, SessionCore] = {}
        self._runs: dict[str, Run] = {}
        self._subscribers = Subscribers()
        self._journal = Journal(record)
        self._performing: list[Effect] | None = None
        self._writing = threading.Lock()
        self._loop_ends = False
        self._cut_short = False
        self._closing = False
        self._closed = False
        self._close_waiters = Waiters()

    # Where it belongs.

    def _here(self) -> AbstractEventLoop:
        """Return the dispatcher's loop; raise WrongLoop unless it is the one that runs here."""
        loop = running_loop()
        if loop is None or loop is not self._loop:
            return self._belong_to(loop)
        return loop

    def _belong_to(self, loop: AbstractEventLoop | None) -> AbstractEventLoop:
        if loop is None or self._loop is not None:
            raise WrongLoop(
                "the dispatcher was called outside of its event loop; from another thread, use "
                "asyncio.run_coroutine_threadsafe(dispatcher.submit(...), loop)"
            )
        self._loop = loop
        self._thread = threading.get_ident()
        return loop

    def _in_thread(self) -> None:
        """Raise WrongLoop unless this is the thread of the dispatcher's loop, running or not."""
        if self._loop is not None and self._thread != threading.get_ident():
            self._here()

    # The cores.

    def _session(self, session_id: str) -> SessionCore:
        """Return the core of the session; for a quiet session a new one, which is kept only if it accepts."""
        return self._sessions.get(session_id) or self._new_core(session_id)

    def _new_core(self, session_id: str) -> SessionCore:
        if self._journal.record is not None or log.isEnabledFor(logging.DEBUG):
            return JournaledCore(session_id, self._message_prefix, self._journal.untold)
        return SessionCore(session_id, self._message_prefix)

    def _forget_if_quiet(self, core: SessionCore) -> None:
        if core.is_quiet():
            self._sessions.pop(core.session_id, None)

    def _close_if_quiet(self) -> None:
        """Come to the end of a close when nothing is in flight any more; see `Dispatcher`."""
        raise NotImplementedError

    # Performing.

    def _perform(self, effects: list[Effect]) -> None:
        """Tell the journal, then perform the effects, after those of earlier steps that are still to come."""
        if self._journal.untold:
            self._journal.tell()
        if self._performing is not None:
            self._performing += effects
            return
        self._performing = effects
        to_come = iter(effects)  # goes on to what is added meanwhile
        try:
            for effect in to_come:
                match effect[0]:
                    case "publish":
                        self._publish(effect[1])
                    case "start":
                        self._start(effect[1])
                    case "interrupt":
                        self._interrupt(effect[1])
                    case _:
                        assert_never(effect)
        except BaseException:  # a signal handler raised; it must not cost anyone their RunComplete
            self._performing = None
            self._here().call_soon(self._perform, [*to_come])
            raise
        self._performing = None
        if self._closing:
            self._close_if_quiet()

    def _start(self, turn: Turn) -> None:
        """Have the loop make the task of the turn, in the context in which its lead run was accepted.

        The call is made inside that context, not given it: a factory need not take one, and a tracer that
        wraps `create_task` looks for its span where it is called.
        """
        loop, run = self._loop, turn.run
        assert loop is not None
        if self._loop_ends and self._held_back(turn):
            return
        context, run._context = run._context, None
        assert context is not None
        conducting = conduct(self, self._sessions[run.session_id], turn)
        try:
            if loop.get_task_factory() is None:
                made = context.run(loop.create_task, conducting, name=run.run_id)
            else:
                made = context.run(loop.create_task, conducting)
            made.add_done_callback(turn._task_is_over)
            turn._made = made
        except BaseException as exc:
            if loop.is_closed():
                conducting.close()
                self._complete_unwritten(self._sessions[run.session_id], turn, CLOSED_UNWRITTEN)
                return
            deal_with(
                exc, "the turn of run %s in session %r could not be started", run.run_id, run.session_id
            )
            loop.call_soon(self._give_up_start, turn, f"the turn could not be started: {describe(exc)}")
        finally:
            turn._conducting = conducting

    def _interrupt(self, turn: Turn) -> None:
        assert turn.task is not None
        self._guard("cancelling a turn's task", turn.task.cancel)

    def _publish(self, run: Run) -> None:
        complete = run.complete
        assert complete is not None
        run_id = run.run_id
        self._completions.keep(run, complete, not run_id.startswith(self._run_prefix))
        self._runs.pop(run_id, None)
        run._context = None
        if run._waiters is not None:
            self._guard("waking those who wait", run._waiters.wake)
        if run.on_complete is not None:
            on_complete, run.on_complete = run.on_complete, None
            self._call_back(on_complete, complete)
        elif self._subscribers.by_session:
            self._guard("delivering a RunComplete", self._subscribers.deliver, complete)

    def _call_back(self, on_complete: OnComplete, complete: RunComplete) -> None:
        about = f"on_complete of run {complete.run_id} in session {complete.session_id!r}"
        answer = self._guard(about, on_complete, complete)
        if inspect.isawaitable(answer) and not asyncio.isfuture(answer):
            complain(None, "%s returned an awaitable, which nobody awaits", about)
            if (close := getattr(answer, "close", None)) is not None:
                self._guard(f"closing what {about} returned", close)

    def _guard(self, about: str, call: Callable[..., object], *args: Any) -> object:
        """Call what is the user's, or may end up there, and return its answer, None if it raised."""
        try:
            return call(*args)
        except BaseException as exc:
            deal_with(exc, "%s raised", about)
            return None

    # Hearing from turns.

    def _write(self, turn: Turn, text: str) -> None:
        """Keep text of the turn, and stream it: at once, or, from a thread, as soon as the loop is free."""
        if not isinstance(text, str):
            raise TypeError(f"a turn writes strings, not {type(text).__name__}")
        loop = self._loop
        assert loop is not None
        here = running_loop() is loop
        with self._writing:
            self._session(turn.run.session_id).write(turn, text)
            if not here:
                first = turn._unsent is None
                turn._unsent = turn._unsent or []
                turn._unsent.append(text)
        if here:
            if turn._unsent is not None:
                self._send_unsent(turn)
            self._send(turn, text)
        elif first:
            try:
                loop.call_soon_threadsafe(self._send_unsent, turn)
            except RuntimeError as closed:
                raise TurnEnded(f"write to the turn of {turn.run.run_id}, whose loop is closed") from closed

    def _send(self, turn: Turn, text: str) -> None:
        if self._subscribers.by_session:
            self._subscribers.deliver(Delta(turn.run.session_id, turn.run.run_id, text))

    def _send_unsent(self, turn: Turn) -> None:
        with self._writing:
            unsent, turn._unsent = turn._unsent, None
        for text in unsent or ():
            self._send(turn, text)

    def _fold(self, turn: Turn) -> list[Run]:
        self._here()
        taken = self._session(turn.run.session_id).fold(turn)
        self._perform([])
        return taken

    def _complete_unwritten(self, core: SessionCore, turn: Turn, why: str | None = None) -> None:
        """Complete a turn that can wait for nothing any more; `why` it ends, if it has not ended yet."""
        self._cut_short = True
        if turn.phase is not SETTLING:
            with self._writing:
                core.end(turn, None, why)
        effects = core.written(turn, core.outcome(turn), CLOSED_UNWRITTEN)
        self._forget_if_quiet(core)
        self._perform(effects)

    def _task_is_over(self, turn: Turn, task: Future[None]) -> None:
        """Have the turn conducted anew if its task is over and has not begun to conduct it."""
        if turn.phase is not STARTING:
            return
        if task.cancelled():
            why = CANCELLED_FROM_OUTSIDE
            self._look_whether_the_loop_ends(turn)
        elif (exc := task.exception()) is not None:
            why = f"the turn could not be started: {describe(exc)}"
            run = turn.run
            complain(exc, "the task of the turn of run %s in session %r raised", run.run_id, run.session_id)
        else:
            why = "the turn's task ended without calling the runner"
        self._conduct_without_runner(turn, why)

    def _give_up_start(self, turn: Turn, why: str) -> None:
        """Go on without a task, unless the factory had made one before it raised."""
        if turn.phase is STARTING:
            self._conduct_without_runner(turn, why)

    def _conduct_without_runner(self, turn: Turn, why: str) -> None:
        """Conduct a turn whose task came to nothing: all but the call of its runner."""
        core = self._sessions[turn.run.session_id]
        assert turn._conducting is not None
        self._guard("closing a turn that was not begun", turn._conducting.close)
        assert self._loop is not None
        start_without_factory(self._loop, turn, conduct(self, core, turn, why))

    # A loop that comes to its end under an open dispatcher.

    def _look_whether_the_loop_ends(self, turn: Turn) -> None:
        """Take a cancel from outside for the end of the loop if everything else is cancelled too."""
        assert self._loop is not None
        if turn.task is not None:
            _CANCELLED_FROM_OUTSIDE.add(turn.task)
        if not any(map(_lives, asyncio.all_tasks(self._loop))):
            self._loop_ends = self._cut_short = True

    def _held_back(self, turn: Turn) -> bool:
        """Start no queued runner while everything around it is torn down: look again later."""
        assert self._loop is not None
        if any(map(_lives, asyncio.all_tasks(self._loop))):
            self._loop_ends = self._cut_short = False
            return False
        self._loop.call_later(_SECOND_LOOK, self._look_again, turn)
        return True

    def _look_again(self, turn: Turn, steps: int = 2) -> None:
        """Start a turn that was held back, unless the loop is still coming to its end.

        A loop without any task may be about to stop, which takes it so many steps.
        """
        assert self._loop is not None
        tasks = asyncio.all_tasks(self._loop)
        if tasks and not any(map(_lives, tasks)):
            self._loop.call_later(_SECOND_LOOK, self._look_again, turn)
        elif not tasks and steps > 0:
            self._loop.call_soon(self._look_again, turn, steps - 1)
        else:
            self._loop_ends = self._cut_short = False
            self._start(turn)


def _lives(task: asyncio.Task[object]) -> bool:
    """Say whether a task goes on, unlike all those on a loop that comes to its end."""
    if task.cancelling() or isinstance(task, StandIn) or task in _CANCELLED_FROM_OUTSIDE:
        return False
    return getattr(task.get_coro(), "__name__", "") not in _THE_LOOPS_OWN
