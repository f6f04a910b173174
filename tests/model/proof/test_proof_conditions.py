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
from turngate_model.proof import INVARIANT, PARTS, ProofThoroughness, prove, prover, write_smt
from turngate_model.proof import solvers as engine
from turngate_model.proof.comparison import TieBounds
from turngate_model.proof.conditions import (
    THE_INVARIANT,
    Condition,
    ConditionStage,
    batches,
    conditions,
    symbols_of,
    where,
)
from turngate_model.proof.isolation import conditions_of_isolation
from turngate_model.proof.prover import all_conditions, stages_of
from turngate_model.proof.relation import Relation
from turngate_model.proof.smtlib import document
from turngate_model.proof.solvers import SolverMissing, Way, discharge, solve
from turngate_model.proof.steps import steps_of
from turngate_model.proof.terms import not_, parts_of
from turngate_model.proof.vocabulary import SIGNATURE
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
            *map(str, Property),
            *(f"R-PLC-{nth}" for nth in range(1, 6)),
            "R-LIV-1",
        ]
    )
    assert all(of_parts.values())
    steps = {each.where.split(":")[0] for each in CONDITIONS}
    assert steps == {"at first", "between steps", *map(str, steps_of(Relation))}


def test_every_clause_holds_at_first_and_is_kept_by_every_path_that_changes_what_it_speaks_of() -> None:
    stage, found = ConditionStage(), {(each.where, each.says) for each in CONDITIONS if each.kind == "kept"}
    for step in steps_of(Relation):
        for path, _ in stage.paths(step):
            changed = {name for name in SIGNATURE if path.world[name] is not stage.world[name]}
            for clause in INVARIANT:
                is_asked = (where(step, path), clause.name) in found
                assert is_asked == bool(changed & symbols_of(clause)), clause.name
    assert {each.says for each in CONDITIONS if each.kind == "first"} == {each.name for each in INVARIANT}


def test_the_symbols_of_a_clause_are_those_that_it_asks() -> None:
    clauses = {clause.name: clause for clause in INVARIANT}
    assert symbols_of(clauses["accepted"]) == {"accepted", "state"}
    assert symbols_of(clauses["queue-order"]) == {"queue", "ahead", "rank"}


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
        self.efforts: list[int] = []

    def check(self, text: str, settings: dict[str, str]) -> str:
        return self.says.pop(0)

    def check_each(self, premises: str, goals: list[str], effort: int) -> list[str]:
        self.efforts.append(effort)
        return [self.says.pop(0) for _ in goals]


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


def test_a_condition_is_asked_with_more_effort_until_it_is_proved() -> None:
    parts = len(parts_of(HANDOFF.goal))
    oracle = Oracle(*["unknown"] * parts, *["unsat"] * parts)
    assert discharge([HANDOFF], oracle) == ["proved"]
    assert oracle.efforts == [1, 6]


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
    thoroughness = ProofThoroughness((TieBounds(2, 1),), None, teeth=False)
    proof = prove(thoroughness, begun.append)
    assert (proof.verdict, proof.problems) == ("holds", [])
    assert len(begun) == stages_of(thoroughness)


def test_the_work_is_shared_among_processes_and_comes_to_the_same() -> None:
    jobs = [prover._Job(f"{number}", abs, (-number,)) for number in range(3)]
    for processes in (1, 2):
        begun: list[str] = []
        came = dict(prover._work_through(jobs, begun.append, processes))
        assert (came, sorted(begun)) == ({"0": 0, "1": 1, "2": 2}, ["0", "1", "2"])


def test_what_goes_wrong_in_another_process_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        dict(prover._work_through([prover._Job("wrong", divmod, (1, 0))], lambda _name: None, 2))


SOME = [each for each in OTHERS if each.where.startswith(("hold", "resume_run: busy", "move last"))][::7]


def test_conditions_of_one_batch_are_proved_together_and_a_wrong_one_is_not() -> None:
    batch = max(batches(SOME), key=len)
    wrong = replace(batch[0], goal=not_(batch[0].goal))
    assert len(batch) > 2
    for solver in both_solvers():
        asked(solver)
        assert discharge(batch, solver) == ["proved"] * len(batch)
        assert discharge([wrong, *batch[1:]], solver)[0] != "proved"


def test_ctrl_c_while_z3_thinks_is_for_whoever_asked() -> None:
    both_solvers()
    assert importlib.import_module("z3").get_param("ctrl_c") == "false"


def test_what_z3_is_told_in_one_conversation_does_not_hold_for_the_next() -> None:
    solver, _ = both_solvers()
    z3 = importlib.import_module("z3")
    before = z3.get_param("rlimit")
    solver.conversation().tell("(set-option :rlimit 5)")
    assert z3.get_param("rlimit") == "5" != before
    solver.conversation()
    assert z3.get_param("rlimit") == before


def test_z3_answers_a_question_without_what_it_was_asked_before(monkeypatch: pytest.MonkeyPatch) -> None:
    solver, _ = both_solvers()

    def shared() -> None:
        raise AssertionError("a context that is shared")

    monkeypatch.setattr(importlib.import_module("z3.z3"), "main_ctx", shared)
    assert solver.check("(declare-const a Bool)(assert (and a (not a)))", {"rlimit": "1000"}) == "unsat"
