"""What callers call. A call is one step of a session's core; the shell performs the effects."""

from __future__ import annotations

import asyncio
import warnings
from contextvars import copy_context
from typing import TYPE_CHECKING, Final

from turngate._closing import Closing
from turngate._completions import Completions, CompletionStream
from turngate._errors import DispatcherClosed, QueueFull, RunConflict, UnknownRun
from turngate._events import Subscription
from turngate._keys import Keys, answer_of, check_key, request_of
from turngate._lifecycle import ACCEPTED, COMPLETE
from turngate._limits import seconds, whole_number
from turngate._messages import MemoryMessages
from turngate._places import Places
from turngate._prompt import check_prompt, plain
from turngate._run import Covered, Run
from turngate._surroundings import running_loop
from turngate._views import SessionView, view
from turngate._words import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self, TextIO, Unpack

    from turngate._core import Effect
    from turngate._events import RunComplete
    from turngate._journal import Entry
    from turngate._keys import RunName
    from turngate._lifecycle import State
    from turngate._messages import Messages
    from turngate._prompt import Attachment, OnComplete, PromptOptions, WhenBusy
    from turngate._run import Runner

_SUBMITS_IN_A_ROW: Final = 64
"""So many submits that have not entered yet, and the next one lets the loop go on first."""


class Dispatcher(Closing):
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
    delta_limit        unread deltas and notes per subscriber, beyond which these are dropped and counted
    delta_bytes        bytes of these per subscriber, by the same rule
    complete_limit     unread RunCompletes and moves per subscriber, beyond which it is cut off
    settle_timeout     seconds that the store may take to write a turn
    turns_limit        runner calls at once over all sessions; turns beyond it wait in line, and can be
                       cancelled meanwhile without their runner being called
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
        turns_limit: int | None = None,
    ) -> None:
        self._queue_limit = whole_number("queue_limit", queue_limit, at_least=1)
        self._accepted_limit = whole_number("accepted_limit", accepted_limit, at_least=1)
        self._delta_limit = whole_number("delta_limit", delta_limit, at_least=0)
        self._delta_bytes = whole_number("delta_bytes", delta_bytes, at_least=0)
        self._complete_limit = whole_number("complete_limit", complete_limit, at_least=1)
        self._seq = 0
        self._lookalikes = False  # whether somebody chose an id that looks like one of ours
        self._keys = Keys()
        super().__init__(
            runner,
            MemoryMessages() if messages is None else messages,
            record,
            seconds("settle_timeout", settle_timeout),
            None if turns_limit is None else Places(whole_number("turns_limit", turns_limit, at_least=1)),
        )
        self._completions = Completions(
            whole_number("completions_kept", completions_kept, at_least=0),
            whole_number("completions_bytes", completions_bytes, at_least=0),
            self._unique,
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

        `on_complete` receives the RunComplete instead of the subscribers, and is dropped when the run is
        queued, which then completes to the subscribers; `Run.add_done_callback` is called whatever happens.
        """
        if running_loop() is not self._loop:
            self._here()
        attachments = check_prompt(session_id, prompt, run_id, attachments, when_busy, on_complete)
        if type(prompt) is not str or type(session_id) is not str:
            prompt, session_id = plain(prompt), plain(session_id)
        if self._closing:
            raise DispatcherClosed("the dispatcher is closed")
        if run_id is not None:
            run_id = plain(run_id)
            if known := self._known(run_id, session_id, prompt, attachments):
                return known
        if self._accepted >= self._accepted_limit:
            raise QueueFull(f"{counted(self._accepted, 'run')} accepted and not entered (accepted_limit)")
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
        """Submit, and wait for the RunComplete. Cancelling the caller does not touch the run.

        Raises WouldDeadlock when a runner asks something in its own session: that would wait for the runner.
        """
        await self._check_ask(session_id, options.get("run_id"), options.get("when_busy", "fold"))
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

    async def cancel(self, session_id: str, *, key: str | None = None) -> Covered:
        """Cover every run of the session that is accepted and not complete; nothing when it is idle.

        Queued runs complete now, the others as they settle. Never waits. A repetition under the same `key`
        changes nothing and returns what the first call returned; raises KeyConflict if the key was used for
        another request. The last 10,000 keys are remembered.
        """
        self._here()
        return self._once(key, ("cancel", session_id), lambda: self._cancel(self._session(session_id)))

    async def cancel_run(self, run_id: str, *, waiting_only: bool = False, key: str | None = None) -> Covered:
        """Cover this one run or, when it is part of the active turn, the whole turn. Never waits.

        The queue goes on. With `waiting_only`, the run is taken back only while its runner has not been
        called: it is accepted, queued, or active and waiting for a place. Nothing is covered when the run is
        complete or unknown; `Covered.known` tells these two apart. `key` is an idempotency key, as for
        `cancel`.
        """
        self._here()

        def cover() -> Covered:
            run = self._runs.get(run_id)
            if run is None:
                return Covered([], run_id in self._completions)
            return self._cancel_one(run, waiting_only=waiting_only)

        return self._once(key, ("cancel_run", run_id, bool(waiting_only)), cover)

    async def cancel_all(self, *, key: str | None = None) -> Covered:
        """Cancel every session, those with nothing but accepted runs too. Never waits.

        `key` is an idempotency key, as for `cancel`.
        """
        self._here()

        def cover() -> Covered:
            covered = [run for core in [*self._sessions.values()] for run in self._cancel(core).runs]
            return Covered(sorted(covered, key=lambda run: run.seq))

        return self._once(key, ("cancel_all",), cover)

    async def clear_queue(self, session_id: str, *, key: str | None = None) -> list[Run]:
        """Drop what is queued in the session, and return it; accepted and active runs go on. Never waits.

        `key` is an idempotency key, as for `cancel`.
        """
        self._here()

        def clear() -> Covered:
            dropped, effects = self._session(session_id).clear()
            self._perform(effects)
            return Covered(dropped)

        return self._once(key, ("clear_queue", session_id), clear).runs

    def key_life(self) -> str:
        """Return a name for the time in which a key is remembered: this dispatcher's life.

        Whoever repeats a call says by it where the call was first made. Another dispatcher has another life,
        and knows none of the keys.
        """
        self._in_thread()
        return self._unique

    def continues_life(self, life: str) -> bool:
        """Say whether the keys of that life are remembered here."""
        self._in_thread()
        return life == self._unique

    def knows_key(self, key: str) -> bool:
        """Say whether a call under this key is remembered."""
        self._in_thread()
        return check_key(key) in self._keys

    def _once(
        self, key: str | None, request: tuple[str, *tuple[object, ...]], call: Callable[[], Covered]
    ) -> Covered:
        """Call, or return what the first call under this key returned."""
        if key is None:
            return call()
        key, asked = check_key(key), request_of(*request)
        kept = self._keys.find(key, asked)
        if kept is not None:
            return Covered([self._run_named(name) for name in kept.runs], kept.known)
        covered = call()
        self._keys.keep(key, asked, answer_of(covered.runs, known=covered.known))
        return covered

    def _run_named(self, name: RunName) -> Run:
        """Return a run of an answer that is given again; its completion may be no longer kept."""
        run = self._runs.get(name.run_id)
        if run is not None and run.seq == name.seq:
            return run
        complete = self._completions.find(name.run_id)
        if complete is not None and complete.seq == name.seq:
            return self._completed(complete, "", ())
        run = Run(self, name.session_id, name.run_id, name.seq, "")
        run.state = COMPLETE
        return run

    async def __aenter__(self) -> Self:
        self._here()
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

    def sessions(self) -> list[SessionView]:
        """Look at every session that has something in flight, all in one step."""
        self._in_thread()
        return [view(core) for core in self._sessions.values()]

    def session(self, session_id: str) -> SessionView:
        """Look at a session, which may be quiet."""
        self._in_thread()
        return view(self._session(session_id))

    def find(self, run_id: str) -> Run | None:
        """Return the run, None if there is no such run or its completion is no longer kept.

        Of a complete run, prompt and attachments are found only if its caller named it (`run_id`) and
        somebody still holds the handle: they are kept nowhere else.
        """
        self._in_thread()
        if (run := self._runs.get(run_id)) is not None:
            return run
        complete = self._completions.find(run_id)
        return None if complete is None else self._completed(complete, "", ())

    def completions(self, after: str | None = None, *, until: str | None = None) -> CompletionStream:
        """Return `(cursor, RunComplete)` of each complete run, oldest kept first, then of those to come.

        An async iterator that ends when the dispatcher is closed. `after` is a cursor that it gave: go on
        behind it; `until` is one too: end there, at once if that is not behind `after`, and do not wait.
        Raises CursorExpired, here or while iterating, when what comes behind `after` is no longer all kept,
        or it is a cursor of another dispatcher.
        """
        self._in_thread()
        return CompletionStream(self, after, until)

    def end_cursor(self) -> str:
        """Return the cursor behind which `completions(after=)` gives what completes from now on."""
        self._in_thread()
        return self._completions.end()

    def subscribe(self, session_id: str | None = None, *, moves: bool = False) -> Subscription:
        """Receive the events of the session, or of all, from now on; see `Subscription`.

        With `moves`, also every accept, enter, fold, handoff, cancel and clear, and the RunCompletes of runs
        that have a hook, all in the order in which the dispatcher decided.
        """
        self._here()
        if moves:
            self._keep_journal()
        subscription = Subscription(
            self,
            session_id=session_id,
            moves=moves,
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
            f"<Dispatcher {life}: {counted(len(cores), 'session')} in flight, {active} active, "
            f"{queued} queued, {self._accepted} accepted, "
            f"{counted(len(self._completions), 'completion')} kept>"
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
        return run if complete is None else self._completed(complete, prompt, attachments)

    def _completed(
        self, complete: RunComplete, prompt: str, attachments: tuple[Attachment | str, ...]
    ) -> Run:
        """Return the run whose completion is kept: the handle that somebody holds, or a new one."""
        run = self._completions.handle(complete.run_id)
        if run is None:
            run = Run(self, complete.session_id, complete.run_id, complete.seq, prompt, attachments)
            run.state, run.complete = COMPLETE, complete
            run._pieces = self._completions.pieces(complete.run_id)
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

    def _cancel_one(self, run: Run, *, waiting_only: bool) -> Covered:
        covered, effects = self._session(run.session_id).cancel_run(run, waiting_only=waiting_only)
        self._perform(effects)
        return Covered(covered)

    # For the server.

    def session_count(self) -> int:
        """Count the sessions that have something in flight, at a cost that does not grow with them."""
        self._in_thread()
        return len(self._sessions)

    def cursor_order(self, cursor: str) -> tuple[int, ...]:
        """Return a key that sorts the cursors of `completions` from the oldest to the newest.

        Raises CursorExpired if the cursor is not one of this dispatcher.
        """
        self._in_thread()
        return (self._completions.number_of(cursor),)
