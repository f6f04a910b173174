"""Draws the lifecycle and the session overview with Graphviz.

This is the only module that imports ``graphviz``. That package writes DOT text. To make SVG of it, the
program ``dot`` must be installed.
"""

from __future__ import annotations

import hashlib
import shutil

import graphviz

from turngate_model.lifecycle import INITIAL, TABLE, TERMINAL, DeclaredState, Row, Trigger
from turngate_model.pictures.overview import Overview
from turngate_model.pictures.sequence import COLOURS

HOW_TO_GET_DOT = (
    "the program dot is missing, so SVG made by it is skipped; get it with 'apt install graphviz', "
    "'brew install graphviz' or from https://graphviz.org/download"
)

_GRAPH = {
    "rankdir": "LR",
    "fontname": "Helvetica",
    "nodesep": "0.55",
    "ranksep": "1.1",
    "bgcolor": "white",
    "pad": "0.3",
}
_NODE = {
    "shape": "box",
    "style": "rounded,filled",
    "fontname": "Helvetica",
    "fontsize": "14",
    "margin": "0.22,0.14",
}
_EDGE = {"fontname": "Helvetica", "fontsize": "11", "color": "#52606d", "fontcolor": "#1f2933"}


def guards(row: Row) -> str:
    """Return the guards of a row in words, for example ``occupied, not covered``."""
    return ", ".join(
        [*(guard.label for guard in row.conditions), *(f"not {guard.label}" for guard in row.unless)]
    )


def lifecycle() -> str:
    """Return the lifecycle as DOT text."""
    graph = graphviz.Digraph("lifecycle", graph_attr=_GRAPH, node_attr=_NODE, edge_attr=_EDGE)
    graph.node(
        "accept", "", shape="circle", width="0.18", style="filled", fillcolor="#1f2933", fixedsize="true"
    )
    for state in DeclaredState:
        graph.node(state.value, fillcolor=COLOURS[state], peripheries="2" if state is TERMINAL else "1")
    graph.edge("accept", INITIAL.value, label="accept")
    for (trigger, source, target), rows in _grouped().items():
        options = " or\\l".join(f"[{guards(row)}]" for row in rows if guards(row))
        graph.edge(
            source.value, target.value, label=f"{trigger}\\l{options}\\l" if options else trigger.value
        )
    return str(graph.source)


def _grouped() -> dict[tuple[Trigger, DeclaredState, DeclaredState], list[Row]]:
    rows: dict[tuple[Trigger, DeclaredState, DeclaredState], list[Row]] = {}
    for row in TABLE:
        rows.setdefault((row.trigger, row.source, row.target), []).append(row)
    return rows


def session(overview: Overview) -> str:
    """Return the session overview as DOT text."""
    attributes = {**_GRAPH, "rankdir": "TB", "ranksep": "0.6", "nodesep": "0.9"}
    graph = graphviz.Digraph("session", graph_attr=attributes, node_attr=_NODE, edge_attr=_EDGE)
    for condition, colour in overview.conditions.items():
        graph.node(condition, fillcolor=colour)
    for (source, target), labels in overview.moves.items():
        graph.edge(source, target, label="".join(f"  {label}\\l" for label in labels))
    return str(graph.source)


def has_dot() -> bool:
    """Say whether the program ``dot`` is installed."""
    return shutil.which("dot") is not None


def svg(dot: str) -> str:
    """Return the SVG that ``dot`` draws from a DOT text, with the mark of that text in it."""
    drawn = str(graphviz.Source(dot).pipe(format="svg", encoding="utf-8"))
    return drawn.replace("<svg ", f"<!-- {mark(dot)} -->\n<svg ", 1)


def mark(dot: str) -> str:
    """Return the mark of a DOT text. It tells whether an SVG was drawn from this very text."""
    return f"made from sha256:{hashlib.sha256(dot.encode()).hexdigest()}"
