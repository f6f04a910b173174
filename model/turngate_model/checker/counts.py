"""The bounds explored and what was counted, pinned: a change in a count is a change in the model."""

from __future__ import annotations

from typing import NamedTuple


class Count(NamedTuple):
    """What exploring the mechanism within bounds comes to, for two sessions and symmetry on."""

    prompts: int
    cancels: int
    states: int
    transitions: int
    depth: int


COUNTS = (
    Count(2, 1, 596, 3_962, 10),
    Count(2, 2, 1_081, 8_315, 11),
    Count(3, 1, 8_216, 71_905, 13),
    Count(3, 2, 16_475, 165_890, 14),
    Count(4, 1, 102_538, 1_089_005, 16),
    Count(4, 2, 224_369, 2_725_300, 17),
)
