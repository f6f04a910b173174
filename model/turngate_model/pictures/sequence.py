"""Draws scenes: a script from top to bottom, and what came of it, beside each other if there are several.

This module lays the drawing out itself, so it is the same on every machine and no program is needed. A panel
has the script at the left. Beside it, for each history, there are lanes: the callers, to whom RunCompletes
arrive; the runs, each with a bar in the colour of its state, hatched while a cancel covers it; the runner,
whose bar says whether it has been told to stop; and what the session remembers. A cancel is a line across all
of them.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from itertools import count
from typing import NamedTuple

from turngate_model.history import Accept, Cancel, Complete, Enter, Fold
from turngate_model.lifecycle import DeclaredState
from turngate_model.pictures import ink
from turngate_model.pictures.scenes import Panel, Scene, Side
from turngate_model.pictures.views import View
from turngate_model.pictures.walks import NOTHING, Moment

_MARGIN, _SCRIPT, _CALLERS, _RUN, _RUNNER, _MEMORY, _GAP = 20, 180, 132, 98, 92, 164, 22
_LINE = 15
_HEAD = 50
_CANCEL_MEMORY = ("mark", "flag", "count")


class _Lanes(NamedTuple):
    """Where the lanes of one history are."""

    left: int
    runs: dict[str, int]
    runner: int
    memory: int
    right: int

    @property
    def callers(self) -> int:
        return self.left + 24


def svg(scene: Scene) -> str:
    """Return a scene as a self-contained SVG document."""
    width = max(_width(panel) for panel in scene.panels)
    parts, top = [], 28
    for row in _wrapped(scene.title, width - 2 * _MARGIN, 16):
        parts.append(ink.text(_MARGIN, top, row, size=16, bold=True))
        top += 21
    for panel in scene.panels:
        drawn, height = _panel(panel)
        parts.append(f"<g transform='translate(0 {top})'>{drawn}</g>")
        top += height + 12
    parts.append(_legend(top + 6))
    return ink.document(width, top + 32, scene.title, "\n".join(parts))


def _wrapped(said: str, width: int, size: int = 12) -> list[str]:
    """Break a text into lines. Half of the size is what a letter takes on the average, and a little more."""
    return textwrap.wrap(said, max(int(width / (size * 0.53)), 8)) or [""]


def _short(name: str) -> str:
    """Return a name that has room in a lane."""
    return name if len(name) <= 10 else f"{name[:4]}…{name[-4:]}"


def _width(panel: Panel) -> int:
    return _lanes(panel)[-1].right + _MARGIN


def _lanes(panel: Panel) -> list[_Lanes]:
    found, left = [], _MARGIN + _SCRIPT + _GAP
    for _ in panel.sides:
        first = left + _CALLERS
        runs = {name: first + _RUN * nth for nth, name in enumerate(panel.runs)}
        runner = first + _RUN * len(runs) + 4
        memory = runner + _RUNNER - 12
        found.append(_Lanes(left, runs, runner, memory, memory + _MEMORY))
        left = memory + _MEMORY + _GAP
    return found


# One panel.


def _panel(panel: Panel) -> tuple[str, int]:
    """Return a panel and its height."""
    lanes = _lanes(panel)
    parts: list[str] = []
    top = 2
    for row in _wrapped(panel.heading, _width(panel) - 2 * _MARGIN, 14) if panel.heading else ():
        top += 16
        parts.append(ink.text(_MARGIN, top, row, size=14, bold=True))
    tops = [top + _HEAD]
    for nth in range(len(panel.script)):
        tops.append(tops[-1] + _row_height(panel, nth))
    parts += [_row(panel, nth, tops, lanes) for nth in range(len(panel.script))]
    verdicts = [_verdict(side, at, tops[-1] + 6) for side, at in zip(panel.sides, lanes, strict=True)]
    for side, at in zip(panel.sides, lanes, strict=True):
        parts.append(_side(side, at, top, tops))
    parts += [drawn for drawn, _ in verdicts]
    return "\n".join(parts), tops[-1] + 6 + max(height for _, height in verdicts)


def _row_height(panel: Panel, nth: int) -> int:
    """Return the height of a row: what it says, remembers and completes must have room in it."""
    lines = [len(_wrapped(panel.script[nth][1], _SCRIPT - 30)) + 1]
    for side in panel.sides:
        moment, before = side.walk[nth], _before(side, nth)
        lines.append(sum(len(rows) for rows, _ in _memory(before, moment)) + _is_cancel(moment))
        completes = sum(isinstance(event, Complete) for event in moment.events)
        lines.append(completes + 1 + (completes > 0 and _is_cancel(moment)))
    return 14 + _LINE * max(2, *lines)


def _is_cancel(moment: Moment) -> bool:
    return any(isinstance(event, Cancel) for event in moment.events)


def _before(side: Side, nth: int) -> View:
    return side.walk[nth - 1].view if nth else NOTHING


def _row(panel: Panel, nth: int, tops: list[int], lanes: list[_Lanes]) -> str:
    """Return the line of the script, and the ground of its row, which a page may colour."""
    top, height = tops[nth], tops[nth + 1] - tops[nth]
    actor, words = panel.script[nth]
    width = lanes[-1].right - _MARGIN
    parts = [f"<g class='tg-row' data-step='{nth + 1}'>"]
    parts.append(
        f"<rect class='tg-ground' x='{_MARGIN}' y='{top}' width='{width}' height='{height}' fill='none'/>"
    )
    parts.append(ink.line(_MARGIN, top, lanes[-1].right, top, "line", 0.6))
    parts.append(ink.text(_MARGIN + 4, top + 17, str(nth + 1), bold=True, ink="soft"))
    for row, said in enumerate(_wrapped(words, _SCRIPT - 30)):
        parts.append(ink.text(_MARGIN + 24, top + 17 + _LINE * row, said, bold=True))
    rows = len(_wrapped(words, _SCRIPT - 30))
    parts.append(ink.text(_MARGIN + 24, top + 17 + _LINE * rows, actor, size=10, ink="soft"))
    return "".join([*parts, "</g>"])


def _side(side: Side, at: _Lanes, top: int, tops: list[int]) -> str:
    """Return the lanes of one history with everything in them."""
    under: list[str] = []
    over: list[str] = []
    colour = "bad" if side.is_broken else "good"
    if side.is_broken:
        height = tops[-1] - tops[-2]
        under.append(ink.box(at.left, tops[-2] + 1, at.right - at.left, height - 1, "bad-card", round_by=0))
    under.append(
        ink.text(at.left, top + 20, side.label, bold=True, size=13, ink=colour if side.judged else "ink")
    )
    heads = {"callers": at.callers, "runner": at.runner}
    for name, x in heads.items():
        under.append(ink.text(x, top + _HEAD - 8, name, anchor="middle", size=11, ink="soft"))
    for name, x in at.runs.items():
        seq = next((m.view.runs[name].seq for m in side.walk if name in m.view.runs), None)
        head = f"run {_short(name)}" if seq is None else f"run {name}, seq {seq}"
        under.append(ink.text(x + 22, top + _HEAD - 8, head, anchor="middle", size=11, ink="soft"))
    under.append(ink.text(at.memory + 4, top + _HEAD - 8, side.remembers, size=11, ink="soft"))
    lanes = (at.callers, *at.runs.values(), at.runner)
    under += [ink.line(x, tops[0], x, tops[-1], "line", 1.2) for x in lanes]
    for nth, moment in enumerate(side.walk):
        over += _happening(side, nth, moment, at, tops)
    return "".join([*under, *_bars(side, at, tops), *_calls(side, at, tops), *over])


def _y(tops: list[int], nth: int) -> int:
    """Return where in a row the step happens."""
    return tops[nth] + 20


def _happening(side: Side, nth: int, moment: Moment, at: _Lanes, tops: list[int]) -> Iterator[str]:
    """Yield what happens in one row: the call, the cancel, the RunCompletes, what is remembered."""
    y = _y(tops, nth)
    if _is_cancel(moment):
        yield ink.line(at.callers, y, at.right, y, "bad", 2, dashed=True)
        yield ink.text(at.callers + 8, y - 5, "cancel", size=11, ink="bad", bold=True)
    yield from _arrows(moment, at, y)
    if moment.missing:
        yield ink.text(at.left + _CALLERS, y + 4, f"({moment.missing})", size=11, ink="soft", halo=True)
    row = tops[nth] + 16 + (_LINE + 4) * _is_cancel(moment)
    for lines, changed in _memory(_before(side, nth), moment):
        for said in lines:
            yield ink.text(
                at.memory + 6, row, said, size=11, bold=changed, ink="ink" if changed else "soft", halo=True
            )
            row += _LINE - 1
    for name in at.runs:
        yield from _label(name, _before(side, nth), moment, at.runs[name] + 10, y)


def _arrows(moment: Moment, at: _Lanes, y: int) -> Iterator[str]:
    for event in moment.events:
        match event:
            case Accept(run, _) | Enter(run, _) if moment.actor == "caller":
                yield ink.arrow(at.callers, y, at.runs[run] - 8, y, "ink")
            case Fold(run, _):
                yield ink.arrow(at.runner - 8, y, at.runs[run] + 8, y, "call")
    completes = [event for event in moment.events if isinstance(event, Complete)]
    for nth, event in enumerate(completes, 1):
        below = y + _LINE * nth - 2 + 6 * _is_cancel(moment)
        yield ink.arrow(at.runs[event.run] - 8, below, at.callers + 1, below, "ink", dashed=True)
        yield ink.text(at.callers + 11, below - 4, f"RunComplete {_short(event.run)}", size=10, halo=True)


def _label(run: str, before: View, moment: Moment, x: int, y: int) -> Iterator[str]:
    """Yield the name of the state that a run has come to, beside its bar."""
    now, was = moment.view.runs.get(run), before.runs.get(run)
    if now is None or (was is not None and was.state is now.state):
        return
    said = now.ended if now.state is DeclaredState.COMPLETE else str(now.state)
    down = 12 if now.state is not DeclaredState.COMPLETE else 16
    for nth, part in enumerate(textwrap.wrap(said, 16)[:2]):
        yield ink.text(x, y + down + 11 * nth, part, size=10, ink="ink", halo=True)


def _bars(side: Side, at: _Lanes, tops: list[int]) -> Iterator[str]:
    """Yield the bars of the runs: one piece for each state, covered or not."""
    for name, x in at.runs.items():
        since, was = 0, None
        for nth, moment in enumerate(side.walk):
            now = moment.view.runs.get(name)
            if was is None or now is None or (now.state, now.covered) != (was.state, was.covered):
                yield from _piece(x, since, _y(tops, nth), was)
                since, was = _y(tops, nth), now
        yield from _piece(x, since, tops[-1], was)


def _piece(x: int, top: int, bottom: int, was: object) -> Iterator[str]:
    state = getattr(was, "state", DeclaredState.COMPLETE)
    if was is not None and state is not DeclaredState.COMPLETE:
        yield ink.bar(x, top, bottom, ink.COLOURS[state], hatched=bool(getattr(was, "covered", False)))


def _calls(side: Side, at: _Lanes, tops: list[int]) -> Iterator[str]:
    """Yield the bars of the runner calls, and a cross where a runner is told to stop."""
    going_on: dict[str, tuple[int, int, bool]] = {}
    crosses: list[str] = []
    for nth, calls in enumerate([*(moment.view.calls for moment in side.walk), {}]):
        y = _y(tops, nth) if nth < len(side.walk) else tops[-1]
        for lead, (x, since, stopped) in list(going_on.items()):
            if calls.get(lead) is stopped:
                continue
            yield ink.bar(x, since, y, ink.LIGHT["call"], hatched=stopped)
            del going_on[lead]
            if calls.get(lead):
                crosses.append(_cross(x, y))
                yield ink.text(x + 12, y + 14, "told to stop", size=10, halo=True)
                going_on[lead] = x, y, True
        for lead in calls:
            if lead not in going_on:
                taken = {x for x, _, _ in going_on.values()}
                x = next(x for x in count(at.runner, 15) if x not in taken)
                going_on[lead] = x, y, calls[lead]
                yield ink.text(x + 9, y + 4, _short(lead), size=10, bold=True, ink="call", halo=True)
    yield from crosses


def _cross(x: int, y: int) -> str:
    return ink.line(x - 7, y - 7, x + 7, y + 7, "bad", 3) + ink.line(x - 7, y + 7, x + 7, y - 7, "bad", 3)


def _memory(before: View, moment: Moment) -> list[tuple[list[str], bool]]:
    """Return what the sessions remember after a step, in lines, and whether the step has changed it."""
    told = []
    for name, value in moment.view.memory.items():
        changed = before.memory.get(name) != value
        equals = " =" if name.split(" of ")[0] in ("mark", "count") else ":"
        told.append((_wrapped(f"{name}{equals} {value}", _MEMORY, 11), changed))
    for name in before.memory:
        if name not in moment.view.memory and name.split(" of ")[0] in _CANCEL_MEMORY:
            entered = [event.run for event in moment.events if isinstance(event, Enter | Complete)]
            by = f"consumed by {entered[0]}" if entered and not name.startswith("mark") else "removed"
            told.append((_wrapped(f"{name}: {by}", _MEMORY, 11), True))
    return told or [(["nothing"], bool(before.memory))]


def _verdict(side: Side, at: _Lanes, top: int) -> tuple[str, int]:
    """Return what is wrong at the end of a history, or what should have been, and its height."""
    if not side.verdict:
        return "", 4
    width = at.right - at.left
    lines = _wrapped(side.verdict, width - 24, 12)
    height = 12 + 17 * len(lines)
    name = "bad" if side.is_broken else "good"
    parts = [ink.box(at.left, top, width, height, f"{name}-card", name)]
    parts += [ink.text(at.left + 12, top + 19 + 17 * row, said, ink=name) for row, said in enumerate(lines)]
    return "".join(parts), height + 4


def _legend(y: int) -> str:
    parts, x = [], _MARGIN
    for state in DeclaredState:
        if state is not DeclaredState.COMPLETE:
            parts.append(f"<rect x='{x}' y='{y}' width='12' height='12' rx='2' fill='{ink.COLOURS[state]}'/>")
            parts.append(ink.text(x + 18, y + 10, str(state), size=11, ink="soft"))
            x += 42 + 6 * len(state)
    parts.append(
        f"<rect x='{x}' y='{y}' width='12' height='12' rx='2' fill='{ink.COLOURS[DeclaredState.ACCEPTED]}'/>"
    )
    parts.append(
        ink.hatching(x, y, 12, 12) + ink.text(x + 18, y + 10, "covered by a cancel", size=11, ink="soft")
    )
    x += 150
    parts.append(
        ink.box(x, y, 12, 12, "call") + ink.text(x + 18, y + 10, "the runner is at work", size=11, ink="soft")
    )
    return "".join(parts)
