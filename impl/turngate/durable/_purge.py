"""A purge under way: it goes slice by slice, each a short transaction, so that other steps get their turn.

It looks at every completed run in the order of the positions and takes those that were complete in time, with
their messages; then at the sessions that have no run left, at the history, and at what little remains.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

SLICE: Final = 500
"""How many rows a slice looks at."""
_SKEW: Final = 3600.0
"""Seconds by which the clocks of the machines may differ that share a ledger."""
_START: Final = (-1, -1)


class Phase(Enum):
    """What the next slice looks at."""

    RUNS = 1
    SESSIONS = 2
    HISTORY = 3
    REST = 4
    DONE = 5


class PastRun(NamedTuple):
    """A run that is complete: its place, whose it is, and whether it is as old as what is purged."""

    position: int
    ordinal: int
    run_id: str
    session_id: str
    message_id: str | None
    accepted_before: bool
    completed_before: bool


class PastStep(NamedTuple):
    """A step in the history."""

    position: int
    ordinal: int
    session_id: str
    at: float


@dataclass
class Purge:
    """How far a purge of what was complete `before` has come. Sessions are named as they are stored."""

    before: float
    phase: Phase = Phase.RUNS
    after: tuple[int, int] = _START
    """The last place that was looked at."""
    name: str = ""
    """The last session that was looked at."""
    kept: set[str] = field(default_factory=set)
    """Sessions that have runs left."""
    old: set[str] = field(default_factory=set)
    """Those of them whose runs were accepted before: their history stays."""

    @property
    def is_new(self) -> bool:
        """Whether nothing was looked at yet."""
        return self.phase is Phase.RUNS and self.after == _START

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to be done."""
        return self.phase is Phase.DONE

    def next_phase(self) -> None:
        """Go on to the next kind of rows."""
        self.phase = Phase(self.phase.value + 1)
        if self.phase is Phase.HISTORY:
            self.after = _START

    def keep(self, sessions: list[tuple[str, bool]]) -> None:
        """Keep sessions that have runs, each with whether one was accepted before."""
        self.kept |= {session_id for session_id, _ in sessions}
        self.old |= {session_id for session_id, accepted_before in sessions if accepted_before}

    def slice(self, rows: list[PastRun]) -> tuple[list[PastRun], list[PastRun]]:
        """Return those of the rows that make a slice, and those of them that are purged.

        A slice ends with a step, if it can: the runs of a turn go together, with their messages.
        """
        if len(rows) == SLICE and rows[0].position != rows[-1].position:
            rows = [row for row in rows if row.position != rows[-1].position]
        return rows, [row for row in rows if row.completed_before]

    def looked_at(self, rows: list[PastRun]) -> None:
        """Take note that a slice was looked at, and that what is purged of it is gone."""
        self.keep([(row.session_id, row.accepted_before) for row in rows if not row.completed_before])
        if rows:
            self.after = rows[-1][:2]

    def forgets(self, step: PastStep) -> bool:
        """Say whether a step is purged from the history: what is left of a session begins with an accept."""
        return step.at < self.before and step.session_id not in self.old

    def is_past(self, steps: list[PastStep]) -> bool:
        """Say whether these steps, and so those behind them, are all too new to be purged."""
        return all(step.at > self.before + _SKEW for step in steps)
