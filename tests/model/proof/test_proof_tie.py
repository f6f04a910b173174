"""The tie: on every step within bounds the relation does what the mechanism does; a slip in it is found."""

from __future__ import annotations

from typing import Any

import pytest

from turngate_model import EVERY_DESIGN, Mechanism
from turngate_model.checker import Bounds, Explorer, MemoryModel
from turngate_model.proof import FLAWED, INVARIANT, NOT_SAID, comparison
from turngate_model.proof.comparison import Came, TieBounds, compare, differences, sessions
from turngate_model.proof.conditions import ConditionStage
from turngate_model.proof.judge import Runs, only
from turngate_model.proof.relation import Relation
from turngate_model.proof.steps import steps_of
from turngate_model.proof.terms import Formula, Individual, TurnPhase, choice, equal
from turngate_model.properties import Property


def test_the_relation_is_the_mechanism_in_small() -> None:
    result = compare(None, TieBounds(2, 1))
    assert (result.difference, result.states, result.steps) == ("", 190, 2_341)
    assert not result.objections


def test_a_path_has_the_same_words_for_plain_values_as_for_any_number_of_runs() -> None:
    stage = ConditionStage()
    known = {
        (str(step), ", ".join(path.trail)) for step in steps_of(Relation) for path, _ in stage.paths(step)
    }
    assert compare(None, TieBounds(2, 0)).paths.keys() <= known


@pytest.mark.deep
def test_the_relation_is_the_mechanism() -> None:
    result = compare(None, TieBounds(3, 2))
    assert (result.difference, result.states, result.steps) == ("", 2_316, 40_493)


@pytest.mark.parametrize("name", FLAWED)
def test_the_relation_is_the_design_in_small(name: str) -> None:
    result = compare(name, TieBounds(1, 1, 1, 1))
    assert result.difference == ""
    assert result.steps > 30


@pytest.mark.deep
@pytest.mark.parametrize("name", FLAWED)
def test_the_relation_is_the_design(name: str) -> None:
    result = compare(name, TieBounds(2, 1, 1, 0))
    assert result.difference == ""
    assert result.steps > 500


@pytest.mark.deep
def test_a_rank_that_is_made_up_twice_means_the_same_order_to_both() -> None:
    result = compare("made-up-rank", TieBounds(3, 0, 0, 1))
    assert (result.difference, result.states, result.steps) == ("", 2_561, 40_949)


def test_every_design_is_said_or_there_is_a_reason() -> None:
    assert FLAWED.keys() | NOT_SAID.keys() == EVERY_DESIGN.keys()
    assert not FLAWED.keys() & NOT_SAID.keys()


def test_the_sessions_are_those_of_the_explorer() -> None:
    model = MemoryModel(Bounds(2, 1, 1))
    Explorer(model).run()
    assert sum(1 for _ in sessions(Mechanism, TieBounds(2, 1), frozenset())) == len(model.nodes) == 190


class Forgetful(Relation):
    def drop(self, s: Individual, runs: Runs, *, cancelled: bool) -> None:
        self.take_out("queue", runs)
        self.see.complete(s, runs, lambda _run: cancelled)


class Lenient(Relation):
    def clear(self, s: Individual) -> None:
        self.drop(s, self.of(s, "queue"), cancelled=False)


class Blind(Relation):
    def is_covered(self, s: Individual, run: Individual, now: object = None) -> Formula:
        return False


class Choosy(Relation):
    def start_next(self, s: Individual, first: Individual | None = None) -> None:
        queued = self.free(s)
        if self.path.branch(self.is_any(queued), "one is queued"):
            run = self.path.choose("any", queued.has, "any will do")
            self.take_out("queue", only(run))
            self.start(s, run)
            self.see.handoff(s, run)


class HoldsLess(Relation):
    def hold(self, s: Individual) -> None:
        self.see.hold(s)
        self.put_in("held", self.of(s, "queue"))


class MovesOneTooFar(Relation):
    def _pass(self, run: Individual, goal: Individual, line: Any, is_nearer: Any) -> None:
        self.path.give("rank", lambda old, x: choice(equal(x, run), old(goal), old(x)))


class Wrong(Relation):
    def end(self, s: Individual, lead: Individual, outcome: TurnPhase) -> None:
        self.needs(self.at(s, lead), equal(self.path["phase"](lead), TurnPhase.RUNNING))
        super().end(s, lead, outcome)
        self.put_in("interrupted", only(lead))


SLIPS = {
    Forgetful: "('foldable'",
    Lenient: "only one side can take",
    Blind: "('outcome', (0,)) is True for the mechanism and False for the relation",
    Choosy: "leads to two states",
    HoldsLess: "('held'",
    MovesOneTooFar: "('rank'",
    Wrong: "('interrupted'",
}


@pytest.mark.parametrize("slip", SLIPS, ids=lambda slip: slip.__name__)
def test_a_slip_in_the_relation_is_found(slip: type[Relation], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "Relation", slip)
    result = compare(None, TieBounds(3 if slip is Choosy else 2, 1))
    assert SLIPS[slip] in result.difference


def test_a_clause_that_is_not_true_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    never = INVARIANT[0]._replace(name="never", says=lambda _reading, _world: False)
    monkeypatch.setattr(comparison, "INVARIANT", (never,))
    assert compare(None, TieBounds(1, 1)).difference.startswith("clause never does not hold")


FIFO, MOVE = Property.FIFO, Property.DECLARED_MOVE


@pytest.mark.parametrize(
    ("wanted", "found", "agree"),
    [
        ({FIFO}, {FIFO}, True),
        ({FIFO}, {FIFO, MOVE}, True),
        ({MOVE}, {MOVE}, True),
        ({FIFO}, set(), False),
        (set(), {FIFO}, False),
        (set(), {MOVE}, False),
        ({MOVE}, set(), False),
    ],
)
def test_a_declared_move_is_asked_for_where_nothing_else_is_wrong(
    wanted: set[Property], found: set[Property], agree: bool
) -> None:
    assert (differences(Came({}, frozenset(wanted)), Came({}, frozenset(found))) == "") == agree


def test_facts_that_only_one_side_tells_are_a_difference() -> None:
    assert "different facts" in differences(Came({}, frozenset()), Came({"queue": {(0,): True}}, frozenset()))
