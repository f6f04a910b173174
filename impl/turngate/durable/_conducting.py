"""Conducting a turn in this process, from the step that made it ours to the step that finishes it."""

from __future__ import annotations

import asyncio
from contextvars import Context
from typing import TYPE_CHECKING, Any, Final

from turngate._errors import TurnEnded
from turngate._guard import complain, deal_with, describe, let_out
from turngate._lifecycle import RUNNING, STARTING
from turngate._turn import CANCELLED_FROM_OUTSIDE, ENDED_UNBEGUN, _came_of
from turngate.durable._ledger import LedgerGone, NotStorable
from turngate.durable._records import ALL, Ask
from turngate.durable._step import Fenced
from turngate.durable._worker import Worker

if TYPE_CHECKING:
    from turngate._run import Run, Turn
    from turngate.durable._handles import DurableTurn
    from turngate.durable._step import Step

REFUSED_BY_LEDGER: Final = "the ledger refuses to store what the turn came to"
"""The error of a run whose text or data the ledger does not take."""


class Conducting(Worker):
    """A worker that calls runners."""

    _poll: float

    def _conduct(self, turn: DurableTurn, position: int) -> None:
        self._gate(turn, position)
        self._start(turn)

    def _gate(self, turn: DurableTurn, position: int) -> None:
        """Hold back what the turn streams until subscribers know what came before; see `Following`."""
        raise NotImplementedError

    def _start(self, turn: Turn) -> None:
        """Make the task of the turn as soon as there is a place, in the context of its lead's accept."""
        loop = self._here()
        if self._places is not None and not self._places.take(turn):
            return
        if turn.run._listeners is not None:
            turn.run._listeners.wake()
        context = turn.run._context or Context()
        conducting = self._conducting(turn)
        try:
            made = context.run(loop.create_task, conducting)
            turn._made = made
            made.add_done_callback(turn._task_is_over)
        except BaseException as exc:
            conducting.close()
            deal_with(exc, "the turn of run %s could not be started", turn.run.run_id)
            self._end_unbegun(turn, f"the turn could not be started: {describe(exc)}")

    def _task_is_over(self, turn: Turn, task: asyncio.Future[Any]) -> None:
        """End a turn whose task is over without having begun to conduct it."""
        if turn.phase is STARTING and turn.task is None:
            self._end_unbegun(turn, CANCELLED_FROM_OUTSIDE if task.cancelled() else ENDED_UNBEGUN)

    def _end_unbegun(self, turn: Turn, why: str) -> None:
        self._nobody.end(turn, None, why)
        if turn.has_place:
            self._give_back_place(turn)
        self._spawn(self._finish(turn))

    def _give_back_place(self, turn: Turn) -> None:
        assert self._places is not None
        following = self._places.give_back(turn)
        if following is not None:
            self._start(following)

    async def _conducting(self, turn: Any) -> None:
        """Call the runner unless a cancel came first, and finish: however it goes, the turn ends here."""
        task = turn.task = asyncio.current_task()
        if task is not None and turn._made is task:  # not what a factory has put in its place
            task.remove_done_callback(turn._task_is_over)
        text: str | None = None
        error: str | None = None
        stopped_by: BaseException | None = None
        try:
            if self._places is not None and not turn.covered:
                await self._begin(turn)
            if not turn.covered and not turn.given_up:
                turn.phase = RUNNING
                text = await self._call_runner(turn, task)
                if text is not None and not isinstance(text, str):
                    text, error = None, f"the runner returned {type(text).__name__}, not str or None"
        except BaseException as exc:
            if turn.given_up and isinstance(exc, asyncio.CancelledError):
                error = CANCELLED_FROM_OUTSIDE
            else:
                error, stopped_by = _came_of(exc, self, turn)
        with self._writing:  # what threads of the runner have written until now is part of the turn
            self._nobody.end(turn, text, error)
        if turn._unsent is not None:
            self._send_unsent(turn)
        if turn.has_place:
            self._give_back_place(turn)
        finishing = self._send_off(self._finish(turn))
        if stopped_by is None or isinstance(stopped_by, GeneratorExit):
            return
        while not finishing.done():
            try:
                await asyncio.shield(finishing)
            except asyncio.CancelledError:
                if finishing.cancelled():
                    raise
        if stopped_by is not None:
            let_out(stopped_by)

    async def _call_runner(self, turn: DurableTurn, task: asyncio.Task[Any] | None) -> str | None:
        if task is None:
            return await self._runner(turn)
        self._running[task] = turn
        try:
            return await self._runner(turn)
        finally:
            del self._running[task]

    async def _begin(self, turn: DurableTurn) -> None:
        """Note that the runner is about to be called: from here on the run does not wait for a place."""
        while not turn.given_up and not turn.covered:
            try:
                if not await self._step(turn.run.session_id, lambda step: step.begin(turn.fence), owner=True):
                    turn.covered = True
            except (Fenced, LedgerGone):  # a cancel was first, and has settled it; or nothing can be done
                self._give_up(turn)
            except Exception as exc:  # the ledger cannot be reached, or is broken: both may pass
                if self._closed:
                    raise
                complain(exc, "the turn of run %s cannot begin yet", turn.run.run_id)
                await asyncio.sleep(self._poll)
            else:
                return

    async def _finish(self, turn: Any) -> None:
        """Put the outcome on record: tried again as long as the turn is this process's."""
        ask = Ask(turn.run.session_id, 0, "", head=1)

        unwritten: str | None = None

        def finish(step: Step) -> None:
            step.finish(turn.fence, turn.text, turn.error, turn.kept, unwritten)

        while not turn.given_up:
            try:
                await self._stepping(ask, finish, owner=True)
            except (Fenced, LedgerGone):
                break
            except NotStorable as exc:
                complain(exc, "the outcome of run %s cannot be put on record as it is", turn.run.run_id)
                if unwritten is not None:  # whatever it refuses, it is not what this turn came to
                    await asyncio.sleep(self._poll)
                elif turn.error == REFUSED_BY_LEDGER:
                    unwritten = REFUSED_BY_LEDGER
                turn.text, turn.kept, turn.error = "", None, REFUSED_BY_LEDGER
            except Exception as exc:
                complain(exc, "the outcome of run %s is not on record yet", turn.run.run_id)
                if not turn.given_up:
                    await asyncio.sleep(self._poll)
            else:
                return
        complain(None, "the turn of run %s was given up: what it came to is thrown away", turn.run.run_id)
        self._let_go(turn)

    async def _fold_into(self, turn: DurableTurn) -> list[Run]:
        self._here()
        self._nobody.check_open(turn, "fold into")
        try:
            taken = await self._step(
                turn.run.session_id, lambda step: step.fold(turn.fence), head=ALL, owner=True
            )
        except Fenced:
            raise TurnEnded(f"fold into the turn of run {turn.run.run_id}, which was given up") from None
        joined = {run.run_id for run in taken}
        return [run for run in turn._runs if run.run_id in joined]
