"""Places for runner calls, of which there are at most so many at once over all sessions.

A turn that finds none free waits, in the order in which turns became active. A cancel that comes meanwhile
takes it out of the line, and it settles without its runner having been called. A turn gives its place back
when its runner is over, before it settles.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from turngate._lifecycle import STARTING, WAITING

if TYPE_CHECKING:
    from turngate._run import Turn


class Places:
    """The free places and the line of the turns that wait for one."""

    __slots__ = ("_free", "_line")

    def __init__(self, limit: int) -> None:
        self._free = limit
        self._line: dict[Turn, None] = {}

    def take(self, turn: Turn) -> bool:
        """Take a place for the turn, or have it wait in line; a covered turn needs none."""
        if turn.covered:
            self._line.pop(turn, None)
            return True
        if turn.has_place:
            return True
        if self._free == 0:
            turn.phase = WAITING
            self._line[turn] = None
            return False
        self._free -= 1
        turn.has_place = True
        return True

    def give_back(self, turn: Turn) -> Turn | None:
        """Take the place of the turn back and return the turn that has it now, None if it is free."""
        turn.has_place = False
        while self._line:
            following = next(iter(self._line))
            del self._line[following]
            if not following.covered:  # a covered one is on its way without
                following.has_place = True
                following.phase = STARTING
                return following
        self._free += 1
        return None
