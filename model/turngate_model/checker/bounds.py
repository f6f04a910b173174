"""How much the explorer explores, and when it gives up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from turngate_model.designs import DESIGNS, NOT_IN_DESIGNS, NOT_IN_LINE_DESIGNS

NAMES = "abcdefgh"
"""The names of runs. There are at most as many prompts."""
MOST_SESSIONS = 3

HEART = frozenset({"again", "cancel_run", "clear", "close", "fails", "interrupt", "release"})
"""The operations that are not in the heart of the mechanism.

What is left without them: accept, enter, cancel, fold, end, settle and handoff.
"""


@dataclass(frozen=True)
class Bounds:
    """How much can happen: how many prompts and cancels, in how many sessions, without which operations.

    ``turns_limit`` is the limit on runner calls at once, over all sessions. ``holds`` bounds hold, hold_run
    and stop together, ``moves`` bounds move, edit and send_now together; a held run can be resumed at any
    time. With ``into`` a prompt may be for one turn alone.
    """

    prompts: int = 3
    cancels: int = 2
    sessions: int = 2
    without: frozenset[str] = frozenset()
    turns_limit: int | None = None
    holds: int = 0
    moves: int = 0
    into: bool = False

    def __post_init__(self) -> None:
        _check_ranges(
            self,
            prompts=(1, len(NAMES)),
            cancels=(0, 16),
            sessions=(1, MOST_SESSIONS),
            holds=(0, 16),
            moves=(0, 16),
            **({} if self.turns_limit is None else {"turns_limit": (1, MOST_SESSIONS)}),
        )


def bounds_of(design: str) -> Bounds:
    """Return the bounds within which a known-bad design is explored. They are large enough to refute it."""
    if design in DESIGNS:
        return Bounds(without=NOT_IN_DESIGNS)
    if design == "made-up-rank":
        return Bounds(3, 0, 1, NOT_IN_LINE_DESIGNS, holds=1, moves=1)
    return Bounds(2, 1, 1, NOT_IN_LINE_DESIGNS, holds=1, moves=1, into=True)


OnDeath: TypeAlias = Literal["fail", "retry"]


@dataclass(frozen=True)
class DurableBounds:
    """How much can happen: processes, prompts, and how often each thing goes wrong."""

    processes: int = 2
    prompts: int = 2
    cancels: int = 1
    crashes: int = 1
    """Processes that die. All of them at once count as one."""
    expiries: int = 1
    """Processes that are given up for dead while they live."""
    losses: int = 1
    """Answers of the ledger that are lost."""
    loads: int = 1
    """Loads after which others come first."""
    on_death: OnDeath = "fail"
    attempts: int = 2
    """How often a turn is begun at most, where a turn whose process died is begun again."""
    holds: int = 0
    """Holds and stops."""
    moves: int = 0
    """Moves, edits and prompts that are sent now."""

    without: ClassVar[frozenset[str]] = frozenset()
    """No operation is left out."""

    def __post_init__(self) -> None:
        _check_ranges(self, processes=(1, 4), prompts=(1, len(NAMES)), attempts=(1, 8))
        _check_ranges(self, **dict.fromkeys(BUDGETS, (0, 16)))
        if self.on_death not in ("fail", "retry"):
            raise ValueError(f"on_death must be fail or retry, not {self.on_death}")

    @property
    def deaths(self) -> int:
        """How often a process can die, or be given up for dead."""
        return self.crashes + self.expiries


BUDGETS = ("cancels", "crashes", "expiries", "losses", "loads", "holds", "moves")
"""The bounds on how often something happens: what is used up of them is no part of a state."""


@dataclass(frozen=True)
class SearchLimits:
    """After how many seconds, or at how much memory, the explorer gives up and says so."""

    seconds: float = 600.0
    mebibytes: int = 2048

    def __post_init__(self) -> None:
        if not (self.seconds > 0 and self.mebibytes > 0):
            raise ValueError("limits of time and memory must be above zero")


def _check_ranges(bounds: Bounds | DurableBounds, **ranges: tuple[int, int]) -> None:
    for name, (least, most) in ranges.items():
        if not least <= getattr(bounds, name) <= most:
            raise ValueError(f"{name} must be from {least} to {most}, not {getattr(bounds, name)}")
