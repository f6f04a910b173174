"""The line in people's hands: what hold, resume, stop, move, edit and send now do to the mechanism."""

from __future__ import annotations

from typing import Any

import pytest

from turngate_model import AbstractSession, DeclaredState, Mechanism
from turngate_model.history import Cancel, Clear, Complete, Edit, Event, Handoff, Hold, Move, Resume
from turngate_model.mechanism import Action
from turngate_model.model_session import ModelRun, ModelSession


class Lane:
    """One session of the mechanism, judged by the abstract session: every step must break nothing."""

    def __init__(self) -> None:
        self.held, self.judge = ModelSession(), AbstractSession()
        self.events: list[Event] = []
        self.mechanism = Mechanism(self._see)

    def _see(self, event: Event) -> None:
        self.events.append(event)
        assert self.judge.observe(event) == [], event

    def accept(self, *names: str, mode: Any = "queue") -> None:
        for name in names:
            self.mechanism.accept(self.held, ModelRun(name, len(self.judge.states) + 1), mode)

    def submit(self, *names: str, mode: Any = "queue") -> None:
        for name in names:
            self.accept(name, mode=mode)
            self.do("enter", name)

    def do(self, name: str, run: str = "", how: str = "") -> list[Event]:
        """Take a step and return its events."""
        self.events.clear()
        self.mechanism.take(self.held, Action("caller", name, run, how))
        assert [run.name for run in self.mechanism.line(self.held)] == self.judge.line
        assert (self.held.held, self.held.bound) == (self.judge.held, set(self.judge.bound))
        return list(self.events)

    def end(self, lead: str) -> list[Event]:
        """Let a turn end and settle; return the events of the step that completes it."""
        turn = self.held.turn_of(lead)
        self.do("end", lead, "canceled" if turn and turn.cancelled else "end_turn")
        return self.do("written", lead, "ok")

    @property
    def waiting(self) -> list[str]:
        return [run.name for run in self.mechanism.line(self.held)]

    def state(self, run: str) -> DeclaredState:
        return self.judge.states[run]


@pytest.fixture
def lane() -> Lane:
    """Return a session in which a has a turn, b and c are queued, and d is accepted."""
    lane = Lane()
    lane.submit("a", "b", "c")
    lane.accept("d")
    return lane


def of(*runs: str) -> frozenset[str]:
    return frozenset(runs)


@pytest.mark.requirement("HELD")
def test_a_hold_is_of_what_waits_and_of_nothing_that_comes_later(lane: Lane) -> None:
    assert lane.do("hold") == [Hold()]
    assert lane.held.held == {"b", "c", "d"}
    lane.submit("e")
    assert lane.end("a")[-1] == Handoff("e"), "it passes what is held"
    lane.end("e")
    assert not lane.held.turns
    lane.do("enter", "d")
    assert (lane.state("d"), lane.waiting) == (DeclaredState.QUEUED, ["b", "c", "d"])
    assert lane.judge.owed() == []


def test_a_held_run_that_is_resumed_starts_if_no_turn_is_active(lane: Lane) -> None:
    lane.do("hold")
    assert lane.do("resume_run", "c") == [Resume(of("c"))], "a turn is active"
    assert lane.end("a")[-1] == Handoff("c")
    lane.end("c")
    assert lane.do("resume_run", "d") == [Resume(of("d"))], "it has not entered"
    assert lane.do("resume") == [Resume(), Handoff("b")]
    assert not lane.held.held


def test_what_is_behind_a_held_run_goes_past_it(lane: Lane) -> None:
    assert lane.do("hold_run", "b") == [Hold(of("b"))]
    assert lane.end("a")[-1] == Handoff("c")


@pytest.mark.requirement("IDLE_CANCEL")
@pytest.mark.parametrize("operation", ["hold", "stop"])
def test_a_hold_or_a_stop_of_an_idle_session_changes_nothing(operation: str) -> None:
    lane = Lane()
    assert lane.do(operation) == [Hold()]
    assert lane.held == ModelSession()


def test_a_stop_covers_the_turn_alone_and_holds_what_waits(lane: Lane) -> None:
    assert lane.do("stop") == [Cancel(of("a")), Hold()]
    assert lane.end("a") == [lane.events[0], Complete("a", cancelled=True)]
    assert (lane.waiting, lane.held.turns) == (["b", "c", "d"], [])
    assert lane.do("stop") == [Hold()], "no turn is active"


def test_held_runs_are_cancelled_and_cleared_like_any_other(lane: Lane) -> None:
    lane.do("hold")
    assert lane.do("cancel_run", "b")[-1] == Complete("b", cancelled=True)
    assert lane.do("clear")[-1] == Complete("c", False, "cleared from the queue")
    lane.do("cancel")
    lane.do("enter", "d")
    assert lane.state("d") is DeclaredState.CANCEL_ON_ENTRY
    assert not lane.held.held


def test_a_fold_passes_what_is_held() -> None:
    lane = Lane()
    lane.submit("a")
    lane.submit("b", "c", "d", mode="fold")
    lane.do("hold_run", "c")
    lane.do("fold", "a")
    assert ([run.name for run in lane.held.turns[0].runs], lane.waiting) == (["a", "b", "d"], ["c"])


@pytest.mark.requirement("FIFO")
def test_a_move_changes_the_position_and_nothing_else(lane: Lane) -> None:
    assert lane.do("move", "d b", "before") == [Move("d", "b")]
    assert lane.waiting == ["d", "b", "c"]
    assert lane.held.ranks == {"d": 2, "b": 3, "c": 4}, "ranks change hands, and none is made up"
    lane.submit("e")
    assert lane.do("move", "b", "last") == [Move("b")]
    assert lane.waiting == ["d", "c", "e", "b"]
    lane.submit("f")
    assert lane.waiting[-1] == "f"
    assert lane.end("a")[-1] == Handoff("c"), "d has not entered"


@pytest.mark.requirement("NEVER_POISONED", "FULL_COVERAGE")
def test_a_move_does_not_change_what_a_cancel_covers() -> None:
    lane = Lane()
    lane.accept("a")
    lane.do("cancel")
    lane.accept("b")
    lane.do("move", "a", "last")
    lane.do("enter", "b")
    lane.do("enter", "a")
    assert (lane.state("b"), lane.state("a")) == (DeclaredState.ACTIVE, DeclaredState.CANCEL_ON_ENTRY)


def test_ranks_are_forgotten_with_the_runs_that_had_them(lane: Lane) -> None:
    lane.do("move", "d b", "before")
    lane.do("cancel")
    lane.do("release", "d")
    lane.end("a")
    assert lane.held == ModelSession()


@pytest.mark.requirement("AS_EDITED")
def test_an_edit_keeps_position_and_hold_and_may_change_what_is_foldable(lane: Lane) -> None:
    lane.do("hold_run", "b")
    assert lane.do("edit", "b", "fold") == [Edit("b", foldable=True)]
    assert lane.waiting == ["b", "c", "d"]
    assert (lane.held.held, lane.held.foldable) == ({"b"}, {"b"})
    assert lane.do("edit", "b", "queue") == [Edit("b", foldable=False)]
    assert not lane.held.foldable
    lane.events.clear()
    lane.mechanism.edit(lane.held, ModelRun("b", 2))
    assert lane.events == [Edit("b")]


def test_send_now_makes_a_run_the_next_one_and_covers_the_turn(lane: Lane) -> None:
    lane.do("hold")
    assert lane.do("send_now", "c") == [Move("c", "b"), Cancel(of("a")), Resume(of("c"), unbinds=True)]
    assert lane.waiting == ["c", "b", "d"]
    assert lane.held.held == {"b", "d"}
    assert lane.end("a")[-2:] == [Complete("a", cancelled=True), Handoff("c")]


def test_send_now_starts_the_run_if_no_turn_is_active(lane: Lane) -> None:
    lane.do("hold")
    lane.end("a")
    assert lane.do("send_now", "b") == [Resume(of("b"), unbinds=True), Handoff("b")]


def test_a_run_for_one_turn_joins_it_or_ends_with_it() -> None:
    lane = Lane()
    lane.submit("a")
    lane.submit("b", "c", mode="into")
    lane.accept("d", mode="into")
    lane.submit("e")
    lane.do("edit", "c", "queue")
    lane.do("fold", "a")
    assert [run.name for run in lane.held.turns[0].runs] == ["a", "b"]
    lane.submit("f", mode="into")
    released = Complete("d", False, "released before entry")
    cleared = Complete("f", False, "cleared from the queue")
    assert lane.end("a")[-4:] == [Clear(of("f")), cleared, released, Handoff("c")]
    assert lane.waiting == ["e"]


def test_a_run_that_is_sent_now_is_no_longer_for_one_turn() -> None:
    lane = Lane()
    lane.submit("a")
    lane.submit("b", mode="into")
    lane.do("send_now", "b")
    assert lane.end("a")[-1] == Handoff("b")


def test_a_prompt_can_be_for_a_turn_that_runs_and_is_not_covered() -> None:
    lane = Lane()
    assert not lane.mechanism.can_bind(lane.held)
    lane.submit("a")
    assert lane.mechanism.can_bind(lane.held)
    lane.do("cancel")
    assert not lane.mechanism.can_bind(lane.held)
    lane.do("end", "a", "canceled")
    assert not lane.mechanism.can_bind(lane.held)


def test_what_can_be_done_with_the_line_is_what_waits(lane: Lane) -> None:
    lane.do("hold_run", "b")
    possible = {(each.name, each.run) for each in lane.mechanism.line_actions(lane.held)}
    assert {run for name, run in possible if name in ("hold_run", "resume_run", "edit")} == {"b", "c", "d"}
    assert {run for name, run in possible if name == "send_now"} == {"b", "c"}
    assert ("resume_run", "b") in possible
    assert not any("a" in run for _, run in possible)
