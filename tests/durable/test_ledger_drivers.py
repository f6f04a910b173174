"""Lockstep, rules, faults and every interleaving on a ledger in memory; the eight bad designs, each found."""

from __future__ import annotations

import functools
import time
from typing import Any

import pytest

from turngate.durable import DurableDispatcher
from turngate_model.checker import Bounds
from turngate_verify.drivers.ledger_calls import search as search_calls
from turngate_verify.drivers.ledger_faults import search
from turngate_verify.drivers.ledger_lockstep import compare_on_ledger
from turngate_verify.drivers.ledger_rules import run_ledger_rules
from turngate_verify.drivers.ledger_sabotage import NO_LEASE, SABOTAGE, patched, sabotaged
from turngate_verify.drivers.ledger_scenarios import CALLS, LARGE, SMALL, TOO_LARGE
from turngate_verify.drivers.ledger_schedules import NO_END, Scenario, explore
from turngate_verify.world.spoiled_ledger import METHODS, spoils_of

IN_LINE = Bounds(2, 1, 1, holds=1, moves=1, into=True)
"""Callers hold, move, edit and send now what waits, and send prompts for one turn alone."""


@pytest.mark.requirement("REFINES")
@pytest.mark.parametrize("processes", [1, 2])
def test_every_save_of_the_mechanism_is_a_save_of_the_dispatcher(processes: int) -> None:
    result = compare_on_ledger(Bounds(prompts=2, cancels=1), processes=processes)
    assert result.violation is None, (result.path, result.violation)
    assert (result.states, result.steps) == (61, 364)


@pytest.mark.requirement("REFINES", "HELD", "AS_EDITED")
@pytest.mark.parametrize("processes", [pytest.param(1, marks=pytest.mark.deep), 2])
def test_every_save_about_waiting_runs_is_a_save_of_the_dispatcher(processes: int) -> None:
    result = compare_on_ledger(IN_LINE, processes=processes)
    assert result.violation is None, (result.path, result.violation)
    assert (result.states, result.steps) == (337, 3_596)


@pytest.mark.requirement("DURABLE", "FENCED", "ADOPTED")
@pytest.mark.parametrize("remembers", [True, False])
def test_one_fault_at_every_point(remembers: bool) -> None:
    found = search(remembers=remembers)
    assert found.wrong == ""
    assert found.played > 2_000


def test_one_fault_at_some_calls_of_every_method_with_onlookers() -> None:
    found = search_calls(every=60)
    assert found.wrong == {}
    assert found.spoiled.keys() == {(method, spoil) for method in METHODS for spoil in spoils_of(method)}


@pytest.mark.deep
def test_one_fault_at_every_call_of_every_method_with_onlookers() -> None:
    found = search_calls(most=20)
    assert found.wrong == {}
    assert found.played > 7_000


@pytest.mark.requirement("DURABLE", "FENCED", "ADOPTED", "HELD", "AS_EDITED")
@pytest.mark.parametrize("on_death", ["fail", "retry"])
def test_all_drawn_programs_hold_and_everything_is_reached(on_death: Any) -> None:
    found = run_ledger_rules(300, on_death=on_death)
    assert found.wrong == [], found.program
    assert found.missed == frozenset()


@pytest.mark.requirement("DURABLE", "ADOPTED")
def test_all_drawn_programs_hold_with_one_place_per_process() -> None:
    found = run_ledger_rules(200, make=functools.partial(DurableDispatcher, turns_limit=1))
    assert found.wrong == [], found.program
    assert found.missed == frozenset()


@pytest.mark.deep
@pytest.mark.parametrize("on_death", ["fail", "retry"])
def test_whatever_is_drawn_holds_at_length(on_death: Any) -> None:
    found = run_ledger_rules(10_000, on_death=on_death, seed=time.time_ns(), rules=60)
    assert found.wrong == [], found.program


@pytest.mark.deep
@pytest.mark.parametrize("processes", [1, 2])
def test_every_save_of_three_runs_is_a_save_of_the_dispatcher(processes: int) -> None:
    result = compare_on_ledger(Bounds(prompts=3, cancels=1), processes=processes)
    assert result.violation is None, (result.path, result.violation)
    assert (result.states, result.steps) == (473, 3_713)


@pytest.mark.parametrize(
    "design", ["answer-lost-retried", "notify-only-cancel", "orphaned-accept", "reap-without-handoff"]
)
def test_a_bad_design_is_found_by_one_fault(design: str) -> None:
    with sabotaged(design) as (make, _):
        found = search(make=make)
    assert found.wrong, f"{design} was not found in {found.played} programs"


def test_a_bad_design_is_found_by_lockstep() -> None:
    with sabotaged("notify-only-cancel") as (make, _):
        assert compare_on_ledger(Bounds(prompts=2, cancels=1), make=make).violation is not None


# Two processes on one ledger, every interleaving; and the eight bad designs in the real code, each found.


@pytest.mark.requirement("DURABLE", "FENCED", "ADOPTED", "HELD", "AS_EDITED")
@pytest.mark.parametrize("scenario", SMALL, ids=lambda scenario: scenario.name)
def test_every_interleaving_of_a_small_scenario_is_tried_and_holds(scenario: Scenario) -> None:
    explored = explore(scenario)
    assert explored.wrong == [], explored.choices
    assert explored.exhausted


@pytest.mark.deep
@pytest.mark.parametrize("scenario", LARGE, ids=lambda scenario: scenario.name)
def test_every_interleaving_of_a_larger_scenario_is_tried_and_holds(scenario: Scenario) -> None:
    explored = explore(scenario, limit=60_000)
    assert explored.wrong == [], explored.choices
    assert explored.exhausted, f"only {explored.schedules} schedules of {scenario.name} were tried"


@pytest.mark.deep
@pytest.mark.parametrize("scenario", TOO_LARGE, ids=lambda scenario: scenario.name)
def test_the_first_interleavings_of_a_scenario_that_is_too_large_hold(scenario: Scenario) -> None:
    explored = explore(scenario, limit=10_000)
    assert explored.wrong == [], explored.choices
    assert explored.states > 10_000


@pytest.mark.requirement("FENCED")
@pytest.mark.parametrize("calls", ["a submit", "a submit and a cancel"])
def test_the_fence_alone_is_enough_where_the_dead_may_save(calls: str) -> None:
    with patched(NO_LEASE):
        explored = explore(Scenario(calls, CALLS[calls], ("lease",)))
    assert explored.wrong == [], explored.choices
    assert explored.exhausted


@pytest.mark.parametrize("design", SABOTAGE)
def test_a_bad_design_is_found(design: str) -> None:
    with sabotaged(design) as (make, scenario):
        explored = explore(scenario, make=make)
    assert explored.wrong, f"{design} was not found in {explored.schedules} schedules"
    assert explored.wrong != [NO_END], f"{design} never ends, which is another defect"
