"""The judges agree: what holds for one holds for all, and none sees less than it can see."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from judging import UNSHOWN, Judged, judged, judged_in_haste
from turngate_model import Property
from turngate_verify.drivers.sabotage import SABOTAGES
from turngate_verify.trace import check
from turngate_verify.trace_lines import BadRecording

PROGRAMS = 1_000


def all_judged(programs: range) -> Iterator[Judged]:
    for seed in programs:
        yield judged(seed)
        yield judged_in_haste(seed)


def folds_after_another_was_cancelled_on_entry(recording: list[str]) -> bool:
    """Whether a turn folds after a run that was cancelled on entry has completed beside it."""
    lead, entering, beside = "", set[str](), False
    for entry in map(json.loads, recording):
        match entry:
            case {"event": "enter", "state": "active", "run": run} | {"event": "handoff", "run": run}:
                lead, beside = run, False
            case {"event": "enter", "state": "cancel_on_entry", "run": run}:
                entering.add(run)
            case {"event": "complete", "run": run}:
                beside = beside or bool(lead and run in entering)
                lead = "" if run == lead else lead
            case {"event": "fold", "into": into} if into == lead and beside:
                return True
    return False


def see_that_all_agree_that_nothing_is_wrong(programs: range) -> None:
    telling = 0
    for each in all_judged(programs):
        assert (each.monitor, each.trace, each.kit or set()) == (set(), set(), set()), each.program
        telling += folds_after_another_was_cancelled_on_entry(each.recording)
    assert telling > len(programs) // 200


def test_all_agree_that_nothing_is_wrong_with_the_dispatcher() -> None:
    see_that_all_agree_that_nothing_is_wrong(range(PROGRAMS))


@pytest.mark.deep
def test_all_agree_that_nothing_is_wrong_with_the_dispatcher_in_many_programs() -> None:
    see_that_all_agree_that_nothing_is_wrong(range(PROGRAMS, 40 * PROGRAMS))


HIDDEN_FROM_THE_RECORDING = {"publish-first", "leaky-session"}
HIDDEN_FROM_THE_KIT = {
    "unlocked-drain",  # races, and the kit waits until nothing more happens
    "idle-gap",
    "unserialized-entry",
    "unlocked-clear",
    "late-mark",
    "untracked",  # it submits nothing, and accepts no run twice
    "reused-id",
    "leaky-session",  # memory
}


@pytest.mark.parametrize("name", SABOTAGES)
def test_none_sees_less_of_a_sabotage_than_it_can_see_nor_more_than_there_is(name: str) -> None:
    make = SABOTAGES[name].make
    see_it = {"monitor"}
    see_it |= {"trace"} if name not in HIDDEN_FROM_THE_RECORDING else set()
    see_it |= {"kit"} if name not in HIDDEN_FROM_THE_KIT else set()
    seen_by: set[str] = set()
    for seed in range(1_000):
        for each in (judged(seed, make), judged_in_haste(seed, make)):
            if each.trace or each.kit:
                assert each.monitor, each
            if each.heard.difference(UNSHOWN):
                assert each.trace, each
            if each.heard_by_then and each.kit is not None:
                assert each.kit, each
            said = {"monitor": each.monitor, "trace": each.trace, "kit": each.kit}
            seen_by |= {judge for judge, broken in said.items() if broken}
        if seed >= 40 and seen_by >= see_it:
            break
    assert seen_by == see_it


def corrupted(recording: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield a recording with one RunComplete missing, doubled or turned into its contrary."""
    cleared = {entry["session"] for entry in map(json.loads, recording) if entry["event"] == "clear"}
    for nth, entry in enumerate(map(json.loads, recording)):
        if entry["event"] != "complete":
            continue
        before, line, after = recording[:nth], recording[nth], recording[nth + 1 :]
        yield f"without line {nth + 1}", [*before, *after]
        yield f"line {nth + 1} twice", [*before, line, line, *after]
        if entry["session"] not in cleared:  # a cleared run may say either
            contrary = json.dumps({**entry, "cancelled": not entry["cancelled"]})
            yield f"the contrary in line {nth + 1}", [*before, contrary, *after]


def test_no_run_complete_can_be_taken_from_a_recording_added_or_turned_unnoticed() -> None:
    tried = 0
    for each in all_judged(range(60)):
        for what, recording in corrupted(each.recording):
            tried += 1
            try:
                assert check(recording).offence, (what, each.program)
            except BadRecording:
                pytest.fail(f"{what} is taken for no recording at all: {each.program}")
    assert tried > 500


def test_a_run_cancelled_on_entry_does_not_end_the_turn_beside_it() -> None:
    shape = [
        {"event": "accept", "session": "s", "run": "x"},
        {"event": "cancel", "session": "s"},
        {"event": "accept", "session": "s", "run": "a"},
        {"event": "enter", "run": "a", "state": "active"},
        {"event": "accept", "session": "s", "run": "b"},
        {"event": "enter", "run": "b", "state": "queued"},
        {"event": "enter", "run": "x", "state": "cancel_on_entry"},
        {"event": "complete", "run": "x", "cancelled": True},
        {"event": "fold", "run": "b", "into": "a"},
        {"event": "complete", "run": "a", "cancelled": False},
        {"event": "complete", "run": "b", "cancelled": False},
        {"event": "end"},
    ]
    recording = [json.dumps(entry) for entry in shape]
    assert folds_after_another_was_cancelled_on_entry(recording)
    assert check(recording).verdict == "holds"
    late = [*recording[:8], recording[9], recording[8]]
    offence = check(late).offence
    assert offence is not None
    assert (offence.line, offence.property) == (10, Property.DECLARED_MOVE)
