"""Recorded histories: good ones, one for each property they can break, and broken ones."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from turngate_model import Property
from turngate_verify.cli import run
from turngate_verify.trace import BadRecording, check

RECORDINGS = sorted((Path(__file__).parent / "recordings").glob("*.jsonl"))
GOOD = [path for path in RECORDINGS if path.stem.startswith("good")]
BAD = [path for path in RECORDINGS if path.stem.startswith("bad")]

OFFENDING_LINE = {
    "bad-EXACTLY_ONE_COMPLETE": 7,
    "bad-EXACTLY_ONE_COMPLETE-twice": 4,
    "bad-FIFO": 7,
    "bad-FULL_COVERAGE": 5,
    "bad-LAST_WORD": 5,
    "bad-NEVER_POISONED": 4,
    "bad-NEVER_POISONED-by-an-idle-cancel": 3,
    "bad-NEVER_POISONED-by-another-session": 4,
    "bad-NO_STRAND": 6,
    "bad-ONE_TURN": 4,
    "bad-TERMINAL_IS_FINAL": 4,
}


def lines(*events: dict[str, Any]) -> list[str]:
    return [json.dumps(event) for event in events]


@pytest.mark.parametrize("path", GOOD, ids=lambda path: path.stem)
def test_a_good_recording_holds(path: Path) -> None:
    checked = check(path.read_text(encoding="utf-8").splitlines())
    assert (checked.verdict, checked.offence) == ("holds", None)
    assert checked.whole is (path.stem != "good-partial")
    assert bool(checked.unchecked) is not checked.whole


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_a_bad_recording_is_reported_under_its_property_and_line(path: Path) -> None:
    offence = check(path.read_bytes().splitlines()).offence
    assert offence is not None
    assert offence.property == path.stem.removeprefix("bad-").split("-")[0]
    assert offence.line == OFFENDING_LINE[path.stem]


def test_there_is_a_bad_recording_of_everything_that_a_recording_shows() -> None:
    shown = {path.stem.split("-")[1] for path in BAD}
    hidden = {"ON_RECORD", "NO_RESIDUE", "IDLE_CANCEL", "ISOLATION", "DECLARED_MOVE", "REFINES"}
    assert shown | hidden == set(map(str, Property))


ACCEPT = {"event": "accept", "session": "s", "run": "a"}
BROKEN: dict[str, tuple[str | bytes, str]] = {
    "not json": ('{"event"', r"line 2: not JSON \("),
    "not utf-8": (b"\xff", r"line 2: not JSON \("),
    "not an object": ("[]", 'line 2: not an object with the key "event"'),
    "no event": ("{}", 'line 2: not an object with the key "event"'),
    "unknown event": (
        '{"event": "explode", "run": "a"}',
        "line 2: unknown event 'explode'; there are accept,",
    ),
    "unknown run": (
        '{"event": "enter", "run": "z", "state": "active"}',
        "line 2: enter of run 'z', which was never",
    ),
    "no run": ('{"event": "enter"}', "line 2: enter needs run: a string that is not empty"),
    "no session": ('{"event": "cancel", "session": ""}', "line 2: cancel needs session: a string"),
    "a wrong state": (
        '{"event": "enter", "run": "a", "state": "complete"}',
        "line 2: enter needs a state: one of",
    ),
    "no outcome": ('{"event": "complete", "run": "a"}', "line 2: complete needs cancelled: true or false"),
    "a wrong error": (
        '{"event": "complete", "run": "a", "cancelled": true, "error": 1}',
        "line 2: error must be",
    ),
    "another session": (
        '{"event": "accept", "session": "t", "run": "a"}',
        "line 2: run 'a' is in session 's'",
    ),
    "a state that is a list": (
        '{"event": "enter", "run": "a", "state": ["active"]}',
        "line 2: enter needs a state",
    ),
    "a number for a run": ('{"event": "fold", "run": 7, "into": "a"}', "line 2: fold needs run: a string"),
    "a list for a run": ('{"event": "handoff", "run": ["a"]}', "line 2: handoff needs run: a string"),
    "nothing to fold into": (
        '{"event": "fold", "run": "a", "into": null}',
        "line 2: fold needs into: a string",
    ),
    "an unknown event of nobody": ('{"event": "explode"}', "line 2: unknown event 'explode'"),
    "a key twice": (
        '{"event": "enter", "run": "a", "run": "b", "state": "active"}',
        r"line 2: not JSON \(the key 'run' is there twice\)",
    ),
    "too deep": ("[" * 100_000, r"line 2: not JSON \(maximum recursion depth exceeded"),
    "too many digits": (
        '{"event": "end", "at": ' + "9" * 5_000 + "}",
        r"line 2: not JSON \(Exceeds the limit",
    ),
    "a NUL": ('{"event": "cancel", "session": "\0"}', "line 2: not JSON .Invalid control character"),
    "another encoding": ('{"event": "end"}'.encode("utf-16"), "line 2: not JSON"),
    "a mark in the middle": (b'\xef\xbb\xbf{"event": "end"}', "line 2: not JSON"),
    "two on a line": (
        '{"event": "end"} {"event": "end"}',
        r"line 2: not JSON \(Extra data, at character 18\)",
    ),
    "wrong runs": (
        '{"event": "cancel", "session": "s", "runs": "a"}',
        "line 2: runs of a cancel must be a list",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_line_is_refused_with_its_number(name: str) -> None:
    line, message = BROKEN[name]
    with pytest.raises(BadRecording, match=message):
        check([json.dumps(ACCEPT), line])


def test_nothing_may_follow_the_end() -> None:
    with pytest.raises(BadRecording, match="line 3: an event after end"):
        check(lines({"event": "cancel", "session": "s"}, {"event": "end"}, ACCEPT))


def test_unknown_keys_and_empty_lines_are_ignored() -> None:
    checked = check(
        ["", json.dumps({**ACCEPT, "at": 17.5}), "  \n", '{"event": "cancel", "session": "t", "by": "me"}']
    )
    assert (checked.verdict, checked.events, checked.runs) == ("holds", 2, 1)


def test_a_recording_may_come_from_windows() -> None:
    mark = b"\xef\xbb\xbf"
    both = (json.dumps(ACCEPT).encode(), b'{"event": "cancel", "session": "s"}')
    checked = check([mark + both[0] + b"\r\n", both[1] + b"\r\n", b"\r\n"])
    assert (checked.verdict, checked.events, checked.runs) == ("holds", 2, 1)


def test_a_recording_that_shows_nothing_is_unknown() -> None:
    assert check([]).verdict == "unknown"
    assert check(lines({"event": "end"})).verdict == "unknown"


def test_an_accepted_run_is_owed_a_run_complete_at_the_end() -> None:
    offence = check(lines(ACCEPT, {"event": "end"})).offence
    assert offence is not None
    assert (offence.line, offence.property) == (2, Property.EXACTLY_ONE_COMPLETE)


def test_a_cancel_of_named_runs_covers_only_those() -> None:
    both = (ACCEPT, {**ACCEPT, "run": "b"}, {"event": "cancel", "session": "s", "runs": ["a", "gone"]})
    assert check(lines(*both, {"event": "enter", "run": "b", "state": "active"})).offence is None
    offence = check(lines(*both, {"event": "enter", "run": "a", "state": "active"})).offence
    assert offence is not None
    assert offence.property is Property.FULL_COVERAGE


def test_a_second_accept_is_the_same_run_until_it_completes_twice() -> None:
    once = [ACCEPT, ACCEPT, {"event": "enter", "run": "a", "state": "active"}]
    done = {"event": "complete", "run": "a", "cancelled": False}
    assert check(lines(*once, done, ACCEPT, {"event": "end"})).verdict == "holds"
    offence = check(lines(*once, done, ACCEPT, done)).offence
    assert offence is not None
    assert (offence.line, offence.property) == (6, Property.EXACTLY_ONE_COMPLETE)


def long_recording(runs: int) -> Iterator[str]:
    """Yield a recording of many runs in twenty sessions, two in flight in each."""
    for number in range(runs):
        session, run = f"s{number % 20}", f"run {number}"
        yield json.dumps({"event": "accept", "session": session, "run": run})
        busy = number >= 20
        yield json.dumps({"event": "enter", "run": run, "state": "queued" if busy else "active"})
        if busy:
            yield json.dumps({"event": "complete", "run": f"run {number - 20}", "cancelled": False})
            yield json.dumps({"event": "handoff", "run": run})


PEAKS = """
import sys, tracemalloc
from test_trace import check, long_recording

def peak(runs):
    tracemalloc.start()
    assert check(long_recording(runs)).verdict == "holds"
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return most

peak(100)
print(*map(peak, map(int, sys.argv[1:])))
"""


@pytest.mark.parametrize(
    ("fewer", "more"), [(5_000, 8_000), pytest.param(2_000, 20_000, marks=pytest.mark.deep)]
)
def test_memory_does_not_grow_with_the_recording(fewer: int, more: int) -> None:
    # In an interpreter of its own: what pytest and its plugins allocate meanwhile is counted nowhere.
    told = subprocess.run(
        [sys.executable, "-c", PEAKS, str(fewer), str(more)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    small, large = map(int, told.stdout.split())
    # Eight bytes a run are kept, and twice that while they are merged; what is in flight comes on top.
    assert large - small < (more - fewer) * 48


def test_what_is_long_forgotten_is_known_again() -> None:
    again = json.dumps({"event": "complete", "run": "run 7", "cancelled": False})
    offence = check(itertools.chain(long_recording(12_000), [again])).offence
    assert offence is not None
    assert offence.property is Property.EXACTLY_ONE_COMPLETE


def test_the_command_names_line_and_property(capsys: pytest.CaptureFixture[str]) -> None:
    path = next(path for path in BAD if path.stem == "bad-FIFO")
    assert run(["trace", str(path), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["verdict"], told["property"], told["line"], told["events"], told["runs"]) == (
        "violated",
        "FIFO",
        7,
        7,
        3,
    )
    assert run(["trace", str(path)]) == 1
    assert "line 7: FIFO: Queued runs become active in sequence order" in capsys.readouterr().out


def test_the_command_says_what_a_partial_recording_could_not_show(capsys: pytest.CaptureFixture[str]) -> None:
    path = next(path for path in GOOD if path.stem == "good-partial")
    assert run(["trace", str(path)]) == 0
    assert "not checked: EXACTLY_ONE_COMPLETE: what is still owed (a, b)" in capsys.readouterr().out
    assert run(["trace", str(path), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["unchecked"]) == 2


def test_the_command_refuses_a_broken_recording(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "broken.jsonl"
    path.write_text("nonsense\n", encoding="utf-8")
    assert run(["trace", str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"turngate: {path}: line 1: not JSON")
    assert captured.err.count("\n") == 1
    assert run(["trace", str(tmp_path / "none")]) == 2
