"""ISOLATION over two worlds: what a step does to its session depends on that session alone.

That a step leaves every other session as it is, is a condition of every step.
The other half compares two worlds that agree on one session and on nothing
else. Whatever can be done to the session in the one can be done in the other,
by the same branches, and the worlds agree on the session afterwards. So
nothing that happens in another session can be felt in this one.
"""

from __future__ import annotations

from collections.abc import Iterator

from turngate_model.proof.conditions import Condition, Stage, where
from turngate_model.proof.invariant import INVARIANT
from turngate_model.proof.readings import Unbounded
from turngate_model.proof.relation import Relation
from turngate_model.proof.steps import steps_of
from turngate_model.proof.terms import Formula, Individual, Sort, Variable, all_of, equal, implies
from turngate_model.proof.vocabulary import SIGNATURE, Symbol, World
from turngate_model.properties import Property

_NEEDED = tuple(each for each in INVARIANT if each.name == "folded")
"""The one clause that it rests on: a run is folded into a turn of its own session."""


def agreement(
    reading: Unbounded, one: World, other: World, session: Individual
) -> Iterator[tuple[str, Formula]]:
    """Yield, symbol by symbol, that two worlds agree on a session."""
    for name, symbol in SIGNATURE.items():

        def agrees(*arguments: Individual, name: str = name, symbol: Symbol = symbol) -> Formula:
            here = (
                equal(each if sort is Sort.SESSION else reading.session_of(each), session)
                for each, sort in zip(arguments, symbol.arguments, strict=True)
            )
            return implies(all_of(*here), equal(one[name](*arguments), other[name](*arguments)))

        yield name, reading.for_all(agrees, *symbol.arguments)


def conditions_of_isolation(kind: type[Relation] = Relation) -> Iterator[Condition]:
    """Yield the conditions of two worlds, path by path of every step."""
    stage, reading, session = Stage(kind), Unbounded(), Variable("s", Sort.SESSION)
    one, other = reading.world("_1"), reading.world("_2")
    clauses = tuple((each, each.says(reading, world)) for world in (one, other) for each in _NEEDED)
    agree = tuple(formula for _, formula in agreement(reading, one, other, session))
    for step in steps_of(kind):
        about = stage.about(step)
        paths = [*step.paths(kind, reading, one, session, about)]
        twins = step.paths(kind, reading, other, session, about)
        for path, twin in zip(paths, twins, strict=True):
            assert path.trail == twin.trail
            same_runs = tuple(equal(a.run, b.run) for a, b in zip(path.chosen, twin.chosen, strict=True))
            goals = [
                *(("the same step can be taken", each) for each in twin.assumes),
                *(
                    (f"{name} of the session afterwards", formula)
                    for name, formula in agreement(reading, path.world, twin.world, session)
                ),
            ]
            for says, goal in goals:
                yield Condition(
                    "apart",
                    Property.ISOLATION,
                    where(step, path),
                    says,
                    (*agree, *path.assumes, *same_runs),
                    goal,
                    (*path.definitions, *twin.definitions),
                    (session, *about, *path.constants, *twin.constants),
                    clauses,
                    ("_1", "_2"),
                )
