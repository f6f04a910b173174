"""Where a conversation is shown: a terminal with a line to type in, or whatever reads standard output."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Protocol

from turngate_verify.cli.keys import BACKSPACE, CLEAR, END, ENTER, ESCAPE, WORD, Keys
from turngate_verify.visible import visible

_A_MOMENT = 0.05
"""Seconds after which an Escape that nothing has followed is the key."""
CANCEL = None
"""What is read when everything is to be cancelled."""


class Screen(Protocol):
    """Shows text, and what waits; yields the lines that are typed, None for a cancel."""

    def show(self, text: str) -> None:
        """Show text behind what was shown before."""

    def status(self, text: str) -> None:
        """Show how things are, in the place of what was said of that before."""

    def lines(self) -> AsyncIterator[str | None]:
        """Yield what is typed."""
        ...


def shown(text: str) -> str:
    """Return text of somebody else as a terminal may be given it: nothing but characters and line ends."""
    return "\n".join(visible(line, sys.stdout.encoding) for line in text.split("\n"))


class Plain:
    """Standard input and output without a terminal: a line is a prompt, an empty one cancels."""

    def show(self, text: str) -> None:
        """Write text."""
        sys.stdout.write(shown(text))
        sys.stdout.flush()

    def status(self, text: str) -> None:
        """Say nothing: whoever reads this does not look on."""

    async def lines(self) -> AsyncIterator[str | None]:
        """Yield the lines of standard input."""
        while line := await asyncio.to_thread(sys.stdin.readline):
            yield line.strip() or CANCEL


class Typed:
    """A terminal: what is said scrolls above, and the last two lines are how things are and what is typed.

    The lines above scroll in a region of their own, so text can come in the middle of a line of typing.
    """

    def __init__(self) -> None:
        self._typed = ""
        self._status = ""
        self._keys = Keys()
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()
        self._ended = False

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Have the terminal hand over every key, and put it back afterwards."""
        import termios  # noqa: PLC0415 - there is none on some systems
        import tty  # noqa: PLC0415 - as above

        number = sys.stdin.fileno()
        before = termios.tcgetattr(number)
        loop = asyncio.get_running_loop()
        tty.setraw(number, termios.TCSANOW)
        loop.add_reader(number, self._read, number)
        loop.add_signal_handler(signal.SIGWINCH, self._resize)
        self._resize()
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGWINCH)
            loop.remove_reader(number)
            self._write(f"\x1b7\x1b[r\x1b8\x1b[{self._rows};1H\r\n")
            termios.tcsetattr(number, termios.TCSANOW, before)

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    def _resize(self) -> None:
        self._columns, self._rows = shutil.get_terminal_size()
        above = max(self._rows - 2, 1)
        self._write(f"\n\n\x1b[1;{above}r\x1b[{above};1H\x1b7")
        self._draw()

    def show(self, text: str) -> None:
        """Show text where the last one ended."""
        self._write(f"\x1b8{shown(text).replace(chr(10), chr(13) + chr(10))}\x1b7")
        self._draw()

    def status(self, text: str) -> None:
        """Show how things are."""
        if text != self._status:
            self._status = text
            self._draw()

    def _draw(self) -> None:
        width = max(self._columns - 3, 1)
        status = visible(self._status, sys.stdout.encoding)[:width]
        typed = visible(self._typed, sys.stdout.encoding)[-width:]
        self._write(
            f"\x1b[{self._rows - 1};1H\x1b[2K\x1b[7m{status}\x1b[0m\x1b[{self._rows};1H\x1b[2K> {typed}"
        )

    def _read(self, number: int) -> None:
        data = os.read(number, 65_536)
        if not data:
            self._press(END)
        for key in self._keys.feed(data):
            self._press(key)
        if self._keys.pending:
            asyncio.get_running_loop().call_later(_A_MOMENT, self._escape)

    def _escape(self) -> None:
        if self._keys.pending:
            self._press(self._keys.release())

    def _press(self, key: str) -> None:
        meaning: dict[str, Callable[[str], str]] = {
            BACKSPACE: lambda typed: typed[:-1],
            CLEAR: lambda typed: "",
            WORD: lambda typed: typed.rstrip().rpartition(" ")[0],
        }
        if key == END:
            self._ended = True
            self._lines.put_nowait(CANCEL)
        elif key == ESCAPE:
            self._lines.put_nowait(CANCEL)
        elif key == ENTER:
            if self._typed.strip():
                self._lines.put_nowait(self._typed)
            self._typed = ""
        else:
            self._typed = meaning[key](self._typed) if key in meaning else self._typed + key
        self._draw()

    async def lines(self) -> AsyncIterator[str | None]:
        """Yield what is typed, until Ctrl-C or Ctrl-D."""
        while not self._ended or self._lines.qsize() > 1:
            line = await self._lines.get()
            if self._ended and self._lines.empty():
                return
            yield line
