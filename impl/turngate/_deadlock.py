"""Refuses waits that would never end: a runner waits for a run that waits for the runner's own turn."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from turngate._errors import WouldDeadlock
from turngate._lifecycle import ACTIVE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from turngate._handles import Run, Turn
    from turngate._turn import TurnRunner


class DeadlockCheck:
    """Looks at the turn that a caller is in before the caller waits.

    Only the task of the turn is refused. A task that the runner has started may wait, as long as the runner
    does not wait for that task, which cannot be known here.

    blocks  says whether a run of the same session cannot complete before the active turn ends
    knows   says whether there is a run of this id
    """

    def __init__(
        self,
        turns: TurnRunner,
        blocks: Callable[[Run], Awaitable[bool]],
        knows: Callable[[str], Awaitable[bool]],
    ) -> None:
        self._turns = turns
        self._blocks = blocks
        self._knows = knows

    async def check_wait(self, run: Run) -> None:
        """Raise WouldDeadlock if a runner waits for a run that cannot complete before its own turn ends."""
        turn = self._own_turn(run.session_id)
        if turn is not None and await self._blocks(run):
            await _refuse(turn, f"run {run.run_id}")

    async def check_ask(self, session_id: str, run_id: str | None, when_busy: str) -> None:
        """Raise WouldDeadlock if a runner asks something in its own session, before it is accepted.

        A known run is left to `check_wait`. With "interrupt" the turn is cancelled, "reject" is refused
        anyway.
        """
        turn = self._own_turn(session_id)
        if turn is None or when_busy not in {"fold", "queue"}:
            return
        if run_id is None or not await self._knows(run_id):
            await _refuse(turn, "a new prompt")

    def _own_turn(self, session_id: str) -> Turn | None:
        turn = self._turns.current()
        if turn is None or turn.given_up or turn.run.session_id != session_id:
            return None
        return turn if turn.run.state is ACTIVE else None  # one that was cancelled on entry blocks nothing


async def _refuse(turn: Turn, what: str) -> None:
    if turn.covered:
        await asyncio.sleep(0)  # the cancel of the turn comes first, if it is on its way
    raise WouldDeadlock(
        f"{what} of session {turn.run.session_id!r} cannot complete before the turn of run "
        f"{turn.run.run_id} ends, so the runner of that turn cannot wait for it; take follow-ups in "
        "with turn.fold(), or wait in a task that the runner does not await"
    )
