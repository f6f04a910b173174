"""What callers call. Each call is one step of a session's core, whose effects are performed at once."""

from __future__ import annotations

import asyncio
import secrets
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

from turngate._close import Close
from turngate._completions import Completions, CompletionStream
from turngate._core import ACCEPTED, COMPLETE, QUEUED, Edit, RunRecord, SessionCore
from turngate._effects import Effects, Journal, MemoryHome, Sessions
from turngate._errors import DispatcherClosed, NotWaiting, QueueFull, RunConflict, UnknownRun, counted
from turngate._events import Subscribers, Subscription
from turngate._handles import Covered, Run, SessionView
from turngate._keys import Keys, answer_of, check_key, request_of
from turngate._log import guard
from turngate._loop import HomeLoop
from turngate._messages import MemoryMessages
from turngate._places import Places
from turngate._prompt import (
    UNCHANGED,
    check_attachments,
    check_edited_when_busy,
    check_finish,
    check_one_position,
    check_prompt,
    check_text,
    encode,
    plain,
    seconds,
    whole_number,
)
from turngate._runner import prepare_runner
from turngate._turn import current_turn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, Self, TextIO, Unpack

    from turngate._core import Decided, State
    from turngate._events import RunComplete
    from turngate._handles import Runner
    from turngate._keys import RunName
    from turngate._messages import Messages
    from turngate._prompt import Attachment, OnComplete, Payload, PromptOptions, Unchanged, WhenBusy

_SUBMITS_IN_A_ROW: Final = 64
"""When this many submits have not entered yet, the next one lets the loop go on first."""


class Dispatcher:
    """Runs prompts through the runner, one turn at a time per session.

    An async context manager; leaving it is `aclose()`. It belongs to the event loop on which it is first
    used: a call from another loop or another thread raises WrongLoop. From another thread, use
    `asyncio.run_coroutine_threadsafe(dispatcher.submit(...), loop)`. A turn runs in a copy of the context in
    which its lead run was accepted.

    runner             called once per turn; see `Turn`
    messages           the store, `MemoryMessages()` by default; the dispatcher does not close it
    record             receives the history: a text stream (JSON lines) or a callable that takes one dict
    queue_limit        accepted and queued runs per session, beyond which accept raises QueueFull
    accepted_limit     accepted runs over all sessions, beyond which accept raises QueueFull
    completions_kept   completions that can be asked for by run_id; the oldest is forgotten first
    completions_bytes  about how many bytes they may take, by the same rule
    delta_limit        unread deltas and notes per subscriber, beyond which these are dropped and counted
    delta_bytes        bytes of these per subscriber, by the same rule
    complete_limit     unread RunCompletes and decisions per subscriber, beyond which it is cut off
    settle_timeout     seconds that the store may take to write a turn
    turns_limit        runner calls at once over all sessions; turns beyond it wait for a place, and can be
                       cancelled meanwhile without their runner being called
    """

    def __init__(
        self,
        runner: Runner,
        *,
        messages: Messages | None = None,
        record: TextIO | Callable[[dict[str, Any]], object] | None = None,
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
        places = None if turns_limit is None else Places(whole_number("turns_limit", turns_limit, at_least=1))
        self.messages: Messages = MemoryMessages() if messages is None else messages
        self._unique = secrets.token_hex(6)
        self._run_prefix = f"run-{self._unique}-"
        self._seq = 0
        self._has_lookalikes = False  # whether a caller chose an id that looks like one of ours
        self._keys = Keys()
        # No part holds the home of the handles, so a dispatcher that is dropped with nothing in flight is
        # freed at once, without the garbage collector. Turns hold what ends them, because the collector
        # clears weak references before it closes the turns of a dispatcher that was dropped with them.
        self._loop = HomeLoop()
        self._subscribers = Subscribers()
        self._journal = Journal(record, self._subscribers.to_moves)
        self._sessions = Sessions(f"msg-{self._unique}-", self._journal)
        self._completions = Completions(
            whole_number("completions_kept", completions_kept, at_least=0),
            whole_number("completions_bytes", completions_bytes, at_least=0),
            self._unique,
        )
        self._effects = Effects(
            self._loop,
            self._sessions,
            self._journal,
            self._completions,
            self._subscribers,
            self.messages,
            runner=prepare_runner(runner),
            drawn_prefix=self._run_prefix,
            places=places,
            settle_timeout=seconds("settle_timeout", settle_timeout),
        )
        self._close = Close(self._loop, self._sessions, self._effects)
        self._home = MemoryHome(
            self._loop, self._sessions, self._completions, self._subscribers, self.messages, self._effects,
            self._close,
        )  # fmt: skip

    # Accepting prompts.

    async def accept(
        self,
        session_id: str,
        prompt: str,
        *,
        run_id: str | None = None,
        attachments: Sequence[Attachment | str] = (),
        when_busy: WhenBusy = "fold",
        on_complete: OnComplete | None = None,
        into: str | None = None,
        data: object = None,
    ) -> Run:
        """Take a prompt in, without starting anything.

        Refuses with MissingSession, EmptyPrompt, DispatcherClosed, RunConflict, SessionBusy, QueueFull or
        NotRunning, and then leaves no trace. A known run_id with the same session, prompt, attachments and
        data returns the same Run. Never waits.

        `into` names a run of the active turn: the prompt may only be folded into that turn. If the turn ends
        without it, it completes in the same step, cleared if it was queued and released if it had not
        entered. `data` is JSON for the runner, found in `Run.data`, and kept with the user message.

        `on_complete` receives the RunComplete instead of the subscribers, and is dropped when the run is
        queued, which then completes to the subscribers; `Run.add_done_callback` is called whatever happens.
        """
        self._loop.check_loop()
        attached = check_prompt(session_id, prompt, run_id, attachments, when_busy, on_complete, into)
        if type(session_id) is not str or type(prompt) is not str:
            session_id, prompt = plain(session_id), plain(prompt)
        sent = None if data is None else encode(data, "data")
        if self._close.is_begun:
            raise DispatcherClosed("the dispatcher is closed")
        if run_id is not None:
            run_id = plain(run_id)
            if known := self._known(run_id, (session_id, prompt, attached, sent)):
                return known
        sessions = self._sessions
        if sessions.accepted >= self._accepted_limit:
            raise QueueFull(f"{counted(sessions.accepted, 'run')} accepted and not entered (accepted_limit)")
        seq = self._seq + 1
        if run_id is None:
            run_id = f"{self._run_prefix}{seq}"
            while self._has_lookalikes and (run_id in sessions.runs or run_id in self._completions):
                run_id += "+"
        record = RunRecord(session_id, run_id, seq, prompt, when_busy, ACCEPTED, False, sent)
        core = sessions.core(session_id)
        effects, entries = core.accept(record, self._queue_limit, into)
        self._seq = seq
        sessions.cores[session_id] = core
        sessions.accepted += 1
        run = sessions.runs[run_id] = Run(self._home, record, attached, on_complete, copy_context())
        if effects or entries:
            self._effects.perform((effects, entries))
        return run

    async def enter(self, run: Run) -> State:
        """Decide whether the run is cancelled on entry, queued or active; its turn runs in the background.

        Decides once: raises AlreadyEntered if the run is no longer accepted. Never waits.
        """
        self._loop.check_loop()
        if run.home is not self._home:
            raise UnknownRun(f"run {run.run_id} is not one of this dispatcher")
        return self._enter(run)

    async def submit(self, session_id: str, prompt: str, **options: Unpack[PromptOptions]) -> Run:
        """Accept now and enter in the background, on a later step of the loop. Takes what accept takes.

        In a long row of submits it lets other tasks run first, but never after it has accepted. So a caller
        that is cancelled leaves either nothing behind, or a run that goes on without it.
        """
        if self._sessions.entering >= _SUBMITS_IN_A_ROW and self._loop.is_running_here():
            await asyncio.sleep(0)
        run = await self.accept(session_id, prompt, **options)
        self._sessions.entering += 1
        self._loop.check_loop().call_soon(self._enter_later, run)
        return run

    async def ask(self, session_id: str, prompt: str, **options: Unpack[PromptOptions]) -> RunComplete:
        """Submit, and wait for the RunComplete. Cancelling the caller does not touch the run.

        Raises WouldDeadlock when a runner asks something in its own session: that would wait for the runner.
        """
        loop = self._loop.check_loop()
        turn = current_turn()
        if turn is None:
            run = await self.submit(session_id, prompt, **options)
            return await run.until_complete(loop)
        submit = partial(self.submit, session_id, prompt, **options)
        return await self._home.deadlocks.ask(
            turn, session_id, options.get("run_id"), options.get("when_busy", "fold"), submit
        )

    async def wait(self, run_id: str) -> RunComplete:
        """Return the RunComplete of the run, at once if it is complete.

        Raises UnknownRun when there is no such run or its completion is no longer kept. Cancelling the caller
        does not touch the run.
        """
        self._loop.check_loop()
        if (run := self._sessions.runs.get(run_id)) is not None:
            return await run.wait()
        complete = self._completions.find(run_id)
        if complete is None:
            raise UnknownRun(f"run {run_id!r} is unknown, or its completion is no longer kept")
        return complete

    # Cancelling.

    async def cancel(self, session_id: str, *, key: str | None = None) -> Covered:
        """Cover every run of the session that is accepted and not complete; nothing when it is idle.

        Queued runs complete now, the others as they settle. Never waits. A repetition under the same `key`
        changes nothing and returns what the first call returned; raises KeyConflict if the key was used for
        another request. The last 10,000 keys are remembered.
        """
        self._loop.check_loop()
        return self._once(key, ("cancel", session_id), lambda: self._cancel(self._sessions.core(session_id)))

    async def cancel_run(self, run_id: str, *, waiting_only: bool = False, key: str | None = None) -> Covered:
        """Cover this one run or, when it is part of the active turn, the whole turn. Never waits.

        The queue goes on. With `waiting_only`, the run is covered only while its runner has not been called:
        it is accepted, queued, or active and waiting for a place. Nothing is covered if the run is complete
        or unknown; `Covered.known` tells these two apart. `key` is an idempotency key, as for `cancel`.
        """
        self._loop.check_loop()

        def cover() -> Covered:
            run = self._sessions.runs.get(run_id)
            if run is None:
                return Covered([], run_id in self._completions)
            return self._home.cover(run, waiting_only=waiting_only)

        return self._once(key, ("cancel_run", run_id, bool(waiting_only)), cover)

    async def cancel_all(self, *, key: str | None = None) -> Covered:
        """Cancel every session, those with nothing but accepted runs too. Never waits.

        `key` is an idempotency key, as for `cancel`.
        """
        self._loop.check_loop()

        def cover() -> Covered:
            cores = map(self._sessions.core, [*self._sessions.cores])
            covered = [run for core in cores for run in self._cancel(core).runs]
            return Covered(sorted(covered, key=lambda run: run.seq))

        return self._once(key, ("cancel_all",), cover)

    async def clear_queue(self, session_id: str, *, key: str | None = None) -> list[Run]:
        """Drop what is queued in the session, and return it; accepted and active runs go on. Never waits.

        `key` is an idempotency key, as for `cancel`.
        """
        self._loop.check_loop()

        def clear() -> Covered:
            core = self._sessions.core(session_id)
            return Covered(self._effects.perform_for(core, *core.clear()))

        return self._once(key, ("clear_queue", session_id), clear).runs

    # Changing waiting runs.

    async def hold(self, session_id: str, *, key: str | None = None) -> list[Run]:
        """Hold every waiting run of the session, accepted or queued; return those that were not held before.

        A held run does not start, and joins no turn, before it is resumed. A run that is accepted later is
        not held. Cancels, clears and limits treat held runs like any other. Never waits. `key` is an
        idempotency key, as for `cancel`.
        """
        return self._hold_or_resume("hold", session_id, key)

    async def hold_run(self, run_id: str, *, key: str | None = None) -> list[Run]:
        """Hold this run, as `hold` does; return it in a list, which is empty if it was held already.

        Raises UnknownRun, or NotWaiting if it is not accepted or queued.
        """
        return self._hold_or_resume("hold", "", key, run_id)

    async def resume(self, session_id: str, *, key: str | None = None) -> list[Run]:
        """Resume every held run of the session, and return them in order. Never waits.

        If no turn is active, the first queued run that is not held starts. `key` is an idempotency key, as
        for `cancel`.
        """
        return self._hold_or_resume("resume", session_id, key)

    async def resume_run(self, run_id: str, *, key: str | None = None) -> list[Run]:
        """Resume this run, as `resume` does; return it in a list, which is empty if it was not held.

        Raises UnknownRun, or NotWaiting if it is not accepted or queued.
        """
        return self._hold_or_resume("resume", "", key, run_id)

    async def stop(self, session_id: str, *, turn: str | None = None, key: str | None = None) -> Covered:
        """Cover the active turn alone and hold what waits, in one step. Never waits.

        With `turn`, a run_id, nothing happens unless that run is part of the active turn. `Covered.held` are
        the runs that this call held, `Covered.waiting` all that still wait. `key` is an idempotency key, as
        for `cancel`.
        """
        self._loop.check_loop()

        def stop() -> Covered:
            core = self._sessions.core(session_id)
            covered, held, decided = core.stop(turn)
            return self._receipt(core, covered, held, decided)

        return self._once(key, ("stop", session_id, turn), stop)

    async def move(
        self,
        run_id: str,
        *,
        before: str | None = None,
        to: Literal["first", "last"] | None = None,
        key: str | None = None,
    ) -> Run:
        """Move a waiting run before another of its session, or to the first or last position.

        Only the position changes, never what a cancel covers; runs accepted later come after it. Raises
        UnknownRun or NotWaiting for either run, and ValueError unless exactly one of `before` and `to` is
        given. Never waits. `key` is an idempotency key, as for `cancel`.
        """
        self._loop.check_loop()
        check_one_position(before, to)

        def move() -> Covered:
            run = self._in_flight(run_id)
            other = to if before is None else self._in_flight(before)
            if isinstance(other, Run) and other.session_id != run.session_id:
                raise ValueError(f"run {before!r} is of another session than run {run_id!r}")
            core = self._sessions.core(run.session_id)
            place = other.record if isinstance(other, Run) else other
            assert place is not None
            return Covered(self._effects.perform_for(core, [run.record], core.move(run.record, place)))

        return self._once(key, ("move", run_id, before, to), move).runs[0]

    async def edit(
        self,
        run_id: str,
        *,
        prompt: str | None = None,
        attachments: Sequence[Attachment | str] | Unchanged | None = UNCHANGED,
        when_busy: Literal["fold", "queue"] | None = None,
        data: object = UNCHANGED,
        key: str | None = None,
    ) -> Run:
        """Change what the runner will be given for a waiting run, which keeps its position and sequence.

        What is not given stays; None removes the attachments or the data. A new `when_busy` also frees a run
        that was for one turn alone (`into`). Raises UnknownRun, NotWaiting once the run is active or
        complete, and EmptyPrompt; then nothing has changed. An accept under the same run_id is compared with
        the payload as it was first accepted. Never waits. `key` is an idempotency key, as for `cancel`.
        """
        self._loop.check_loop()
        if when_busy is not None:
            check_edited_when_busy(when_busy)
        attached = None if attachments is UNCHANGED else check_attachments(attachments or ())
        sent = None if data is None or data is UNCHANGED else encode(data, "data")

        def edit() -> Covered:
            run = self._in_flight(run_id)
            core, record = self._sessions.core(run.session_id), run.record
            edited = Edit(
                record.prompt if prompt is None else prompt,
                record.data if data is UNCHANGED else sent,
                when_busy,
            )
            first, now = run.payload, run.attachments if attached is None else attached
            check_text(run.session_id, edited.prompt, now)
            decided = core.edit(record, edited._replace(prompt=plain(edited.prompt)))
            run.accepted_as, run.attachments = first, now
            return Covered(self._effects.perform_for(core, [record], decided))

        asked = (prompt, None if attached is None else [*attached], when_busy, data is UNCHANGED, sent)
        return self._once(key, ("edit", run_id, *asked), edit).runs[0]

    async def send_now(self, run_id: str, *, turn: str | None = None, key: str | None = None) -> Covered:
        """Make a queued run, held or not, the next one: put it first, and cover the active turn.

        This is one step, which never covers that run; if no turn is active, the run starts. With `turn`, a
        run_id, nothing happens unless that run is part of the active turn. Raises UnknownRun, or NotWaiting
        unless the run is queued. `Covered.waiting` are the runs that still wait. Never waits. `key` is an
        idempotency key, as for `cancel`.
        """
        self._loop.check_loop()

        def send() -> Covered:
            run = self._in_flight(run_id)
            core = self._sessions.core(run.session_id)
            covered, decided = core.send_now(run.record, turn)
            return self._receipt(core, covered, [], decided)

        return self._once(key, ("send_now", run_id, turn), send)

    async def key_life(self) -> str:
        """Return a name for the period in which keys are remembered: the life of this dispatcher.

        A caller that repeats a call passes it to say where the call was first made. Another dispatcher has
        another life, and knows none of the keys.
        """
        self._loop.check_thread()
        return self._unique

    async def continues_life(self, life: str) -> bool:
        """Return whether the keys of that life are remembered here."""
        self._loop.check_thread()
        return life == self._unique

    async def knows_key(self, key: str) -> bool:
        """Return whether a call under this key is remembered."""
        self._loop.check_thread()
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
            return Covered(
                [self._run_named(name) for name in kept.runs],
                kept.known,
                [self._run_named(name) for name in kept.held],
                [self._run_named(name) for name in kept.waiting],
            )
        covered = call()
        answer = answer_of(covered.runs, known=covered.known, held=covered.held, waiting=covered.waiting)
        self._keys.keep(key, asked, answer)
        return covered

    def _run_named(self, name: RunName) -> Run:
        """Return a run of a repeated answer; its completion may no longer be kept."""
        run = self._sessions.runs.get(name.run_id)
        if run is not None and run.seq == name.seq:
            return run
        complete = self._completions.find(name.run_id)
        if complete is not None and complete.seq == name.seq:
            return self._home.completed(complete)
        return Run(self._home, RunRecord(name.session_id, name.run_id, name.seq, "", state=COMPLETE))

    async def __aenter__(self) -> Self:
        self._loop.check_loop()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # Looking.

    def is_busy(self, session_id: str | None = None) -> bool:
        """Return whether a turn is active in the session, or in any."""
        self._loop.check_thread()
        if session_id is None:
            return any(core.turn is not None for core in self._sessions.cores.values())
        return self._sessions.core(session_id).turn is not None

    def queued(self, session_id: str) -> list[Run]:
        """Return the queued runs of the session, in order."""
        self._loop.check_thread()
        return self._sessions.handles(self._sessions.core(session_id).queue.in_order())

    def accepted_count(self, session_id: str) -> int:
        """Count the runs of the session that are accepted and have not entered."""
        self._loop.check_thread()
        return len(self._sessions.core(session_id).accepted)

    def cancel_mark(self, session_id: str) -> int:
        """Return the highest sequence that a cancel covers; 0 when it covers no accepted run."""
        self._loop.check_thread()
        return self._sessions.core(session_id).mark

    def sessions(self) -> list[SessionView]:
        """Return a view of every session that has something in flight, all in one step."""
        self._loop.check_thread()
        return [self._sessions.view(core) for core in self._sessions.cores.values()]

    def session(self, session_id: str) -> SessionView:
        """Return a view of a session, which may be quiet."""
        self._loop.check_thread()
        return self._sessions.view(self._sessions.core(session_id))

    def find(self, run_id: str) -> Run | None:
        """Return the run; None if there is no such run or its completion is no longer kept.

        Of a complete run, prompt and attachments are found only if its caller named it (`run_id`) and
        its handle is still held: they are kept nowhere else.
        """
        self._loop.check_thread()
        return self._home.find(run_id)

    def completions(self, after: str | None = None, *, until: str | None = None) -> CompletionStream:
        """Return `(cursor, RunComplete)` of each complete run, oldest kept first, then of those to come.

        An async iterator that ends when the dispatcher is closed. `after` is a cursor that it gave: continue
        after it. `until` is one too: end there without waiting, at once if that is not later than `after`.
        Raises CursorExpired, here or while iterating, if completions after `after` have been forgotten, or
        if it is a cursor of another dispatcher.
        """
        self._loop.check_thread()
        return CompletionStream(self._loop, self._completions, after, until)

    def session_count(self) -> int:
        """Count the sessions that have something in flight, in constant time."""
        self._loop.check_thread()
        return len(self._sessions.cores)

    def cursor_order(self, cursor: str) -> tuple[int, ...]:
        """Return a key that sorts the cursors of `completions` from the oldest to the newest.

        Raises CursorExpired if the cursor is not one of this dispatcher.
        """
        self._loop.check_thread()
        return (self._completions.number_of(cursor),)

    def end_cursor(self) -> str:
        """Return the cursor after which `completions(after=)` gives what completes from now on."""
        self._loop.check_thread()
        return self._completions.end()

    def subscribe(self, session_id: str | None = None, *, moves: bool = False) -> Subscription:
        """Receive the events of the session, or of all, from now on; see `Subscription`.

        With `moves`, also receive every decision (accept, enter, fold, handoff, cancel, clear, ...) as a
        `Moved`, and the RunCompletes of runs that have a hook, all in the order of the decisions.
        """
        self._loop.check_loop()
        subscription = Subscription(
            self._loop,
            self._subscribers,
            session_id=session_id,
            moves=moves,
            delta_limit=self._delta_limit,
            delta_bytes=self._delta_bytes,
            complete_limit=self._complete_limit,
        )
        if self._close.is_done:
            subscription.close()
        return subscription

    # Closing.

    async def aclose(self, *, finish: float = 0.0) -> None:
        """Refuse new prompts, end what is in flight, and wait until no run owes its RunComplete.

        Runs in flight may end by themselves for `finish` seconds (`math.inf`: as long as it takes); then
        every session is cancelled, and runs that have not entered are released. While finishing, accepted
        runs may still enter; they are released at once when nothing else is left.

        Idempotent: all callers wait for the same end, and the first one's `finish` counts. Cancelling the
        caller does not stop the close. A runner that calls it would wait for itself: that raises
        ClosedFromRunner. A runner that goes on although it was cancelled is interrupted again and again.
        """
        self._loop.check_loop()
        self._home.deadlocks.check_close(finish)
        self.begin_close(finish=finish)
        await self._close.wait()

    def begin_close(self, *, finish: float = 0.0) -> None:
        """Begin what `aclose` does, without waiting for it: for a signal handler on the loop."""
        self._loop.check_loop()
        self._close.begin(check_finish(finish), self._end)

    def _end(self) -> None:
        """End subscriptions and streams: nothing more will happen."""
        self._journal.end()
        guard("closing the subscriptions", self._subscribers.close)
        guard("waking those who wait for completions", self._completions.end_all)

    def __repr__(self) -> str:
        return repr(self._home)

    # One core step each.

    def _known(self, run_id: str, payload: Payload) -> Run | None:
        """Return the run that is known by this id, complete or not; raise if its payload differs."""
        self._has_lookalikes = self._has_lookalikes or run_id.startswith(self._run_prefix)
        run = self._sessions.runs.get(run_id)
        complete = None if run is not None else self._completions.find(run_id)
        if run is not None:
            same = run.payload == payload
        elif complete is not None:
            same = self._completions.is_same(run_id, payload)
        else:
            return None
        if not same:
            raise RunConflict(f"run {run_id!r} is known with another payload")
        return run if complete is None else self._home.completed(complete, payload)

    def _enter(self, run: Run) -> State:
        record = run.record
        decided = self._sessions.core(record.session_id).enter(record)
        state = record.state
        if state is QUEUED:
            run.on_complete = None  # it completes to the subscribers
        self._sessions.accepted -= 1
        self._effects.perform(decided)
        return state

    def _enter_later(self, run: Run) -> None:
        self._sessions.entering -= 1
        if run.state is ACCEPTED:
            self._enter(run)
        else:
            self._close.look()

    def _cancel(self, core: SessionCore) -> Covered:
        return Covered(self._effects.perform_for(core, *core.cancel()))

    def _hold_or_resume(
        self, which: Literal["hold", "resume"], session_id: str, key: str | None, run_id: str | None = None
    ) -> list[Run]:
        self._loop.check_loop()

        def call() -> Covered:
            run = None if run_id is None else self._in_flight(run_id)
            core = self._sessions.core(session_id if run is None else run.session_id)
            step = core.hold if which == "hold" else core.resume
            return Covered(self._effects.perform_for(core, *step(None if run is None else run.record)))

        return self._once(key, (which, session_id, run_id), call).runs

    def _receipt(
        self, core: SessionCore, covered: list[RunRecord], held: list[RunRecord], decided: Decided
    ) -> Covered:
        """Perform what a step decided; return what it covered and held, and which runs wait after it."""
        handles = self._sessions.handles
        receipt = Covered(handles(covered), held=handles(held), waiting=handles(core.line()))
        self._effects.perform(decided)
        return receipt

    def _in_flight(self, run_id: str) -> Run:
        """Return the run; raise if it is complete or unknown."""
        run = self._sessions.runs.get(run_id)
        if run is None and run_id in self._completions:
            raise NotWaiting(f"run {run_id} is complete: it does not wait any more", COMPLETE)
        if run is None:
            raise UnknownRun(f"run {run_id!r} is unknown, or its completion is no longer kept")
        return run
