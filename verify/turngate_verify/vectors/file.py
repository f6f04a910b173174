"""Vectors as JSON lines: a heading, then one vector a line. docs/spec/vectors.md describes them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from turngate_model.designs import DESIGNS, SMALL_FLAWS
from turngate_model.properties import Property
from turngate_verify.conform.lines import PORT
from turngate_verify.conform.port import observed
from turngate_verify.conform.programs import SESSIONS, parsed, written
from turngate_verify.vectors.flaws import REFUTABLE, UNSHOWN
from turngate_verify.vectors.vector import Vector, VectorStep, as_record, asked

VERSION = 1
"""The version of the format. It changes when a reader of the old one would read the new one wrongly."""


def lines(name: str, vectors: Iterable[Vector]) -> Iterator[str]:
    """Yield the lines of a file: what is in it, and the vectors of this set."""
    heading: dict[str, Any] = {
        "vectors": VERSION,
        "port": PORT,
        "set": name,
        "designs": {each: (DESIGNS | SMALL_FLAWS)[each].flaw for each in REFUTABLE},
        "unshown": {each: UNSHOWN[each] for each in DESIGNS if each in UNSHOWN},
    }
    yield json.dumps(heading)
    for vector in vectors:
        yield json.dumps(as_object(vector))


def as_object(vector: Vector) -> dict[str, Any]:
    """Return a vector as the object of its line."""
    return {
        "program": written(vector.program),
        "feature": vector.feature,
        "needs": vector.needs,
        "guards": vector.guards,
        "refutes": dict(sorted(vector.refutes.items())),
        "steps": [
            asked(step.op) | {"may": [[as_record(event) for event in events] for events in step.may]}
            for step in vector.steps
        ],
    }


def read(text: str) -> list[Vector]:
    """Return the vectors of a file. Raises ValueError if it is of another version."""
    heading, *rest = (json.loads(line) for line in text.splitlines())
    if heading.get("vectors") != VERSION:
        raise ValueError(f"these are vectors of version {heading.get('vectors')}, not {VERSION}")
    return [_vector(line) for line in rest]


def _vector(line: dict[str, Any]) -> Vector:
    program = parsed(line["program"])
    steps = tuple(
        VectorStep(op, tuple(tuple(observed(_whole(record)) for record in events) for events in step["may"]))
        for op, step in zip(program, line["steps"], strict=True)
    )
    for op, step in zip(program, line["steps"], strict=True):
        if asked(op) != {key: value for key, value in step.items() if key != "may"}:
            raise ValueError(f"{step} is not what the program says: {op}, session {SESSIONS[op.place]}")
    refutes = {name: Property(each) for name, each in line["refutes"].items()}
    return Vector(tuple(line["needs"]), steps, tuple(map(Property, line["guards"])), refutes)


def _whole(record: dict[str, Any]) -> dict[str, Any]:
    """Return the record of an event with what a vector leaves free, for an event of the port has it."""
    return {"reason": "end_turn"} | record if record["event"] == "wrote" else record
