"""Generates the pictures in ``diagrams/`` and parts of SPEC.md from the model, and says what is stale."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from turngate_model.checker.bounds import Bounds
from turngate_model.checker.counterexample import Counterexample
from turngate_model.checker.counts import COUNTS, LIMITED_COUNTS
from turngate_model.checker.exploration import Exploration
from turngate_model.checker.explorer import Explorer
from turngate_model.designs import DESIGNS, NOT_IN_DESIGNS, Design
from turngate_model.lifecycle import GUARD_MEANINGS, INITIAL, TABLE, TERMINAL
from turngate_model.pictures import dot, sequence
from turngate_model.pictures.overview import Overview, overview
from turngate_model.pictures.scenes import of_counterexample, races
from turngate_model.properties import Property


class Drawing(NamedTuple):
    """One generated file: its path below ``diagrams/``, and its content."""

    path: str
    content: str
    mark: str = ""
    """A line that names the source of the file.

    Versions of Graphviz draw differently. So a file that Graphviz has drawn is stale when this line is
    missing, and not when its bytes differ.
    """


class Generated(NamedTuple):
    """Everything that is generated from the model."""

    drawings: list[Drawing]
    parts: dict[str, str]
    """The generated parts of SPEC.md, by the name in their markers."""
    skipped: str
    """Why some files could not be made on this machine; empty if all were made."""


def refute(design: Design, bounds: Bounds | None = None) -> Exploration:
    """Explore a known-bad design until it breaks a property that it is known to break."""
    bounds = bounds or Bounds(without=NOT_IN_DESIGNS)
    return Explorer(bounds, design.mechanism, name=design.name, claimed=design.breaks).run()


def generate(
    begin: Callable[[str], None] = lambda _name: None, refuted: dict[str, Exploration] | None = None
) -> Generated:
    """Generate everything from the model.

    ``begin`` is called with the name of each part before it is made. ``refuted`` has explorations of designs
    that the caller has already; the others are explored here.
    """
    begin("the lifecycle and the session overview")
    whole = overview()
    drawings = [
        *_graph("lifecycle", dot.lifecycle(), _mermaid_lifecycle()),
        *_graph("session", dot.session(whole), _mermaid_session(whole)),
    ]
    scenes = [(f"races/{scene.name}", scene) for scene in races()]
    results = dict(refuted or {})
    for design in DESIGNS.values():
        if design.name not in results:
            begin(f"the counterexample of {design.name}")
            results[design.name] = refute(design)
        result = results[design.name]
        if result.counterexample is None:
            raise ValueError(f"the design {design.name} is not refuted")
        scenes.append(
            (f"designs/{design.name}", of_counterexample(design.name, design.flaw, result.counterexample))
        )
    for path, scene in scenes:
        drawings.append(Drawing(f"{path}.svg", sequence.svg(scene)))
        drawings.append(Drawing(f"{path}.mmd", sequence.mermaid(scene)))
    return Generated(drawings, _parts(results), "" if dot.has_dot() else dot.HOW_TO_GET_DOT)


def lifecycle_svg() -> tuple[str, str]:
    """Return the lifecycle as SVG to put into a page. Without Graphviz, return an empty string and why."""
    if not dot.has_dot():
        return "", dot.HOW_TO_GET_DOT
    drawn = dot.svg(dot.lifecycle())
    return drawn[drawn.index("<svg ") :], ""


def sequence_svg(name: str, flaw: str, example: Counterexample) -> str:
    """Return the picture of a counterexample as SVG to put into a page."""
    return sequence.svg(of_counterexample(name, flaw, example))


def _graph(name: str, graph: str, mermaid: str) -> Iterator[Drawing]:
    yield Drawing(f"{name}.dot", graph)
    yield Drawing(f"{name}.mmd", mermaid)
    yield Drawing(f"{name}.svg", dot.svg(graph) if dot.has_dot() else "", dot.mark(graph))


# Writing the files, and saying what is stale.


def write(generated: Generated, folder: Path, spec: Path) -> list[str]:
    """Write the files that have changed and return their paths."""
    written = []
    for drawing in generated.drawings:
        path = folder / drawing.path
        if drawing.content and _stale(drawing, path):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(drawing.content, encoding="utf-8")
            written.append(str(path))
    if spec.exists():
        old = spec.read_text(encoding="utf-8")
        new = fill(old, generated.parts)
        if new != old:
            spec.write_text(new, encoding="utf-8")
            written.append(str(spec))
    return written


def stale(generated: Generated, folder: Path, spec: Path) -> list[str]:
    """Return one line for each file that is not as it would be generated."""
    found = [
        f"{folder / drawing.path} is {'stale' if (folder / drawing.path).exists() else 'missing'}"
        for drawing in generated.drawings
        if _stale(drawing, folder / drawing.path)
    ]
    expected = {folder / drawing.path for drawing in generated.drawings}
    found += [
        f"{path} is not generated by anything" for path in sorted(folder.rglob("*.*")) if path not in expected
    ]
    if spec.exists():
        text = spec.read_text(encoding="utf-8")
        if fill(text, generated.parts) != text:
            found.append(f"{spec} has stale generated parts")
    return found


def _stale(drawing: Drawing, path: Path) -> bool:
    if not path.exists():
        return True
    text = path.read_text(encoding="utf-8")
    return drawing.mark not in text if drawing.mark else drawing.content != text


def fill(text: str, parts: dict[str, str]) -> str:
    """Put the generated parts between their markers in a text, and return the text."""
    named = re.findall(r"<!-- begin generated: ([a-z-]+) -->", text)
    unknown = [name for name in named if name not in parts]
    missing = [name for name in parts if name not in named]
    if unknown or missing:
        raise ValueError(f"generated parts of SPEC.md: unknown {unknown}, missing {missing}")
    for name, part in parts.items():
        begin, end = f"<!-- begin generated: {name} -->", f"<!-- end generated: {name} -->"
        before, _, rest = text.partition(begin)
        if end not in rest:
            raise ValueError(f"generated part {name} of SPEC.md has no end")
        text = f"{before}{begin}\n{part}{end}{rest.partition(end)[2]}"
    return text


# The tables.


def _parts(refuted: dict[str, Exploration]) -> dict[str, str]:
    rows = [[row.trigger, row.source, row.target, dot.guards(row) or "always", row.when] for row in TABLE]
    designs = []
    for name, result in refuted.items():
        example = result.counterexample
        assert example is not None
        also = ", ".join(
            f"{each} in {len(e.steps)}" for each, e in result.counterexamples.items() if e != example
        )
        picture = f"[picture](diagrams/designs/{name}.svg)"
        designs.append(
            [f"`{name}`", DESIGNS[name].flaw, example.property, str(len(example.steps)), also, picture]
        )
    return {
        "lifecycle": _table(["trigger", "from", "to", "guards", "when"], rows),
        "guards": _table(
            ["guard", "true when"], [[f"`{guard.label}`", said] for guard, said in GUARD_MEANINGS.items()]
        ),
        "properties": _table(["id", "property"], [[f"**{each}**", each.sentence] for each in Property]),
        "counts": _table(
            ["prompts", "cancels", "states", "transitions", "depth"],
            [[f"{n:,}" for n in count] for count in COUNTS],
        ),
        "limited-counts": _table(
            ["sessions", "prompts", "cancels", "turns_limit", "states", "transitions", "depth"],
            [[f"{n:,}" for n in count] for count in LIMITED_COUNTS],
        ),
        "designs": _table(["design", "what it does", "breaks", "steps", "on the way also", ""], designs),
    }


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(cells) + " |\n" for cells in lines)


def _mermaid_lifecycle() -> str:
    lines = ["stateDiagram-v2", "    direction LR", f"    [*] --> {INITIAL}: accept"]
    lines += [
        f"    {row.source} --> {row.target}: {row.trigger}"
        + (f" [{dot.guards(row)}]" if dot.guards(row) else "")
        for row in TABLE
    ]
    return "\n".join([*lines, f"    {TERMINAL} --> [*]"]) + "\n"


def _mermaid_session(whole: Overview) -> str:
    ids = {condition: condition.replace(", ", "_") for condition in whole.conditions}
    lines = ["flowchart TB"]
    lines += [f'    {ids[name]}["{name}"]' for name in whole.conditions]
    lines += [
        f'    {ids[source]} -->|"{"<br/>".join(labels)}"| {ids[target]}'
        for (source, target), labels in whole.moves.items()
    ]
    lines += [f"    style {ids[name]} fill:{colour}" for name, colour in whole.conditions.items()]
    return "\n".join(lines) + "\n"
