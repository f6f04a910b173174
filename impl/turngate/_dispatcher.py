"""What callers call. A call is one step of a session's core; the shell performs the effects."""

from __future__ import annotations

import asyncio
import logging
import math
import warnings
from contextvars import copy_context
from typing import TYPE_CHECKING, Final

from turngate._completions import Completions
from turngate._errors import ClosedFromRunner, DispatcherClosed, QueueFull, RunConflict, UnknownRun
from turngate._events import Subscription
from turngate._guard import say
from turngate._lifecycle import ACCEPTED, COMPLETE, RUNNING
from turngate._limits import seconds, whole_number
from turngate._messages import MemoryMessages
from turngate._run import Covered, Run, check_prompt
from turngate._shell import Shell, running_loop

if TYPE_CHECKING:
    from asyncio import TimerHandle
    from collections.abc import Callable, Sequence
    from typing import Self, TextIO, Unpack

    from turngate._core import Effect, SessionCore
    from turngate._events import RunComplete
    from turngate._journal import Entry
    from turngate._lifecycle import State
    from turngate._messages import Messages
    from turngate._run import Attachment, OnComplete, PromptOptions, Runner, WhenBusy

_SUBMITS_IN_A_ROW: Final = 64
"""So many submits that have not entered yet, and the next one lets the loop go on first."""
_REMINDER: Final = 2.0
"""Seconds after which a close that still waits says for which runs, and interrupts their runners again."""
_NAMED: Final = 10
"""So many of these runs are named; the rest are counted."""


class Dispatcher(Shell):
    """Runs prompts through the runner, one turn at a time per session.

    An async context manager; leaving it is `aclose()`. It belongs to the event loop on which it is first
    used: a call from another loop or another thread raises WrongLoop. From another thread, use
    `asyncio.run_coroutine_threadsafe(dispatcher.submit(...), loop)`. A turn runs in a copy of the context in
    which its lead run was accepted.

    runner             called once per turn; see `Turn`
    messages           the store, `MemoryMessages()` unless given; whoever made it closes it
    record             receives the history: a text stream (JSON lines) or a callable that takes one dict
    queue_limit        accepted and queued runs per session, beyond which accept raises QueueFull
    accepted_limit     accepted runs over all sessions, beyond which accept raises QueueFull
    completions_kept   completions that can be asked for by run_id; the oldest is forgotten first
    completions_bytes  about how many bytes they may take, by the same rule
    delta_limit        unread deltas per subscriber, beyond which deltas are dropped and counted
    delta_bytes        bytes of unread deltas per subscriber, by the same rule
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
        completions_bytes: int = 268_435_456,
        delta_limit: int = 1_024,
        delta_bytes: int = 8_388_608,
        complete_limit: int = 65_536,
        settle_timeout: float = 5.0,
    ) -> None:
        self._queue_limit = whole_number("queue_limit", queue_limit, at_least=1)
        self._accepted_limit = whole_number("accepted_limit", accepted_limit, at_least=1)
        self._delta_limit = whole_number("delta_limit", delta_limit, at_least=0)
        self._delta_bytes = whole_number("delta_bytes", delta_bytes, at_least=0)
        self._complete_limit = whole_number("complete_limit", complete_limit, at_least=1)
        self._seq = 0
        self._accepted = 0
        self._entering = 0
        self._lookalikes = False  # whether somebody chose an id that looks like one of ours
        self._finishing = False
        self._timers: list[TimerHandle] = []
        super().__init__(
            runner,
            MemoryMessages() if messages is None else messages,
            record,
            Completions(
                whole_number("completions_kept", completions_kept, at_least=0),
                whole_number("completions_bytes", completions_bytes, at_least=0),
            ),
            seconds("settle_timeout", settle_timeout),
        )

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
        if running_loop() is not self._loop:
            self._here()
        attachments = check_prompt(session_id, prompt, run_id, attachments, when_busy, on_complete)
        if self._closing:
            raise DispatcherClosed("the dispatcher is closed")
        if run_id is not None and (known := self._known(run_id, session_id, prompt, attachments)):
            return known
        if self._accepted >= self._accepted_limit:
            raise QueueFull(f"{self._accepted} runs are accepted and have not entered (accepted_limit)")
        effects: list[Effect] | None = None
        core = self._sessions.get(session_id)
        if core is None:
            core = self._sessions[session_id] = self._new_core(session_id)
        else:
            core.check_room(when_busy, self._queue_limit)
            if when_busy == "interrupt":
                effects = core.interrupt()
        self._seq = seq = self._seq + 1
        if run_id is None:
            run_id = f"{self._run_prefix}{seq}"
            while self._lookalikes and (run_id in self._runs or run_id in self._completions):
                run_id += "+"
        run = Run(self, session_id, run_id, seq, prompt, attachments, when_busy, on_complete, copy_context())
        self._runs[run_id] = run
        self._accepted += 1
        core.accept(run)
        if effects is not None or self._journal.untold:
            self._perform(effects or [])
        return run

    async def enter(self, run: Run) -> State:
        """Decide whether the run is cancelled on entry, queued or active; its turn runs in the background.

        Decides once: raises AlreadyEntered when the run is no longer accepted. Never waits.
        """
        if running_loop() is not self._loop:
            self._here()
        if run._dispatcher is not self:
            raise UnknownRun(f"run {run.run_id} is not one of this dispatcher")
        return self._enter(run)

    async def submit(self, session_id: str, prompt: str, **options: Unpack[PromptOptions]) -> Run:
        """Accept now and enter in the background, on a later step of the loop. Takes what accept takes.

        In a long row of submits it lets other tasks run first; never after it has accepted, so a caller that
        is cancelled leaves either nothing behind or a run that goes on without it.
        """
        if self._entering >= _SUBMITS_IN_A_ROW and running_loop() is self._loop:
            await asyncio.sleep(0)
        run = await self.accept(session_id, prompt, **options)
        self._entering += 1
        self._here().call_soon(self._enter_later, run)
        return run

    async def ask(self, session_id: str, prompt: str, **options: Unpack[PromptOptions]) -> RunComplete:
        """Submit, and wait for the RunComplete. Cancelling the caller does not touch the run."""
        run = await self.submit(session_id, prompt, **options)
        return await run.wait()

    async def wait(self, run_id: str) -> RunComplete:
        """Return the RunComplete of the run, at once if it is complete.

        Raises UnknownRun when there is no such run or its completion is no longer kept. Cancelling the caller
        does not touch the run.
        """
        self._here()
        if (run := self._runs.get(run_id)) is not None:
            return await run.wait()
        complete = self._completions.find(run_id)
        if complete is None:
            raise UnknownRun(f"run {run_id!r} is not known, or its completion is no longer kept")
        return complete

    # Taking them back.

    async def cancel(self, session_id: str) -> Covered:
        """Cover every run of the session that is accepted and not complete; nothing when it is idle.

        Queued runs complete now, the others as they settle. Never waits.
        """
        self._here()
        return self._cancel(self._session(session_id))

    async def cancel_run(self, run_id: str) -> Covered:
        """Cover this one run or, when it is part of the active turn, the whole turn. Never waits.

        The queue goes on. Nothing is covered when the run is complete or unknown.
        """
        self._here()
        run = self._runs.get(run_id)
        if run is None:
            return Covered([])
        covered, effects = self._session(run.session_id).cancel_run(run)
        self._perform(effects)
        return Covered(covered)

    async def cancel_all(self) -> Covered:
        """Cancel every session, those with nothing but accepted runs too. Never waits."""
        self._here()
        covered = [run for core in [*self._sessions.values()] for run in self._cancel(core).runs]
        return Covered(sorted(covered, key=lambda run: run.seq))

    async def clear_queue(self, session_id: str) -> list[Run]:
        """Drop what is queued in the session, and return it; accepted and active runs go on. Never waits."""
        self._here()
        dropped, effects = self._session(session_id).clear()
        self._perform(effects)
        return dropped

    async def aclose(self, *, finish: float = 0.0) -> None:
        """Refuse new prompts, end what is in flight, and wait until no run owes its RunComplete.

        What is in flight may end by itself for `finish` seconds (`math.inf`: as long as it takes); then every
        session is cancelled, and what has not entered is released. While finishing, accepted runs may still
        enter; they are released at once when nothing else is left.

        Idempotent: all callers wait for the same end, and the first one's `finish` counts. Cancelling the
        caller does not stop the close. A runner cannot call it, for it would wait for itself: that raises
        ClosedFromRunner. A runner that goes on although it was cancelled is interrupted again and again.
        """
        loop = self._here()
        task = asyncio.current_task()
        if any(core.turn is not None and core.turn.task is task for core in self._sessions.values()):
            raise ClosedFromRunner("aclose() waits for every turn, so a runner cannot call it")
        self.begin_close(finish=finish)
        while not self._closed:
            await self._close_waiters.wait(loop)

    def begin_close(self, *, finish: float = 0.0) -> None:
        """Begin what `aclose` does, without waiting for it: for a signal handler on the loop."""
        loop = self._here()
        if not isinstance(finish, int | float) or not finish >= 0:
            raise ValueError(f"finish must be at least 0 seconds, not {finish!r}")
        if self._closing:
            return
        self._closing = True
        self._timers.append(loop.call_later(_REMINDER, self._remind))
        if finish == 0:
            self._cancel_what_is_left()
        else:
            self._finishing = True
            if finish < math.inf:
                self._timers.append(loop.call_later(finish, self._cancel_what_is_left))
        self._close_if_quiet()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # Looking on.

    def is_busy(self, session_id: str | None = None) -> bool:
        """Say whether a turn is active in the session, or in any."""
        self._in_thread()
        if session_id is None:
            return any(core.turn is not None for core in self._sessions.values())
        return self._session(session_id).turn is not None

    def queued(self, session_id: str) -> list[Run]:
        """Return the queued runs of the session, first in line first."""
        self._in_thread()
        return self._session(session_id).queue.in_order()

    def accepted_count(self, session_id: str) -> int:
        """Count the runs of the session that are accepted and have not entered."""
        self._in_thread()
        return len(self._session(session_id).accepted)

    def cancel_mark(self, session_id: str) -> int:
        """Return the highest sequence that a cancel covers; 0 when it covers no accepted run."""
        self._in_thread()
        return self._session(session_id).mark

    def subscribe(self, session_id: str | None = None) -> Subscription:
        """Receive the events of the session, or of all, from now on; see `Subscription`."""
        self._here()
        subscription = Subscription(
            self,
            session_id=session_id,
            delta_limit=self._delta_limit,
            delta_bytes=self._delta_bytes,
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
            f"{self._accepted} accepted, {len(self._completions)} completions kept>"
        )

    _warns_if_dropped = True

    def __del__(self) -> None:
        if getattr(self, "_closed", True) or not self._warns_if_dropped:
            return
        if self._sessions or self._cut_short:
            unclosed = f"dropped without aclose() while runs were in flight: {self!r}"
            warnings.warn(unclosed, ResourceWarning, source=self, stacklevel=2)

    # One core step each.

    def _known(
        self, run_id: str, session_id: str, prompt: str, attachments: tuple[Attachment | str, ...]
    ) -> Run | None:
        """Return the run that is known by this id, complete or not; raise if its payload is another."""
        self._lookalikes = self._lookalikes or run_id.startswith(self._run_prefix)
        run = self._runs.get(run_id)
        complete = None if run is not None else self._completions.find(run_id)
        if run is not None:
            same = (run.session_id, run.prompt, run.attachments) == (session_id, prompt, attachments)
        elif complete is not None:
            same = self._completions.is_same(run_id, (session_id, prompt, attachments))
        else:
            return None
        if not same:
            raise RunConflict(f"run {run_id!r} is known with another payload")
        if complete is not None:
            run = self._completions.handle(run_id)
        if run is None and complete is not None:
            run = Run(self, session_id, run_id, complete.seq, prompt, attachments)
            run.state, run.complete = COMPLETE, complete
        return run

    def _enter(self, run: Run) -> State:
        core = self._sessions.get(run.session_id) or self._new_core(run.session_id)
        effects = core.enter(run)
        state = run.state
        self._accepted -= 1
        self._perform(effects)
        return state

    def _enter_later(self, run: Run) -> None:
        self._entering -= 1
        if run.state is ACCEPTED:
            self._enter(run)
        elif self._closing:
            self._close_if_quiet()

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

    # Closing.

    def _cancel_what_is_left(self) -> None:
        self._finishing = False
        for core in [*self._sessions.values()]:
            self._cancel(core)
            self._release_accepted(core)

    def _release_accepted(self, core: SessionCore) -> None:
        for run in [*core.accepted.values()]:
            self._release(run)

    def _close_if_quiet(self) -> None:
        if self._closed or self._performing is not None:
            return
        if self._finishing and not self._entering and not self._has_turns():
            self._finishing = False  # whoever holds these runs can enter them no more
            for core in [*self._sessions.values()]:
                self._release_accepted(core)
        if self._sessions or self._closed:
            return
        self._closed = True
        for timer in self._timers:
            timer.cancel()
        self._journal.end()
        self._guard("closing the subscriptions", self._subscribers.close)
        self._guard("waking those who close", self._close_waiters.wake)

    def _has_turns(self) -> bool:
        return any(core.turn is not None or core.settling for core in self._sessions.values())

    def _remind(self) -> None:
        """Say for which runs the close waits; interrupt again the runners that should have ended."""
        waiting = [f"{run.run_id} ({run.state})" for run in [*self._runs.values()]]
        named = ", ".join(waiting[:_NAMED])
        more = f" and {len(waiting) - _NAMED} more" if len(waiting) > _NAMED else ""
        say(logging.WARNING, "closing waits for %d runs: %s%s", len(waiting), named, more)
        turns = [core.turn for core in self._sessions.values() if core.turn is not None]
        for turn in turns:
            if turn.covered and turn.phase is RUNNING:
                self._interrupt(turn)
        self._timers[0] = self._here().call_later(_REMINDER, self._remind)
