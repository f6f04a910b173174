"""Subjects in another language: the JSON lines, what can go wrong with them, and what is left behind."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from pathlib import Path

import pytest

from speaking import LONG, Patient, command
from surroundings import ROOT
from turngate_model import Property
from turngate_verify.conform import (
    Command,
    Effort,
    ProgramLimits,
    SubjectFailed,
    Timing,
    check,
    parsed,
    play,
)

pytestmark = pytest.mark.usefixtures("standing_clock")

HANGS = f"time.sleep({2 * LONG})"

NODE = ROOT / "examples" / "conformance" / "node"
QUICK = Effort(programs=150, examples=5)

LIGHT = """
import json, os, subprocess, sys, time
for line in sys.stdin:
    asked = json.loads(line)
    op, run, answer = asked["op"], asked.get("run"), {{"id": asked["id"], "events": []}}
    if op == "hello":
        answer["features"] = ["cancel"]
    elif op == "reset":
        runs = []
    elif op == "accept":
        answer["events"] = [{{"event": "enter", "run": run, "state": "queued" if runs else "active"}}]
        runs.append(run)
    elif op == "cancel":
        answer["events"] = [{{"event": "complete", "run": run, "cancelled": True}} for run in runs[::-1]]
        runs = []
    elif op == "finish":
        {finish}
    print(json.dumps(answer), flush=True)
"""
"""Good enough for programs of two operations, and quick to start: what it does then is told by a test."""


def light(folder: Path, finish: str, hangs_at: str = "", *, waits: bool = False) -> Command:
    program = folder / "light.py"
    program.write_text(LIGHT.format(finish=finish))
    return Patient(sys.executable, "-S", str(program), hangs_at=hangs_at, waits=waits)


def test_a_sound_subject_holds(tmp_path: Path) -> None:
    result = check(command(tmp_path), effort=QUICK)
    assert (result.failed, result.counterexamples) == (None, {})
    assert result.depths[1] >= 3


def test_a_flaw_is_found(tmp_path: Path) -> None:
    result = check(command(tmp_path, flaw="covered runs enter"), effort=QUICK)
    assert result.replays[Property.FULL_COVERAGE] == "accept a, cancel, enter a"
    assert result.replay_command(Property.FULL_COVERAGE) == (
        f"turngate conform --replay 'accept a, cancel, enter a' -- {sys.executable} {tmp_path}/subject.py"
    )


EVERYTHING = (
    "accept a, enter a, reject b, accept c, accept d, enter c, cancel_run c, interrupt e, enter d, enter e, "
    "finish e, wait, accept f + cancel, enter f, residue"
)


def test_the_newer_operations_go_over_the_lines(tmp_path: Path) -> None:
    make = command(tmp_path, kind="Able")
    try:
        played = play(make, parsed(EVERYTHING), ProgramLimits())
    finally:
        make.stop()
    assert played.violations == ()
    told = [str(step) for step in played.steps]
    assert told[2] == "accept b (reject: refused)"
    assert told[6] == "cancel run c: RunComplete of c: cancelled"
    assert told[12:16] == [  # then one more prompt runs
        "accept f, and in the same moment",
        "cancel",
        "enter f: cancel_on_entry",
        "residue (0 held)",
    ]


WRONG = {
    "it hangs": (HANGS, "it hangs: no answer within 0.5 s"),
    "it dies": ("print('farewell', file=sys.stderr); sys.exit(7)", "it died, with exit code 7"),
    "it is killed": ("os.kill(os.getpid(), 9)", "it died of signal 9"),
    "it closes its output": (f"os.close(1); {HANGS}", "it closed its standard output"),
    "it answers garbage": ("print('?!', flush=True)", "it answered what is not JSON: '?!'"),
    "it answers a list": ("print('[]', flush=True)", "it answered JSON that is not an object"),
    "it answers no events": ("del answer['events']", "it answered without events, a list of objects"),
    "it shows no event": (
        "answer['events'] = [{'event': 'boom', 'run': 'a'}]",
        "{'event': 'boom', 'run': 'a'} is no event of the port",
    ),
    "it shows a run nobody accepted": (
        "answer['events'] = [{'event': 'handoff', 'run': 'z'}]",
        "it shows Handoff(run='z'), about a run that was never accepted",
    ),
    "it answers another question": (
        "answer['id'] += 1",
        "it spoke out of turn: the answer should have the id",
    ),
    "it speaks unasked": (
        "answer['events'] = [{'event': 'complete', 'run': run, 'cancelled': False}]; runs.remove(run); "
        "print(json.dumps(answer), flush=True)",
        "it spoke out of turn",
    ),
    "it never ends its line": (f"os.write(1, b'x' * 2_000_000); {HANGS}", "more than 1,048,576 bytes"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_goes_wrong_is_reported_with_the_conversation(tmp_path: Path, name: str) -> None:
    finish, said = WRONG[name]
    waits = name in {"it dies", "it is killed"}
    result = check(light(tmp_path, finish, "finish" if finish == HANGS else "", waits=waits), effort=QUICK)
    assert result.failed is not None
    assert said in result.failed.what
    assert result.verdict == "unknown"
    asked = [line for line in result.failed.conversation if line.startswith("> ")]
    assert any(json.loads(line[2:])["op"] == "finish" for line in asked)
    assert any(line.startswith("< ") for line in result.failed.conversation)
    if name == "it dies":
        assert result.failed.conversation[-1] == "! farewell"


@pytest.mark.parametrize("hello", ["", "features=7", "features=['speed']"])
def test_a_subject_must_say_what_it_can_do(tmp_path: Path, hello: str) -> None:
    program = tmp_path / "hello.py"
    program.write_text(f"import json\ninput()\nprint(json.dumps(dict(id=1, {hello})), flush=True)\ninput()\n")
    result = check(Patient(sys.executable, str(program)), effort=QUICK)
    assert result.failed is not None
    assert "two_phase, folds" in result.failed.what


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # The process that inherits a dead child may take its time to reap it.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize("finish", ["pass", HANGS, "os._exit(1)"], ids=["ends", "hangs", "dies"])
def test_the_whole_process_tree_is_gone(tmp_path: Path, finish: str) -> None:
    pids = tmp_path / "pids"
    sleeper = f"subprocess.Popen(['sh', '-c', 'echo $$ >> {pids}; trap : TERM INT; sleep 600 & wait'])"
    # What it has started keeps its output open, so that its death looks like hanging.
    make = light(tmp_path, finish, "" if finish == "pass" else "finish")
    program = tmp_path / "light.py"
    program.write_text(
        program.read_text().replace("for line in sys.stdin:", f"{sleeper}\nfor line in sys.stdin:")
    )
    check(make, effort=QUICK)
    started = [int(line) for line in pids.read_text().split()]
    assert started
    until = time.monotonic() + LONG
    while any(map(alive, started)) and time.monotonic() < until:
        time.sleep(0.02)
    assert not any(map(alive, started))


@pytest.mark.needs("node")
def test_a_dispatcher_in_javascript_strands_its_queue() -> None:
    result = check(Patient("node", str(NODE / "stranded.mjs")), effort=QUICK)
    assert result.failed is None
    assert result.replays == {Property.NO_STRAND: "accept a, accept b, fail a"}


@pytest.mark.needs("node")
def test_its_repaired_twin_holds() -> None:
    result = check(Patient("node", str(NODE / "repaired.mjs")), effort=Effort(programs=600, examples=10))
    assert (result.failed, result.replays, result.verdict) == (None, {}, "holds")


OWN_NODE = Path(__file__).parent / "node"
PATIENT = Timing(quiet=0.02, grace=LONG, longest=2 * LONG)


@pytest.mark.needs("node")
def test_what_an_earlier_program_leaves_behind_is_not_shown_to_the_next() -> None:
    make = Patient("node", str(OWN_NODE / "leaving.mjs"))
    try:
        play(make, parsed("accept a, accept b, accept c"), ProgramLimits())
        played = play(make, parsed("accept a, accept b, accept c, accept d, accept e"), ProgramLimits())
    finally:
        make.stop()
    assert (played.violations, played.late) == ((), ())
    assert [str(step) for step in played.steps[:2]] == ["accept a: a is active", "accept b: b is queued"]


@pytest.mark.needs("node")
def test_a_promise_is_complete_when_it_is_settled_as_a_future_is() -> None:
    make = Patient("node", str(OWN_NODE / "exclusive.mjs"))
    try:
        played = play(make, parsed("accept a, accept b, finish a, fail b"), ProgramLimits())
    finally:
        make.stop()
    assert (played.violations, played.late) == ((), ())
    assert str(played.steps[2]) == "the turn of a ends: RunComplete of a: finished, b becomes active"
    assert str(played.steps[3]) == "the turn of b fails: RunComplete of b: no luck"


@pytest.mark.needs("node")
def test_a_dispatcher_in_javascript_takes_its_time_and_is_waited_for() -> None:
    make = Command("node", str(OWN_NODE / "timers.mjs"), timeout=LONG, timing=PATIENT)
    program = "accept a, accept b, reject c, cancel_run b, interrupt d, finish d, wait, accept e, residue"
    try:
        played = play(make, parsed(program), ProgramLimits())
    finally:
        make.stop()
    assert (played.violations, played.late) == ((), ())
    assert str(played.steps[2]) == "accept c (reject: refused)"
    assert str(played.steps[4]) == "accept d (interrupt): RunComplete of a: cancelled, d is active"
    assert str(played.steps[-1]) == "residue (2 held)"


@pytest.mark.deep
@pytest.mark.needs("node")
def test_a_dispatcher_in_javascript_in_real_time_holds_with_the_newer_operations() -> None:
    make = Command("node", str(OWN_NODE / "timers.mjs"), timeout=LONG, timing=PATIENT)
    result = check(make, effort=Effort(programs=60, examples=3, steps=12, workers=2))
    assert (result.failed, result.replays, result.flaky) == (None, {}, {})
    assert {"cancel_run", "interrupt", "reject", "residue", "wait", "real_time"} < set(result.features.names)
    assert result.verdict_of(Property.NO_RESIDUE) == "holds"


def test_all_of_the_standard_error_is_told_up_to_a_limit(tmp_path: Path) -> None:
    complain = "[print('line', n, '!' * 60, file=sys.stderr) for n in range({0})]; sys.exit(7)"
    for lines_of_it in (100, 2000):
        result = check(light(tmp_path, complain.format(lines_of_it), waits=True), effort=QUICK)
        assert result.failed is not None
        complaints = [line for line in result.failed.conversation if line.startswith("! ")]
        assert complaints[-1].startswith(f"! line {lines_of_it - 1} ")
        if lines_of_it == 100:
            assert len(complaints) == 100
        else:
            written = sum(len(f"line {n} {'!' * 60}\n") for n in range(lines_of_it))
            assert complaints[0] == f"! ({written - 65_536:,} bytes of it left out)"
    # It is said once, and each property only refers to it.
    whys = {result.why_unknown(each) for each in result.judged if each not in result.not_shown}
    assert len(whys) == 1


WRONG_ANSWERS = {
    "'residue': 'many', 'events': []": "it answered residue without residue, a number",
    "'events': [], 'at_work': 'a'": "it answered with at_work, which is not a list of runs",
}


@pytest.mark.parametrize("answer", WRONG_ANSWERS)
def test_a_newer_answer_of_another_form_is_refused(tmp_path: Path, answer: str) -> None:
    program = tmp_path / "newer.py"
    program.write_text(
        "import json, sys\n"
        "for line in sys.stdin:\n"
        "    asked = json.loads(line)\n"
        "    answer = {'events': []} if asked['op'] == 'reset' else {" + answer + "}\n"
        "    if asked['op'] == 'hello': answer = {'features': ['residue']}\n"
        "    print(json.dumps({'id': asked['id'], **answer}), flush=True)\n"
    )
    make = Patient(sys.executable, "-S", str(program))
    try:
        with pytest.raises(SubjectFailed, match=re.escape(WRONG_ANSWERS[answer])):
            play(make, parsed("residue" if "residue" in answer else "accept a"), ProgramLimits())
    finally:
        make.stop()


def test_several_processes_play_at_the_same_time(tmp_path: Path) -> None:
    result = check(command(tmp_path, flaw="covered runs enter"), effort=QUICK._replace(workers=3))
    assert result.failed is None
    assert result.replays[Property.FULL_COVERAGE] == "accept a, cancel, enter a"
