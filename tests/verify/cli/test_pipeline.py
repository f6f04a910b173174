"""What a pipeline reads of ``conform`` and ``trace``: JUnit, annotations, Markdown, schemas, requirements."""

from __future__ import annotations

import json
import re
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema_rs
import pytest

from surroundings import ROOT
from turngate_model.history import Accept, Cancel, Complete, Enter, Event, Handoff
from turngate_model.lifecycle import DeclaredState
from turngate_model.properties import Property
from turngate_verify.cli import run
from turngate_verify.conform import JUDGED, Features
from turngate_verify.pipeline.outcome import Case, Outcome
from turngate_verify.pipeline.requirements import REQUIREMENTS, AtStake, RequirementResult, results
from turngate_verify.pipeline.situations import Situations, overheard
from turngate_verify.pipeline.writing import github_annotations, junit, markdown

pytestmark = pytest.mark.usefixtures("standing_clock")

LOCK = "examples/conformance/session_lock.py:SessionLockSubject"
ITSELF = "examples/conformance/turngate_itself.py:TurngateSubject"
QUICK = ("--programs", "300", "--examples", "5", "--mid-flight", "2")
RECORDINGS = ROOT / "tests" / "verify" / "recordings"
HOSTILE = 'a]]><b a="\'">&amp;\x00\x1b[31m\ud800 |`*_%\r\n::error::x,y'


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", [*sys.path])


def schema(command: str) -> jsonschema_rs.Validator:
    path = files("turngate_verify") / "pipeline" / "schemas" / f"{command}.schema.json"
    return jsonschema_rs.validator_for(json.loads(path.read_text(encoding="utf-8")))


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = run([*arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def results_in(told: dict[str, Any]) -> dict[str, str]:
    return {name: said["result"] for name, said in told["requirements"].items()}


# The table.


def test_the_table_has_every_requirement_of_the_specification_and_no_other() -> None:
    spec = (ROOT / "SPEC.md").read_text(encoding="utf-8")
    assert list(REQUIREMENTS) == re.findall(r"^\*\*(R-[A-Z]+-\d+)\*\*", spec, re.MULTILINE)


def test_what_can_be_shown_names_properties_and_what_cannot_says_why() -> None:
    for each in REQUIREMENTS.values():
        assert bool(each.properties) != bool(each.hidden)
        assert set(each.properties) <= set(JUDGED)
        assert set(each.needs) <= set(Features._fields)


ALL = frozenset(REQUIREMENTS)
HOLD: dict[Any, str] = dict.fromkeys(JUDGED, "holds")


def test_a_requirement_that_the_port_hides_is_never_passed_or_failed() -> None:
    at_stake: dict[Any, AtStake] = {Property.FIFO: AtStake(ALL, ALL)}
    for offences in ({}, at_stake):
        said = results(Features._fields, ALL, HOLD, offences)
        hidden = {name for name, each in REQUIREMENTS.items() if each.hidden}
        assert {said[name].status for name in hidden} == {"not applicable"}


@pytest.mark.parametrize(
    ("witnessed", "verdict", "offences", "status"),
    [
        (ALL, "holds", {}, "passed"),
        ((), "holds", {}, "not exercised"),
        (ALL, "unknown", {}, "not exercised"),
        (ALL, "flaky", {}, "not exercised"),
        (ALL, "violated", {}, "not exercised"),
        (ALL, "violated", {Property.FIFO: AtStake(ALL)}, "not exercised"),
        (ALL, "violated", {Property.FIFO: AtStake(ALL, ALL)}, "failed"),
        (ALL, "holds", {Property.ONE_TURN: AtStake(ALL, ALL)}, "not exercised"),
    ],
)
def test_the_result_of_a_requirement(witnessed: Any, verdict: str, offences: Any, status: str) -> None:
    verdicts = HOLD | {Property.FIFO: verdict}
    assert results(Features._fields, witnessed, verdicts, offences)["R-QUE-1"].status == status


def test_a_subject_without_the_feature_is_not_held_to_the_requirement() -> None:
    said = results([], ALL, HOLD, {})
    assert {said[name].status for name, each in REQUIREMENTS.items() if each.needs} == {"not applicable"}


# The situations.


def seen(*steps: tuple[Event, ...]) -> Situations:
    situations = Situations()
    for events in steps:
        situations.step("s", events)
    return situations


A_RUNS: tuple[Event, ...] = (Accept("a"), Enter("a", DeclaredState.ACTIVE))
B_WAITS: tuple[Event, ...] = (Accept("b"), Enter("b", DeclaredState.QUEUED))


def test_a_cancel_that_covers_the_queue_is_about_what_it_covers() -> None:
    situations = seen(A_RUNS, B_WAITS, (Cancel(), Complete("a", cancelled=True), Handoff("b")))
    assert set(situations.last) >= {"R-CAN-1", "R-CAN-3", "R-CMP-1"}
    blamed = situations.blamed("b was accepted before the cancel: it must not become active")
    assert {"R-CAN-1", "R-CAN-3"} <= blamed
    assert "R-CMP-1" not in blamed  # that is about a, which was told as it should be


def test_a_covered_run_of_which_nothing_more_is_shown_is_a_matter_of_the_cancel() -> None:
    situations = seen(A_RUNS, B_WAITS, (Cancel(), Complete("a", cancelled=True)))
    assert {"R-CAN-1", "R-CAN-3"} <= situations.blamed("b hangs: it neither started nor completed")


def test_what_has_not_happened_is_not_seen() -> None:
    assert seen(A_RUNS, (Complete("a", cancelled=False),)).seen == {"R-ENT-3", "R-LIV-1"}
    assert seen((Cancel(),)).seen == {"R-CAN-5"}


def test_coverage_that_outlasts_another_entry_needs_two_covered_runs() -> None:
    entered = (Enter("a", DeclaredState.CANCEL_ON_ENTRY),)
    alone = seen((Accept("a"),), (Cancel(),), entered)
    assert "R-CAN-7" not in alone.seen
    both = seen(
        (Accept("a"), Accept("b")), (Cancel(),), entered, (Enter("b", DeclaredState.CANCEL_ON_ENTRY),)
    )
    assert "R-CAN-7" in both.last


def test_a_recording_is_passed_on_as_it_is() -> None:
    lines = [
        b"no json\n",
        b"[]\n",
        b'{"event": "accept", "run": 3}\n',
        b'{"event": "cancel", "session": "s"}\n',
    ]
    situations = Situations()
    assert list(overheard(lines, situations)) == lines
    assert situations.seen == {"R-CAN-5"}


# The commands.


def test_the_object_of_conform_and_its_requirements(capsys: pytest.CaptureFixture[str]) -> None:
    code, lock = told(capsys, "conform", LOCK, *QUICK)
    assert code == 1
    schema("conform").validate(lock)
    assert list(lock["requirements"]) == list(REQUIREMENTS)
    by_id = results_in(lock)
    assert {name for name, said in by_id.items() if said == "failed"} == {"R-CAN-1", "R-CAN-3"}
    assert (by_id["R-CAN-2"], by_id["R-HOF-2"], by_id["R-QUE-1"]) == ("passed",) * 3
    assert by_id["R-CAN-6"] == "not applicable"
    _, itself = told(capsys, "conform", ITSELF, *QUICK)
    schema("conform").validate(itself)
    assert "failed" not in results_in(itself).values()
    assert not schema("conform").is_valid(lock | {"verdict": "perhaps"})


def test_a_replay_passes_only_what_it_has_played(capsys: pytest.CaptureFixture[str]) -> None:
    code, replayed = told(capsys, "conform", LOCK, "--replay", "accept a, finish a")
    assert code == 3
    schema("conform").validate(replayed)
    assert results_in(replayed)["R-CAN-1"] == "not exercised"


@pytest.mark.parametrize("path", sorted(RECORDINGS.glob("*.jsonl")), ids=lambda path: path.stem)
def test_the_object_of_trace(capsys: pytest.CaptureFixture[str], path: Path) -> None:
    code, recorded = told(capsys, "trace", str(path))
    schema("trace").validate(recorded)
    by_id = results_in(recorded)
    assert list(by_id) == list(REQUIREMENTS)
    if code == 0:
        assert "failed" not in by_id.values()
    else:
        assert "passed" not in by_id.values()


def test_a_recording_passes_and_fails_requirements(capsys: pytest.CaptureFixture[str]) -> None:
    _, good = told(capsys, "trace", str(RECORDINGS / "good-cancel-covers-all.jsonl"))
    assert results_in(good)["R-CAN-1"] == "passed"
    _, bad = told(capsys, "trace", str(RECORDINGS / "bad-FIFO.jsonl"))
    assert results_in(bad)["R-ENT-2"] == "failed"  # c enters a busy session, and becomes active
    _, bad = told(capsys, "trace", str(RECORDINGS / "bad-FULL_COVERAGE.jsonl"))
    assert {name for name, said in results_in(bad).items() if said == "failed"} >= {"R-ENT-1", "R-CAN-1"}


def test_the_object_of_intervals(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    history = tmp_path / "history.jsonl"
    lines: list[dict[str, Any]] = [
        {"event": "accept", "session": "s", "run": "a", "call": 0, "return": 1},
        {"event": "start", "run": "a", "at": 2},
        {"event": "cancel", "session": "s", "call": 3, "return": 4},
        {"event": "ended", "run": "a", "at": 5},
        {"event": "complete", "run": "a", "cancelled": False, "call": 5, "return": 6},
        {"event": "end"},
    ]
    history.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    xml = tmp_path / "out.xml"
    code, wide = told(capsys, "trace", "--intervals", str(history), "--junit", str(xml))
    assert code == 1
    schema("trace").validate(wide)
    assert set(results_in(wide).values()) == {"not applicable", "not exercised"}
    assert ElementTree.parse(xml).find(".//testcase[@name='session s']/failure") is not None


def test_files_and_annotations(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary, xml, page = tmp_path / "summary.md", tmp_path / "out.xml", tmp_path / "out.md"
    summary.write_text("before\n", encoding="utf-8")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    bad = str(RECORDINGS / "bad-FIFO.jsonl")
    assert run(["trace", bad, "--json", "--junit", str(xml), "--markdown", str(page)]) == 1
    captured = capsys.readouterr()
    line = json.loads(captured.out)["line"]
    assert captured.err.startswith(f"::error file={bad},line={line},title=")
    assert summary.read_text(encoding="utf-8") == "before\n" + page.read_text(encoding="utf-8")
    cases = {case.get("name"): case for case in ElementTree.parse(xml).iter("testcase")}
    assert cases["FIFO"].find("failure") is not None
    assert cases["verdict"].find("failure") is not None
    assert cases["R-ENT-2"].find("failure") is not None
    assert cases["R-KEY-1"].find("skipped") is not None


def test_without_a_verdict_the_file_is_not_green(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    empty, xml = tmp_path / "empty.jsonl", tmp_path / "out.xml"
    empty.write_text('{"event": "end"}\n', encoding="utf-8")
    assert run(["trace", str(empty), "--junit", str(xml)]) == 3
    capsys.readouterr()
    assert ElementTree.parse(xml).find(".//testcase[@name='verdict']/error") is not None


@pytest.mark.parametrize("option", ["--junit", "--markdown"])
@pytest.mark.parametrize("command", [("conform", LOCK), ("trace", str(RECORDINGS / "good-one-run.jsonl"))])
def test_a_file_that_cannot_be_written_is_refused_at_once(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, option: str, command: tuple[str, str]
) -> None:
    assert run([*command, option, str(tmp_path / "missing" / "file")]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.strip().splitlines()) == 1


# Escaping.


def hostile() -> Outcome:
    case = Case(HOSTILE, "failed", HOSTILE, HOSTILE + "\n````", HOSTILE, 3)
    return Outcome(
        HOSTILE, "violated", HOSTILE, 1.0, (case,), {"R-X-1": RequirementResult("failed", HOSTILE)}
    )


def test_xml_stays_whole_and_keeps_what_it_can() -> None:
    root = ElementTree.fromstring(junit(hostile()))
    suites = root.findall("testsuite")
    assert [suite.get("failures") for suite in suites] == ["2", "1"]
    for suite in suites:
        assert suite.get("tests") == str(len(suite.findall("testcase")))
    message = suites[0].findall("testcase")[1].find("failure")
    assert message is not None
    assert ']]><b a="\'">&amp;' in (message.get("message") or "")


def test_an_annotation_is_one_line_and_its_parameters_end_where_they_should() -> None:
    (line,) = github_annotations(hostile())
    assert "\n" not in line
    assert "\r" not in line
    command, _, _ = line.removeprefix("::").partition("::")
    assert [each.partition("=")[0] for each in command.removeprefix("error ").split(",")] == [
        "file",
        "line",
        "title",
    ]


def test_markdown_shows_no_markup_of_others() -> None:
    page = markdown(hostile())
    outside = re.sub(r"(?ms)^(`{3,})text\n.*?\n\1$", "", page)
    assert "<b" not in outside
    assert "`" not in outside
    rows = [line for line in outside.splitlines() if line.startswith("| ")]
    assert {row.count("|") for row in rows} == {4}
