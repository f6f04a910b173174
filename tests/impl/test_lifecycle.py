from __future__ import annotations

from turngate._core import MOVES, Phase, State


def test_there_are_nine_moves() -> None:
    assert {*MOVES} == {"enter", "release", "handoff", "fold", "drop", "settle", "finish"}
    assert sum(len(goals) for _, goals in MOVES.values()) == 9


def test_accepted_is_never_come_back_to_and_complete_is_terminal() -> None:
    assert State.ACCEPTED not in {to for _, goals in MOVES.values() for to in goals}
    assert State.COMPLETE not in {was for was, _ in MOVES.values()}
    assert {was for was, goals in MOVES.values() if State.COMPLETE in goals} == {*State} - {State.COMPLETE}


def test_phases() -> None:
    assert [phase.value for phase in Phase] == ["waiting", "starting", "running", "settling"]
