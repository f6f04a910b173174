"""Processes that share a ledger as a model that the explorer can explore.

Theory of operation
===================

A world is a ledger and the processes that share it (``records.py``). A state is a world, by its number, and
how much of each budget has been used. Three things keep the states few.

The explorer need not visit a world again with more used: whatever can still happen there could happen at the
earlier visit. So it visits a world again only when something is left that was used up at each visit before.

Processes are alike, and a world is kept in one order of its processes.

A save whose answer was lost is remembered as the call that is due once the process learns of it: a delayed
start.

The abstract session judges saves; real time and fences are judged at each step (``judges.py``); a world in
which nothing happens by itself must owe nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import pairwise
from operator import le
from typing import Any, TypeAlias

from turngate_model.checker.bounds import BUDGETS, DurableBounds
from turngate_model.checker.counterexample import Counterexample
from turngate_model.checker.exercised import Witness, required
from turngate_model.durable import judges
from turngate_model.durable.in_words import step_in_words
from turngate_model.durable.mechanism import DurableMechanism, DurableStep
from turngate_model.durable.records import ModelWorld, permuted
from turngate_model.durable.witness import JUDGED, LedgerWitness, needs_of
from turngate_model.properties import AnyProperty, AnyViolation, Property

Used: TypeAlias = tuple[int, ...]
"""How much of each budget has been used."""
Visit: TypeAlias = tuple[int, Used]


class DurableModel:
    """The durable mechanism, or a known-bad design, within bounds.

    ``name`` is the name of the design, None for the mechanism itself.
    """

    def __init__(
        self,
        bounds: DurableBounds,
        mechanism: type[DurableMechanism] = DurableMechanism,
        *,
        name: str | None = None,
        symmetry: bool = True,
    ) -> None:
        self.bounds = bounds
        self.design = name
        self.properties: tuple[AnyProperty, ...] = (
            *JUDGED,
            *((Property.HELD,) if bounds.holds else ()),
            *((Property.AS_EDITED,) if bounds.moves else ()),
        )
        self.mechanism = mechanism(bounds)
        self.sessions = self.mechanism.sessions
        self._watching = LedgerWitness(self.sessions)
        self.witness: Witness = self._watching
        self._symmetry = symmetry
        self._ids: dict[ModelWorld, int] = {}
        self._worlds: list[ModelWorld] = []
        self._faults: list[tuple[AnyViolation, ...]] = []
        """For each world, what is wrong with it at any moment."""
        self._visits: list[list[Used]] = []
        """For each world, how much had been used at each visit."""
        self._left: dict[Used, frozenset[str]] = {}

    def init(self) -> Visit:
        """Return the state in which nothing has happened."""
        state = self._number(self.mechanism.initial()), (0,) * len(BUDGETS)
        self.admits(state)
        return state

    def actions(self, state: Visit) -> Iterator[DurableStep]:
        """Yield every step that can be taken in a state."""
        world, used = state
        left = self._left.get(used)
        if left is None:
            amounts = zip(BUDGETS, used, strict=True)
            left = frozenset(name for name, so_far in amounts if so_far < getattr(self.bounds, name))
            self._left[used] = left
        return self.mechanism.steps(self._worlds[world], left)

    def next_state(self, state: Visit, step: DurableStep) -> Visit:
        """Return the state that a step leads to."""
        used = state[1]
        if step.spends:
            used = tuple(so_far + (name in step.spends) for name, so_far in zip(BUDGETS, used, strict=True))
        return self._number(in_order(step.world)[0] if self._symmetry else step.world), used

    def judge_step(self, state: Visit, step: DurableStep, target: Visit) -> tuple[AnyViolation, ...]:
        """Return what a step breaks, at the step itself and in the world that it leads to."""
        self._watching.step(self._worlds[state[0]], step)
        return step.violations + self._faults[target[0]]

    def judge_state(self, state: Visit, steps: list[DurableStep]) -> Iterable[AnyViolation]:
        """Return what is owed in a state in which nothing happens by itself."""
        if any(step.internal for step in steps):
            return ()
        self._watching.quiescent(self._worlds[state[0]])
        return judges.owed(self.sessions, self._worlds[state[0]])

    def admits(self, state: Visit) -> bool:
        """Return whether a world has to be visited with so much used, and note the visit."""
        world, used = state
        if any(self.covers(before, used) for before in self._visits[world]):
            return False
        self._visits[world].append(used)
        return True

    def covers(self, before: Used, used: Used) -> bool:
        """Return whether a visit with so much used before makes another visit needless."""
        return all(map(le, before, used))

    def count(self, visited: Collection[Visit]) -> int:
        """Return how many worlds were visited: what has been used does not tell two of them apart."""
        return len(self._worlds)

    def required(self) -> frozenset[str]:
        """Return what must have happened at least once within the bounds."""
        return required(needs_of(self.bounds), self.bounds)

    def replay(self, way: list[DurableStep], violation: AnyViolation) -> Counterexample:
        """Return a counterexample that calls each process what it was called at the beginning."""
        called = list(range(1, self.bounds.processes + 1))
        steps = []
        for step in way:
            steps.append(step_in_words(step, self.sessions, called))
            order = in_order(step.world)[1] if self._symmetry else None
            called = [called[place] for place in order] if order else called
        return Counterexample(violation.property, violation.what, tuple(steps))

    def _number(self, world: ModelWorld) -> int:
        """Return the number of a world. If the world is new, judge it."""
        number = self._ids.get(world)
        if number is None:
            number = self._ids[world] = len(self._worlds)
            self._worlds.append(world)
            self._faults.append((*judges.at_this_moment(world), *judges.residue(self.sessions, world)))
            self._visits.append([])
        return number


def in_order(world: ModelWorld) -> tuple[ModelWorld, tuple[int, ...] | None]:
    """Return a world with its processes in order, those that hold most first, and that order if new."""
    looks = [_look(world, place) for place in range(len(world.processes))]
    if all(one >= next_one for one, next_one in pairwise(looks)):
        return world, None
    order = tuple(sorted(range(len(looks)), key=looks.__getitem__, reverse=True))
    return permuted(world, order), order


def _look(world: ModelWorld, place: int) -> tuple[Any, ...]:
    """Return everything about a process but its number."""
    process, ledger, me = world.processes[place], world.ledger, place + 1
    loaded, unanswered = process.loaded, process.unanswered
    return (
        process.up,
        process.given_up,
        ledger.owner == me,
        tuple(holder == me for _, holder in ledger.holders),
        process.calls,
        (loaded.operation, loaded.own) if loaded else (),
        (unanswered.operation or (), unanswered.start or ()) if unanswered else (),
    )
