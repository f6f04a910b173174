"""Closes a dispatcher in memory: refuses what is new, and waits until no run owes its RunComplete."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Final

from turngate._core import RUNNING
from turngate._errors import counted
from turngate._events import Waiters
from turngate._log import guard, log

if TYPE_CHECKING:
    from asyncio import TimerHandle
    from collections.abc import Callable

    from turngate._core import RunRecord, SessionCore
    from turngate._effects import Effects, Sessions
    from turngate._loop import HomeLoop

_REMINDER: Final = 2.0
"""Seconds after which a close that still waits names the runs, and interrupts their runners again."""
_NAMED: Final = 10
"""How many of these runs are named; the rest are counted."""


class Close:
    """The end of a dispatcher."""

    def __init__(self, loop: HomeLoop, sessions: Sessions, effects: Effects) -> None:
        self.is_begun = False
        self.is_done = False
        self._loop = loop
        self._sessions = sessions
        self._effects = effects
        self._ended: Callable[[], None] | None = None
        self._is_finishing = False
        self._reminder: TimerHandle | None = None
        self._deadline: TimerHandle | None = None
        self._waiters = Waiters()

    async def wait(self) -> None:
        """Wait until the close is done."""
        while not self.is_done:
            await self._waiters.wait(self._loop.check_loop())

    def begin(self, finish: float, ended: Callable[[], None]) -> None:
        """Let runs in flight end by themselves for `finish` seconds, then cancel what is left.

        Calls `ended` once, when nothing is in flight any more.
        """
        if self.is_begun:
            return
        loop = self._loop.check_loop()
        self.is_begun = True
        self._ended, self._effects.after = ended, self.look  # until then; the references go in a circle
        self._reminder = loop.call_later(_REMINDER, self._remind)
        if finish == 0:
            self._cancel_what_is_left()
        else:
            self._is_finishing = True
            if finish < math.inf:
                self._deadline = loop.call_later(finish, self._cancel_what_is_left)
        self.look()

    def look(self) -> None:
        """End the close if it has begun and nothing is in flight any more."""
        if not self.is_begun or self.is_done or self._effects.is_performing:
            return
        sessions = self._sessions
        if self._is_finishing and not sessions.entering and not sessions.turns:
            # Only accepted and held runs are left: the former are released, the latter cancelled.
            self._is_finishing = False
            for core in map(sessions.core, [*sessions.cores]):
                self._release_accepted(core)
                if core.queue:
                    self._cancel(core)
        if sessions.cores or self.is_done:
            return
        self.is_done = True
        for timer in (self._reminder, self._deadline):
            if timer is not None:
                timer.cancel()
        ended, self._ended, self._effects.after = self._ended, None, None
        assert ended is not None
        ended()
        guard("waking those who close", self._waiters.wake)

    def release(self, record: RunRecord) -> None:
        """Complete a run that never enters."""
        core = self._sessions.core(record.session_id)
        effects, entries = core.release(record)
        self._sessions.accepted -= len(effects)
        self._sessions.forget_if_quiet(core)
        self._effects.perform((effects, entries))

    def _cancel_what_is_left(self) -> None:
        for core in map(self._sessions.core, [*self._sessions.cores]):
            self._cancel(core)
            self._release_accepted(core)

    def _cancel(self, core: SessionCore) -> None:
        decided = core.cancel()[1]
        self._sessions.forget_if_quiet(core)
        self._effects.perform(decided)

    def _release_accepted(self, core: SessionCore) -> None:
        for record in [*core.accepted.values()]:
            self.release(record)

    def _remind(self) -> None:
        """Log which runs the close waits for; interrupt again the runners that should have ended."""
        waiting = [f"{run.run_id} ({run.state})" for run in self._sessions.runs.values()]
        named = ", ".join(waiting[:_NAMED])
        more = f" and {len(waiting) - _NAMED} more" if len(waiting) > _NAMED else ""
        log(logging.WARNING, "closing waits for %s: %s%s", counted(len(waiting), "run"), named, more)
        for turn in [*self._sessions.turns.values()]:
            if turn.covered and turn.record.phase is RUNNING:
                self._effects.turns.interrupt(turn)
        self._reminder = self._loop.check_loop().call_later(_REMINDER, self._remind)
