"""The paths of a step: symbolic execution.

A step of the mechanism has branches. Where the condition of one is not known,
both ways are walked, each with what it assumes. A path collects what it
assumes, what its events oblige it to, and the world that it leads to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias

from turngate_model.proof.readings import Definition, Reading
from turngate_model.proof.terms import Formula, Individual, Variable, not_
from turngate_model.proof.vocabulary import World
from turngate_model.properties import Property


class Obligation(NamedTuple):
    """What must hold at a moment of a path, or a property is broken."""

    property: Property
    key: str
    """Which obligation of the judge this is: the event, and what it says."""
    holds: Formula
    assumed: int
    """How many assumptions of the path had been made by then."""


class Chosen(NamedTuple):
    """A run that a path has chosen: of which it is true, and why there is one."""

    run: Individual
    holds: Callable[[Individual], Formula]
    why: str
    assumed: int
    trail: tuple[str, ...]
    """The branches taken before."""


Given: TypeAlias = dict[tuple[tuple[str, ...], int], Individual]
"""Runs that were chosen elsewhere: after which branches, and as which one."""


class _Infeasible(Exception):
    """The path assumes what is false: nobody takes it."""


class Path:
    """One way through a step."""

    def __init__(
        self,
        reading: Reading,
        world: World,
        decisions: list[int],
        pending: list[list[int]],
        given: Given | None = None,
    ) -> None:
        self.reading = reading
        self.world = dict(world)
        self.definitions: list[Definition] = []
        self.assumes: list[Formula] = []
        self.obligations: list[Obligation] = []
        self.chosen: list[Chosen] = []
        self.trail: list[str] = []
        """The branches taken, in words."""
        self._decisions = decisions
        self._at = 0
        self._pending = pending
        self._given = given

    def __getitem__(self, name: str) -> Callable[..., Any]:
        """Return what a symbol answers at this moment of the path."""
        return self.world[name]

    def assume(self, formula: Formula) -> None:
        """Go on only where the formula holds."""
        if formula is False:
            raise _Infeasible
        if formula is not True:
            self.assumes.append(formula)

    def oblige(self, broken: Property, key: str, holds: Formula) -> None:
        """Note what must hold here."""
        self.obligations.append(Obligation(broken, key, holds, len(self.assumes)))

    def branch(self, condition: Formula, label: str) -> bool:
        """Do as ``if`` does; where the condition is not known, both ways are walked."""
        taken = condition if isinstance(condition, bool) else self._decide(2) == 0
        self.trail.append(label if taken else f"not {label}")
        self.assume(condition if taken else not_(condition))
        return taken

    def choose(self, hint: str, holds: Callable[[Individual], Formula], why: str) -> Individual:
        """Return a run of which the formula holds, and say why there is one; each such run is tried."""
        if self._given is not None:
            run = self._given[tuple(self.trail), len(self.chosen)]
        else:
            candidates = self.reading.candidates(hint, holds)
            if not candidates:
                raise _Infeasible
            run = candidates[self._decide(len(candidates)) if len(candidates) > 1 else 0]
        self.chosen.append(Chosen(run, holds, why, len(self.assumes), tuple(self.trail)))
        self.assume(holds(run))
        return run

    def give(self, name: str, answer: Callable[..., Any]) -> None:
        """Give a symbol new answers: from the old ones, and of whom it is asked."""
        old = self.world[name]
        self.world[name] = self.reading.define(
            name, lambda *arguments: answer(old, *arguments), self.definitions
        )

    @property
    def constants(self) -> tuple[Variable, ...]:
        """The names that the path has introduced for runs."""
        return tuple(each.run for each in self.chosen if isinstance(each.run, Variable))

    def _decide(self, ways: int) -> int:
        if self._at == len(self._decisions):
            self._pending += [[*self._decisions, other] for other in range(1, ways)]
            self._decisions = [*self._decisions, 0]
        self._at += 1
        return self._decisions[self._at - 1]


def walk(
    reading: Reading,
    world: World,
    take: Callable[[Path], None],
    given: Given | None = None,
) -> Iterator[Path]:
    """Yield every path of a step, whoever takes it; ``given`` has the runs that are to be chosen."""
    pending: list[list[int]] = [[]]
    while pending:
        path = Path(reading, world, pending.pop(), pending, given)
        try:
            take(path)
        except _Infeasible:
            continue
        yield path
