"""``turngate serve`` as a process: its first minute, its end, and what it refuses."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

import pytest

from served_process import process
from surroundings import ROOT
from turngate.cli.main import run

PATIENT = """
import asyncio

async def agent(turn):
    turn.write("working ")
    try:
        await asyncio.sleep(1 if turn.run.prompt == "short" else 3600)
    finally:
        turn.write("over")
"""


def test_the_first_minute() -> None:
    with process() as server:
        assert "the demonstration agent" in server.said
        assert server.call("/v1/sessions/s/runs", {"prompt": "2 words", "run_id": "r"})[0] == 202
        complete = server.call("/v1/runs/r?wait=60")[1]["complete"]
        assert (complete["outcome"], complete["text"]) == ("finished", "“2 words”. I am ")
        assert server.call("/v1/sessions/s/runs", {"prompt": "please fail", "run_id": "f"})[0] == 202
        assert server.call("/v1/runs/f?wait=60")[1]["complete"]["outcome"] == "failed"
        with urllib.request.urlopen(f"{server.url}/") as page:
            assert "<title>Turngate</title>" in page.read().decode()
        assert server.end()[0] == 0


def test_an_agent_of_ones_own() -> None:
    with process(f"{ROOT}/examples/echo.py:agent") as server:
        server.call("/v1/sessions/s/runs", {"prompt": "hello", "run_id": "r"})
        assert server.call("/v1/runs/r?wait=60")[1]["complete"]["text"] == "hello"
        assert server.end(signal.SIGINT)[0] == 130


def test_at_the_end_everybody_hears_how_their_runs_ended(tmp_path: Path) -> None:
    (tmp_path / "patient.py").write_text(PATIENT, encoding="utf-8")
    with process(f"{tmp_path}/patient.py:agent", "--finish", "3000") as server:
        heard: list[str] = []
        connected = threading.Event()
        short_is_over = threading.Event()

        def listen() -> None:
            with urllib.request.urlopen(f"{server.url}/v1/events", timeout=60) as stream:
                for line in stream:
                    heard.append(line.decode())
                    connected.set()
                    if '"run_id":"short"' in heard[-1] and heard[-2] == "event: run.complete\n":
                        short_is_over.set()
            heard.append("the end")

        listener = threading.Thread(target=listen)
        listener.start()
        connected.wait(60)
        for session, prompt in (("a", "short"), ("b", "long")):
            sent = {"prompt": prompt, "run_id": prompt}
            assert server.call(f"/v1/sessions/{session}/runs", sent)[0] == 202
        assert (
            server.call(
                "/v1/sessions/b/runs", {"prompt": "queued", "run_id": "queued", "when_busy": "queue"}
            )[0]
            == 202
        )
        server.process.send_signal(signal.SIGTERM)
        while server.call("/readyz")[0] == 200:
            pass
        assert server.call("/healthz")[0] == 200
        refused = server.call("/v1/sessions/a/runs", {"prompt": "late"})
        assert (refused[0], refused[1]["type"].rpartition(":")[2]) == (503, "shutting-down")
        assert short_is_over.wait(60)
        server.process.send_signal(signal.SIGTERM)  # a second one: what is left is cancelled
        server.process.wait(timeout=60)
        listener.join(60)
        assert server.process.returncode == 0
    completes = [
        json.loads(line.removeprefix("data: "))
        for name, line in itertools.pairwise(heard)
        if name == "event: run.complete\n"
    ]
    outcomes = {each["run_id"]: (each["outcome"], each["text"]) for each in completes}
    assert len(completes) == 3
    assert outcomes == {
        "short": ("finished", "working over"),
        "long": ("cancelled", "working over"),
        "queued": ("cancelled", ""),
    }
    assert heard[-1] == "the end"


def test_a_second_signal_hurries(tmp_path: Path) -> None:
    (tmp_path / "patient.py").write_text(PATIENT, encoding="utf-8")
    with process(f"{tmp_path}/patient.py:agent", "--finish", "3000") as server:
        server.call("/v1/sessions/a/runs", {"prompt": "long", "run_id": "r"})
        server.process.send_signal(signal.SIGTERM)
        while server.call("/readyz")[0] == 200:
            pass
        assert server.end()[0] == 0


REFUSED = [
    (("--host", "0.0.0.0"), "0.0.0.0 can be reached from elsewhere: give --token-file"),
    (("--workers", "2"), "--workers above 1 needs --ledger"),
    (("nothing",), "'nothing' is no target"),
    (("nothing.py:agent",), "there is no file nothing.py"),
    (("json:loads",), "json:loads is no runner"),
    (("--port", "70000"), "Invalid value for '--port'"),
    (("--token-file", "/dev/null"), "there is no token in"),
]


@pytest.mark.parametrize(("arguments", "said"), REFUSED, ids=lambda each: str(each)[:30])
def test_what_it_refuses_in_one_line(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    if "/dev/null" in arguments:
        arguments = ("--token-file", str(ROOT / "tests" / "server" / "data" / "no_token"))
    assert run(["serve", *arguments]) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.err.count("\n") == 1


def test_a_port_that_is_taken_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with process() as server:
        assert run(["serve", "--port", server.url.rpartition(":")[2]]) == 2
        port = server.port
    said = capsys.readouterr().err
    assert f"port {port} is already in use; choose another with --port" in said
    assert said.count("\n") == 1


def test_it_needs_neither_the_checks_nor_the_model() -> None:
    program = "import sys; from turngate.cli import serve, chat; print(*sys.modules)"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert not {"hypothesis", "transitions", "graphviz", "pytest"} & set(said.split())
