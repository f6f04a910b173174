"""Would this suite notice? The kit is put before every wrong behaviour that the port can show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import session_lock
import turngate_itself

import flights
from speaking import command
from turngate_model import Property
from turngate_verify.cli import run
from turngate_verify.conform import AsyncioSubject, Complete, Effort, Handoff, check, flawed
from turngate_verify.conform.doubting import Doubts, doubt
from turngate_verify.conform.flawed import FLAWS, Doubted, Flawed, name_of

pytestmark = pytest.mark.usefixtures("standing_clock")

QUICK = Effort(programs=200, depth=4, examples=3, mid_flight=3)
STEPS = flights.flight(flights.Steps)


def noticed(result: Doubts) -> dict[str, str]:
    return {each.name: each.noticed for each in result.doubts}


@pytest.fixture(scope="module")
def plain() -> Doubts:
    return doubt(STEPS, effort=QUICK._replace(seconds=1e9))


def test_of_a_right_subject_every_flaw_that_its_features_can_show_is_found(plain: Doubts) -> None:
    assert plain.plain.counterexamples == {}
    for each, flaw in zip(plain.doubts, FLAWS, strict=True):
        may = set(flaw.needs) <= {"cancel", "clear", "wait", "bursts"}
        assert each.noticed == ("found" if may else "not tried"), each
        if may:
            assert each.property in flaw.breaks
            assert each.program
        else:
            assert any(need in each.why for need in flaw.needs)
    assert plain.verdict == "holds"


def test_the_program_of_a_doubt_breaks_the_property_with_the_flaw_and_not_without(plain: Doubts) -> None:
    told = {each.name: each for each in plain.doubts}
    assert told["overtakes"].program == "accept a, accept b, accept c, finish a"
    assert told["silent-drop"].program == "accept a, accept b, cancel"
    assert told["deaf-clear"].program == "accept a, accept b, clear, finish a"


class Inaudible(AsyncioSubject):
    """Cannot be cancelled: many flaws cannot be tried."""

    __test__ = False
    features = STEPS.features._replace(cancel=False, clear=False)

    def start(self) -> None:
        self.mine = flights.Steps(self.runner)

    async def do_accept(self, session: str, run: str) -> None:
        self.watch(run, await self.mine.submit(session, run))


def test_what_needs_a_feature_that_the_adapter_lacks_is_not_tried_and_counts_as_no_gap() -> None:
    result = doubt(Inaudible, effort=QUICK)
    told = {each.name: each for each in result.doubts}
    assert told["poisons"].noticed == "not tried"
    assert "cancel" in told["poisons"].why
    assert told["overtakes"].noticed == "found"
    assert result.verdict == "holds"


def test_bounds_that_are_too_small_are_said() -> None:
    small = Effort(programs=60, depth=2, examples=0, mid_flight=0, steps=2)
    flaws = {name_of(flaw): flaw for flaw in FLAWS}
    shown = doubt_one(flaws["grows"], turngate_itself.TurngateSubject, small)
    assert shown.noticed == "found"  # a drill shows it
    shown = doubt_one(flaws["loses-prompt"], STEPS, small)
    assert shown.noticed == "missed"
    assert "bounds" in shown.why
    assert "races" in shown.why


def doubt_one(flaw: type[Flawed], make: Any, effort: Effort) -> Any:
    return only(flaw, make, effort).doubts[0]


def only(flaw: type[Flawed], make: Any, effort: Effort) -> Doubts:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("turngate_verify.conform.doubting.FLAWS", (flaw,))
        return doubt(make, effort=effort)


class Nothing(Flawed):
    """A flaw that changes something and shows nothing."""

    sentence = "nothing"
    breaks = (Property.FIFO,)

    def shows(self, event: Any) -> Any:
        self.took_effect()
        return (event,)


def test_a_flaw_that_nothing_gives_away_is_missed() -> None:
    result = only(Nothing, STEPS, QUICK)
    assert noticed(result) == {"nothing": "missed"}
    assert result.verdict == "unknown"
    assert "bounds" not in result.doubts[0].why


def test_what_a_broken_subject_breaks_already_hides_a_flaw() -> None:
    result = only(flawed.SaysFinished, session_lock.SessionLockSubject, QUICK)
    assert result.verdict == "violated"
    assert noticed(result) == {"says-finished": "not tried"}
    assert "FULL_COVERAGE" in result.doubts[0].why


@pytest.mark.deep
@pytest.mark.parametrize("flaw", [flaw for flaw in FLAWS if "crash" not in flaw.needs], ids=name_of)
def test_a_flaw_is_found_with_turngate_itself(flaw: type[Flawed]) -> None:
    result = check(
        Doubted(turngate_itself.TurngateSubject, flaw),
        effort=Effort(programs=3000, depth=6, examples=100),
        enough=lambda so_far: any(each in so_far.counterexamples for each in flaw.breaks),
    )
    assert set(flaw.breaks) & result.counterexamples.keys()


def test_a_wrapper_without_a_flaw_changes_no_verdict() -> None:
    class Sound(Flawed):
        pass

    plain = check(STEPS, effort=QUICK)
    wrapped = check(Doubted(STEPS, Sound), effort=QUICK)
    assert wrapped.verdict == plain.verdict == "holds" or plain.why_unknown(Property.FIFO) == ""
    assert not wrapped.counterexamples
    assert (wrapped.programs, wrapped.in_flight, wrapped.examples) == (
        plain.programs,
        plain.in_flight,
        plain.examples,
    )


def test_over_json_lines(tmp_path: Path) -> None:
    subject = command(tmp_path, kind="Able")
    chosen = ("deaf-cancel", "loses-prompt", "poisons")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "turngate_verify.conform.doubting.FLAWS",
            tuple(flaw for flaw in FLAWS if name_of(flaw) in chosen),
        )
        result = doubt(subject, effort=Effort(programs=500, depth=3, examples=0, mid_flight=0))
    assert noticed(result) == dict.fromkeys(noticed(result), "found"), result.doubts
    assert len(result.doubts) == len(chosen)


def test_the_command_prints_each_and_its_exit_code_says_whether_all_were_found(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turngate_verify.conform.doubting.FLAWS", (flawed.Strands, flawed.SilentFold))
    settings = ["--programs", "60", "--examples", "0", "--mid-flight", "2"]
    assert run(["conform", "--doubt", *settings, "--json", "test_doubt:STEPS"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [each["noticed"] for each in told["doubts"]] == ["found", "not tried"]
    assert told["doubts"][0] == {
        "name": "strands",
        "behaviour": flawed.Strands.sentence,
        "noticed": "found",
        "property": "NO_STRAND",
        "program": "accept a, accept b, fail a",
    }
    assert run(["conform", "--doubt", *settings, "test_doubt:STEPS"]) == 0
    shown = capsys.readouterr().out
    assert "1 of 1 wrong behaviour found, 1 not tried" in shown
    assert "NO_STRAND: accept a, accept b, fail a" in shown
    monkeypatch.setattr("turngate_verify.conform.doubting.FLAWS", (Nothing,))
    assert run(["conform", "--doubt", *settings, "test_doubt:STEPS"]) == 3
    capsys.readouterr()
    assert run(["conform", "--doubt", "--replay", "accept a", "test_doubt:STEPS"]) == 2
    assert "--doubt" in capsys.readouterr().err


def test_a_late_complete_is_shown_behind_the_handoff() -> None:
    subject = flawed.LateComplete(STEPS(), lambda: None)
    subject.accept("s1", "a")
    subject.accept("s1", "b")
    subject.observe()
    subject.finish("a")
    assert list(subject.observe()) == [Handoff("b"), Complete("a", cancelled=False)]
