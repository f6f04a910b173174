"""Saving steps in PostgreSQL: those of several sessions that wait at the same time go by one statement.

Each step is saved or not by itself, by the version of its session.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from turngate._messages import Message
from turngate.durable._columns import of_complete, of_messages, of_run, of_session
from turngate.durable._ledger import LedgerUnavailable
from turngate.durable._rows import RunRow, SessionRow, storable
from turngate.durable._swap import Fate, Unanswered

if TYPE_CHECKING:
    from asyncio import Future, Task
    from collections.abc import Callable, Coroutine

    from turngate.durable._recent import Memory
    from turngate.durable._rows import Changes

_MOST: Final = 64
"""So many steps go by one statement at most."""
_AT_ONCE: Final = 2
"""So many statements are under way at most: while one is written to disk, the next is collected."""
_DONE: Final = (
    "ordinal", "run_id", "text", "error", "cancelled", "message_id", "folded_into", "outcome",
)  # fmt: skip
_SAID: Final = (*Message._fields, "turn")


class Refused(LedgerUnavailable):
    """The server has refused a statement: nothing was done."""


class Conflict(Exception):
    """Somebody else was faster: nothing was done."""


class _Save(NamedTuple):
    worker: int
    changes: Changes
    answer: Future[tuple[Fate, int]]


class Saves:
    """The steps that wait to be saved."""

    def __init__(
        self,
        send: Callable[..., Coroutine[Any, Any, list[Any]]],
        spawn: Callable[[Coroutine[Any, Any, None]], Task[Any]],
        memory: Memory,
        *,
        history: bool,
    ) -> None:
        self._send = send
        self._spawn = spawn
        self._memory = memory
        self._history = history
        self._waiting: deque[_Save] = deque()
        self._senders = 0

    async def save(self, worker: int, changes: Changes) -> tuple[Fate, int]:
        """Save a step if its session is still at its version, and the worker alive."""
        answer: Future[tuple[Fate, int]] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Save(worker, changes, answer))
        if self._senders < _AT_ONCE:
            self._senders += 1
            await self._send_some()  # by the task that is here anyway
        return await answer

    async def _send_some(self) -> None:
        try:
            await asyncio.sleep(0)  # those who come at the same time go along
            if batch := self._next():
                await self._send_batch(batch)
        except BaseException:
            self._senders -= 1
            raise
        if self._waiting:
            self._spawn(self._send_some())
        else:
            self._senders -= 1

    def _next(self) -> list[_Save]:
        batch: list[_Save] = []
        while self._waiting and len(batch) < _MOST:
            if batch and self._waiting[0].worker != batch[0].worker:
                break
            batch.append(self._waiting.popleft())
        return batch

    async def _send_batch(self, batch: list[_Save]) -> None:
        try:
            ((alive, position, saved, numbers),) = await self._send(
                batch[0].worker, _as_json(batch, history=self._history), self._memory.wants()
            )
        except (Refused, Conflict) as exc:
            if len(batch) > 1:  # one of them is to blame
                for each in batch:
                    await self._send_batch([each])
            elif isinstance(exc, Conflict):
                _answer(batch[0], (Fate.STALE, 0))
            else:
                _fail(batch, exc)
        except BaseException as exc:
            _fail(batch, exc if isinstance(exc, Exception) else Unanswered())
            if not isinstance(exc, Exception):
                raise
        else:
            self._memory.refill(numbers)
            done = {*saved}
            for number, each in enumerate(batch):
                fate = Fate.SAVED if number in done else Fate.STALE if alive else Fate.DEAD
                _answer(each, (fate, position))


def _answer(save: _Save, answer: tuple[Fate, int]) -> None:
    if not save.answer.done():
        save.answer.set_result(answer)


def _fail(batch: list[_Save], why: Exception) -> None:
    for each in batch:
        if not each.answer.done():
            each.answer.set_exception(why)


def _as_json(batch: list[_Save], *, history: bool) -> str:
    """Return what is to be written as JSON, the sessions in their order."""
    steps: list[dict[str, Any]] = []
    ordinal = 0
    for n, (_, changes, _) in enumerate(batch):
        session_id = storable(changes.session_id)
        step = dict(zip(SessionRow._fields, of_session(changes.after), strict=True))
        step |= {"n": n, "first": changes.before is None, "session_id": session_id}
        if changes.new:
            (row,) = changes.new
            step["new"] = dict(zip(RunRow._fields, of_run(row), strict=True))
        if changes.moved:
            step["moved"] = [
                {"run_id": storable(run_id), "state": state.value, "covered": covered, "place": place}
                for run_id, state, covered, place in changes.moved
            ]
        if changes.done:
            step["done"] = [
                dict(zip(_DONE, (number, storable(each.run_id), *of_complete(each)), strict=True))
                for number, each in enumerate(changes.done, ordinal)
            ]
            ordinal += len(changes.done)
        if changes.messages:
            step["said"] = [dict(zip(_SAID, row, strict=True)) for row in of_messages(changes.messages)]
        if history and changes.entries:
            step["told"] = json.dumps(changes.entries)
        steps.append(step)
    return json.dumps(sorted(steps, key=lambda step: str(step["session_id"])))
