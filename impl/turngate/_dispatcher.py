"""The dispatcher: hands each input to the session's core and performs the effects it returns.

The dispatcher takes no decision about a run. Every core step, what the journal has of it and the effects that
follow are one uninterrupted stretch on the event loop. Nothing that belongs to the user (runner, callback,
store, recording) is called inside a step.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import secrets
from collections import deque
from typing import TYPE_CHECKING, Any, assert_never

from turngate._core import SessionCore
from turngate._errors import ClosedFromRunner, DispatcherClosed, QueueFull, RunConflict, UnknownRun
from turngate._events import Delta, Subscribers, Subscription, wake
from turngate._journal import Journal, JournaledCore
from turngate._lifecycle import ACCEPTED
from turngate._limits import seconds, whole_number
from turngate._messages import MemoryMessages
from turngate._run import Covered, Run, check_prompt
from turngate._settle import begun, describe, settle, stop_loop

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future
    from collections.abc import Callable, Sequence
    from typing import Self, TextIO, Unpack

    from turngate._core import Effect
    from turngate._events import RunComplete
    from turngate._journal import Entry
    from turngate._lifecycle import State
    from turngate._messages import Messages
    from turngate._run import Attachment, OnComplete, PromptOptions, Runner, Turn, WhenBusy

log = logging.getLogger("turngate")


class Dispatcher:
    """Runs prompts through the runner, one turn at a time per session.

    An async context manager; leaving it is `aclose()`. It belongs to the event loop on which it first accepts
    a prompt, and turns run in copies of the context in which it was made.

    runner             called once per turn; see `Turn`
    messages           the store, `MemoryMessages()` unless given; whoever made it closes it
    record             receives the history: a text stream (JSON lines) or a callable that takes one dict
    queue_limit        accepted and queued runs per session, beyond which accept raises QueueFull
    accepted_limit     accepted runs over all sessions, beyond which accept raises QueueFull
    completions_kept   completions that can be asked for by run_id; the oldest is forgotten first
    delta_limit        unread deltas per subscriber, beyond which deltas are dropped and counted
    complete_limit     unread RunCompletes per subscriber, beyond which it is cut off
    settle_timeout     seconds that the store may take to write a turn
    """

    def __init__(
        self,
        runner: Runner,
        *,
        messages: Messages | None = None,
        record: TextIO | Callable[[Entry], object] | None = None,
        queue_limit: int = 16_384,
        accepted_limit: int = 65_536,
        completions_kept: int = 100_000,
        delta_limit: int = 1_024,
        complete_limit: int = 65_536,
        settle_timeout: float = 5.0,
    ) -> None:
        self.messages: Messages = MemoryMessages() if messages is None else messages
        self._runner = runner
        self._queue_limit = whole_number("queue_limit", queue_limit, at_least=1)
        self._accepted_limit = whole_number("accepted_limit", accepted_limit, at_least=1)
        self._completions_kept = whole_number("completions_kept", completions_kept, at_least=0)
        self._delta_limit = whole_number("delta_limit", delta_limit, at_least=0)
        self._complete_limit = whole_number("complete_limit", complete_limit, at_least=1)
        self._settle_timeout = seconds("settle_timeout", settle_timeout)

        unique = secrets.token_hex(6)
        self._run_prefix = f"run-{unique}-"
        self._message_prefix = f"msg-{unique}-"
        self._context = contextvars.copy_context()
        self._loop: AbstractEventLoop | None = None
        self._seq = 0
        self._accepted = 0
        self._sessions: dict[str, SessionCore] = {}
        self._runs: dict[str, Run] = {}
        self._complete: deque[str] = deque()
        self._subscribers = Subscribers()
        self._journal = Journal(record)
        self._performing: list[Effect] | None = None
        self._closing = False
        self._closed = False
        self._close_waiters: dict[Future[None], None] = {}

    # Taking prompts in.

    async def accept(
        self,
        session_id: str,
        prompt: str,
        *,
        run_id: str | None = None,
        attachments: Sequence[Attachment | str] = (),
        when_busy: WhenBusy = "fold",
        on_complete: OnComplete | None = None,
    ) -> Run:
        """Take a prompt in, without starting anything.

        Refuses with MissingSession, EmptyPrompt, DispatcherClosed, RunConflict, SessionBusy or QueueFull, and
        then leaves no trace. A known run_id with the same session, prompt and attachments returns the same
        Run. Never waits.
        """
        attachments = check_prompt(session_id, prompt, run_id, attachments, when_busy, on_complete)
        if self._closing:
            raise DispatcherClosed("the dispatcher is closed")
        if run_id is not None and (known := self._runs.get(run_id)) is not None:
            if (known.session_id, known.prompt, known.attachments) != (session_id, prompt, attachments):
                raise RunConflict(f"run {run_id!r} is known with another payload")
            return known
        if self._accepted >= self._accepted_limit:
            raise QueueFull(f"{self._accepted} runs are accepted and have not entered (accepted_limit)")
        effects: list[Effect] = []
        core = self._sessions.get(session_id)
        if core is None:
            core = self._sessions[session_id] = self._new_core(session_id)
        else:
            core.check_room(when_busy, self._queue_limit)
            if when_busy == "interrupt":
                _, effects = core.cancel()
        self._seq = seq = self._seq + 1
        if run_id is None:
            run_id = f"{self._run_prefix}{seq}"
            while run_id in self._runs:  # somebody chose an id that looks like one of ours
                run_id += "+"
        run = Run(self, session_id, run_id, seq, prompt, attachments, when_busy, on_complete)
        self._runs[run_id] = run
        self._accepted += 1
        core.accept(run)
        if effects or self._journal.untold:
            self._perform(effects)
        return run

    async def enter(self, run: Run) -> State:
        """Decide whether the run is cancelled on entry, queued or active; its turn runs in the background.

        Decides once: raises AlreadyEntered when the run is no longer accepted. Never waits.
        """
        if run._dispatcher is not self:
            raise UnknownRun(f"run {run.run_id} is not one of this dispatcher")
        return self._enter(run)

    async def submit(self, session_id: str, prompt: str, **options: Unpack[PromptOptions]) -> Run:
        """Accept now and enter in the background, on a later step of the loop. Takes what accept takes.

        Never waits; what becomes of the caller afterwards does not touch the run.
        """
        run = await self.accept(session_id, prompt, **options)
        self._bound_loop().call_soon(self._enter_later, run)
        return run

    async def ask(self, session_id: str, prompt: str, **options: Unpack[PromptOptions]) -> RunComplete:
        """Submit, and wait for the RunComplete. When cancelled while waiting, the run goes on."""
        run = await self.submit(session_id, prompt, **options)
        return await run.wait()

    async def wait(self, run_id: str) -> RunComplete:
        """Return the RunComplete of the run, at once if it is complete.

        Raises UnknownRun when there is no such run or its completion is no longer kept. When cancelled while
        waiting, the run goes on.
        """
        run = self._runs.get(run_id)
        if run is None:
            raise UnknownRun(f"run {run_id!r} is not known, or its completion is no longer kept")
        return await run.wait()

    # Taking them back.

    async def cancel(self, session_id: str) -> Covered:
        """Cover every run of the session that is accepted and not complete; nothing when it is idle.

        Queued runs complete now, the others as they settle. Never waits.
        """
        return self._cancel(self._session(session_id))

    async def cancel_run(self, run_id: str) -> Covered:
        """Cover this one run or, when it is part of the active turn, the whole turn. Never waits.

        The queue goes on. Nothing is covered when the run is complete or unknown.
        """
        run = self._runs.get(run_id)
        if run is None:
            return Covered([])
        covered, effects = self._session(run.session_id).cancel_run(run)
        self._perform(effects)
        return Covered(covered)

    async def cancel_all(self) -> Covered:
        """Cancel every session, those with nothing but accepted runs too. Never waits."""
        covered = [run for core in [*self._sessions.values()] for run in self._cancel(core).runs]
        return Covered(sorted(covered, key=lambda run: run.seq))

    async def clear_queue(self, session_id: str) -> list[Run]:
        """Drop what is queued in the session, and return it; accepted and active runs go on. Never waits."""
        dropped, effects = self._session(session_id).clear()
        self._perform(effects)
        return dropped

    async def aclose(self) -> None:
        """Refuse new prompts, cancel every session, and wait until no run owes its RunComplete.

        Idempotent: all callers wait for the same end. When cancelled while waiting, closing goes on. A runner
        cannot call it, for it would wait for itself: that raises ClosedFromRunner.
        """
        turns = [core.turn for core in self._sessions.values() if core.turn is not None]
        if (task := asyncio.current_task()) is not None and task in [turn.task for turn in turns]:
            raise ClosedFromRunner("aclose() waits for every turn, so a runner cannot call it")
        if not self._closing:
            self._closing = True
            for core in [*self._sessions.values()]:
                self._cancel(core)
                for run in [*core.accepted.values()]:
                    self._release(run)
            self._close_if_quiet()
        while not self._closed:
            waiter: Future[None] = asyncio.get_running_loop().create_future()
            self._close_waiters[waiter] = None
            try:
                await waiter
            finally:
                del self._close_waiters[waiter]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # Looking on.

    def is_busy(self, session_id: str | None = None) -> bool:
        """Say whether a turn is active in the session, or in any."""
        if session_id is None:
            return any(core.turn is not None for core in self._sessions.values())
        return self._session(session_id).turn is not None

    def queued(self, session_id: str) -> list[Run]:
        """Return the queued runs of the session, first in line first."""
        return [*self._session(session_id).queue.values()]

    def accepted_count(self, session_id: str) -> int:
        """Count the runs of the session that are accepted and have not entered."""
        return len(self._session(session_id).accepted)

    def cancel_mark(self, session_id: str) -> int:
        """Return the highest sequence that a cancel covers; 0 when it covers no accepted run."""
        return self._session(session_id).mark

    def subscribe(self, session_id: str | None = None) -> Subscription:
        """Receive the events of the session, or of all, from now on; see `Subscription`."""
        subscription = Subscription(
            self._bound_loop(),
            self._subscribers,
            session_id=session_id,
            delta_limit=self._delta_limit,
            complete_limit=self._complete_limit,
        )
        if self._closed:
            subscription.close()
        return subscription

    def __repr__(self) -> str:
        life = "closed" if self._closed else "closing" if self._closing else "open"
        cores = self._sessions.values()
        active = sum(core.turn is not None for core in cores)
        queued = sum(len(core.queue) for core in cores)
        return (
            f"<Dispatcher {life}: {len(cores)} sessions in flight, {active} active, {queued} queued, "
            f"{self._accepted} accepted, {len(self._complete)} completions kept>"
        )

    # One core step each.

    def _enter(self, run: Run) -> State:
        core = self._sessions.get(run.session_id) or self._new_core(run.session_id)
        effects = core.enter(run)
        state = run.state
        self._accepted -= 1
        self._perform(effects)
        return state

    def _enter_later(self, run: Run) -> None:
        if run.state is ACCEPTED:
            self._enter(run)

    def _release(self, run: Run) -> None:
        core = self._session(run.session_id)
        effects = core.release(run)
        self._accepted -= len(effects)
        self._forget_if_quiet(core)
        self._perform(effects)

    def _cancel(self, core: SessionCore) -> Covered:
        covered, effects = core.cancel()
        self._perform(effects)
        return Covered(covered)

    def _write(self, turn: Turn, text: str) -> None:
        if not isinstance(text, str):
            raise TypeError(f"a turn writes strings, not {type(text).__name__}")
        self._session(turn.run.session_id).write(turn, text)
        if self._subscribers.by_session:
            self._subscribers.deliver(Delta(turn.run.session_id, turn.run.run_id, text))

    def _fold(self, turn: Turn) -> list[Run]:
        core = self._session(turn.run.session_id)
        taken = core.fold(turn)
        self._perform([])
        return taken

    # Performing.

    def _perform(self, effects: list[Effect]) -> None:
        """Tell the journal, then perform the effects, after those of earlier steps that are still to come."""
        if self._journal.untold:
            self._guard(self._journal.tell)
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
            self._bound_loop().call_soon(self._perform, [*to_come])
            raise
        self._performing = None
        if self._closing:
            self._close_if_quiet()

    def _start(self, turn: Turn) -> None:
        conduct = self._conduct(self._sessions[turn.run.session_id], turn)
        conduct.send(None)
        try:
            loop = self._loop or self._bound_loop()
            turn.task = loop.create_task(conduct, name=turn.run.run_id, context=self._context.copy())
        except Exception:
            log.exception("the turn of run %s could not be started", turn.run.run_id)
            conduct.close()

    def _interrupt(self, turn: Turn) -> None:
        assert turn.task is not None
        self._guard(turn.task.cancel)

    async def _conduct(self, core: SessionCore, turn: Turn) -> None:
        """Call the runner unless a cancel came first, settle, complete: however it goes, it ends here."""
        text: str | None = None
        error: str | None = None
        ended_by: BaseException | None = None
        try:
            await begun()
            if turn.task is None:  # an eager task takes its first step before anyone has been given it
                turn.task = asyncio.current_task()
            if core.begin(turn):
                runner = self._runner  # to look it up in the call takes longer
                text = await runner(turn)
                if text is not None and not isinstance(text, str):
                    text, error = None, f"the runner returned {type(text).__name__}, not str or None"
        except asyncio.CancelledError:
            error = "the turn was cancelled from outside the dispatcher"
        except BaseException as exc:
            ended_by, error = exc, describe(exc)
        core.end(turn, text, error)
        try:
            if ended_by is not None and isinstance(ended_by, GeneratorExit):
                raise ended_by
            effects = await settle(core, turn, self.messages, self._settle_timeout)
        except GeneratorExit:  # no waiting any more
            effects = core.written(turn, core.outcome(turn), "the turn was closed before it could be written")
        if core.turn is None:
            self._forget_if_quiet(core)
        self._perform(effects)
        if ended_by is not None:
            stop_loop(self._bound_loop(), ended_by)

    def _publish(self, run: Run) -> None:
        complete = run.complete
        assert complete is not None
        self._complete.append(run.run_id)
        if len(self._complete) > self._completions_kept:
            del self._runs[self._complete.popleft()]
        if run._waiters:
            self._guard(wake, run._waiters)
        if run.on_complete is not None:
            on_complete, run.on_complete = run.on_complete, None
            self._guard(on_complete, complete)
        elif self._subscribers.by_session:
            self._guard(self._subscribers.deliver, complete)

    def _close_if_quiet(self) -> None:
        if self._closed or self._sessions or self._performing is not None:
            return
        self._closed = True
        self._journal.end()
        self._guard(self._journal.tell)
        self._guard(self._subscribers.close)
        self._guard(wake, self._close_waiters)

    def _guard(self, call: Callable[..., object], *args: Any) -> None:
        """Call what is the user's, or may end up there; what it raises stays out of every run's way."""
        try:
            call(*args)
        except BaseException as exc:
            log.exception("%r failed", call)
            stop_loop(self._bound_loop(), exc)

    def _session(self, session_id: str) -> SessionCore:
        """Return the core of the session; a quiet one has none, and gets one that only an accept keeps."""
        return self._sessions.get(session_id) or self._new_core(session_id)

    def _new_core(self, session_id: str) -> SessionCore:
        if self._journal.record is not None or log.isEnabledFor(logging.DEBUG):
            return JournaledCore(session_id, self._message_prefix, self._journal.untold)
        return SessionCore(session_id, self._message_prefix)

    def _forget_if_quiet(self, core: SessionCore) -> None:
        if core.is_quiet():
            self._sessions.pop(core.session_id, None)

    def _bound_loop(self) -> AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._loop
