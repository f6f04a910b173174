"""The explorer of processes: every reachable world within bounds, breadth first.

Theory of operation
===================

A world is a ledger and the processes that share it (``records.py``). Three things keep the worlds
few.

What is used up of the bounds is no part of a world. A world that was met with no more used up at
any earlier moment covers one that is met with more used up: whatever can still happen there could
happen before. So a world is visited again only when something is left that was used up at each
visit before.

Processes are alike, and a world is kept in one order of its processes.

A save whose answer was lost is remembered as the call that is due once the process learns of it: a
delayed start.

Breadth first, so the first counterexample found is a shortest one. Steps are judged as they are
taken, by the abstract session (saves), by real time and by the fence; a world in which nothing
happens of itself must owe nothing; and no steps that happen of themselves may come round again, or
work need not end.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice, pairwise
from operator import le
from typing import Any, NamedTuple

from turngate_model.checker import Progress, SearchLimits
from turngate_model.checker.cycles import components
from turngate_model.checker.explorer import resident_mebibytes
from turngate_model.durable import judges
from turngate_model.durable.counterexample import DurableCounterexample, told
from turngate_model.durable.decisions import BUDGETS, DurableBounds
from turngate_model.durable.exercised import JUDGED, DurableWitness, required
from turngate_model.durable.mechanism import DurableMechanism, DurableStep
from turngate_model.durable.records import World, permuted
from turngate_model.properties import AnyProperty, AnyViolation, Property, Violation


@dataclass
class DurableExploration:
    """What an exploration found out."""

    bounds: DurableBounds
    design: str | None
    claimed: tuple[AnyProperty, ...] = ()
    """What the design is said to break."""
    states: int = 0
    transitions: int = 0
    depth: int = 0
    seconds: float = 0.0
    counterexamples: dict[AnyProperty, DurableCounterexample] = field(default_factory=dict)
    """The shortest one found of each property, shortest first."""
    gave_up: str = ""
    exercised: frozenset[AnyProperty] = frozenset()
    missed: tuple[str, ...] = ()
    """What should have happened at least once within these bounds and did not."""

    @property
    def counterexample(self) -> DurableCounterexample | None:
        """The shortest counterexample to what the design is said to break, else to anything."""
        examples = self.counterexamples
        of_interest = [examples[each] for each in self.claimed if each in examples] or list(examples.values())
        return min(of_interest, key=lambda example: len(example.steps), default=None)

    @property
    def unexercised(self) -> tuple[AnyProperty, ...]:
        """The properties that nothing within these bounds put to the test."""
        return tuple(each for each in JUDGED if each not in self.exercised)

    @property
    def verdict(self) -> str:
        """One of holds, violated and unknown; a design that nothing has refuted never holds."""
        if self.counterexamples:
            return "violated"
        unsure = self.design is not None or self.gave_up or self.missed or self.unexercised
        return "unknown" if unsure else "holds"


class _Visit(NamedTuple):
    """A world met with so much used up, and how it was come to: by which step of which visit."""

    world: World
    used: tuple[int, ...]
    number: int


class DurableExplorer:
    """Explores the durable mechanism, or a design, within bounds."""

    def __init__(
        self,
        bounds: DurableBounds,
        design: type[DurableMechanism] = DurableMechanism,
        *,
        name: str | None = None,
        claimed: tuple[AnyProperty, ...] = (),
        symmetry: bool = True,
        limits: SearchLimits | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> None:
        self.bounds = bounds
        self.mechanism = design(bounds)
        self.sessions = self.mechanism.sessions
        self.symmetry = symmetry
        self.limits = limits or SearchLimits()
        self.progress = progress
        self.witness = DurableWitness(self.sessions)
        self.result = DurableExploration(bounds, name, claimed)
        self._ids: dict[World, int] = {}
        self._used: list[list[tuple[int, ...]]] = []
        """For each world, what was used up at each visit."""
        self._first: list[int] = []
        """For each world, its first visit."""
        self._came: list[tuple[int, int]] = [(-1, -1)]
        """For each visit, the visit before it, and which of its steps was taken."""
        self._internal: dict[int, list[int]] = {}
        """For each world, where the steps lead that happen of themselves."""
        self._lefts: dict[tuple[int, ...], frozenset[str]] = {}

    def run(self) -> DurableExploration:
        """Explore until all is seen, what is claimed is broken, or a limit is reached."""
        was_enabled = gc.isenabled()
        gc.disable()  # it would walk, again and again, through worlds that are all in use
        try:
            return self._run()
        finally:
            if was_enabled:
                gc.enable()

    def _run(self) -> DurableExploration:
        result, began = self.result, time.monotonic()
        initial = self.mechanism.initial()
        self._ids[initial] = 0
        nothing = (0,) * len(BUDGETS)
        self._used.append([nothing])
        self._first.append(0)
        frontier = [_Visit(initial, nothing, 0)]
        while frontier and not self._decided():
            found: list[_Visit] = []
            for count, visit in enumerate(frontier):
                if count % 512 == 0 and self._out_of_limits(began, len(frontier) - count + len(found)):
                    break
                self._expand(visit, found)
            frontier = [] if result.gave_up else found
            result.depth += bool(found)
        if not result.counterexamples and not result.gave_up:
            self._check_cycles()
            if result.design is None:
                result.missed = tuple(sorted(required(self.bounds) - self.witness.seen))
        result.states = len(self._ids)
        result.exercised = self.witness.exercised
        result.seconds = time.monotonic() - began
        return result

    def _decided(self) -> bool:
        claimed, found = self.result.claimed, self.result.counterexamples
        return any(each in found for each in claimed) if claimed else bool(found)

    def _out_of_limits(self, began: float, frontier: int) -> bool:
        result, seconds = self.result, time.monotonic() - began
        if self.progress:
            self.progress(Progress(len(self._ids), frontier, result.depth, seconds))
        if seconds > self.limits.seconds:
            result.gave_up = f"time ran out after {self.limits.seconds:g} s"
        elif resident_mebibytes() > self.limits.mebibytes:
            result.gave_up = f"memory ran out at {self.limits.mebibytes} MiB"
        return bool(result.gave_up)

    # One world after another.

    def _left(self, used: tuple[int, ...]) -> frozenset[str]:
        """Return of what there is something left."""
        if used not in self._lefts:
            amounts = zip(BUDGETS, used, strict=True)
            self._lefts[used] = frozenset(
                name for name, so_far in amounts if so_far < getattr(self.bounds, name)
            )
        return self._lefts[used]

    def _expand(self, visit: _Visit, found: list[_Visit]) -> None:
        quiescent = True
        here = self._ids[visit.world]
        internal: list[int] = []
        for nth, step in enumerate(self.mechanism.steps(visit.world, self._left(visit.used))):
            self.result.transitions += 1
            self.witness.step(visit.world, step)
            target, is_new = self._meet(visit, nth, step, found)
            if step.violations:
                self._violated(visit.number, nth, step.violations)
            if is_new:
                at_once = (*judges.at_this_moment(step.world), *judges.residue(self.sessions, step.world))
                if at_once:
                    self._violated(visit.number, nth, at_once)
            if step.internal:
                quiescent = False
                internal.append(target)
        if quiescent:
            self.witness.quiescent(visit.world)
            self._violated(visit.number, None, judges.owed(self.sessions, visit.world))
        elif here not in self._internal:
            self._internal[here] = internal

    def _meet(self, visit: _Visit, nth: int, step: DurableStep, found: list[_Visit]) -> tuple[int, bool]:
        """Return the number of the world that a step leads to, and whether it is to be visited."""
        used = visit.used
        if step.spends:
            used = tuple(so_far + (name in step.spends) for name, so_far in zip(BUDGETS, used, strict=True))
        world = in_order(step.world)[0] if self.symmetry else step.world
        target = self._ids.get(world)
        if target is None:
            target = self._ids[world] = len(self._ids)
            self._used.append([used])
            self._first.append(len(self._came))
        elif any(self.covers(before, used) for before in self._used[target]):
            return target, False
        else:
            self._used[target].append(used)
        found.append(_Visit(world, used, len(self._came)))
        self._came.append((visit.number, nth))
        return target, True

    def covers(self, before: tuple[int, ...], used: tuple[int, ...]) -> bool:
        """Tell whether a visit with so much used up before makes another visit needless."""
        return all(map(le, before, used))

    def _check_cycles(self) -> None:
        """Look for steps that happen of themselves and come round again: work that need not end."""
        component = components(self._internal)
        for world, targets in self._internal.items():
            if any(component[target] == component[world] for target in targets):
                endless = "this can go on for ever: the run should have been given its RunComplete"
                self._violated(self._first[world], None, [Violation(Property.EXACTLY_ONE_COMPLETE, endless)])
                return

    # Counterexamples.

    def _violated(self, visit: int, nth: int | None, violations: Iterable[AnyViolation]) -> None:
        for violation in violations:
            if violation.property not in self.result.counterexamples:
                steps = tuple(self._told(visit, nth))
                example = DurableCounterexample(violation.property, violation.what, steps)
                self.result.counterexamples[violation.property] = example

    def _told(self, visit: int, last: int | None) -> Iterator[str]:
        """Take the steps to a visit again, calling each process what it was called at the beginning."""
        path = [] if last is None else [last]
        while visit > 0:
            visit, nth = self._came[visit]
            path.insert(0, nth)
        world, used = self.mechanism.initial(), (0,) * len(BUDGETS)
        called = list(range(1, self.bounds.processes + 1))
        for nth in path:
            step = next(islice(self.mechanism.steps(world, self._left(used)), nth, None))
            yield told(step, self.sessions, called[step.who - 1] if step.who else 0)
            used = tuple(so_far + (name in step.spends) for name, so_far in zip(BUDGETS, used, strict=True))
            world, order = in_order(step.world) if self.symmetry else (step.world, None)
            called = [called[place] for place in order] if order else called


def in_order(world: World) -> tuple[World, tuple[int, ...] | None]:
    """Return a world with its processes in order, those that hold most first, and that order if new."""
    looks = [_look(world, place) for place in range(len(world.processes))]
    if all(one >= next_one for one, next_one in pairwise(looks)):
        return world, None
    order = tuple(sorted(range(len(looks)), key=looks.__getitem__, reverse=True))
    return permuted(world, order), order


def _look(world: World, place: int) -> tuple[Any, ...]:
    """Return how a process looks to somebody who does not know its number."""
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
