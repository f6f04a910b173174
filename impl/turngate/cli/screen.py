"""Where a conversation is shown: a terminal with an input line, or plain standard output."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from types import EllipsisType

from prompt_toolkit import Application
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.data_structures import Size
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.layout import (
    ConditionalContainer,
    Dimension,
    FormattedTextControl,
    HSplit,
    Layout,
    Window,
)
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.widgets import TextArea
from wcwidth import wrap

from turngate.cli.terminal import stop_writing
from turngate.cli.visible import visible

_A_MOMENT = 0.05
"""Seconds after which an Escape that nothing has followed is the key."""
_REMEMBERED = 500
"""How many lines can be wrapped again after a resize."""
_MOST_TYPED = 5
"""How many rows a long prompt may take while it is typed."""
_JOINER = "\u200d"
"""What makes one emoji of several."""
CANCEL = None
"""What `lines` yields for a cancel of everything."""


def shown(text: str) -> str:
    """Return untrusted text without control characters, so that it is safe for a terminal."""
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
        self._row = ""
        """The last row of it, which is not above."""
        self._status = ""
        self._size: Size | None = None
        self._typed: asyncio.Queue[str | EllipsisType | None] = asyncio.Queue()
        """The lines that were typed, and `...` at the end."""
        self._output = Vt100_Output.from_pty(sys.stdout, term=os.environ.get("TERM"))
        self._output.enable_cpr = False  # not every terminal says where its cursor is
        self._input = TextArea(
            accept_handler=self._take,
            history=InMemoryHistory(),
            height=Dimension(min=1, max=_MOST_TYPED),
            dont_extend_height=True,
            wrap_lines=True,
            get_line_prefix=lambda number, wrapped: "  " if number or wrapped else "> ",
        )
        growing = Window(FormattedTextControl(lambda: self._row.rstrip(" ")), height=1)
        status = Window(FormattedTextControl(self._status_row), height=1, style="reverse")
        grows = ConditionalContainer(growing, Condition(lambda: bool(self._row)))
        self._app: Application[None] = Application(
            layout=Layout(HSplit([grows, status, self._input]), focused_element=self._input),
            key_bindings=self._keys(),
            output=self._output,
            erase_when_done=True,
        )
        self._app.ttimeoutlen = _A_MOMENT
        self._app.before_render += self._look_at_size

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Take over the terminal, and restore it afterwards with everything that was said."""
        started = asyncio.Event()
        running = asyncio.create_task(
            self._app.run_async(pre_run=started.set, handle_sigint=False, set_exception_handler=False)
        )
        running.add_done_callback(lambda _: self._typed.put_nowait(...))  # if the terminal is gone
        await started.wait()
        try:
            yield
        finally:
            if not running.done():
                self._app.exit()
            try:
                await running
            except EOFError:
                pass  # nothing more can be typed
            except OSError:  # the terminal is gone
                stop_writing()
            if self._row:
                self._write([self._row])

    # What is shown.

    def show(self, text: str) -> None:
        """Show text where the last one ended."""
        full: list[str] = []
        *lines, rest = shown(text).split("\n")
        for line in lines:
            full += [*self._grow(line), self._row]
            self._said.append(self._line)
            self._line = self._row = ""
        full += self._grow(rest)
        if full:
            self._app.renderer.erase()
            self._write(full)
        self._app.invalidate()

    def _grow(self, text: str) -> list[str]:
        """Add to the line that grows; return its rows that are full."""
        self._line += text
        full, self._row = self._wrapped(self._row + text)
        return full

    def _wrapped(self, line: str) -> tuple[list[str], str]:
        """Return the full rows of a line, and the last one with the spaces behind it."""
        rows = wrap(line, self._output.get_size().columns, break_on_hyphens=False) or [""]
        return rows[:-1], rows[-1] + line[len(line.rstrip(" ")) :]

    def _write(self, rows: Iterable[str]) -> None:
        for row in rows:
            self._output.write(row.rstrip(" "))
            self._output.write_raw("\r\n")
        self._output.flush()

    def _look_at_size(self, _app: Application[None]) -> None:
        """After a resize, write what was said again: the terminal has broken its rows anywhere."""
        size = self._output.get_size()
        if self._size is not None and size != self._size:
            self._output.erase_screen()
            self._output.cursor_goto(0, 0)
            rows: list[str] = []
            for line in self._said:
                full, last = self._wrapped(line)
                rows += [*full, last]
            full, self._row = self._wrapped(self._line)
            room = max(size.rows - _MOST_TYPED - 2, 1)
            self._write([*rows, *full][-room:])
        self._size = size

    def status(self, text: str) -> None:
        """Show the present state in place of the one shown before."""
        self._status = text
        self._app.invalidate()

    def _status_row(self) -> str:
        full, last = self._wrapped(visible(self._status, sys.stdout.encoding))
        return [*full, last][0]

    # What is typed.

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()
        for names, do in (
            (("enter", "c-j"), self._input.buffer.validate_and_handle),
            (("escape",), lambda: self._typed.put_nowait(CANCEL)),
            (("c-c", "c-d"), lambda: self._typed.put_nowait(...)),
        ):
            for name in names:
                keys.add(name, eager=True)(lambda _event, do=do: do())
        return keys

    def _take(self, buffer: Buffer) -> bool:
        if buffer.text.strip():
            self._typed.put_nowait(buffer.text)
        return False  # the next prompt begins with nothing

    async def lines(self) -> AsyncIterator[str | None]:
        """Yield what is typed, until Ctrl-C or Ctrl-D."""
        while (line := await self._typed.get()) is not ...:
            yield line
