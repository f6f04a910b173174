"""The graph of one session: all of it within bounds, and no further than a promise reaches."""

from __future__ import annotations

import pytest

from explored import refuted
from turngate_model import MECHANISMS, NOT_IN_DESIGNS, Mechanism
from turngate_model.checker import Bounds, Explorer, MemoryModel
from turngate_model.checker.graph import SessionGraph, TooLarge
from turngate_model.lifecycle import DeclaredState
from turngate_model.mechanism import Action

SMALL = Bounds(2, 1, 1)
OF_DESIGNS = Bounds(2, 1, 1, without=NOT_IN_DESIGNS)


def test_it_has_the_states_and_the_steps_of_the_explorer() -> None:
    graph, model = SessionGraph(SMALL), MemoryModel(SMALL)
    assert graph.states == Explorer(model).run().states
    assert not any(step.violations for steps in graph.steps.values() for step in steps.values())
    ways_on = {(before.key(), action, after.key()) for before, action, after in model.steps()}
    walked = {
        (graph.nodes.abstract(node).key(), action, graph.nodes.abstract(step.target).key())
        for node, steps in graph.steps.items()
        for action, step in steps.items()
    }
    assert walked == ways_on


@pytest.mark.parametrize("name", ["pending-flag", "reused-id", "leaky-session"])
def test_it_ends_where_something_is_broken(name: str) -> None:
    graph = SessionGraph(OF_DESIGNS, MECHANISMS[name])
    sound = {graph.first}
    broken = set[int]()
    for steps in graph.steps.values():
        for step in steps.values():
            (broken if step.violations else sound).add(step.target)
    assert broken - sound
    assert all(graph.steps[node] == {} for node in broken - sound)
    assert any(graph.steps[node] for node in sound)


def test_a_way_goes_on_past_what_is_broken() -> None:
    mechanism = MECHANISMS["swallowed-outer"]
    example = refuted("swallowed-outer").counterexample
    assert example is not None
    graph = SessionGraph(OF_DESIGNS, mechanism)
    way = [step.action for step in example.steps]
    passed = graph.along(way)
    found = [graph.steps[node][action].violations for node, action in zip(passed, way, strict=False)]
    assert [bool(each) for each in found] == [False] * 5 + [True, False, True]
    assert example.property in {each.property for each in found[-1]}
    assert graph.steps[passed[-1]] == {}


def test_events_go_with_their_step() -> None:
    graph = SessionGraph(SMALL)
    accept, enter = Action("caller", "accept", "a", "fold"), Action("caller", "enter", "a")
    first, second, third = graph.along([accept, enter])
    assert first == graph.first
    assert [type(event).__name__ for event in graph.steps[second][enter].events] == ["Enter"]
    assert graph.nodes.abstract(third).states == {"a": DeclaredState.ACTIVE}


def test_what_is_too_large_or_not_for_one_session_is_refused() -> None:
    with pytest.raises(TooLarge, match="more than 50 nodes"):
        SessionGraph(SMALL, Mechanism, most=50)
    for bounds in (Bounds(2, 1, 2), Bounds(2, 1, 1, turns_limit=1)):
        with pytest.raises(ValueError, match="one session"):
            SessionGraph(bounds)
