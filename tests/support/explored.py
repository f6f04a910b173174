"""What takes long to find out and many tests need: found out once in a process."""

from __future__ import annotations

from functools import cache

from turngate_model import DURABLE_DESIGNS, EVERY_DESIGN
from turngate_model.checker import Bounds, DurableBounds, Exploration
from turngate_model.durable import refute_durable
from turngate_model.pictures import Generated, generate, refute
from turngate_model.pictures.dot import HOW_TO_GET_DOT


@cache
def refuted(name: str) -> Exploration[Bounds]:
    """Explore a known-bad design until it is refuted."""
    return refute(EVERY_DESIGN[name])


def all_refuted() -> dict[str, Exploration[Bounds]]:
    return {name: refuted(name) for name in EVERY_DESIGN}


@cache
def refuted_durable(name: str) -> Exploration[DurableBounds]:
    """Explore a known-bad design of processes until it is refuted."""
    return refute_durable(DURABLE_DESIGNS[name])


def all_durable_refuted() -> dict[str, Exploration[DurableBounds]]:
    return {name: refuted_durable(name) for name in DURABLE_DESIGNS}


@cache
def generated() -> Generated:
    """Generate everything, SVG of graphs included if dot is here."""
    return generate(refuted=all_refuted())


def with_dot() -> Generated:
    """Everything, as it is where dot is installed; a stand-in has drawn the graphs."""
    return _drawn_as("<!-- {mark} --><svg/>")._replace(skipped="")


def without_dot() -> Generated:
    return _drawn_as("")._replace(skipped=HOW_TO_GET_DOT)


def _drawn_as(svg: str) -> Generated:
    drawings = [
        each._replace(content=svg.format(mark=each.mark)) if each.mark else each
        for each in generated().drawings
    ]
    return generated()._replace(drawings=drawings)
