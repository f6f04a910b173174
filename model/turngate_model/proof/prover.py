"""The whole proof: every condition, the tie to the mechanism, and the teeth.

Nothing that is not known counts as proved. A condition that one solver refutes,
or a difference between the relation and the mechanism, is *violated*. A
condition that one solver cannot decide, or a tooth that does not bite, is
*unknown*. Only if there is neither does the proof hold.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeAlias

from turngate_model.proof.agreement import Agreement, compare_readings
from turngate_model.proof.comparison import Compared, compare
from turngate_model.proof.conditions import THE_INVARIANT, Condition, conditions
from turngate_model.proof.flawed import FLAWED
from turngate_model.proof.invariant import INVARIANT
from turngate_model.proof.isolation import conditions_of_isolation
from turngate_model.proof.judging import Judged, compare_judges
from turngate_model.proof.progress import LIVENESS
from turngate_model.proof.smtlib import document
from turngate_model.proof.solvers import Z3, Answer, Solver, solve, solvers
from turngate_model.proof.teeth import SCOPES, Needed, needed_clauses, number_of_paths, paths_not_taken
from turngate_model.proof.unrolling import Refuted, refute_by_unrolling
from turngate_model.properties import Property

Begin: TypeAlias = Callable[[str], None]
PARTS = (THE_INVARIANT, *map(str, Property), LIVENESS)
"""What the conditions are parts of, in the order in which they are proved."""


class ProofThoroughness(NamedTuple):
    """How much to do: prompts and cancels of the ties, whether to try the teeth, and to ask both solvers."""

    mechanism: tuple[int, int]
    designs: tuple[int, int] | None
    teeth: bool = True
    second_solver: bool = True


WHOLE = ProofThoroughness((3, 2), (2, 2))
DEEP = ProofThoroughness((3, 2), (3, 1))
QUICK = ProofThoroughness((2, 1), None, teeth=False, second_solver=False)
"""A minute's worth, for ``turngate verify``: every condition by one solver, and the tie in small."""


@dataclass
class Asked:
    """What a solver has said so far."""

    version: str
    answers: Counter[Answer] = field(default_factory=Counter)
    seconds: float = 0.0


@dataclass
class Proof:
    """What was proved, and what speaks for the proof."""

    conditions: Counter[str] = field(default_factory=Counter)
    """How many conditions each part has."""
    solvers: dict[str, Asked] = field(default_factory=dict)
    refuted: dict[str, list[str]] = field(default_factory=dict)
    """For each part, the conditions that do not hold."""
    undecided: dict[str, list[str]] = field(default_factory=dict)
    """For each part, the conditions that a solver could not decide."""
    tied: dict[str, Compared] = field(default_factory=dict)
    """The comparisons with the mechanism and with each design, by name."""
    readings: Agreement | None = None
    judged: Judged | None = None
    needed: Needed | None = None
    unrolled: dict[str, Refuted] = field(default_factory=dict)
    paths: int = 0
    paths_taken: int = 0
    seconds: float = 0.0

    @property
    def differences(self) -> list[str]:
        """Where the relation is not the mechanism, or the judge not the abstract session."""
        ties = [f"{name}: {each.difference}" for name, each in self.tied.items() if each.difference]
        readings = (
            [f"the readings: {self.readings.difference}"]
            if self.readings and self.readings.difference
            else []
        )
        judges = [f"the judge: {self.judged.difference}"] if self.judged and self.judged.difference else []
        failing = [f"three runs: {each}" for each in self.needed.failing] if self.needed else []
        return [*ties, *readings, *judges, *failing]

    @property
    def toothless(self) -> list[str]:
        """The teeth that do not bite."""
        clauses = [each.name for each in INVARIANT if self.needed and each.name not in self.needed.without]
        mistakes = [key for key, found in (self.judged.mistakes.items() if self.judged else ()) if not found]
        designs = [name for name, each in self.unrolled.items() if not each.bites]
        return [
            *(f"nothing fails without the clause {name}" for name in clauses),
            *(f"a mistake in an obligation is not found: {key}" for key in mistakes),
            *(f"{name} is not refuted by unrolling as it should be" for name in designs),
        ]

    @property
    def problems(self) -> list[str]:
        """Everything that keeps the proof from holding."""
        refuted = [f"refuted by {each}" for of_part in self.refuted.values() for each in of_part]
        undecided = [f"not decided by {each}" for of_part in self.undecided.values() for each in of_part]
        return [*refuted, *self.differences, *undecided, *self.toothless]

    def verdict_of(self, part: str) -> str:
        """Return one of holds, violated and unknown; a property rests on the invariant too."""
        parts = {part, THE_INVARIANT}
        if self.differences or parts & self.refuted.keys():
            return "violated"
        if self.toothless or parts & self.undecided.keys() or not self.conditions[part]:
            return "unknown"
        return "holds"

    @property
    def verdict(self) -> str:
        """The verdict on everything."""
        verdicts = {self.verdict_of(part) for part in PARTS}
        return next((each for each in ("violated", "unknown") if each in verdicts), "holds")


def all_conditions() -> dict[str, list[Condition]]:
    """Return every condition of the proof, by the part that it belongs to."""
    found: dict[str, list[Condition]] = {part: [] for part in PARTS}
    for condition in (*conditions(), *conditions_of_isolation()):
        found[condition.part_of].append(condition)
    return found


def stages_of(thoroughness: ProofThoroughness) -> int:
    """Return how many stages a proof has."""
    designs = len(FLAWED) if thoroughness.designs else 0
    teeth = 2 + len(SCOPES) + len(FLAWED) if thoroughness.teeth else 0
    return len(PARTS) + 2 + designs + teeth


def prove(thoroughness: ProofThoroughness = WHOLE, begin: Begin = lambda _name: None) -> Proof:
    """Prove everything; raise SolverMissing if a solver is not installed."""
    first, second = solvers()
    asked: list[Solver] = [first, second] if thoroughness.second_solver else [first]
    proof, began = Proof(), time.monotonic()
    proof.solvers = {each.name: Asked(each.version) for each in asked}
    for part, of_part in all_conditions().items():
        begin(f"{part}, {len(of_part)} conditions")
        _discharge(proof, of_part, asked)
    _tie(proof, thoroughness, begin)
    begin("paths that nobody takes")
    _discharge(proof, paths_not_taken(proof.tied["the mechanism"]), asked)
    if thoroughness.teeth:
        _try_teeth(proof, first, begin)
    proof.seconds = time.monotonic() - began
    return proof


def _discharge(proof: Proof, of_part: Iterable[Condition], asked: list[Solver]) -> None:
    for condition in of_part:
        proof.conditions[condition.part_of] += 1
        for solver in asked:
            answer, seconds = solve(condition, solver)
            record = proof.solvers[solver.name]
            record.answers[answer] += 1
            record.seconds += seconds
            if answer != "proved":
                kept = proof.refuted if answer == "refuted" else proof.undecided
                kept.setdefault(condition.part_of, []).append(f"{solver.name}: {condition}")


def _tie(proof: Proof, thoroughness: ProofThoroughness, begin: Begin) -> None:
    begin("the relation beside the mechanism")
    tied = proof.tied["the mechanism"] = compare(None, *thoroughness.mechanism)
    proof.paths = number_of_paths()
    proof.paths_taken = len(tied.paths)
    if thoroughness.designs:
        for name in FLAWED:
            begin(f"the relation beside {name}")
            proof.tied[name] = compare(name, *thoroughness.designs)


def _try_teeth(proof: Proof, z3: Z3, begin: Begin) -> None:
    begin("the reading for any number of runs beside plain computation")
    proof.readings = compare_readings(z3)
    begin("the judge beside the abstract session, and each obligation broken")
    proof.judged = compare_judges()
    proof.needed = needed_clauses(z3, begin)
    for name in FLAWED:
        begin(f"{name}, unrolled")
        proof.unrolled[name] = refute_by_unrolling(name, z3)


def write_smt(folder: Path) -> int:
    """Write every condition as a file of SMT-LIB, and return how many."""
    folder.mkdir(parents=True, exist_ok=True)
    number = 0
    for of_part in all_conditions().values():
        for condition in of_part:
            number += 1
            name = re.sub(r"\W+", "-", f"{condition.part_of} {condition.where} {condition.says}")
            (folder / f"{number:04}-{name[:100].strip('-')}.smt2").write_text(
                document(condition), encoding="utf-8"
            )
    return number
