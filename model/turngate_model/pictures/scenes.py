"""Scenes: what a drawing shows, before it is drawn.

A scene is made of walks, which are steps that a mechanism has really taken, or that somebody's dispatcher has
really shown. So a picture cannot show anything that did not happen.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from turngate_model.checker.counterexample import Counterexample, Step
from turngate_model.mechanism import Action, Mechanism
from turngate_model.pictures.walks import Walk, beside, walked

SOUND = "the sound mechanism"


class Side(NamedTuple):
    """One history in a panel."""

    label: str
    walk: Walk
    verdict: str = ""
    """What is broken at the end, or what happened instead; empty if there is nothing to compare with."""
    is_broken: bool = False
    judged: bool = True
    remembers: str = "the session remembers"


class Panel(NamedTuple):
    """A script, and one history or several that came of it."""

    heading: str
    sides: tuple[Side, ...]

    @property
    def script(self) -> list[tuple[str, str]]:
        """Who does what, step by step."""
        return [(moment.actor, moment.words) for moment in self.sides[0].walk]

    @property
    def runs(self) -> list[str]:
        """The runs that take part, in the order of acceptance."""
        return list(dict.fromkeys(run for side in self.sides for m in side.walk for run in m.view.runs))


class Scene(NamedTuple):
    """A picture: a title, and one panel or several."""

    name: str
    title: str
    panels: tuple[Panel, ...]


def of_counterexample(name: str, flaw: str, example: Counterexample, design: type[Mechanism]) -> Scene:
    """Return the picture of a counterexample of a design, with the sound mechanism beside it."""
    broken = Side(name, walked(design, example.steps), f"{example.property}: {example.what}", is_broken=True)
    return Scene(name, f"{name}. {flaw}", (compared(broken, beside(example.steps)),))


def compared(broken: Side, sound: Walk) -> Panel:
    """Return a broken history beside what the sound mechanism makes of the same script."""
    return Panel("", (broken, Side(SOUND, sound, instead(broken.walk, sound))))


def instead(broken: Walk, sound: Walk) -> str:
    """Say what is otherwise on the sound mechanism: at the end, or else in the last step that differs."""
    for what in ("runs", "memory"):
        for nth in reversed(range(len(sound))):
            should, was = getattr(sound[nth].view, what), getattr(broken[nth].view, what)
            differs = [
                f"{name} is {value}" for name, value in should.items() if str(was.get(name)) != str(value)
            ]
            if what == "memory":
                differs = [each.replace(" is ", ": ") for each in differs]
                differs += [f"{name} is forgotten" for name in was if name not in should]
            if differs:
                when = "Instead" if nth == len(sound) - 1 else f"Instead, after step {nth + 1}"
                return f"{when}: {'; '.join(differs)}."
    return "The same happens here."


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
            tuple(
                Panel(heading, (Side("", walked(Mechanism, play(script)), judged=False),))
                for heading, script in panels.items()
            ),
        )
        for name, (title, panels) in _RACES.items()
    ]


def play(script: tuple[str, ...]) -> tuple[Step, ...]:
    """Have the mechanism take the steps of a script. A step that breaks a property raises ValueError."""
    steps = [Step(0, _action(*(*line.split(), "", "")[:3]), ()) for line in script]
    walk = walked(Mechanism, steps)
    for line, moment in zip(script, walk, strict=True):
        if moment.broken:
            raise ValueError(f"{line}: {moment.broken[0].property}: {moment.broken[0].what}")
    return tuple(step._replace(events=moment.events) for step, moment in zip(steps, walk, strict=True))


def _action(name: str, run: str, result: str) -> Action:
    actors: dict[str, Literal["caller", "runner", "store"]] = {
        "fold": "runner",
        "end": "runner",
        "written": "store",
        "settle": "store",
    }
    default = {"accept": "fold", "written": "ok", "settle": "ok"}
    return Action(actors.get(name, "caller"), name, run, result or default.get(name, ""))
