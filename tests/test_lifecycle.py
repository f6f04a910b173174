from __future__ import annotations

from turngate._lifecycle import MOVES, Phase, State


def test_there_are_nine_moves() -> None:
    assert len(MOVES) == 9
    assert {trigger for trigger, _, _ in MOVES} == {
        "enter", "release", "handoff", "fold", "drop", "settle", "finish",
    }  # fmt: skip


def test_accepted_is_never_come_back_to_and_complete_is_terminal() -> None:
    assert State.ACCEPTED not in {to for _, _, to in MOVES}
    assert State.COMPLETE not in {was for _, was, _ in MOVES}
    assert {was for _, was, to in MOVES if to is State.COMPLETE} == {*State} - {State.COMPLETE}


def test_phases() -> None:
    assert [phase.value for phase in Phase] == ["starting", "running", "settling"]
