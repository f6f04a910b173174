"""One test per requirement of SPEC.md, sections 3 to 6, on the mechanism, citing it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import pytest

from turngate_model import DeclaredState
from turngate_model.checker import HEART, Bounds, Explorer, MemoryModel
from turngate_model.history import (
    Accept,
    Cancel,
    Clear,
    Complete,
    Edit,
    Enter,
    Event,
    Fold,
    Handoff,
    Hold,
    Move,
    Resume,
    Wrote,
)
from turngate_model.pictures.scenes import play

IDLE: tuple[str, ...] = ()
A_ACTIVE = ("accept a", "enter a")
B_QUEUED = (*A_ACTIVE, "accept b", "enter b")
A_ENDS = ("end a end_turn", "written a")
A_UNWINDS = ("end a canceled", "written a")


def events(*script: str) -> list[Event]:
    """Return what is seen when a script is played on the mechanism."""
    return [event for step in play(script) for event in step.events]


def last_step(*script: str) -> tuple[Event, ...]:
    """Return what is seen in the last step of a script."""
    return play(script)[-1].events


def ends_of(runs: str) -> Iterator[str]:
    """Yield the steps by which these turns end one after another."""
    for run in runs:
        yield from (f"end {run} end_turn", f"written {run}")


def completes(seen: Iterable[Event]) -> dict[str, tuple[bool, str | None]]:
    return {event.run: event[1:] for event in seen if isinstance(event, Complete)}


@pytest.mark.requirement("R-ACC-1")
def test_a_later_run_has_a_higher_sequence() -> None:
    model = MemoryModel(Bounds(3, 0, 1, without=HEART - {"release"}), symmetry=False)
    Explorer(model).run()
    for node in range(len(model.nodes)):
        accepted = [run.seq for run in model.nodes.held(node).accepted]
        assert accepted == sorted(set(accepted))


@pytest.mark.requirement("R-ACC-2")
def test_accepting_a_known_run_id_again_changes_nothing() -> None:
    for script in (("accept a",), ("accept a", "edit a queue"), A_ACTIVE, (*A_ACTIVE, *A_ENDS)):
        assert last_step(*script, "again a") == ()


@pytest.mark.requirement("R-ACC-3")
def test_an_accept_that_interrupts_covers_all_before_it_and_not_itself() -> None:
    seen = last_step(*B_QUEUED, "accept c", "accept d interrupt")
    assert seen == (Cancel(), Complete("b", cancelled=True), Accept("d", foldable=False))
    after = events(*B_QUEUED, "accept c", "accept d interrupt", "enter c", "enter d", *A_UNWINDS)
    assert Enter("c", DeclaredState.CANCEL_ON_ENTRY) in after
    assert Enter("d", DeclaredState.QUEUED) in after
    assert after[-1] == Handoff("d")


@pytest.mark.requirement("R-BSY-1")
def test_a_run_that_no_turn_takes_in_has_its_own() -> None:
    assert last_step(*B_QUEUED, *A_ENDS)[-1] == Handoff("b")


@pytest.mark.requirement("R-BSY-2")
def test_a_run_that_must_be_queued_is_not_folded() -> None:
    script = (*A_ACTIVE, "accept b queue", "enter b")
    assert last_step(*script, "fold a") == ()
    assert last_step(*script, "fold a", *A_ENDS)[-1] == Handoff("b")


@pytest.mark.requirement("R-BSY-3")
def test_a_run_that_interrupts_is_not_folded() -> None:
    script = ("accept b interrupt", "accept a", "enter a", "enter b", "fold a")
    assert last_step(*script) == ()


@pytest.mark.requirement("R-CMP-1")
def test_cancelled_means_that_a_cancel_covered_the_run() -> None:
    assert completes(events(*B_QUEUED, "clear", *A_ENDS)) == {
        "b": (False, "cleared from the queue"),
        "a": (False, None),
    }
    assert not completes(last_step("accept a", "release a"))["a"][0]
    assert completes(last_step("accept a", "cancel", "release a"))["a"][0]


@pytest.mark.requirement("R-CMP-3")
def test_a_message_is_canceled_exactly_if_a_cancel_covered_its_turn() -> None:
    for how in ("end_turn", "error"):
        assert Wrote("a", how) in events(*A_ACTIVE, f"end a {how}", "written a")
    assert Wrote("a", "canceled") in events(*A_ACTIVE, "cancel", *A_UNWINDS)


@pytest.mark.requirement("R-ENT-1")
@pytest.mark.parametrize("before", [IDLE, A_ACTIVE], ids=["idle", "busy"])
def test_a_covered_run_is_cancelled_on_entry(before: tuple[str, ...]) -> None:
    assert last_step(*before, "accept z", "cancel", "enter z") == (Enter("z", DeclaredState.CANCEL_ON_ENTRY),)


@pytest.mark.requirement("R-ENT-2")
def test_a_run_that_enters_a_busy_session_is_queued() -> None:
    assert last_step(*B_QUEUED) == (Enter("b", DeclaredState.QUEUED),)
    settling = (*A_ACTIVE, "end a end_turn", "accept b", "enter b")
    assert last_step(*settling) == (Enter("b", DeclaredState.QUEUED),)


@pytest.mark.requirement("R-ENT-3")
def test_a_run_that_enters_an_idle_session_is_active() -> None:
    assert last_step(*A_ACTIVE) == (Enter("a", DeclaredState.ACTIVE),)
    assert last_step(*A_ACTIVE, *A_ENDS, "accept b", "enter b") == (Enter("b", DeclaredState.ACTIVE),)
    beside_held = ("accept a", "accept b", "hold_run a", "enter a", "enter b")
    assert last_step(*beside_held) == (Enter("b", DeclaredState.ACTIVE),)


@pytest.mark.requirement("R-ENT-4")
def test_an_entry_is_decided_and_done_in_one_step() -> None:
    model = MemoryModel(Bounds(prompts=2, cancels=1, sessions=1))
    Explorer(model).run()
    for before, action, after in model.steps():
        if action.name == "enter":
            assert before.states[action.run] is DeclaredState.ACCEPTED
            assert after.states[action.run] is not DeclaredState.ACCEPTED


@pytest.mark.requirement("R-QUE-1")
def test_the_queue_is_in_sequence_order_whatever_the_order_of_entry() -> None:
    accepted = (*A_ACTIVE, "accept b queue", "accept c queue", "accept d queue")
    for order in itertools.permutations("bcd"):
        entered = (*accepted, *(f"enter {run}" for run in order))
        handed = [e.run for e in events(*entered, *ends_of("abcd")) if isinstance(e, Handoff)]
        assert handed == ["b", "c", "d"]
        moved = (*entered[: len(accepted) + 1], "move d b before", *entered[len(accepted) + 1 :])
        assert [e.run for e in events(*moved, *ends_of("adbc")) if isinstance(e, Handoff)] == ["d", "b", "c"]


@pytest.mark.requirement("R-QUE-2")
def test_clearing_completes_what_is_queued_and_nothing_else() -> None:
    seen = last_step(*B_QUEUED, "accept c", "enter c", "accept d", "clear")
    assert completes(seen) == dict.fromkeys("bc", (False, "cleared from the queue"))


@pytest.mark.requirement("R-CAN-1")
def test_a_cancel_covers_everything_in_flight() -> None:
    script = (
        *("accept a", "cancel_run a", "enter a"),
        *("accept b", "enter b", "accept c", "enter c", "fold b", "accept d", "enter d", "accept e"),
        *("cancel", "enter e", "settle e", "settle a", "end b canceled", "written b"),
    )
    assert {run: cancelled for run, (cancelled, _) in completes(events(*script)).items()} == dict.fromkeys(
        "abcde", True
    )


@pytest.mark.requirement("R-CAN-2")
def test_a_cancel_does_not_cover_a_run_accepted_after_it() -> None:
    seen = events(
        "accept a", "cancel", "accept b", "enter b", "enter a", "settle a", "end b end_turn", "written b"
    )
    assert Enter("b", DeclaredState.ACTIVE) in seen
    assert completes(seen) == {"a": (True, None), "b": (False, None)}


@pytest.mark.requirement("R-CAN-3")
def test_queued_runs_are_completed_in_the_step_of_the_cancel() -> None:
    seen = last_step(*B_QUEUED, "accept c", "enter c", "cancel")
    assert completes(seen) == {"b": (True, None), "c": (True, None)}


@pytest.mark.requirement("R-CAN-4")
def test_a_covered_turn_is_cancelled_however_its_runner_ends() -> None:
    for before in ("cancel", "cancel_run a"):
        assert completes(events(*A_ACTIVE, before, *A_UNWINDS)) == {"a": (True, None)}
    # The mechanism has no other way to end a covered turn: what the runner meant to return is not asked for.
    model = MemoryModel(Bounds(prompts=1, cancels=1, sessions=1))
    Explorer(model).run()
    covered = (action for before, action, _ in model.steps() if before.covered.intersection(before.turn))
    assert {action.how for action in covered if action.name == "end"} == {"canceled"}


@pytest.mark.requirement("R-CAN-5", "IDLE_CANCEL")
def test_a_cancel_of_a_quiet_session_changes_nothing() -> None:
    seen = events("cancel", "accept a", "enter a", *A_ENDS, "cancel", "cancel", "accept b", "enter b")
    assert seen[-1] == Enter("b", DeclaredState.ACTIVE)
    assert completes(seen) == {"a": (False, None)}


@pytest.mark.requirement("R-CAN-6")
def test_a_cancel_of_one_run_leaves_the_others() -> None:
    accepted = events("accept a", "accept b", "cancel_run a", "enter b", "enter a", "settle a")
    assert Enter("b", DeclaredState.ACTIVE) in accepted
    assert Enter("a", DeclaredState.CANCEL_ON_ENTRY) in accepted
    queued = events(*B_QUEUED, "accept c", "enter c", "cancel_run b", *A_ENDS)
    assert completes(queued) == {"b": (True, None), "a": (False, None)}
    assert queued[-1] == Handoff("c")
    folded = events(*B_QUEUED, "fold a", "accept c", "enter c", "cancel_run b", *A_UNWINDS)
    assert completes(folded) == {"a": (True, None), "b": (True, None)}
    assert folded[-1] == Handoff("c")


@pytest.mark.requirement("R-CAN-7")
def test_coverage_outlasts_the_entry_of_others_and_the_end_of_turns() -> None:
    covered = ("accept a", "accept b", "accept c", "cancel")
    assert last_step(*covered, "enter a", "settle a", "enter b") == (
        Enter("b", DeclaredState.CANCEL_ON_ENTRY),
    )
    turn = ("accept d", "enter d", "end d end_turn", "written d")
    assert last_step(*covered, *turn, "enter c") == (Enter("c", DeclaredState.CANCEL_ON_ENTRY),)


@pytest.mark.requirement("R-FLD-1")
def test_a_fold_takes_the_head_of_the_queue_up_to_the_first_that_wants_its_own_turn() -> None:
    entered = ("enter b", "enter c", "enter d", "enter e")
    script = (*A_ACTIVE, "accept b", "accept c", "accept d queue", "accept e", *entered, "fold a")
    assert last_step(*script) == (Fold("b", "a"), Fold("c", "a"))
    assert last_step(*script[:-1], "hold_run b", "fold a") == (Fold("c", "a"),)


@pytest.mark.requirement("R-FLD-2")
def test_a_covered_turn_takes_nothing_in() -> None:
    script = (*A_ACTIVE, "cancel", "accept b", "enter b", "fold a")
    assert last_step(*script) == ()
    assert last_step(*script, *A_UNWINDS)[-1] == Handoff("b")


@pytest.mark.requirement("R-FLD-3")
def test_a_folded_run_completes_with_its_turn() -> None:
    folded = (*B_QUEUED, "fold a")
    assert completes(events(*folded, *A_ENDS)) == {"a": (False, None), "b": (False, None)}
    failed = (False, "runner failed")
    assert completes(events(*folded, "end a error", "written a")) == {"a": failed, "b": failed}
    assert completes(events(*folded, "cancel", *A_UNWINDS)) == {"a": (True, None), "b": (True, None)}


@pytest.mark.requirement("R-SET-1", "LAST_WORD")
def test_messages_come_before_the_run_complete() -> None:
    assert last_step(*A_ACTIVE, *A_ENDS) == (Wrote("a", "end_turn"), Complete("a", cancelled=False))


@pytest.mark.requirement("R-SET-2")
def test_a_cancel_during_the_write_is_on_record_and_in_the_run_complete() -> None:
    script = (*A_ACTIVE, "end a end_turn", "cancel", "written a")
    assert last_step(*script) == (Wrote("a", "end_turn"),)
    assert last_step(*script, "written a") == (Wrote("a", "canceled"), Complete("a", cancelled=True))


@pytest.mark.requirement("R-SET-3")
def test_a_store_that_fails_keeps_no_run_from_its_run_complete() -> None:
    failed = (False, "store failed")
    assert completes(last_step(*A_ACTIVE, "end a end_turn", "written a fails")) == {"a": failed}
    on_entry = last_step("accept a", "cancel", "enter a", "settle a fails")
    assert completes(on_entry) == {"a": (True, "store failed")}


@pytest.mark.requirement("R-SET-4", "ON_RECORD")
def test_a_run_cancelled_on_entry_is_on_record() -> None:
    seen = last_step("accept a", "cancel", "enter a", "settle a")
    assert seen == (Wrote("a", "canceled"), Complete("a", cancelled=True))


@pytest.mark.requirement("R-SET-5")
def test_a_dropped_run_leaves_no_message() -> None:
    for drop in ("cancel", "clear", "cancel_run b"):
        seen = events(*B_QUEUED, drop)
        assert "b" in completes(seen)
        assert not [event for event in seen if isinstance(event, Wrote)]


@pytest.mark.requirement("R-HOF-1")
def test_a_turn_ends_and_its_successor_starts_in_one_step() -> None:
    seen = last_step(*B_QUEUED, *A_ENDS)
    assert seen == (Wrote("a", "end_turn"), Complete("a", cancelled=False), Handoff("b"))


@pytest.mark.requirement("R-HOF-2", "NO_STRAND")
@pytest.mark.parametrize(
    "ending",
    [("end a error", "written a"), ("cancel_run a", *A_UNWINDS), ("end a end_turn", "written a fails")],
    ids=["failed", "cancelled", "unwritten"],
)
def test_every_ending_hands_off(ending: tuple[str, ...]) -> None:
    assert last_step(*B_QUEUED, *ending)[-1] == Handoff("b")


@pytest.mark.requirement("R-HOF-3")
def test_every_run_of_a_turn_completes_before_the_next_turn() -> None:
    script = (*B_QUEUED, "fold a", "accept c", "enter c", *A_ENDS)
    assert [type(event).__name__ for event in last_step(*script)[-3:]] == ["Complete", "Complete", "Handoff"]


@pytest.mark.requirement("R-REL-1")
def test_a_released_run_completes_and_says_why() -> None:
    assert completes(last_step("accept a", "release a")) == {"a": (False, "released before entry")}
    assert completes(last_step("accept a", "cancel", "release a")) == {"a": (True, "released before entry")}


@pytest.mark.requirement("R-REL-2")
def test_shutting_down_covers_everything_and_releases_what_has_not_entered() -> None:
    script = (*B_QUEUED, "accept c", "close")
    assert completes(last_step(*script)) == {"b": (True, None), "c": (True, "released before entry")}
    assert completes(last_step(*script, *A_UNWINDS)) == {"a": (True, None)}


# The line.

C_ACCEPTED = (*B_QUEUED, "accept c")


@pytest.mark.requirement("R-HLD-1")
def test_a_hold_holds_what_waits_and_nothing_that_is_accepted_later() -> None:
    held = (*C_ACCEPTED, "hold", "enter c", "accept d", "enter d")
    assert last_step(*C_ACCEPTED, "hold") == (Hold(),)
    assert last_step(*held, *A_ENDS)[-1] == Handoff("d")
    assert last_step(*held, *ends_of("ad")) == (Wrote("d", "end_turn"), Complete("d", cancelled=False))


@pytest.mark.requirement("R-HLD-2")
def test_a_held_run_ends_like_any_other() -> None:
    held = (*C_ACCEPTED, "hold")
    assert completes(last_step(*held, "cancel")) == {"b": (True, None)}
    assert last_step(*held, "cancel", "enter c") == (Enter("c", DeclaredState.CANCEL_ON_ENTRY),)
    assert completes(last_step(*held, "cancel_run b")) == {"b": (True, None)}
    assert completes(last_step(*held, "clear")) == {"b": (False, "cleared from the queue")}
    assert completes(last_step(*held, "release c")) == {"c": (False, "released before entry")}


@pytest.mark.requirement("R-HLD-3")
def test_a_resume_starts_the_first_that_is_not_held_unless_a_turn_is_active() -> None:
    held = (*C_ACCEPTED, "enter c", "hold")
    assert last_step(*held, "resume") == (Resume(),)
    settling = (*held, "end a end_turn")
    assert last_step(*settling, "resume", "written a")[-1] == Handoff("b")
    idle = (*settling, "written a")
    assert last_step(*idle, "resume_run c") == (Resume(frozenset("c")), Handoff("c"))
    assert last_step(*idle, "resume") == (Resume(), Handoff("b"))


@pytest.mark.requirement("R-STP-1")
def test_a_stop_covers_the_turn_and_holds_what_waits_in_one_step() -> None:
    assert last_step(*C_ACCEPTED, "stop") == (Cancel(frozenset("a")), Hold())
    after = events(*C_ACCEPTED, "stop", "enter c", *A_UNWINDS)
    assert completes(after) == {"a": (True, None)}
    assert not [event for event in after if isinstance(event, Handoff)]


@pytest.mark.requirement("R-MOV-1")
def test_a_move_does_not_change_what_a_cancel_covers() -> None:
    covered = ("accept a", "accept b", "cancel", "accept c")
    for move in ("move c a before", "move a last"):
        assert last_step(*covered, move, "enter a") == (Enter("a", DeclaredState.CANCEL_ON_ENTRY),)
        assert last_step(*covered, move, "enter c") == (Enter("c", DeclaredState.ACTIVE),)


@pytest.mark.requirement("R-MOV-3")
def test_a_move_leaves_the_order_of_the_others_and_later_runs_behind() -> None:
    line = (*A_ACTIVE, *(f"accept {run} queue" for run in "bcd"), *(f"enter {run}" for run in "bcd"))
    for move, order in (("move d b before", "dbc"), ("move b last", "cdb")):
        assert last_step(*line, move) == (Move(*move.split()[1:3]) if "before" in move else Move("b"),)
        entered = (*line, move, "accept e queue", "enter e", *ends_of(f"a{order}"))
        assert [e.run for e in events(*entered) if isinstance(e, Handoff)] == [*order, "e"]


@pytest.mark.requirement("R-EDT-1")
def test_an_edit_changes_what_it_names_and_nothing_else() -> None:
    line = (*B_QUEUED, "accept c", "enter c")
    assert last_step(*line, "edit b queue") == (Edit("b", foldable=False),)
    assert last_step(*line, "edit b queue", "fold a") == ()
    assert last_step(*line, "edit b queue", *A_ENDS)[-1] == Handoff("b")
    assert last_step(*line, "hold_run b", "edit b queue", *A_ENDS)[-1] == Handoff("c")


@pytest.mark.requirement("R-NOW-1", "R-NOW-2")
def test_send_now_covers_the_turn_and_not_the_run_that_it_sends() -> None:
    line = (*B_QUEUED, "accept c", "enter c", "hold")
    seen = last_step(*line, "send_now c")
    assert seen == (Move("c", "b"), Cancel(frozenset("a")), Resume(frozenset("c"), unbinds=True))
    after = events(*line, "send_now c", *A_UNWINDS, *ends_of("c"))
    assert completes(after) == {"a": (True, None), "c": (False, None)}
    idle = last_step(*line, *A_ENDS, "send_now c")
    assert idle[-1] == Handoff("c")
    assert not [event for event in idle if isinstance(event, Cancel)]


@pytest.mark.requirement("R-INTO-1")
@pytest.mark.parametrize("before", [(*A_ACTIVE, "cancel"), (*A_ACTIVE, "end a end_turn")])
def test_a_prompt_can_only_be_for_a_turn_that_runs_and_is_not_covered(before: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="should be refused"):
        last_step(*before, "accept b into")


@pytest.mark.requirement("R-INTO-2")
def test_a_run_for_one_turn_joins_it_or_ends_with_it() -> None:
    bound = (*A_ACTIVE, "accept b into", "enter b")
    assert last_step(*bound, "fold a") == (Fold("b", "a"),)
    cleared, released = "cleared from the queue", "released before entry"
    seen = last_step(*bound, "accept c into", *A_ENDS)
    assert Clear(frozenset("b")) in seen
    assert completes(seen) == {"a": (False, None), "b": (False, cleared), "c": (False, released)}


@pytest.mark.requirement("R-INTO-3")
@pytest.mark.parametrize("freed_by", ["edit b queue", "send_now b"])
def test_a_run_for_one_turn_that_is_sent_now_or_edited_is_like_any_other(freed_by: str) -> None:
    ends = A_UNWINDS if "send_now" in freed_by else A_ENDS
    assert last_step(*A_ACTIVE, "accept b into", "enter b", freed_by, *ends)[-1] == Handoff("b")
