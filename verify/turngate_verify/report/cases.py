"""Counterexamples as a page steps through them: each step with the state before and after it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from turngate.cli.visible import visible
from turngate_model.checker.counterexample import consequences
from turngate_model.pictures import sequence_svg
from turngate_model.pictures.scenes import Panel, Scene, Side
from turngate_model.pictures.walks import NOTHING, Moment
from turngate_verify.report.rendering import Markup, drawing


class StateRow(NamedTuple):
    """One thing that a session remembers, or one run: what it was before a step, and after it."""

    name: str
    before: str
    after: str

    @property
    def changed(self) -> bool:
        """Whether the step has changed it."""
        return self.before != self.after


class SideStep(NamedTuple):
    """One step in one history."""

    label: str
    is_broken: bool
    said: str
    """The result of the step, or why it has none."""
    rows: list[StateRow]
    verdict: str
    """What is broken now, or what holds instead; empty before the end."""


class CaseStep(NamedTuple):
    """One step of a script: who does what, and how each history goes on."""

    number: int
    actor: str
    words: str
    sides: list[SideStep]


class Case(NamedTuple):
    """One counterexample, with all that a page says about it."""

    name: str
    """Names the case in the address of its steps."""
    title: str
    chip: str
    flaw: str
    by: str
    replay: str
    """The command that shows this counterexample again."""
    steps: list[CaseStep]
    picture: Markup


def of_scene(
    title: str, scene: Scene, *, chip: str, flaw: str, by: str, replay: str, stacked: bool = False
) -> Case:
    """Return a case from a scene with one panel; ``stacked`` draws its histories below each other."""
    panel = scene.panels[0]
    steps = [
        CaseStep(
            nth + 1, actor, visible(words), [_side(side, nth, len(panel.script)) for side in panel.sides]
        )
        for nth, (actor, words) in enumerate(panel.script)
    ]
    panels = tuple(Panel("", (side,)) for side in panel.sides) if stacked else scene.panels
    picture = drawing(sequence_svg(scene._replace(panels=panels)), readable=True)
    return Case(slug(scene.name), title, chip, visible(flaw), by, visible(replay), steps, picture)


def slug(name: str) -> str:
    """Return a name as it can be part of an address."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "case"


def _side(side: Side, nth: int, length: int) -> SideStep:
    moment = side.walk[nth]
    before = side.walk[nth - 1].view if nth else NOTHING
    rows = state_rows(before.rows(), moment.view.rows())
    verdict = side.verdict if nth == length - 1 else ""
    return SideStep(side.label, side.is_broken, visible(_said(moment)), rows, visible(verdict))


def _said(moment: Moment) -> str:
    return moment.missing or consequences(moment.events) or "nothing to be seen from outside"


def state_rows(before: dict[str, str], after: dict[str, str]) -> list[StateRow]:
    """Return everything that was there before or is there after, in one order."""
    names: Iterable[str] = dict.fromkeys([*before, *after])
    ordered = sorted(names, key=lambda name: name.startswith("run "))
    return [StateRow(visible(n), visible(before.get(n, "")), visible(after.get(n, ""))) for n in ordered]


def panel_of(broken: Side, sound: Side | None) -> Panel:
    """Return a panel with one history, or with two beside each other."""
    return Panel("", (broken, sound) if sound else (broken,))
