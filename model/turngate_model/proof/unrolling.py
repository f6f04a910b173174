"""Counterexamples by unrolling: a known-bad design is refuted from the start, step by step.

A failed induction is weak evidence: it also fails where a clause speaks of a
mark that the design does not have. So every design is unrolled instead. Its
relation, over so many runs, is written out once per step, and the solver is
asked for steps that begin where nothing has happened and end in a broken
property. It must find as many steps as the explorer needs, and none with fewer.
What it finds is played on the design in Python, where the abstract session has
to object to the same property.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from turngate_model.abstract_session import AbstractSession
from turngate_model.checker.bounds import NAMES, Bounds
from turngate_model.checker.counterexample import Counterexample
from turngate_model.checker.explorer import Explorer
from turngate_model.checker.steps import Shared, at_rest, take
from turngate_model.designs import DESIGNS, NOT_IN_DESIGNS, Design
from turngate_model.mechanism import Action
from turngate_model.model_session import ModelRun, ModelSession
from turngate_model.proof.comparison import RelationSide, Taken
from turngate_model.proof.consequences import of_state
from turngate_model.proof.flawed import FLAWED
from turngate_model.proof.paths import Path
from turngate_model.proof.relation import Relation
from turngate_model.proof.smtlib import asserted, defined, small_sorts
from turngate_model.proof.solvers import Z3
from turngate_model.proof.steps import Step
from turngate_model.proof.terms import (
    Apply,
    Formula,
    Sort,
    State,
    Value,
    Variable,
    all_of,
    any_of,
    differ,
    equal,
    implies,
    not_,
)
from turngate_model.properties import AnyProperty

_WITHOUT = NOT_IN_DESIGNS | {"again"}
_CANCELS = 9
"""As many as fit: unrolling has no bound on cancels."""


class Refuted(NamedTuple):
    """What became of unrolling a design."""

    design: str
    breaks: AnyProperty
    explored: int
    """The steps that the explorer needs."""
    found: tuple[str, ...]
    """The steps that the solver found, shortest first of all; none, if it found none."""
    replayed: bool
    """Whether the design in Python breaks the same property on these steps."""

    @property
    def bites(self) -> bool:
        """Whether the design is refuted as it should be."""
        return len(self.found) == self.explored and self.replayed


class _Instance(NamedTuple):
    """One path of one step about one run: when it can be taken, what it changes, what it breaks."""

    taken: Taken
    lines: list[str]
    happens: Formula
    breaks: dict[AnyProperty, Formula]


def shortest(design: Design) -> Counterexample:
    """Return the shortest counterexample of the explorer to what the design is known for."""
    bounds = Bounds(3, _CANCELS, 1, _WITHOUT)
    explorer = Explorer(bounds, design.mechanism, name=design.name, claimed=design.breaks)
    example = explorer.run().counterexample
    assert example is not None, design.name
    return example


def refute_by_unrolling(name: str, solver: Z3) -> Refuted:
    """Unroll a design until it breaks what the explorer says, and play what is found in Python."""
    example = shortest(DESIGNS[name])
    runs = sum(step.action.name == "accept" for step in example.steps)
    unrolled = Unrolled(FLAWED[name], runs, example.property)
    found = unrolled.search(solver, len(example.steps))
    told = tuple(" ".join(filter(None, each)) for each in found)
    return Refuted(
        name,
        example.property,
        len(example.steps),
        told,
        bool(found) and _replays(name, example.property, found),
    )


class Unrolled:
    """The relation of a design over so many runs, written out once per step."""

    def __init__(self, kind: type[Relation], runs: int, broken: AnyProperty) -> None:
        self.side = RelationSide(kind, runs, _WITHOUT)
        self.reading = self.side.reading
        self.kind = kind
        self.property = broken
        self.now, self.next = self.reading.world("now"), self.reading.world("next")
        self.instances = [*self._instances()]

    def search(self, solver: Z3, deepest: int) -> list[Taken]:
        """Return the fewest steps that break the property; none, if there are none up to so many."""
        z3 = solver.conversation()
        z3.tell("\n".join((*small_sorts(), *self._declared("now", 0), *self._start())))
        step = "\n".join(self._step())
        goal = asserted(self._broken())
        for depth in range(1, deepest + 1):
            z3.tell("\n".join(self._declared("next", depth)))
            z3.tell(_at(step, depth - 1))
            said = z3.tell(f"(push)\n{_at(goal, depth - 1)}\n(check-sat)")
            if said == "sat":
                return [self.instances[each].taken for each in self._taken(z3, depth)]
            assert said == "unsat", said
            z3.tell("(pop)")
        return []

    def _taken(self, z3: Any, depth: int) -> list[int]:
        answer = z3.tell(f"(get-value ({' '.join(f'step@{at}' for at in range(depth))}))")
        return [int(number) for number in re.findall(r"step@\d+ (\d+)", answer)]

    def _instances(self) -> Iterator[_Instance]:
        for step in self.side.steps:
            for about in self._abouts(step):
                for path in step.paths(self.kind, self.reading, self.now, 0, about):
                    yield self._instance(step, about, path)

    def _abouts(self, step: Step) -> Iterator[tuple[Any, ...]]:
        if step.name == "accept":
            return ((run, run + 1) for run in self.reading.runs)
        return self.side.abouts(step, 0)

    def _instance(self, step: Step, about: tuple[Any, ...], path: Path) -> _Instance:
        changes = []
        for name, table in self.reading.tables(path.world).items():
            changes += [equal(self.next[name](*at), value) for at, value in table.items()]
        in_turn: Formula = True
        if step.name == "accept" and about[0]:
            in_turn = differ(self.now["state"](about[0] - 1), State.UNBORN)
        broken: dict[AnyProperty, Formula] = {}
        for each in path.obligations:
            broken[each.property] = any_of(broken.get(each.property, False), not_(each.holds))
        lines = [defined(each) for each in path.definitions]
        return _Instance(
            self.side.named(step, about), lines, all_of(in_turn, *path.assumes, *changes), broken
        )

    def _declared(self, when: str, at: int) -> Iterator[str]:
        for table in self.reading.tables(self.reading.world(when)).values():
            for each in table.values():
                assert isinstance(each, Variable)
                yield f"(declare-const {each.name.replace(f'@{when}', f'@{at}')} {each.sort})"

    def _start(self) -> Iterator[str]:
        for name, table in self.reading.nothing().items():
            for at, value in table.items():
                yield _at(asserted(equal(self.now[name](*at), value)), 0)

    def _step(self) -> Iterator[str]:
        which = Variable("step@now", Sort.INT)
        yield "(declare-const step@now Int)"
        yield asserted(Apply("<=", (0, which)))
        yield asserted(Apply("<", (which, len(self.instances))))
        for number, instance in enumerate(self.instances):
            yield from instance.lines
            yield asserted(implies(equal(which, number), instance.happens))

    def _broken(self) -> Formula:
        which: Value = Variable("step@now", Sort.INT)
        by_events = [
            all_of(equal(which, number), each.breaks[self.property])
            for number, each in enumerate(self.instances)
            if self.property in each.breaks
        ]
        idle = self.kind(Path(self.reading, self.next, [], []))
        states = of_state(self.reading, self.next, 0, idle.can_go_on(0), self.kind.symbols)
        by_state = [not_(each.holds) for each in states if each.property == self.property]
        return any_of(*by_events, *by_state)


def _at(lines: str, depth: int) -> str:
    """Return a text about now and next as one about two moments."""
    return lines.replace("@now", f"@{depth}").replace("@next", f"@{depth + 1}")


def _replays(name: str, broken: AnyProperty, steps: list[Taken]) -> bool:
    """Play steps on a design in Python, and tell whether the last one breaks the property."""
    design, how, what = DESIGNS[name].mechanism, ModelSession(), AbstractSession()
    found: set[AnyProperty] = set()
    for taken in steps:
        action = Action("caller", taken.name, taken.run, taken.how)
        if taken.name == "resume":
            action = next(
                each
                for each in design(lambda _event: None).actions(how, [])
                if each.name == "resume" and (not taken.run or each.run[:1] == taken.run)
            )
        run = ModelRun(taken.run, NAMES.index(taken.run) + 1) if taken.name == "accept" else None
        came = take(design, how, what, Shared(), action, run)
        found = {each.property for each in (*came.violations, *at_rest(design, how, what, refine=False))}
    return broken in found
