"""The session core: decides, never awaits, never calls out.

One input is one call of one method of `SessionCore`; nothing can come in between, so a step needs no lock.
A step checks first, changes then, and returns effects in the order in which they are to be performed.

A cancel covers what was accepted before it and is not complete. Of the accepted runs it covers those whose
sequence is at most the mark, for a run accepted later has a higher one; the mark goes back to 0 as soon as no
accepted run is left for it. An accepted run that is covered alone carries `covered` instead.

A run that is cancelled on entry settles as a turn of its own, covered from the start, so no runner is called
for it; it is not the session's turn.
"""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, Final, Literal

from turngate._errors import AlreadyEntered, QueueFull, SessionBusy, TurnEnded, UndeclaredMove
from turngate._events import RunComplete
from turngate._json import given_back
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
from turngate._run import Run, Turn
from turngate._words import counted

if TYPE_CHECKING:
    from collections import deque

    from turngate._events import Outcome
    from turngate._journal import Noted
    from turngate._lifecycle import State
    from turngate._prompt import WhenBusy

# The constructor that NamedTuple generates takes three times as long, and every run makes three of them.
_new = tuple.__new__

# Most sessions never queue, and cancel nothing on entry: these stand for what they do not hold.
_NOTHING_QUEUED: Final = Queue()
_NOTHING_SETTLES: Final[dict[int, Turn]] = {}

CLEARED: Final = "cleared from the queue"
RELEASED: Final = "released before entry"


# What to do, and with what. An object of a class instead takes four times as long to make and to match.
Start = tuple[Literal["start"], Turn]
"""Begin the turn, in a task of its own, as soon as there is a place for its runner."""
Interrupt = tuple[Literal["interrupt"], Turn]
"""Cancel the task of the turn."""
Publish = tuple[Literal["publish"], Run]
"""Tell whoever waits that the run is complete."""
Effect = Start | Interrupt | Publish


class SessionCore:
    """One session: its accepted runs, its queue, its turn, and the runs that settle after cancel-on-entry.

    `message_prefix` makes message ids that no other dispatcher makes. `untold` is where a core that is
    journaled notes its decisions; any core may become one.
    """

    __slots__ = (
        "_message_prefix", "accepted", "covered_accepted", "mark", "queue", "session_id", "settling", "turn",
        "untold",
    )  # fmt: skip

    def __init__(self, session_id: str, message_prefix: str, untold: deque[Noted]) -> None:
        self.session_id = session_id
        self.accepted: dict[int, Run] = {}
        self.covered_accepted = 0
        self.mark = 0
        self.queue = _NOTHING_QUEUED
        self.turn: Turn | None = None
        self.settling = _NOTHING_SETTLES
        self._message_prefix = message_prefix
        self.untold = untold

    def is_quiet(self) -> bool:
        """Whether nothing of the session is in flight: a queue is never without a turn."""
        return self.turn is None and not self.accepted and not self.settling

    # Inputs from callers.

    def check_room(self, when_busy: WhenBusy, queue_limit: int) -> None:
        """Refuse another run, while something is in flight, if it asks for that or too many wait."""
        if when_busy == "reject":
            raise SessionBusy(f"session {self.session_id!r} has something in flight")
        waiting = len(self.accepted) + (0 if when_busy == "interrupt" else len(self.queue))
        if waiting >= queue_limit:
            raise QueueFull(
                f"session {self.session_id!r} has {counted(waiting, 'run')} waiting (queue_limit)"
            )

    def accept(self, run: Run) -> None:
        """Take in a run whose sequence is higher than any before."""
        self.accepted[run.seq] = run

    def enter(self, run: Run) -> list[Effect]:
        """Decide, once, whether the accepted run is cancelled on entry, queued or active."""
        if run.state is not ACCEPTED:
            raise AlreadyEntered(f"run {run.run_id} is {run.state}")
        turn = None
        if self._covers(run):
            self._move(run, "enter", CANCEL_ON_ENTRY)
            turn = Turn(run, covered=True)
            if self.settling is _NOTHING_SETTLES:
                self.settling = {}
            self.settling[run.seq] = turn
        elif self.turn is not None:
            self._move(run, "enter", QUEUED)
            run.on_complete = None
            self._enqueue(run)
        else:
            self._move(run, "enter", ACTIVE)
            turn = self.turn = Turn(run)
        self._leave_accepted(run)
        return [] if turn is None else [("start", turn)]

    def release(self, run: Run) -> list[Effect]:
        """Complete a run that will not enter; one that has entered goes on."""
        if run.state is not ACCEPTED:
            return []
        covered = self._covers(run)
        outcome: Outcome = "cancelled" if covered else "released"
        publish = self._complete(run, "release", outcome, "", RELEASED, covered)
        self._leave_accepted(run)
        return [publish]

    def cancel(self) -> tuple[list[Run], list[Effect]]:
        """Cover every run of the session; drop what is queued."""
        covered = [run for turn in self.settling.values() for run in turn._runs]
        if self.turn is not None:
            covered += self.turn._runs
        covered += self.queue.in_order()
        covered += self.accepted.values()
        covered.sort(key=_by_sequence)
        return covered, self._cover(covered[-1].seq if covered else 0)

    def interrupt(self) -> list[Effect]:
        """Cover every run of the session, as `cancel` does, without naming those that were covered before.

        So many interrupts in a row cost no more than the runs that each of them is the first to cover.
        """
        newest = next(reversed(self.accepted), 0)
        if self.turn is not None and not self.turn.covered:
            newest = max(newest, *[run.seq for run in self.turn._runs])
        if self.queue:
            newest = max(newest, self.queue.in_order()[-1].seq)
        return self._cover(newest)

    def cancel_run(self, run: Run, *, waiting_only: bool = False) -> tuple[list[Run], list[Effect]]:
        """Cover the run alone, or the whole turn that it is part of.

        With `waiting_only`, do nothing if the runner has been called for it.
        """
        covered = self.covered_by_cancel_of(run, waiting_only=waiting_only)
        if not covered:
            return [], []
        if run.state is ACTIVE:
            return covered, self._cover_turn()
        if run.state is QUEUED:
            self.queue.take(run)
            return covered, [self._complete(run, "drop", "cancelled", "", None, cancelled=True)]
        if run.state is ACCEPTED:
            run.covered = True
        return covered, []

    def covered_by_cancel_of(self, run: Run, *, waiting_only: bool) -> list[Run]:
        """Return the runs that a cancel of this one covers, in sequence order."""
        if run.state is ACTIVE and self.turn is not None:
            if waiting_only and self.turn.phase not in (WAITING, STARTING):
                return []
            return sorted(self.turn._runs, key=_by_sequence)
        return [] if run.state is COMPLETE else [run]

    def clear(self) -> tuple[list[Run], list[Effect]]:
        """Drop what is queued; nothing is cancelled."""
        return self.queue.in_order(), self._drop_queue(error=CLEARED)

    # Inputs from the turn.

    def begin(self, turn: Turn) -> bool:
        """Say whether the runner is to be called: not if a cancel came first."""
        if turn.covered:
            return False
        turn.phase = RUNNING
        return True

    def check_open(self, turn: Turn, what: str) -> None:
        """Refuse what comes too late: the runner is over."""
        if turn.phase is SETTLING:
            raise TurnEnded(f"{what} the turn of run {turn.run.run_id}, which is over")

    def write(self, turn: Turn, text: str) -> int:
        """Keep text that the runner has produced; return its offset in the text of the turn."""
        self.check_open(turn, "write to")
        if text:
            if turn.parts is None:
                turn.parts = []
            turn.parts.append(text)
        offset = turn.length
        turn.length = offset + len(text)
        return offset

    def keep(self, turn: Turn, data: str) -> None:
        """Keep JSON text to be written beside the text of the turn; the last one counts."""
        self.check_open(turn, "keep in")
        turn.kept = data

    def foldable(self, turn: Turn) -> list[Run]:
        """Return what a fold would take into the turn now."""
        self.check_open(turn, "fold into")
        if turn.covered:
            return []
        return [*takewhile(lambda run: run.when_busy == "fold", self.queue.in_order())]

    def fold(self, turn: Turn) -> list[Run]:
        """Take the foldable runs at the head of the queue into the turn; none once a cancel covers it."""
        self.check_open(turn, "fold into")
        taken: list[Run] = []
        while self.queue and not turn.covered:
            run = self.queue.first()
            if run.when_busy != "fold":
                break
            self._move(run, "fold", ACTIVE)
            taken.append(self.queue.take_first())
        turn._runs += taken
        return taken

    def end(self, turn: Turn, text: str | None, error: str | None) -> None:
        """Take the outcome of the runner; from here on a cancel only changes what is put on record."""
        turn.phase = SETTLING
        parts = turn.parts
        turn.text = text if text is not None else "".join(parts) if parts else ""
        turn.pieces = parts or ((text,) if text else ())
        turn.error = error

    def outcome(self, turn: Turn) -> tuple[Message, ...]:
        """Return what is to be written of the turn as it stands now."""
        session_id, prefix, lead = self.session_id, self._message_prefix, turn.run
        reason = "canceled" if turn.covered else "end_turn" if turn.error is None else "error"
        lead_id, run_id = f"{prefix}{lead.seq}", lead.run_id
        data = None if turn.kept is None else given_back(turn.kept)
        prompt = _new(Message, (lead_id, session_id, run_id, "user", lead.prompt, None, None))
        reply = _new(Message, (lead_id + "-reply", session_id, run_id, "assistant", turn.text, reason, data))
        if len(turn._runs) == 1:
            return prompt, reply
        folded = [
            _new(Message, (f"{prefix}{run.seq}", session_id, run.run_id, "user", run.prompt, None, None))
            for run in turn._runs[1:]
        ]
        return (prompt, *folded, reply)

    def written(self, turn: Turn, messages: tuple[Message, ...], error: str | None) -> list[Effect]:
        """Complete the runs of the turn and, in the same step, hand off.

        Nothing when a cancel came while the messages were written: what they say is to be written again.
        """
        reply, lead, mine = messages[-1], turn.run, turn is self.turn
        message_id = None if error is not None else reply.id
        if turn.covered:
            if error is None and reply.finish_reason != "canceled":
                return []
        elif error is None:
            error = turn.error
        trigger = "finish" if mine else "settle"
        outcome: Outcome = "cancelled" if turn.covered else "finished" if error is None else "failed"
        effects: list[Effect] = []
        for run in turn._runs:
            folded_into = None
            if run is not lead:
                folded_into, run._lead = lead.run_id, lead
            if mine:
                run._pieces = turn.pieces
            effects.append(
                self._complete(run, trigger, outcome, turn.text, error, turn.covered, message_id, folded_into)
            )
        if not mine:
            del self.settling[lead.seq]
        elif self.queue:
            successor = self.queue.take_first()
            self._move(successor, "handoff", ACTIVE)
            self.turn = Turn(successor)
            effects.append(("start", self.turn))
        else:
            self.turn = None
        return effects

    # What the steps are made of.

    def _move(self, run: Run, trigger: str, to: State) -> None:
        was, goals = MOVES[trigger]
        if run.state is not was or to not in goals:
            raise UndeclaredMove(f"{trigger} of run {run.run_id} from {run.state} to {to}")
        run.state = to

    def _complete(
        self,
        run: Run,
        trigger: str,
        outcome: Outcome,
        text: str,
        error: str | None,
        cancelled: bool,
        message_id: str | None = None,
        folded_into: str | None = None,
    ) -> Publish:
        """Make the one RunComplete of the run: no move leads from `complete` to a second."""
        self._move(run, trigger, COMPLETE)
        run.complete = _new(
            RunComplete,
            (self.session_id, run.run_id, run.seq, text, error, cancelled, message_id, folded_into, outcome),
        )
        return "publish", run

    def _covers(self, run: Run) -> bool:
        """Say whether a cancel covers the accepted run."""
        return run.covered or run.seq <= self.mark

    def _leave_accepted(self, run: Run) -> None:
        del self.accepted[run.seq]
        if run.seq <= self.mark:
            self.covered_accepted -= 1
            if self.covered_accepted == 0:
                self.mark = 0

    def _enqueue(self, run: Run) -> None:
        if self.queue is _NOTHING_QUEUED:
            self.queue = Queue()
        self.queue.add(run)

    def _cover(self, newest: int) -> list[Effect]:
        """Cover every run; `newest` is the highest sequence among them."""
        if self.accepted:
            self.mark = max(self.mark, newest)
            self.covered_accepted = len(self.accepted)
        return self._cover_turn() + self._drop_queue(cancelled=True)

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

    def _drop_queue(self, *, error: str | None = None, cancelled: bool = False) -> list[Effect]:
        dropped, self.queue = self.queue, _NOTHING_QUEUED
        outcome: Outcome = "cancelled" if cancelled else "cleared"
        return [self._complete(run, "drop", outcome, "", error, cancelled) for run in dropped.in_order()]

    def __repr__(self) -> str:
        return (
            f"<session {self.session_id!r}: {self.turn or 'no turn'}, {len(self.queue)} queued, "
            f"{len(self.accepted)} accepted, {len(self.settling)} settling, mark {self.mark}>"
        )


def _by_sequence(run: Run) -> int:
    return run.seq
