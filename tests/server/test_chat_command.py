"""``turngate chat``: on a terminal of its own, and at the end of a pipe."""

from __future__ import annotations

import functools
import os
import pty
import re
import select
import shlex
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from wcwidth import width, wrap

from served_process import Process, process
from turngate.cli.main import run

LONG = (
    "The quick brown fox jumps over the lazy dog, again and again, because nothing stops it. "
    "日本語のテキストは空白なしで折り返される。 Emoji 🎉 and 🍵 too, "
    "averyveryverylongwordthatfitsnowhere, and then the end.\nSecond line, short."
)
AGENT = f"""
import asyncio

LONG = {LONG!r}

async def agent(turn):
    if turn.run.prompt == "long":
        for at in range(0, len(LONG), 7):
            turn.write(LONG[at : at + 7])
            await asyncio.sleep(0.002)
        return
    if "\\n" in turn.run.prompt:
        turn.write("lines: " + " + ".join(turn.run.prompt.split("\\n")))
        return
    turn.write(f"about {{turn.run.prompt}} ")
    while not turn.waiting() and turn.run.prompt != "quick":
        await asyncio.sleep(0.01)
    for run in await turn.fold():
        turn.write(f"and {{run.prompt}} ")
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
            while read := os.read(self.number, 65_536):
                self.seen += read.decode(errors="replace")
        except OSError:  # it has ended
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


def test_the_line_is_in_the_hands_of_a_pipe_too(server: Process) -> None:
    done = chat(server, typed="/queue\n/stop\n/hold\n/resume\nquick\n")
    told = "> /queue\n-- nothing waits\n> /stop\n-- nothing to stop\n> /hold\n-- held: 0\n"
    assert done.stdout.startswith(f"{told}> /resume\n-- resumed: 0\n> quick\n")
    assert done.stdout.endswith("-- finished (quick)\n")


def test_left_while_a_turn_writes_the_row_that_grows_is_not_lost(server: Process) -> None:
    terminal = Terminal(sys.executable, "-m", "turngate", "chat", server.url)
    terminal.until("Enter sends")
    terminal.type("  \rsoup\r")  # a line of nothing is no prompt
    terminal.until("about soup")
    terminal.until("a turn runs")
    terminal.type("\x04")
    assert terminal.end() == 0
    assert "about soup" in terminal.seen
    assert len(server.call("/v1/sessions/chat")[1]["queued"]) == 0


def test_a_terminal_that_goes_away_ends_the_chat_in_order(server: Process, tmp_path: Path) -> None:
    code = tmp_path / "code"
    command = shlex.join([sys.executable, "-m", "turngate", "chat", server.url])
    terminal = Terminal("/bin/sh", "-c", f"trap '' HUP; {command}; echo $? >{code}")
    terminal.until("Enter sends")
    terminal.type("quick\r")
    terminal.until(r"-- finished \(quick\)")
    os.close(terminal.number)
    deadline = time.monotonic() + 300
    while not (code.exists() and code.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert code.read_text() == "0\n"
    os.waitpid(terminal.pid, 0)


def test_a_keyboard_that_goes_away_ends_the_chat_in_order(server: Process) -> None:
    (keyboard, typed), (screen, shown) = pty.openpty(), pty.openpty()
    command = [sys.executable, "-m", "turngate", "chat", server.url]
    environment = {**os.environ, "TERM": "xterm"}
    with subprocess.Popen(
        command, stdin=typed, stdout=shown, stderr=subprocess.PIPE, start_new_session=True, env=environment
    ) as chatting:
        os.close(typed)
        os.close(shown)
        seen = b""
        while b"Enter sends" not in seen or b"idle" not in seen:
            assert select.select([screen], [], [], 60)[0], seen
            seen += os.read(screen, 65_536)
        os.close(keyboard)
        assert chatting.wait(60) == 0
        assert chatting.stderr is not None
        assert chatting.stderr.read() == b""
    os.close(screen)


def test_the_chat_goes_on_when_the_server_is_gone(server: Process) -> None:
    terminal = Terminal(sys.executable, "-m", "turngate", "chat", server.url)
    terminal.until("Enter sends")
    terminal.type("quick\r")
    terminal.until(r"-- finished \(quick\)")  # it takes keys, one by one
    server.process.kill()
    server.process.wait()
    terminal.type("\x1b")
    terminal.until("-- not cancelled: ")  # it was not sent, or its answer was lost
    terminal.type("tea\r")
    terminal.until("-- refused: no answer within 5 s")
    terminal.type("\x04")
    assert terminal.end() == 0


def test_a_server_that_refuses_to_go_on_ends_the_chat_of_a_pipe(server: Process, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "turngate", "chat", server.url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as chatting:
        assert chatting.stdin is not None
        assert chatting.stdout is not None
        chatting.stdin.write("tea\n")
        chatting.stdin.close()
        assert chatting.stdout.readline() == "> tea\n"
        assert chatting.stdout.read(9) == "about tea"
        server.process.kill()
        server.process.wait()
        (tmp_path / "token").write_text("t", encoding="utf-8")
        with process("--token-file", str(tmp_path / "token"), port=server.port):
            rest = chatting.stdout.read()
            assert chatting.wait(60) == 0
    assert "this session has no more events: 401 unauthorized" in rest


@pytest.mark.parametrize(
    "address",
    [
        "nowhere", "ftp://127.0.0.1", "http://", "http://:80", "http://[::1", "http://[zz]", "http://a:b",
        "http://a:99999999", "http://a\tb", "http://127.0.0.1/\udcff", f"http://127.0.0.1/{'a' * 70_000}",
    ],
)  # fmt: skip
def test_what_is_no_address_is_refused_in_one_line(capsys: pytest.CaptureFixture[str], address: str) -> None:
    assert run(["chat", address]) == 2
    refused = capsys.readouterr().err
    assert refused.count("\n") == 1
    assert "is not an address" in refused


@pytest.mark.parametrize("session", ["", ".", "..", "\udcff", "a" * 70_000])
def test_a_session_that_no_address_can_name_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], session: str
) -> None:
    assert run(["chat", "http://127.0.0.1:1", "--session", session]) == 2
    refused = capsys.readouterr().err
    assert refused.count("\n") == 1
    assert "--session" in refused


# On a screen, as people see it.


class Tmux:
    """The chat in a terminal that can be looked at."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *arguments: str) -> str:
        command = ["tmux", "-L", self._name, "-f", "/dev/null", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout

    def screen(self) -> list[str]:
        return [row.rstrip() for row in self("capture-pane", "-p").splitlines()]

    def until(self, seen: Callable[[str], bool]) -> list[str]:
        deadline = time.monotonic() + 300
        while not seen("\n".join(screen := self.screen())):
            assert time.monotonic() < deadline, screen
            time.sleep(0.05)
        return screen

    def until_dead(self) -> None:
        """Wait until the program has ended (with the option remain-on-exit)."""
        deadline = time.monotonic() + 300
        while self("display-message", "-p", "#{pane_dead}").strip() != "1":
            assert time.monotonic() < deadline, self.screen()
            time.sleep(0.05)


@contextmanager
def on_screen(server: Process, columns: int, *options: str, rows: int = 40) -> Iterator[Tmux]:
    tmux = Tmux(f"turngate-{uuid.uuid4().hex[:8]}")
    command = shlex.join([sys.executable, "-m", "turngate", "chat", server.url, *options])
    tmux("new-session", "-d", "-x", str(columns), "-y", str(rows), f"LC_ALL=C.UTF-8 {command}")
    try:
        tmux.until(lambda said: "idle" in said or "\n>" in said)
        yield tmux
    finally:
        with suppress(subprocess.CalledProcessError):  # it has left, as it should
            tmux("send-keys", "C-d")
            deadline = time.monotonic() + 300
            while (
                time.monotonic() < deadline and tmux("display-message", "-p", "#{pane_dead}").strip() != "1"
            ):
                time.sleep(0.05)
            tmux("kill-server")


def reply(screen: list[str]) -> list[str]:
    """Return the rows between the prompt and the end of its run."""
    start = max(number for number, row in enumerate(screen) if row == "> long")
    end = min(n for n, row in enumerate(screen) if n > start and row.startswith("-- finished"))
    return screen[start + 1 : end]


def see_that_it_is_wrapped(rows: list[str], columns: int) -> None:
    """Check that nothing is lost, that every row fits, and that no word is broken that fits a row."""
    assert "".join("".join(rows).split()) == "".join(LONG.split())
    assert all(width(row) <= columns for row in rows)
    for word in re.findall(r"[!-~]+", LONG):
        if len(word) <= columns:
            assert any(word in row for row in rows), word


@pytest.mark.needs("tmux")
@pytest.mark.parametrize("columns", [20, 40, 80])
def test_text_that_streams_is_wrapped_between_words_at_any_width(server: Process, columns: int) -> None:
    with on_screen(server, columns) as tmux:
        tmux("send-keys", "long", "Enter")
        screen = tmux.until(lambda said: "-- finished" in said)
        see_that_it_is_wrapped(reply(screen), columns)


def _shows(row: str, said: str) -> bool:
    return row in said and "-- finished" in said and "idle" in said


@pytest.mark.needs("tmux")
def test_a_resize_wraps_the_screen_anew(server: Process) -> None:
    with on_screen(server, 60) as tmux:
        tmux("send-keys", "long", "Enter")
        tmux.until(lambda said: "-- finished" in said)
        for columns in (33, 71):
            tmux("resize-window", "-x", str(columns), "-y", "40")
            first = wrap(LONG, columns)[0]
            screen = tmux.until(functools.partial(_shows, f"\n{first}\n"))
            see_that_it_is_wrapped(reply(screen), columns)


@pytest.mark.needs("tmux")
def test_several_lines_can_be_pasted_and_earlier_prompts_come_back(server: Process) -> None:
    with on_screen(server, 60) as tmux:
        tmux("set-buffer", "one\ntwo")
        tmux("paste-buffer", "-p")
        tmux.until(lambda said: "\n> one\n  two" in said)
        tmux("send-keys", "Enter")
        tmux.until(lambda said: "lines: one + two" in said and "-- finished" in said)
        tmux("send-keys", "quick", "Enter")
        tmux.until(lambda said: "-- finished (quick)" in said)
        tmux("send-keys", "Up")
        tmux.until(lambda said: said.rstrip().endswith("> quick"))
        tmux("send-keys", "Enter")
        tmux.until(lambda said: said.count("-- finished (quick)") == 2)


@pytest.mark.needs("tmux")
def test_what_is_typed_stays_while_text_comes_and_a_long_one_is_wrapped(server: Process) -> None:
    with on_screen(server, 20) as tmux:
        tmux("send-keys", "soup", "Enter")
        tmux.until(lambda said: "about soup" in said and "a turn runs" in said)
        tmux("send-keys", "日本語 and some more to type")
        tmux.until(lambda said: "> 日本語 and some mo\n  re to type" in said)
        tmux("send-keys", "Escape")
        tmux.until(lambda said: "-- cancelled (soup)" in said and "re to type" in said and "idle" in said)


@contextmanager
def chatting(server: Process, *options: str) -> Iterator[Tmux]:
    """Start a chat with a turn about soup, and behind it cake, which must have a turn of its own."""
    with on_screen(server, 100, *options) as tmux:
        tmux("send-keys", "soup", "Enter")
        tmux.until(lambda said: "about soup" in said)
        server.call("/v1/sessions/chat/runs", {"prompt": "cake", "run_id": "cake", "when_busy": "queue"})
        tmux.until(lambda said: "a turn runs · 1 waiting" in said)
        yield tmux


LONG_ENOUGH = ("--twice-within", "600")


def cake(server: Process, wait: int = 0) -> dict[str, Any]:
    return dict(server.call(f"/v1/runs/cake?wait={wait}")[1])


@pytest.mark.needs("tmux")
def test_escape_twice_stops_the_turn_and_keeps_what_waits(server: Process) -> None:
    with chatting(server, *LONG_ENOUGH) as tmux:
        tmux("send-keys", "Escape")
        tmux.until(lambda said: "Escape again keeps what waits · 1 waiting, 1 held" in said)
        tmux("send-keys", "Escape", "Escape", "Escape")  # more than two mean the same
        tmux.until(lambda said: "-- stopped; 1 held until /resume" in said and "cancelled (soup)" in said)
        tmux("send-keys", "/queue", "Enter")
        tmux.until(lambda said: "  1. cake (held)" in said)
        tmux("send-keys", "quick", "Enter")
        said = "\n".join(tmux.until(lambda said: "-- finished (quick)" in said))  # it passes what is held
        assert said.count("-- stopped") == 1
        tmux("set-option", "-g", "remain-on-exit", "on")
        tmux("send-keys", "C-d")  # nothing is left to be cancelled
        tmux.until_dead()
        assert (cake(server)["state"], cake(server)["held"]) == ("queued", True)


@pytest.mark.needs("tmux")
def test_one_escape_cancels_what_waits_too(server: Process) -> None:
    with chatting(server, "--twice-within", "0.05") as tmux:
        tmux("send-keys", "Escape")
        tmux.until(lambda said: "-- cancelled (soup)" in said and "idle" in said and "waiting" not in said)
        assert cake(server, wait=60)["complete"]["outcome"] == "cancelled"


@pytest.mark.needs("tmux")
def test_to_leave_after_one_escape_cancels_at_once(server: Process) -> None:
    with chatting(server, *LONG_ENOUGH) as tmux:
        tmux("send-keys", "Escape")
        tmux.until(lambda said: "Escape again keeps what waits" in said)
        assert cake(server)["held"]
        tmux("set-option", "-g", "remain-on-exit", "on")
        tmux("send-keys", "C-d")
        assert cake(server, wait=60)["complete"]["outcome"] == "cancelled"


@pytest.mark.needs("tmux")
def test_a_server_that_dies_after_the_first_escape_loses_no_prompt(tmp_path: Path) -> None:
    (tmp_path / "folding.py").write_text(AGENT, encoding="utf-8")
    ledger = (f"{tmp_path}/folding.py:agent", "--finish", "0", "--ledger", str(tmp_path / "ledger.db"))
    with process(*ledger) as server, chatting(server, *LONG_ENOUGH) as tmux:
        tmux("set-option", "-g", "remain-on-exit", "on")
        tmux("send-keys", "Escape")
        tmux.until(lambda said: "Escape again keeps what waits" in said)
        server.process.kill()
        server.process.wait()
        tmux("send-keys", "C-d")  # so the cancel is due, and nothing answers
        tmux.until(lambda said: "-- not everything is cancelled; the rest is held until /resume" in said)
    with process(*ledger) as server, on_screen(server, 100) as tmux:
        assert (cake(server)["state"], cake(server)["held"]) == ("queued", True)
        tmux.until(lambda said: "idle · 1 waiting, 1 held" in said)
        tmux("send-keys", "/resume", "Enter")
        tmux.until(lambda said: "about cake" in said and "-- resumed: 1" in said)
