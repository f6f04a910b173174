"""Places for runner calls: the limit on concurrent runner calls over all sessions.

A turn that finds none free waits for one, in the order in which turns became active. If a cancel comes
meanwhile, the turn waits no longer, and settles without its runner being called. A turn gives its place back
when its runner has ended, before it settles.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from turngate._core import STARTING, WAITING

if TYPE_CHECKING:
    from turngate._handles import Turn


class Places:
    """The free places, the turns that have one, and the turns that wait for one."""

    __slots__ = ("free", "holders", "line")

    def __init__(self, limit: int) -> None:
        self.free = limit
        self.holders: set[Turn] = set()
        self.line: dict[Turn, None] = {}

    def take(self, turn: Turn) -> bool:
        """Take a place for the turn, or let it wait for one; a covered turn needs none."""
        if turn.covered:
            self.leave_line(turn)
            return True
        if turn in self.holders:
            return True
        if self.free == 0:
            turn.record.phase = WAITING
            self.line[turn] = None
            return False
        self.free -= 1
        self.holders.add(turn)
        return True

    def has(self, turn: Turn) -> bool:
        """Return whether the turn has a place."""
        return turn in self.holders

    def leave_line(self, turn: Turn) -> None:
        """Let the turn wait no longer."""
        self.line.pop(turn, None)

    def give_back(self, turn: Turn) -> Turn | None:
        """Take the place of the turn back and return the turn that has it now, None if it is free."""
        self.holders.discard(turn)
        while self.line:
            following = next(iter(self.line))
            del self.line[following]
            if not following.covered:  # a covered turn settles without a place
                self.holders.add(following)
                following.record.phase = STARTING
                return following
        self.free += 1
        return None
