"""Where a conversation is shown: a terminal with a line to type in, or whatever reads standard output."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import unicodedata
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Protocol

from prompt_toolkit import Application
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.data_structures import Size
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.key_binding.key_processor import KeyPressEvent
from prompt_toolkit.layout import (
    BufferControl,
    ConditionalContainer,
    Dimension,
    FormattedTextControl,
    HSplit,
    Layout,
    Window,
)
from prompt_toolkit.output.vt100 import Vt100_Output
from wcwidth import iter_graphemes, wcswidth, wcwidth

from turngate.cli.visible import visible

_A_MOMENT = 0.05
"""Seconds after which an Escape that nothing has followed is the key."""
_REMEMBERED = 500
"""How many lines can be wrapped again after a resize."""
_MOST_TYPED = 5
"""How many rows a long prompt may take while it is typed."""
_JOINER = "\u200d"
"""What makes one emoji of several."""
_CLOSES = frozenset({"Pe", "Pf", "Po"})
"""Categories of characters that stay in the row of what comes before them."""
_OPENS = frozenset({"Ps", "Pi"})
"""Categories of characters that stay in the row of what comes after them."""
CANCEL = None
"""What `lines` yields for a cancel of everything."""


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
    """Return text from elsewhere without control characters, so that it is safe for a terminal."""
    lines = text.replace("\t", "    ").replace("\r\n", "\n").split("\n")
    return "\n".join(
        _JOINER.join(visible(part, sys.stdout.encoding) for part in line.split(_JOINER)) for line in lines
    )


class PlainScreen:
    """Standard input and output without a terminal: a line is a prompt, an empty one cancels."""

    def show(self, text: str) -> None:
        """Write text."""
        sys.stdout.write(shown(text))
        sys.stdout.flush()

    def status(self, text: str) -> None:
        """Show nothing: the output is not a display."""

    async def lines(self) -> AsyncIterator[str | None]:
        """Yield the lines of standard input."""
        while line := await asyncio.to_thread(sys.stdin.readline):
            yield line.strip() or CANCEL


class TerminalScreen:
    """A terminal: what is said scrolls above, and the last lines are how things are and what is typed.

    Rows that are full go above, where the terminal keeps them; the row that still grows is drawn with the
    lines below it. After a resize, what is on the screen is wrapped and written again.
    """

    def __init__(self) -> None:
        self._said: deque[str] = deque(maxlen=_REMEMBERED)
        """The last lines that are complete, for a resize."""
        self._line = ""
        """The line that still grows."""
        self._above = 0
        """How many characters of it are in rows above."""
        self._status = ""
        self._size: Size | None = None
        self._typed: asyncio.Queue[str | None] = asyncio.Queue()
        self._ended = False
        self._buffer = Buffer(multiline=True, history=InMemoryHistory())
        self._output = Vt100_Output(
            sys.stdout, _size_of_terminal, term=os.environ.get("TERM"), enable_cpr=False
        )
        self._app: Application[None] = Application(
            layout=Layout(
                HSplit(
                    [
                        ConditionalContainer(
                            Window(FormattedTextControl(self._growing), height=1), Condition(self._grows)
                        ),
                        Window(FormattedTextControl(self._status_line), height=1, style="reverse"),
                        Window(
                            BufferControl(self._buffer),
                            height=Dimension(min=1, max=_MOST_TYPED),
                            dont_extend_height=True,
                            wrap_lines=True,
                            get_line_prefix=_prefix,
                        ),
                    ]
                )
            ),
            key_bindings=self._keys(),
            output=self._output,
            erase_when_done=True,
        )
        self._app.ttimeoutlen = _A_MOMENT
        self._app.before_render += self._look_at_size

    # The terminal.

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Take the terminal over, and put it back afterwards with all that was said."""
        started = asyncio.Event()
        running = asyncio.create_task(
            self._app.run_async(pre_run=started.set, handle_sigint=False, set_exception_handler=False)
        )
        running.add_done_callback(self._is_over)
        await started.wait()
        try:
            yield
        finally:
            if not running.done():
                self._app.exit()
            with suppress(EOFError):  # the terminal is gone
                await running
            if self._line:
                self._write([row.rstrip(" ") for row in self._rows()])

    def _is_over(self, running: asyncio.Task[None]) -> None:
        """Notice that the terminal is gone."""
        if not self._ended:
            self._end_input()

    def _write(self, rows: Iterable[str]) -> None:
        for row in rows:
            self._output.write(row)
            self._output.write_raw("\r\n")
        self._output.flush()

    def _look_at_size(self, _app: Application[None]) -> None:
        """After a resize, write what was said again: the terminal has broken its rows anywhere."""
        size = self._output.get_size()
        if self._size is not None and size != self._size:
            self._output.erase_screen()
            self._output.cursor_goto(0, 0)
            self._above = 0
            rows = [row for line in self._said for row in wrap(line, size.columns)]
            growing = wrap(self._line, size.columns)
            self._above = sum(map(len, growing[:-1]))
            rows += growing[:-1]
            room = max(size.rows - _MOST_TYPED - 2, 1)
            self._write(row.rstrip(" ") for row in rows[-room:])
        self._size = size

    # What is shown.

    def show(self, text: str) -> None:
        """Show text where the last one ended."""
        full: list[str] = []
        *lines, rest = shown(text).split("\n")
        for line in lines:
            self._line += line
            full += self._rows()
            self._said.append(self._line)
            self._line, self._above = "", 0
        self._line += rest
        *rows, _ = self._rows()
        self._above += sum(map(len, rows))
        full += rows
        if full:
            self._app.renderer.erase()
            self._write(row.rstrip(" ") for row in full)
        self._app.invalidate()

    def _rows(self) -> list[str]:
        """Return the part of the growing line that is not above, in rows."""
        return wrap(self._line[self._above :], self._output.get_size().columns)

    def _growing(self) -> str:
        return self._rows()[-1].rstrip(" ")

    def _grows(self) -> bool:
        return len(self._line) > self._above

    def status(self, text: str) -> None:
        """Show how things are."""
        if text != self._status:
            self._status = text
            self._app.invalidate()

    def _status_line(self) -> str:
        return wrap(visible(self._status, sys.stdout.encoding), self._output.get_size().columns)[0]

    # What is typed.

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()

        @keys.add("enter", eager=True)
        @keys.add("c-j", eager=True)
        def _(_event: KeyPressEvent) -> None:
            if self._buffer.text.strip():
                self._typed.put_nowait(self._buffer.text)
                self._buffer.append_to_history()
            self._buffer.reset()

        @keys.add("escape", eager=True)
        def _(_event: KeyPressEvent) -> None:
            self._typed.put_nowait(CANCEL)

        @keys.add("c-c", eager=True)
        @keys.add("c-d", eager=True)
        def _(_event: KeyPressEvent) -> None:
            self._end_input()

        return keys

    def _end_input(self) -> None:
        self._ended = True
        self._typed.put_nowait(CANCEL)

    async def lines(self) -> AsyncIterator[str | None]:
        """Yield what is typed, until Ctrl-C or Ctrl-D."""
        while not self._ended or self._typed.qsize() > 1:
            line = await self._typed.get()
            if self._ended and self._typed.empty():
                return
            yield line


def _prefix(number: int, wrapped: int) -> str:
    return "> " if number == 0 and wrapped == 0 else "  "


def _size_of_terminal() -> Size:
    """Return the size that the terminal has now; where it has none, what the environment says."""
    try:
        columns, rows = os.get_terminal_size(sys.stdout.fileno())
    except OSError:
        columns = rows = 0
    if not columns or not rows:
        columns, rows = shutil.get_terminal_size()
    return Size(rows=rows, columns=columns)


# Text in rows: words stay whole, and no character is wider than the place that it gets.


def wrap(line: str, columns: int) -> list[str]:
    """Return a line in rows that fit, in order and with nothing left out.

    Spaces at the end of a row may hang over; `row.rstrip(" ")` always fits. A word that is too long for any
    row begins a row of its own and is broken where the row is full.
    """
    rows: list[str] = []
    row, used = "", 0
    for piece in _pieces(line):
        needed = cells(piece.rstrip(" "))
        if row and used + needed > columns:
            rows.append(row)
            row, used = "", 0
        if needed <= columns:
            row += piece
            used += cells(piece)
            continue
        for character in iter_graphemes(piece):
            width = cells(character)
            if row and character != " " and used + width > columns:
                rows.append(row)
                row, used = "", 0
            row += character
            used += width
    return [*rows, row]


def cells(text: str) -> int:
    """Return how many columns a text takes, at the most: terminals differ about joined emoji."""
    return sum(
        max(wcswidth(character), sum(max(wcwidth(each), 0) for each in character), 0)
        for character in iter_graphemes(text)
    )


def _pieces(line: str) -> Iterator[str]:
    """Yield what is not broken: words with the spaces behind them, and wide characters one by one."""
    piece, before = "", ""
    for character in iter_graphemes(line):
        if piece and _may_break(before, character):
            yield piece
            piece = ""
        piece += character
        before = character
    if piece:
        yield piece


def _may_break(before: str, after: str) -> bool:
    if after == " ":
        return False
    if before == " ":
        return True
    if cells(before) < 2 and cells(after) < 2:
        return False
    return unicodedata.category(after[0]) not in _CLOSES and unicodedata.category(before[0]) not in _OPENS
