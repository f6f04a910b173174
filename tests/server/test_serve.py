"""``turngate serve``: its first minute, its end, and what it refuses, in one line that says what is right."""

from __future__ import annotations

import itertools
import json
import os
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


def test_a_port_that_is_taken_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with process() as server:
        assert run(["serve", "--port", server.url.rpartition(":")[2]]) == 2
        port = server.port
    said = capsys.readouterr().err
    assert f"port {port} " in said
    assert said.count("\n") == 1


def test_it_needs_neither_the_checks_nor_the_model() -> None:
    program = "import sys; from turngate.cli import serve, chat; print(*sys.modules)"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert not {"hypothesis", "transitions", "graphviz", "pytest"} & set(said.split())


MODULE = """
import functools

async def agent(turn): return "x"
async def takes_nothing(): return "x"
async def pieces(turn): yield "x"
def plain(turn): return "x"
class Agent:
    async def __call__(self, turn): return "x"
coroutine = takes_nothing()
generator = pieces(None)
number, nothing = 5, None
"""
FILES = {
    "refused_runners.py": MODULE,
    "refused_raises.py": "\n1 / 0\n",
    "refused_exits.py": "import sys\nsys.exit('bye')\n",
    "refused_syntax.py": "async def agent(turn:\n",
    "refused_import.py": "import no_such_package\n",
    "no_token": " \n",
    "two_words": "two words\n",
    "no_database": "This is no database, but it is long enough to look like the header of one. " * 20,
}
TARGET = "give module:runner or path.py:runner"
DSN = "give the path of a file, or postgresql://user@host:5432/database"
REFUSED = {
    "": ("'' is not a target", TARGET),
    "agent": ("'agent' is not a target", TARGET),
    "./refused_runners.py": ("'./refused_runners.py' is not a target", TARGET),
    "nowhere.py:agent": ("there is no file nowhere.py", TARGET),
    "folder.py:agent": ("there is no file folder.py", TARGET),
    "no_such_module:agent": ("there is no module 'no_such_module'", TARGET),
    "json.nowhere:agent": ("there is no module 'json.nowhere'", TARGET),
    "..:agent": ("'..' is not a module", TARGET),
    "refused_raises.py:agent": ("ZeroDivisionError: division by zero", "refused_raises.py, line 2"),
    "refused_raises:agent": ("ZeroDivisionError: division by zero", "refused_raises.py, line 2"),
    "refused_exits.py:agent": ("SystemExit: bye", "refused_exits.py, line 2"),
    "refused_syntax.py:agent": ("SyntaxError: '(' was never closed", "refused_syntax.py, line 1"),
    "refused_import.py:agent": ("No module named 'no_such_package'", "refused_import.py, line 1"),
    "refused_runners.py:agnet": ("refused_runners.py has no agnet", "did you mean agent?"),
    "refused_runners.py:coroutine": ("not the result of a call", "pass takes_nothing, not takes_nothing()"),
    "refused_runners.py:generator": ("not the result of a call", "pass pieces, not pieces()"),
    "refused_runners.py:number": ("the runner must be callable, such as an async function", "not int"),
    "refused_runners.py:nothing": ("the runner must be callable, such as an async function", "not NoneType"),
    "refused_runners.py:takes_nothing": ("must take one argument, the turn", "takes_nothing does not"),
    "refused_runners.py:Agent": ("must take one argument, the turn", "pass an instance: Agent()"),
    "refused_runners.py:plain": ("is not a runner", "it must be an async function or async generator"),
    "--token-file nowhere": ("'--token-file'", "'nowhere' does not exist"),
    "--token-file folder.py": ("'--token-file'", "is a directory"),
    "--token-file no_token": ("no_token", "a token file has the token and nothing else"),
    "--token-file bytes": ("bytes is not a text file", "a token file has the token and nothing else"),
    "--token-file two_words": ("the token in two_words", "must be one word"),
    "--ledger nowhere/runs.db": ("the ledger cannot be opened", "does not exist"),
    "--ledger folder.py": ("folder.py", ""),
    "--ledger no_database": ("no_database", "not a database"),
    "--ledger ": ("--ledger is empty", DSN),
    "--ledger mysql://user:secret@host/x": ("--ledger cannot be at a mysql address", DSN),
    "--ledger postgresql://user:secret@host:port/x": ("--ledger is not an address of PostgreSQL", DSN),
    "--ledger postgresql://[host/x": ("--ledger is not an address of PostgreSQL", DSN),
    "--ledger postgresql://127.0.0.1:1/x": (
        "PostgreSQL cannot be reached",
        "check the address that --ledger",
    ),
    "--workers 2 --ledger nowhere/runs.db": ("the ledger cannot be opened", "does not exist"),
    "--host 0.0.0.0": ("0.0.0.0 can be reached from elsewhere", "give --token-file"),
    "--workers 2": ("--workers above 1 needs --ledger", ""),
    "json:loads": ("json:loads is not a runner", ""),
    "--port 65536": ("'--port'", "0<=x<=65535"),
    "--port -1": ("'--port'", "0<=x<=65535"),
    "--port eighty": ("'--port'", "'eighty'"),
    "--finish nan": ("'--finish'", "nan is not a number of seconds"),
    "--workers 0": ("'--workers'", "x>=1"),
    "--host nosuchhost.invalid --token-file token": ("--host nosuchhost.invalid", "such as 127.0.0.1"),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in {**FILES, "token": "word"}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "bytes").write_bytes(bytes(range(128, 256)))
    (tmp_path / "folder.py").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "modules", {**sys.modules})
    return tmp_path


@pytest.mark.parametrize("arguments", REFUSED)
@pytest.mark.filterwarnings("ignore:coroutine 'takes_nothing' was never awaited")  # it is in the module
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the same, as pytest tells it
def test_it_is_refused_in_one_line(capfd: pytest.CaptureFixture[str], folder: Path, arguments: str) -> None:
    wrong, right = REFUSED[arguments]
    port = [] if "--port" in arguments else ["--port", "0"]
    assert run(["serve", *port, *arguments.split(" ")]) == 2
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("turngate: ")
    assert captured.err.count("\n") == 1
    assert wrong in captured.err
    assert right in captured.err
    assert "secret" not in captured.err


def test_a_coroutine_is_refused_without_a_warning(folder: Path) -> None:
    command = [sys.executable, "-m", "turngate", "serve", "refused_runners.py:coroutine"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, timeout=120)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read everything")
def test_a_token_file_that_cannot_be_read_is_refused(capfd: pytest.CaptureFixture[str], folder: Path) -> None:
    (folder / "token").chmod(0)
    assert run(["serve", "--token-file", "token"]) == 2
    assert "'token' is not readable" in capfd.readouterr().err
