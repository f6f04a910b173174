"""Sessions as this process last saw them saved, so that its next step need not load what it has just written.

Everything that a step decides on changes the version of the session, so what is remembered is right as long
as the version is: a save that asks for it finds out. What a step decides not to do, or refuses, is not saved,
and so has to be decided again on what is really there, unless it is known otherwise that nobody else wrote.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from turngate._lifecycle import QUEUED
from turngate.durable._rows import Known, Loaded

if TYPE_CHECKING:
    from turngate.durable._rows import Ask, Changes, RunRow, SessionRow

_SESSIONS: Final = 4_096
_CHARACTERS: Final = 16_384
"""So long the prompts and attachments of a session may be that is remembered."""
_RUNS: Final = 64


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

    def keep(self, loaded: Loaded, changes: Changes) -> None:
        """Remember what was saved."""
        self._seen.pop(loaded.session_id, None)
        rows = {row.run_id: row for row in loaded.runs}
        whole = loaded.session is None or loaded.session.queued == sum(
            row.state is QUEUED for row in loaded.runs
        )
        for row in changes.new:
            rows[row.run_id] = row
        for run_id, state, covered, place in changes.moved:
            rows[run_id] = rows[run_id]._replace(state=state, covered=covered, place=place)
        for complete in changes.done:
            rows.pop(complete.run_id, None)
        characters = sum(len(row.prompt) + len(row.attachments) for row in rows.values())
        if len(rows) > _RUNS or characters > _CHARACTERS:
            return
        runs = [row for row in rows.values() if whole or row.state is not QUEUED]
        self._seen[loaded.session_id] = _Seen(changes.after, runs, whole)
        if len(self._seen) > _SESSIONS:
            del self._seen[next(iter(self._seen))]

    def forget(self, session_id: str) -> None:
        """Forget a session."""
        self._seen.pop(session_id, None)

    def clear(self) -> None:
        """Forget everything."""
        self._seen.clear()
