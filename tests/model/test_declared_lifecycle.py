"""The declared machine: its table, its laws, and the two ways of executing it."""

from __future__ import annotations

import itertools

import pytest

from turngate_model import TABLE, DeclaredState, Guard, Lifecycle, Trigger, UndeclaredMove, successor
from turngate_model.checker import Bounds, Explorer, MemoryModel
from turngate_model.lifecycle import GUARD_MEANINGS, INITIAL, TERMINAL

EVERY_COMBINATION = [Guard(facts) for facts in range(1 << len(Guard))]


def test_the_moves_are_those_of_the_contract() -> None:
    assert [(row.trigger, row.source, row.target) for row in TABLE] == [
        ("enter", "accepted", "cancel_on_entry"),
        ("enter", "accepted", "queued"),
        ("enter", "accepted", "queued"),
        ("enter", "accepted", "active"),
        ("release", "accepted", "complete"),
        ("handoff", "queued", "active"),
        ("fold", "queued", "active"),
        ("drop", "queued", "complete"),
        ("drop", "queued", "complete"),
        ("settle", "cancel_on_entry", "complete"),
        ("finish", "active", "complete"),
    ]
    assert INITIAL is DeclaredState.ACCEPTED


def test_every_guard_is_used_and_explained() -> None:
    assert {guard for row in TABLE for guard in (*row.conditions, *row.unless)} == set(Guard)
    assert set(GUARD_MEANINGS) == set(Guard)


@pytest.mark.requirement("R-MAC-2")
def test_at_most_one_row_applies() -> None:
    for state, trigger, facts in itertools.product(DeclaredState, Trigger, EVERY_COMBINATION):
        applying = [
            row
            for row in TABLE
            if (row.source, row.trigger) == (state, trigger)
            and all(guard in facts for guard in row.conditions)
            and not any(guard in facts for guard in row.unless)
        ]
        assert len(applying) <= 1, (state, trigger, facts, applying)


def test_nothing_leaves_the_terminal_state() -> None:
    assert not [row for row in TABLE if row.source is TERMINAL]


@pytest.mark.requirement("R-MAC-1", "DECLARED_MOVE")
def test_an_undeclared_move_raises_and_changes_nothing() -> None:
    run = Lifecycle()
    with pytest.raises(UndeclaredMove, match="handoff from accepted with no facts"):
        run.handoff()
    assert run.state is DeclaredState.ACCEPTED
    queued = Lifecycle(DeclaredState.QUEUED)
    queued.facts = Guard.OCCUPIED
    with pytest.raises(UndeclaredMove, match="fold from queued with occupied"):
        queued.fold()
    assert queued.state is DeclaredState.QUEUED


def test_every_trigger_has_its_typed_method() -> None:
    def moved(run: Lifecycle, facts: Guard) -> Lifecycle:
        run.facts = facts
        return run

    assert moved(Lifecycle(), Guard.COVERED).enter() is DeclaredState.CANCEL_ON_ENTRY
    assert moved(Lifecycle(), Guard(0)).release() is DeclaredState.COMPLETE
    queued, first = DeclaredState.QUEUED, Guard.FIRST
    assert moved(Lifecycle(queued), first | Guard.VACATED).handoff() is DeclaredState.ACTIVE
    assert moved(Lifecycle(queued), first | Guard.JOINABLE | Guard.FOLDABLE).fold() is DeclaredState.ACTIVE
    assert moved(Lifecycle(queued), Guard.CLEARED).drop() is DeclaredState.COMPLETE
    assert moved(Lifecycle(DeclaredState.CANCEL_ON_ENTRY), Guard.SETTLED).settle() is DeclaredState.COMPLETE
    assert moved(Lifecycle(DeclaredState.ACTIVE), Guard.SETTLED).finish() is DeclaredState.COMPLETE


def _executed(state: DeclaredState, trigger: Trigger, facts: Guard) -> DeclaredState | None:
    run = Lifecycle(state)
    run.facts = facts
    try:
        return run.fire(trigger)
    except UndeclaredMove:
        assert run.state is state
        return None


def test_the_package_and_the_compiled_table_agree_on_every_edge_of_every_reachable_state() -> None:
    model = MemoryModel(Bounds(prompts=3, cancels=1, sessions=1))
    Explorer(model).run()
    reachable = {
        (session.states[run], session.facts(run))
        for before, _, after in model.steps()
        for session in (before, after)
        for run in session.states
    }
    assert len(reachable) == 30
    for (state, facts), trigger in itertools.product(reachable, Trigger):
        assert _executed(state, trigger, Guard(facts)) is successor(state, trigger, facts)


def test_the_package_and_the_compiled_table_agree_whatever_the_facts() -> None:
    for state, trigger, facts in itertools.product(DeclaredState, Trigger, EVERY_COMBINATION[::3]):
        assert _executed(state, trigger, facts) is successor(state, trigger, facts)
