"""The explorer: it visits every reachable state of a model within bounds, breadth first.

Theory of operation
===================

The explorer goes breadth first, so the first counterexample that it finds is a shortest one. The model judges
every step and every state.

Liveness. A run must not only be able to complete, it must complete. The explorer and the models check this
together:

1. No internal steps lead back to the state where they began. Such work would never end.
2. A state without an internal step owes nothing (``judge_state``).

Together they mean that every run that has entered completes.
"""

from __future__ import annotations

import contextlib
import gc
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Generic

from turngate_model.checker.bounds import SearchLimits
from turngate_model.checker.cycles import components
from turngate_model.checker.exploration import Exploration, Progress
from turngate_model.checker.model import BoundsT, Model, StateT, StepT
from turngate_model.properties import AnyProperty, AnyViolation, Property, Violation

_ENDLESS = Violation(
    Property.EXACTLY_ONE_COMPLETE,
    "this can go on for ever: the run should have been given its RunComplete",
)


class Explorer(Generic[BoundsT, StateT, StepT]):
    """Explores a model.

    ``claimed`` are the properties that a known-bad design is known to break: the explorer stops when one of
    them is broken. Without them it stops when any property is broken.
    """

    def __init__(
        self,
        model: Model[BoundsT, StateT, StepT],
        *,
        claimed: tuple[AnyProperty, ...] = (),
        limits: SearchLimits | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> None:
        self.model = model
        self.limits = limits or SearchLimits()
        self.progress = progress
        self.result = Exploration(model.bounds, model.design, claimed, model.properties)
        self._seen: dict[StateT, StateT] = {}
        """The states visited so far, each with the state that it was first reached from."""
        self._internal: dict[StateT, list[StateT]] = {}
        """For each state, where its internal steps lead."""

    def run(self) -> Exploration[BoundsT]:
        """Explore until every state is seen, a claimed property is broken, or a limit is reached."""
        with _collector_at_rest():
            return self._run()

    def _run(self) -> Exploration[BoundsT]:
        result, model, began = self.result, self.model, time.monotonic()
        initial = model.init()
        self._seen[initial] = initial
        frontier = [initial]
        while frontier and not self._decided():
            found: list[StateT] = []
            for count, state in enumerate(frontier):
                if count % 512 == 0 and self._out_of_limits(began, len(frontier) - count + len(found)):
                    break
                self._expand(state, found)
            frontier = found
            result.depth += bool(found)
        if not result.counterexamples and not result.gave_up:
            self._check_cycles()
            if result.design is None and not result.bounds.without:
                result.missed = tuple(sorted(model.required() - model.witness.seen))
        result.states = model.count(self._seen)
        result.exercised = frozenset(model.witness.exercised)
        result.seconds = time.monotonic() - began
        return result

    def _decided(self) -> bool:
        result = self.result
        found = result.counterexamples
        broken = any(each in found for each in result.claimed) if result.claimed else bool(found)
        return bool(result.gave_up) or broken

    def _out_of_limits(self, began: float, frontier: int) -> bool:
        seconds = time.monotonic() - began
        if self.progress:
            states = self.model.count(self._seen)
            self.progress(Progress(states, frontier, self.result.depth, seconds))
        if seconds > self.limits.seconds:
            self.result.gave_up = f"time ran out after {self.limits.seconds:g} s"
        elif _resident_mebibytes() > self.limits.mebibytes:
            self.result.gave_up = f"memory ran out at {self.limits.mebibytes} MiB"
        return bool(self.result.gave_up)

    def _expand(self, state: StateT, found: list[StateT]) -> None:
        """Take every step that a state has, and add the new states to ``found``."""
        model, seen = self.model, self._seen
        steps = list(model.actions(state))
        self.result.transitions += len(steps)
        internal = []
        for step in steps:
            target = model.next_state(state, step)
            if target not in seen and model.admits(target):
                seen[target] = state
                found.append(target)
            if violations := model.judge_step(state, step, target):
                self._violated(state, step, violations)
            if step.internal:
                internal.append(target)
        if internal:
            self._internal[state] = internal
        self._violated(state, None, model.judge_state(state, steps))

    def _check_cycles(self) -> None:
        """Report internal steps that lead back to where they began."""
        component = components(self._internal)
        for state, targets in self._internal.items():
            if all(component[target] != component[state] for target in targets):
                continue
            for step in self.model.actions(state):
                target = self.model.next_state(state, step)
                if step.internal and component[target] == component[state]:
                    self._violated(state, step, (_ENDLESS,))
                    return

    def _violated(self, state: StateT, last: StepT | None, violations: Iterable[AnyViolation]) -> None:
        """Keep a counterexample to each property that is broken here for the first time.

        The counterexample leads to the state and then takes the last step, if there is one.
        """
        for violation in violations:
            if violation.property not in self.result.counterexamples:
                way = self._way(state) + ([] if last is None else [last])
                self.result.counterexamples[violation.property] = self.model.replay(way, violation)

    def _way(self, state: StateT) -> list[StepT]:
        """Return a shortest way to a state."""
        model, way = self.model, list[StepT]()
        while (parent := self._seen[state]) != state:
            way.append(next(s for s in model.actions(parent) if model.next_state(parent, s) == state))
            state = parent
        return way[::-1]


@contextlib.contextmanager
def _collector_at_rest() -> Iterator[None]:
    """Switch the garbage collector off: nearly everything that it would look at is in use."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _resident_mebibytes() -> float:
    """Return how much memory this process has had at most."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024 * 1024 if sys.platform == "darwin" else 1024)
