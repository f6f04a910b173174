"""The monitor begins anywhere in a right recording and accuses nothing; what can be known is accused."""

from __future__ import annotations

import json
import random
import resource
from pathlib import Path
from typing import Any

import pytest

from turngate_model import Property
from turngate_verify.monitor import Monitor, Remark
from turngate_verify.trace import check
from watching import RECORDINGS, accused, right_recording, spoiled

GOOD = sorted(RECORDINGS.glob("good*.jsonl"))
BAD = sorted(RECORDINGS.glob("bad*.jsonl"))


def lines_of(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("path", GOOD, ids=lambda path: path.stem)
def test_a_good_recording_is_not_accused_from_any_line_on(path: Path) -> None:
    lines = lines_of(path)
    assert [found for since in range(len(lines)) for found in accused(lines, since)] == []


@pytest.mark.parametrize("bare", [False, True])
def test_what_the_dispatcher_records_is_not_accused_from_any_line_on(bare: bool) -> None:
    for seed in range(12):
        lines = right_recording(seed, bare=bare)
        assert check(lines).verdict == "holds"
        for since in range(len(lines)):
            found = accused(lines, since)
            assert found == [], f"seed {seed}, from line {since + 1}"


def told(kind: str, run: str = "", **more: Any) -> str:
    return json.dumps({"event": kind, **({"run": run} if run else {}), **more})


def accept(run: str, session: str = "s", **more: Any) -> str:
    return told("accept", run, session=session, **more)


def enter(run: str, state: str = "active") -> str:
    return told("enter", run, state=state)


def done(run: str, *, cancelled: bool = False) -> str:
    return told("complete", run, cancelled=cancelled)


ACTIVE_U = [accept("u"), enter("u")]
QUEUED_U = [accept("a"), enter("a"), accept("u"), enter("u", "queued")]
HARD: dict[str, list[str]] = {
    "an unseen run is active": [
        *ACTIVE_U,
        accept("b"),
        enter("b", "queued"),
        done("u"),
        told("handoff", "b"),
    ],
    "an unseen run enters late": [
        *(accept("u"), accept("b"), enter("b"), done("b"), enter("u")),
        *(accept("c"), enter("c", "queued"), done("u"), told("handoff", "c"), done("c")),
    ],
    "an unseen run was held": [
        *QUEUED_U,
        *(told("hold", session="s"), done("a"), accept("b"), enter("b"), told("resume", session="s")),
        *(done("b"), accept("c"), enter("c", "queued"), told("handoff", "u"), done("u")),
    ],
    "a run overtakes an unseen one by a move": [
        *QUEUED_U,
        *(accept("b"), enter("b", "queued"), told("move", "b", before="u"), done("a"), told("handoff", "b")),
        *(done("b"), accept("c"), enter("c", "queued"), told("handoff", "u"), done("u")),
    ],
    "moved beside an unseen run, and before another": [
        *QUEUED_U,
        *(accept("b"), enter("b", "queued"), accept("c"), enter("c", "queued")),
        *(told("move", "c", before="u"), accept("d"), enter("d", "queued"), told("move", "d", before="c")),
        *(done("a"), told("handoff", "d"), done("d"), told("handoff", "c"), done("c"), told("handoff", "u")),
    ],
    "for the turn of an unseen run": [
        *ACTIVE_U,
        *(accept("b", into="u"), enter("b", "queued"), told("fold", "b", into="u"), accept("c", into="b")),
        *(enter("c", "queued"), accept("d", into="u"), enter("d", "queued"), told("fold", "c", into="u")),
        *(done("u"), done("b"), done("c"), told("clear", session="s", runs=["d"]), done("d")),
    ],
    "an unseen run is cancelled on entry": [
        *(accept("u"), told("cancel", session="s"), accept("b"), enter("b"), enter("u", "cancel_on_entry")),
        *(done("u", cancelled=True), done("b")),
    ],
}


@pytest.mark.parametrize("name", HARD)
def test_a_right_recording_in_which_much_is_unseen_is_not_accused(name: str) -> None:
    lines = HARD[name]
    assert check(lines).offence is None
    assert [found for since in range(len(lines)) for found in accused(lines, since)] == []


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_a_bad_recording_is_accused_as_trace_does(path: Path) -> None:
    lines = lines_of(path)
    offence = check(lines).offence
    assert offence is not None
    first = accused(lines)[0]
    assert (first.property, first.line, first.what) == (offence.property, offence.line, offence.what)
    shown = [each.text for each in first.history]
    again = accused(shown)
    assert [(each.property, each.line) for each in again] == [(offence.property, len(shown))]
    assert [each.line for each in again[0].history] == list(range(1, len(shown) + 1)), (
        "it is not the smallest"
    )


UNHEEDED = [
    *(accept("a"), enter("a"), accept("b"), enter("b", "queued"), told("cancel", session="s")),
    *(done("a", cancelled=True), told("handoff", "b")),
]


def test_what_can_still_be_known_is_accused_from_the_accept_on() -> None:
    """The cancel and what it covers are all that it takes, wherever the monitor begins before them."""
    for since in range(3):
        (found,) = accused(UNHEEDED, since)
        assert (found.property, found.line, found.session) == (Property.FULL_COVERAGE, 7, "s")
        assert [shown.line for shown in found.history] == [3, 4, 5, 7]
    assert [found for since in range(3, 7) for found in accused(UNHEEDED, since)] == []


def test_whatever_is_wrong_with_a_seen_run_is_accused_wherever_the_monitor_began() -> None:
    """A second RunComplete, or one that says the opposite of the truth, of a run whose accept was seen."""
    chance = random.Random(7)
    tried = 0
    for seed in range(4):
        lines = right_recording(seed, 40)
        for place, wrong in spoiled(lines, chance):
            run = json.loads(wrong[place])["run"]
            accepted = next(nth for nth, line in enumerate(lines) if json.loads(line).get("run") == run)
            since = chance.randrange(accepted + 1)
            offence = check(wrong).offence
            if offence is None or offence.line != place + 1:
                continue
            assert (offence.property, place + 1) in [
                (each.property, each.line) for each in accused(wrong, since)
            ], f"seed {seed}, line {place + 1}, from {since + 1}"
            tried += 1
    assert tried > 50


def test_a_violation_does_not_hide_those_of_other_sessions_or_later_ones() -> None:
    lines = [
        *(accept("a"), done("a", cancelled=True), accept("x", "t"), enter("x"), accept("y", "t")),
        *(enter("y"), accept("b"), enter("b"), done("b"), done("b"), accept("z", "t"), enter("z", "queued")),
        *(done("x"), done("y"), told("handoff", "z"), done("z", cancelled=True), told("end")),
    ]
    assert [(each.session, each.line, each.property) for each in accused(lines)] == [
        ("s", 2, Property.NEVER_POISONED),
        ("t", 6, Property.ONE_TURN),
        ("s", 10, Property.EXACTLY_ONE_COMPLETE),
        ("t", 16, Property.NEVER_POISONED),
    ]


def test_every_session_that_owes_something_at_the_end_is_accused_and_another_recording_may_follow() -> None:
    lines = [accept("a"), accept("x", "t"), enter("x"), told("end"), accept("a"), enter("a"), done("a")]
    found = accused([*lines, told("end")])
    assert {(each.session, each.line) for each in found} == {("s", 4), ("t", 4)}
    assert {each.property for each in found} == {Property.EXACTLY_ONE_COMPLETE}


def test_after_an_unreadable_line_no_known_run_is_accused() -> None:
    """The line may have been the cancel."""
    lines = [accept("a"), enter("a"), '{"event": "canc', done("a", cancelled=True)]
    monitor = Monitor()
    found = [each for nth, line in enumerate(lines, 1) for each in monitor.judge(line, nth)]
    assert [(type(each), each.line) for each in found] == [(Remark, 3)]
    assert "not JSON" in found[0].what
    assert (monitor.figures.unreadable, monitor.figures.restarts, monitor.figures.unseen) == (1, 1, 1)


@pytest.mark.parametrize("without", range(7))
def test_right_recordings_with_an_unreadable_line_are_not_accused(without: int) -> None:
    lines = right_recording(without, 50, bare=without % 2 == 1)
    for place in range(len(lines)):
        assert accused([*lines[:place], "?", *lines[place + 1 :]]) == []


def test_a_second_accept_is_about_the_same_run_even_after_its_session_became_unknown() -> None:
    lines = [accept("a"), told("cancel", session="s"), "?", accept("a"), enter("a", "cancel_on_entry")]
    assert accused([*lines, done("a", cancelled=True), accept("a"), told("end")]) == []


def many(runs: int) -> Any:
    """Yield lines of twenty sessions that are never quiet, with holds now and then."""
    for number in range(runs):
        session, run = f"s{number % 20}", f"run {number}"
        yield accept(run, session)
        busy = number >= 20
        yield enter(run, "queued" if busy else "active")
        if number % 3 == 0:
            yield told("hold", session=session)
            yield told("resume", session=session)
        if busy:
            yield done(f"run {number - 20}")
            yield told("handoff", run)
        if number % 7 == 0:
            yield told("cancel", session="nothing in flight")


def peak(runs: int, remember: int) -> tuple[int, int]:
    """Return the most things kept, and how many lines were judged."""
    monitor = Monitor(remember=remember)
    most = 0
    for nth, line in enumerate(many(runs), 1):
        assert monitor.judge(line, nth) == []
        if nth % 97 == 0:
            most = max(most, monitor.kept)
    return most, monitor.figures.events


def test_what_is_kept_is_bounded_by_what_is_in_flight() -> None:
    short, _ = peak(400, 50)
    long, events = peak(6_000, 50)
    assert events > 25_000
    of_the_past, in_flight, lines_of_a_run = 2 * 50, 40, 5
    assert short > of_the_past
    assert long <= of_the_past + in_flight * (1 + lines_of_a_run)


@pytest.mark.deep
def test_millions_of_events_take_no_more_memory_than_thousands() -> None:
    """24 million events. What is kept is counted; the memory of the process follows from that."""
    short, _ = peak(40_000, 1_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    long, events = peak(5_100_000, 1_000)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert events > 24_000_000
    assert long <= short * 1.05
    assert grown < 16_000, "kilobytes"
