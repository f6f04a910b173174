"""The teeth: each bites. All of them are tried by ``make prove``; here a few, and the long forms."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from proving import a_proof, asked, both_solvers
from turngate_model.proof import FLAWED, INVARIANT, PARTS, Proof, judging, teeth
from turngate_model.proof.agreement import Agreement, compare_readings
from turngate_model.proof.comparison import Compared
from turngate_model.proof.conditions import Condition, SmallStage, conditions
from turngate_model.proof.judging import Judged, compare_judges
from turngate_model.proof.readings import SeenAt, Unbounded
from turngate_model.proof.solvers import solve
from turngate_model.proof.teeth import SCOPES, Needed, needed_clauses, number_of_paths, paths_not_taken
from turngate_model.proof.terms import Formula, Sort
from turngate_model.proof.unrolling import Refuted, Unrolled, refute_by_unrolling
from turngate_model.properties import Property


def test_the_judge_objects_where_the_abstract_session_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "SESSIONS", 40)
    monkeypatch.setattr(judging, "_is_found", lambda _key: True)
    judging._drawn.cache_clear()
    judged = compare_judges()
    judging._drawn.cache_clear()
    assert judged.difference == ""
    assert len(judged.mistakes) == 57


@pytest.mark.deep
def test_every_obligation_broken_on_purpose_is_found() -> None:
    judged = compare_judges()
    assert judged.difference == ""
    assert [key for key, found in judged.mistakes.items() if not found] == []


def test_both_readings_of_the_text_agree() -> None:
    agreement = compare_readings(both_solvers()[0], every=60)
    assert agreement.difference == ""
    assert agreement.asked > agreement.taken > 20


class Slow(Unbounded):
    """A reading that takes "for every run" to mean "for some run"."""

    def for_all(self, says: Callable[..., Formula], *sorts: Sort, seen_at: SeenAt | None = None) -> Formula:
        return self.exists(says, *sorts)


def test_a_reading_that_says_something_else_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    solver, _ = both_solvers()
    monkeypatch.setattr("turngate_model.proof.conditions.Unbounded", Slow)
    assert "from ModelSession" in compare_readings(solver, every=5).difference


def test_without_a_clause_something_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    solver, _ = both_solvers()
    monkeypatch.setattr(teeth, "conditions", between_steps)
    needed = needed_clauses(solver, ((0, 0),))
    assert needed.failing == []
    assert (
        needed.without["busy"] == "NO_STRAND: every queued run of a session at rest is held (between steps)"
    )
    assert len(needed.without) > 15


def between_steps(stage: SmallStage) -> list[Condition]:
    return [each for each in conditions(stage) if each.where == "between steps"]


@pytest.mark.deep
def test_without_any_clause_something_fails() -> None:
    needed = needed_clauses(both_solvers()[0], SCOPES)
    assert needed.failing == []
    assert needed.without.keys() == {clause.name for clause in INVARIANT}


QUICK = ("no-accept-tracking", "publish-first", "leaky-session", "untracked")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.deep) for name in FLAWED]
)
def test_a_design_is_refuted_in_as_many_steps_as_the_explorer_needs(name: str) -> None:
    refuted = refute_by_unrolling(name, both_solvers()[0])
    assert refuted.bites
    assert len(refuted.found) == refuted.explored


def test_a_property_that_a_design_keeps_is_not_refuted() -> None:
    assert Unrolled(FLAWED["leaky-session"], 1, Property.ONE_TURN).search(both_solvers()[0], 3) == []


def test_a_path_that_nobody_takes_is_proved_to_be_so() -> None:
    never = [*paths_not_taken(set())]
    assert len(never) == number_of_paths() == 57
    infeasible = "cancel_run: leads, accepted"
    (condition,) = [each for each in never if each.where == infeasible]
    (taken,) = [each for each in never if each.where == "release"]
    for solver in both_solvers():
        asked(solver)
        assert solve(condition, solver).answer == "proved"
        assert solve(taken, solver).answer != "proved"


def of(**about: object) -> Proof:
    proof = a_proof()
    for name, value in about.items():
        setattr(proof, name, value)
    return proof


FOUND = ("accept a",)
NEEDED = {clause.name: "something" for clause in INVARIANT}
VERDICTS = {
    "all is well": (a_proof(), "holds"),
    "a condition is refuted": (of(refuted={"FIFO": ["Z3: no"]}), "violated"),
    "a condition is not decided": (of(undecided={"FIFO": ["cvc5: no"]}), "unknown"),
    "the mechanism differs": (of(tied={"the mechanism": Compared(None, difference="here")}), "violated"),
    "the readings differ": (of(readings=Agreement(9, 9, "here")), "violated"),
    "the judge differs": (of(judged=Judged(9, "here", {})), "violated"),
    "a mistake is not found": (of(judged=Judged(9, "", {"enter: from accepted": False})), "unknown"),
    "a clause is not needed": (of(needed=Needed({}, [])), "unknown"),
    "a clause is not enough": (of(needed=Needed(NEEDED, ["FIFO"])), "violated"),
    "all clauses are needed": (of(needed=Needed(NEEDED, [])), "holds"),
    "a design is not refuted": (of(unrolled={"x": Refuted("x", Property.FIFO, 3, (), False)}), "unknown"),
    "a design is refuted late": (of(unrolled={"x": Refuted("x", Property.FIFO, 3, FOUND, True)}), "unknown"),
    "a design is refuted": (of(unrolled={"x": Refuted("x", Property.FIFO, 1, FOUND, True)}), "holds"),
    "nothing was asked": (Proof(), "unknown"),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_the_verdict_when(name: str) -> None:
    proof, verdict = VERDICTS[name]
    assert proof.verdict == verdict
    assert bool(proof.problems) == (verdict != "holds" and name != "nothing was asked")


def test_a_property_rests_on_the_invariant() -> None:
    proof = of(undecided={"the invariant": ["Z3: no"]})
    assert {proof.verdict_of(part) for part in PARTS} == {"unknown"}
    proof = of(undecided={"FIFO": ["Z3: no"]})
    assert [part for part in PARTS if proof.verdict_of(part) != "holds"] == ["FIFO"]
