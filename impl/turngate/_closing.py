"""Closing: refuse what is new, let what is in flight end, and wait until no run owes its RunComplete."""

from __future__ import annotations

import asyncio
import logging
import math
from typing import TYPE_CHECKING, Final

from turngate._errors import ClosedFromRunner
from turngate._guard import say
from turngate._lifecycle import RUNNING
from turngate._run import Covered
from turngate._shell import Shell
from turngate._words import counted

if TYPE_CHECKING:
    from asyncio import TimerHandle
    from collections.abc import Callable
    from typing import TextIO

    from turngate._core import SessionCore
    from turngate._journal import Entry
    from turngate._messages import Messages
    from turngate._places import Places
    from turngate._run import Run, Runner

_REMINDER: Final = 2.0
"""Seconds after which a close that still waits says for which runs, and interrupts their runners again."""
_NAMED: Final = 10
"""So many of these runs are named; the rest are counted."""


class Closing(Shell):
    """A shell that can be closed."""

    def __init__(
        self,
        runner: Runner,
        messages: Messages,
        record: TextIO | Callable[[Entry], object] | None,
        settle_timeout: float,
        places: Places | None,
    ) -> None:
        super().__init__(runner, messages, record, settle_timeout, places)
        self._accepted = 0
        """How many runs are accepted and have not entered."""
        self._entering = 0
        """How many of these enter in the background."""
        self._finishing = False
        self._timers: list[TimerHandle] = []

    async def aclose(self, *, finish: float = 0.0) -> None:
        """Refuse new prompts, end what is in flight, and wait until no run owes its RunComplete.

        What is in flight may end by itself for `finish` seconds (`math.inf`: as long as it takes); then every
        session is cancelled, and what has not entered is released. While finishing, accepted runs may still
        enter; they are released at once when nothing else is left.

        Idempotent: all callers wait for the same end, and the first one's `finish` counts. Cancelling the
        caller does not stop the close. A runner cannot call it, for it would wait for itself: that raises
        ClosedFromRunner. A runner that goes on although it was cancelled is interrupted again and again.
        """
        loop = self._here()
        task = asyncio.current_task()
        if any(core.turn is not None and core.turn.task is task for core in self._sessions.values()):
            raise ClosedFromRunner("aclose() waits for every turn, so a runner cannot call it")
        self.begin_close(finish=finish)
        while not self._closed:
            await self._close_waiters.wait(loop)

    def begin_close(self, *, finish: float = 0.0) -> None:
        """Begin what `aclose` does, without waiting for it: for a signal handler on the loop."""
        loop = self._here()
        if not isinstance(finish, int | float) or not finish >= 0:
            raise ValueError(f"finish must be at least 0 seconds, not {finish!r}")
        if self._closing:
            return
        self._closing = True
        self._timers.append(loop.call_later(_REMINDER, self._remind))
        if finish == 0:
            self._cancel_what_is_left()
        else:
            self._finishing = True
            if finish < math.inf:
                self._timers.append(loop.call_later(finish, self._cancel_what_is_left))
        self._close_if_quiet()

    def _release(self, run: Run) -> None:
        core = self._session(run.session_id)
        effects = core.release(run)
        self._accepted -= len(effects)
        self._forget_if_quiet(core)
        self._perform(effects)

    def _cancel(self, core: SessionCore) -> Covered:
        covered, effects = core.cancel()
        self._perform(effects)
        return Covered(covered)

    def _cancel_what_is_left(self) -> None:
        for core in [*self._sessions.values()]:
            self._cancel(core)
            self._release_accepted(core)

    def _release_accepted(self, core: SessionCore) -> None:
        for run in [*core.accepted.values()]:
            self._release(run)

    def _close_if_quiet(self) -> None:
        if self._closed or self._performing is not None:
            return
        if self._finishing and not self._entering and len(self._runs) == self._accepted:
            self._finishing = False  # whoever holds these runs can enter them no more
            for core in [*self._sessions.values()]:
                self._release_accepted(core)
        if self._sessions or self._closed:
            return
        self._closed = True
        for timer in self._timers:
            timer.cancel()
        self._journal.end()
        self._guard("closing the subscriptions", self._subscribers.close)
        self._guard("waking those who wait for completions", self._completions.wake)
        self._guard("waking those who close", self._close_waiters.wake)

    def _remind(self) -> None:
        """Say for which runs the close waits; interrupt again the runners that should have ended."""
        waiting = [f"{run.run_id} ({run.state})" for run in [*self._runs.values()]]
        named = ", ".join(waiting[:_NAMED])
        more = f" and {len(waiting) - _NAMED} more" if len(waiting) > _NAMED else ""
        say(logging.WARNING, "closing waits for %s: %s%s", counted(len(waiting), "run"), named, more)
        turns = [core.turn for core in self._sessions.values() if core.turn is not None]
        for turn in turns:
            if turn.covered and turn.phase is RUNNING:
                self._interrupt(turn)
        self._timers[0] = self._here().call_later(_REMINDER, self._remind)
