"""The session core: decides, never awaits, never calls out.

One input is one call of one method of `SessionCore`. Nothing can come in between, so a step needs no lock. A
step checks first, then changes, and returns what it decided: the journal entries, and the effects in the
order in which they have to be performed.

The core works on records. What callers and runners hold are handles (`Run`, `Turn`), which point at records;
a step on a ledger has records and no handles at all.

A cancel covers what was accepted before it and is not complete. Of the accepted runs it covers those whose
sequence is at most the mark, because a run accepted later has a higher one. The mark goes back to 0 as soon
as no accepted run is left for it. An accepted run that is covered alone carries `covered` instead.

A run that is cancelled on entry settles as a turn of its own, covered from the start, so no runner is called
for it; it is not the session's turn.
"""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from turngate._errors import AlreadyEntered, QueueFull, SessionBusy, UndeclaredMove
from turngate._events import RunComplete
from turngate._json import decode
from turngate._lifecycle import (
    ACCEPTED,
    ACTIVE,
    CANCEL_ON_ENTRY,
    COMPLETE,
    MOVES,
    QUEUED,
    RUNNING,
    SETTLING,
    STARTING,
    WAITING,
)
from turngate._messages import Message
from turngate._queue import Queue
from turngate._words import counted

if TYPE_CHECKING:
    from turngate._events import Outcome
    from turngate._lifecycle import Phase, State
    from turngate._messages import FinishReason
    from turngate._prompt import WhenBusy

CLEARED: Final = "cleared from the queue"
RELEASED: Final = "released before entry"


class RunRecord:
    """What the core knows of a run."""

    __slots__ = ("complete", "covered", "prompt", "run_id", "seq", "session_id", "state", "when_busy")

    def __init__(
        self,
        session_id: str,
        run_id: str,
        seq: int,
        prompt: str,
        when_busy: WhenBusy = "fold",
        state: State = ACCEPTED,
        covered: bool = False,
    ) -> None:
        self.session_id = session_id
        self.run_id = run_id
        self.seq = seq
        self.prompt = prompt
        self.when_busy: WhenBusy = when_busy
        self.state = state
        self.covered = covered
        self.complete: RunComplete | None = None

    def __repr__(self) -> str:
        return f"<run {self.run_id}, seq {self.seq}, {self.state}>"


class TurnRecord:
    """What the core knows of a turn: the lead run, the runs that joined it, and what came of its runner.

    `since` is when it became active, in seconds since the epoch, once the step is performed. `is_lost` says
    that the process that ran it died.
    """

    __slots__ = ("covered", "error", "is_lost", "kept", "lead", "phase", "runs", "since", "text")

    def __init__(self, lead: RunRecord, *, covered: bool = False) -> None:
        self.lead = lead
        self.runs = [lead]
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
"""Tell everyone who waits that the run is complete."""
Effect = Start | Interrupt | Publish


class Entry(NamedTuple):
    """A decision, as recorded histories spell it, and the RunComplete if that is what was decided."""

    line: dict[str, Any]
    complete: RunComplete | None = None


class Decided(NamedTuple):
    """What a step decided: for the journal, and to be performed."""

    effects: list[Effect]
    entries: list[Entry]


class SessionCore:
    """One session: its accepted runs, its queue, its turn, and the runs that settle after cancel-on-entry.

    `message_prefix` makes message ids that no other dispatcher makes.
    """

    __slots__ = (
        "_entries", "_message_prefix", "accepted", "covered_accepted", "mark", "queue", "session_id",
        "settling", "turn",
    )  # fmt: skip

    def __init__(self, session_id: str, message_prefix: str) -> None:
        self.session_id = session_id
        self.accepted: dict[int, RunRecord] = {}
        self.covered_accepted = 0
        self.mark = 0
        self.queue = Queue()
        self.turn: TurnRecord | None = None
        self.settling: dict[int, TurnRecord] = {}
        self._message_prefix = message_prefix
        self._entries: list[Entry] = []

    def is_quiet(self) -> bool:
        """Whether nothing of the session is in flight: a queue is never without a turn."""
        return self.turn is None and not self.accepted and not self.settling

    # Inputs from callers.

    def accept(self, run: RunRecord, queue_limit: int) -> Decided:
        """Take in a run whose sequence is higher than any before; "interrupt" first cancels what came before.

        Raises SessionBusy or QueueFull, and then changes nothing.
        """
        effects: list[Effect] = []
        if not self.is_quiet():
            self._check_room(run.when_busy, queue_limit)
            if run.when_busy == "interrupt":
                effects = self._interrupt()
        self.accepted[run.seq] = run
        self._note("accept", run=run.run_id, seq=run.seq)
        return self._decided(effects)

    def enter(self, run: RunRecord) -> Decided:
        """Decide, once, whether the accepted run is cancelled on entry, queued or active."""
        if run.state is not ACCEPTED:
            raise AlreadyEntered(f"run {run.run_id} is {run.state}")
        effects: list[Effect] = []
        if self._covers(run):
            self._move(run, "enter", CANCEL_ON_ENTRY)
            turn = self.settling[run.seq] = TurnRecord(run, covered=True)
            effects.append(("start", turn))
        elif self.turn is not None:
            self._move(run, "enter", QUEUED)
            self.queue.add(run)
        else:
            self._move(run, "enter", ACTIVE)
            self.turn = TurnRecord(run)
            effects.append(("start", self.turn))
        self._leave_accepted(run)
        return self._decided(effects)

    def release(self, run: RunRecord) -> Decided:
        """Complete a run that will not enter; one that has entered goes on."""
        if run.state is not ACCEPTED:
            return self._decided([])
        covered = self._covers(run)
        outcome: Outcome = "cancelled" if covered else "released"
        publish = self._complete(run, "release", outcome, error=RELEASED)
        self._leave_accepted(run)
        return self._decided([publish])

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
            self._note(
                "cancel", runs=[each.run_id for each in covered]
            )  # which tells it from one of the session
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

    # Inputs from the turn.

    def begin(self, turn: TurnRecord) -> bool:
        """Say whether the runner may be called: not if a cancel came first."""
        if turn.covered:
            return False
        turn.phase = RUNNING
        return True

    def foldable(self, turn: TurnRecord) -> list[RunRecord]:
        """Return what a fold would take into the turn now; nothing once a cancel covers it."""
        if turn.covered:
            return []
        return [*takewhile(lambda run: run.when_busy == "fold", self.queue.in_order())]

    def fold(self, turn: TurnRecord) -> tuple[list[RunRecord], Decided]:
        """Take the foldable runs at the head of the queue into the turn, and return them."""
        taken: list[RunRecord] = []
        while self.queue and not turn.covered:
            run = self.queue.first()
            if run.when_busy != "fold":
                break
            self._move(run, "fold", ACTIVE, into=turn.lead.run_id)
            taken.append(self.queue.take_first())
        turn.runs += taken
        return taken, self._decided([])

    def end(self, turn: TurnRecord, text: str, error: str | None, kept: str | None) -> None:
        """Take what came of the runner; from here on a cancel only changes what is put on record."""
        turn.phase = SETTLING
        turn.text, turn.error, turn.kept = text, error, kept

    def outcome(self, turn: TurnRecord) -> tuple[Message, ...]:
        """Return the messages of the turn as it stands now."""
        reason: FinishReason = "canceled" if turn.covered else "end_turn" if turn.error is None else "error"
        prompts = [
            Message(f"{self._message_prefix}{run.seq}", self.session_id, run.run_id, "user", run.prompt)
            for run in turn.runs
        ]
        reply_id = f"{self._message_prefix}{turn.lead.seq}-reply"
        data = None if turn.kept is None else decode(turn.kept)
        reply = Message(reply_id, self.session_id, turn.lead.run_id, "assistant", turn.text, reason, data)
        return (*prompts, reply)

    def written(self, turn: TurnRecord, messages: tuple[Message, ...], failure: str | None) -> Decided | None:
        """Complete the runs of the turn and, in the same step, hand off.

        `failure` says why the messages were not written, if they were not. Returns None if a cancel came
        while they were written: what they say is out of date, and has to be written again.
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
        elif self.queue:
            successor = self.queue.take_first()
            self._move(successor, "handoff", ACTIVE)
            self.turn = TurnRecord(successor)
            effects.append(("start", self.turn))
        else:
            self.turn = None
        return self._decided(effects)

    # What the steps are made of.

    def _decided(self, effects: list[Effect]) -> Decided:
        entries, self._entries = self._entries, []
        return Decided(effects, entries)

    def _move(self, run: RunRecord, trigger: str, to: State, **more: Any) -> None:
        """Make a move and note it; raise if the lifecycle does not declare it. `_complete` notes its own."""
        before, goals = MOVES[trigger]
        if run.state is not before or to not in goals:
            raise UndeclaredMove(f"{trigger} of run {run.run_id} from {run.state} to {to}")
        run.state = to
        if trigger == "enter":
            more["state"] = to.value
        if to is not COMPLETE:
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
        """Make the one RunComplete of the run: no move leads from `complete` to a second."""
        before, cancelled = run.state, outcome == "cancelled"
        self._move(run, trigger, COMPLETE)
        run.complete = RunComplete(
            self.session_id, run.run_id, run.seq, text, error, cancelled, message_id, folded_into, outcome
        )
        more = {} if error is None else {"error": error}
        self._note_move("complete", run, before, cancelled=cancelled, **more)
        return "publish", run

    def _note_move(self, event: str, run: RunRecord, before: State, **more: Any) -> None:
        moved = {"run": run.run_id, "seq": run.seq, "from": before.value, "to": run.state.value}
        line = {"event": event, "session": self.session_id, **moved, **more}
        self._entries.append(Entry(line, run.complete))

    def _note(self, event: str, **more: Any) -> None:
        self._entries.append(Entry({"event": event, "session": self.session_id, **more}))

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

        So a row of interrupts costs no more than the runs that each of them is the first to cover.
        """
        newest = next(reversed(self.accepted), 0)
        if self.turn is not None and not self.turn.covered:
            newest = max(newest, *[run.seq for run in self.turn.runs])
        if self.queue:
            newest = max(newest, self.queue.in_order()[-1].seq)
        return self._cover(newest)

    def _covered_by_cancel_of(self, run: RunRecord, *, waiting_only: bool) -> list[RunRecord]:
        """Return the runs that a cancel of this one covers, in sequence order."""
        if run.state is ACTIVE and self.turn is not None:
            if waiting_only and self.turn.phase not in (WAITING, STARTING):
                return []
            return sorted(self.turn.runs, key=_by_sequence)
        return [] if run.state is COMPLETE else [run]

    def covers(self, run: RunRecord) -> bool:
        """Say whether a cancel covers the accepted run."""
        return self._covers(run)

    def _covers(self, run: RunRecord) -> bool:
        return run.covered or run.seq <= self.mark

    def _leave_accepted(self, run: RunRecord) -> None:
        del self.accepted[run.seq]
        if run.seq <= self.mark:
            self.covered_accepted -= 1
            if self.covered_accepted == 0:
                self.mark = 0

    def _cover(self, newest: int) -> list[Effect]:
        """Cover every run; `newest` is the highest sequence among them."""
        self._note("cancel")  # before what follows from it
        if self.accepted:
            self.mark = max(self.mark, newest)
            self.covered_accepted = len(self.accepted)
        return self._cover_turn() + self._drop_queue("cancelled")

    def _cover_turn(self) -> list[Effect]:
        """Cover the active turn.

        There are three cases. A turn that waits for a place is started, for it needs none to settle. One that
        is starting or running is interrupted. One that is settling looks by itself when it has been written.
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
