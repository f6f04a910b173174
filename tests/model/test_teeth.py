"""Would the checks tell? Break one thing at a time, and see the right id reported."""

from __future__ import annotations

from typing import Any

import pytest

from turngate_model import TABLE, DeclaredState, Guard, Mechanism, Property, Row, Successor, Trigger
from turngate_model.checker import Bounds, Explorer, MemoryModel
from turngate_model.history import Complete, Handoff
from turngate_model.lifecycle import successor
from turngate_model.model_session import ModelRun, ModelSession, ModelTurn

SMALL = Bounds(prompts=3, cancels=1, sessions=1)


def broken(
    mechanism: type[Mechanism] = Mechanism, declared: Successor = successor, claimed: Property | None = None
) -> set[str]:
    """Return the ids that exploring a broken mechanism reports."""
    wanted = (claimed,) if claimed else ()
    result = Explorer(MemoryModel(SMALL, mechanism, declared=declared), claimed=wanted).run()
    return set(map(str, result.counterexamples))


class ForgetsTheRunBelowTheMark(Mechanism):
    """At or below the mark becomes below it."""

    def is_covered(self, s: ModelSession, run: ModelRun) -> bool:
        return run.seq < s.mark or run.name in s.singled_out


class CoversOneTooMany(Mechanism):
    """The mark is one too high."""

    def raise_mark(self, s: ModelSession) -> None:
        super().raise_mark(s)
        s.mark += bool(s.accepted)


class CompletesTwice(Mechanism):
    def complete_turn(self, s: ModelSession, turn: ModelTurn, error: str | None) -> None:
        super().complete_turn(s, turn, error)
        self.see(Complete(turn.lead.name, turn.cancelled, error))


class NeverBusy(Mechanism):
    def is_occupied(self, s: ModelSession) -> bool:
        return False


class HandsOffWhenFinished(Mechanism):
    def hand_off(self, s: ModelSession, turn: ModelTurn) -> None:
        super().hand_off(s, turn) if turn.writing == "end_turn" else self.park(s, turn)

    def park(self, s: ModelSession, turn: ModelTurn) -> None:
        s.turns.remove(turn)
        s.active = ""


class LastInFirstOut(Mechanism):
    def start_next(self, s: ModelSession) -> None:
        if s.queue:
            run = s.queue.pop()
            self.start(s, run)
            self.see(Handoff(run.name))


class QueuesInOrderOfEntry(Mechanism):
    def enqueue(self, s: ModelSession, run: ModelRun) -> None:
        s.queue.append(run)


class RemembersIdleCancels(Mechanism):
    def raise_mark(self, s: ModelSession) -> None:
        s.mark = max([s.mark, 1, *(run.seq for run in s.in_flight)])


class WritesLate(Mechanism):
    def written(self, s: ModelSession, turn: ModelTurn, ok: bool) -> None:
        self.complete_turn(s, turn, None)
        self.record(turn.runs, turn.writing, ok)
        self.hand_off(s, turn)


class DoesNotLookAfterTheWrite(Mechanism):
    def written(self, s: ModelSession, turn: ModelTurn, ok: bool) -> None:
        self.record(turn.runs, turn.writing, ok)
        self.complete_turn(s, turn, None if ok else "store failed")
        self.hand_off(s, turn)


class BelievesTheRunner(Mechanism):
    """A turn that was cancelled during the write completes as it ended."""

    def written(self, s: ModelSession, turn: ModelTurn, ok: bool) -> None:
        turn.cancelled = turn.writing == "canceled"
        super().written(s, turn, ok)


class KeepsTheMark(Mechanism):
    def lower_mark(self, s: ModelSession) -> None:
        """Keep it."""


class RunsCompleteRunsAgain(Mechanism):
    def again(self, s: ModelSession, run: ModelRun) -> None:
        if run.seq == 0 and not s.accepted:
            s.accepted.append(run._replace(seq=99))


class FoldsIntoADyingTurn(Mechanism):
    def fold(self, s: ModelSession, turn: ModelTurn) -> None:
        while s.queue and s.queue[0].name in s.foldable:
            self.join(s, turn, s.queue.pop(0))


class FoldsWhatWantsItsOwnTurn(Mechanism):
    def fold(self, s: ModelSession, turn: ModelTurn) -> None:
        while s.queue and not turn.cancelled:
            self.join(s, turn, s.queue.pop(0))


class ForgetsACancelledRun(Mechanism):
    """The mechanism's own books are wrong, though nothing shows yet."""

    def cancel_run(self, s: ModelSession, run: ModelRun) -> None:
        super().cancel_run(s, run)
        s.foldable.clear()


BREAKS: dict[type[Mechanism], Property] = {
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
def test_a_broken_mechanism_is_reported_under_the_right_id(mechanism: type[Mechanism]) -> None:
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
    assert broken(declared=_with(release, target=DeclaredState.CANCEL_ON_ENTRY)) == {"DECLARED_MOVE"}


def test_the_sound_mechanism_is_not_reported() -> None:
    assert broken() == set()
