"""The sizes of the explored state spaces. A test pins them: another number means another model."""

from __future__ import annotations

from typing import NamedTuple


class Count(NamedTuple):
    """What exploring the mechanism within bounds comes to, for two sessions and with symmetry."""

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


class LimitedCount(NamedTuple):
    """The same with a limit on turns."""

    sessions: int
    prompts: int
    cancels: int
    turns_limit: int
    states: int
    transitions: int
    depth: int


LIMITED_COUNTS = (
    LimitedCount(2, 2, 1, 1, 731, 4_855, 12),
    LimitedCount(2, 3, 1, 1, 10_454, 91_094, 15),
    LimitedCount(3, 3, 1, 1, 13_165, 120_579, 17),
    LimitedCount(3, 3, 1, 2, 13_552, 124_861, 17),
)
