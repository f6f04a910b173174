"""The real dispatcher and the mechanism, step by step."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from turngate import Dispatcher, Run, Turn
from turngate._core import Decided, Effect, Queue, RunRecord, SessionCore, TurnRecord
from turngate._places import Places
from turngate_model import Property
from turngate_model.checker import Bounds
from turngate_verify.drivers.lockstep import DECLARED, IN_LINE, WITH_PLACES, compare
from turngate_verify.drivers.sabotage import PublishesAgain, Sabotaged


@pytest.mark.requirement("REFINES", "DECLARED_MOVE")
def test_every_step_of_the_mechanism_is_a_step_of_the_dispatcher() -> None:
    result = compare(Bounds(prompts=2, cancels=1))
    assert result.violation is None, (result.path, result.violation)
    assert (result.states, result.steps) == (190, 1_282)


@pytest.mark.requirement("R-PLC-1", "R-PLC-2", "R-PLC-3", "R-PLC-4", "R-PLC-5")
@pytest.mark.parametrize(
    ("bounds", "size"), [(WITH_PLACES, (375, 2_798)), (IN_LINE, (1_727, 4_774))], ids=["one place", "in line"]
)
def test_turns_wait_for_places_as_they_do_in_the_mechanism(bounds: Bounds, size: tuple[int, int]) -> None:
    result = compare(bounds)
    assert result.violation is None, (result.path, result.violation)
    assert (result.states, result.steps) == size


def test_every_declared_move_is_seen_on_the_dispatcher_and_no_other() -> None:
    result = compare(Bounds(prompts=2, cancels=0))
    assert result.moves == DECLARED
    assert result.unseen == frozenset()


LINE = Bounds(2, 0, 1, frozenset({"again", "close", "fails", "release"}), holds=1, moves=1, into=True)
"""Everything that callers do to the line, and little else."""


def test_the_line_is_compared_too() -> None:
    result = compare(LINE)
    assert result.violation is None
    assert result.steps > 500


class FoldsHeld(SessionCore):
    def fold(self, turn: TurnRecord) -> tuple[list[RunRecord], Decided]:
        self._set_held(self.queue.in_order(), held=False)
        return super().fold(turn)


class ForgetsResumes(SessionCore):
    nothing_free = False

    def end(self, turn: TurnRecord, text: str, error: str | None, kept: str | None) -> None:
        super().end(turn, text, error, kept)
        self.nothing_free = not self.queue.free

    def _start_next(self) -> list[Effect]:
        return [] if self.nothing_free and self.turn is None else super()._start_next()


@pytest.mark.parametrize("core", [FoldsHeld, ForgetsResumes])
def test_a_core_that_gets_the_line_wrong_is_found(core: type[SessionCore]) -> None:
    assert compare(LINE, make=with_core(core)).violation is not None


def with_core(core: type[SessionCore]) -> type[Dispatcher]:
    """Return a dispatcher that decides by another core."""

    class OtherCore(Dispatcher):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self._sessions.new_core = core

    return OtherCore


class InOrderOfEntry(Queue):
    numbers = itertools.count()

    def add(self, run: RunRecord) -> None:
        run.rank = next(self.numbers)
        super().add(run)


class QueuesInOrderOfEntry(SessionCore):
    def __init__(self, session_id: str, message_prefix: str) -> None:
        super().__init__(session_id, message_prefix)
        self.queue = InOrderOfEntry()


class NeverMarks(SessionCore):
    def covers(self, run: RunRecord) -> bool:
        return run.covered


class Accepts(Sabotaged):
    """Makes a new run of a known run_id."""

    async def accept(self, *args: Any, **options: Any) -> Run:
        self._sessions.runs.pop(str(options["run_id"]), None)
        return await super().accept(*args, **options)


def with_places(places: type[Places]) -> type[Dispatcher]:
    """Return a dispatcher that gives places in another way."""

    class OtherPlaces(Dispatcher):
        def __init__(self, *args: Any, turns_limit: int, **options: Any) -> None:
            super().__init__(*args, turns_limit=turns_limit, **options)
            self._effects.turns._places = places(turns_limit)

    return OtherPlaces


class Boundless(Places):
    def take(self, turn: Turn) -> bool:
        return True


class LastInLineFirst(Places):
    def give_back(self, turn: Turn) -> Turn | None:
        self.line = dict(reversed(self.line.items()))
        return super().give_back(turn)


class LosesThePlaceGivenToACancelledTurn(Places):
    def take(self, turn: Turn) -> bool:
        return turn.covered or super().take(turn)

    def give_back(self, turn: Turn) -> Turn | None:
        following = next(iter(self.line), None)
        if following is not None and following.covered:
            del self.line[following]
            return None
        return super().give_back(turn)


class NeverGivesBack(Places):
    def give_back(self, turn: Turn) -> Turn | None:
        return None


class GivesBackWhatHasSettled(PublishesAgain):
    def _has_ended(self, turn: Turn, decided: Decided) -> None:
        super()._has_ended(turn, decided)
        places = self.turns._places
        assert places is not None
        if (following := Places.give_back(places, turn)) is not None:
            self.turns.start(following)


class KeepsThePlaceWhileSettling(Sabotaged):
    effects_class = GivesBackWhatHasSettled

    def __init__(self, *args: Any, turns_limit: int, **options: Any) -> None:
        super().__init__(*args, turns_limit=turns_limit, **options)
        self._effects.turns._places = NeverGivesBack(turns_limit)


class CallsTheRunnerOfACancelledTurn(SessionCore):
    def begin(self, turn: TurnRecord) -> bool:
        return super().begin(turn) or turn is self.turn


@pytest.mark.parametrize(
    ("make", "bounds", "broken"),
    [
        (with_core(QueuesInOrderOfEntry), Bounds(3, 1), {Property.FIFO, Property.REFINES}),
        (with_core(NeverMarks), Bounds(3, 1), {Property.FULL_COVERAGE, Property.REFINES}),
        (Accepts, Bounds(2, 1), {Property.EXACTLY_ONE_COMPLETE}),
        (with_places(Boundless), WITH_PLACES, {Property.REFINES}),
        (with_places(LastInLineFirst), IN_LINE, {Property.REFINES}),
        (with_places(LosesThePlaceGivenToACancelledTurn), IN_LINE, {Property.REFINES}),
        (KeepsThePlaceWhileSettling, WITH_PLACES, {Property.REFINES}),
        (with_core(CallsTheRunnerOfACancelledTurn), WITH_PLACES, {Property.REFINES}),
    ],
    ids=[
        "order of entry",
        "no mark",
        "reused id",
        "no limit",
        "last in line first",
        "a place lost",
        "a place kept while settling",
        "a cancelled turn called",
    ],
)
def test_a_dispatcher_that_differs_is_found(
    make: type[Dispatcher], bounds: Bounds, broken: set[Property]
) -> None:
    result = compare(bounds, make=make)
    assert result.violation is not None
    assert result.violation.property in broken
    assert 1 <= len(result.path) <= 9
