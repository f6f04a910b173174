"""The session core: decides, never awaits, never calls out.

A run is accepted, then enters: cancelled on entry, queued or active. `complete` is terminal. A change of
state that is not in `MOVES` is never made: attempting it raises UndeclaredMove and changes nothing.

A turn is starting until its runner is called, running while it is, settling while its messages are written.
Where the number of runner calls is limited, it may be waiting for a place before that. Only a running turn is
interrupted. An earlier cancel keeps the runner from being called; a later one only changes what is put on
record.

One input is one call of one method of `SessionCore`. Nothing can come in between, so a step needs no lock. A
step checks first, then changes, and returns what it decided: the journal entries, and the effects in the
order in which they have to be performed.

The core works on records. What callers and runners hold are handles (`Run`, `Turn`), which point at records;
a step on a ledger has records and no handles at all.

A cancel covers what was accepted before it and is not complete. Of the accepted runs it covers those whose
sequence is at most the mark, because a run accepted later has a higher one. The mark goes back to 0 as soon
as no accepted run is left for it. An accepted run that is covered alone carries `covered` instead.

The waiting runs, accepted or queued, have positions, in the order of their ranks (`line`). A rank is the
run's sequence until the run is moved; a move permutes the ranks of waiting runs and invents none. Coverage
depends on the sequence, order on the rank, and nothing on both. A held run is skipped: it stays queued until
it is resumed.

A run that is cancelled on entry settles as a turn of its own, covered from the start, so no runner is called
for it; it is not the session's turn.
"""

from __future__ import annotations

from enum import Enum, StrEnum
from heapq import heappop, heappush
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from turngate._errors import (
    AlreadyEntered,
    NotRunning,
    NotWaiting,
    QueueFull,
    SessionBusy,
    UndeclaredMove,
    counted,
)
from turngate._events import Moved, RunComplete
from turngate._messages import Message
from turngate._prompt import decode

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from turngate._events import Outcome
    from turngate._messages import FinishReason
    from turngate._prompt import WhenBusy


class State(StrEnum):
    """The state of a run in its lifecycle."""

    ACCEPTED = "accepted"
    CANCEL_ON_ENTRY = "cancel_on_entry"
    QUEUED = "queued"
    ACTIVE = "active"
    COMPLETE = "complete"


ACCEPTED, CANCEL_ON_ENTRY, QUEUED, ACTIVE, COMPLETE = State

#: Every change of state: for each trigger the state it leads from, and the states it may lead to.
MOVES: Final = {
    "enter": (ACCEPTED, (CANCEL_ON_ENTRY, QUEUED, ACTIVE)),
    "release": (ACCEPTED, (COMPLETE,)),
    "handoff": (QUEUED, (ACTIVE,)),
    "fold": (QUEUED, (ACTIVE,)),
    "drop": (QUEUED, (COMPLETE,)),
    "settle": (CANCEL_ON_ENTRY, (COMPLETE,)),
    "finish": (ACTIVE, (COMPLETE,)),
}


class Phase(Enum):
    """How far a turn has come."""

    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"
    SETTLING = "settling"


WAITING, STARTING, RUNNING, SETTLING = Phase


class Queue:
    """Queued runs by rank. Adding a run and taking the first free one cost log n, in any order of entry.

    Held runs are kept apart, because handoffs and folds skip them. A run that is taken out of the middle
    leaves its rank in the heap; the heap is swept as soon as such ranks outnumber the runs.

    On a ledger only the head of a queue may be loaded: `beyond` counts the runs behind it.
    """

    __slots__ = ("_heap", "beyond", "free", "held")

    def __init__(self, beyond: int = 0) -> None:
        self.beyond = beyond
        self.free: dict[int, RunRecord] = {}
        """The runs that are not held, by rank; the others are `held`."""
        self.held: dict[int, RunRecord] = {}
        self._heap: list[int] = []

    def __len__(self) -> int:
        return len(self.free) + len(self.held) + self.beyond

    def add(self, run: RunRecord) -> None:
        """Insert the run by its rank."""
        if run.held:
            self.held[run.rank] = run
        else:
            self.free[run.rank] = run
            heappush(self._heap, run.rank)

    def first(self) -> RunRecord:
        """Return the first run that is not held; there must be one."""
        while self._heap[0] not in self.free:
            heappop(self._heap)
        return self.free[self._heap[0]]

    def take_first(self) -> RunRecord:
        """Take out the first run that is not held; there must be one."""
        while (run := self.free.pop(heappop(self._heap), None)) is None:
            pass  # it was taken out of the middle
        return run

    def take(self, run: RunRecord) -> None:
        """Take out this run."""
        del (self.held if run.held else self.free)[run.rank]
        if len(self._heap) > 2 * len(self.free):
            self._heap = sorted(self.free)  # which is a heap

    def take_all(self) -> list[RunRecord]:
        """Take out every run, in the order of their positions."""
        runs = self.in_order()
        self.refill(())
        return runs

    def refill(self, runs: Iterable[RunRecord]) -> None:
        """Hold these runs and no others: their ranks have changed."""
        self.free.clear()
        self.held.clear()
        self._heap.clear()
        for run in runs:
            self.add(run)

    def in_order(self) -> list[RunRecord]:
        """Return the runs, held ones included, in the order of their positions."""
        if not self.held:
            return [self.free[rank] for rank in sorted(self.free)]
        return sorted([*self.free.values(), *self.held.values()], key=lambda run: run.rank)

    def free_in_order(self) -> list[RunRecord]:
        """Return the runs that are not held, in the order of their positions."""
        return [self.free[rank] for rank in sorted(self.free)]


CLEARED: Final = "cleared from the queue"
RELEASED: Final = "released before entry"


class RunRecord:
    """What the core knows of a run.

    `rank` orders the line, and `held` says whether the run is skipped there. `into` is the lead of the one
    turn that it may join, if it may have none of its own. `data` is the JSON text that was sent with the
    prompt.
    """

    __slots__ = (
        "complete", "covered", "data", "held", "into", "prompt", "rank", "run_id", "seq", "session_id",
        "state", "when_busy",
    )  # fmt: skip

    def __init__(
        self,
        session_id: str,
        run_id: str,
        seq: int,
        prompt: str,
        when_busy: WhenBusy = "fold",
        state: State = ACCEPTED,
        covered: bool = False,
        data: str | None = None,
    ) -> None:
        self.session_id = session_id
        self.run_id = run_id
        self.seq = seq
        self.prompt = prompt
        self.when_busy: WhenBusy = when_busy
        self.state = state
        self.covered = covered
        self.data = data
        self.rank = seq
        self.held = False
        self.into: str | None = None
        self.complete: RunComplete | None = None

    def __repr__(self) -> str:
        return f"<run {self.run_id}, seq {self.seq}, {self.state}>"


class TurnRecord:
    """What the core knows of a turn: the lead run, the runs that joined it, and the result of its runner.

    `bound` are the runs that may join this turn and no other; some may have joined it, or have been changed.
    `since` is when it became active, in seconds since the epoch, once the step is performed. `is_lost` says
    that the process that ran it died.
    """

    __slots__ = ("bound", "covered", "error", "is_lost", "kept", "lead", "phase", "runs", "since", "text")

    def __init__(self, lead: RunRecord, *, covered: bool = False) -> None:
        self.lead = lead
        self.runs = [lead]
        self.bound: tuple[RunRecord, ...] = ()
        self.covered = covered
        self.phase: Phase = STARTING
        self.since: float | None = None
        self.text = ""
        self.error: str | None = None
        self.kept: str | None = None
        self.is_lost = False

    def __repr__(self) -> str:
        folded = f" and {len(self.runs) - 1} folded" if len(self.runs) > 1 else ""
        covered = ", covered" if self.covered else ""
        return f"<turn of {self.lead.run_id}{folded}, {self.phase.value}{covered}>"


Start = tuple[Literal["start"], TurnRecord]
"""Begin the turn, in a task of its own, as soon as there is a place for its runner."""
Interrupt = tuple[Literal["interrupt"], TurnRecord]
"""Cancel the task of the turn."""
Publish = tuple[Literal["publish"], RunRecord]
"""Publish that the run is complete."""
Effect = Start | Interrupt | Publish


class Edit(NamedTuple):
    """What an edit makes of a run; a `when_busy` of None stays as it is."""

    prompt: str
    data: str | None
    when_busy: Literal["fold", "queue"] | None = None


class Entry(NamedTuple):
    """A decision, as recorded histories spell it, with the RunComplete if it completes a run."""

    line: dict[str, Any]
    complete: RunComplete | None = None


def moved(entry: dict[str, Any]) -> Moved:
    """Return the decision that an entry of a recorded history describes."""
    state, runs = entry.get("state"), entry.get("runs")
    return Moved(
        entry["session"],
        entry["event"],
        entry.get("run"),
        entry.get("seq"),
        None if state is None else State(state),
        entry.get("into"),
        None if runs is None else tuple(runs),
        entry.get("before"),
    )


Decided = tuple[list[Effect], "Sequence[Entry]"]
"""What a step decided: the effects to perform, and the entries for the journal."""


class SessionCore:
    """One session: its accepted runs, its queue, its turn, and the runs that settle after cancel-on-entry.

    `message_prefix` makes message ids that no other dispatcher makes. `has_journal` says whether steps return
    journal entries, which need not be made where nothing reads them.
    """

    __slots__ = (
        "_entries", "_message_prefix", "accepted", "covered_accepted", "has_journal", "mark", "queue",
        "session_id", "settling", "turn",
    )  # fmt: skip

    def __init__(self, session_id: str, message_prefix: str) -> None:
        self.session_id = session_id
        self.accepted: dict[int, RunRecord] = {}
        self.covered_accepted = 0
        self.mark = 0
        self.queue = Queue()
        self.turn: TurnRecord | None = None
        self.settling: dict[int, TurnRecord] = {}
        self.has_journal = True
        self._message_prefix = message_prefix
        self._entries: list[Entry] | None = None

    def is_quiet(self) -> bool:
        """Whether nothing of the session is in flight."""
        queue = self.queue
        waits = self.accepted or queue.free or queue.held or queue.beyond
        return not (self.turn or self.settling or waits)

    # Inputs from callers.

    def accept(self, run: RunRecord, queue_limit: int, into: str | None = None) -> Decided:
        """Take in a run whose sequence is higher than any before; "interrupt" first cancels what came before.

        `into` names a run of the one turn that this run may join. Raises SessionBusy, QueueFull or
        NotRunning, and then changes nothing.
        """
        effects: list[Effect] = []
        turn = None if into is None else self._joinable(into)
        if not self.is_quiet():
            self._check_room(run.when_busy, queue_limit)
            if run.when_busy == "interrupt":
                effects = self._interrupt()
        if turn is not None:
            run.into = turn.lead.run_id
            turn.bound += (run,)
        self.accepted[run.seq] = run
        if self.has_journal:
            self._note("accept", run=run.run_id, seq=run.seq, **({"into": run.into} if turn else {}))
        return self._decided(effects)

    def enter(self, run: RunRecord) -> Decided:
        """Decide, once, whether the accepted run is cancelled on entry, queued or active."""
        if run.state is not ACCEPTED:
            raise AlreadyEntered(f"run {run.run_id} is {run.state}")
        effects: list[Effect] = []
        if self.covers(run):
            self._move(run, "enter", CANCEL_ON_ENTRY)
            turn = self.settling[run.seq] = TurnRecord(run, covered=True)
            effects.append(("start", turn))
        elif self.turn is not None or run.held:
            self._move(run, "enter", QUEUED)
            self.queue.add(run)
        else:
            self._move(run, "enter", ACTIVE)
            self.turn = TurnRecord(run)
            effects.append(("start", self.turn))
        self._leave_accepted(run)
        return self._decided(effects)

    def release(self, run: RunRecord) -> Decided:
        """Complete a run that has not entered; do nothing to one that has."""
        return self._decided([] if run.state is not ACCEPTED else [self._release(run)])

    def cancel(self) -> tuple[list[RunRecord], Decided]:
        """Cover every run of the session, drop what is queued; return what is covered, in sequence order."""
        covered = [run for turn in self.settling.values() for run in turn.runs]
        if self.turn is not None:
            covered += self.turn.runs
        covered += self.queue.in_order()
        covered += self.accepted.values()
        covered.sort(key=_by_sequence)
        return covered, self._decided(self._cover(covered[-1].seq if covered else 0))

    def cancel_run(self, run: RunRecord, *, waiting_only: bool = False) -> tuple[list[RunRecord], Decided]:
        """Cover the run alone, or the whole turn that it is part of; return what is covered.

        With `waiting_only`, do nothing if the runner has been called for it.
        """
        covered = self._covered_by_cancel_of(run, waiting_only=waiting_only)
        effects: list[Effect] = []
        if covered:
            # The names distinguish this cancel from one of the whole session.
            self._note("cancel", runs=[each.run_id for each in covered])
            if run.state is ACTIVE:
                effects = self._cover_turn()
            elif run.state is QUEUED:
                self.queue.take(run)
                effects = [self._complete(run, "drop", "cancelled")]
            elif run.state is ACCEPTED:
                run.covered = True
        return covered, self._decided(effects)

    def clear(self) -> tuple[list[RunRecord], Decided]:
        """Drop what is queued, and return it; nothing is cancelled."""
        self._note("clear")
        dropped = self.queue.in_order()
        return dropped, self._decided(self._drop_queue("cleared", CLEARED))

    # Inputs from callers who change waiting runs.

    def line(self) -> list[RunRecord]:
        """Return the waiting runs, accepted or queued, in the order of their positions."""
        return sorted([*self.accepted.values(), *self.queue.in_order()], key=_by_rank)

    def hold(self, run: RunRecord | None = None) -> tuple[list[RunRecord], Decided]:
        """Hold the run, or all that wait now; return those that were not held before.

        A run that is accepted later is not held.
        """
        waiting = self._waiting(run)
        self._note_line("hold", run)
        return self._set_held(waiting, held=True), self._decided([])

    def resume(self, run: RunRecord | None = None) -> tuple[list[RunRecord], Decided]:
        """Resume the run, or all that are held; return those that were held.

        If no turn is active, the first queued run that is not held starts in the same step.
        """
        waiting = self._waiting(run)
        self._note_line("resume", run)
        resumed = self._set_held(waiting, held=False)
        return resumed, self._decided([] if self.turn is not None else self._start_next())

    def stop(self, turn: str | None = None) -> tuple[list[RunRecord], list[RunRecord], Decided]:
        """Cover the active turn alone and hold what waits; return the covered and the newly held runs.

        With `turn`, do nothing unless that run is part of the active turn.
        """
        if not self._is_active(turn):
            return [], [], self._decided([])
        covered, effects = self._cover_turn_alone()
        self._note("hold")
        return covered, self._set_held(self.line(), held=True), self._decided(effects)

    def move(self, run: RunRecord, before: RunRecord | Literal["first", "last"]) -> Decided:
        """Put a waiting run before another, or first, or last; only its position changes."""
        for each in (run, before):
            if isinstance(each, RunRecord):
                self._waiting(each)
        self._move_in_line(run, before)
        return self._decided([])

    def edit(self, run: RunRecord, changes: Edit) -> Decided:
        """Change what the runner will be given for a waiting run, which keeps its position and sequence."""
        self._waiting(run)
        run.prompt, run.data = changes.prompt, changes.data
        more = {}
        if changes.when_busy is not None:
            run.when_busy, run.into = changes.when_busy, None
            more = {"when_busy": changes.when_busy}
        self._note("edit", run=run.run_id, seq=run.seq, **more)
        return self._decided([])

    def send_now(self, run: RunRecord, turn: str | None = None) -> tuple[list[RunRecord], Decided]:
        """Put a queued run first, not held, and cover the active turn alone; return the covered runs.

        Without an active turn the run starts. With `turn`, do nothing unless that run is part of the active
        turn.
        """
        if run.state is not QUEUED:
            raise NotWaiting(f"run {run.run_id} is {run.state}, not queued", run.state)
        if not self._is_active(turn):
            return [], self._decided([])
        if self.line()[0] is not run:
            self._move_in_line(run, "first")
        covered, effects = self._cover_turn_alone()
        self._note("resume", runs=[run.run_id], **({} if run.into is None else {"unbinds": True}))
        run.into = None
        self._set_held([run], held=False)
        return covered, self._decided(effects if self.turn is not None else self._start_next())

    # Inputs from the turn.

    def begin(self, turn: TurnRecord) -> bool:
        """Return whether the runner may be called: not if a cancel came first."""
        if turn.covered:
            return False
        turn.phase = RUNNING
        return True

    def foldable(self, turn: TurnRecord) -> list[RunRecord]:
        """Return what a fold would take into the turn now; nothing once a cancel covers it."""
        if turn.covered:
            return []
        return [*takewhile(lambda run: run.when_busy == "fold", self.queue.free_in_order())]

    def fold(self, turn: TurnRecord) -> tuple[list[RunRecord], Decided]:
        """Take the foldable runs at the head of the queue into the turn, and return them."""
        taken: list[RunRecord] = []
        while self.queue.free and not turn.covered:
            run = self.queue.first()
            if run.when_busy != "fold":
                break
            self._move(run, "fold", ACTIVE, into=turn.lead.run_id)
            run.into = None
            taken.append(self.queue.take_first())
        turn.runs += taken
        return taken, self._decided([])

    def end(self, turn: TurnRecord, text: str, error: str | None, kept: str | None) -> None:
        """Take the result of the runner. From here on a cancel only changes what is put on record."""
        turn.phase = SETTLING
        turn.text, turn.error, turn.kept = text, error, kept

    def outcome(self, turn: TurnRecord) -> tuple[Message, ...]:
        """Return the messages of the turn as it stands now."""
        reason: FinishReason = "canceled" if turn.covered else "end_turn" if turn.error is None else "error"
        prompts = [
            Message(
                f"{self._message_prefix}{run.seq}",
                self.session_id,
                run.run_id,
                "user",
                run.prompt,
                None,
                run.data and decode(run.data),
            )
            for run in turn.runs
        ]
        reply_id = f"{self._message_prefix}{turn.lead.seq}-reply"
        kept = turn.kept and decode(turn.kept)
        reply = Message(reply_id, self.session_id, turn.lead.run_id, "assistant", turn.text, reason, kept)
        return (*prompts, reply)

    def written(self, turn: TurnRecord, messages: tuple[Message, ...], failure: str | None) -> Decided | None:
        """Complete the runs of the turn and, in the same step, hand off.

        `failure` says why the messages were not written, if they were not. Returns None if a cancel came
        while they were written: then they are out of date, and have to be written again.
        """
        reply, mine = messages[-1], turn is self.turn
        if turn.covered and failure is None and reply.finish_reason != "canceled":
            return None
        error = failure
        if failure is None and not turn.covered:
            error = turn.error
        outcome: Outcome = "cancelled" if turn.covered else "finished" if error is None else "failed"
        if turn.is_lost and not turn.covered:
            outcome = "lost"
        effects: list[Effect] = [
            self._complete(
                run,
                "finish" if mine else "settle",
                outcome,
                text=turn.text,
                error=error,
                message_id=reply.id if failure is None else None,
                folded_into=None if run is turn.lead else turn.lead.run_id,
            )
            for run in turn.runs
        ]
        if not mine:
            del self.settling[turn.lead.seq]
        else:
            self.turn = None
            if turn.bound:
                effects += self._drop_bound(turn)
            if self.queue.free:
                effects += self._start_next()
        return self._decided(effects)

    # Parts of steps.

    def _release(self, run: RunRecord) -> Publish:
        outcome: Outcome = "cancelled" if self.covers(run) else "released"
        publish = self._complete(run, "release", outcome, error=RELEASED)
        self._leave_accepted(run)
        return publish

    def _start_next(self) -> list[Effect]:
        """Start the first queued run that is not held, if there is one."""
        if not self.queue.free:
            return []
        successor = self.queue.take_first()
        self._move(successor, "handoff", ACTIVE)
        self.turn = TurnRecord(successor)
        return [("start", self.turn)]

    def _drop_bound(self, turn: TurnRecord) -> list[Effect]:
        """Complete the runs that could only have joined the turn, which has just ended."""
        bound = [run for run in turn.bound if run.into == turn.lead.run_id]
        queued = sorted([run for run in bound if run.state is QUEUED], key=_by_rank)
        if queued:
            self._note("clear", runs=[run.run_id for run in queued])
        for run in queued:
            self.queue.take(run)
        accepted = [run for run in bound if run.state is ACCEPTED]
        return [
            *(self._complete(run, "drop", "cleared", error=CLEARED) for run in queued),
            *(self._release(run) for run in accepted),
        ]

    def _joinable(self, run_id: str) -> TurnRecord:
        """Return the turn that the run is part of; raise unless follow-ups can still join it."""
        turn = self.turn
        if turn is None or run_id not in [run.run_id for run in turn.runs]:
            raise NotRunning(f"run {run_id!r} is not part of the active turn of session {self.session_id!r}")
        if turn.covered or turn.phase in (WAITING, SETTLING):
            why = "is cancelled" if turn.covered else "has ended" if turn.phase is SETTLING else "waits"
            raise NotRunning(f"the turn of run {run_id!r} {why}, so nothing can join it")
        return turn

    def _waiting(self, run: RunRecord | None) -> list[RunRecord]:
        """Return the run, or all that wait; raise if the run does not wait."""
        if run is None:
            return self.line()
        if run.state not in (ACCEPTED, QUEUED):
            raise NotWaiting(f"run {run.run_id} is {run.state}: it does not wait any more", run.state)
        return [run]

    def _note_line(self, event: str, run: RunRecord | None) -> None:
        self._note(event, **({} if run is None else {"runs": [run.run_id]}))

    def _set_held(self, waiting: list[RunRecord], *, held: bool) -> list[RunRecord]:
        changed = [run for run in waiting if run.held is not held]
        for run in changed:
            if run.state is QUEUED:
                self.queue.take(run)
            run.held = held
            if run.state is QUEUED:
                self.queue.add(run)
        return changed

    def _is_active(self, run_id: str | None) -> bool:
        """Return whether the run is part of the active turn; True if no run is named."""
        return run_id is None or (self.turn is not None and run_id in [run.run_id for run in self.turn.runs])

    def _move_in_line(self, run: RunRecord, before: RunRecord | Literal["first", "last"]) -> None:
        if before is run:
            return
        line = self.line()
        ranks = [each.rank for each in line]
        line.remove(run)
        to = {"first": 0, "last": len(line)}[before] if isinstance(before, str) else line.index(before)
        self._note("move", run=run.run_id, seq=run.seq, before=line[to].run_id if to < len(line) else None)
        line.insert(to, run)
        for each, rank in zip(line, ranks, strict=True):
            each.rank = rank
        self.queue.refill([each for each in line if each.state is QUEUED])

    def _cover_turn_alone(self) -> tuple[list[RunRecord], list[Effect]]:
        """Cover the active turn, if there is one, and nothing that waits."""
        if self.turn is None:
            return [], []
        covered = sorted(self.turn.runs, key=_by_sequence)
        self._note("cancel", runs=[run.run_id for run in covered])
        return covered, self._cover_turn()

    def _decided(self, effects: list[Effect]) -> Decided:
        entries, self._entries = self._entries, None
        return effects, entries or ()

    def _move(self, run: RunRecord, trigger: str, to: State, **more: Any) -> None:
        """Change the state of a run and note it; raise if the lifecycle does not declare that.

        `_complete` notes its own.
        """
        before, goals = MOVES[trigger]
        if run.state is not before or to not in goals:
            raise UndeclaredMove(f"{trigger} of run {run.run_id} from {run.state} to {to}")
        run.state = to
        if self.has_journal and to is not COMPLETE:
            if trigger == "enter":
                more["state"] = to.value
            self._note_move(trigger, run, before, **more)

    def _complete(
        self,
        run: RunRecord,
        trigger: str,
        outcome: Outcome,
        *,
        text: str = "",
        error: str | None = None,
        message_id: str | None = None,
        folded_into: str | None = None,
    ) -> Publish:
        """Make the one RunComplete of the run: nothing leads from `complete` to a second."""
        before, cancelled = run.state, outcome == "cancelled"
        self._move(run, trigger, COMPLETE)
        run.held = False
        run.complete = RunComplete(
            self.session_id, run.run_id, run.seq, text, error, cancelled, message_id, folded_into, outcome
        )
        if self.has_journal:
            more = {} if error is None else {"error": error}
            self._note_move("complete", run, before, cancelled=cancelled, **more)
        return "publish", run

    def _note_move(self, event: str, run: RunRecord, before: State, **more: Any) -> None:
        moved = {"run": run.run_id, "seq": run.seq, "from": before.value, "to": run.state.value}
        self._append(Entry({"event": event, "session": self.session_id, **moved, **more}, run.complete))

    def _note(self, event: str, **more: Any) -> None:
        if self.has_journal:
            self._append(Entry({"event": event, "session": self.session_id, **more}))

    def _append(self, entry: Entry) -> None:
        if self._entries is None:
            self._entries = []
        self._entries.append(entry)

    def _check_room(self, when_busy: WhenBusy, queue_limit: int) -> None:
        """Refuse another run, while something is in flight, if it asks for that or too many wait."""
        if when_busy == "reject":
            raise SessionBusy(f"session {self.session_id!r} has something in flight")
        waiting = len(self.accepted) + (0 if when_busy == "interrupt" else len(self.queue))
        if waiting >= queue_limit:
            raise QueueFull(
                f"session {self.session_id!r} has {counted(waiting, 'run')} waiting (queue_limit)"
            )

    def _interrupt(self) -> list[Effect]:
        """Cover every run of the session, as `cancel` does, without looking at those covered before.

        So each of many interrupts in a row costs no more than the runs that it is the first to cover.
        """
        newest = next(reversed(self.accepted), 0)
        if self.turn is not None and not self.turn.covered:
            newest = max(newest, *[run.seq for run in self.turn.runs])
        if self.queue:
            newest = max(newest, *[run.seq for run in self.queue.in_order()])
        return self._cover(newest)

    def _covered_by_cancel_of(self, run: RunRecord, *, waiting_only: bool) -> list[RunRecord]:
        """Return the runs that a cancel of this one covers, in sequence order."""
        if run.state is ACTIVE and self.turn is not None:
            if waiting_only and self.turn.phase not in (WAITING, STARTING):
                return []
            return sorted(self.turn.runs, key=_by_sequence)
        return [] if run.state is COMPLETE else [run]

    def covers(self, run: RunRecord) -> bool:
        """Return whether a cancel covers the accepted run."""
        return run.covered or run.seq <= self.mark

    def _leave_accepted(self, run: RunRecord) -> None:
        del self.accepted[run.seq]
        if run.seq <= self.mark:
            self.covered_accepted -= 1
            if self.covered_accepted == 0:
                self.mark = 0

    def _cover(self, newest: int) -> list[Effect]:
        """Cover every run; `newest` is the highest sequence among them."""
        self._note("cancel")  # before its consequences
        if self.accepted:
            self.mark = max(self.mark, newest)
            self.covered_accepted = len(self.accepted)
        return self._cover_turn() + self._drop_queue("cancelled")

    def _cover_turn(self) -> list[Effect]:
        """Cover the active turn.

        There are three cases. A turn that waits for a place is started, because settling needs none. A turn
        that is starting or running is interrupted. A settling turn finds out by itself once it is written.
        """
        if self.turn is None:
            return []
        self.turn.covered = True
        if self.turn.phase is WAITING:
            self.turn.phase = STARTING
            return [("start", self.turn)]
        return [] if self.turn.phase is SETTLING else [("interrupt", self.turn)]

    def _drop_queue(self, outcome: Outcome, error: str | None = None) -> list[Effect]:
        dropped = self.queue.take_all()
        return [self._complete(run, "drop", outcome, error=error) for run in dropped]

    def __repr__(self) -> str:
        return (
            f"<session {self.session_id!r}: {self.turn or 'no turn'}, {len(self.queue)} queued, "
            f"{len(self.accepted)} accepted, {len(self.settling)} settling, mark {self.mark}>"
        )


def _by_sequence(run: RunRecord) -> int:
    return run.seq


def _by_rank(run: RunRecord) -> int:
    return run.rank
