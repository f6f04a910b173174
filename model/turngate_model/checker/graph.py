"""The whole graph of one session within small bounds, for people to walk through.

The explorer keeps states as integers and forgets how each step looks. This keeps everything: for every node
the steps that can be taken, their events, and what they break. After a step that breaks something the graph
ends, except along a way that is asked for: from there on nobody promises anything, and some known-bad designs
would go on for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from turngate_model.checker.bounds import NAMES, Bounds
from turngate_model.checker.nodes import BUDGETED, Nodes
from turngate_model.history import Event
from turngate_model.lifecycle import successor
from turngate_model.mechanism import Action, Mechanism
from turngate_model.model_session import ModelRun
from turngate_model.properties import Violation


class TooLarge(Exception):
    """A graph that has more nodes than somebody wants."""


class GraphStep(NamedTuple):
    """A step of a node: where it leads, its events, and what it breaks."""

    target: int
    events: tuple[Event, ...]
    violations: tuple[Violation, ...]


class SessionGraph:
    """Every node of one session that can be reached within bounds, and the steps of each.

    ``steps`` has them by node and action, the node in which nothing has happened being ``first``. A cancel
    can be taken as often as the bounds say, and after ``close`` nothing is accepted: whoever walks has to
    count. With ``most``, TooLarge is raised if there are more nodes than that.
    """

    def __init__(
        self, bounds: Bounds, design: type[Mechanism] = Mechanism, *, most: int | None = None
    ) -> None:
        if bounds.sessions != 1 or bounds.turns_limit is not None:
            raise ValueError("the graph has one session, and no limit on turns")
        self.bounds, self.design, self._most = bounds, design, most
        self.nodes = Nodes(design, successor, refine=design is Mechanism)
        self.first = self.nodes.empty
        self.steps: dict[int, dict[Action, GraphStep]] = {}
        self.states = 0
        """How many states there are, counting the cancels used and whether the dispatcher was closed."""
        self._explore()

    def along(self, way: Iterable[Action]) -> list[int]:
        """Return the nodes of a way from the first, and make sure that its steps are in the graph."""
        node, passed = self.first, [self.first]
        for action in way:
            steps = self.steps.setdefault(node, {})
            if action not in steps:
                steps[action] = self._step(node, action)
            node = steps[action].target
            passed.append(node)
        self.steps.setdefault(node, {})
        return passed

    def _explore(self) -> None:
        start: tuple[int, int, bool] = (self.first, 0, False)
        seen, frontier = {start}, [start]
        for node, used, closed in frontier:
            if self._most is not None and len(self.nodes) > self._most:
                raise TooLarge(f"more than {self._most:,} nodes")
            steps = self.steps.setdefault(node, {})
            for action in self._possible(node, used, closed):
                if action not in steps:
                    steps[action] = self._step(node, action)
                step = steps[action]
                if step.violations:
                    self.steps.setdefault(step.target, {})
                    continue
                reached = (step.target, used + (action.name in BUDGETED), closed or action.name == "close")
                if reached not in seen:
                    seen.add(reached)
                    frontier.append(reached)
        self.states = len(seen)

    def _possible(self, node: int, used: int, closed: bool) -> Iterator[Action]:
        """Yield every step that can be taken in a state."""
        without, runs = self.bounds.without, self.nodes.runs[node]
        if not closed:
            if runs < self.bounds.prompts:
                modes = (mode for mode in self.design.modes if mode not in without)
                yield from (Action("caller", "accept", NAMES[runs], mode) for mode in modes)
            if "close" not in without:
                yield Action("caller", "close")
        for action in self.nodes.actions(node, self.nodes.at_first, 0):
            spent = action.name in BUDGETED and used >= self.bounds.cancels
            if not spent and action.name not in without and action.how not in without:
                yield action

    def _step(self, node: int, action: Action) -> GraphStep:
        shared = self.nodes.at_first
        run = ModelRun(action.run, self.nodes.runs[node] + 1) if action.name == "accept" else None
        edge, events = self.nodes.step_shown(node, shared, 0, action, run)
        return GraphStep(edge.target, events, edge.violations)
