"""Helpers that record intervals, and what three processes record over HTTP behind a proxy that delays."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import random
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

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


class Proxy:
    """Passes exchanges on, each way some milliseconds later, in a thread of its own.

    With ``swallow``, it answers requests to that path itself, as if the server had acted.
    """

    def __init__(self, url: str, seed: int = 0, swallow: str = "") -> None:
        self._to = urlsplit(url)
        self._chance = random.Random(seed)
        self._swallow = swallow.encode()
        self.swallowed = 0

    @contextlib.contextmanager
    def up(self) -> Iterator[str]:
        """Yield the address of this end."""
        loop = asyncio.new_event_loop()
        server = loop.run_until_complete(asyncio.start_server(self._connected, "127.0.0.1", 0))
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            for task in asyncio.all_tasks(loop):
                task.cancel()
            server.close()
            loop.run_until_complete(asyncio.sleep(0.01))
            loop.close()

    async def _delay(self) -> None:
        await asyncio.sleep(self._chance.choice([0, 0, 0.005, 0.03]))

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass one exchange on; the clients close their connection after each."""
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            body = await reader.readexactly(_length(head))
            await self._delay()
            if self._swallow and self._swallow in head.split(b"\r\n")[0]:
                self.swallowed += 1
                answer = b'{"covered": []}'
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(answer), answer))
            else:
                far, to = await asyncio.open_connection(self._to.hostname, self._to.port)
                to.write(head + body)
                answer = await far.readuntil(b"\r\n\r\n")
                answer += await far.readexactly(_length(answer))
                to.close()
                await self._delay()
                writer.write(answer)
            await writer.drain()
        writer.close()


def _length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    return 0


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
    with served(runner) as url, Proxy(url, 5).up() as slow:
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
        proxy = Proxy(url, swallow=swallow)
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
