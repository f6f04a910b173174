"""Sessions as this process last saved them, so that its next step need not load what it has just written.

For ledgers on which a load is a message to a server. Every step changes the version of its session, so a
cached session is right as long as its version is, and a save that asks for that version finds out. Decisions
that save nothing, refusals included, are taken on a loaded session only.
"""

from __future__ import annotations

import time
from bisect import bisect, insort
from typing import TYPE_CHECKING, Final, NamedTuple

from turngate._core import QUEUED
from turngate.durable._records import Known, Loaded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from turngate.durable._records import Ask, Changes, RunRow, SessionRow

_SESSIONS_LIMIT: Final = 4_096
_RUNS_LIMIT: Final = 64
_TEXT_LIMIT: Final = 16_384
"""The most characters of prompts and attachments that a cached session may have."""
_NUMBERS: Final = 64
"""How many fresh numbers are kept for steps that do not load."""


class _Cached(NamedTuple):
    """A session with its accepted and active runs, and with its queue if that is known to the end."""

    session: SessionRow
    runs: list[RunRow]
    has_queue: bool


class SessionCache:
    """The sessions that this process saved last, some fresh numbers, and the ledger's clock.

    A number is fresh for a session if it is higher than the session's fence. It does not matter if another
    process was given a higher one meanwhile: if it used that in this session, the version has changed.
    """

    def __init__(self) -> None:
        self._sessions: dict[str, _Cached] = {}
        self._numbers: list[int] = []
        self._clock: float | None = None

    def numbers_wanted(self) -> int:
        """Return how many fresh numbers to ask the ledger for."""
        return _NUMBERS - len(self._numbers) if len(self._numbers) < _NUMBERS // 2 else 0

    def add_numbers(self, numbers: Sequence[int]) -> None:
        """Take in fresh numbers."""
        self._numbers = sorted([*self._numbers, *numbers])

    def set_clock(self, now: float) -> None:
        """Take note of the time by the ledger's clock."""
        self._clock = now - time.monotonic()

    def recall(self, ask: Ask) -> Loaded | None:
        """Return what a load would return if no other process has written; None if that is not known.

        A run that `is_new` is assumed to be unknown to every other session; the save finds out.
        """
        cached = self._sessions.get(ask.session_id)
        if cached is None or self._clock is None or ask.with_text or (ask.head and not cached.has_queue):
            return None
        found = next((row for row in cached.runs if row.run_id == ask.run_id), None)
        if found is None and ask.run_id is not None and not ask.is_new:
            return None
        lowest = bisect(self._numbers, cached.session.fence)
        if lowest == len(self._numbers):
            return None
        known = None if found is None else Known(found, None)
        now = time.monotonic() + self._clock
        return Loaded(ask.session_id, cached.session, cached.runs, known, self._numbers.pop(lowest), now)

    def saved(self, loaded: Loaded, changes: Changes) -> None:
        """Cache a session as it was saved."""
        if changes.after.fence != loaded.fresh:  # the number was not used
            insort(self._numbers, loaded.fresh)
            del self._numbers[:-_NUMBERS]
        self._sessions.pop(loaded.session_id, None)
        rows = {row.run_id: row for row in loaded.runs}
        queued = 0 if loaded.session is None else loaded.session.queued
        has_queue = queued == sum(row.state is QUEUED for row in loaded.runs)
        rows |= {row.run_id: row for row in changes.new}
        for run_id, state, covered, place in changes.changed:
            rows[run_id] = rows[run_id]._replace(state=state, covered=covered, place=place)
        for complete in changes.done:
            rows.pop(complete.run_id, None)
        text = sum(len(row.prompt) + len(row.attachments) for row in rows.values())
        if len(rows) > _RUNS_LIMIT or text > _TEXT_LIMIT:
            return
        runs = [row for row in rows.values() if has_queue or row.state is not QUEUED]
        self._sessions[loaded.session_id] = _Cached(changes.after, runs, has_queue)
        if len(self._sessions) > _SESSIONS_LIMIT:
            del self._sessions[next(iter(self._sessions))]

    def forget(self, session_id: str) -> None:
        """Drop a session: another process has written, or it is not known what was saved."""
        self._sessions.pop(session_id, None)

    def fingerprint(self) -> tuple[object, ...]:
        """Return what is cached, for comparison with another moment."""
        versions = [(name, each.session.version, each.has_queue) for name, each in self._sessions.items()]
        return (*self._numbers, *versions)
