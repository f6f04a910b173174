"""Scenes: what a sequence diagram shows, before it is drawn.

A scene has a lane for the callers, one for the session and one for each run. It comes from steps that the
mechanism has really taken. So a picture cannot show anything that the mechanism does not do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from turngate_model.abstract_session import AbstractSession
from turngate_model.checker.counterexample import Counterexample, Step, consequences, told
from turngate_model.checker.steps import Shared, at_rest, take
from turngate_model.history import Accept, Complete, Enter, Event, Fold, Handoff
from turngate_model.lifecycle import DeclaredState, successor
from turngate_model.mechanism import Action, Mechanism
from turngate_model.model_session import ModelRun, ModelSession

CALLERS, SESSION = "callers", "session"


class Arrow(NamedTuple):
    """A message from one lane to another."""

    source: str
    target: str
    label: str
    reply: bool = False


class Note(NamedTuple):
    """A step of the session itself, or of its store."""

    label: str


class Moves(NamedTuple):
    """A run moves to another state."""

    run: str
    state: DeclaredState


Line = Arrow | Note | Moves


class Panel(NamedTuple):
    """One history, drawn from top to bottom."""

    heading: str
    lines: tuple[Line, ...]
    verdict: str = ""
    """The property that is broken at the end, and why; empty if none is."""

    @property
    def runs(self) -> list[str]:
        """The runs that take part, in the order of acceptance."""
        return list(dict.fromkeys(line.run for line in self.lines if isinstance(line, Moves)))


class Scene(NamedTuple):
    """A picture: a title, and one history or several that differ in the order of two steps."""

    name: str
    title: str
    panels: tuple[Panel, ...]


def of_counterexample(name: str, flaw: str, example: Counterexample) -> Scene:
    """Return the picture of a counterexample."""
    verdict = f"{example.property}: {example.what}"
    return Scene(name, f"{name}. {flaw}", (Panel("", tuple(_lines(example.steps)), verdict),))


def _lines(steps: tuple[Step, ...]) -> Iterator[Line]:
    for step in steps:
        label = told(step.action)
        if step.action.actor == "caller":
            yield Arrow(CALLERS, SESSION, label)
        elif step.action.actor == "runner":
            yield Arrow(step.action.run, SESSION, label)
        else:
            yield Note(label)
        for event in step.events:
            yield from _seen(event)


def _seen(event: Event) -> Iterator[Line]:
    match event:
        case Accept(run, _):
            yield Moves(run, DeclaredState.ACCEPTED)
        case Enter(run, state):
            yield Moves(run, state)
            yield Arrow(SESSION, run, str(state), reply=True)
        case Handoff(run) | Fold(run, _):
            yield Moves(run, DeclaredState.ACTIVE)
            yield Arrow(SESSION, run, consequences((event,)), reply=True)
        case Complete(run, _, _):
            yield Moves(run, DeclaredState.COMPLETE)
            yield Arrow(SESSION, run, consequences((event,)).replace(f" of {run}", ""), reply=True)
        case _:
            pass


# The races: a cancel and another step, in both orders.

_Script = tuple[str, ...]
_A_ACTIVE: _Script = ("accept a", "enter a")
_B_QUEUED: _Script = (*_A_ACTIVE, "accept b", "enter b")
_A_UNWINDS: _Script = ("end a canceled", "written a")

_RACES: dict[str, tuple[str, dict[str, _Script]]] = {
    "cancel-accept": (
        "A cancel against an accept",
        {
            "The accept is first: the cancel covers the run": ("accept a", "cancel", "enter a", "settle a"),
            "The cancel is first: it finds nothing, and the run is not poisoned": (
                "cancel",
                "accept a",
                "enter a",
            ),
        },
    ),
    "cancel-enter": (
        "A cancel against an entry, behind a busy session",
        {
            "The entry is first: the queued run is dropped": (*_B_QUEUED, "cancel", *_A_UNWINDS),
            "The cancel is first: the run is cancelled on entry and leaves its record": (
                *_A_ACTIVE,
                "accept b",
                "cancel",
                "enter b",
                "settle b",
                *_A_UNWINDS,
            ),
        },
    ),
    "cancel-fold": (
        "A cancel against a fold",
        {
            "The fold is first: the run is cancelled with the turn that took it in": (
                *_B_QUEUED,
                "fold a",
                "cancel",
                *_A_UNWINDS,
            ),
            "The cancel is first: the queue is dropped, and the dying turn takes no later run in": (
                *_B_QUEUED,
                "cancel",
                "accept c",
                "enter c",
                "fold a",
                *_A_UNWINDS,
            ),
        },
    ),
    "cancel-settle": (
        "A cancel against settling",
        {
            "The cancel comes during the write: the record is written again before RunComplete": (
                *_A_ACTIVE,
                "end a end_turn",
                "cancel",
                "written a",
                "written a",
            ),
            "The RunComplete is first: the cancel finds an idle session": (
                *_A_ACTIVE,
                "end a end_turn",
                "written a",
                "cancel",
            ),
        },
    ),
    "cancel-handoff": (
        "A cancel against a handoff",
        {
            "The cancel is first: the successor is dropped, nothing is handed off": (
                *_B_QUEUED,
                "cancel",
                *_A_UNWINDS,
            ),
            "The handoff is first: the successor is the active turn, and is interrupted": (
                *_B_QUEUED,
                "end a end_turn",
                "written a",
                "cancel",
                "end b canceled",
                "written b",
            ),
        },
    ),
    "cancel-close": (
        "A cancel against closing a handle",
        {
            "The cancel is first: the released run says cancelled as well": (
                "accept a",
                "cancel",
                "release a",
            ),
            "The close is first: the cancel finds an idle session and leaves no mark": (
                "accept a",
                "release a",
                "cancel",
                "accept b",
                "enter b",
            ),
        },
    ),
}


def races() -> list[Scene]:
    """Return the scenes of the races. The mechanism takes every step of them."""
    return [
        Scene(
            name,
            title,
            tuple(Panel(heading, tuple(_lines(play(script)))) for heading, script in panels.items()),
        )
        for name, (title, panels) in _RACES.items()
    ]


def play(script: tuple[str, ...]) -> tuple[Step, ...]:
    """Have the mechanism take the steps of a script. A step that breaks a property raises ValueError."""
    held, abstract = ModelSession(), AbstractSession(successor)
    steps = []
    for line in script:
        name, run, result = (*line.split(), "", "")[:3]
        action = _action(name, run, result)
        created = ModelRun(run, len(abstract.states) + 1) if name == "accept" else None
        taken = take(Mechanism, held, abstract, Shared(), action, created)
        broken = (*taken.violations, *at_rest(Mechanism, held, abstract, refine=True))
        if broken:
            raise ValueError(f"{line}: {broken[0].property}: {broken[0].what}")
        steps.append(Step(0, action, taken.events))
    return tuple(steps)


def _action(name: str, run: str, result: str) -> Action:
    actors: dict[str, Literal["caller", "runner", "store"]] = {
        "fold": "runner",
        "end": "runner",
        "written": "store",
        "settle": "store",
    }
    default = {"accept": "fold", "written": "ok", "settle": "ok"}
    return Action(actors.get(name, "caller"), name, run, result or default.get(name, ""))
