"""``turngate prove``: what it says of a proof, and that it says what to install."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from proving import a_proof
from turngate_model.proof import INVARIANT, PARTS, Proof, SolverMissing
from turngate_model.proof.agreement import Agreement
from turngate_model.proof.comparison import Compared
from turngate_model.proof.judging import Judged
from turngate_model.proof.prover import Asked
from turngate_model.proof.teeth import Needed
from turngate_model.proof.unrolling import Refuted
from turngate_model.properties import Property
from turngate_verify.cli import prove as command
from turngate_verify.cli import run


def proved() -> Proof:
    proof = a_proof()
    proof.solvers = {"Z3": Asked("1"), "cvc5": Asked("2")}
    proof.tied = {"the mechanism": Compared(None, 3, 4), "idle-gap": Compared("idle-gap", 5, 6)}
    proof.readings = Agreement(9, 8, "")
    proof.judged = Judged(7, "", {"enter: from accepted": True})
    proof.needed = Needed({clause.name: "something" for clause in INVARIANT}, [])
    proof.unrolled = {"idle-gap": Refuted("idle-gap", Property.FIFO, 1, ("accept a",), True)}
    return proof


def test_a_proof_is_printed_in_one_line_per_property(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "prove_all", lambda _effort, _begin, processes: proved())
    assert run(["prove"]) == 0
    said = capsys.readouterr().out
    for part in PARTS:
        (line,) = [line for line in said.splitlines() if line.startswith(f"{part} ")]
        assert "holds" in line
        assert "Z3 1, cvc5 2" in line
    assert "4 steps of 3 session states" in said
    assert "reused-id" in said
    assert "verdict: holds" in said


@pytest.mark.parametrize(
    ("kept", "code", "verdict"), [("undecided", 3, "unknown"), ("refuted", 1, "violated")]
)
def test_what_is_not_proved_is_said(
    kept: str, code: int, verdict: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    proof = proved()
    setattr(proof, kept, {"FIFO": ["Z3: FIFO: overtakes no run (written)"]})
    monkeypatch.setattr(command, "prove_all", lambda _effort, _begin, processes: proof)
    assert run(["prove", "--json"]) == code
    told = json.loads(capsys.readouterr().out)
    assert told["verdict"] == told["properties"]["FIFO"]["verdict"] == verdict
    assert told["properties"]["ONE_TURN"] == {"verdict": "holds", "conditions": 100}
    assert set(told["properties"]) == set(PARTS)
    assert told["invariant"] == {clause.name: clause.sentence for clause in INVARIANT}
    assert told["designs"] == {"idle-gap": {"property": "FIFO", "steps": 1, "explorer": 1}}
    assert len(told["problems"]) == 1
    assert run(["prove"]) == code
    assert "but" in capsys.readouterr().out


def test_a_missing_solver_is_bad_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacking(_effort: object, _begin: object, processes: int) -> Proof:
        raise SolverMissing("cvc5 not installed; get it with: pip install cvc5")

    monkeypatch.setattr(command, "prove_all", lacking)
    assert run(["prove"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "turngate: cvc5 not installed; get it with: pip install cvc5\n"


def test_conditions_are_written_without_a_solver(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "write_smt", lambda folder: len([folder]))
    assert run(["prove", "--smt", str(tmp_path)]) == 0
    assert capsys.readouterr().err.replace("\n", "") == f"wrote 1 condition to {tmp_path}"
