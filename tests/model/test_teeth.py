"""Would the checks tell? Break one thing at a time, and see the right id reported."""

from __future__ import annotations

from typing import Any

import pytest

from turngate_model import TABLE, Guard, How, Property, Row, State, Successor, Trigger
from turngate_model.checker import Bounds, Explorer
from turngate_model.history import Complete, Handoff
from turngate_model.lifecycle import successor
from turngate_model.mechanism import Run, Session, Turn

SMALL = Bounds(prompts=3, cancels=1, sessions=1)


def broken(
    mechanism: type[How] = How, declared: Successor = successor, claimed: Property | None = None
) -> set[str]:
    """Return the ids that exploring a broken mechanism reports."""
    wanted = (claimed,) if claimed else ()
    result = Explorer(SMALL, mechanism, claimed=wanted, declared=declared).run()
    return set(map(str, result.counterexamples))


class ForgetsTheRunBelowTheMark(How):
    """At or below the mark becomes below it."""

    def is_covered(self, s: Session, run: Run) -> bool:
        return run.seq < s.mark or run.name in s.singled_out


class CoversOneTooMany(How):
    """The mark is one too high."""

    def raise_mark(self, s: Session) -> None:
        super().raise_mark(s)
        s.mark += bool(s.accepted)


class CompletesTwice(How):
    def complete_turn(self, s: Session, turn: Turn, error: str | None) -> None:
        super().complete_turn(s, turn, error)
        self.see(Complete(turn.lead.name, turn.cancelled, error))


class NeverBusy(How):
    def is_occupied(self, s: Session) -> bool:
        return False


class HandsOffWhenFinished(How):
    def hand_off(self, s: Session, turn: Turn) -> None:
        super().hand_off(s, turn) if turn.writing == "end_turn" else self.park(s, turn)

    def park(self, s: Session, turn: Turn) -> None:
        s.turns.remove(turn)
        s.active = ""


class LastInFirstOut(How):
    def start_next(self, s: Session) -> None:
        if s.queue:
            run = s.queue.pop()
            self.start(s, run)
            self.see(Handoff(run.name))


class QueuesInOrderOfEntry(How):
    def enqueue(self, s: Session, run: Run) -> None:
        s.queue.append(run)


class RemembersIdleCancels(How):
    def raise_mark(self, s: Session) -> None:
        s.mark = max([s.mark, 1, *(run.seq for run in s.in_flight)])


class WritesLate(How):
    def written(self, s: Session, turn: Turn, ok: bool) -> None:
        self.complete_turn(s, turn, None)
        self.record(turn.runs, turn.writing, ok)
        self.hand_off(s, turn)


class DoesNotLookAfterTheWrite(How):
    def written(self, s: Session, turn: Turn, ok: bool) -> None:
        self.record(turn.runs, turn.writing, ok)
        self.complete_turn(s, turn, None if ok else "store failed")
        self.hand_off(s, turn)


class BelievesTheRunner(How):
    """A turn that was cancelled during the write completes as it ended."""

    def written(self, s: Session, turn: Turn, ok: bool) -> None:
        turn.cancelled = turn.writing == "canceled"
        super().written(s, turn, ok)


class KeepsTheMark(How):
    def lower_mark(self, s: Session) -> None:
        """Keep it."""


class RunsCompleteRunsAgain(How):
    def again(self, s: Session, run: Run) -> None:
        if run.seq == 0 and not s.accepted:
            s.accepted.append(run._replace(seq=99))


class FoldsIntoADyingTurn(How):
    def fold(self, s: Session, turn: Turn) -> None:
        while s.queue and s.queue[0].name in s.foldable:
            self.join(s, turn, s.queue.pop(0))


class FoldsWhatWantsItsOwnTurn(How):
    def fold(self, s: Session, turn: Turn) -> None:
        while s.queue and not turn.cancelled:
            self.join(s, turn, s.queue.pop(0))


class ForgetsACancelledRun(How):
    """The mechanism's own books are wrong, though nothing shows yet."""

    def cancel_run(self, s: Session, run: Run) -> None:
        super().cancel_run(s, run)
        s.foldable.clear()


BREAKS: dict[type[How], Property] = {
    ForgetsTheRunBelowTheMark: Property.FULL_COVERAGE,
    CoversOneTooMany: Property.NEVER_POISONED,
    CompletesTwice: Property.EXACTLY_ONE_COMPLETE,
    NeverBusy: Property.ONE_TURN,
    HandsOffWhenFinished: Property.NO_STRAND,
    LastInFirstOut: Property.FIFO,
    QueuesInOrderOfEntry: Property.FIFO,
    RemembersIdleCancels: Property.IDLE_CANCEL,
    WritesLate: Property.LAST_WORD,
    DoesNotLookAfterTheWrite: Property.ON_RECORD,
    BelievesTheRunner: Property.FULL_COVERAGE,
    KeepsTheMark: Property.NO_RESIDUE,
    RunsCompleteRunsAgain: Property.TERMINAL_IS_FINAL,
    FoldsIntoADyingTurn: Property.NEVER_POISONED,
    FoldsWhatWantsItsOwnTurn: Property.DECLARED_MOVE,
    ForgetsACancelledRun: Property.REFINES,
}


@pytest.mark.requirement(
    "NEVER_POISONED",
    "FULL_COVERAGE",
    "EXACTLY_ONE_COMPLETE",
    "ONE_TURN",
    "NO_STRAND",
    "FIFO",
    "IDLE_CANCEL",
    "LAST_WORD",
    "ON_RECORD",
    "NO_RESIDUE",
    "TERMINAL_IS_FINAL",
    "DECLARED_MOVE",
    "REFINES",
)
@pytest.mark.parametrize("mechanism", BREAKS, ids=lambda mechanism: mechanism.__name__)
def test_a_broken_mechanism_is_reported_under_the_right_id(mechanism: type[How]) -> None:
    assert str(BREAKS[mechanism]) in broken(mechanism, claimed=BREAKS[mechanism])


@pytest.mark.parametrize(
    "dropped", range(len(TABLE)), ids=lambda n: f"{TABLE[n].trigger} to {TABLE[n].target}, {n}"
)
def test_a_dropped_transition_is_reported(dropped: int) -> None:
    without = Successor(TABLE[:dropped] + TABLE[dropped + 1 :])
    assert broken(declared=without) == {"DECLARED_MOVE"}


def _with(row: Row, **changes: Any) -> Successor:
    return Successor(tuple(each._replace(**changes) if each is row else each for each in TABLE))


@pytest.mark.parametrize(
    ("row", "changes"),
    [
        (TABLE[0], {"conditions": (Guard.OCCUPIED,)}),
        (TABLE[1], {"conditions": ()}),
        (TABLE[4], {"conditions": (Guard.FIRST, Guard.JOINABLE)}),
        (TABLE[5], {"conditions": (Guard.VACATED,)}),
        (TABLE[8], {"conditions": (Guard.CLEARED,)}),
    ],
    ids=lambda value: str(getattr(value, "trigger", "")),
)
def test_a_broken_guard_is_reported(row: Row, changes: dict[str, Any]) -> None:
    assert broken(declared=_with(row, **changes)) == {"DECLARED_MOVE"}


def test_a_wrong_target_is_reported() -> None:
    release = next(row for row in TABLE if row.trigger is Trigger.RELEASE)
    assert broken(declared=_with(release, target=State.CANCEL_ON_ENTRY)) == {"DECLARED_MOVE"}


def test_the_sound_mechanism_is_not_reported() -> None:
    assert broken() == set()
