"""Would the checks tell? Break one thing at a time, and see the right id reported."""

from __future__ import annotations

from typing import Any

import pytest

from turngate_model import TABLE, DeclaredState, Guard, Mechanism, Property, Row, Successor, Trigger
from turngate_model.checker import Bounds, Explorer, MemoryModel
from turngate_model.history import Complete, Handoff
from turngate_model.lifecycle import successor
from turngate_model.model_session import Mode, ModelRun, ModelSession, ModelTurn

SMALL = Bounds(prompts=3, cancels=1, sessions=1)
HELD = Bounds(prompts=2, cancels=1, sessions=1, holds=1, moves=1, into=True)


def broken(
    mechanism: type[Mechanism] = Mechanism,
    declared: Successor = successor,
    claimed: Property | None = None,
    bounds: Bounds = SMALL,
) -> set[str]:
    """Return the ids that exploring a broken mechanism reports."""
    wanted = (claimed,) if claimed else ()
    result = Explorer(MemoryModel(bounds, mechanism, declared=declared), claimed=wanted).run()
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
    bounds = HELD if Guard.HELD in TABLE[dropped].conditions else SMALL
    assert broken(declared=without, bounds=bounds) == {"DECLARED_MOVE"}


def _with(row: Row, **changes: Any) -> Successor:
    return Successor(tuple(each._replace(**changes) if each is row else each for each in TABLE))


@pytest.mark.parametrize(
    ("row", "changes"),
    [
        (TABLE[0], {"conditions": (Guard.OCCUPIED,)}),
        (TABLE[1], {"conditions": ()}),
        (TABLE[5], {"conditions": (Guard.FIRST, Guard.JOINABLE)}),
        (TABLE[6], {"conditions": (Guard.VACATED,)}),
        (TABLE[9], {"conditions": (Guard.CLEARED,)}),
    ],
    ids=lambda value: str(getattr(value, "trigger", "")),
)
def test_a_broken_guard_is_reported(row: Row, changes: dict[str, Any]) -> None:
    assert broken(declared=_with(row, **changes)) == {"DECLARED_MOVE"}


@pytest.mark.parametrize(
    ("row", "guard"),
    [(row, guard) for row in TABLE for guard in (Guard.HELD, Guard.BOUND) if guard in row.unless],
    ids=lambda value: value.label if isinstance(value, Guard) else f"{value.trigger} to {value.target}",
)
def test_a_guard_of_holds_that_is_turned_round_is_reported(row: Row, guard: Guard) -> None:
    """Where a row forbids that a run is held, or is for one turn alone, make it ask for that."""
    unless = tuple(each for each in row.unless if each is not guard)
    turned = _with(row, unless=unless, conditions=(*row.conditions, guard))
    assert broken(declared=turned, bounds=HELD) == {"DECLARED_MOVE"}


class HoldsWhatComesLater(Mechanism):
    """A hold is remembered for the next prompt as well."""

    def accept(self, s: ModelSession, run: ModelRun, mode: Mode) -> None:
        super().accept(s, run, mode)
        s.held.update({run.name} if s.held else ())


class HandsOffAHeldRun(Mechanism):
    def start_next(self, s: ModelSession) -> None:
        if s.queue:
            run = s.queue.pop(0)
            self.start(s, run)
            self.see(Handoff(run.name))


class ForgetsAMove(Mechanism):
    def rank(self, s: ModelSession, run: ModelRun) -> int:
        return run.seq


class RemembersIdleHolds(Mechanism):
    def hold(self, s: ModelSession) -> None:
        super().hold(s)
        s.pending = 1


class KeepsWhatWasForATurn(Mechanism):
    """A run that was for a turn which has ended goes on waiting."""

    def drop_bound(self, s: ModelSession) -> None:
        """Leave it where it is."""


class BindsToATurnThatIsTold(Mechanism):
    """A prompt may be for a turn that a cancel covers already."""

    def can_bind(self, s: ModelSession) -> bool:
        return bool(s.turns) and s.turns[0].writing == ""


class StaysBoundWhenSentNow(Mechanism):
    def send_now(self, s: ModelSession, run: ModelRun) -> None:
        bound = run.name in s.bound
        super().send_now(s, run)
        s.bound.update({run.name} if bound else ())


IN_LINE: dict[type[Mechanism], Property] = {
    HoldsWhatComesLater: Property.REFINES,
    HandsOffAHeldRun: Property.HELD,
    ForgetsAMove: Property.REFINES,
    RemembersIdleHolds: Property.IDLE_CANCEL,
    KeepsWhatWasForATurn: Property.REFINES,
    BindsToATurnThatIsTold: Property.DECLARED_MOVE,
    StaysBoundWhenSentNow: Property.REFINES,
}


@pytest.mark.requirement("HELD", "IDLE_CANCEL", "REFINES", "DECLARED_MOVE")
@pytest.mark.parametrize("mechanism", IN_LINE, ids=lambda mechanism: mechanism.__name__)
def test_a_mechanism_that_breaks_the_line_is_reported(mechanism: type[Mechanism]) -> None:
    assert str(IN_LINE[mechanism]) in broken(mechanism, claimed=IN_LINE[mechanism], bounds=HELD)


def test_a_wrong_target_is_reported() -> None:
    release = next(row for row in TABLE if row.trigger is Trigger.RELEASE)
    assert broken(declared=_with(release, target=DeclaredState.CANCEL_ON_ENTRY)) == {"DECLARED_MOVE"}


def test_the_sound_mechanism_is_not_reported() -> None:
    assert broken() == set()
