"""One session's side of the exploration: its states, its steps, and what is wrong with them.

A node is a mechanism's session with the abstract session beside it. Its steps
are worked out once, by the plain code of the model, and remembered.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from turngate_model.abstract_session import AbstractSession
from turngate_model.checker.exercised import Witness
from turngate_model.history import Event
from turngate_model.lifecycle import DeclaredState, Successor
from turngate_model.mechanism import INTERNAL, Action, Mechanism, Mode, ModelRun, ModelSession
from turngate_model.properties import Property, Violation

BUDGETED = ("cancel", "cancel_run")
"""Steps of which there are only so many within the bounds, besides accept."""


class Taken(NamedTuple):
    """What came of taking one step."""

    events: tuple[Event, ...]
    violations: tuple[Violation, ...]
    common: int


class Edge(NamedTuple):
    """A step from one node to another."""

    action: Action
    target: int
    common: int
    violations: tuple[Violation, ...]


def take(
    design: type[Mechanism],
    how: ModelSession,
    what: AbstractSession,
    common: int,
    action: Action,
    run: ModelRun | None = None,
    witness: Witness | None = None,
) -> Taken:
    """Take one step in place, let the abstract session judge its events, and return what came of it.

    ``run`` is the run that an accept creates.
    """
    was_quiet = what.quiet
    before = (how.frozen(), common) if was_quiet and action.name == "cancel" else None
    events: list[Event] = []
    violations: list[Violation] = []

    def see(event: Event) -> None:
        if witness:
            witness.event(event, what)
        events.append(event)
        violations.extend(what.observe(event))

    mechanism = design(see)
    mechanism.common = common
    if run:
        mode: Any = action.how
        mechanism.accept(how, run, mode)
    else:
        mechanism.take(how, action)
    if witness:
        witness.step(action, was_quiet, what)
    if before and (how.frozen(), mechanism.common) != before:
        unchanged = "the session was idle: the cancel should have changed nothing"
        violations.append(Violation(Property.IDLE_CANCEL, unchanged))
    return Taken(tuple(events), tuple(violations), mechanism.common)


def at_rest(
    design: type[Mechanism], how: ModelSession, what: AbstractSession, *, refine: bool
) -> Iterator[Violation]:
    """Yield what is wrong with a session that a step has led to."""
    actions = design(_unseen).actions(how, [])
    if not any(action.name in INTERNAL for action in actions):
        yield from what.owed()
        if what.quiet and how.frozen() != ModelSession().frozen():
            yield Violation(Property.NO_RESIDUE, "nothing is in flight: the session should hold nothing")
    if refine:
        yield from _unrefined(how, what)


def _unrefined(how: ModelSession, what: AbstractSession) -> Iterator[Violation]:
    """Yield how a mechanism's state differs from the abstract one that it should map to."""
    turn = how.turns[0] if how.turns else None
    runs = [run.name for run in turn.runs] if turn else []
    covered = {run.name for run in how.accepted if run.seq <= how.mark or run.name in how.singled_out}
    covered.update(run.name for run in how.entering)
    if turn and turn.cancelled:
        covered.update(runs)
    pairs = {
        "accepted": ([run.name for run in how.accepted], what.in_state(DeclaredState.ACCEPTED)),
        "cancel_on_entry": (
            {run.name for run in how.entering},
            set(what.in_state(DeclaredState.CANCEL_ON_ENTRY)),
        ),
        "queued": ([run.name for run in how.queue], what.queue),
        "active": (runs, what.turn),
        "covered": (covered, what.covered),
        "running": (bool(turn and turn.writing == ""), what.running),
        "stranded": (False, bool(what.queue and not what.turn)),
        "foldable": (how.foldable, what.foldable),
        "turns": (len(how.turns), bool(what.turn)),
    }
    for name, (held, abstract) in pairs.items():
        if held != abstract:
            yield Violation(
                Property.REFINES, f"{name}: the mechanism has {held}, the abstract session {abstract}"
            )


class Nodes:
    """The nodes seen so far, and the steps worked out for them."""

    def __init__(self, design: type[Mechanism], declared: Successor, *, refine: bool) -> None:
        self.design = design
        self.refine = refine
        self.witness = Witness()
        self._sessions: list[tuple[ModelSession, AbstractSession]] = []
        self._ids: dict[Any, int] = {}
        self._faults: list[tuple[Violation, ...]] = []
        self._accepts: dict[tuple[int, int, ModelRun, Mode], Edge] = {}
        self.empty = self._intern(ModelSession(), AbstractSession(declared))

    def __len__(self) -> int:
        return len(self._sessions)

    def runs(self, node: int) -> int:
        """Return how many runs a node's session has ever had."""
        return len(self._sessions[node][1].states)

    def known(self, node: int) -> list[str]:
        """Return the names of the runs that a node's session has ever had."""
        return list(self._sessions[node][1].states)

    def how(self, node: int) -> ModelSession:
        """Return the mechanism's session of a node."""
        return self._sessions[node][0]

    def what(self, node: int) -> AbstractSession:
        """Return the abstract session of a node."""
        return self._sessions[node][1]

    def actions(self, node: int) -> list[Action]:
        """Return every step that a node could take next, but accept and close."""
        how, what = self._sessions[node]
        return list(self.design(_unseen).actions(how, what.in_state(DeclaredState.COMPLETE)))

    def step(self, node: int, common: int, action: Action, run: ModelRun | None = None) -> Edge:
        """Return one step of a node."""
        how, what = self._sessions[node][0].copy(), self._sessions[node][1].copy()
        taken = take(self.design, how, what, common, action, run, self.witness)
        target = self._intern(how, what)
        return Edge(action, target, taken.common, (*taken.violations, *self._faults[target]))

    def events(self, node: int, action: Action) -> tuple[Event, ...]:
        """Return what is seen of a step of a node whose runs are named by rank."""
        how, what = self._sessions[node][0].copy(), self._sessions[node][1].copy()
        run = ModelRun(action.run, len(what.states) + 1) if action.name == "accept" else None
        return take(self.design, how, what, 0, action, run).events

    def accept(self, node: int, common: int, run: ModelRun, mode: Mode) -> Edge:
        """Return the step that accepts a run."""
        key = (node, common, run, mode)
        edge = self._accepts.get(key)
        if edge is None:
            edge = self._accepts[key] = self.step(
                node, common, Action("caller", "accept", run.name, mode), run
            )
        return edge

    def _intern(self, how: ModelSession, what: AbstractSession) -> int:
        key = (how.frozen(), what.key())
        node = self._ids.get(key)
        if node is None:
            node = self._ids[key] = len(self._sessions)
            self._sessions.append((how, what))
            self._faults.append(tuple(at_rest(self.design, how, what, refine=self.refine)))
            self.witness.at_rest(what)
        return node


def _unseen(event: Event) -> None:
    raise AssertionError(f"listing the steps of a session must not take one: {event}")


def components(graph: dict[int, list[int]]) -> dict[int, int]:
    """Return the strongly connected component of each node (Tarjan's algorithm, without recursion)."""
    order: dict[int, int] = {}
    low: dict[int, int] = {}
    component: dict[int, int] = {}
    stack: list[int] = []
    for root, from_root in graph.items():
        if root in order:
            continue
        work = [(root, iter(from_root))]
        order[root] = low[root] = len(order)
        stack.append(root)
        while work:
            node, targets = work[-1]
            for target in targets:
                if target not in order:
                    order[target] = low[target] = len(order)
                    stack.append(target)
                    work.append((target, iter(graph.get(target, ()))))
                    break
                if target not in component:
                    low[node] = min(low[node], order[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == order[node]:
                    while component.get(node) is None:
                        component[stack.pop()] = order[node]
    return component
