"""Generates vectors: every operation in every state at rest, within bounds, each by a shortest program.

The states are those of the mechanism, together with what has become of the complete runs. The designs and
flaws are played along the way: each is followed until it shows something that may not be seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from turngate_model.history import Complete
from turngate_model.mechanism import Mechanism
from turngate_model.properties import Property
from turngate_verify.conform.port import Features
from turngate_verify.conform.programs import RUNS, TAKING_IN, Name, Op, Program
from turngate_verify.vectors.at_rest import RestingWorld, first_outcome, outcomes
from turngate_verify.vectors.flaws import REFUTABLE
from turngate_verify.vectors.orders import judged, orders, visible
from turngate_verify.vectors.vector import Shown, Vector, VectorStep, is_seen, needs_of


class Scope(NamedTuple):
    """Which programs to generate: what the subject has, and how much may happen."""

    two_phase: bool
    messages: bool
    prompts: int
    cancels: int
    sessions: int
    operations: int = 12
    also: tuple[Name, ...] = ()
    """The operations that few dispatchers have. Where one of them is, no turn takes follow-ups in: whether a
    prompt that interrupts can be folded is not asked."""

    @property
    def features(self) -> Features:
        """The features of a subject that can play these programs."""
        able = dict.fromkeys(self.also, True)
        return Features(two_phase=self.two_phase, folds=True, clear=True, messages=self.messages, **able)


FULL = (
    Scope(two_phase=False, messages=False, prompts=3, cancels=2, sessions=1),
    Scope(two_phase=False, messages=False, prompts=4, cancels=1, sessions=1),
    Scope(two_phase=False, messages=False, prompts=3, cancels=1, sessions=2),
    Scope(two_phase=True, messages=False, prompts=3, cancels=2, sessions=1),
    Scope(two_phase=True, messages=False, prompts=2, cancels=1, sessions=2),
    Scope(two_phase=False, messages=False, prompts=3, cancels=2, sessions=1, also=("cancel_run",)),
    Scope(two_phase=True, messages=False, prompts=2, cancels=2, sessions=1, also=("cancel_run",)),
    Scope(two_phase=False, messages=False, prompts=3, cancels=1, sessions=1, also=("interrupt",)),
    Scope(two_phase=True, messages=False, prompts=2, cancels=1, sessions=1, also=("interrupt",)),
    Scope(two_phase=False, messages=False, prompts=3, cancels=1, sessions=1, also=("reject",)),
    Scope(two_phase=True, messages=False, prompts=2, cancels=1, sessions=1, also=("reject",)),
    Scope(two_phase=False, messages=True, prompts=2, cancels=1, sessions=1),
    Scope(two_phase=True, messages=True, prompts=2, cancels=1, sessions=1),
)
"""What the full set covers."""
SHORT = (
    Scope(two_phase=False, messages=False, prompts=3, cancels=1, sessions=1, operations=5),
    Scope(two_phase=False, messages=False, prompts=2, cancels=1, sessions=2, operations=4),
    Scope(two_phase=True, messages=False, prompts=2, cancels=1, sessions=2, operations=5),
    Scope(
        two_phase=False, messages=False, prompts=3, cancels=1, sessions=1, operations=4, also=("cancel_run",)
    ),
    Scope(
        two_phase=False, messages=False, prompts=3, cancels=0, sessions=1, operations=3, also=("interrupt",)
    ),
    Scope(two_phase=False, messages=False, prompts=2, cancels=0, sessions=1, operations=3, also=("reject",)),
    Scope(two_phase=False, messages=True, prompts=2, cancels=1, sessions=1, operations=4),
    Scope(two_phase=True, messages=True, prompts=1, cancels=1, sessions=1, operations=3),
)
"""Where the minimal set is taken from: programs that are short, and enough of them."""


class Trail(NamedTuple):
    """How far a design has come without showing what may not be seen."""

    world: RestingWorld
    script: tuple[Shown, ...] = ()


@dataclass
class Node:
    """A program, and where it leads the mechanism and the designs that it has not refuted."""

    world: RestingWorld = field(default_factory=RestingWorld.at_first)
    steps: tuple[VectorStep, ...] = ()
    script: tuple[Shown, ...] = ()
    lives: frozenset[tuple[str, ...]] = frozenset()
    """What each run has gone through that is complete by now."""
    trails: dict[str, Trail] = field(
        default_factory=lambda: dict.fromkeys(REFUTABLE, Trail(RestingWorld.at_first()))
    )
    refutes: dict[str, Property] = field(default_factory=dict)

    @property
    def program(self) -> Program:
        """The operations."""
        return tuple(step.op for step in self.steps)

    def key(self) -> object:
        """Return a value that is equal for two nodes exactly if the mechanism goes on alike from both."""
        return self.world.frozen(), self.lives, self.cancels

    @property
    def cancels(self) -> int:
        """How many cancels there were, of sessions and of single runs."""
        return sum(step.op.name in ("cancel", "cancel_run") for step in self.steps)


def enabled(node: Node, scope: Scope) -> Iterator[Op]:
    """Yield the operations that make sense in a node."""
    used = sorted({step.op.place for step in node.steps if step.op.name in TAKING_IN}) or [0]
    fresh = [len(used)] if node.world.runs and len(used) < scope.sessions else []
    if node.world.runs < scope.prompts:
        bringing: tuple[Name, ...] = ("accept", *scope.also)
        for name in bringing:
            if name in TAKING_IN:
                yield from (Op(name, RUNS[node.world.runs], place) for place in (*used, *fresh))
    for place in used:
        session = node.world.sessions[place]
        yield from (Op("enter", run.name, place) for run in session.accepted)
        if node.cancels < scope.cancels:
            yield Op("cancel", "", place)
            if "cancel_run" in scope.also:
                yield from (Op("cancel_run", run.name, place) for run in session.in_flight)
        if session.in_flight:
            yield Op("clear", "", place)
        if session.active:
            if not scope.also:
                yield Op("fold", session.active, place)
            yield Op("finish", session.active, place)
            yield Op("fail", session.active, place)


def nodes(scope: Scope) -> Iterator[Node]:
    """Yield a shortest program for every operation in every state within a scope, shortest first."""
    known = set()
    frontier = [Node()]
    for _ in range(scope.operations):
        longer = []
        for node in frontier:
            for op in enabled(node, scope):
                after = grown(node, op, scope)
                yield after
                if after.key() not in known:
                    known.add(after.key())
                    longer.append(after)
        frontier = longer


def grown(node: Node, op: Op, scope: Scope) -> Node:
    """Return the node after one more operation."""
    program = (*node.program, op)
    ways = {
        visible(outcome.events, messages=scope.messages): outcome.world
        for outcome in outcomes(Mechanism, node.world, op, two_phase=scope.two_phase)
    }
    shown, world = next(iter(ways.items()))
    assert len({each.frozen() for each in ways.values()}) == 1, f"{program} leads to more than one state"
    may = {order: None for events in ways for order in orders(program, node.script, events, scope.features)}
    script = (*node.script, shown)
    after = Node(
        world,
        (*node.steps, VectorStep(op, tuple(may))),
        script,
        node.lives | {_life(event.run, script) for event in shown if isinstance(event, Complete)},
        {},
        dict(node.refutes),
    )
    for name, trail in node.trails.items():
        _follow(name, trail, after, scope)
    return after


def _life(run: str, script: tuple[Shown, ...]) -> tuple[str, ...]:
    """Return everything that was seen of a run, in order."""
    return tuple(str(event) for shown in script for event in shown if event.run == run)


def _follow(name: str, trail: Trail, after: Node, scope: Scope) -> None:
    """Have a design perform the last operation of a node. Note what it breaks, or how far it has come."""
    step = after.steps[-1]
    outcome = first_outcome(REFUTABLE[name], trail.world, step.op, two_phase=scope.two_phase)
    shown = visible(outcome.events, messages=scope.messages)
    script = (*trail.script, shown)
    if any(is_seen(should, shown) for should in step.may):
        after.trails[name] = Trail(outcome.world, script)
        return
    after.refutes[name] = _first_broken(name, after.program, Trail(outcome.world, script), scope)


def _first_broken(name: str, program: Program, trail: Trail, scope: Scope) -> Property:
    """Return the property that a design breaks first in a program, or when its turns have come to an end.

    The judge asks what a session owes once no turn runs there. So what is missing may come to light later.
    """
    while True:
        judge = judged(program, trail.script, scope.features)
        if broken := [*judge.violations, *(violation for violation, _ in judge.late)]:
            return Property(broken[0].property)
        running = [
            Op("finish", turn.lead.name, place)
            for place, session in enumerate(trail.world.sessions)
            for turn in session.turns
        ]
        assert running, f"{name} differs in {program}, and the judge has nothing against it"
        outcome = first_outcome(REFUTABLE[name], trail.world, running[0], two_phase=scope.two_phase)
        shown = visible(outcome.events, messages=scope.messages)
        program, trail = (*program, running[0]), Trail(outcome.world, (*trail.script, shown))


def vector_of(node: Node, scope: Scope) -> Vector:
    """Return the vector of a node."""
    judge = judged(node.program, node.script, scope.features)
    guards: set[object] = {*judge.exercised}
    if len({op.place for op in node.program}) > 1:
        guards.add(Property.ISOLATION)
    if judge.idle_cancels:
        guards.add(Property.IDLE_CANCEL)
    return Vector(
        needs_of(node.program, two_phase=scope.two_phase, messages=scope.messages),
        node.steps,
        tuple(each for each in Property if each in guards),
        node.refutes,
    )


def enters_at_once(program: Program) -> bool:
    """Return whether every run enters right after its accept, so that two phases show no more than one."""
    return all(
        first.name not in TAKING_IN or (second.name == "enter" and second.run == first.run)
        for first, second in pairwise((*program, Op("clear", "")))
    )
