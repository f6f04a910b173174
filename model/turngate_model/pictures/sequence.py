"""Draws scenes as sequence diagrams: as SVG, and as Mermaid for pages that render it.

This module lays the SVG out itself. So the SVG is the same on every machine, and no program needs to be
installed. A coloured bar in the lane of a run shows the state of the run.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from html import escape

from turngate_model.lifecycle import DeclaredState
from turngate_model.pictures.scenes import CALLERS, SESSION, Arrow, Moves, Note, Panel, Scene

COLOURS = {
    DeclaredState.ACCEPTED: "#9aa7b4",
    DeclaredState.CANCEL_ON_ENTRY: "#e08e45",
    DeclaredState.QUEUED: "#e3c34b",
    DeclaredState.ACTIVE: "#4d9d6a",
    DeclaredState.COMPLETE: "#ffffff",
}
"""The colour of each state in every picture."""

_FONT = "font-family='Helvetica, Arial, sans-serif'"
_ROW = 30
_FIRST_RUN, _RUN_GAP = 560, 190
_LANES = {CALLERS: 80, SESSION: 300}
_INK, _SOFT, _RED = "#1f2933", "#7b8794", "#c0392b"


def svg(scene: Scene) -> str:
    """Return a scene as a self-contained SVG document."""
    width = max(_x_of(panel, panel.runs[-1]) for panel in scene.panels) + 130
    title = _wrapped(scene.title, width)
    parts = [_text(20, 30 + 20 * row, line, size=16, weight="bold") for row, line in enumerate(title)]
    top = 30 + 20 * len(title)
    for panel in scene.panels:
        drawn, height = _panel(panel, width)
        parts.append(f"<g transform='translate(0 {top})'>{''.join(drawn)}</g>")
        top += height + 14
    parts += _legend(top + 4)
    body = "\n".join(parts)
    size = f"width='{width}' height='{top + 34}' viewBox='0 0 {width} {top + 34}'"
    label = escape(scene.title, quote=True)
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' {size} role='img' aria-label='{label}'>\n"
        f"<rect width='100%' height='100%' fill='#ffffff'/>\n{body}\n</svg>\n"
    )


def _x_of(panel: Panel, lane: str) -> int:
    return _LANES[lane] if lane in _LANES else _FIRST_RUN + _RUN_GAP * panel.runs.index(lane)


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width // 9)


def _panel(panel: Panel, width: int) -> tuple[list[str], int]:
    """Return the SVG elements of a panel and its height. Arrows come last, so they lie on top of the bars."""
    arrows: list[str] = []
    since: dict[str, tuple[DeclaredState, int]] = {}
    bars: list[str] = []
    top = 24 * bool(panel.heading) + 30
    y = top + 16

    def until(run: str, end: int) -> None:
        state, start = since.pop(run)
        if state is not DeclaredState.COMPLETE:
            bars.append(_bar(_x_of(panel, run), start, end, state))

    offence = next((line for line in reversed(panel.lines) if not isinstance(line, Moves)), None)
    for line in panel.lines:
        if isinstance(line, Moves):
            # The arrow of an accept is above its move; the arrow of any other move is below it.
            at = y - _ROW if line.state is DeclaredState.ACCEPTED else y
            if line.run in since:
                until(line.run, at)
            since[line.run] = (line.state, at)
        else:
            ink = _RED if panel.verdict and line is offence else _INK
            arrows += _arrow(panel, line, y, ink) if isinstance(line, Arrow) else _note(line, y, ink)
            y += _ROW
    bottom = y - _ROW // 2
    for run in list(since):
        until(run, bottom)
    heading = [_text(20, 18, panel.heading, size=14, fill=_INK, weight="bold")] if panel.heading else []
    lanes = [
        part
        for lane in (CALLERS, SESSION, *panel.runs)
        for part in _lane(_x_of(panel, lane), f"run {lane}" if lane in panel.runs else lane, top, bottom)
    ]
    verdict = list(_verdict(panel.verdict, bottom + 10, width)) if panel.verdict else []
    height = bottom + (26 + 18 * len(_wrapped(panel.verdict, width - 60)) if panel.verdict else 6)
    return [*heading, *lanes, *bars, *arrows, *verdict], height


def _lane(x: int, name: str, top: int, bottom: int) -> Iterator[str]:
    yield f"<line x1='{x}' y1='{top}' x2='{x}' y2='{bottom}' stroke='#cbd2d9' stroke-width='1.5'/>"
    yield _text(x, top - 8, name, anchor="middle", weight="bold", fill=_SOFT)


def _bar(x: int, start: int, end: int, state: DeclaredState) -> str:
    height = max(end - start, 6)
    return f"<rect x='{x - 6}' y='{start}' width='12' height='{height}' rx='3' fill='{COLOURS[state]}'/>"


def _arrow(panel: Panel, arrow: Arrow, y: int, ink: str) -> list[str]:
    x1, x2 = _x_of(panel, arrow.source), _x_of(panel, arrow.target)
    toward = 1 if x2 > x1 else -1
    # An arrow starts and ends beside the bar of a run, not on it.
    x1 += toward * (8 if arrow.source not in _LANES else 0)
    x2 -= toward * (8 if arrow.target not in _LANES else 1)
    dash = " stroke-dasharray='5 4'" if arrow.reply else ""
    head = f"{x2},{y} {x2 - toward * 9},{y - 5} {x2 - toward * 9},{y + 5}"
    # The label is near the run that it is about; between callers and session it is in the middle.
    if arrow.target not in _LANES:
        label = _text(x2 - 6, y - 6, arrow.label, anchor="end", fill=ink, halo=True)
    elif arrow.source not in _LANES:
        label = _text(_LANES[SESSION] + 10, y - 6, arrow.label, fill=ink, halo=True)
    else:
        label = _text((x1 + x2) // 2, y - 6, arrow.label, anchor="middle", fill=ink, halo=True)
    return [
        f"<line x1='{x1}' y1='{y}' x2='{x2 - toward * 6}' y2='{y}' stroke='{ink}' stroke-width='1.3'{dash}/>",
        f"<polygon points='{head}' fill='{ink}'/>",
        label,
    ]


def _note(note: Note, y: int, ink: str) -> list[str]:
    half = len(note.label) * 33 // 10 + 10
    x = _LANES[SESSION]
    box = f"x='{x - half}' y='{y - 16}' width='{2 * half}' height='21'"
    return [
        f"<rect {box} rx='4' fill='#f5f7fa' stroke='#9aa5b1'/>",
        _text(x, y - 1, note.label, anchor="middle", fill=ink),
    ]


def _verdict(verdict: str, y: int, width: int) -> Iterator[str]:
    lines = _wrapped(verdict, width - 60)
    height = 12 + 18 * len(lines)
    box = f"x='20' y='{y}' width='{width - 40}' height='{height}'"
    yield f"<rect {box} rx='4' fill='#fdecea' stroke='{_RED}'/>"
    for row, line in enumerate(lines):
        yield _text(32, y + 20 + 18 * row, line, fill=_RED, size=13)


def _legend(y: int) -> list[str]:
    parts, x = [], 20
    for state in (
        DeclaredState.ACCEPTED,
        DeclaredState.CANCEL_ON_ENTRY,
        DeclaredState.QUEUED,
        DeclaredState.ACTIVE,
    ):
        parts.append(f"<rect x='{x}' y='{y}' width='12' height='12' rx='3' fill='{COLOURS[state]}'/>")
        parts.append(_text(x + 18, y + 10, str(state), size=11, fill=_SOFT))
        x += 40 + 7 * len(state)
    return parts


def _text(
    x: int,
    y: int,
    text: str,
    *,
    size: int = 12,
    anchor: str = "start",
    weight: str = "normal",
    fill: str = _INK,
    halo: bool = False,
) -> str:
    behind = " stroke='#ffffff' stroke-width='4' paint-order='stroke'" if halo else ""
    style = f"font-size='{size}' font-weight='{weight}' fill='{fill}'{behind}"
    return f"<text x='{x}' y='{y}' text-anchor='{anchor}' {_FONT} {style}>{escape(text)}</text>"


def mermaid(scene: Scene) -> str:
    """Return a scene as Mermaid source."""
    runs = list(dict.fromkeys(run for panel in scene.panels for run in panel.runs))
    lines = ["sequenceDiagram", f"    participant {CALLERS}", f"    participant {SESSION}"]
    lines += [f"    participant {run} as run {run}" for run in runs]
    for number, panel in enumerate(scene.panels):
        if panel.heading:
            lines.append(f"    {'else' if number else 'alt'} {panel.heading}")
        lines += [f"    {line}" for line in _mermaid_lines(panel)]
        if panel.verdict:
            lines.append(f"    Note over {SESSION},{runs[-1]}: {_mermaid_text(panel.verdict)}")
    if scene.panels[0].heading:
        lines.append("    end")
    return "\n".join(lines) + "\n"


def _mermaid_lines(panel: Panel) -> Iterator[str]:
    for line in panel.lines:
        if isinstance(line, Arrow):
            yield f"{line.source}{'-->>' if line.reply else '->>'}{line.target}: {_mermaid_text(line.label)}"
        elif isinstance(line, Note):
            yield f"Note over {SESSION}: {_mermaid_text(line.label)}"


def _mermaid_text(text: str) -> str:
    return text.replace(";", ",").replace("#", "")
