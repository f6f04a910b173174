"""The conditions: what they are, that both solvers prove them, and that nothing else passes for a proof.

All of them are proved by ``make prove``; here a part is, small enough to be quick.
"""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path

import pytest

from proving import asked, both_solvers
from surroundings import ROOT
from turngate_model import model_only
from turngate_model.proof import INVARIANT, PARTS, ProofThoroughness, prove, prover, write_smt
from turngate_model.proof import solvers as engine
from turngate_model.proof.conditions import THE_INVARIANT, Condition, conditions
from turngate_model.proof.isolation import conditions_of_isolation
from turngate_model.proof.prover import all_conditions, stages_of
from turngate_model.proof.relation import Relation
from turngate_model.proof.smtlib import document
from turngate_model.proof.solvers import SolverMissing, Way, solve
from turngate_model.proof.steps import steps_of
from turngate_model.proof.terms import not_
from turngate_model.properties import Property

CONDITIONS = [*conditions()]


def named(part: str, where: str, says: str) -> Condition:
    return next(
        each for each in CONDITIONS if (each.part_of, each.where) == (part, where) and says in each.says
    )


def test_every_property_and_every_step_has_conditions() -> None:
    of_parts = all_conditions()
    assert (
        list(of_parts)
        == [*PARTS]
        == [
            THE_INVARIANT,
            *(str(each) for each in Property if each not in model_only.PROPERTIES),
            *(f"R-PLC-{nth}" for nth in range(1, 6)),
            "R-LIV-1",
        ]
    )
    assert all(of_parts.values())
    steps = {each.where.split(":")[0] for each in CONDITIONS}
    assert steps == {"at first", "between steps", *map(str, steps_of(Relation))}


def test_every_clause_holds_at_first_and_is_kept_by_every_path() -> None:
    paths = {each.where for each in CONDITIONS} - {"at first", "between steps"}
    for clause in INVARIANT:
        found = {each.where for each in CONDITIONS if each.says == clause.name and each.kind != "follows"}
        assert found == paths | {"at first"}


def test_the_clauses_are_those_of_the_report() -> None:
    report = (ROOT / "docs/explanation/verification.md").read_text(encoding="utf-8")
    rows = [f"| {clause.name} | {clause.sentence} |" for clause in INVARIANT]
    assert "\n".join(rows) in report


def test_the_report_says_how_many_conditions_there_are() -> None:
    report = (ROOT / "docs/explanation/verification.md").read_text(encoding="utf-8")
    assert f"**Result.** {sum(map(len, all_conditions().values())):,} conditions" in report


FIRST = [each for each in CONDITIONS if each.where in ("at first", "between steps")]
OTHERS = [
    each
    for each in (*CONDITIONS, *conditions_of_isolation())
    if each.where not in ("at first", "between steps")
]


def test_both_solvers_prove_what_holds_at_first_and_between_steps() -> None:
    for solver in both_solvers():
        assert {str(each): solve(each, solver).answer for each in FIRST} == dict.fromkeys(
            map(str, FIRST), "proved"
        )


def test_both_solvers_prove_some_of_the_others() -> None:
    some = OTHERS[::40]
    for solver in both_solvers():
        assert [str(each) for each in some if solve(each, solver).answer != "proved"] == []


HANDOFF = named(Property.FIFO, "written: not cancelled meanwhile, one is queued", "overtakes no run")


def test_what_does_not_follow_is_not_proved() -> None:
    for solver in both_solvers():
        asked(solver)
        assert solve(replace(HANDOFF, clauses=()), solver).answer != "proved"
        assert solve(replace(HANDOFF, goal=not_(HANDOFF.goal)), solver).answer != "proved"
        assert solve(HANDOFF, solver).answer == "proved"


class Oracle:
    """A solver that says what it is told to say."""

    name = "oracle"
    version = "0"
    ways: tuple[Way, ...] = (Way(False, {}), Way(True, {}))

    def __init__(self, *says: str) -> None:
        self.says = [*says]

    def check(self, text: str, settings: dict[str, str]) -> str:
        return self.says.pop(0)


@pytest.mark.parametrize(
    ("says", "answer"),
    [
        (("unsat",), "proved"),
        (("unknown", "unsat"), "proved"),
        (("sat", "unsat"), "proved"),  # less was assumed than is known
        (("unknown", "sat"), "refuted"),
        (("unknown", "unknown"), "unknown"),
        (("", "timeout"), "unknown"),
    ],
)
def test_an_answer_is_read_for_what_it_is(says: tuple[str, ...], answer: str) -> None:
    assert solve(HANDOFF, Oracle(*says)).answer == answer


def test_the_text_of_a_condition_is_whole_and_says_what_it_is() -> None:
    text = document(HANDOFF)
    assert text.startswith("; event\n; FIFO: handoff: overtakes no run (written: ")
    assert all(f"; {clause.name}: {clause.sentence}\n" in text for clause in INVARIANT)
    assert text.endswith("(check-sat)\n")
    assert "manned" not in document(HANDOFF, finding=False)


def test_the_conditions_can_be_written_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prover, "conditions_of_isolation", lambda: iter(()))
    monkeypatch.setattr(prover, "conditions", lambda: iter(CONDITIONS[:60]))
    assert write_smt(tmp_path / "out") == 60
    files = sorted((tmp_path / "out").iterdir())
    assert files[0].name == "0001-the-invariant-at-first-accepted.smt2"
    assert files[0].read_text(encoding="utf-8") == document(CONDITIONS[0])


def test_a_solver_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "PACKAGES", {"no_such_solver": "no-such-package"})
    monkeypatch.setattr("importlib.import_module", lambda name: __import__(f"no_{name}"))
    with pytest.raises(
        SolverMissing, match="the proof needs no-such-package; install with: pip install no-such"
    ):
        prove()


@pytest.mark.deep
def test_the_whole_proof_without_the_teeth() -> None:
    both_solvers()
    begun: list[str] = []
    thoroughness = ProofThoroughness((2, 1), None, teeth=False)
    proof = prove(thoroughness, begun.append)
    assert (proof.verdict, proof.problems) == ("holds", [])
    assert len(begun) == stages_of(thoroughness)


def test_ctrl_c_while_z3_thinks_is_for_whoever_asked() -> None:
    both_solvers()
    assert importlib.import_module("z3").get_param("ctrl_c") == "false"
