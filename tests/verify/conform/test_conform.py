"""The conformance kit: what it says of sound subjects, of flawed ones, and of ones that cannot be judged."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Sequence
from typing import Any

import aiojobs_limit_one
import pytest
import queue_worker
import session_lock
import turngate_itself

from conforming import FLAWS, Plain, flawed
from surroundings import StandingStill
from turngate_model import Property
from turngate_model.properties import AnyProperty
from turngate_verify.conform import (
    JUDGED,
    AsyncioSubject,
    BadProgram,
    Complete,
    Conformance,
    Effort,
    Enter,
    Features,
    Handoff,
    ProgramLimits,
    SubjectFailed,
    check,
    observed,
    parsed,
    play,
    written,
)
from turngate_verify.conform.programs import part_of
from turngate_verify.conform.result import UNTESTED

pytestmark = pytest.mark.usefixtures("standing_clock")

QUICK = Effort(programs=1000, depth=5, examples=5)

SUBJECTS: dict[type[AsyncioSubject], dict[Property, str]] = {
    queue_worker.QueueWorkerSubject: {
        Property.EXACTLY_ONE_COMPLETE: "accept a, cancel",
        Property.NO_STRAND: "accept a, finish a, cancel, accept b",
        Property.IDLE_CANCEL: "accept a, finish a, cancel, accept b",
    },
    session_lock.SessionLockSubject: {Property.FULL_COVERAGE: "accept a, accept b, cancel"},
    aiojobs_limit_one.AiojobsSubject: {},
    turngate_itself.TurngateSubject: {},
}
"""What each subject of the examples breaks, and the shortest program that shows it."""


def broken_by(result: Conformance) -> dict[AnyProperty, str]:
    assert result.failed is None, result.failed.conversation
    return result.replays


@pytest.mark.parametrize("subject", SUBJECTS)
def test_what_the_subjects_of_the_examples_break(subject: type[AsyncioSubject]) -> None:
    result = check(subject, effort=QUICK)
    assert broken_by(result) == SUBJECTS[subject]
    assert result.verdict == ("violated" if SUBJECTS[subject] else "holds")
    unknown = set(result.not_shown)
    if subject is queue_worker.QueueWorkerSubject:
        unknown.add(Property.FULL_COVERAGE)  # every cancel with something in flight ends in another offence
    assert {each for each in JUDGED if result.verdict_of(each) == "unknown"} == unknown
    has = {*subject.features.names, "wait", "bursts"}
    assert len(result.left_out) == len(Features._fields) - 3 - len(has)


def test_an_adapter_is_at_most_thirty_lines() -> None:
    for subject in SUBJECTS.keys() - {turngate_itself.TurngateSubject}:
        assert len(inspect.getsource(subject).splitlines()) <= 30


def test_a_sound_subject_holds_in_everything_that_the_port_shows() -> None:
    result = check(Plain, effort=Effort(programs=2000, examples=30))
    assert (broken_by(result), result.verdict) == ({}, "holds")
    assert result.depths == {1: 6, 2: 5}
    assert {each for each in JUDGED if result.verdict_of(each) != "holds"} == {Property.NO_RESIDUE}


@pytest.mark.parametrize("flaw", FLAWS)
def test_every_flaw_is_found_by_the_shortest_program(flaw: str) -> None:
    violated, program = FLAWS[flaw]
    limits = ProgramLimits(3 if "accept c" in program else 2, 1, 2 if "@2" in program else 1)
    result = check(flawed(flaw), effort=Effort(programs=1500, examples=0), limits=limits)
    assert violated in result.counterexamples
    assert len(result.counterexamples[violated].steps) <= len(parsed(program))
    again = play(flawed(flaw), parsed(result.replays[violated]), ProgramLimits())
    if violated is not Property.ISOLATION:
        assert violated in {each.property for each in (*again.violations, *(late for late, _ in again.late))}


def test_an_idle_cancel_that_changes_something_is_found() -> None:
    result = check(flawed("leaves a flag"), effort=Effort(programs=100, examples=0))
    example = result.counterexamples[Property.IDLE_CANCEL]
    assert example.told() == [
        "cancel",
        "accept a",
        "enter a: cancel_on_entry",
    ]
    assert example.what == (
        "without the idle cancel, enter a gives: a is active; "
        "with it: a is cancel_on_entry, RunComplete of a: cancelled"
    )


@pytest.mark.parametrize("flaw", ["strands", "leaves a flag"])
def test_random_programs_find_it_too_and_shrink_it(flaw: str) -> None:
    violated, program = FLAWS[flaw]
    result = check(flawed(flaw), effort=Effort(programs=0, examples=60))
    assert violated in result.counterexamples
    assert len(result.counterexamples[violated].steps) <= len(parsed(program)) + 2
    assert result.depths == {}


def test_what_a_subject_cannot_do_is_left_out_and_listed() -> None:
    class Simple(Plain):
        features = Features(cancel=False)

        def accept(self, session: str, run: str) -> None:
            super().accept(session, run)
            self.enter(run)

    result = check(Simple, effort=QUICK)
    assert broken_by(result) == {}
    assert [words.split(":")[0] for words in result.left_out] == [
        "enter",
        "fold",
        "clear",
        "cancel",
        "messages",
        "cancel_run",
        "interrupt",
        "reject",
        "wait",
        "crash",
        "residue",
        "bursts",
        "hold",
        "stop",
        "move",
        "edit",
        "send_now",
        "into",
    ]
    assert result.verdict_of(Property.FULL_COVERAGE) == "unknown"
    assert result.why_unknown(Property.FULL_COVERAGE)
    assert result.verdict == "holds"


def test_what_was_never_tested_is_unknown() -> None:
    result = check(Plain, effort=Effort(programs=0, examples=0))
    assert result.verdict == "unknown"
    assert result.why_unknown(Property.FIFO) == UNTESTED


def test_an_operation_that_ends_in_an_offence_says_nothing_of_what_it_does_not_break() -> None:
    result = check(
        flawed("starts again"), effort=Effort(programs=1500, examples=0), limits=ProgramLimits(2, 1, 1)
    )
    assert result.verdict_of(Property.TERMINAL_IS_FINAL) == "violated"
    # Every handoff is such an operation, and nothing else tests LAST_WORD.
    assert result.why_unknown(Property.LAST_WORD) == UNTESTED


class Unruly(Plain):
    what: Any = ""

    def finish(self, run: str) -> None:
        if self.what == "out of order":
            raise RuntimeError("out of order")
        self.seen.append(self.what)


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("out of order", "at finish a: it raised RuntimeError('out of order')"),
        (Handoff("z"), "at finish a: it shows Handoff(run='z'), about a run that was never accepted"),
    ],
)
def test_a_subject_that_cannot_be_judged_is_reported_with_its_program(what: Any, said: str) -> None:
    class Wrong(Unruly):
        pass

    Wrong.what = what
    result = check(Wrong, effort=QUICK)
    assert isinstance(result.failed, SubjectFailed)
    assert result.failed.what == said
    assert result.failed.conversation == ["1  accept a", "2  enter a", "3  finish a"]
    assert (result.verdict, result.verdict_of(Property.FIFO)) == ("unknown", "unknown")


def test_a_run_that_is_lost_on_entry_is_owed() -> None:
    class Loses(Plain):
        def enter(self, run: str) -> None:
            pass

    result = check(Loses, effort=Effort(programs=100, examples=0))
    assert result.replays == {Property.EXACTLY_ONE_COMPLETE: "accept a, enter a"}


def test_a_run_that_completes_before_its_runner_ends_is_no_declared_move() -> None:
    class Hasty(Plain):
        def enter(self, run: str) -> None:
            super().enter(run)
            self.seen.append(Complete(run, cancelled=False))

    result = check(Hasty, effort=Effort(programs=100, examples=0))
    assert result.replays[Property.DECLARED_MOVE] == "accept a, enter a"


class Waits(AsyncioSubject):
    """Starts a run after a while, of virtual time."""

    __test__ = False

    delay = 0.5

    async def do_accept(self, session: str, run: str) -> None:
        await asyncio.sleep(self.delay)
        await self.runner(run)
        self.completed(run)


@pytest.mark.parametrize(("wait", "state"), [(0.5, "active"), (2.0, "active"), (120.0, "queued")])
def test_an_operation_waits_for_timers_but_not_for_ever(wait: float, state: str) -> None:
    subject = Waits()
    subject.delay = wait
    subject.accept("s", "a")
    assert [event.state for event in subject.observe() if isinstance(event, Enter)] == [state]
    subject.close()


def test_a_subject_that_never_comes_to_rest_is_reported() -> None:
    class Spins(AsyncioSubject):
        async def do_accept(self, session: str, run: str) -> None:
            while True:
                await asyncio.sleep(0)

    result = check(Spins, effort=QUICK)
    assert result.failed is not None
    assert "it does not come to rest" in result.failed.what


def test_programs_are_written_and_read() -> None:
    text = "accept a, accept b @2, enter b @2, cancel @2, clear, fold a, finish a, fail b @2"
    assert written(parsed(text)) == text
    for wrong in ("jump a", "accept", "cancel a", "@2"):
        with pytest.raises(BadProgram):
            parsed(wrong)


def test_a_program_with_bursts_is_written_and_read_and_its_parts_are_programs() -> None:
    text = "accept a + cancel + accept b, wait, cancel_run b, interrupt c @3, reject d, crash, residue"
    assert written(parsed(text)) == text
    assert written(part_of(parsed(text), [0, 2, 3])) == "accept a, accept b, wait"
    assert written(part_of(parsed(text), [1, 2])) == "cancel + accept b"
    for wrong in ("wait a", "crash @2", "cancel_run", "accept a +", "accept a @1", "accept a @10"):
        with pytest.raises(BadProgram):
            parsed(wrong)


def test_what_is_no_event_is_refused() -> None:
    assert observed({"event": "complete", "run": "a", "cancelled": True, "error": "x"}) == Complete(
        "a", True, "x"
    )
    wrong: Sequence[dict[str, object]] = [
        {"event": "enter", "run": "a", "state": "accepted"},
        {"event": "complete", "run": "a", "cancelled": 1},
        {"event": "fold", "run": "a"},
        {"event": "accept", "run": "a"},
        {"event": "handoff"},
        {"event": "wrote", "run": "a", "reason": "because"},
    ]
    for record in wrong:
        with pytest.raises(ValueError, match=r"is no event of the port|needs run"):
            observed(record)


@pytest.mark.parametrize("effort", [Effort(programs=100_000, depth=20), Effort(programs=0, examples=100_000)])
def test_a_search_that_runs_out_of_time_is_unknown_and_begins_nothing_more(
    effort: Effort, standing_clock: StandingStill
) -> None:
    made: list[Plain] = []

    def slow() -> Plain:
        if len(made) == 100:
            raise LookupError("it goes on and on")
        made.append(Plain())
        standing_clock.now += 0.1
        return made[-1]

    result = check(slow, effort=effort._replace(seconds=1.95))
    assert result.verdict == "unknown"
    assert "1.95 s" in result.gave_up
    # A program that was begun in time is played to its end, again with one session or no idle cancel.
    assert 20 <= len(made) < 26
