"""Performs what the cores in memory decide: journal entries, starts and interrupts, RunCompletes.

No decision about a run is taken here. A core step, its journal entries and its effects are one uninterrupted
stretch on the event loop. Nothing that belongs to the user (runner, hook, store, recording, log handler) is
called inside a core step, and nothing that it raises stops an effect.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
import warnings
from collections import deque
from typing import TYPE_CHECKING, Any, assert_never

from turngate._core import ACCEPTED, CANCEL_ON_ENTRY, COMPLETE, RunRecord, SessionCore, moved
from turngate._deadlock import DeadlockCheck
from turngate._errors import counted
from turngate._handles import Covered, Run, SessionView, Turn
from turngate._log import call_back, guard, log, log_or_propagate, logger
from turngate._messages import MemoryMessages
from turngate._settle import WriteClock, forget_cancels, store_failure
from turngate._turn import CLOSED_UNWRITTEN, TurnRunner, is_current

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import TextIO

    from turngate._close import Close
    from turngate._completions import Completions
    from turngate._core import Decided, Effect, Entry, TurnRecord
    from turngate._events import Audience, RunComplete, Subscribers, TurnStream
    from turngate._loop import HomeLoop
    from turngate._messages import ListOfMessages, Messages
    from turngate._places import Places
    from turngate._prompt import Payload
    from turngate._runner import Called
    from turngate._turn import TurnHost


class Sessions:
    """The cores by session, and the handles that stand for their records.

    `accepted` counts the runs that are accepted and have not entered; `entering` counts those among them that
    enter in the background.
    """

    def __init__(self, message_prefix: str, journal: Journal) -> None:
        self.cores: dict[str, SessionCore] = {}
        self.runs: dict[str, Run] = {}
        self.turns: dict[TurnRecord, Turn] = {}
        self.accepted = 0
        self.entering = 0
        self.new_core: Callable[[str, str], SessionCore] = SessionCore
        self._message_prefix = message_prefix
        self._journal = journal

    def core(self, session_id: str) -> SessionCore:
        """Return the core of the session, for one step; for a quiet session a new one, which is not kept."""
        core = self.cores.get(session_id)
        if core is None:
            core = self.new_core(session_id, self._message_prefix)
        journal = self._journal
        core.has_journal = (
            journal.record is not None
            or bool(journal.audience.by_session)
            or logger.isEnabledFor(logging.DEBUG)
        )
        return core

    def handles(self, records: Iterable[RunRecord]) -> list[Run]:
        """Return the handles of runs that are in flight."""
        return [self.runs[record.run_id] for record in records]

    def forget_if_quiet(self, core: SessionCore) -> None:
        """Free the memory of a session that has nothing in flight."""
        if core.is_quiet():
            self.cores.pop(core.session_id, None)

    def view(self, core: SessionCore) -> SessionView:
        """Return a view of the session."""
        accepted = tuple(self.handles(sorted(core.accepted.values(), key=lambda run: run.rank)))
        settling = tuple(self.handles(turn.lead for turn in core.settling.values()))
        queued = tuple(self.handles(core.queue.in_order()))
        waiting = tuple(self.handles(core.line()))
        record = core.turn
        if record is None:
            return SessionView(core.session_id, accepted, settling, queued, waiting=waiting)
        if record.since is None:  # it has become active in the step whose effects are just being performed
            record.since = time.time()
        turn = self.turns.get(record)
        active, *folded = self.handles(record.runs)
        return SessionView(
            core.session_id,
            accepted,
            settling,
            queued,
            active,
            tuple(folded),
            "" if turn is None else "".join(turn.parts),
            record.covered,
            record.phase.value,
            record.since,
            waiting,
        )


class Journal:
    """Passes on what the cores of a dispatcher have decided."""

    def __init__(
        self, record: TextIO | Callable[[dict[str, Any]], object] | None, audience: Audience
    ) -> None:
        self.record = record
        self.audience = audience
        self._pending: deque[Entry] = deque()
        self._telling = False
        self._at = 0.0
        """When the last line of a stream was decided."""

    def tell(self, entries: Iterable[Entry]) -> None:
        """Pass journal entries to the log, the recording and the subscribers with `moves`.

        Each of them gets every entry, whatever the others do. A recording that raises gets no more. Entries
        that are decided meanwhile wait until all three have got the earlier ones.
        """
        self._pending += entries
        if self._telling:
            return
        self._telling = True
        try:
            while self._pending:
                self._tell(self._pending.popleft())
        finally:
            self._telling = False

    def end(self) -> None:
        """Record the end, and record nothing after it."""
        if self.record is not None:
            self._write({"event": "end"})
        self.record = None

    def _tell(self, entry: Entry) -> None:
        line, complete = entry
        if logger.isEnabledFor(logging.DEBUG):
            words = " ".join(f"{key}=%s" for key in line)
            log(logging.DEBUG, words, *line.values(), extra={"turngate": line})
        self._write(line)
        if self.audience.by_session:
            try:
                self.audience.deliver(moved(line) if complete is None else complete)
            except BaseException as exc:
                log_or_propagate(exc, "delivering %s raised", line)

    def _write(self, line: dict[str, Any]) -> None:
        try:
            if callable(self.record):
                self.record(line)
            elif self.record is not None:
                self._at = max(self._at, time.time())  # a clock that is set back reverses no order
                self.record.write(json.dumps({**line, "at": self._at}) + "\n")
        except BaseException as exc:
            self.record = None
            log_or_propagate(exc, "the recording raised at %s, and stops there", line)


class Effects:
    """Performs effects, and is called by the turns that it has started; see `TurnHost`.

    `drawn_prefix` begins the run ids that the dispatcher itself draws.
    """

    def __init__(
        self,
        loop: HomeLoop,
        sessions: Sessions,
        journal: Journal,
        completions: Completions,
        subscribers: Subscribers,
        messages: Messages,
        *,
        runner: Called,
        drawn_prefix: str,
        places: Places | None,
        settle_timeout: float,
    ) -> None:
        self.settle_timeout = settle_timeout
        self.after: Callable[[], None] | None = None
        """Called, while the dispatcher closes, when everything that was decided has been performed."""
        self.turns = TurnRunner(runner, loop, places)
        self._loop = loop
        self._sessions = sessions
        self._journal = journal
        self._completions = completions
        self._subscribers = subscribers
        self._messages = messages
        self._drawn_prefix = drawn_prefix
        self._performing: list[Effect] | None = None

    @property
    def is_performing(self) -> bool:
        """Whether effects of an earlier step are still to come."""
        return self._performing is not None

    def perform(self, decided: Decided) -> None:
        """Tell the journal, then perform the effects, after those of earlier steps that are still to come."""
        effects, entries = decided
        for effect in effects:
            if effect[0] == "start":
                self._make_handle(effect[1])
        if self._performing is not None:
            if entries:
                self._journal.tell(entries)
            self._performing += effects
            return
        self._performing = effects
        to_come = iter(effects)  # also yields what is added meanwhile
        try:
            if entries:
                self._journal.tell(entries)
            for effect in to_come:
                match effect[0]:
                    case "publish":
                        self._publish(effect[1])
                    case "start":
                        if effect[1].since is None:
                            effect[1].since = time.time()
                        self.turns.start(self._sessions.turns[effect[1]])
                    case "interrupt":
                        self.turns.interrupt(self._sessions.turns[effect[1]])
                    case _:
                        assert_never(effect)
        except BaseException:  # a signal handler raised; no run may lose its RunComplete because of that
            self._performing = None
            self._loop.check_loop().call_soon(self.perform, ([*to_come], ()))
            raise
        self._performing = None
        if self.after is not None:
            self.after()

    def perform_for(self, core: SessionCore, runs: Iterable[RunRecord], decided: Decided) -> list[Run]:
        """Perform what a step decided, and return the handles of these runs, which it may complete."""
        handles = self._sessions.handles(runs)
        self._sessions.forget_if_quiet(core)
        self.perform(decided)
        return handles

    def _make_handle(self, record: TurnRecord) -> None:
        """Make the handle of a new turn, so that its run shows at once that it leads the turn."""
        if record in self._sessions.turns:
            return
        lead = self._sessions.runs[record.lead.run_id]
        turn = self._sessions.turns[record] = Turn(lead.home, record, lead, record.lead.seq)
        if record is self._sessions.cores[record.lead.session_id].turn:
            lead.turn = turn

    def _publish(self, record: RunRecord) -> None:
        run = self._sessions.runs.pop(record.run_id)
        complete = record.complete
        assert complete is not None
        run.leave_turn()
        self._completions.keep(run, complete, named=not record.run_id.startswith(self._drawn_prefix))
        if self._completions.waiters:
            guard("waking those who wait for completions", self._completions.wake)
        if announce(run, complete) and self._subscribers.to_completes.by_session:
            guard("delivering a RunComplete", self._subscribers.to_completes.deliver, complete)
        if run.callbacks:
            call_callbacks(run, complete)

    # Calls from turns.

    async def begin(self, turn: Turn) -> bool:
        """Return whether the runner may be called: not if a cancel came first."""
        return self._sessions.cores[turn.record.lead.session_id].begin(turn.record)

    def end(self, turn: Turn, text: str | None, error: str | None) -> None:
        """Take the result of the runner."""
        produced = "".join(turn.parts) if text is None else text
        self._sessions.cores[turn.record.lead.session_id].end(turn.record, produced, error, turn.kept)

    async def settle(self, turn: Turn, *, wait: bool) -> None:
        """Write the messages, complete the runs and hand off.

        A write ends in one of four ways. It succeeds. It fails: then the runs complete with an error. The
        task is cancelled while the store works: then it is unknown what was written, and the turn is written
        again. Or the time is up, which all writes of a turn share: that is a failure too. The store in memory
        never waits, and needs no clock.
        """
        record, task, store = turn.record, turn.task, self._messages
        assert task is not None
        is_undelivered = task.cancelling() > 0  # this cancel may still reach the first write
        if is_undelivered:
            if not record.covered:  # no cancel of ours explains it
                self._loop.look_whether_it_ends(task)
            forget_cancels(task)
        clock = None if type(store) is MemoryMessages else WriteClock(task, self.settle_timeout)
        if clock is not None:
            clock.start()
        decided: Decided | None = None
        try:
            while decided is None:
                messages = self._sessions.cores[record.lead.session_id].outcome(record)
                failure: str | None = None
                try:
                    await store.put(messages)
                except BaseException as exc:
                    if not is_current(task):
                        raise GeneratorExit from exc  # the turn is being closed
                    is_cancelled = isinstance(exc, asyncio.CancelledError)
                    if is_cancelled and clock is not None and clock.is_expired:
                        failure = clock.too_late(turn)
                    elif is_cancelled and (task.cancelling() or is_undelivered):
                        if task.cancelling():  # not by us: we never interrupt a turn that is being written
                            self._loop.look_whether_it_ends(task)
                        forget_cancels(task)
                        is_undelivered = False
                        continue
                    else:
                        failure = store_failure(exc, turn)
                decided = self._sessions.core(record.lead.session_id).written(record, messages, failure)
        finally:
            if clock is not None:
                clock.cancel()
        self._has_ended(turn, decided)

    def settle_at_once(self, turn: Turn) -> None:
        """Complete the runs of a turn that must not wait any more."""
        core = self._sessions.core(turn.run.session_id)
        decided = core.written(turn.record, core.outcome(turn.record), CLOSED_UNWRITTEN)
        assert decided is not None
        self._has_ended(turn, decided)

    def _has_ended(self, turn: Turn, decided: Decided) -> None:
        record = turn.record
        del self._sessions.turns[record]
        if record.bound:
            self._sessions.accepted -= sum(_is_released(effect) for effect in decided[0])
        self._sessions.forget_if_quiet(self._sessions.cores[record.lead.session_id])
        self.perform(decided)


def _is_released(effect: Effect) -> bool:
    """Return whether the effect completes a run that could only have joined the turn, and had not entered."""
    if effect[0] != "publish" or effect[1].into is None:
        return False
    complete = effect[1].complete
    return complete is not None and complete.outcome != "cleared"


class MemoryHome:
    """What handles need of a dispatcher in memory; see `Home`."""

    _warns_if_dropped = True

    def __init__(
        self,
        loop: HomeLoop,
        sessions: Sessions,
        completions: Completions,
        events: TurnStream,
        messages: Messages,
        effects: Effects,
        close: Close,
    ) -> None:
        self.loop = loop
        self.events = events
        self.turn_host: TurnHost = effects
        self.deadlocks = DeadlockCheck(self)
        self._sessions = sessions
        self._completions = completions
        self._messages = messages
        self._effects = effects
        self._close = close

    def expect_end(self, run: Run) -> None:
        """Do nothing: every run ends in this process."""

    def find(self, run_id: str) -> Run | None:
        """Return the handle of a run, None if the run is no longer known."""
        if (run := self._sessions.runs.get(run_id)) is not None:
            return run
        complete = self._completions.find(run_id)
        return None if complete is None else self.completed(complete)

    def completed(self, complete: RunComplete, payload: Payload | None = None) -> Run:
        """Return a run whose completion is kept: the handle that its caller still holds, or a new one."""
        run = self._completions.handle(complete.run_id)
        if run is None:
            _, prompt, attachments, data = payload or ("", "", (), None)
            record = RunRecord(
                complete.session_id, complete.run_id, complete.seq, prompt, state=COMPLETE, data=data
            )
            record.complete = complete
            run = Run(self, record, attachments)
            run.pieces = self._completions.pieces(complete.run_id)
        return run

    async def blocks(self, run: Run) -> bool:
        """Return whether the run cannot complete before the active turn of its session ends."""
        if run.state is ACCEPTED:
            return not self._sessions.core(run.session_id).covers(run.record)
        return run.state is not CANCEL_ON_ENTRY and run.state is not COMPLETE

    async def knows(self, run_id: str) -> bool:
        """Return whether there is a run of this id."""
        return run_id in self._sessions.runs or run_id in self._completions

    async def cancel(self, run: Run) -> Covered:
        """Cover the run, or the whole turn that it is part of."""
        return self.cover(run)

    def cover(self, run: Run, *, waiting_only: bool = False) -> Covered:
        """Cover the run, or the whole turn that it is part of; see `Dispatcher.cancel_run`."""
        core = self._sessions.core(run.session_id)
        step = core.cancel_run(run.record, waiting_only=waiting_only)
        return Covered(self._effects.perform_for(core, *step))

    async def release(self, run: Run) -> None:
        """Complete the run if it has not entered."""
        self._close.release(run.record)

    async def fold(self, turn: Turn) -> list[Run]:
        """Fold the follow-ups that may join the turn."""
        taken, decided = self._core_of(turn).fold(turn.record)
        runs = self._sessions.handles(taken)
        turn.join(runs)
        self._effects.perform(decided)
        return runs

    def foldable(self, turn: Turn) -> list[Run]:
        """Return what a fold would take into the turn."""
        return self._sessions.handles(self._core_of(turn).foldable(turn.record))

    def _core_of(self, turn: Turn) -> SessionCore:
        """Return the core of a turn that can still take runs in; raise TurnEnded if its runner has ended."""
        self.loop.check_loop()
        turn.check_open("fold into")
        return self._sessions.core(turn.run.session_id)

    async def list_messages(self, session_id: str) -> ListOfMessages:
        """Return what the store holds of the session."""
        return await self._messages.list(session_id)

    def __repr__(self) -> str:
        life = "closed" if self._close.is_done else "closing" if self._close.is_begun else "open"
        cores = self._sessions.cores.values()
        active = sum(core.turn is not None for core in cores)
        queued = sum(len(core.queue) for core in cores)
        return (
            f"<Dispatcher {life}: {counted(len(cores), 'session')} in flight, {active} active, "
            f"{queued} queued, {self._sessions.accepted} accepted, "
            f"{counted(len(self._completions), 'completion')} kept>"
        )

    def __del__(self) -> None:
        if not self._warns_if_dropped or self._close.is_done:
            return
        if self._sessions.cores or self.loop.cut_short:
            unclosed = f"dropped without aclose() while runs were in flight: {self!r}"
            warnings.warn(unclosed, ResourceWarning, source=self, stacklevel=2)


def announce(run: Run, complete: RunComplete) -> bool:
    """Wake the callers that wait for the run, and call its hook; False if there is a hook."""
    run.context = None
    if run.waiters:
        guard("waking those who wait", run.waiters.wake)
    if run.listeners:
        guard("waking those who read", run.listeners.wake)
    on_complete, run.on_complete = run.on_complete, None
    if on_complete is None:
        return True
    call_back("on_complete", on_complete, complete)
    return False


def call_callbacks(run: Run, complete: RunComplete) -> None:
    """Call the callbacks of the run, and forget them."""
    callbacks, run.callbacks = run.callbacks, ()
    for callback in callbacks:
        call_back("a callback", callback, complete)
