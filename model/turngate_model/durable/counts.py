"""The bounds explored among processes, and what was counted: a change in a count is a change in the model."""

from __future__ import annotations

from typing import NamedTuple

from turngate_model.durable.decisions import DurableBounds


class DurableCount(NamedTuple):
    """What exploring the durable mechanism within bounds comes to."""

    bounds: DurableBounds
    states: int
    depth: int


DURABLE_COUNTS = (
    DurableCount(DurableBounds(), 21_263, 13),
    DurableCount(DurableBounds(on_death="retry"), 53_709, 17),
)
