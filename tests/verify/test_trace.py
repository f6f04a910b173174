"""Recorded histories: good ones, one for each property they can break, and broken ones."""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from turngate import Dispatcher, Turn
from turngate_model import Property
from turngate_verify.cli import run
from turngate_verify.trace import check
from turngate_verify.trace_lines import BadRecording

RECORDINGS = sorted((Path(__file__).parent / "recordings").glob("*.jsonl"))
GOOD = [path for path in RECORDINGS if path.stem.startswith("good")]
BAD = [path for path in RECORDINGS if path.stem.startswith("bad")]

OFFENDING_LINE = {
    "bad-AS_EDITED": 3,
    "bad-EXACTLY_ONE_COMPLETE": 7,
    "bad-EXACTLY_ONE_COMPLETE-twice": 4,
    "bad-FIFO": 7,
    "bad-FULL_COVERAGE": 5,
    "bad-HELD": 7,
    "bad-HELD-folded": 6,
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
    "wrong runs of a hold": ('{"event": "hold", "runs": {}}', "line 2: runs of a hold must be a list"),
    "a hold of nothing": ('{"event": "hold"}', "line 2: hold needs session: a string"),
    "a move before nobody": (
        '{"event": "move", "run": "a", "before": "z"}',
        "line 2: before names run 'z', which was never accepted",
    ),
    "a move of nobody": (
        '{"event": "move", "run": "z"}',
        "line 2: move of run 'z', which was never accepted",
    ),
    "into nobody": (
        '{"event": "accept", "session": "s", "run": "b", "into": "z"}',
        "line 2: into names run 'z', which was never accepted",
    ),
    "into another session": (
        '{"event": "accept", "session": "t", "run": "b", "into": "a"}',
        "line 2: into names run 'a', which is in session 's', not in 't'",
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


def told(kind: str, run: str = "", **more: Any) -> dict[str, Any]:
    about = {"run": run} if run else {}
    return {"event": kind, **about, **more}


A_RUNS = (ACCEPT, told("enter", "a", state="active"))
B_WAITS = (*A_RUNS, told("accept", "b", session="s"), told("enter", "b", state="queued"))
C_WAITS = (*B_WAITS, told("accept", "c", session="s"), told("enter", "c", state="queued"))
A_ENDS = told("complete", "a", cancelled=False)
FOR_A = (*A_RUNS, told("accept", "b", session="s", into="a"), told("enter", "b", state="queued"))
IN_LINE: dict[str, tuple[tuple[dict[str, Any], ...], Property]] = {
    "a hold of some runs that names no session": (
        (*B_WAITS, told("hold", runs=["b"]), A_ENDS, told("handoff", "b")),
        Property.HELD,
    ),
    "a resume of another run": (
        (*C_WAITS, told("hold", session="s"), told("resume", runs=["c"]), A_ENDS, told("handoff", "b")),
        Property.HELD,
    ),
    "a move that nobody heeds": (
        (*C_WAITS, told("move", "c", before="b"), A_ENDS, told("handoff", "b")),
        Property.FIFO,
    ),
    "a move behind all that nobody heeds": (
        (*C_WAITS, told("move", "b", before=None), A_ENDS, told("handoff", "b")),
        Property.FIFO,
    ),
    "a move of an active run": ((*B_WAITS, told("move", "a", before="b")), Property.DECLARED_MOVE),
    "a move of a complete run": ((*B_WAITS, A_ENDS, told("move", "a")), Property.DECLARED_MOVE),
    "a move before a complete run": (
        (*C_WAITS, A_ENDS, told("handoff", "b"), told("move", "c", before="a")),
        Property.DECLARED_MOVE,
    ),
    "an edit of a complete run": ((*A_RUNS, A_ENDS, told("edit", "a")), Property.AS_EDITED),
    "a prompt for one turn has its own": ((*FOR_A, A_ENDS, told("handoff", "b")), Property.DECLARED_MOVE),
    "a prompt for one turn is never completed": (
        (*FOR_A, A_ENDS, told("end")),
        Property.EXACTLY_ONE_COMPLETE,
    ),
    "a prompt for a turn that has ended": (
        (*A_RUNS, A_ENDS, told("accept", "b", session="s", into="a")),
        Property.DECLARED_MOVE,
    ),
    "a held run that is left when nothing more happens": (
        (ACCEPT, told("hold", session="s"), told("enter", "a", state="queued"), told("end")),
        Property.EXACTLY_ONE_COMPLETE,
    ),
}


@pytest.mark.requirement("HELD", "AS_EDITED")
@pytest.mark.parametrize("name", IN_LINE)
def test_a_recording_in_which_the_line_is_not_heeded(name: str) -> None:
    records, broken = IN_LINE[name]
    assert check(lines(*records[:-1])).offence is None
    offence = check(lines(*records)).offence
    assert offence is not None
    assert (offence.line, offence.property) == (len(records), broken)


def test_what_a_dispatcher_records_of_the_line_holds() -> None:
    told = asyncio.run(_recorded())
    kinds = {json.loads(line)["event"] for line in told}
    assert {"hold", "resume", "move", "edit", "cancel", "clear"} <= kinds
    checked = check(told)
    assert (checked.verdict, checked.offence, checked.whole) == ("holds", None, True)


async def _recorded() -> list[str]:
    """Do everything to the line of a dispatcher, and return what it records."""
    history = io.StringIO()
    release = asyncio.Event()

    async def agent(turn: Turn) -> str:
        await release.wait()
        return f"{len(await turn.fold())} folded"

    async with Dispatcher(agent, record=history) as dispatcher:
        runs = [await dispatcher.accept("s", name, run_id=name, when_busy="queue") for name in "abcd"]
        for run in runs:
            await dispatcher.enter(run)
        await dispatcher.accept("s", "for a", run_id="e", into="a")
        await dispatcher.enter(await dispatcher.accept("s", "for a too", run_id="f", into="a"))
        await dispatcher.hold("s")
        await dispatcher.move("d", before="b")
        await dispatcher.move("b", to="last")
        await dispatcher.edit("c", prompt="changed", when_busy="fold")
        await dispatcher.resume_run("c")
        await dispatcher.hold_run("c")
        await dispatcher.stop("s")
        await dispatcher.send_now("d")
        release.set()
        await runs[0].wait()
        await dispatcher.resume("s")
        await asyncio.gather(*(run.wait() for run in runs))
    return history.getvalue().splitlines()


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
    assert "line 7: FIFO: " in capsys.readouterr().out


def test_the_command_says_what_a_partial_recording_could_not_show(capsys: pytest.CaptureFixture[str]) -> None:
    path = next(path for path in GOOD if path.stem == "good-partial")
    assert run(["trace", str(path)]) == 0
    assert "(a, b)" in capsys.readouterr().out
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
