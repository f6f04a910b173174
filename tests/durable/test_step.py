"""One step by itself: a session as it is loaded, an input, and what must be saved."""

from __future__ import annotations

from typing import Any

import pytest

from turngate import State
from turngate.durable._records import Loaded, RunRow, SessionRow
from turngate.durable._step import ATTEMPTS, DIED, Fenced, Recovered, Step

US, OTHER, FENCE, FRESH, NOW = 7, 8, 5, 9, 1234.5


def run(run_id: str, seq: int, state: State, **more: Any) -> RunRow:
    row = RunRow(
        run_id, "s", seq, state, "fold", False, OTHER, 0, f"about {run_id}", "", "digest", "", seq
    )  # fmt: skip
    return row._replace(**more)


def loaded(*runs: RunRow, owner_lives: bool = False, **session: Any) -> Loaded:
    """Return a session; its lead is the first active run."""
    lead = next((row.run_id for row in runs if row.state is State.ACTIVE), None)
    queued = sum(row.state is State.QUEUED for row in runs)
    of_turn = {} if lead is None else {"owner": OTHER, "fence": FENCE, "begun": True, "attempts": 1}
    row = SessionRow("token", 3, next_seq=len(runs) + 1, queued=queued, lead=lead, recent=("before",))
    row = row._replace(**(of_turn | session))
    return Loaded("s", row, [*runs], None, FRESH, NOW, owner_lives, "written so far", '"kept"')


def step_on(*runs: RunRow, closing: bool = False, places: bool = False, **session: Any) -> Step:
    return Step(loaded(*runs, **session), US, "token", closing=closing, places=places)


def saved(step: Step) -> SessionRow:
    """Return the session as it is after the step."""
    changes = step.decision("this", None).changes
    assert changes is not None
    assert changes.after.version == 4
    assert changes.after.recent == ("before", "this")
    return changes.after


ACTIVE, WAITS = run("a", 1, State.ACTIVE), run("b", 2, State.QUEUED)


# Turns that start.


def test_a_turn_that_starts_has_its_first_attempt_a_new_fence_and_a_beginning() -> None:
    step = step_on(run("a", 1, State.ACCEPTED), fence=FENCE, attempts=2, since=1.0)
    assert step.enter("a") is State.ACTIVE
    after = saved(step)
    assert (after.lead, after.owner, after.fence, after.attempts) == ("a", US, FRESH, 1)
    assert (after.since, after.begun) == (NOW, True)


def test_with_places_its_runner_is_not_called_yet() -> None:
    step = step_on(run("a", 1, State.ACCEPTED), places=True)
    step.enter("a")
    assert not saved(step).begun


def test_a_worker_that_closes_leaves_it_to_others() -> None:
    step = step_on(run("a", 1, State.ACCEPTED), closing=True)
    step.enter("a")
    after = saved(step)
    assert (after.lead, after.owner, after.begun) == ("a", None, False)


def test_an_unknown_run_is_neither_entered_nor_released_nor_cancelled() -> None:
    step = step_on(ACTIVE)
    assert step.enter("b") is None
    assert step.enter("a") is None
    step.release("b")
    assert step.cancel_run("b") == []
    assert step.decision("this", None).changes is None


# What others have left.


def test_only_a_turn_without_an_owner_is_claimed() -> None:
    assert step_on().claim() is None
    assert step_on(ACTIVE).claim() is None
    assert step_on(ACTIVE, owner=None).claim() == Recovered("taken over", ("a",), 1)
    step = step_on(ACTIVE, WAITS, owner=None, begun=False, since=1.0)
    assert step.claim() == Recovered("taken over", ("a",), 1, (), 1)
    after = saved(step)
    assert (after.owner, after.fence, after.begun, after.since) == (US, FRESH, True, NOW)


@pytest.mark.parametrize("session", [{"owner": None}, {"owner_lives": True}])
def test_only_the_turn_of_an_owner_that_is_dead_is_ended(session: dict[str, Any]) -> None:
    step = step_on(ACTIVE, **session)
    assert step.reap(retry=True) is None
    assert step.decision("this", None).changes is None
    assert step_on(WAITS._replace(state=State.ACCEPTED)).reap(retry=True) is None


def test_a_turn_whose_owner_died_is_lost_keeps_its_text_and_hands_off() -> None:
    step = step_on(ACTIVE, WAITS)
    assert step.reap(retry=False) == Recovered("lost", ("a",), 1, ("b",))
    after = saved(step)
    assert (after.lead, after.owner, after.fence, after.attempts) == ("b", US, FRESH, 1)
    (done,) = [run.complete for run in step.published]
    assert done is not None
    assert (done.outcome, done.error, done.text) == ("lost", DIED, "written so far")
    assert step.messages[-1].data == "kept"


def test_a_covered_turn_of_a_dead_owner_is_cancelled() -> None:
    step = step_on(ACTIVE._replace(covered=True), covered=True, mark=1)
    assert step.reap(retry=True) == Recovered("cancelled", ("a",), 1)
    assert [(run.complete or done()).outcome for run in step.published] == ["cancelled"]
    assert saved(step).lead is None


def done() -> Any:
    pytest.fail("it is not complete")


def test_a_turn_whose_runner_was_not_called_is_taken_over_without_counting_an_attempt() -> None:
    step = step_on(ACTIVE, begun=False, attempts=1)
    assert step.reap(retry=False) == Recovered("taken over", ("a",), 1)
    after = saved(step)
    assert (after.lead, after.owner, after.fence, after.attempts) == ("a", US, FRESH, 1)


def test_a_turn_that_may_run_again_does_so_until_its_attempts_are_used_up() -> None:
    step = step_on(ACTIVE, attempts=ATTEMPTS - 1)
    assert step.reap(retry=True) == Recovered("retried", ("a",), ATTEMPTS)
    after = saved(step)
    assert (after.lead, after.owner, after.fence, after.attempts) == ("a", US, FRESH, ATTEMPTS)
    found = step_on(ACTIVE, attempts=ATTEMPTS).reap(retry=True)
    assert found is not None
    assert found.what == "lost"


# The owner.


def test_a_turn_that_has_not_begun_can_be_left_to_others() -> None:
    step = step_on(ACTIVE, owner=US, begun=False)
    step.give_up(FENCE)
    after = saved(step)
    assert (after.lead, after.owner, after.fence) == ("a", None, FENCE)
    step = step_on(ACTIVE, owner=US)
    step.give_up(FENCE)  # it has: it ends here
    assert step.decision("this", None).changes is None
    with pytest.raises(Fenced, match="4"):
        step_on(ACTIVE, owner=US, begun=False).give_up(FENCE - 1)


def test_steps_under_another_fence_do_not_count() -> None:
    for fence, runs in ((FENCE - 1, (ACTIVE,)), (FENCE + 1, (ACTIVE,)), (0, ())):
        step = step_on(*runs)
        for call in (step.begin, step.fold, lambda fence: step.finish(fence, "", None, None)):  # noqa: B023
            with pytest.raises(Fenced):
                call(fence)
        assert step.decision("this", None).changes is None


def test_a_turn_that_is_covered_does_not_begin() -> None:
    step = step_on(ACTIVE, begun=False)
    assert step.begin(FENCE)
    assert saved(step).begun
    step = step_on(ACTIVE._replace(covered=True), begun=False, covered=True, mark=1)
    assert not step.begin(FENCE)
