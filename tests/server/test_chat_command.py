"""``turngate chat``: on a terminal of its own, and at the end of a pipe."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from served_process import Process, process
from turngate_verify.cli import run
from turngate_verify.cli.keys import ENTER, ESCAPE, Keys

AGENT = """
import asyncio

async def agent(turn):
    turn.write(f"about {turn.run.prompt} ")
    while not turn.waiting() and turn.run.prompt != "quick":
        await asyncio.sleep(0.01)
    for run in await turn.fold():
        turn.write(f"and {run.prompt} ")
"""


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    folder = tmp_path_factory.mktemp("agent")
    (folder / "folding.py").write_text(AGENT, encoding="utf-8")
    with process(f"{folder}/folding.py:agent", "--finish", "0") as started:
        yield started


def chat(server: Process, *arguments: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "turngate", "chat", server.url, *arguments]
    return subprocess.run(command, input=typed, capture_output=True, text=True, timeout=60, check=False)


def test_lines_of_a_pipe_are_prompts(server: Process) -> None:
    done = chat(server, typed="quick\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "> quick\nabout quick \n-- finished (quick)\n"
    done = chat(server, typed="tea\nbiscuits\n")
    assert "".join(re.findall("^(?:about|and).*$", done.stdout, re.MULTILINE)) == "about tea and biscuits "
    assert done.stdout.endswith("-- finished (tea)\n")
    assert "nothing to cancel" in chat(server, typed="\n").stdout
    assert "-- cancelled (tea)" in chat(server, typed="tea\n\n").stdout


class Terminal:
    """A program on a terminal of its own."""

    def __init__(self, *command: str) -> None:
        self.pid, self.number = pty.fork()
        if self.pid == 0:
            os.environ |= {"COLUMNS": "80", "LINES": "24", "TERM": "xterm"}
            os.execv(command[0], command)
        self.seen = ""

    def until(self, pattern: str) -> None:
        """Read up to a pattern; what comes behind it is left for the next one."""
        while (found := re.search(pattern, self.seen)) is None:
            assert select.select([self.number], [], [], 60)[0], f"no {pattern} in {self.seen!r}"
            self.seen += os.read(self.number, 65_536).decode(errors="replace")
        self.seen = self.seen[found.end() :]

    def type(self, text: str) -> None:
        os.write(self.number, text.encode())

    def end(self) -> int:
        try:
            while os.read(self.number, 65_536):
                pass
        except OSError:  # it is over
            pass
        os.close(self.number)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def test_on_a_terminal_enter_sends_escape_cancels_and_what_waits_is_seen(server: Process) -> None:
    terminal = Terminal(sys.executable, "-m", "turngate", "chat", server.url)
    terminal.until("Enter sends")
    terminal.type("teaX\x7f\x1b[D\r")  # a letter taken back, and an arrow that means nothing
    terminal.until("about tea")
    terminal.until("a turn runs")
    terminal.type("biscuits\r")
    terminal.until("and biscuits")
    terminal.until(r"-- finished \(tea\)")
    terminal.until("idle")
    terminal.type("soup\r")
    terminal.until("about soup")
    server.call("/v1/sessions/chat/runs", {"prompt": "cake", "when_busy": "queue"})
    terminal.until("1 waiting")
    terminal.type("\x1b")
    terminal.until(r"-- cancelled \(soup\)")
    terminal.type("quick\r")
    terminal.until(r"-- finished \(quick\)")
    terminal.type("\x04")
    assert terminal.end() == 0


def test_what_it_refuses_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["chat", "nowhere"]) == 2
    assert "'nowhere' is no address" in capsys.readouterr().err


@given(st.lists(st.binary(max_size=6)))
def test_any_bytes_are_keys_of_some_kind(pieces: list[bytes]) -> None:
    keys = Keys()
    for piece in pieces:
        for key in keys.feed(piece):
            assert key.isprintable()


def test_an_escape_alone_is_a_key_and_one_that_begins_something_is_not() -> None:
    keys = Keys()
    assert [*keys.feed(b"\x1b")] == []
    assert keys.pending
    assert keys.release() == ESCAPE
    assert [*keys.feed("ü\x1b[1;5D\x1bOPx\r".encode())] == ["ü", "x", ENTER]
    assert [*keys.feed(b"\x1b\x1b")] == [ESCAPE]
    assert keys.pending
