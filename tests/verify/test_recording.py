"""Helpers that record intervals, and what three processes record over HTTP behind a proxy that delays."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from delaying_proxy import DelayingProxy
from surroundings import ROOT
from turngate_verify.intervals import JudgedHistory, judge_files
from turngate_verify.recording import IntervalLog

SUPPORT = ROOT / "tests" / "support"


class Clock:
    """A clock that goes on by one at each look."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


def written(out: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_a_call_is_written_with_its_times_when_it_returns() -> None:
    log = IntervalLog(out := io.StringIO(), clock=Clock(), clock_error=0.5)
    with log.call("accept", session="s", run="a"):
        assert written(out) == [{"clock_error": 0.5}]
    log.complete("a", cancelled=False, error="no", unknown_at=1.5)
    log.end()
    assert written(out)[1:] == [
        {"event": "accept", "session": "s", "run": "a", "call": 1.0, "return": 2.0},
        {"event": "complete", "run": "a", "cancelled": False, "error": "no", "call": 1.5, "return": 3.0},
        {"event": "end"},
    ]


def test_a_call_that_raises_may_have_happened_and_one_that_was_refused_did_not() -> None:
    log = IntervalLog(out := io.StringIO(), clock=Clock())
    with pytest.raises(TimeoutError), log.call("cancel", session="s"):
        raise TimeoutError
    with contextlib.suppress(LookupError), log.call("accept", session="s", run="a") as call:
        call.refused()
        raise LookupError
    with log.call("clear", session="s") as call:
        call.refused()
    assert written(out) == [{"event": "cancel", "session": "s", "call": 1.0}]


def test_a_runner_is_recorded_even_if_it_is_cancelled() -> None:
    log = IntervalLog(out := io.StringIO(), clock=Clock())
    with pytest.raises(asyncio.CancelledError), log.running("a"):
        raise asyncio.CancelledError
    assert written(out) == [
        {"event": "start", "run": "a", "at": 1.0},
        {"event": "ended", "run": "a", "at": 2.0},
    ]


def test_functions_are_decorated_with_the_parameters_that_hold_what_a_line_needs() -> None:
    log = IntervalLog(out := io.StringIO(), clock=Clock())

    @log.records("accept", session="where", run="run")
    def accept(run: str, where: str = "s") -> str:
        return run

    @log.records("cancel", session="where")
    async def cancel(where: str) -> str:
        await asyncio.sleep(0)
        log.end()
        return where

    assert (accept("a"), asyncio.run(cancel("t"))) == ("a", "t")
    assert written(out) == [
        {"event": "accept", "session": "s", "run": "a", "call": 1.0, "return": 2.0},
        {"event": "end"},
        {"event": "cancel", "session": "t", "call": 3.0, "return": 4.0},
    ]
    with pytest.raises(TypeError, match="has no parameter 'session_id'"):
        log.records("cancel", session="session_id")(cancel)


@contextlib.contextmanager
def served(recording: Path) -> Iterator[str]:
    """Serve the recorded runner in a process of its own; yield its address."""
    command = [
        sys.executable,
        "-m",
        "turngate",
        "serve",
        f"{SUPPORT / 'recorded_agent.py'}:agent",
        "--port",
        "0",
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "RECORDING": str(recording)}
    ) as process:
        assert process.stdout is not None
        line = next(line for line in process.stdout if "http://" in line)
        try:
            yield next(word for word in line.split() if word.startswith("http://"))
        finally:
            process.terminate()


def judged(*files: Path) -> JudgedHistory:
    texts = [(file.name, file.read_text(encoding="utf-8").splitlines()) for file in files]
    return judge_files([*texts, ("end", ['{"event": "end"}'])])


def test_three_processes_behind_a_proxy_that_delays_record_a_history_that_holds(tmp_path: Path) -> None:
    runner, *callers = (tmp_path / f"{name}.jsonl" for name in ("runner", "one", "two"))
    with served(runner) as url, DelayingProxy(url, 5).up() as slow:
        clients = [
            subprocess.Popen([sys.executable, SUPPORT / "recorded_client.py", slow, file, str(nth), "s", "t"])
            for nth, file in enumerate(callers)
        ]
        assert [client.wait(timeout=300) for client in clients] == [0, 0]
    found = judged(runner, *callers)
    assert [each.what for each in found.breaches] == []
    assert (found.verdict, found.runs) == ("holds", 16)
    told = "".join(file.read_text() for file in (runner, *callers))
    assert all(f'"event": "{kind}"' in told for kind in ("accept", "cancel", "start", "ended", "complete"))


@pytest.mark.parametrize(("swallow", "verdict"), [("", "holds"), ("/cancel", "violated")])
def test_a_cancel_that_a_proxy_swallows_is_found(tmp_path: Path, swallow: str, verdict: str) -> None:
    """The cancel returned while the turn was running, and the turn finished later as if there was none."""
    runner, caller, go = tmp_path / "runner.jsonl", tmp_path / "caller.jsonl", tmp_path / "go"

    def ask(method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{slow}/v1/{path}", data, headers, method=method)
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)

    with served(runner) as url, caller.open("w") as out:
        proxy = DelayingProxy(url, swallow=swallow)
        log = IntervalLog(out)
        with proxy.up() as slow:
            with log.call("accept", session="s", run="a"):
                ask("POST", "sessions/s/runs", {"prompt": str(go), "run_id": "a"})
            with log.call("cancel", session="s"):
                ask("POST", "sessions/s/cancel")
            go.touch()
            complete = ask("GET", "runs/a?wait=60")["complete"]
            log.complete("a", cancelled=complete["cancelled"], error=complete["error"])
    assert proxy.swallowed == bool(swallow)
    found = judged(runner, caller)
    assert (found.verdict, [str(each.broken) for each in found.breaches]) == (
        verdict,
        ["FULL_COVERAGE"] if swallow else [],
    )
