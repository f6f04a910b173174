"""Lockstep, rules and faults on a ledger in memory, as there are for the dispatcher in memory."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from turngate_model.checker import Bounds
from turngate_verify.drivers.ledger_calls import search as search_calls
from turngate_verify.drivers.ledger_faults import search
from turngate_verify.drivers.ledger_lockstep import compare_on_ledger
from turngate_verify.drivers.ledger_rules import play, programs
from turngate_verify.drivers.ledger_sabotage import sabotaged
from turngate_verify.world.spoiled_ledger import METHODS, spoils_of

SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large)
NEVER_LATE = settings(deadline=None, database=None, suppress_health_check=SLOW)


@pytest.mark.requirement("REFINES")
@pytest.mark.parametrize("processes", [1, 2])
def test_every_save_of_the_mechanism_is_a_save_of_the_dispatcher(processes: int) -> None:
    result = compare_on_ledger(Bounds(prompts=2, cancels=1), processes=processes)
    assert result.violation is None, (result.path, result.violation)
    assert (result.states, result.steps) == (61, 364)


@pytest.mark.requirement("DURABLE", "FENCED", "ADOPTED")
@pytest.mark.parametrize("remembers", [True, False])
def test_one_fault_at_every_point(remembers: bool) -> None:
    found = search(remembers=remembers)
    assert found.wrong == ""
    assert found.played > 500


def test_one_fault_at_some_calls_of_every_method_with_everybody_looking_on() -> None:
    found = search_calls(every=60)
    assert found.wrong == {}
    assert found.spoiled.keys() == {(method, spoil) for method in METHODS for spoil in spoils_of(method)}


@pytest.mark.deep
def test_one_fault_at_every_call_of_every_method_with_everybody_looking_on() -> None:
    found = search_calls(most=20)
    assert found.wrong == {}
    assert found.played > 7_000


@pytest.mark.requirement("DURABLE", "FENCED", "ADOPTED")
@pytest.mark.parametrize("on_death", ["fail", "retry"])
def test_whatever_is_drawn_holds(on_death: Any) -> None:
    reached: set[str] = set()

    @settings(NEVER_LATE, max_examples=300, derandomize=True)
    @given(programs())
    def holds(program: list[Any]) -> None:
        wrong, outcomes = play(program, on_death=on_death)
        reached.update(outcomes)
        assert wrong == []

    holds()
    wanted = {"finished", "failed", "cancelled", "cleared", "released", "lost"}
    assert reached == wanted - ({"lost"} if on_death == "retry" else set())


@pytest.mark.deep
@pytest.mark.parametrize("on_death", ["fail", "retry"])
def test_whatever_is_drawn_holds_at_length(on_death: Any) -> None:
    @settings(NEVER_LATE, max_examples=10_000)
    @given(programs(60))
    def holds(program: list[Any]) -> None:
        assert play(program, on_death=on_death)[0] == []

    holds()


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
