"""The shell around the cores: performs the effects that a core step returns, and hears from turns.

The shell takes no decision about a run. Every core step, what the journal has of it and the effects that
follow are one uninterrupted stretch on the event loop. Nothing that belongs to the user (runner, hook, store,
recording, log handler) is called inside a core step, and nothing that it raises stops an effect.
"""

from __future__ import annotations

import asyncio
import inspect
import secrets
import threading
import time
from typing import TYPE_CHECKING, Any, TypeVar, assert_never

from turngate._clean_up import clean_up
from turngate._core import SessionCore
from turngate._errors import TurnEnded, WouldDeadlock
from turngate._events import Delta, Note, Subscribers, TurnStream, size_of
from turngate._guard import complain, deal_with, describe
from turngate._journal import Journal, JournaledCore
from turngate._json import given_back, taken
from turngate._lifecycle import ACCEPTED, ACTIVE, CANCEL_ON_ENTRY, COMPLETE, SETTLING, STARTING
from turngate._runner import prepare_runner
from turngate._surroundings import Surroundings, running_loop
from turngate._turn import (
    CANCELLED_FROM_OUTSIDE,
    CLOSED_UNWRITTEN,
    ENDED_UNBEGUN,
    conduct,
    start_without_factory,
)
from turngate._waiters import Waiters

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import Awaitable, Callable, Sequence
    from typing import TextIO

    from turngate._completions import Completions
    from turngate._core import Effect
    from turngate._events import RunComplete
    from turngate._journal import Entry
    from turngate._messages import Messages
    from turngate._places import Places
    from turngate._prompt import OnComplete
    from turngate._run import Run, Runner, Turn

T = TypeVar("T")


class Shell(Surroundings):
    """What a dispatcher holds, and how it performs what the cores of its sessions ask for."""

    _completions: Completions

    def __init__(
        self,
        runner: Runner,
        messages: Messages,
        record: TextIO | Callable[[Entry], object] | None,
        settle_timeout: float,
        places: Places | None,
    ) -> None:
        super().__init__()
        self.messages = messages
        self._runner = prepare_runner(runner)
        self._settle_timeout = settle_timeout
        self._places = places
        unique = self._unique = secrets.token_hex(6)
        self._run_prefix = f"run-{unique}-"
        self._message_prefix = f"msg-{unique}-"
        self._sessions: dict[str, SessionCore] = {}
        self._runs: dict[str, Run] = {}
        self._subscribers = Subscribers()
        self._stream: TurnStream = self._subscribers
        """Takes what turns write and note."""
        self._journal = Journal(record, self._subscribers.to_moves)
        self._performing: list[Effect] | None = None
        self._writing = threading.Lock()
        self._closing = False
        self._closed = False
        self._close_waiters = Waiters()

    # The cores.

    def _session(self, session_id: str) -> SessionCore:
        """Return the core of the session; for a quiet session a new one, which is kept only if it accepts."""
        return self._sessions.get(session_id) or self._new_core(session_id)

    def _new_core(self, session_id: str) -> SessionCore:
        kind = JournaledCore if self._journal.is_kept() else SessionCore
        return kind(session_id, self._message_prefix, self._journal.untold)

    def _keep_journal(self) -> None:
        """Have the cores that are there note what they decide from now on."""
        for core in self._sessions.values():
            if type(core) is SessionCore:
                core.__class__ = JournaledCore

    def _turn_of(self, run: Run) -> Turn | None:
        """Return the turn that a run is part of which is not complete: an active run is in its session's."""
        return self._session(run.session_id).turn if run.state is ACTIVE else None

    def _pieces_of(self, run: Run) -> Sequence[str] | None:
        """Return what the turn of the run has written so far, None if there is no turn or no text."""
        turn = self._turn_of(run)
        return None if turn is None else turn.parts

    # Waits of a runner for its own session.

    def _own_turn(self, session_id: str) -> Turn | None:
        """Return the active turn of the session if its task is the one that runs now."""
        core = self._sessions.get(session_id)
        if core is None or core.turn is None or core.turn.task is None:
            return None
        return core.turn if core.turn.task is asyncio.current_task() else None

    async def _check_wait(self, run: Run) -> None:
        """Raise WouldDeadlock if a runner waits for a run that cannot complete before its own turn ends.

        Only the task of the turn is refused. A task that the runner has started may wait for as long as the
        runner does not wait for that task, which cannot be known here.
        """
        turn = self._own_turn(run.session_id)
        if turn is not None and await self._waits_for(run, turn):
            await self._refuse_wait(turn, f"run {run.run_id}")

    async def _waits_for(self, run: Run, turn: Turn) -> bool:
        """Say whether the run, which is of the same session, cannot complete before the turn ends."""
        if run.state is ACCEPTED:
            return not self._session(run.session_id)._covers(run)
        return run.state is not CANCEL_ON_ENTRY and run.state is not COMPLETE

    async def _check_ask(self, session_id: str, run_id: str | None, when_busy: str | None) -> None:
        """Raise WouldDeadlock if a runner asks something in its own session, before it is accepted.

        A known run is left to `_check_wait`. With "interrupt" the turn is cancelled, "reject" is refused.
        """
        self._here()
        if not isinstance(session_id, str) or (turn := self._own_turn(session_id)) is None:
            return
        if when_busy in {"fold", "queue"} and (run_id is None or not await self._knows(run_id)):
            await self._refuse_wait(turn, "a new prompt")

    async def _knows(self, run_id: str) -> bool:
        return run_id in self._runs or run_id in self._completions

    async def _refuse_wait(self, turn: Turn, what: str) -> None:
        if turn.covered:
            await asyncio.sleep(0)  # the cancel of the turn comes first, if it is on its way
        raise WouldDeadlock(
            f"{what} of session {turn.run.session_id!r} cannot complete before the turn of run "
            f"{turn.run.run_id} ends, so the runner of that turn cannot wait for it; take follow-ups in "
            "with turn.fold(), or wait in a task that the runner does not await"
        )

    def _forget_if_quiet(self, core: SessionCore) -> None:
        if core.is_quiet():
            self._sessions.pop(core.session_id, None)

    def _close_if_quiet(self) -> None:
        """Come to the end of a close when nothing is in flight any more; see `Dispatcher`."""
        raise NotImplementedError

    # Performing.

    def _perform(self, effects: list[Effect]) -> None:
        """Tell the journal, then perform the effects, after those of earlier steps that are still to come."""
        if self._performing is not None:
            self._journal.tell()
            self._performing += effects
            return
        self._performing = effects
        to_come = iter(effects)  # goes on to what is added meanwhile
        try:
            if self._journal.untold:
                self._journal.tell()
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
        wraps `create_task` looks for its span where it is called. A covered turn, whose runner will not be
        called, is no business of the factory's. A turn for which there is no place waits for one.
        """
        loop, run = self._loop, turn.run
        assert loop is not None
        if turn.since is None:
            turn.since = time.time()
        if self._places is not None and not self._places.take(turn):
            return
        if self._loop_ends and self._held_back(turn):
            return
        context = run._context
        assert context is not None
        conducting = conduct(self, self._sessions[run.session_id], turn)
        try:
            if loop.get_task_factory() is None:
                made = context.run(loop.create_task, conducting, name=run.run_id)
            elif turn.covered:
                start_without_factory(loop, turn, conducting, context)
                return
            else:
                turn._by_factory = True
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
        """Cancel the task of the turn.

        One that has not come to its first step needs none, for it will look: unless a factory has made it,
        which may have it wait for something first.
        """
        if turn.task is not None:
            self._guard("cancelling a turn's task", turn.task.cancel)
        elif turn._by_factory and turn._made is not None:
            self._guard("cancelling a turn's task", turn._made.cancel)

    def _give_back_place(self, turn: Turn) -> None:
        """Let the next turn in line have the place of one whose runner is over."""
        assert self._places is not None
        if turn.task is not None and turn.task.cancelling() and not turn.covered:
            self._look_whether_the_loop_ends(turn)  # for then nobody is to begin
        following = self._places.give_back(turn)
        if following is not None:
            self._perform([("start", following)])

    def _publish(self, run: Run) -> None:
        complete = run.complete
        assert complete is not None
        run_id = run.run_id
        self._completions.keep(run, complete, not run_id.startswith(self._run_prefix))
        if self._completions.waiters is not None:
            self._guard("waking those who wait for completions", self._completions.wake)
        self._runs.pop(run_id, None)
        run._context = None
        if run._waiters is not None:
            self._guard("waking those who wait", run._waiters.wake)
        if run._listeners is not None:
            self._guard("waking those who read", run._listeners.wake)
        if run.on_complete is not None:
            on_complete, run.on_complete = run.on_complete, None
            self._call_back("on_complete", on_complete, complete)
        elif self._subscribers.to_completes.by_session:
            self._guard("delivering a RunComplete", self._subscribers.to_completes.deliver, complete)
        if run._callbacks is not None:
            callbacks, run._callbacks = run._callbacks, None
            for callback in callbacks:
                self._call_back("a callback", callback, complete)

    def _call_back(self, what: str, callback: OnComplete, complete: RunComplete) -> None:
        """Call a hook or a callback; close the awaitable that it should not have returned."""
        about = f"{what} of run {complete.run_id} in session {complete.session_id!r}"
        answer = self._guard(about, callback, complete)
        self._guard(f"closing what {about} returned", _close_awaitable, about, answer)

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
        run = turn.run
        if running_loop() is self._loop:
            with self._writing:
                offset = self._session(run.session_id).write(turn, text)
                earlier, turn._unsent = turn._unsent, None
            if earlier is not None:
                self._send(earlier)
            self._wake_listeners(turn)
            if self._stream.listen():
                delta = Delta(run.session_id, run.run_id, text, offset)
                self._stream.stream(delta, size_of(delta))
            return
        with self._writing:
            offset = self._session(run.session_id).write(turn, text)
            delta = Delta(run.session_id, run.run_id, text, offset)
            first = self._add_unsent(turn, delta, size_of(delta))
        self._send_soon(turn, first)

    def _emit(self, turn: Turn, kind: str, data: object) -> None:
        """Stream what the runner tells beside its text, in order with it."""
        if not isinstance(kind, str):
            raise TypeError(f"the kind of a note must be a string, not {type(kind).__name__}")
        text = taken(data, "turn.emit")
        note = Note(turn.run.session_id, turn.run.run_id, kind, given_back(text))
        with self._writing:
            self._session(turn.run.session_id).check_open(turn, "emit from")
            first = self._add_unsent(turn, note, len(kind) + len(text))
        if running_loop() is self._loop:
            self._send_unsent(turn)
        else:
            self._send_soon(turn, first)

    def _keep(self, turn: Turn, data: object) -> None:
        text = taken(data, "turn.keep")
        with self._writing:
            self._session(turn.run.session_id).keep(turn, text)

    def _add_unsent(self, turn: Turn, event: Delta | Note, size: int) -> bool:
        """Note what is to be sent; say whether it is the first, for which nobody is on the way yet."""
        first = turn._unsent is None
        turn._unsent = turn._unsent or []
        turn._unsent.append((event, size))
        return first

    def _send_soon(self, turn: Turn, first: bool) -> None:
        """Have the loop send what a thread has written, unless it is going to anyway."""
        assert self._loop is not None
        try:
            if first:
                self._loop.call_soon_threadsafe(self._send_unsent, turn)
        except RuntimeError as closed:
            raise TurnEnded(f"write to the turn of {turn.run.run_id}, whose loop is closed") from closed

    def _send_unsent(self, turn: Turn) -> None:
        with self._writing:
            unsent, turn._unsent = turn._unsent, None
        self._send(unsent or ())
        self._wake_listeners(turn)

    def _send(self, unsent: Sequence[tuple[Delta | Note, int]]) -> None:
        for event, size in unsent:
            self._stream.stream(event, size)

    def _wake_listeners(self, turn: Turn) -> None:
        for run in turn._runs:
            if run._listeners is not None:
                run._listeners.wake()

    async def _clean_up(self, awaitable: Awaitable[T], within: float) -> T:
        self._here()
        return await clean_up(awaitable, within)

    def _foldable(self, turn: Turn) -> list[Run]:
        self._here()
        return self._session(turn.run.session_id).foldable(turn)

    def _fold(self, turn: Turn) -> list[Run]:
        self._here()
        joining = self._session(turn.run.session_id).fold(turn)
        self._perform([])
        for run in joining:
            if run._listeners is not None:
                run._listeners.wake()
        return joining

    def _complete_unwritten(self, core: SessionCore, turn: Turn, why: str | None = None) -> None:
        """Complete a turn that can wait for nothing any more; `why` it ends, if it has not ended yet."""
        self._cut_short = True
        if turn.phase is not SETTLING:
            with self._writing:
                core.end(turn, None, why)
        if turn.has_place:
            self._give_back_place(turn)
        effects = core.written(turn, core.outcome(turn), CLOSED_UNWRITTEN)
        self._forget_if_quiet(core)
        self._perform(effects)

    def _task_is_over(self, turn: Turn, task: Future[None]) -> None:
        """Have the turn conducted anew if its task is over and has not begun to conduct it."""
        if turn.phase is STARTING:
            why = self._guard("what the task factory returned", self._why_unbegun, turn, task)
            self._conduct_without_runner(turn, str(why or ENDED_UNBEGUN))

    def _why_unbegun(self, turn: Turn, task: Future[None]) -> str:
        """Say how a task came to nothing."""
        if task.cancelled():
            if not turn.covered:
                self._look_whether_the_loop_ends(turn)
            return CANCELLED_FROM_OUTSIDE
        if (exc := task.exception()) is not None:
            run = turn.run
            complain(exc, "the task of the turn of run %s in session %r raised", run.run_id, run.session_id)
            return f"the turn could not be started: {describe(exc)}"
        return ENDED_UNBEGUN

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
        start_without_factory(self._loop, turn, conduct(self, core, turn, why), turn.run._context)


def _close_awaitable(about: str, answer: object) -> None:
    """Close what nobody will await, and say so; a future is the business of whoever made it."""
    if inspect.isawaitable(answer) and not asyncio.isfuture(answer):
        complain(None, "%s returned an awaitable, which nobody awaits", about)
        if (close := getattr(answer, "close", None)) is not None:
            close()
