"""The page to play with: every state of one session, for the sound mechanism and for every known-bad design.

The page contains what the explorer computed, and computes nothing itself. Words, outcomes and violations
repeat, so each is stored once under a number, and the whole is compressed.
"""

from __future__ import annotations

import base64
import importlib.metadata
import json
import zlib
from collections.abc import Callable, Hashable
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from turngate_model import DESIGNS, MECHANISMS, NOT_IN_DESIGNS, Design, Mechanism, Property
from turngate_model.checker import Bounds, Exploration
from turngate_model.checker.counterexample import consequences, in_words
from turngate_model.checker.graph import SessionGraph, TooLarge
from turngate_model.mechanism import Action
from turngate_model.pictures import refute
from turngate_model.pictures.ink import COLOURS
from turngate_model.pictures.scenes import SOUND
from turngate_model.pictures.views import of_mechanism
from turngate_verify.report.rendering import render, written

MOST_NODES = 4_000
"""A design with more nodes than this is given fewer prompts: the page must stay small."""
BOUNDS = Bounds(prompts=3, cancels=1, sessions=1)
MOST_PROMPTS, MOST_CANCELS = 3, 2
"""The most prompts and cancels that fit on the page."""

Item = TypeVar("Item", bound=Hashable)


class _Numbered(Generic[Item]):
    """Gives each item a number, always the same one."""

    def __init__(self) -> None:
        self._numbers: dict[Item, int] = {}

    def of(self, item: Item) -> int:
        return self._numbers.setdefault(item, len(self._numbers))

    @property
    def items(self) -> list[Item]:
        return list(self._numbers)


class Space(NamedTuple):
    """The content of the page, and its size."""

    data: dict[str, Any]
    states: int
    transitions: int


class _Tables:
    """What the graphs share."""

    def __init__(self) -> None:
        self.words = _Numbered[str]()
        self.outcomes = _Numbered[tuple[int, ...]]()
        self.broken = _Numbered[tuple[tuple[int, int], ...]]()
        self.actions = _Numbered[Action]()

    def graph(self, graph: SessionGraph) -> dict[str, Any]:
        """Return the nodes and the steps of a graph, in numbers."""
        numbers = {node: number for number, node in enumerate(graph.steps)}
        steps: list[list[int]] = []
        for taken in graph.steps.values():
            flat: list[int] = []
            for action, step in taken.items():
                seen = [consequences((event,)) for event in step.events]
                outcome = self.outcomes.of(tuple(self.words.of(each) for each in seen if each))
                broken = self.broken.of(
                    tuple(
                        (self.words.of(str(each.property)), self.words.of(each.what))
                        for each in step.violations
                    )
                )
                flat += [self.actions.of(action), numbers[step.target], outcome, broken]
            steps.append(flat)
        return {"nodes": [self._node(graph, node) for node in graph.steps], "steps": steps}

    def _node(self, graph: SessionGraph, node: int) -> list[list[int]]:
        """Return what a session looks like: its rows, and the runner calls that go on."""
        view = of_mechanism(graph.design, [(graph.nodes.held(node), graph.nodes.abstract(node))], {}, {})
        rows = [self.words.of(each) for row in view.rows().items() for each in row]
        calls = [each for lead, stopped in view.calls.items() for each in (self.words.of(lead), int(stopped))]
        return [rows, calls]


def space(
    bounds: Bounds = BOUNDS,
    begin: Callable[[str], None] = lambda _name: None,
    refuted: dict[str, Exploration[Bounds]] | None = None,
) -> Space:
    """Compute everything that the page contains.

    ``begin`` is called with the name of each mechanism before it is explored. ``refuted`` has explorations of
    designs that the caller has already; the others are explored here.
    """
    tables = _Tables()
    begin(SOUND)
    sound = SessionGraph(bounds)
    graphs, mechanisms = [sound], [_about(SOUND, "What the dispatcher does.", sound, tables, (), "")]
    for design in DESIGNS.values():
        begin(design.name)
        known = (refuted or {}).get(design.name) or refute(design)
        example = known.counterexample
        assert example is not None, design.name
        way = tuple(step.action for step in example.steps)
        graph = _graph_of(design, bounds)
        graph.along(way)
        graphs.append(graph)
        mechanisms.append(_about(design.name, design.flaw, graph, tables, way, str(example.property)))
    shared = {
        "words": tables.words.items,
        "outcomes": tables.outcomes.items,
        "broken": tables.broken.items,
        "actions": [[*action, in_words(action)] for action in tables.actions.items],
        "mechanisms": mechanisms,
        "sentences": {str(each): each.sentence for each in Property},
        "colours": {str(state): colour for state, colour in COLOURS.items()},
    }
    transitions = sum(len(steps) for graph in graphs for steps in graph.steps.values())
    return Space(shared, sum(graph.states for graph in graphs), transitions)


def _graph_of(design: Design[Property], bounds: Bounds) -> SessionGraph:
    """Return the graph of a design, with as many prompts as the page has room for."""
    bounds = replace(bounds, without=NOT_IN_DESIGNS)
    while bounds.prompts > 1:
        try:
            return SessionGraph(bounds, MECHANISMS[design.name], most=MOST_NODES)
        except TooLarge:
            bounds = replace(bounds, prompts=bounds.prompts - 1)
    return SessionGraph(bounds, MECHANISMS[design.name])


def _about(
    name: str, flaw: str, graph: SessionGraph, tables: _Tables, way: tuple[Action, ...], breaks: str
) -> dict[str, Any]:
    return {
        "name": name if graph.design is not Mechanism else "sound",
        "title": name,
        "flaw": flaw,
        "breaks": breaks,
        "prompts": graph.bounds.prompts,
        "cancels": graph.bounds.cancels,
        "states": graph.states,
        "way": [tables.actions.of(action) for action in way],
        **tables.graph(graph),
    }


def play_page(held: Space, command: str) -> str:
    """Return the page."""
    packed = zlib.compress(json.dumps(held.data, separators=(",", ":")).encode(), 9)
    return render(
        "play.html",
        data=base64.b64encode(packed).decode("ascii"),
        states=f"{held.states:,}",
        transitions=f"{held.transitions:,}",
        mechanisms=[(each["name"], each["title"], each["flaw"]) for each in held.data["mechanisms"]],
        command=command,
        version=f"turngate {importlib.metadata.version('turngate')}",
    )


def held_by(page: str) -> dict[str, Any]:
    """Return the data that a page holds."""
    packed = page.partition('id="space">')[2].partition("<")[0]
    data: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(packed)))
    return data


def write_play(held: Space, command: str, path: Path) -> Path:
    """Write the page and return its path."""
    return written(play_page(held, command), path)
