"""The explorer of processes: its counts, its verdicts, its reductions; a check that saw nothing fails."""

from __future__ import annotations

from typing import Any

import pytest

from turngate_model.checker import DurableBounds, Explorer, OnDeath, Progress, SearchLimits
from turngate_model.checker.counts import DURABLE_COUNTS, Count
from turngate_model.durable import JUDGED, DurableMechanism, DurableModel
from turngate_model.durable.records import ModelLedger
from turngate_model.properties import DurableProperty, Property


@pytest.mark.requirement("DURABLE", "FENCED", "ADOPTED", "REFINES")
@pytest.mark.parametrize(
    "count",
    [
        pytest.param(
            count,
            id=f"{count.bounds.prompts} prompts, {count.bounds.processes} processes, {count.bounds.on_death}",
            marks=pytest.mark.deep if nth > 1 else (),
        )
        for nth, count in enumerate(DURABLE_COUNTS)
    ],
)
def test_the_counts_are_those_of_the_table(count: Count[DurableBounds]) -> None:
    result = Explorer(DurableModel(count.bounds)).run()
    assert (result.verdict, result.counterexamples, result.unexercised, result.missed) == (
        "holds",
        {},
        (),
        (),
    )
    assert (result.states, result.transitions, result.depth) == count[1:]


SMALL = DurableBounds(prompts=1, loads=0)


@pytest.mark.parametrize("on_death", ["fail", "retry"])
def test_processes_are_alike(on_death: OnDeath) -> None:
    bounds = DurableBounds(prompts=1, loads=0, on_death=on_death)
    small, large = (Explorer(DurableModel(bounds, symmetry=symmetry)).run() for symmetry in (True, False))
    assert 1.5 * small.states < large.states < 2 * small.states
    assert (small.depth, small.counterexamples) == (large.depth, large.counterexamples)
    assert small.missed == large.missed


class WithBudgets(DurableModel):
    """What is used up is part of the state: nothing but the very same counts as met before."""

    def covers(self, before: tuple[int, ...], used: tuple[int, ...]) -> bool:
        return before == used


def test_what_is_used_up_of_the_bounds_is_no_part_of_a_state() -> None:
    less, more = Explorer(DurableModel(SMALL)), Explorer(WithBudgets(SMALL))
    assert less.run().counterexamples == more.run().counterexamples == {}
    assert less.result.states == more.result.states
    assert less.model.witness.seen == more.model.witness.seen
    assert less.result.transitions < more.result.transitions


def test_what_nothing_put_to_the_test_is_unknown() -> None:
    result = Explorer(DurableModel(DurableBounds(crashes=0, losses=0, loads=0, prompts=1))).run()
    assert result.verdict == "unknown"
    assert set(result.unexercised) >= {DurableProperty.DURABLE, DurableProperty.ADOPTED, Property.FIFO}
    assert DurableProperty.FENCED not in result.unexercised


def test_what_should_have_happened_and_did_not_is_named() -> None:
    class NeverRetries(DurableMechanism):
        """A turn is never begun again, whatever was asked for."""

        def given(self, ledger: ModelLedger, me: int, attempts: int) -> ModelLedger:
            return super().given(ledger, me, self.bounds.attempts)

    result = Explorer(DurableModel(DurableBounds(loads=0, cancels=0, on_death="retry"), NeverRetries)).run()
    assert result.verdict == "unknown"
    assert result.missed == ("a turn of the dead begun again", "a turn with a folded run begun again")


def test_one_session_says_nothing_about_isolation() -> None:
    assert set(JUDGED) == {*Property, *DurableProperty} - {Property.ISOLATION}


def test_a_limit_reached_is_unknown_and_progress_is_told() -> None:
    told: list[Progress] = []
    result = Explorer(
        DurableModel(DurableBounds()), limits=SearchLimits(seconds=0.05), progress=told.append
    ).run()
    assert (result.verdict, result.gave_up) == ("unknown", "time ran out after 0.05 s")
    assert told[0].states == 1


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"processes": 0}, "processes must be from 1 to 4, not 0"),
        ({"prompts": 9}, "prompts must be from 1 to 8, not 9"),
        ({"crashes": -1}, "crashes must be from 0 to 16, not -1"),
        ({"on_death": "pray"}, "on_death must be fail or retry, not pray"),
    ],
)
def test_bounds_must_make_sense(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        DurableBounds(**wrong)
