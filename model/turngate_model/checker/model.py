"""What the explorer needs of a model: stateright's ``init``, ``actions``, ``next_state`` and ``properties``.

There are two models. ``MemoryModel`` has sessions in one process; ``DurableModel``, in
``turngate_model.durable``, has processes that share a ledger. The explorer knows neither.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from typing import Protocol, TypeVar

from turngate_model.checker.bounds import Bounds, DurableBounds
from turngate_model.checker.counterexample import Counterexample
from turngate_model.checker.exercised import Witness
from turngate_model.properties import AnyProperty, AnyViolation


class ModelStep(Protocol):
    """A step of a model, as the explorer sees it."""

    @property
    def internal(self) -> bool:
        """Whether the step happens by itself, as long as runners end and stores answer."""
        ...


BoundsT = TypeVar("BoundsT", bound=Bounds | DurableBounds)
StateT = TypeVar("StateT", bound=Hashable)
StepT = TypeVar("StepT", bound=ModelStep)


class Model(Protocol[BoundsT, StateT, StepT]):
    """A transition system with properties."""

    bounds: BoundsT
    design: str | None
    """The name of the known-bad design that is explored, or None for the mechanism itself."""
    properties: tuple[AnyProperty, ...]
    """The properties that the model judges."""
    witness: Witness
    """What has happened at least once."""

    def init(self) -> StateT:
        """Return the state in which nothing has happened."""
        ...

    def actions(self, state: StateT) -> Iterable[StepT]:
        """Return every step that can be taken in a state."""
        ...

    def next_state(self, state: StateT, step: StepT) -> StateT:
        """Return the state that a step leads to."""
        ...

    def judge_step(self, state: StateT, step: StepT, target: StateT) -> tuple[AnyViolation, ...]:
        """Return what a step breaks."""
        ...

    def judge_state(self, state: StateT, steps: list[StepT]) -> Iterable[AnyViolation]:
        """Return what is wrong with a state that has these steps and no others."""
        ...

    def admits(self, state: StateT) -> bool:
        """Return whether the explorer must visit a state that it has not visited yet."""
        ...

    def count(self, visited: Collection[StateT]) -> int:
        """Return how many of the visited states are different."""
        ...

    def required(self) -> frozenset[str]:
        """Return what the witness must have seen at least once within the bounds."""
        ...

    def replay(self, way: list[StepT], violation: AnyViolation) -> Counterexample:
        """Return the counterexample that takes these steps from the first state."""
        ...
