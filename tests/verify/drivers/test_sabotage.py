"""Every known-bad design, built into the real dispatcher, is found by the rules."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

from turngate import Dispatcher
from turngate_model import DESIGNS
from turngate_verify.drivers.rules.search import run_rules
from turngate_verify.drivers.sabotage import EXAMPLES, SABOTAGES, Sabotaged, UnlockedClear
from turngate_verify.world.expecting import Broken
from turngate_verify.world.world import World


def test_every_design_is_built_into_the_real_dispatcher() -> None:
    assert list(SABOTAGES) == list(DESIGNS)
    for name, sabotage in SABOTAGES.items():
        assert sabotage.breaks == DESIGNS[name].breaks
        assert issubclass(sabotage.make, Dispatcher)
        assert str(sabotage.make.__doc__).splitlines()[0] == DESIGNS[name].flaw


def test_the_races_are_those_that_take_two_steps() -> None:
    assert {name for name, sabotage in SABOTAGES.items() if sabotage.race} == {
        "unlocked-drain",
        "idle-gap",
        "unserialized-entry",
        "blind-release",
        "unlocked-clear",
        "late-mark",
    }


def test_what_the_sabotages_are_made_with_breaks_nothing() -> None:
    rules = run_rules(100, make=Sabotaged, seed=1)
    assert (rules.violation, rules.error) == (None, "")


@pytest.mark.parametrize("name", SABOTAGES)
def test_the_rules_find_it_and_say_what_it_is_known_to_break(name: str) -> None:
    sabotage = SABOTAGES[name]
    rules = run_rules(EXAMPLES, make=sabotage.make, seed=0, claimed=sabotage.breaks)
    assert rules.violation is not None
    assert rules.violation.property in sabotage.breaks
    assert rules.examples <= EXAMPLES


def queue_cleared_meanwhile(meanwhile: Callable[[World], object]) -> list[str]:
    """Return what is broken when something comes between the two steps of a clear."""
    world = World(UnlockedClear, claimed=UnlockedClear.claimed)
    for run in "ab":
        world.accept("s", run)
        world.enter(run)
    world.loop.settle()
    world.clear("s")
    meanwhile(world)
    with suppress(Broken):
        world.finish()
    world.abandon()
    return [each.what for each in world.monitor.violations if each.property in UnlockedClear.claimed]


def queue_another(world: World) -> None:
    world.accept("s", "c")
    world.enter("c")


def test_an_unlocked_clear_loses_one_and_completes_one_twice() -> None:
    assert queue_cleared_meanwhile(lambda world: None) == []
    lost = queue_cleared_meanwhile(queue_another)
    assert lost == ["c is queued when the dispatcher is closed: it is owed a RunComplete"]
    twice = queue_cleared_meanwhile(lambda world: world.cancel("s"))
    assert twice[0] == "b gets a second RunComplete"


@pytest.mark.parametrize("name", ["silent-drop", "hasty-clear", "publish-first", "idle-gap"])
def test_it_is_found_without_knowing_what_to_look_for(name: str) -> None:
    rules = run_rules(EXAMPLES, make=SABOTAGES[name].make, seed=0)
    assert rules.violation is not None
