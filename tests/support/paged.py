"""The code blocks of a page: read them, and run them one after the other as a reader would."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from surroundings import ROOT

FENCE = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
PORT = "8765"


class Block(NamedTuple):
    """A block of code: its language, its title, its text and the line it is in."""

    language: str
    title: str
    text: str
    line: int

    @property
    def is_excerpt(self) -> bool:
        return self.title.startswith(("excerpt", "set up"))


def blocks(page: str) -> list[Block]:
    return [
        Block(found[1], found[2] or "", found[3], page[: found.start()].count("\n") + 1)
        for found in FENCE.finditer(page)
    ]


def is_like(expected: str, printed: str) -> bool:
    """Return whether a text is what a page shows: three dots are any text, on their own line any lines."""
    lines = expected.strip().splitlines()
    pattern = "".join(
        r"(?:.*\n)*?" if line == "..." else re.escape(line).replace(r"\.\.\.", ".*") + r"\s*\n"
        for line in lines
    )
    return re.fullmatch(pattern, printed.strip() + "\n") is not None


class Terminal:
    """One shell in which the commands of a page are run, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = str(free.getsockname()[1])
        self.folder = folder
        self.out = folder / ".printed"
        self.out.touch()
        self.errors = folder / ".errors"
        tools = Path(sys.executable).parent
        with self.out.open("a") as out, self.errors.open("a") as errors:
            self.shell = subprocess.Popen(
                ["bash", "-m"],
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=errors,
                text=True,
                start_new_session=True,
                env={
                    **{name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"},
                    "PATH": f"{tools}:{os.environ['PATH']}",
                    "COLUMNS": "100",
                },
            )

    def here(self, text: str) -> str:
        """Return the text with the port that this terminal has instead of the one that pages name."""
        text = text.replace(PORT, self.port)
        return re.sub(r"turngate serve (?!--acp)", f"turngate serve --port {self.port} ", text)

    def run(self, text: str) -> str:
        """Run the lines of a block, and return what they print."""
        assert self.shell.stdin is not None
        text = self.here(text)
        begin = self.out.stat().st_size
        # Each command that fails leaves its status behind.
        self.shell.stdin.write(f'failed=; trap \'failed="$failed $?"\' ERR\n{text}\necho ",:$failed:,"\n')
        self.shell.stdin.flush()
        printed = self._until(begin, re.compile(r",:([\d ]*):,\n"))
        if text.rstrip().endswith("&"):
            self._wait_for_server()
            if "turngate serve" in text:
                printed = self._until(begin, re.compile(r"turngate serves .*\n"))
        (failed,) = re.findall(r",:([\d ]*):,\n", printed)
        ended = {"137", "143"}  # by SIGKILL and SIGTERM
        assert {*failed.split()} <= ended, f"{text}\n{printed}\n{self.errors.read_text()}"
        return re.sub(r",:[\d ]*:,\n", "", printed).replace(self.port, PORT)

    def _wait_for_server(self) -> None:
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", int(self.port))):
                return
            time.sleep(0.05)
        raise AssertionError(f"no server listens: {self.errors.read_text()}")

    def _until(self, begin: int, mark: re.Pattern[str]) -> str:
        deadline = time.monotonic() + 300
        while not mark.search(printed := self.out.read_bytes()[begin:].decode()):
            assert time.monotonic() < deadline, printed
            assert self.shell.poll() is None, printed
            time.sleep(0.02)
        return printed

    def close(self) -> None:
        assert self.shell.stdin is not None
        self.shell.stdin.write("kill -9 $(jobs -p); exit\n")
        self.shell.stdin.close()
        self.shell.wait(timeout=60)


def play(page: str, folder: Path) -> list[str]:
    """Do what a page says, in a new folder; return what differs from what the page shows."""
    wrong = []
    for shared in ("examples", "ports", "vectors"):
        (folder / shared).symlink_to(ROOT / shared)
    terminal = Terminal(folder)
    printed: str | None = None
    try:
        for block in blocks(page):
            if block.is_excerpt:
                printed = None
            elif block.language in ("python", "js", "go", "toml", "json") and block.title:
                (folder / block.title).parent.mkdir(parents=True, exist_ok=True)
                (folder / block.title).write_text(terminal.here(block.text), encoding="utf-8")
            elif block.language == "sh":
                printed = terminal.run(block.text)
            elif block.language == "text" and printed is not None:
                if not is_like(block.text, printed):
                    wrong.append(f"line {block.line}: printed was\n{printed}")
                printed = None
    finally:
        terminal.close()
    return wrong


__all__ = ["Block", "blocks", "is_like", "play"]
