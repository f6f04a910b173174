"""The known-bad designs that are races: the schedule explorer finds each, and its replay does it again."""

from __future__ import annotations

import pytest

from turngate_verify.drivers.sabotage import SABOTAGES
from turngate_verify.drivers.schedules import explore_schedules, replay_schedule
from turngate_verify.world.stage import LoopMode

FOUND_IN = {
    "unlocked-drain": "folded",
    "idle-gap": "three",
    "unserialized-entry": "two",
    "blind-release": "two",
    "unlocked-clear": "own-turn",
    "late-mark": "submitted",
}


def test_every_race_is_looked_for() -> None:
    assert set(FOUND_IN) == {name for name, sabotage in SABOTAGES.items() if sabotage.race}


@pytest.mark.parametrize("mode", ["any", "stock"])
@pytest.mark.parametrize("name", FOUND_IN)
def test_the_schedule_explorer_finds_the_race(name: str, mode: LoopMode) -> None:
    sabotage = SABOTAGES[name]
    failure = explore_schedules(FOUND_IN[name], mode, make=sabotage.make).failure
    assert failure is not None
    assert failure.broken in sabotage.breaks
    again = replay_schedule(FOUND_IN[name], mode, failure.choices, make=sabotage.make)
    assert again is not None
    assert (again.broken, again.what) == (failure.broken, failure.what)
