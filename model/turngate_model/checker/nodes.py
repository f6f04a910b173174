"""The states of one session, each worked out once.

A node is a session that the mechanism holds, together with the abstract session beside it. The explorer knows
a node by its number, and a ``Shared`` likewise. The mechanism's own code works out the steps of a node.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from turngate_model.abstract_session import AbstractSession
from turngate_model.checker.exercised import SessionWitness
from turngate_model.checker.steps import JudgedStep, Shared, at, at_rest, take, unseen
from turngate_model.history import Event
from turngate_model.lifecycle import DeclaredState, Successor
from turngate_model.mechanism import Action, Mechanism
from turngate_model.model_session import Mode, ModelRun, ModelSession
from turngate_model.properties import Violation

BUDGETED = {
    "cancel": "cancels",
    "cancel_run": "cancels",
    "hold": "holds",
    "hold_run": "holds",
    "stop": "holds",
    "move": "moves",
    "edit": "moves",
    "send_now": "moves",
}
"""The steps, besides accept, that the bounds allow only so often, each with its bound."""
_MOST_SHARED = 256
"""How many different ``Shared`` fit into a state of the explorer."""


class Edge(NamedTuple):
    """A step from one node to another: the action, where it leads, and what it breaks."""

    action: Action
    target: int
    shared: int
    violations: tuple[Violation, ...]


class Nodes:
    """The nodes seen so far."""

    def __init__(
        self, design: type[Mechanism], declared: Successor, *, refine: bool, turns_limit: int | None = None
    ) -> None:
        self.design = design
        self.refine = refine
        self.witness = SessionWitness()
        self._sessions: list[tuple[ModelSession, AbstractSession]] = []
        self.runs: list[int] = []
        """For each node, how many runs its session has ever had."""
        self._ids: dict[Any, int] = {}
        self._faults: list[tuple[Violation, ...]] = []
        self._shared: list[Shared] = []
        self._shared_ids: dict[Shared, int] = {}
        self._accepts: dict[tuple[int, int, int, ModelRun, Mode], Edge] = {}
        self.empty = self.intern(ModelSession(), AbstractSession(declared, limited=turns_limit is not None))
        """The node of a session in which nothing has happened."""
        self.at_first = self._intern_shared(Shared.at_first(turns_limit))
        """The ``Shared`` of a world in which nothing has happened."""

    def __len__(self) -> int:
        return len(self._sessions)

    def known(self, node: int) -> list[str]:
        """Return the names of the runs that a node's session has ever had."""
        return list(self._sessions[node][1].states)

    def held(self, node: int) -> ModelSession:
        """Return the session that the mechanism holds in a node."""
        return self._sessions[node][0]

    def abstract(self, node: int) -> AbstractSession:
        """Return the abstract session of a node."""
        return self._sessions[node][1]

    def shared(self, shared: int) -> Shared:
        """Return the ``Shared`` of this number."""
        return self._shared[shared]

    def actions(self, node: int, shared: int, session: int) -> list[Action]:
        """Return the steps that could be taken next in a node's session: those of ``Mechanism.actions``."""
        held, abstract = self._sessions[node]
        mechanism = at(self.design, unseen, self._shared[shared], session)
        return list(mechanism.actions(held, abstract.in_state(DeclaredState.COMPLETE)))

    def line_actions(self, node: int) -> list[Action]:
        """Return the steps that hold, resume, move or edit what waits in a node's session."""
        return list(self.design(unseen).line_actions(self._sessions[node][0]))

    def modes(self, node: int, modes: Iterable[Mode]) -> list[Mode]:
        """Return which of these modes an accept in a node's session can have."""
        can_bind = self.design(unseen).can_bind(self._sessions[node][0])
        return [mode for mode in modes if mode != "into" or can_bind]

    def step(self, node: int, shared: int, session: int, action: Action, run: ModelRun | None = None) -> Edge:
        """Take one step of a node and return it as an edge."""
        return self.step_shown(node, shared, session, action, run)[0]

    def step_shown(
        self, node: int, shared: int, session: int, action: Action, run: ModelRun | None = None
    ) -> tuple[Edge, tuple[Event, ...]]:
        """Take one step of a node and return it as an edge, with its events."""
        taken, held, abstract = self._taken(node, shared, session, action, run, self.witness)
        target = self.intern(held, abstract)
        violations = (*taken.violations, *self._faults[target])
        return Edge(action, target, self._intern_shared(taken.shared), violations), taken.events

    def taken(self, node: int, action: Action) -> tuple[JudgedStep, ModelSession, AbstractSession]:
        """Take one step of a node of one session, and return what came of it, before it is a node."""
        return self._taken(node, self.at_first, 0, action, None)

    def events(self, node: int, shared: int, session: int, action: Action) -> tuple[Event, ...]:
        """Return the events of a step of a node. The node's runs must be named by rank."""
        return self._taken(node, shared, session, action, None)[0].events

    def accept(self, node: int, shared: int, session: int, run: ModelRun, mode: Mode) -> Edge:
        """Accept a run in a node's session and return the step as an edge."""
        key = (node, shared, session, run, mode)
        edge = self._accepts.get(key)
        if edge is None:
            action = Action("caller", "accept", run.name, mode)
            edge = self._accepts[key] = self.step(node, shared, session, action, run)
        return edge

    def _taken(
        self,
        node: int,
        shared: int,
        session: int,
        action: Action,
        run: ModelRun | None,
        witness: SessionWitness | None = None,
    ) -> tuple[JudgedStep, ModelSession, AbstractSession]:
        """Take a step on copies of a node's sessions. Return the judgement of the step, and the copies."""
        held, abstract = self._sessions[node][0].copy(), self._sessions[node][1].copy()
        before = self._shared[shared]
        taken = take(self.design, held, abstract, before, action, run, session=session, witness=witness)
        return taken, held, abstract

    def intern(self, held: ModelSession, abstract: AbstractSession) -> int:
        """Return the number of a node. If the node is new, judge it."""
        key = (held.frozen(), abstract.key())
        node = self._ids.get(key)
        if node is None:
            node = self._ids[key] = len(self._sessions)
            self._sessions.append((held, abstract))
            self.runs.append(len(abstract.states))
            self._faults.append(tuple(at_rest(self.design, held, abstract, refine=self.refine)))
            self.witness.at_rest(abstract)
        return node

    def _intern_shared(self, shared: Shared) -> int:
        number = self._shared_ids.setdefault(shared, len(self._shared))
        if number == len(self._shared):
            assert number < _MOST_SHARED, "the sessions share more than a state has room for"
            self._shared.append(shared)
        return number
