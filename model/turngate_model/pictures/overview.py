"""The session overview: the conditions that a session can be in, and the steps between them.

The explorer finds every step of every session that is reachable within small bounds. The overview keeps two
facts about a session: how far its turn is, and whether anything is queued. They make its condition. The
overview shows the steps that lead from one condition to another.
"""

from __future__ import annotations

from typing import NamedTuple

from turngate_model.abstract_session import AbstractSession
from turngate_model.checker.bounds import Bounds
from turngate_model.checker.explorer import Explorer
from turngate_model.lifecycle import DeclaredState
from turngate_model.mechanism import Action

_COLOURS = {"idle": "#ffffff", "running": "#4d9d6a", "unwinding": "#e08e45", "settling": "#9fc5ad"}
_BOUNDS = Bounds(prompts=3, cancels=1, sessions=1)
_ORDER = ["idle", "running", "unwinding", "settling"]


class Overview(NamedTuple):
    """The conditions of a session, each with its colour, and the steps between each two of them."""

    conditions: dict[str, str]
    moves: dict[tuple[str, str], list[str]]


def overview() -> Overview:
    """Return the overview of a session, found by exploring small bounds."""
    explorer = Explorer(_BOUNDS)
    explorer.run()
    moves: dict[tuple[str, str], set[str]] = {}
    for before, action, after in explorer.steps():
        source, target = _condition(before), _condition(after)
        if source != target:
            moves.setdefault((source, target), set()).add(_label(before, action, after))
    names = sorted({name for pair in moves for name in pair}, key=_rank)
    colours = {name: _COLOURS[name.split(",")[0]] for name in names}
    ordered = sorted(moves, key=lambda pair: (_rank(pair[0]), _rank(pair[1])))
    return Overview(colours, {pair: sorted(moves[pair]) for pair in ordered})


def _condition(session: AbstractSession) -> str:
    if not session.turn:
        return "idle"
    covered = session.covered.intersection(session.turn)
    doing = ("unwinding" if covered else "running") if session.running else "settling"
    return f"{doing}, queue" if session.queue else doing


def _rank(condition: str) -> tuple[int, bool]:
    return _ORDER.index(condition.split(",", maxsplit=1)[0]), "queue" in condition


def _label(before: AbstractSession, action: Action, after: AbstractSession) -> str:
    match action.name:
        case "accept" | "cancel" | "close":
            return "cancel, interrupt or shut down"
        case "cancel_run":
            queued = before.states[action.run] is DeclaredState.QUEUED
            return "cancel_run of a queued run" if queued else "cancel_run of the turn"
        case "written":
            return "messages settled: handoff" if after.turn else "messages settled"
        case "enter":
            return f"enter: {after.states[action.run]}"
        case "end":
            return "the runner ends"
        case name:
            return name
