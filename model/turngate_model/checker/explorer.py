"""The explorer: every reachable state within bounds, breadth first.

Theory of operation
===================

A state of the world is two sessions, the memory they have in common, the
cancels used up, and whether the dispatcher has been closed. What one session
can do next depends on that session and the common memory alone, so its steps
are worked out once per node (``_nodes.py``). A state of the world is then a
small integer and a step of it a little arithmetic.

Breadth first, so the first counterexample found is a shortest one. Every
violation is found on a step: the abstract session judges its events, and the
node that it leads to is looked at.

Symmetry. Prompts are alike, and so are sessions. With symmetry on, a run is
named by its rank among the runs of its session, and the first prompt goes to
the first session. No step compares sequences of different sessions and no
property mentions a name, so this leaves out renamed copies and nothing else.
With symmetry off every prompt keeps its own name and dispatcher-wide sequence.

Liveness. Accepts and cancels are used up, so on a cycle neither happens, and a
cycle of the world is a cycle of nodes. Steps of a session's own that come round
to their node again, with no caller doing anything, are work that need not end;
a node without such steps is quiescent, and must owe nothing. Where neither is
wrong, every entered run completes.
"""

from __future__ import annotations

import contextlib
import gc
import resource
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from turngate_model.abstract_session import AbstractSession
from turngate_model.checker.counterexample import Counterexample, Place, replay
from turngate_model.checker.exercised import required
from turngate_model.checker.nodes import BUDGETED, Edge, Nodes, components
from turngate_model.history import Event
from turngate_model.lifecycle import Successor, successor
from turngate_model.mechanism import INTERNAL, Action, Mechanism, Mode, ModelRun
from turngate_model.properties import Property, Violation

NAMES = "abcdefgh"
CLOSE = Action("caller", "close")

_NODE_BITS = 24
_NODE = (1 << _NODE_BITS) - 1
_COMMON_SHIFT = 2 * _NODE_BITS
_USED_SHIFT = _COMMON_SHIFT + 8
_ONE_CANCEL = 1 << _USED_SHIFT
_CLOSED = 1 << (_USED_SHIFT + 8)
_OTHERS = (~(_NODE << _NODE_BITS | 0xFF << _COMMON_SHIFT), ~(_NODE | 0xFF << _COMMON_SHIFT))
"""For each place, what a step there leaves as it is."""


_FREE, _BUDGETED, _ACCEPTS, _CLOSING = range(4)
"""The kinds of steps a node has: each kind is worked out when it is first possible."""


@dataclass(frozen=True)
class Bounds:
    """How much can happen: prompts accepted, cancels issued, sessions there are, operations left out."""

    prompts: int = 3
    cancels: int = 2
    sessions: int = 2
    without: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        for name, least, most in (("prompts", 1, len(NAMES)), ("cancels", 0, 16), ("sessions", 1, 2)):
            if not least <= getattr(self, name) <= most:
                raise ValueError(f"{name} must be from {least} to {most}, not {getattr(self, name)}")


@dataclass(frozen=True)
class Limits:
    """When to give up and say so."""

    seconds: float = 600.0
    mebibytes: int = 2048

    def __post_init__(self) -> None:
        if not (self.seconds > 0 and self.mebibytes > 0):
            raise ValueError("limits of time and memory must be above zero")


HEART = frozenset({"again", "cancel_run", "clear", "close", "fails", "interrupt", "release"})
"""What to leave out to have the heart of the mechanism: accept, enter, cancel, fold, end, settle, handoff."""


class Progress(NamedTuple):
    """How far an exploration is."""

    states: int
    frontier: int
    depth: int
    seconds: float


@dataclass
class Exploration:
    """What an exploration found out."""

    bounds: Bounds
    design: str | None
    claimed: tuple[Property, ...] = ()
    """What the design is said to break."""
    states: int = 0
    transitions: int = 0
    depth: int = 0
    seconds: float = 0.0
    counterexamples: dict[Property, Counterexample] = field(default_factory=dict)
    """The shortest one found of each property, shortest first."""
    gave_up: str = ""
    exercised: frozenset[Property] = frozenset()
    missed: tuple[str, ...] = ()
    """What should have happened at least once within these bounds and did not."""

    @property
    def counterexample(self) -> Counterexample | None:
        """The shortest counterexample to what the design is said to break, else to anything."""
        examples = self.counterexamples
        of_interest = [examples[each] for each in self.claimed if each in examples] or list(examples.values())
        return min(of_interest, key=lambda example: len(example.steps), default=None)

    @property
    def unexercised(self) -> tuple[Property, ...]:
        """The properties that nothing within these bounds put to the test."""
        return tuple(each for each in Property if each not in self.exercised)

    @property
    def verdict(self) -> str:
        """One of holds, violated and unknown; a design that nothing has refuted never holds."""
        if self.counterexamples:
            return "violated"
        if self.design is not None or self.gave_up or self.missed:
            return "unknown"
        return "unknown" if self.unexercised and not self.bounds.without else "holds"


class _Menu:
    """Steps of one node, with their targets shifted for either place in a state."""

    __slots__ = ("broken", "edges", "leaks", "targets")

    def __init__(self, edges: list[Edge], common: int) -> None:
        self.edges = edges
        self.targets = (
            [edge.target << _NODE_BITS | edge.common << _COMMON_SHIFT for edge in edges],
            [edge.target | edge.common << _COMMON_SHIFT for edge in edges],
        )
        self.broken = [edge for edge in edges if edge.violations]
        self.leaks = [edge for edge in edges if edge.common != common]


class Explorer:
    """Explores the mechanism, or a design, within bounds."""

    def __init__(
        self,
        bounds: Bounds,
        design: type[Mechanism] = Mechanism,
        *,
        name: str | None = None,
        claimed: tuple[Property, ...] = (),
        symmetry: bool = True,
        limits: Limits | None = None,
        declared: Successor = successor,
        progress: Callable[[Progress], None] | None = None,
    ) -> None:
        self.bounds = bounds
        self.design = design
        self.symmetry = symmetry
        self.limits = limits or Limits()
        self.declared = declared
        self.progress = progress
        # A design need not map to the abstract session; what it breaks for its users is what counts.
        self.nodes = Nodes(design, declared, refine=name is None)
        self.result = Exploration(bounds, name, claimed)
        self._modes: list[Mode] = [mode for mode in design.modes if mode not in bounds.without]
        self._may_close = "close" not in bounds.without
        self._menus: dict[int, _Menu] = {}
        self._seen: dict[int, int] = {}

    def run(self) -> Exploration:
        """Explore until all is seen, what is claimed is broken, or a limit is reached."""
        with _collector_at_rest():
            return self._run()

    def _run(self) -> Exploration:
        result, began = self.result, time.monotonic()
        initial = self.nodes.empty << _NODE_BITS | self.nodes.empty
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
        """Yield every step of one session that the exploration has worked out."""
        for key, menu in self._menus.items():
            for edge in menu.edges:
                yield self.nodes.what(key >> 2 & _NODE), edge.action, self.nodes.what(edge.target)

    def session_steps(self) -> Iterator[tuple[list[Action], list[tuple[Action, tuple[Event, ...]]]]]:
        """Yield a shortest way to every state of the first session, and the steps it can take there."""
        known: set[int] = set()
        for state in self._seen:
            node = state >> _NODE_BITS & _NODE
            if node not in known:
                known.add(node)
                steps = [action for (place, action), _ in self._steps_of(state) if place == 0]
                path = [action for _, action in self._path(state)]
                yield path, [(action, self.nodes.events(node, action)) for action in steps]

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

    def _expand(self, state: int, found: list[int]) -> None:
        seen, result = self._seen, self.result
        nodes = (state >> _NODE_BITS & _NODE, state & _NODE)
        for place in range(self.bounds.sessions):
            for menu, rest in self._menus_of(state, nodes, place):
                targets = menu.targets[place]
                result.transitions += len(targets)
                for shifted in targets:
                    target = rest + shifted
                    if target not in seen:
                        seen[target] = state
                        found.append(target)
                if menu.broken or menu.leaks:
                    self._report(state, nodes, place, menu)
        if self._may_close and not state & _CLOSED:
            target, broken = self._closed(state, nodes)
            result.transitions += 1
            if target not in seen:
                seen[target] = state
                found.append(target)
            if broken:
                self._violated(state, (0, CLOSE), broken)
        if nodes[0] != nodes[1] and self.nodes.empty not in nodes:
            self.nodes.witness.exercised.add(Property.ISOLATION)

    def _menus_of(self, state: int, nodes: tuple[int, int], place: int) -> Iterator[tuple[_Menu, int]]:
        """Yield the menus of a session that are open in a state, each with what its steps leave as it is."""
        node, common = nodes[place], state >> _COMMON_SHIFT & 0xFF
        rest = state & _OTHERS[place]
        if not state & _CLOSED:
            runs = self.nodes.runs(nodes[0]) + self.nodes.runs(nodes[1])
            if runs < self.bounds.prompts and not self.symmetry:
                yield _Menu(list(self._named_accepts(nodes, place, common)), common), rest
            elif runs < self.bounds.prompts and (runs or place == 0):
                yield self._menu(_ACCEPTS, node, common), rest
        if state >> _USED_SHIFT & 0xFF < self.bounds.cancels:
            yield self._menu(_BUDGETED, node, common), rest + _ONE_CANCEL
        yield self._menu(_FREE, node, common), rest

    def _menu(self, kind: int, node: int, common: int) -> _Menu:
        key = (common << _NODE_BITS | node) << 2 | kind
        menu = self._menus.get(key)
        if menu is None:
            menu = self._menus[key] = _Menu(list(self._edges(kind, node, common)), common)
        return menu

    def _edges(self, kind: int, node: int, common: int) -> Iterator[Edge]:
        """Work out steps of a node: those that are free, those of which there are only so many, accepts."""
        if kind == _ACCEPTS:
            runs = self.nodes.runs(node)
            for mode in self._modes:
                yield self.nodes.accept(node, common, ModelRun(NAMES[runs], runs + 1), mode)
        else:
            actions = [CLOSE] if kind == _CLOSING else self.nodes.actions(node)
            for action in actions:
                left_out = action.name in self.bounds.without or action.how in self.bounds.without
                if (action.name in BUDGETED) == (kind == _BUDGETED) and not left_out:
                    yield self.nodes.step(node, common, action)

    def _named_accepts(self, nodes: tuple[int, int], place: int, common: int) -> Iterator[Edge]:
        """Work out the accepts of a world in which every prompt keeps its own name."""
        taken = [*self.nodes.known(nodes[0]), *self.nodes.known(nodes[1])]
        for name in NAMES[: self.bounds.prompts]:
            if name not in taken:
                for mode in self._modes:
                    yield self.nodes.accept(nodes[place], common, ModelRun(name, len(taken) + 1), mode)

    def _closed(self, state: int, nodes: tuple[int, int]) -> tuple[int, tuple[Violation, ...]]:
        """Shut down, which is one step for all sessions."""
        common = state >> _COMMON_SHIFT & 0xFF
        first, second = (self._menu(_CLOSING, node, common).edges[0] for node in nodes)
        target = state & _OTHERS[0] & _OTHERS[1] | _CLOSED | first.target << _NODE_BITS | second.target
        return target, (*first.violations, *second.violations)

    # Counterexamples.

    def _report(self, state: int, nodes: tuple[int, int], place: int, menu: _Menu) -> None:
        for edge in menu.broken:
            self._violated(state, (place, edge.action), edge.violations)
        for edge in menu.leaks:
            other, common = nodes[1 - place], state >> _COMMON_SHIFT & 0xFF
            before, after = (self._menu(_FREE, other, each).edges for each in (common, edge.common))
            if [each[:2] for each in before] != [each[:2] for each in after]:
                changed = "the other session should be able to do what it could before, and nothing else"
                self._violated(state, (place, edge.action), (Violation(Property.ISOLATION, changed),))

    def _violated(self, state: int, last: tuple[int, Action], violations: tuple[Violation, ...]) -> None:
        fresh = {
            each.property: each for each in violations if each.property not in self.result.counterexamples
        }
        if fresh:
            path = [*self._path(state), last]
            for violation in fresh.values():
                example = replay(self.design, self.declared, path, violation, refine=self.nodes.refine)
                self.result.counterexamples[violation.property] = example

    def _path(self, state: int) -> list[tuple[Place, Action]]:
        steps: list[tuple[Place, Action]] = []
        while (parent := self._seen[state]) != state:
            steps.append(next(step for step, target in self._steps_of(parent) if target == state))
            state = parent
        return steps[::-1]

    def _steps_of(self, state: int) -> Iterator[tuple[tuple[Place, Action], int]]:
        nodes = (state >> _NODE_BITS & _NODE, state & _NODE)
        for place in range(self.bounds.sessions):
            for menu, rest in self._menus_of(state, nodes, place):
                for edge, target in zip(menu.edges, menu.targets[place], strict=True):
                    yield (place, edge.action), rest + target
        if self._may_close and not state & _CLOSED:
            yield (0, CLOSE), self._closed(state, nodes)[0]

    # The whole.

    def _check_cycles(self) -> None:
        """Look for steps of a session's own that come round again by themselves: work that need not end."""
        steps = {
            key >> 2 & _NODE: [edge for edge in menu.edges if edge.action.name in INTERNAL]
            for key, menu in self._menus.items()
            if key & 3 == _FREE
        }
        component = components({node: [edge.target for edge in edges] for node, edges in steps.items()})
        for node, edges in steps.items():
            for edge in edges:
                if component[edge.target] == component[node]:
                    state = next(s for s in self._seen if node in (s >> _NODE_BITS & _NODE, s & _NODE))
                    place = 0 if state >> _NODE_BITS & _NODE == node else 1
                    endless = "this can go on for ever: the run should have been given its RunComplete"
                    self._violated(
                        state, (place, edge.action), (Violation(Property.EXACTLY_ONE_COMPLETE, endless),)
                    )
                    return

    def _check_witness(self) -> None:
        if self.result.design is None and not self.bounds.without:
            missed = required(self.bounds.prompts, self.bounds.cancels) - self.nodes.witness.seen
            self.result.missed = tuple(sorted(missed))


@contextlib.contextmanager
def _collector_at_rest() -> Iterator[None]:
    """Keep the garbage collector from walking, again and again, through states that are all in use."""
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
