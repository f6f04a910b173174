"""A purge under way. It goes slice by slice, each a short transaction, so that steps can go on in between.

It looks at every complete run in the order of positions and deletes those that are old enough, with their
messages; then at sessions without runs, at the history, and at what remains.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

SLICE: Final = 500
"""How many rows a slice looks at."""
_SKEW: Final = 3600.0
"""Seconds by which the clocks of machines that share a ledger may differ."""
_START: Final = (-1, -1)


class Phase(Enum):
    """What the next slice looks at."""

    RUNS = 1
    SESSIONS = 2
    HISTORY = 3
    REST = 4
    DONE = 5


class PastRun(NamedTuple):
    """A complete run: its place, its session, and whether it is old enough."""

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
    """How far a purge of runs that were complete `before` has come. Sessions are named as they are stored."""

    before: float
    phase: Phase = Phase.RUNS
    after: tuple[int, int] = _START
    """The last place that a slice has looked at."""
    name: str = ""
    """The last session that a slice has looked at."""
    kept: set[str] = field(default_factory=set)
    """Sessions that have runs left."""
    old: set[str] = field(default_factory=set)
    """Sessions among these with runs that were accepted before: their history stays."""

    @property
    def is_new(self) -> bool:
        """Whether no slice was taken yet."""
        return self.phase is Phase.RUNS and self.after == _START

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do."""
        return self.phase is Phase.DONE

    def next_phase(self) -> None:
        """Go on to the next kind of rows."""
        self.phase = Phase(self.phase.value + 1)
        if self.phase is Phase.HISTORY:
            self.after = _START

    def keep(self, sessions: list[tuple[str, bool]]) -> None:
        """Keep sessions that have runs left, each with whether one of these was accepted before."""
        self.kept |= {session_id for session_id, _ in sessions}
        self.old |= {session_id for session_id, accepted_before in sessions if accepted_before}

    def slice(self, rows: list[PastRun]) -> tuple[list[PastRun], list[PastRun]]:
        """Return the rows that make a slice, and those among them to delete.

        If possible a slice ends with a step, because the runs of a turn are deleted together.
        """
        if len(rows) == SLICE and rows[0].position != rows[-1].position:
            rows = [row for row in rows if row.position != rows[-1].position]
        return rows, [row for row in rows if row.completed_before]

    def looked_at(self, rows: list[PastRun]) -> None:
        """Take note that the rows of a slice were looked at, and the old ones deleted."""
        self.keep([(row.session_id, row.accepted_before) for row in rows if not row.completed_before])
        if rows:
            self.after = rows[-1][:2]

    def forgets(self, step: PastStep) -> bool:
        """Return whether to delete a step from the history; what stays of a session begins with an accept."""
        return step.at < self.before and step.session_id not in self.old

    def is_past(self, steps: list[PastStep]) -> bool:
        """Return whether these steps, and so all behind them, are too new to delete."""
        return all(step.at > self.before + _SKEW for step in steps)
