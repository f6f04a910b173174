"""How much the explorer explores, and when it gives up."""

from __future__ import annotations

from dataclasses import dataclass

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

    With ``turns_limit``, at most so many runner calls go on at once over all sessions.
    """

    prompts: int = 3
    cancels: int = 2
    sessions: int = 2
    without: frozenset[str] = frozenset()
    turns_limit: int | None = None

    def __post_init__(self) -> None:
        ranges = {"prompts": (1, len(NAMES)), "cancels": (0, 16), "sessions": (1, MOST_SESSIONS)}
        if self.turns_limit is not None:
            ranges["turns_limit"] = (1, MOST_SESSIONS)
        for name, (least, most) in ranges.items():
            if not least <= getattr(self, name) <= most:
                raise ValueError(f"{name} must be from {least} to {most}, not {getattr(self, name)}")


@dataclass(frozen=True)
class SearchLimits:
    """After how many seconds, or at how much memory, the explorer gives up and says so."""

    seconds: float = 600.0
    mebibytes: int = 2048

    def __post_init__(self) -> None:
        if not (self.seconds > 0 and self.mebibytes > 0):
            raise ValueError("limits of time and memory must be above zero")
