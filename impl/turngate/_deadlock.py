"""Refuses waits that would never end: a runner waits for a run that waits for the runner's own turn.

A turn puts itself into the context of its task. Tasks and threads that its runner starts inherit it, so a
wait is refused in all of them until the runner has ended. A task that was started with
`context=contextvars.Context()` is no part of the turn, and may wait.
"""

from __future__ import annotations

import asyncio
import math
import weakref
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from turngate._core import ACTIVE
from turngate._errors import ClosedFromRunner, WouldDeadlock
from turngate._turn import current_turn

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from turngate._events import RunComplete
    from turngate._handles import Home, Run, Turn

_WAY_OUT: Final = (
    "wait after the turn, or in a task that the runner does not await and that was started with "
    "context=contextvars.Context()"
)


@dataclass(eq=False, slots=True)
class _Wait:
    """A wait of a turn's task for a run of this session, which may not be accepted yet.

    Waits are numbered, so that exactly the last wait that closes a circle is refused.
    """

    turn: Turn
    session_id: str
    number: int
    run: Run | None = None


class DeadlockCheck:
    """Checks the turn that a caller is part of before the caller waits.

    `home` is the dispatcher's. It is held weakly, because it holds this.
    """

    def __init__(self, home: Home) -> None:
        self._home = weakref.ref(home)
        self._waits: dict[str, _Wait] = {}
        """The waits of the active turns, by session."""
        self._number = 0

    async def ask(
        self,
        turn: Turn,
        session_id: str,
        run_id: str | None,
        when_busy: str,
        submit: Callable[[], Awaitable[Run]],
    ) -> RunComplete:
        """Submit from within the turn, and wait; see `wait`.

        A prompt whose wait would never end is not submitted. A known run is checked when it is found.
        "interrupt" cancels the turn, and "reject" is refused anyway.
        """
        with self._noted(turn, session_id) as wait:
            joins = isinstance(session_id, str) and when_busy in {"fold", "queue"}
            is_vain = wait is not None and joins and await self._is_circle(wait)
            if is_vain and (run_id is None or not await turn.home.knows(run_id)):
                await _refuse(turn, f"a new prompt of session {session_id!r}")
            run = await submit()
            return await self._wait(wait, run)

    async def wait(self, turn: Turn, run: Run) -> RunComplete:
        """Wait for a run from within the turn; raise WouldDeadlock if that would never end."""
        with self._noted(turn, run.session_id) as wait:
            return await self._wait(wait, run)

    async def check_read(self, turn: Turn, run: Run) -> None:
        """Raise WouldDeadlock for a wait, from within the turn, for text of its own session."""
        if run.session_id == turn.run.session_id and self._is_active(turn) and await run.home.blocks(run):
            await _refuse(turn, f"run {run.run_id} of session {run.session_id!r}")

    @contextmanager
    def _noted(self, turn: Turn, session_id: str) -> Iterator[_Wait | None]:
        """Register the wait while it lasts; yield None if it is not by an active turn of this home."""
        if not self._is_active(turn):
            yield None
            return
        self._number += 1
        wait = _Wait(turn, session_id, self._number)
        if asyncio.current_task() is not turn.task:  # the runner need not wait for this task
            yield wait
            return
        self._waits[turn.run.session_id] = wait
        try:
            yield wait
        finally:
            del self._waits[turn.run.session_id]

    async def _wait(self, wait: _Wait | None, run: Run) -> RunComplete:
        if wait is not None:
            wait.run = run
            if await run.home.blocks(run) and await self._is_circle(wait):
                await _refuse(wait.turn, f"run {run.run_id} of session {run.session_id!r}")
        return await run.until_complete(run.home.loop.check_loop())

    def check_close(self, finish: float) -> None:
        """Raise ClosedFromRunner if a runner waits for the close of its own dispatcher.

        A task that it has started may wait for a close that cancels the runner in the end.
        """
        turn = current_turn()
        if turn is None or turn.home is not self._home():
            return
        if asyncio.current_task() is turn.task or finish == math.inf:
            raise ClosedFromRunner(
                f"aclose() waits for the turn of run {turn.run.run_id}, so its runner cannot wait for that; "
                f"call begin_close(), or {_WAY_OUT}"
            )

    def _is_active(self, turn: Turn) -> bool:
        """Return whether runs of its session wait for the turn; not for one that was cancelled on entry."""
        return turn.home is self._home() and not turn.given_up and turn.run.state is ACTIVE

    async def _is_circle(self, wait: _Wait) -> bool:
        """Return whether the target waits for this turn itself, directly or through other turns.

        Only waits of turns' own tasks are known, and only those that began before this one count. A covered
        turn does not go on waiting.
        """
        own, session_id = wait.turn.run.session_id, wait.session_id
        passed: set[str] = set()
        while session_id != own and session_id not in passed:
            passed.add(session_id)
            other = self._waits.get(session_id)
            if other is None or other.number >= wait.number or other.turn.covered:
                return False
            if other.run is not None and not await other.run.home.blocks(other.run):
                return False
            session_id = other.session_id
        return session_id == own


async def _refuse(turn: Turn, what: str) -> None:
    if turn.covered:
        await asyncio.sleep(0)  # the cancel of the turn comes first, if it is on its way
    raise WouldDeadlock(
        f"{what} cannot complete before the turn of run {turn.run.run_id} ends, so the runner of that turn "
        f"cannot wait for it; take follow-ups in with turn.fold(), or {_WAY_OUT}"
    )
