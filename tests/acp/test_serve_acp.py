"""``turngate serve --acp`` as a process: what it prints, how it ends, and what it refuses."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from acp_client import AGENT, started
from dispatching import in_loop

PRINTS = """
import subprocess, sys
print("printed by the module")
subprocess.run([sys.executable, "-c", "print('printed by a program of the module')"])

async def agent(turn):
    print("printed by the runner")
    subprocess.run([sys.executable, "-c", "print(repr(input()) if False else 'by its program')"])
    return repr(sys.stdin.read())
"""
REQUESTS = [
    {"id": 1, "method": "initialize", "params": {"protocolVersion": 1}},
    {"id": 2, "method": "session/new", "params": {"cwd": "/", "mcpServers": []}},
    {"id": 3, "method": "no/such"},
]
LINES = "".join(json.dumps({"jsonrpc": "2.0", **each}) + "\n" for each in REQUESTS)


def serve(*arguments: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "turngate", "serve", "--acp", *arguments]
    return subprocess.run(command, input=given, capture_output=True, text=True, timeout=60, check=False)


def ids(answers: str) -> list[int]:
    return [json.loads(line)["id"] for line in answers.splitlines()]


@in_loop
async def test_what_an_agent_prints_does_not_break_the_protocol(tmp_path: Path) -> None:
    (tmp_path / "prints.py").write_text(PRINTS, encoding="utf-8")
    async with started(agent=tmp_path / "prints.py") as (client, process):
        await client.initialize()
        session = await client.new_session()
        assert await client.outcome(client.prompt(session, "x")) == "end_turn"
        assert client.text(session) == "''"  # nor does it read what is not meant for it
        assert process.stdin is not None
        process.stdin.close()
        _, said = await process.communicate()
        assert process.returncode == 0
    for line in ("by the module", "by a program of the module", "by the runner", "by its program"):
        assert f"{line}\n" in said.decode()


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)], ids=["SIGTERM", "SIGINT"]
)
@in_loop
async def test_a_signal_ends_it_in_order(number: signal.Signals, code: int) -> None:
    async with started() as (client, process):
        session = await client.new_session()
        prompt = client.prompt(session, "a open:t hold")
        await client.until(lambda said: client.text(session) == "a ")
        process.send_signal(number)
        assert await client.outcome(prompt) == "cancelled"
        assert await client.hear() == {}
        assert await process.wait() == code


@in_loop
async def test_a_second_signal_ends_it_at_once() -> None:
    async with started() as (client, process):
        session = await client.new_session()
        client.prompt(session, " ".join(["stubborn"] * 1000))
        queued = client.prompt(session, "b")
        await client.call("nothing")
        process.send_signal(signal.SIGTERM)
        assert await client.outcome(queued) == "cancelled"
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == -signal.SIGTERM


EXITS = """
import asyncio, sys

async def agent(turn):
    turn.write("a ")
    if turn.run.prompt == "hold":
        await asyncio.Event().wait()
    sys.exit({"3": 3, "none": None}.get(turn.run.prompt, turn.run.prompt))
"""


@pytest.mark.parametrize(("prompt", "code"), [("3", 3), ("none", 0), ("no key", 1)])
@in_loop
async def test_a_runner_that_ends_the_process_leaves_no_prompt_unanswered(
    prompt: str, code: int, tmp_path: Path
) -> None:
    (tmp_path / "exits.py").write_text(EXITS, encoding="utf-8")
    async with started(agent=tmp_path / "exits.py") as (client, process):
        one, two = await client.new_session(), await client.new_session()
        held = client.prompt(one, "hold")
        await client.until(lambda said: client.text(one) == "a ")
        exiting = client.prompt(two, prompt)
        failed = (await client.answer(exiting))["error"]
        assert failed["message"].startswith("SystemExit")
        assert client.text(two) == "a "
        assert await client.outcome(held) == "cancelled"
        assert await client.hear() == {}
        _, said = await process.communicate()
        assert process.returncode == code
        assert said.decode() == ("no key\n" if code == 1 else "")


@in_loop
async def test_a_signal_while_the_agent_is_imported_ends_it_in_order(tmp_path: Path) -> None:
    slow = "import pathlib, time\npathlib.Path(__file__).with_name('begun').touch()\ntime.sleep(60)\n"
    (tmp_path / "slow.py").write_text(slow, encoding="utf-8")
    async with started(agent=tmp_path / "slow.py") as (_, process):
        while not (tmp_path / "begun").exists():
            assert process.returncode is None
            await asyncio.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        out, said = await process.communicate()
        assert (process.returncode, out, said) == (0, b"", b"")


def test_a_module_that_ends_the_process_says_why(tmp_path: Path) -> None:
    (tmp_path / "exits.py").write_text("import sys\nsys.exit('no key')\n", encoding="utf-8")
    done = serve(f"{tmp_path / 'exits.py'}:agent")
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert "no key" in line


@pytest.mark.parametrize("store", ["--messages", "--ledger"])
@in_loop
async def test_the_client_is_killed_and_its_session_goes_on(store: str, tmp_path: Path) -> None:
    kept = (store, str(tmp_path / "kept.db"))
    async with started(*kept) as (client, process):
        assert (await client.initialize())["agentCapabilities"]["loadSession"] is True
        session = await client.new_session()
        assert await client.outcome(client.prompt(session, "one")) == "end_turn"
        client.prompt(session, "two hold")
        await client.until(lambda said: client.text(session) == "one two ")
        process.stdin.close()  # type: ignore[union-attr]
        client.reader._transport.close()  # type: ignore[attr-defined]
        assert await process.wait() == 0
    async with started(*kept) as (client, process):
        await client.call("session/load", sessionId=session, cwd="/", mcpServers=[])
        assert client.text(session, "user_message_chunk") == "onetwo hold"
        assert client.text(session) == "one two "
        assert await client.outcome(client.prompt(session, "three")) == "end_turn"


@in_loop
async def test_the_server_is_killed_and_the_ledger_remembers(tmp_path: Path) -> None:
    kept = ("--ledger", str(tmp_path / "ledger.db"), "--on-death", "retry", "--when-busy", "queue")
    async with started(*kept) as (client, process):
        session = await client.new_session()
        client.prompt(session, f"touch:{tmp_path}/begun hold")
        client.prompt(session, f"touch:{tmp_path}/queued")
        while not (tmp_path / "begun").exists():
            await client.call("nothing")
        process.kill()
    (tmp_path / "begun").unlink()
    async with started(*kept) as (client, process):
        while not (tmp_path / "begun").exists():
            await client.call("nothing")
        await client.call("session/load", sessionId=session, cwd="/", mcpServers=[])
        assert (await client.call("session/new", cwd="/", mcpServers=[]))["result"]
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0


def test_standard_streams_may_be_files(tmp_path: Path) -> None:
    (tmp_path / "in").write_text(LINES, encoding="utf-8")
    command = [sys.executable, "-m", "turngate", "serve", "--acp", f"{AGENT}:agent"]
    with (tmp_path / "in").open() as given, (tmp_path / "out").open("w") as said:
        assert subprocess.run(command, stdin=given, stdout=said, timeout=60, check=False).returncode == 0
    assert ids((tmp_path / "out").read_text()) == [1, 2, 3]
    with open(os.devnull) as nothing, open(os.devnull, "w") as nowhere:
        assert subprocess.run(command, stdin=nothing, stdout=nowhere, timeout=60, check=False).returncode == 0
    done = serve(f"{AGENT}:agent", given=LINES)
    assert (done.returncode, ids(done.stdout)) == (0, [1, 2, 3])


def test_closed_standard_streams() -> None:
    shell = f"{sys.executable} -m turngate serve --acp {AGENT}:agent"
    for closed in ("<&-", ">&-", "2>&-", "<&- >&- 2>&-"):
        assert (
            subprocess.run(f"{shell} {closed} </dev/null", shell=True, timeout=60, check=False).returncode
            == 0
        )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "the following arguments are required: TARGET"),
        (["no-such.py:agent"], "there is no file no-such.py; give module:runner or path.py:runner"),
        ([f"{AGENT}:no_such"], "has no no_such"),
        ([f"{AGENT}:act"], "is not a runner"),
        ([f"{AGENT}:agent", "--when-busy", "wait"], "invalid choice: 'wait'"),
        ([f"{AGENT}:agent", "--port", "1"], "unrecognized arguments: --port 1"),
        ([f"{AGENT}:agent", "--messages", "a", "--ledger", "b"], "not allowed with argument --messages"),
        (
            [f"{AGENT}:agent", "--messages", "/no/such/folder/messages.db"],
            "the folder /no/such/folder does not exist",
        ),
        ([f"{AGENT}:agent", "--ledger", "mysql://x"], "--ledger cannot be at a mysql address"),
        ([f"{AGENT}:agent", "--ledger", "/no/such/folder/ledger.db"], "/no/such/folder"),
    ],
)
def test_what_is_refused(arguments: list[str], said: str) -> None:
    done = serve(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("turngate: ")
    assert said in line


def test_help_is_on_standard_output() -> None:
    done = serve("--help")
    assert done.returncode == 0
    assert "--when-busy {fold,queue,interrupt,reject}" in done.stdout


def test_it_needs_the_standard_library_only() -> None:
    """No package that an extra brings along is imported."""
    program = f"""
import sys
for name in ("click", "rich", "starlette", "uvicorn", "msgspec", "httpx2", "asyncpg"):
    sys.modules[name] = None
sys.argv = ["turngate", "serve", "--acp", "{AGENT}:agent"]
from turngate.cli.entry import main
main()
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, input=LINES, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, ids(done.stdout)) == (0, [1, 2, 3]), done.stderr
