"""Evidence that the proof is evidence.

* Every clause is needed: dropped alone, some condition fails. It fails on three
  runs already, where a solver can try everything and shows a state; such a
  state is one of any number of runs too.
* Every path of every step is taken by a state that the explorer reaches, or
  proved to be taken by none. A proof about a path that nobody takes is empty.

The other teeth are in ``unrolling.py`` and ``judging.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from turngate_model.proof.comparison import Compared
from turngate_model.proof.conditions import NUMBER, OK, Condition, SmallStage, Stage, conditions, where
from turngate_model.proof.readings import Finite
from turngate_model.proof.smtlib import asserted, defined, small_sorts
from turngate_model.proof.solvers import Z3, Conversation
from turngate_model.proof.steps import steps_of
from turngate_model.proof.terms import Apply, Sort, Variable, not_

SCOPES = ((0, 0, 0), (0, 0, 1))
"""Three runs of one session; two, and one of another."""


class Needed(NamedTuple):
    """What fails without each clause; and what should not have failed, with all of them."""

    without: dict[str, str]
    failing: list[str]


def needed_clauses(solver: Z3, begin: Callable[[str], None] = lambda _name: None) -> Needed:
    """Drop each clause alone, and find a condition that then fails."""
    needed = Needed({}, [])
    for sessions in SCOPES:
        begin(f"each clause dropped, {len(sessions)} runs of {len(set(sessions))} sessions")
        scope = _Scope(SmallStage(sessions), solver)
        for condition in conditions(scope.stage):
            if condition.kind not in ("first", "unique") and condition.goal is not True:
                scope.try_without(condition, needed)
    return needed


class _Scope:
    """The conditions over so many runs, in one conversation with the solver."""

    def __init__(self, stage: SmallStage, solver: Z3) -> None:
        self.stage = stage
        self.z3: Conversation = solver.conversation()
        reading = stage.reading
        assert isinstance(reading, Finite)
        cells = [
            each
            for table in reading.tables(stage.world).values()
            for each in table.values()
            if isinstance(each, Variable)
        ]
        self.names = {clause.name: f"clause.{clause.name}" for clause, _ in stage.invariant}
        self.z3.tell(
            "\n".join(
                (
                    "(set-option :produce-unsat-assumptions true)",
                    *small_sorts(),
                    *(f"(declare-const {each.name} {each.sort})" for each in (*cells, NUMBER, OK)),
                    *(f"(declare-const {name} Bool)" for name in self.names.values()),
                    *(
                        asserted(Apply("=>", (Variable(self.names[clause.name], Sort.BOOL), formula)))
                        for clause, formula in stage.invariant
                    ),
                )
            )
        )

    def try_without(self, condition: Condition, needed: Needed) -> None:
        """See whether the condition fails without a clause of which no failure is known yet."""
        self.z3.tell(
            "\n".join(
                (
                    "(push)",
                    *(defined(each) for each in condition.definitions),
                    *(asserted(each) for each in condition.assumes),
                    asserted(not_(condition.goal)),
                )
            )
        )
        core = self._core({*self.names})
        if core is None:
            needed.failing.append(str(condition))
        for clause in sorted((core or set()) - needed.without.keys()):
            own = condition.kind == "kept" and condition.says == clause
            if not own and self._core(self.names.keys() - {clause}) is None:
                needed.without[clause] = str(condition)
        self.z3.tell("(pop)")

    def _core(self, clauses: set[str]) -> set[str] | None:
        """Return clauses from which the condition follows; None, if it does not follow from these."""
        assumed = " ".join(self.names[each] for each in clauses)
        said = self.z3.tell(f"(check-sat-assuming ({assumed}))")
        if said == "sat":
            return None
        if said != "unsat":
            raise ValueError(f"no answer to a question about three runs: {said}")
        core = self.z3.tell("(get-unsat-assumptions)").strip("()").split()
        return {name for name, literal in self.names.items() if literal in core}


def paths_not_taken(compared: Compared) -> Iterator[Condition]:
    """Yield, for every path that no state within bounds takes, the condition that none ever does."""
    stage = Stage()
    for step in steps_of(stage.kind):
        for path, constants in stage.paths(step):
            if (str(step), ", ".join(path.trail)) not in compared.paths:
                yield Condition(
                    "never",
                    "the invariant",
                    where(step, path),
                    "nobody takes this path",
                    tuple(path.assumes),
                    False,
                    tuple(path.definitions),
                    constants,
                    stage.invariant,
                )


def number_of_paths() -> int:
    """Return how many paths all steps have together."""
    stage = Stage()
    return sum(1 for step in steps_of(stage.kind) for _ in stage.paths(step))
