"""``turngate conform``: what it prints, what it refuses, and its exit codes."""

from __future__ import annotations

import itertools
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from surroundings import ROOT, StandingStill
from turngate_verify.cli import run
from turngate_verify.conform import JUDGED

pytestmark = pytest.mark.usefixtures("standing_clock")

LOCK = "examples/conformance/session_lock.py:SessionLockSubject"
QUICK = ("--programs", "300", "--examples", "5")
BROKEN = "accept a, accept b, cancel"


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", [*sys.path])


def turngate(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = run(["conform", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_violation_is_printed_and_can_be_replayed(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = turngate(capsys, LOCK, *QUICK)
    assert code == 1
    assert "   3  cancel: RunComplete of a: cancelled, b becomes active\n" in out
    assert "  but b was accepted before the cancel: it must not become active by handoff\n" in out
    assert f"  replay: turngate conform --replay '{BROKEN}' {LOCK}\n" in out
    assert "left out: fold: " in out
    assert "up to 8 operations in one session" in out
    assert re.search(r"mid-flight: every program of up to \d operations with one gap", out)
    code, out, _ = turngate(capsys, "--replay", BROKEN, LOCK)
    assert code == 1
    assert "b becomes active" in out


def test_a_replay_that_breaks_nothing_says_so_and_proves_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = turngate(capsys, "--replay", "accept a, cancel", LOCK)
    assert code == 3
    assert "   2  cancel: RunComplete of a: cancelled\n" in out


def test_the_object(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = turngate(capsys, LOCK, *QUICK, "--json")
    told: dict[str, Any] = json.loads(out)
    assert (code, err, told["verdict"], told["subject"]) == (1, "", "violated", LOCK)
    assert list(told["properties"]) == list(map(str, JUDGED))
    broken = told["properties"]["FULL_COVERAGE"]
    assert (broken["verdict"], broken["steps"], broken["program"]) == ("violated", 3, BROKEN)
    assert broken["counterexample"][0] == "accept a: a is active"
    assert told["properties"]["FIFO"]["verdict"] == "holds"
    assert told["properties"]["FIFO"]["checks"]["short"]["programs"] > 0
    assert "messages" in told["properties"]["ON_RECORD"]["why"]
    assert (told["features"], told["problems"]) == (["cancel", "wait", "bursts"], [])


def test_the_page(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, _, err = turngate(capsys, LOCK, *QUICK, "--report", str(tmp_path / "report"))
    assert (code, err) == (1, f"wrote {tmp_path}/report/index.html\n")
    page = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    assert f"<h1>{LOCK}: <b>violated</b></h1>" in page
    assert "<code>FULL_COVERAGE</code>" in page
    assert page.count("<svg") >= 1
    assert "http://" not in page.replace("http://www.w3.org/", "")


def test_a_target_in_a_module(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = turngate(capsys, "conforming:Plain", "--programs", "1200", "--examples", "20")
    assert code == 0, out
    assert "verdict: holds" in out


def test_a_command_that_fails_is_reported_with_the_conversation(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    command = ("--", sys.executable, "-c", "print('ready', flush=True); input()")
    code, out, _ = turngate(capsys, *command)
    assert code == 3
    assert "the subject could not be judged to the end: it" in out
    assert "ready" in out
    code, out, _ = turngate(capsys, "--json", "--report", str(tmp_path), *command)
    assert (code, json.loads(out)["verdict"]) == (3, "unknown")
    assert any("ready" in line for line in json.loads(out)["conversation"])
    assert "could not be judged to the end" in (tmp_path / "index.html").read_text(encoding="utf-8")


def test_running_out_of_time_is_unknown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, standing_clock: StandingStill
) -> None:
    monkeypatch.setattr(standing_clock, "monotonic", itertools.count().__next__)
    code, out, _ = turngate(capsys, "conforming:Plain", "--max-seconds", "2.5")
    assert code == 3
    assert "2.5 s" in out


UNSTEADY = """
from itertools import cycle
from conforming import Plain

class Unsteady(Plain):
    turns = cycle([""] * 9 + ["completes twice"])

    def __init__(self):
        super().__init__(next(self.turns))
"""


def test_what_does_not_come_back_is_flaky_and_no_violation(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "unsteady.py"
    path.write_text(UNSTEADY, encoding="utf-8")
    target = f"{path}:Unsteady"
    code, out, _ = turngate(capsys, target, "--programs", "60", "--examples", "0", "--report", str(tmp_path))
    assert code == 3
    assert "verdict: flaky" in out
    assert "  flaky: played again once, the same program did not break it:\n   1  accept a\n" in out
    assert "broken once by accept a" in (tmp_path / "index.html").read_text(encoding="utf-8")
    code, out, _ = turngate(capsys, target, "--programs", "60", "--examples", "0", "--json")
    told = json.loads(out)["properties"]["EXACTLY_ONE_COMPLETE"]
    assert (code, told["verdict"], told["replays"]) == (3, "flaky", 1)
    assert told["counterexample"] != told["again"]
    assert told["program"] in told["replay"]


def test_several_workers_say_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = turngate(capsys, LOCK, *QUICK, "--workers", "3", "--json")
    assert code == 1
    assert json.loads(out)["properties"]["FULL_COVERAGE"]["program"] == BROKEN


BAD_INPUT = {
    "nothing": ([], "give either a target, module:Class, or '--' and a command"),
    "no command": (["--"], "give either a target"),
    "both": ([LOCK, "--", "node"], "give either a target"),
    "no class": (["session_lock"], "is not a target; give module:Class or path.py:Class"),
    "no file": (["nowhere.py:Subject"], "there is no file nowhere.py"),
    "no module": (["nowhere.at_all:Subject"], "nowhere.at_all cannot be imported"),
    "no such class": (["session_lock:Nope"], "session_lock has no Nope"),
    "not a class": (["session_lock:__doc__"], "cannot make a subject: it is not callable"),
    "not a program": (
        [LOCK, "--replay", "accept a, jump"],
        "'jump' is no operation; there are accept, enter",
    ),
    "a run nobody accepted": ([LOCK, "--replay", "enter a"], "about a run that its session has not accepted"),
    "no worker": ([LOCK, "--workers", "0"], "0 is not in the range 1<=x<=64"),
    "a negative count": ([LOCK, "--programs", "-1"], "-1 is not in the range x>=0"),
    "no such command": (["--", "./no-such-adapter"], "No such file or directory: ./no-such-adapter"),
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input_gets_one_clear_line(capsys: pytest.CaptureFixture[str], name: str) -> None:
    arguments, message = BAD_INPUT[name]
    code, out, err = turngate(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("turngate: ")
    assert message in err
    assert err.count("\n") == 1


def test_something_that_makes_no_subject_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = turngate(capsys, "pathlib:Path")
    assert code == 3
    assert "could not be judged to the end: it makes no subject" in out
