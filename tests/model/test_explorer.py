"""The explorer, with both models: counts, verdicts, reductions, and that it tells what is wrong."""

from __future__ import annotations

from typing import Any, TypeAlias

import pytest

from explored import refuted
from turngate_model import DESIGNS, MECHANISMS, NOT_IN_DESIGNS, Mechanism, Property
from turngate_model.checker import (
    HEART,
    Bounds,
    DurableBounds,
    Exploration,
    Explorer,
    MemoryModel,
    OnDeath,
    Progress,
    SearchLimits,
)
from turngate_model.checker.counts import (
    COUNTS,
    DURABLE_COUNTS,
    DURABLE_LINE_COUNTS,
    LIMITED_COUNTS,
    LINE_COUNTS,
    Count,
)
from turngate_model.durable import JUDGED, DurableMechanism, DurableModel
from turngate_model.durable.records import ModelLedger
from turngate_model.model_session import ModelRun, ModelSession, ModelTurn
from turngate_model.properties import DurableProperty

AnyCount: TypeAlias = Count[Bounds] | Count[DurableBounds]


def explored(bounds: Bounds | DurableBounds) -> Exploration[Bounds] | Exploration[DurableBounds]:
    if isinstance(bounds, Bounds):
        return Explorer(MemoryModel(bounds)).run()
    return Explorer(DurableModel(bounds)).run()


def is_deep(count: AnyCount) -> bool:
    return (count.states > 50_000 and count is not DURABLE_COUNTS[1]) or count is DURABLE_COUNTS[2]


def untested(bounds: Bounds | DurableBounds) -> tuple[Property, ...]:
    """Return what cannot be put to the test: of ISOLATION, one session says nothing."""
    return (Property.ISOLATION,) if isinstance(bounds, Bounds) and bounds.sessions == 1 else ()


@pytest.mark.requirement("REFINES", "R-PLC-1", "R-PLC-2", "R-PLC-3", "R-PLC-4", "R-PLC-5", "R-LIV-1")
@pytest.mark.requirement("DURABLE", "FENCED", "ADOPTED", "HELD", "AS_EDITED")
@pytest.mark.parametrize(
    "count",
    [
        pytest.param(count, id=str(count.bounds), marks=pytest.mark.deep if is_deep(count) else ())
        for count in (*COUNTS, *LIMITED_COUNTS, *LINE_COUNTS, *DURABLE_COUNTS, *DURABLE_LINE_COUNTS)
    ],
)
def test_everything_holds_and_the_counts_are_those_of_the_table(count: AnyCount) -> None:
    result = explored(count.bounds)
    assert (result.verdict, result.counterexamples, result.unexercised, result.missed) == (
        "unknown" if untested(count.bounds) else "holds",
        {},
        untested(count.bounds),
        (),
    )
    assert (result.states, result.transitions, result.depth) == count[1:]


@pytest.mark.parametrize(
    "bounds",
    [
        Bounds(2, 1),
        Bounds(2, 2),
        Bounds(2, 1, holds=1, moves=1, into=True),
        Bounds(3, 0, sessions=1),
        pytest.param(Bounds(3, 1, sessions=1), marks=pytest.mark.deep),
    ],
)
def test_symmetry_leaves_out_copies_and_changes_no_verdict(bounds: Bounds) -> None:
    small, large = (Explorer(MemoryModel(bounds, symmetry=symmetry)).run() for symmetry in (True, False))
    assert large.states > 1.5 * small.states
    assert large.depth == small.depth
    assert (large.counterexamples, large.exercised) == (small.counterexamples, small.exercised)


@pytest.mark.parametrize("name", ["pending-flag", "unserialized-entry", "late-mark", "leaky-session"])
def test_symmetry_changes_no_refutation(name: str) -> None:
    design, bounds = DESIGNS[name], Bounds(2, 1, without=NOT_IN_DESIGNS)
    results = [
        Explorer(
            MemoryModel(bounds, MECHANISMS[name], name=name, symmetry=symmetry), claimed=design.breaks
        ).run()
        for symmetry in (True, False)
    ]
    shortest = [result.counterexample for result in results]
    assert shortest[0] is not None
    assert shortest[1] is not None
    assert (shortest[0].property, len(shortest[0].steps)) == (shortest[1].property, len(shortest[1].steps))


def test_what_nothing_put_to_the_test_is_unknown() -> None:
    result = Explorer(MemoryModel(Bounds(prompts=1, cancels=1))).run()
    assert result.verdict == "unknown"
    assert Property.FIFO in result.unexercised
    assert Property.FULL_COVERAGE not in result.unexercised


def test_an_action_that_never_happens_makes_the_verdict_unknown() -> None:
    class NeverFolds(Mechanism):
        def fold(self, s: ModelSession, turn: ModelTurn) -> None:
            """Give the runner nothing."""

    result = Explorer(MemoryModel(Bounds(2, 1), NeverFolds)).run()
    assert result.verdict == "unknown"
    assert result.missed == (
        "ending cancelled while folded",
        "ending failed, folded",
        "ending finished, folded",
    )


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (SearchLimits(seconds=0.01), "time ran out after 0.01 s"),
        (SearchLimits(mebibytes=1), "memory ran out at 1 MiB"),
    ],
)
def test_a_limit_reached_is_unknown(limits: SearchLimits, reason: str) -> None:
    result = Explorer(MemoryModel(Bounds(4, 2)), limits=limits).run()
    assert (result.verdict, result.gave_up) == ("unknown", reason)
    of_processes = Explorer(DurableModel(DurableBounds()), limits=limits).run()
    assert (of_processes.verdict, of_processes.gave_up) == ("unknown", reason)


def test_progress_is_reported() -> None:
    told: list[Progress] = []
    Explorer(MemoryModel(Bounds(2, 1)), progress=told.append).run()
    assert told[0].states == 1
    assert told[-1].depth >= 9


def test_bounds_and_limits_must_make_sense() -> None:
    with pytest.raises(ValueError, match="prompts must be from 1 to 8, not 0"):
        Bounds(prompts=0)
    with pytest.raises(ValueError, match="cancels must be from 0 to 16, not -1"):
        Bounds(cancels=-1)
    with pytest.raises(ValueError, match="sessions must be from 1 to 3, not 4"):
        Bounds(sessions=4)
    with pytest.raises(ValueError, match="limits of time and memory must be above zero"):
        SearchLimits(seconds=0)


def test_the_heart_of_the_mechanism_can_be_explored_alone() -> None:
    result = Explorer(MemoryModel(Bounds(2, 1, 2, HEART))).run()
    assert (result.verdict, result.states, result.transitions, result.depth) == ("holds", 347, 868, 9)


@pytest.mark.requirement("ISOLATION")
def test_a_session_that_disturbs_another_breaks_isolation() -> None:
    class SharedMark(Mechanism):
        """One cancel mark for all sessions."""

        def raise_mark(self, s: ModelSession) -> None:
            self.common = max(self.common, int(bool(s.accepted)))

        def is_covered(self, s: ModelSession, run: ModelRun) -> bool:
            return bool(self.common)

    result = Explorer(
        MemoryModel(Bounds(2, 1, without=NOT_IN_DESIGNS), SharedMark, name="shared"),
        claimed=(Property.ISOLATION,),
    ).run()
    example = result.counterexamples[Property.ISOLATION]
    assert example.told() == ["accept a (session 1)", "accept b (session 2)", "cancel (session 1)"]


@pytest.mark.requirement("R-LIV-1")
def test_work_that_need_not_end_is_found() -> None:
    class RetriesForEver(Mechanism):
        """A write that fails is tried again, and again."""

        def settle(self, s: ModelSession, run: ModelRun, ok: bool) -> None:
            if ok:
                super().settle(s, run, ok)

    assert Explorer(MemoryModel(Bounds(2, 1))).run().verdict == "holds"
    result = Explorer(MemoryModel(Bounds(2, 1), RetriesForEver)).run()
    example = result.counterexamples[Property.EXACTLY_ONE_COMPLETE]
    assert "for ever" in example.what
    assert example.told()[-2:] == ["enter a: cancel_on_entry", "writing the messages of a fails"]
    assert len(example.steps) == 4


@pytest.mark.requirement("R-LIV-1")
def test_a_longer_loop_is_found_too() -> None:
    class PingPong(Mechanism):
        """A write that fails goes back to the runner, which ends again."""

        def written(self, s: ModelSession, turn: ModelTurn, ok: bool) -> None:
            if ok:
                super().written(s, turn, ok)
            else:
                turn.writing = ""

    result = Explorer(MemoryModel(Bounds(1, 0, without=NOT_IN_DESIGNS), PingPong, name="ping-pong")).run()
    assert result.verdict == "violated"
    assert "for ever" in next(iter(result.counterexamples.values())).what


def test_a_design_that_keeps_its_promises_is_not_refuted() -> None:
    result = Explorer(
        MemoryModel(Bounds(2, 1, without=NOT_IN_DESIGNS), name="sound"), claimed=tuple(Property)
    ).run()
    assert (result.verdict, result.counterexample) == ("unknown", None)


def test_what_callers_can_do_again_and_again_is_not_work_that_need_not_end() -> None:
    alone = Bounds(1, 0, 1, NOT_IN_DESIGNS)
    clears = DESIGNS["unlocked-clear"]
    explorer = Explorer(MemoryModel(alone, MECHANISMS[clears.name], name=clears.name), claimed=clears.breaks)
    assert explorer.run().counterexample is None


def test_refutation_prefers_what_the_design_is_said_to_break() -> None:
    result = refuted("swallowed-outer")
    claimed, shorter = (
        result.counterexamples[each] for each in (Property.EXACTLY_ONE_COMPLETE, Property.LAST_WORD)
    )
    assert result.counterexample is claimed
    assert len(shorter.steps) < len(claimed.steps)


# Processes.


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


def test_what_nothing_among_processes_put_to_the_test_is_unknown() -> None:
    result = Explorer(DurableModel(DurableBounds(crashes=0, losses=0, loads=0, prompts=1))).run()
    assert result.verdict == "unknown"
    assert set(result.unexercised) >= {DurableProperty.DURABLE, DurableProperty.ADOPTED, Property.FIFO}
    assert DurableProperty.FENCED not in result.unexercised


def test_what_should_have_happened_among_processes_and_did_not_is_named() -> None:
    class NeverRetries(DurableMechanism):
        """A turn is never begun again, whatever was asked for."""

        def given(self, ledger: ModelLedger, me: int, attempts: int) -> ModelLedger:
            return super().given(ledger, me, self.bounds.attempts)

    result = Explorer(DurableModel(DurableBounds(loads=0, cancels=0, on_death="retry"), NeverRetries)).run()
    assert result.verdict == "unknown"
    assert result.missed == ("a turn of the dead begun again", "a turn with a folded run begun again")


def test_one_session_says_nothing_about_isolation() -> None:
    line = {Property.HELD, Property.AS_EDITED}
    assert set(JUDGED) == {*Property, *DurableProperty} - {Property.ISOLATION} - line


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"processes": 0}, "processes must be from 1 to 4, not 0"),
        ({"prompts": 9}, "prompts must be from 1 to 8, not 9"),
        ({"crashes": -1}, "crashes must be from 0 to 16, not -1"),
        ({"on_death": "pray"}, "on_death must be fail or retry, not pray"),
    ],
)
def test_bounds_of_processes_must_make_sense(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        DurableBounds(**wrong)
