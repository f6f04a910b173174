"""The results of an exploration of either model: the counts, and why a verdict is unknown."""

from __future__ import annotations

from typing import Any

from turngate_model.checker import Bounds, DurableBounds, Exploration


def found(result: Exploration[Bounds] | Exploration[DurableBounds]) -> dict[str, Any]:
    """Return what an exploration found, as the end of the object that ``--json`` prints."""
    told: dict[str, Any] = {
        "states": result.states,
        "transitions": result.transitions,
        "depth": result.depth,
        "seconds": round(result.seconds, 3),
    }
    if result.counterexample:
        told["property"] = str(result.counterexample.property)
        told["counterexample"] = result.counterexample.told()
        told["expected"] = result.counterexample.what
        told["also"] = {str(name): len(example.steps) for name, example in result.counterexamples.items()}
    if result.verdict == "unknown":
        told["reasons"] = reasons(result)
    return told


def reasons(result: Exploration[Bounds] | Exploration[DurableBounds]) -> list[str]:
    """Return why the verdict is unknown."""
    if result.gave_up:
        return [result.gave_up]
    if result.design:
        breaks = " or ".join(result.claimed)
        return [f"within these bounds {result.design} does not break {breaks}: the bounds are too small"]
    said = []
    if result.unexercised:
        said.append(f"within these bounds, nothing tests {', '.join(result.unexercised)}")
    return said + [f"never happened: {each}" for each in result.missed]
