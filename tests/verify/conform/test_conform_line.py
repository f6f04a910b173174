"""What waits is held, moved and edited: right dispatchers pass, and each known-bad design is accused."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import pytest
import turngate_itself

import flights
import line_flights
from line_flights import Line, LineFlight, line_flight
from speaking import Patient
from surroundings import ROOT
from turngate_model import Property
from turngate_verify.conform import (
    BadProgram,
    Command,
    Complete,
    Effort,
    Given,
    Handoff,
    ProgramLimits,
    Refused,
    check,
    observed,
    parsed,
    play,
    written,
)
from turngate_verify.conform.drills import drills
from turngate_verify.conform.programs import LINE
from turngate_verify.conform.rest import told_of
from turngate_verify.conform.shrinking import without

pytestmark = pytest.mark.usefixtures("standing_clock")

QUICK = Effort(programs=80, depth=2, examples=8, mid_flight=2)


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("kind", line_flights.WRONG, ids=lambda kind: kind.__name__)
def test_each_wrong_design_is_accused_of_what_it_breaks(kind: Any) -> None:
    its = Property[kind.breaks]
    result = check(
        line_flight(kind),
        effort=QUICK._replace(examples=0),
        enough=lambda found: its in found.counterexamples,
    )
    assert its in result.counterexamples, result.replays


@pytest.mark.parametrize("kind", line_flights.RIGHT, ids=lambda kind: kind.__name__)
def test_right_dispatchers_are_not_accused(kind: type[Line]) -> None:
    result = check(line_flight(kind), effort=QUICK)
    assert not result.failed
    assert not result.counterexamples, result.replays
    assert not result.flaky
    assert result.verdict_of(Property.HELD) == result.verdict_of(Property.AS_EDITED) == "holds"


def test_turngate_itself_holds_with_all_of_it() -> None:
    result = check(turngate_itself.TurngateSubject, effort=QUICK)
    assert not result.failed
    assert not result.counterexamples, result.replays
    assert result.verdict_of(Property.HELD) == result.verdict_of(Property.AS_EDITED) == "holds"
    assert [each.partition(":")[0] for each in result.left_out] == ["crash"]


@pytest.mark.deep
@pytest.mark.parametrize("kind", line_flights.RIGHT, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("seed", range(3))
def test_right_dispatchers_are_not_accused_for_long(kind: type[Line], seed: int) -> None:
    result = check(line_flight(kind), effort=Effort(programs=3000, depth=4, examples=150, seed=seed))
    assert not result.counterexamples, result.replays
    assert not result.flaky


def test_a_subject_that_declares_none_of_it_is_asked_for_none_of_it() -> None:
    steps = flights.flight(flights.Steps)
    result = check(steps, effort=QUICK)
    assert {Property.HELD, Property.AS_EDITED}.isdisjoint(result.judged)
    assert result.line == 0
    assert not [op for program in drills(steps.features) for op in program if op.name in LINE]
    played = play(steps, parsed("accept a, accept b"), ProgramLimits())
    assert not [op for op in played.enabled if op.name in LINE]


@pytest.mark.parametrize(
    "text",
    [
        "accept a, accept b, accept c, move c b, move c, finish a",
        "accept a, into b a, hold, resume, stop, edit b, hold_run b, resume_run b, send_now b",
        "accept a @2, into b a @2, move b a @2",
        "accept a, accept b, finish a +2 move b a",
    ],
)
def test_programs_with_it_are_written_as_they_are_read(text: str) -> None:
    assert written(parsed(text)) == text


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("accept a, move a b", "about a run that its session has not accepted"),
        ("accept a, into b", "should be like 'into b a'"),
        ("accept a, move", "should be like 'into b a', 'move c b' or 'move c'"),
        ("accept a, into b c", "about a run that its session has not accepted"),
        ("accept a, accept b, hold a", "should be like"),
        ("accept a, accept b, edit b + edit b", "does the same twice"),
    ],
)
def test_programs_that_make_no_sense_are_refused(text: str, wrong: str) -> None:
    with pytest.raises(BadProgram, match=wrong.replace("(", "\\(")):
        parsed(text)


def test_without_a_run_what_is_about_it_goes_too() -> None:
    program = parsed("accept a, accept b, into c a, move c b, edit c, move b, finish a")
    assert written(without(program, 0, 1)) == "accept a, move a"
    assert written(without(program, 1, 2)) == "accept a, into b a, edit b, finish a"


def test_a_refused_move_says_nothing_of_what_became_of_its_run() -> None:
    assert told_of([Refused("a", "move"), Refused("b"), Handoff("c")]) == {"b", "c"}


def test_events_of_the_line_are_read() -> None:
    assert observed({"event": "refused", "run": "a", "op": "move"}) == Refused("a", "move")
    assert observed({"event": "refused", "run": "a", "op": "into"}) == Refused("a")
    assert observed({"event": "given", "run": "a", "prompt": "a#1"}) == Given("a", "a#1")
    with pytest.raises(ValueError, match="no event of the port"):
        observed({"event": "refused", "run": "a", "op": "sing"})


def broken(kind: type[Line], program: str) -> list[str]:
    played = play(line_flight(kind), parsed(program), ProgramLimits())
    return [f"{violation.property}: {violation.what}" for violation in played.violations]


RIGHT = [
    "accept a, enter a, accept b, enter b, hold, finish a",
    "accept a, enter a, accept b, hold, enter b, finish a, accept c, enter c",
    "accept a, hold, enter a, resume, finish a",
    "accept a, enter a, accept b, enter b, hold, finish a +1 resume",
    "accept a, enter a, accept b, enter b, finish a +1 edit b",
    "accept a, enter a, accept b, enter b, finish a +1 stop",
    "accept a, enter a + stop",
    "accept a, enter a, accept b, fold a + enter b",
    "accept a, enter a, into b a, enter b, finish a",
    "accept a, enter a, into b a, finish a",
    "accept a, enter a, finish a, into b a, edit a, move a, send_now a, hold_run a",
    "accept a, enter a, accept b, enter b, send_now b, finish b",
]


@pytest.mark.parametrize("program", RIGHT)
@pytest.mark.parametrize("kind", line_flights.RIGHT, ids=lambda kind: kind.__name__)
def test_right_answers_are_right(kind: type[Line], program: str) -> None:
    assert broken(kind, program) == []


class Refuses(Line):
    """Refuses what it should do."""

    async def move(self, run: str, before: str | None) -> None:
        raise line_flights.NotPossible

    async def hold_run(self, run: str) -> None:
        self.entries[run].held = True

    def accept(self, session: str, run: str, into: str = "") -> Any:
        if into:
            raise line_flights.NotPossible
        return super().accept(session, run)


def test_a_wrong_refusal_and_a_wrong_acknowledgement_are_accused() -> None:
    before = "accept a, enter a, accept b, enter b"
    assert broken(Refuses, f"{before}, accept c, move c b") == [
        "DECLARED_MOVE: move c b is refused, but c waits: it should be done"
    ]
    assert broken(Refuses, "accept a, enter a, hold_run a") == [
        "DECLARED_MOVE: hold_run a is done, but a is active: it should be refused"
    ]
    assert broken(Refuses, "accept a, enter a, into b a") == [
        "DECLARED_MOVE: b is refused, but the turn of a runs: it should be taken in"
    ]


SPEAKS = """
import json, logging, sys
sys.path[:0] = {paths}
logging.disable()
from line_flights import {kind}, line_flight
from turngate_verify.conform.port import Refused
def told(event):
    if isinstance(event, Refused):
        return {{"event": "refused", "run": event.run, "op": event.operation}}
    return {{"event": type(event).__name__.lower(), **event._asdict()}}
make = line_flight({kind})
for line in sys.stdin:
    asked = json.loads(line)
    id, op = asked.pop("id"), asked.pop("op")
    answer = {{"id": id, "events": []}}
    if op == "hello":
        answer["features"] = make.features.names
    elif op == "reset":
        subject = make()
    else:
        subject.begin_window()
        getattr(subject, op)(**asked)
        answer["events"] = [told(event) for event in subject.observe()]
    print(json.dumps(answer), flush=True)
"""


def spoken(folder: Path, kind: str) -> Command:
    paths = [str(ROOT / each) for each in ("tests/support", "impl", "model", "verify")]
    program = folder / "line_subject.py"
    program.write_text(SPEAKS.format(kind=kind, paths=paths))
    return Patient(sys.executable, str(program))


def test_over_json_lines_it_is_the_same(tmp_path: Path) -> None:
    few = Effort(programs=30, depth=2, examples=3, mid_flight=0)
    assert not check(spoken(tmp_path, "Line"), effort=few).counterexamples
    found = check(
        spoken(tmp_path, "EditLost"),
        effort=few,
        enough=lambda so_far: Property.AS_EDITED in so_far.counterexamples,
    )
    assert Property.AS_EDITED in found.counterexamples


def test_a_run_that_completes_is_over_for_the_finish_of_a_program() -> None:
    steps = play(
        LineFlight, parsed("accept a, enter a, into b a, finish a + accept c"), ProgramLimits()
    ).steps
    assert [event for step in steps for event in step.events if isinstance(event, Complete)]
