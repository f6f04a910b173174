"""What a turn produces while its runner works: text, notes, and data to keep.

The runner, and threads that it starts, add to it. What comes from a thread is sent to the subscribers as soon
as the loop is free.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from turngate._errors import TurnEnded
from turngate._events import Delta, Note, size_of
from turngate._json import decode, encode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from turngate._handles import Run
    from turngate._loop import HomeLoop

Deliver = Callable[[Delta | Note, int], None]
"""Gives an event of a certain size to the subscribers."""


class TurnOutput:
    """The text of a turn in the pieces in which it was written, and the JSON kept beside it.

    `deliver` gives deltas and notes to the subscribers. `members` are the runs of the turn, also those that
    join it later; their readers are woken when there is more text.
    """

    __slots__ = (
        "_deliver", "_lock", "_loop", "_members", "_run_id", "_session_id", "_unsent", "is_closed", "kept",
        "length", "parts",
    )  # fmt: skip

    def __init__(
        self, session_id: str, run_id: str, loop: HomeLoop, deliver: Deliver, members: list[Run]
    ) -> None:
        self.parts: list[str] = []
        self.length = 0
        self.kept: str | None = None
        self.is_closed = False
        self._session_id = session_id
        self._run_id = run_id
        self._loop = loop
        self._deliver = deliver
        self._members = members
        self._lock = threading.Lock()
        self._unsent: list[tuple[Delta | Note, int]] = []

    def write(self, text: str) -> None:
        """Keep text and stream it."""
        if not isinstance(text, str):
            raise TypeError(f"a turn writes strings, not {type(text).__name__}")
        with self._lock:
            self.check_open("write to")
            if text:
                self.parts.append(text)
            delta = Delta(self._session_id, self._run_id, text, self.length)
            self.length += len(text)
            is_first = self._add(delta, size_of(delta))
        self._send_or_schedule(is_first)

    def emit(self, kind: str, data: object) -> None:
        """Stream a note, in order with the text."""
        if not isinstance(kind, str):
            raise TypeError(f"the kind of a note must be a string, not {type(kind).__name__}")
        text = encode(data, "turn.emit")
        note = Note(self._session_id, self._run_id, kind, decode(text))
        with self._lock:
            self.check_open("emit from")
            is_first = self._add(note, len(kind) + len(text))
        self._send_or_schedule(is_first)

    def keep(self, data: object) -> None:
        """Keep JSON beside the text; the last one counts."""
        text = encode(data, "turn.keep")
        with self._lock:
            self.check_open("keep in")
            self.kept = text

    def so_far(self) -> tuple[int, str, str | None]:
        """Return the length of the text, the text, and what was kept, all at one moment."""
        with self._lock:
            return self.length, "".join(self.parts), self.kept

    def close(self) -> None:
        """Take nothing more: the runner is over. What threads have written until now is part of the turn."""
        with self._lock:
            self.is_closed = True
        if self._unsent:
            self._send()

    def check_open(self, what: str) -> None:
        """Raise TurnEnded if the runner is over."""
        if self.is_closed:
            raise TurnEnded(f"{what} the turn of run {self._run_id}, which is over")

    def pieces(self, text: str) -> Sequence[str]:
        """Return the text in pieces, as a reader receives it; `text` is what the runner returned."""
        return self.parts or ((text,) if text else ())

    def _add(self, event: Delta | Note, size: int) -> bool:
        """Note what has to be sent; say whether nothing was waiting to be sent before."""
        self._unsent.append((event, size))
        return len(self._unsent) == 1

    def _send_or_schedule(self, is_first: bool) -> None:
        """Send at once on the loop; from a thread have the loop send, unless it will do so anyway."""
        if self._loop.is_running_here():
            self._send()
        elif is_first:
            assert self._loop.loop is not None
            try:
                self._loop.loop.call_soon_threadsafe(self._send)
            except RuntimeError as closed:
                raise TurnEnded(f"write to the turn of {self._run_id}, whose loop is closed") from closed

    def _send(self) -> None:
        with self._lock:
            unsent, self._unsent = self._unsent, []
        for event, size in unsent:
            self._deliver(event, size)
        for run in self._members:
            run.listeners.wake()
