"""What an exploration reports: how far it is, and what it found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, NamedTuple

from turngate_model.checker.counterexample import Counterexample
from turngate_model.checker.model import BoundsT
from turngate_model.properties import AnyProperty


class Progress(NamedTuple):
    """How far an exploration is."""

    states: int
    frontier: int
    """How many of these states still have to be expanded."""
    depth: int
    seconds: float


@dataclass
class Exploration(Generic[BoundsT]):
    """The result of an exploration."""

    bounds: BoundsT
    design: str | None
    """The name of the known-bad design that was explored, or None for the mechanism itself."""
    claimed: tuple[AnyProperty, ...] = ()
    """The properties that the design is known to break."""
    properties: tuple[AnyProperty, ...] = ()
    """The properties that the model judges."""
    states: int = 0
    transitions: int = 0
    depth: int = 0
    seconds: float = 0.0
    counterexamples: dict[AnyProperty, Counterexample] = field(default_factory=dict)
    """For each property that was broken, a shortest counterexample. Shorter ones come first."""
    gave_up: str = ""
    """Why the explorer gave up; empty if it did not."""
    exercised: frozenset[AnyProperty] = frozenset()
    """The properties that some step tested."""
    missed: tuple[str, ...] = ()
    """What should have happened at least once within these bounds, and did not."""

    @property
    def counterexample(self) -> Counterexample | None:
        """The shortest counterexample to a claimed property, or else to any property."""
        examples = self.counterexamples
        of_interest = [examples[each] for each in self.claimed if each in examples] or list(examples.values())
        return min(of_interest, key=lambda example: len(example.steps), default=None)

    @property
    def unexercised(self) -> tuple[AnyProperty, ...]:
        """The properties that no step tested."""
        return tuple(each for each in self.properties if each not in self.exercised)

    @property
    def verdict(self) -> str:
        """One of holds, violated and unknown. A known-bad design that nothing refutes is unknown."""
        if self.counterexamples:
            return "violated"
        if self.design is not None or self.gave_up or self.missed:
            return "unknown"
        return "unknown" if self.unexercised and not self.bounds.without else "holds"
