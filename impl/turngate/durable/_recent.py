"""Sessions as this process last saw them saved, so that its next step need not load what it has just written.

Everything that a step decides on changes the version of the session, so what is remembered is right as long
as the version is: a save that asks for it finds out. What a step decides not to do, or refuses, is not saved,
and so has to be decided again on what is really there, unless it is known otherwise that nobody else wrote.
"""

from __future__ import annotations

import time
from bisect import bisect, insort
from typing import TYPE_CHECKING, Final, NamedTuple

from turngate._lifecycle import QUEUED
from turngate.durable._rows import Known, Loaded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from turngate.durable._rows import Ask, Changes, RunRow, SessionRow

_SESSIONS: Final = 4_096
_CHARACTERS: Final = 16_384
"""So long the prompts and attachments of a session may be that is remembered."""
_RUNS: Final = 64
_NUMBERS: Final = 64
"""So many fresh numbers are held for steps that do not load."""


class _Seen(NamedTuple):
    """A session, its accepted and active runs, and its queue if that is known to its end."""

    session: SessionRow
    runs: list[RunRow]
    has_queue: bool


class Recent:
    """The sessions that were saved last."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}

    def recall(self, ask: Ask, fresh: int, now: float) -> Loaded | None:
        """Return what a load would find if nobody else has written, None if that is not known.

        Of a run that `is_new` it is taken for granted that it is known nowhere else.
        """
        seen = self._seen.get(ask.session_id)
        if seen is None or ask.with_text or fresh <= seen.session.fence:
            return None
        if ask.head and not seen.has_queue:
            return None
        known = None
        if ask.run_id is not None:
            found = next((row for row in seen.runs if row.run_id == ask.run_id), None)
            if found is not None:
                known = Known(found, None)
            elif not ask.is_new:
                return None
        return Loaded(ask.session_id, seen.session, seen.runs, known, fresh, now)

    def fence(self, session_id: str) -> int:
        """Return the fence of the session, 0 if that is not known."""
        seen = self._seen.get(session_id)
        return 0 if seen is None else seen.session.fence

    def keep(self, loaded: Loaded, changes: Changes) -> None:
        """Remember what was saved."""
        self._seen.pop(loaded.session_id, None)
        rows = {row.run_id: row for row in loaded.runs}
        queued = 0 if loaded.session is None else loaded.session.queued
        whole = not queued or queued == sum(row.state is QUEUED for row in loaded.runs)
        for row in changes.new:
            rows[row.run_id] = row
        for run_id, state, covered, place in changes.moved:
            rows[run_id] = rows[run_id]._replace(state=state, covered=covered, place=place)
        for complete in changes.done:
            rows.pop(complete.run_id, None)
        if rows:
            characters = sum(len(row.prompt) + len(row.attachments) for row in rows.values())
            if len(rows) > _RUNS or characters > _CHARACTERS:
                return
        runs = [row for row in rows.values() if whole or row.state is not QUEUED]
        self._seen[loaded.session_id] = _Seen(changes.after, runs, whole)
        if len(self._seen) > _SESSIONS:
            del self._seen[next(iter(self._seen))]

    def versions(self) -> list[tuple[str, int, bool]]:
        """Return the sessions, the versions that they are remembered at, and whether with their queues."""
        return [(name, seen.session.version, seen.has_queue) for name, seen in self._seen.items()]

    def forget(self, session_id: str) -> None:
        """Forget a session."""
        self._seen.pop(session_id, None)

    def clear(self) -> None:
        """Forget everything."""
        self._seen.clear()


class Memory:
    """What a process remembers of a ledger that it shares with others: sessions, fresh numbers, the clock.

    A number is fresh for a session if it is higher than the session's fence: numbers that were given out
    meanwhile to others are of no concern, for these have then taken steps, and the version is another.
    """

    def __init__(self) -> None:
        self._recent = Recent()
        self._numbers: list[int] = []
        self._clock: float | None = None

    def wants(self) -> int:
        """Return how many fresh numbers are wanted."""
        return _NUMBERS - len(self._numbers) if len(self._numbers) < _NUMBERS // 2 else 0

    def refill(self, numbers: Sequence[int]) -> None:
        """Take in fresh numbers."""
        self._numbers = sorted([*self._numbers, *numbers])

    def heard(self, now: float) -> None:
        """Take note of what the clock of the ledger says."""
        self._clock = now - time.monotonic()

    def recall(self, ask: Ask) -> Loaded | None:
        """Return what a load would find if nobody else has written, None if that is not known."""
        lowest = bisect(self._numbers, self._recent.fence(ask.session_id))
        if self._clock is None or lowest == len(self._numbers):
            return None
        loaded = self._recent.recall(ask, self._numbers[lowest], time.monotonic() + self._clock)
        if loaded is not None:
            del self._numbers[lowest]
        return loaded

    def saved(self, loaded: Loaded, changes: Changes) -> None:
        """Remember what was saved."""
        self._recent.keep(loaded, changes)
        if changes.after.fence != loaded.fresh:  # it was not needed
            insort(self._numbers, loaded.fresh)
            del self._numbers[:-_NUMBERS]

    def looks_like(self) -> tuple[object, ...]:
        """Return what is remembered, so that it can be compared."""
        return (*self._numbers, *self._recent.versions())

    def forget(self, session_id: str) -> None:
        """Forget a session: somebody else has written, or it is not known what was saved."""
        self._recent.forget(session_id)
