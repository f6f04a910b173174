"""The sessions of one process as a model that the explorer can explore.

Theory of operation
===================

A state of the world has five parts: one node per session, what the sessions share, how many cancels, holds
and moves have been used, and whether the dispatcher has been closed. The steps of a session depend on its
node and on what is shared, and on nothing else. So they are worked out once per node and shared part
(``nodes.py``), and kept as a menu. A state is then a single integer, and a step adds to it.

The abstract session judges the events of every step and the node that the step leads to. With a limit on
turns, every state is judged as well: the turn that the abstract places would call next must be the one whose
step ``call`` can be taken. So whenever a place is free, the first turn in line can be called. While no runner
is being called, every place is free; so as long as runners end, no turn waits for ever.

Symmetry. Prompts are alike, and so are sessions. With symmetry on, a run is named by its rank among the runs
of its session, and a session gets its first prompt only after the session before it has had one. This leaves
out renamed copies of states and nothing else, because no step compares sequences of different sessions, no
property mentions a name, and the line names sessions only in the order in which their turns became active.
With symmetry off, every prompt keeps its own name and its sequence in the whole dispatcher.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from turngate_model.abstract_session import AbstractSession
from turngate_model.checker.bounds import NAMES, Bounds
from turngate_model.checker.counterexample import Counterexample, replay
from turngate_model.checker.exercised import SESSION_NEEDS, Witness, required
from turngate_model.checker.nodes import BUDGETED, Edge, Nodes
from turngate_model.history import Event
from turngate_model.lifecycle import Successor, successor
from turngate_model.mechanism import INTERNAL, Action, Mechanism
from turngate_model.model_session import Mode, ModelRun
from turngate_model.properties import AnyProperty, AnyViolation, Property, Violation

CLOSE = Action("caller", "close")

# A state of the world as an integer, from its lowest bit: the nodes of three sessions, the number of what
# they share, the cancels, holds and moves used, and one bit for a dispatcher that has been closed.
_NODE_BITS = 24
_NODE = (1 << _NODE_BITS) - 1
_SHIFTS = (0, _NODE_BITS, 2 * _NODE_BITS)
_SHARED_SHIFT = 3 * _NODE_BITS
_USED_SHIFT = _SHARED_SHIFT + 8
_CLOSED = 1 << (_USED_SHIFT + 24)
_SHARED = 0xFF << _SHARED_SHIFT
_OTHERS = tuple(~(_NODE << shift | _SHARED) for shift in _SHIFTS)
"""For each session, the bits of a state that a step of the session leaves as they are."""

_FREE, _ACCEPTS, _CLOSING, _CANCELS, _HOLDS, _MOVES = range(6)
"""The kinds of steps that a node has. The last three are those that the bounds allow only so often."""
_KIND_OF = {
    name: {"cancels": _CANCELS, "holds": _HOLDS, "moves": _MOVES}[bound] for name, bound in BUDGETED.items()
}
_KIND_BITS = 3
_ONE_OF = {kind: 1 << (_USED_SHIFT + 8 * nth) for nth, kind in enumerate((_CANCELS, _HOLDS, _MOVES))}
"""What a step of a kind adds to a state: it uses up one of the steps that the bounds allow."""


class WorldStep(NamedTuple):
    """A step of one session, and what it does to a state of the world."""

    session: int
    action: Action
    keeps: int
    """The bits of the state that the step leaves as they are."""
    adds: int
    """What the step adds to these bits."""
    violations: tuple[Violation, ...]
    internal: bool


class MemoryModel:
    """The mechanism, or a known-bad design, within bounds.

    ``name`` is the name of the design, None for the mechanism itself.
    """

    def __init__(
        self,
        bounds: Bounds,
        mechanism: type[Mechanism] = Mechanism,
        *,
        name: str | None = None,
        symmetry: bool = True,
        declared: Successor = successor,
    ) -> None:
        self.bounds = bounds
        self.design = name
        untested = {
            *(() if bounds.holds else (Property.HELD,)),
            *(() if bounds.moves else (Property.AS_EDITED,)),
        }
        self.properties: tuple[AnyProperty, ...] = tuple(each for each in Property if each not in untested)
        # A known-bad design need not map to the abstract session: what counts is what its users lose.
        self.nodes = Nodes(mechanism, declared, refine=name is None, turns_limit=bounds.turns_limit)
        self.witness: Witness = self.nodes.witness
        self._mechanism, self._declared, self._symmetry = mechanism, declared, symmetry
        self._sessions = range(bounds.sessions)
        self._limited = bounds.turns_limit is not None
        modes: tuple[Mode, ...] = (*mechanism.modes, *(("into",) if bounds.into else ()))
        self._modes: list[Mode] = [mode for mode in modes if mode not in bounds.without]
        self._in_line = bool(bounds.holds or bounds.moves)
        self._budgets = (
            (_CANCELS, _USED_SHIFT, bounds.cancels),
            (_HOLDS, _USED_SHIFT + 8, bounds.holds),
            (_MOVES, _USED_SHIFT + 16, bounds.moves),
        )
        self._may_close = "close" not in bounds.without
        self._edges: dict[int, list[Edge]] = {}
        self._menus: dict[int, list[WorldStep]] = {}

    # What the explorer asks for.

    def init(self) -> int:
        """Return the state in which nothing has happened."""
        nodes = sum(self.nodes.empty << shift for shift in _SHIFTS)
        return nodes | self.nodes.at_first << _SHARED_SHIFT

    def actions(self, state: int) -> list[WorldStep]:
        """Return every step that can be taken in a state."""
        nodes, shared = self.nodes_of(state), state >> _SHARED_SHIFT & 0xFF
        left = [kind for kind, shift, most in self._budgets if state >> shift & 0xFF < most]
        may_accept, accepted = not state & _CLOSED, 0
        for each in nodes:
            accepted += self.nodes.runs[each]
        may_accept = may_accept and accepted < self.bounds.prompts
        steps: list[WorldStep] = []
        for session, node in enumerate(nodes):
            if may_accept and not self._symmetry:
                steps += [_in(session, edge) for edge in self._named_accepts(nodes, session, shared)]
            elif may_accept and (session == 0 or self.nodes.runs[nodes[session - 1]]):
                steps += self._menu(_ACCEPTS, node, shared, session)
            for kind in left:
                steps += self._menu(kind, node, shared, session)
            steps += self._menu(_FREE, node, shared, session)
        if self._may_close and not state & _CLOSED:
            steps.append(self._closing(state, nodes))
        return steps

    def next_state(self, state: int, step: WorldStep) -> int:
        """Return the state that a step leads to."""
        return (state & step.keeps) + step.adds

    def judge_step(self, state: int, step: WorldStep, target: int) -> tuple[Violation, ...]:
        """Return what a step breaks: in its session, and in the others if it changes what they share."""
        if (state ^ target) & _SHARED and step.action is not CLOSE and self._disturbs(state, step, target):
            changed = "the other session should be able to do what it could before, and nothing else"
            return (*step.violations, Violation(Property.ISOLATION, changed))
        return step.violations

    def judge_state(self, state: int, steps: list[WorldStep]) -> Iterator[Violation]:
        """Yield what is wrong with the calls of a state; note a state that puts ISOLATION to the test."""
        nodes, exercised = self.nodes_of(state), self.witness.exercised
        if Property.ISOLATION not in exercised and len(set(nodes) - {self.nodes.empty}) == len(nodes) > 1:
            exercised.add(Property.ISOLATION)
        if self._limited:
            calls = [*dict.fromkeys(step.session for step in steps if step.action.name == "call")]
            abstract = self.nodes.shared(state >> _SHARED_SHIFT & 0xFF).abstract_places
            assert abstract is not None
            should = [int(each) for each in abstract.due[:1]]
            if calls != should:
                said = f"sessions whose turn can be called: {[each + 1 for each in calls]}"
                yield Violation(Property.REFINES, f"{said}, but should be {[each + 1 for each in should]}")

    def admits(self, state: int) -> bool:
        """Return True: every state is visited."""
        return True

    def count(self, visited: Collection[int]) -> int:
        """Return how many states there are: all of them are different."""
        return len(visited)

    def required(self) -> frozenset[str]:
        """Return what must have happened at least once within the bounds."""
        return required(SESSION_NEEDS, self.bounds)

    def replay(self, way: list[WorldStep], violation: AnyViolation) -> Counterexample:
        """Return the counterexample that takes these steps from the first state."""
        return replay(
            self._mechanism,
            self._declared,
            [(step.session, step.action) for step in way],
            violation,
            refine=self.nodes.refine,
            turns_limit=self.bounds.turns_limit,
        )

    # What a state is made of.

    def nodes_of(self, state: int) -> tuple[int, ...]:
        """Return the nodes of a state, one per session."""
        return tuple([state >> shift & _NODE for shift in _SHIFTS[: self.bounds.sessions]])

    def _menu(self, kind: int, node: int, shared: int, session: int) -> list[WorldStep]:
        """Return the steps of one kind that a session can take."""
        key = _key(kind, node, shared, session)
        menu = self._menus.get(key)
        if menu is None:
            extra = _ONE_OF.get(kind, 0)
            edges = self._edges_of(kind, node, shared, session)
            menu = self._menus[key] = [_in(session, edge, extra) for edge in edges]
        return menu

    def _edges_of(self, kind: int, node: int, shared: int, session: int) -> list[Edge]:
        """Return the edges of one kind that a node has: without a limit, the same in every session."""
        session = session if self._limited else 0
        key = _key(kind, node, shared, session)
        if key not in self._edges:
            self._edges[key] = list(self._worked_out(kind, node, shared, session))
        return self._edges[key]

    def _worked_out(self, kind: int, node: int, shared: int, session: int) -> Iterator[Edge]:
        if kind == _ACCEPTS:
            runs = self.nodes.runs[node]
            for mode in self.nodes.modes(node, self._modes):
                yield self.nodes.accept(node, shared, session, ModelRun(NAMES[runs], runs + 1), mode)
        elif kind == _CLOSING:
            yield self.nodes.step(node, shared, session, CLOSE)
        else:
            actions = self.nodes.actions(node, shared, session)
            actions += self.nodes.line_actions(node) if self._in_line else []
            for action in actions:
                left_out = action.name in self.bounds.without or action.how in self.bounds.without
                if _KIND_OF.get(action.name, _FREE) == kind and not left_out:
                    yield self.nodes.step(node, shared, session, action)

    def _named_accepts(self, nodes: tuple[int, ...], session: int, shared: int) -> Iterator[Edge]:
        """Work out the accepts of a world in which every prompt keeps its own name."""
        taken = [name for node in nodes for name in self.nodes.known(node)]
        for name in NAMES[: self.bounds.prompts]:
            if name not in taken:
                run = ModelRun(name, len(taken) + 1)
                for mode in self.nodes.modes(nodes[session], self._modes):
                    yield self.nodes.accept(nodes[session], shared, session, run, mode)

    def _closing(self, state: int, nodes: tuple[int, ...]) -> WorldStep:
        """Return the step that shuts down: it closes one session after the other."""
        violations = list[Violation]()
        for session, edge in enumerate(self._closing_edges(state, nodes)):
            state = state & _OTHERS[session] | edge.target << _SHIFTS[session] | edge.shared << _SHARED_SHIFT
            violations += edge.violations
        return WorldStep(0, CLOSE, 0, state | _CLOSED, tuple(violations), internal=False)

    def _closing_edges(self, state: int, nodes: tuple[int, ...]) -> Iterator[Edge]:
        shared = state >> _SHARED_SHIFT & 0xFF
        for session, node in enumerate(nodes):
            (edge,) = self._edges_of(_CLOSING, node, shared, session)
            yield edge
            shared = edge.shared

    def _disturbs(self, state: int, step: WorldStep, target: int) -> bool:
        """Return whether a step that changes what is shared changes what another session can do."""
        before, after = state >> _SHARED_SHIFT & 0xFF, target >> _SHARED_SHIFT & 0xFF

        def steps(session: int, node: int, shared: int) -> list[tuple[Action, int]]:
            edges = self._edges_of(_FREE, node, shared, session)
            return [(edge.action, edge.target) for edge in edges if edge.action.name != "call"]

        return any(
            steps(session, node, before) != steps(session, node, after)
            for session, node in enumerate(self.nodes_of(state))
            if session != step.session
        )

    # For drivers and pictures that follow the explorer.

    def steps(self) -> Iterator[tuple[AbstractSession, Action, AbstractSession]]:
        """Yield every step of a session that has been worked out: before, action, after."""
        for key, edges in self._edges.items():
            for edge in edges:
                yield (
                    self.nodes.abstract(key >> 2 + _KIND_BITS & _NODE),
                    edge.action,
                    self.nodes.abstract(edge.target),
                )

    def sessions_of(self, state: int) -> int:
        """Return the part of a state that tells what its sessions hold and share."""
        return state & ((1 << _USED_SHIFT) - 1)

    def events_of(self, state: int, session: int, action: Action) -> list[tuple[int, Event]]:
        """Return the events of a step of a state, each with the number of its session."""
        nodes, shared = self.nodes_of(state), state >> _SHARED_SHIFT & 0xFF
        events: list[tuple[int, Event]] = []
        for each in self._sessions if action == CLOSE else (session,):
            events += [(each, event) for event in self.nodes.events(nodes[each], shared, each, action)]
            if action == CLOSE:
                shared = self._edges_of(_CLOSING, nodes[each], shared, each)[0].shared
        return events

    def calls_of(self, state: int) -> set[tuple[int, str]]:
        """Return the runner calls that go on in a state: the number of the session, and the lead run."""
        return {
            (session, turn.lead.name)
            for session, node in enumerate(self.nodes_of(state))
            for turn in self.nodes.held(node).turns
            if turn.called and turn.writing == ""
        }


def _key(kind: int, node: int, shared: int, session: int) -> int:
    return ((shared << _NODE_BITS | node) << 2 | session) << _KIND_BITS | kind


def _in(session: int, edge: Edge, extra: int = 0) -> WorldStep:
    """Return an edge as a step of one session of the world."""
    adds = (edge.target << _SHIFTS[session] | edge.shared << _SHARED_SHIFT) + extra
    internal = edge.action.name in INTERNAL
    return WorldStep(session, edge.action, _OTHERS[session], adds, edge.violations, internal)
