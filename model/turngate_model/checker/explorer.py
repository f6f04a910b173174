"""The explorer: it visits every reachable state within bounds, breadth first.

Theory of operation
===================

A state of the world has five parts: one node per session, what the sessions share, how many cancels have been
used, and whether the dispatcher has been closed. The steps of a session depend on its node and on what is
shared, and on nothing else. So the explorer works them out once per node and shared part (``nodes.py``), and
keeps them as a menu. A state is then a single integer, and a step adds to it.

The explorer goes breadth first, so the first counterexample that it finds is a shortest one. It finds
violations in two ways. The abstract session judges the events of every step and the node that the step leads
to. And with a limit on turns, the explorer looks at every state: the turn that the abstract places would call
next must be the one whose step ``call`` can be taken.

Symmetry. Prompts are alike, and so are sessions. With symmetry on, a run is named by its rank among the runs
of its session, and a session gets its first prompt only after the session before it has had one. This leaves
out renamed copies of states and nothing else, because no step compares sequences of different sessions, no
property mentions a name, and the line names sessions only in the order in which their turns became active.
With symmetry off, every prompt keeps its own name and its sequence in the whole dispatcher.

Liveness. Accepts and cancels are used up, so a cycle of states contains neither, and a cycle of states is a
cycle of nodes. The explorer checks three things:

1. No internal steps of a session lead back to the node where they began. Such work would never end.
2. A node without an internal step owes nothing, unless its turn waits for a place.
3. Whenever a place is free, the first turn in line can be called. While no runner is being called, every
   place is free; so as long as runners end, no turn waits for ever.

Together they mean that every run that has entered completes.
"""

from __future__ import annotations

import contextlib
import gc
import resource
import sys
import time
from collections.abc import Callable, Iterator

from turngate_model.abstract_session import AbstractSession
from turngate_model.checker.bounds import NAMES, Bounds, SearchLimits
from turngate_model.checker.counterexample import Way, replay
from turngate_model.checker.cycles import components
from turngate_model.checker.exercised import required
from turngate_model.checker.exploration import Exploration, Progress
from turngate_model.checker.nodes import BUDGETED, Edge, Nodes
from turngate_model.history import Event
from turngate_model.lifecycle import Successor, successor
from turngate_model.mechanism import INTERNAL, Action, Mechanism
from turngate_model.model_session import Mode, ModelRun
from turngate_model.properties import Property, Violation

CLOSE = Action("caller", "close")

# A state of the world as an integer, from its lowest bit: the nodes of three sessions, the number of what
# they share, the cancels used, and one bit for a dispatcher that has been closed.
_NODE_BITS = 24
_NODE = (1 << _NODE_BITS) - 1
_SHIFTS = (0, _NODE_BITS, 2 * _NODE_BITS)
_SHARED_SHIFT = 3 * _NODE_BITS
_USED_SHIFT = _SHARED_SHIFT + 8
_ONE_CANCEL = 1 << _USED_SHIFT
_CLOSED = 1 << (_USED_SHIFT + 8)
_SHARED = 0xFF << _SHARED_SHIFT
_OTHERS = tuple(~(_NODE << shift | _SHARED) for shift in _SHIFTS)
"""For each session, the bits of a state that a step of the session leaves as they are."""

_FREE, _BUDGETED, _ACCEPTS, _CLOSING = range(4)
"""The kinds of menus that a node has."""


class Menu:
    """The steps of one kind that a node can take, with their targets as parts of a state."""

    __slots__ = ("broken", "calls", "edges", "shares", "targets")

    def __init__(self, edges: list[Edge], shared: int) -> None:
        self.edges = edges
        self.targets = tuple(
            [edge.target << shift | edge.shared << _SHARED_SHIFT for edge in edges] for shift in _SHIFTS
        )
        """For each session, what the targets add to the rest of a state."""
        self.broken = [edge for edge in edges if edge.violations]
        self.shares = [edge for edge in edges if edge.shared != shared]
        """The steps that change what the sessions share."""
        self.calls = any(edge.action.name == "call" for edge in edges)


class Explorer:
    """Explores the mechanism, or a known-bad design, within bounds.

    ``name`` is the name of the design, None for the mechanism itself. ``claimed`` are the properties that the
    design is known to break: the explorer stops when one of them is broken.
    """

    def __init__(
        self,
        bounds: Bounds,
        design: type[Mechanism] = Mechanism,
        *,
        name: str | None = None,
        claimed: tuple[Property, ...] = (),
        symmetry: bool = True,
        limits: SearchLimits | None = None,
        declared: Successor = successor,
        progress: Callable[[Progress], None] | None = None,
    ) -> None:
        self.bounds = bounds
        self.design = design
        self.symmetry = symmetry
        self.limits = limits or SearchLimits()
        self.declared = declared
        self.progress = progress
        # A known-bad design need not map to the abstract session: what counts is what its users lose.
        self.nodes = Nodes(design, declared, refine=name is None, turns_limit=bounds.turns_limit)
        self.result = Exploration(bounds, name, claimed)
        self._sessions = range(bounds.sessions)
        self._limited = bounds.turns_limit is not None
        self._modes: list[Mode] = [mode for mode in design.modes if mode not in bounds.without]
        self._may_close = "close" not in bounds.without
        self._menus: dict[int, Menu] = {}
        self._seen: dict[int, int] = {}
        """The states seen so far, each with the state that it was first reached from."""

    def run(self) -> Exploration:
        """Explore until every state is seen, a claimed property is broken, or a limit is reached."""
        with _collector_at_rest():
            return self._run()

    def _run(self) -> Exploration:
        result, began = self.result, time.monotonic()
        initial = self.initial
        self._seen[initial] = initial
        frontier = [initial]
        while frontier and not self._decided():
            found: list[int] = []
            for count, state in enumerate(frontier):
                if count % 512 == 0 and self._out_of_limits(began, len(frontier) - count + len(found)):
                    break
                self._expand(state, found)
            frontier = found
            result.depth += bool(found)
        if not result.counterexamples and not result.gave_up:
            self._check_cycles()
            self._check_witness()
        result.states = len(self._seen)
        result.exercised = frozenset(self.nodes.witness.exercised)
        result.seconds = time.monotonic() - began
        return result

    def steps(self) -> Iterator[tuple[AbstractSession, Action, AbstractSession]]:
        """Yield every step of a session that the exploration has worked out: before, action, after."""
        for key, menu in self._menus.items():
            for edge in menu.edges:
                yield self.nodes.abstract(_node_of(key)), edge.action, self.nodes.abstract(edge.target)

    @property
    def initial(self) -> int:
        """The state in which nothing has happened."""
        nodes = sum(self.nodes.empty << shift for shift in _SHIFTS)
        return nodes | self.nodes.at_first << _SHARED_SHIFT

    def _decided(self) -> bool:
        wanted = self.result.claimed or tuple(Property)
        return bool(self.result.gave_up) or any(each in self.result.counterexamples for each in wanted)

    def _out_of_limits(self, began: float, frontier: int) -> bool:
        seconds = time.monotonic() - began
        if self.progress:
            self.progress(Progress(len(self._seen), frontier, self.result.depth, seconds))
        if seconds > self.limits.seconds:
            self.result.gave_up = f"time ran out after {self.limits.seconds:g} s"
        elif resident_mebibytes() > self.limits.mebibytes:
            self.result.gave_up = f"memory ran out at {self.limits.mebibytes} MiB"
        return bool(self.result.gave_up)

    # One state.

    def nodes_of(self, state: int) -> tuple[int, ...]:
        """Return the nodes of a state, one per session."""
        return tuple([state >> shift & _NODE for shift in _SHIFTS[: self.bounds.sessions]])

    def _expand(self, state: int, found: list[int]) -> None:
        """Take every step that a state has, and add the new states to ``found``."""
        seen, result = self._seen, self.result
        nodes = self.nodes_of(state)
        calls = []
        for session in self._sessions:
            for menu, rest in self._menus_of(state, nodes, session):
                targets = menu.targets[session]
                result.transitions += len(targets)
                for shifted in targets:
                    target = rest + shifted
                    if target not in seen:
                        seen[target] = state
                        found.append(target)
                if menu.broken or menu.shares:
                    self._report(state, nodes, session, menu)
                if menu.calls:
                    calls.append(session)
        if self._may_close and not state & _CLOSED:
            target, broken = self._closed(state, nodes)
            result.transitions += 1
            if target not in seen:
                seen[target] = state
                found.append(target)
            if broken:
                self._violated(state, (0, CLOSE), broken)
        if self._limited:
            self._look_at_calls(state, calls)
        exercised = self.nodes.witness.exercised
        if Property.ISOLATION not in exercised and len(set(nodes) - {self.nodes.empty}) == len(nodes) > 1:
            exercised.add(Property.ISOLATION)

    def _menus_of(self, state: int, nodes: tuple[int, ...], session: int) -> Iterator[tuple[Menu, int]]:
        """Yield the menus of a session in a state, each with the part of the state that its steps keep."""
        node, shared = nodes[session], state >> _SHARED_SHIFT & 0xFF
        rest = state & _OTHERS[session]
        if not state & _CLOSED:
            runs, accepted = self.nodes.runs, 0
            for each in nodes:
                accepted += runs[each]
            if accepted < self.bounds.prompts and not self.symmetry:
                yield Menu(list(self._named_accepts(nodes, session, shared)), shared), rest
            elif accepted < self.bounds.prompts and (session == 0 or runs[nodes[session - 1]]):
                yield self._menu(_ACCEPTS, node, shared, session), rest
        if state >> _USED_SHIFT & 0xFF < self.bounds.cancels:
            yield self._menu(_BUDGETED, node, shared, session), rest + _ONE_CANCEL
        yield self._menu(_FREE, node, shared, session), rest

    def _menu(self, kind: int, node: int, shared: int, session: int) -> Menu:
        """Return a menu of a node. Without a limit on turns it is the same for every session."""
        session = session if self._limited else 0
        key = (shared << _NODE_BITS | node) << 4 | session << 2 | kind
        menu = self._menus.get(key)
        if menu is None:
            menu = self._menus[key] = Menu(list(self._edges(kind, node, shared, session)), shared)
        return menu

    def _edges(self, kind: int, node: int, shared: int, session: int) -> Iterator[Edge]:
        """Work out the steps of one menu."""
        if kind == _ACCEPTS:
            runs = self.nodes.runs[node]
            for mode in self._modes:
                yield self.nodes.accept(node, shared, session, ModelRun(NAMES[runs], runs + 1), mode)
        else:
            actions = [CLOSE] if kind == _CLOSING else self.nodes.actions(node, shared, session)
            for action in actions:
                left_out = action.name in self.bounds.without or action.how in self.bounds.without
                if (action.name in BUDGETED) == (kind == _BUDGETED) and not left_out:
                    yield self.nodes.step(node, shared, session, action)

    def _named_accepts(self, nodes: tuple[int, ...], session: int, shared: int) -> Iterator[Edge]:
        """Work out the accepts of a world in which every prompt keeps its own name."""
        taken = [name for node in nodes for name in self.nodes.known(node)]
        for name in NAMES[: self.bounds.prompts]:
            if name not in taken:
                run = ModelRun(name, len(taken) + 1)
                for mode in self._modes:
                    yield self.nodes.accept(nodes[session], shared, session, run, mode)

    def _closed(self, state: int, nodes: tuple[int, ...]) -> tuple[int, tuple[Violation, ...]]:
        """Shut down: close one session after the other, in one step."""
        shared, violations = state >> _SHARED_SHIFT & 0xFF, list[Violation]()
        for session, node in enumerate(nodes):
            menu = self._menu(_CLOSING, node, shared, session)
            state = state & _OTHERS[session] | menu.targets[session][0]
            shared = state >> _SHARED_SHIFT & 0xFF
            violations += menu.edges[0].violations
        return state | _CLOSED, tuple(violations)

    # Violations.

    def _report(self, state: int, nodes: tuple[int, ...], session: int, menu: Menu) -> None:
        """Report what the steps of a menu break."""
        for edge in menu.broken:
            self._violated(state, (session, edge.action), edge.violations)
        shared = state >> _SHARED_SHIFT & 0xFF
        for edge in menu.shares:
            others = [other for other in self._sessions if other != session]
            if any(self._feels(other, nodes[other], shared, edge.shared) for other in others):
                changed = "the other session should be able to do what it could before, and nothing else"
                violation = Violation(Property.ISOLATION, changed)
                self._violated(state, (session, edge.action), (violation,))

    def _feels(self, session: int, node: int, before: int, after: int) -> bool:
        """Say whether a change of the shared part changes the steps of a session, its calls left aside."""

        def steps(shared: int) -> list[tuple[Action, int]]:
            edges = self._menu(_FREE, node, shared, session).edges
            return [(edge.action, edge.target) for edge in edges if edge.action.name != "call"]

        return steps(before) != steps(after)

    def _look_at_calls(self, state: int, calls: list[int]) -> None:
        """Check that the one turn that can be called is the one that the abstract places would call next."""
        abstract = self.nodes.shared(state >> _SHARED_SHIFT & 0xFF).abstract_places
        assert abstract is not None
        should = [int(each) for each in abstract.due[:1]]
        if calls != should:
            said = f"sessions whose turn can be called: {[each + 1 for each in calls]}"
            wrong = f"{said}, but should be {[each + 1 for each in should]}"
            self._violated(state, None, (Violation(Property.REFINES, wrong),))

    def _violated(
        self, state: int, last: tuple[int, Action] | None, violations: tuple[Violation, ...]
    ) -> None:
        """Keep a counterexample to each property that is broken here for the first time.

        The counterexample leads to the state and then takes the last step, if there is one.
        """
        fresh = {
            each.property: each for each in violations if each.property not in self.result.counterexamples
        }
        if fresh:
            way = self._way(state) + ([last] if last else [])
            refine, limit = self.nodes.refine, self.bounds.turns_limit
            for violation in fresh.values():
                self.result.counterexamples[violation.property] = replay(
                    self.design, self.declared, way, violation, refine=refine, turns_limit=limit
                )

    def _way(self, state: int) -> Way:
        """Return a shortest way to a state."""
        way: Way = []
        while (parent := self._seen[state]) != state:
            way.append(next(step for step, target in self.steps_of(parent) if target == state))
            state = parent
        return way[::-1]

    def steps_of(self, state: int) -> Iterator[tuple[tuple[int, Action], int]]:
        """Yield every step of a state: its session, its action, and the state that it leads to."""
        nodes = self.nodes_of(state)
        for session in self._sessions:
            for menu, rest in self._menus_of(state, nodes, session):
                for edge, target in zip(menu.edges, menu.targets[session], strict=True):
                    yield (session, edge.action), rest + target
        if self._may_close and not state & _CLOSED:
            yield (0, CLOSE), self._closed(state, nodes)[0]

    # For drivers that follow the explorer.

    def sessions_of(self, state: int) -> int:
        """Return the part of a state that tells what its sessions hold and share."""
        return state & (_ONE_CANCEL - 1)

    def events_of(self, state: int, session: int, action: Action) -> list[tuple[int, Event]]:
        """Return the events of a step of a state, each with the number of its session."""
        nodes, shared = self.nodes_of(state), state >> _SHARED_SHIFT & 0xFF
        events: list[tuple[int, Event]] = []
        for each in self._sessions if action == CLOSE else (session,):
            events += [(each, event) for event in self.nodes.events(nodes[each], shared, each, action)]
            if action == CLOSE:
                shared = self._menu(_CLOSING, nodes[each], shared, each).edges[0].shared
        return events

    def calls_of(self, state: int) -> set[tuple[int, str]]:
        """Return the runner calls that go on in a state: the number of the session, and the lead run."""
        return {
            (session, turn.lead.name)
            for session, node in enumerate(self.nodes_of(state))
            for turn in self.nodes.held(node).turns
            if turn.called and turn.writing == ""
        }

    # The whole exploration.

    def _check_cycles(self) -> None:
        """Report internal steps of a session that lead back to where they began: they may never end."""
        steps: dict[int, list[Edge]] = {}
        for key, menu in self._menus.items():
            if key & 3 == _FREE:
                internal = [edge for edge in menu.edges if edge.action.name in INTERNAL]
                steps.setdefault(_node_of(key), []).extend(internal)
        component = components({node: [edge.target for edge in edges] for node, edges in steps.items()})
        for node, edges in steps.items():
            for edge in edges:
                if component[edge.target] == component[node]:
                    state = next(state for state in self._seen if node in self.nodes_of(state))
                    session = self.nodes_of(state).index(node)
                    endless = "this can go on for ever: the run should have been given its RunComplete"
                    violation = Violation(Property.EXACTLY_ONE_COMPLETE, endless)
                    self._violated(state, (session, edge.action), (violation,))
                    return

    def _check_witness(self) -> None:
        """Note what should have happened within these bounds and did not."""
        if self.result.design is None and not self.bounds.without:
            bounds = self.bounds
            wanted = required(bounds.prompts, bounds.cancels, bounds.turns_limit)
            self.result.missed = tuple(sorted(wanted - self.nodes.witness.seen))


def _node_of(key: int) -> int:
    """Return the node that a menu belongs to."""
    return key >> 4 & _NODE


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


def resident_mebibytes() -> float:
    """Return how much memory this process has had at most."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024 * 1024 if sys.platform == "darwin" else 1024)
