"""Passes on what the cores decide, in order: to the recording, to the log, to those who follow moves."""

from __future__ import annotations

import json
import logging
from collections import deque
from typing import TYPE_CHECKING, Any

from turngate._events import moved
from turngate._log import log, log_or_propagate, logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import TextIO

    from turngate._core import Entry
    from turngate._events import Audience


class Journal:
    """Passes on what the cores of a dispatcher have decided."""

    def __init__(
        self, record: TextIO | Callable[[dict[str, Any]], object] | None, audience: Audience
    ) -> None:
        self._record = record
        self._audience = audience
        self._pending: deque[Entry] = deque()
        self._telling = False

    def tell(self, entries: Iterable[Entry]) -> None:
        """Tell the log, the recording and those who subscribed to moves.

        Each is told, whatever the others do. A recording that raises is told no more. What is decided while
        one of them is being told waits until all have been.
        """
        if self._record is None and not self._audience.by_session and not logger.isEnabledFor(logging.DEBUG):
            return
        self._pending += entries
        if self._telling:
            return
        self._telling = True
        try:
            while self._pending:
                self._tell(self._pending.popleft())
        finally:
            self._telling = False

    def end(self) -> None:
        """Record that nothing more will happen, and record no more."""
        if self._record is not None:
            self._write({"event": "end"})
        self._record = None

    def _tell(self, entry: Entry) -> None:
        line, complete = entry
        if logger.isEnabledFor(logging.DEBUG):
            words = " ".join(f"{key}=%s" for key in line)
            log(logging.DEBUG, words, *line.values(), extra={"turngate": line})
        self._write(line)
        if self._audience.by_session:
            try:
                self._audience.deliver(moved(line) if complete is None else complete)
            except BaseException as exc:
                log_or_propagate(exc, "delivering %s raised", line)

    def _write(self, line: dict[str, Any]) -> None:
        try:
            if callable(self._record):
                self._record(line)
            elif self._record is not None:
                self._record.write(json.dumps(line) + "\n")
        except BaseException as exc:
            self._record = None
            log_or_propagate(exc, "the recording raised at %s, and stops there", line)
