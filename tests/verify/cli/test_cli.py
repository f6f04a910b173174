"""The command line: what it prints, what it refuses, and its exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from explored import with_dot, without_dot
from surroundings import ROOT
from turngate_model import DURABLE_DESIGNS, EVERY_DESIGN
from turngate_verify.cli import diagrams, run


def turngate(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = run(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def json_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code, out, err = turngate(capsys, *arguments, "--json")
    assert err == ""
    return code, json.loads(out)


def test_explore_says_that_the_model_holds(capsys: pytest.CaptureFixture[str]) -> None:
    code, told = json_of(capsys, "explore", "--prompts", "2", "--cancels", "1")
    assert code == 0
    assert told.pop("seconds") >= 0
    assert told == {
        "verdict": "holds",
        "design": None,
        "prompts": 2,
        "cancels": 1,
        "sessions": 2,
        "states": 596,
        "transitions": 3962,
        "depth": 10,
    }
    code, out, _ = turngate(capsys, "explore", "--prompts", "2", "--cancels", "1")
    assert code == 0
    assert "596 states, 3,962 transitions, depth 10" in out
    assert out.endswith("verdict: holds\n")


def test_explore_takes_a_limit_on_turns(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("explore", "--prompts", "2", "--cancels", "1", "--turns-limit", "1")
    code, told = json_of(capsys, *asked)
    assert (code, told["verdict"], told["turns_limit"], told["states"]) == (0, "holds", 1, 731)
    code, out, _ = turngate(capsys, *asked)
    assert code == 0
    assert "2 sessions, turns limit 1: 731 states" in out


def test_explore_refutes_a_design(capsys: pytest.CaptureFixture[str]) -> None:
    code, told = json_of(capsys, "explore", "--design", "hasty-clear")
    assert code == 1
    assert (told["verdict"], told["design"], told["property"]) == ("violated", "hasty-clear", "FULL_COVERAGE")
    assert told["counterexample"] == [
        "accept a",
        "accept b",
        "cancel",
        "enter a: cancel_on_entry",
        "enter b: active",
    ]
    code, out, _ = turngate(capsys, "explore", "--design", "hasty-clear")
    assert code == 1
    assert "   5  enter b: active\n" in out
    assert "but b was accepted before the cancel: it should be cancelled on entry, not active" in out


def test_explore_names_what_was_broken_on_the_way(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = turngate(capsys, "explore", "--design", "swallowed-outer")
    assert "on the way: LAST_WORD in 6 steps" in out


def test_explore_is_unknown_when_a_limit_is_reached_or_nothing_was_tested(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, told = json_of(capsys, "explore", "--prompts", "4", "--max-seconds", "0.01")
    assert (code, told["verdict"], told["reasons"]) == (3, "unknown", ["time ran out after 0.01 s"])
    code, out, _ = turngate(capsys, "explore", "--prompts", "1")
    assert code == 3
    assert "NEVER_POISONED, NO_STRAND, FIFO, ISOLATION" in out


@pytest.mark.parametrize(
    ("design", "bounds", "breaks"),
    [
        ("idle-gap", ("2", "1"), "FIFO or ONE_TURN"),
        ("pending-flag", ("1", "0"), "FULL_COVERAGE or NEVER_POISONED"),
    ],
)
def test_explore_says_that_bounds_are_too_small_to_refute_a_design(
    capsys: pytest.CaptureFixture[str], design: str, bounds: tuple[str, str], breaks: str
) -> None:
    prompts, cancels = bounds
    arguments = ("explore", "--design", design, "--prompts", prompts, "--cancels", cancels)
    reason = f"within these bounds {design} does not break {breaks}: the bounds are too small"
    code, told = json_of(capsys, *arguments)
    assert (code, told["verdict"], told["reasons"]) == (3, "unknown", [reason])
    code, out, _ = turngate(capsys, *arguments)
    assert code == 3
    assert out.endswith(f"  {reason}\nverdict: unknown\n")


def test_explore_lists_the_designs(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = turngate(capsys, "explore", "--design", "list")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == list(EVERY_DESIGN)


def test_diagrams_are_written_and_checked(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(diagrams, "generate", lambda _begin: with_dot())
    code, out, err = turngate(capsys, "diagrams")
    assert (code, err) == (0, "")
    assert "wrote diagrams/lifecycle.dot" in out
    assert turngate(capsys, "diagrams", "--check")[0] == 0
    Path("diagrams/session.mmd").write_text("old", encoding="utf-8")
    code, out, err = turngate(capsys, "diagrams", "--check")
    assert (code, out, err) == (1, "diagrams/session.mmd is stale\n", "run: turngate diagrams\n")


def test_diagrams_that_dot_should_draw_are_named_where_it_is_missing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(diagrams, "generate", lambda _begin: without_dot())
    code, out, err = turngate(capsys, "diagrams")
    assert (code, err) == (0, f"turngate: {without_dot().skipped}\n")
    assert "wrote diagrams/lifecycle.dot" in out
    code, out, _ = turngate(capsys, "diagrams", "--check")
    assert (code, out) == (1, "diagrams/lifecycle.svg is missing\n")


HARMFUL = ROOT / "tests" / "verify" / "conform" / "harmful" / "exits.py"
BAD_INPUT = {
    "an unknown command": (["frobnicate"], "No such command 'frobnicate'"),
    "an unknown design": (
        ["explore", "--design", "nope"],
        "there is no design 'nope'; there are no-accept-tracking",
    ),
    "a design that is none of processes": (
        ["explore", "--durable", "--design", "late-mark"],
        "there is no design 'late-mark' with processes; there are no-version, no-fence",
    ),
    "processes where there are none": (["explore", "--crashes", "2"], "--crashes is for --durable"),
    "processes with two sessions": (
        ["explore", "--durable", "--sessions", "2"],
        "the model of processes has one session",
    ),
    "processes with a limit on turns": (
        ["explore", "--design", "no-fence", "--turns-limit", "1"],
        "the model of processes has no limit on turns: leave --turns-limit out",
    ),
    "processes with prompts for one turn": (
        ["explore", "--durable", "--into"],
        "the model of processes has no prompts for one turn: leave --into out",
    ),
    "too many processes": (["explore", "--durable", "--processes", "9"], "processes must be from 1 to 4"),
    "a negative bound": (["explore", "--prompts", "-1"], "prompts must be from 1 to 8, not -1"),
    "no place": (["explore", "--turns-limit", "0"], "turns_limit must be from 1 to 3, not 0"),
    "a design with a limit": (
        ["explore", "--turns-limit", "1", "--design", "idle-gap"],
        "the known-bad designs have no limit on turns: leave --turns-limit or --design out",
    ),
    "too many cancels": (["explore", "--cancels", "99"], "cancels must be from 0 to 16, not 99"),
    "not a number": (["explore", "--prompts", "x"], "'x' is not a valid integer"),
    "no time at all": (
        ["explore", "--max-seconds", "0"],
        "'--max-seconds': 0.0 is not in the range 0<x<=10000000",
    ),
    "a time that is none": (
        ["explore", "--max-seconds", "nan"],
        "nan is not a number of seconds; give one above",
    ),
    "a time without end": (
        ["conform", "x:Y", "--max-seconds", "inf"],
        "inf is not in the range 0<x<=10000000",
    ),
    "an answer without end": (["conform", "x:Y", "--timeout", "1e300"], "1e+300 is not in the range"),
    "a negative time": (["conform", "x:Y", "--timeout", "-nan"], "-nan is not a number of seconds"),
    "no memory": (["explore", "--max-memory", "0"], "'--max-memory': 0 is not in the range x>=1"),
    "a number of too many digits": (["explore", "--prompts", "9" * 5000], "is not a valid integer"),
    "too many workers": (["schedules", "--workers", "9" * 9], "999999999 is not in the range 1<=x<=256"),
    "an empty program": (["conform", "json:loads", "--replay", " , "], "there is no operation in ' , '"),
    "too many prompts": (
        ["conform", "json:loads", "--replay", ", ".join(f"accept r{n}" for n in range(17))],
        "a program accepts at most 16 prompts",
    ),
    "no program at all": (["conform", "x:Y", "--programs", "-1"], "-1 is not in the range x>=0"),
    "a folder in place of a file": (["trace", "/"], "'/': Is a directory"),
    "a file there is not": (["trace", "/nowhere"], "'/nowhere': No such file or directory"),
    "a module that exits": (["conform", f"{HARMFUL}:Subject"], "cannot be imported: SystemExit: 0"),
    "a name there is not": (["conform", "json:Nope"], "json has no Nope"),
    "a folder that cannot be made": (["diagrams", "--directory", "/proc/none"], "/proc/none"),
    "a file in place of a folder": (["diagrams", "--directory", __file__], "is a file"),
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input_gets_one_clear_line(capsys: pytest.CaptureFixture[str], name: str) -> None:
    arguments, message = BAD_INPUT[name]
    code, out, err = turngate(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("turngate: ")
    assert message in err
    assert err.count("\n") == 1


def test_the_module_runs_like_the_command() -> None:
    command = [sys.executable, "-m", "turngate", "explore", "--prompts", "0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT / "impl")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "turngate: prompts must be from 1 to 8, not 0\n"


def test_a_missing_extra_is_named() -> None:
    blocked = "import sys; sys.modules['click'] = None; sys.argv = ['turngate', 'explore']; "
    program = blocked + "from turngate.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "turngate: turngate explore needs the extra 'verify' (the package click is missing); "
        "install it with: pip install 'turngate[verify]'\n"
    )


def test_a_shell_can_complete_commands(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_TURNGATE_COMPLETE", "bash_source")
    code, out, _ = turngate(capsys)
    assert code == 0
    assert "complete -o nosort -F _turngate_completion turngate" in out


def test_explore_says_that_the_model_of_processes_holds(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("explore", "--durable", "--loads", "0", "--losses", "0")
    code, told = json_of(capsys, *arguments)
    assert code == 0
    assert told.pop("seconds") >= 0
    assert told.pop("transitions") > told["states"]
    assert told == {
        "verdict": "holds",
        "design": None,
        "prompts": 2,
        "cancels": 1,
        "sessions": 1,
        "processes": 2,
        "crashes": 1,
        "expiries": 1,
        "losses": 0,
        "loads": 0,
        "on_death": "fail",
        "states": 3456,
        "depth": 12,
    }
    code, out, _ = turngate(capsys, *arguments)
    assert code == 0
    assert "0 losses, 0 loads, on death fail: 3,456 states" in out
    assert out.endswith("verdict: holds\n")


def test_explore_refutes_a_design_of_processes(capsys: pytest.CaptureFixture[str]) -> None:
    code, told = json_of(capsys, "explore", "--design", "reused-worker")
    assert (code, told["verdict"], told["property"]) == (1, "violated", "ADOPTED")
    assert told["counterexample"] == [
        "P1 saves: submit a; a is active",
        "P1 dies",
        "P1 comes back, under its old name",
    ]
    code, out, _ = turngate(capsys, "explore", "--design", "reused-worker", "--on-death", "retry")
    assert code == 1
    assert "  but the turn of a is active, and no process will end it\n" in out
    assert out.endswith("verdict: refuted in 3 steps\n")


def test_explore_lists_the_designs_of_processes(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = turngate(capsys, "explore", "--durable", "--design", "list")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == list(DURABLE_DESIGNS)


def test_explore_is_unknown_where_too_few_processes_die(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = turngate(capsys, "explore", "--durable", "--crashes", "0", "--losses", "0", "--loads", "0")
    assert code == 3
    assert "DURABLE, ADOPTED" in out
    arguments = ("explore", "--design", "no-version", "--loads", "0", "--prompts", "1")
    reason = "within these bounds no-version does not break EXACTLY_ONE_COMPLETE or ONE_TURN or FULL_COVERAGE"
    code, told = json_of(capsys, *arguments)
    assert (code, told["verdict"]) == (3, "unknown")
    assert told["reasons"][0].startswith(reason)


def test_numbers_and_nouns_agree_in_what_is_printed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    history = tmp_path / "one.jsonl"
    history.write_text('{"event": "accept", "session": "s", "run": "a"}\n', encoding="utf-8")
    assert "1 event, 1 run, " in turngate(capsys, "trace", str(history))[1]
    out = turngate(capsys, "explore", "--prompts", "1", "--cancels", "1", "--sessions", "1")[1]
    assert out.startswith("1 prompt, 1 cancel, 1 session: ")
    out = turngate(capsys, "explore", "--durable", "--processes", "1", "--prompts", "1", "--crashes", "1")[1]
    assert out.startswith("1 process, 1 prompt, ")
    assert ", 1 crash, " in out
    for word in ("prompts", "cancels", "sessions", "processes", "crashes", "expirys", "losss"):
        assert f" 1 {word}" not in f" {out}"
