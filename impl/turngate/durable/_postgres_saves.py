"""Saving steps in PostgreSQL: those of several sessions that wait at the same time go by one statement.

Each step is saved or not by itself, by the version of its session.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from turngate.durable import _postgres_statements as sql
from turngate.durable._columns import Row, of_complete, of_key, of_messages, of_run, of_session
from turngate.durable._ledger import LedgerUnavailable, NotStorable
from turngate.durable._rows import storable
from turngate.durable._swap import Fate, Unanswered

if TYPE_CHECKING:
    from asyncio import Future, Task
    from collections.abc import Callable, Coroutine

    from turngate.durable._cache import SessionCache
    from turngate.durable._rows import Changes

_MOST: Final = 64
"""So many steps go by one statement at most."""
_AT_ONCE: Final = 2
"""So many statements are under way at most: while one is written to disk, the next is collected."""


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
        cache: SessionCache,
        *,
        history: bool,
    ) -> None:
        self._send = send
        self._spawn = spawn
        self._cache = cache
        self._history = history
        self._waiting: deque[_Save] = deque()
        self._senders = 0
        self._last_batch = 1
        """How many steps the last statement saved. After a lone one, the next does not wait for others."""

    async def save(self, worker: int, changes: Changes) -> tuple[Fate, int]:
        """Save a step if its session is still at its version, and the worker alive."""
        answer: Future[tuple[Fate, int]] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Save(worker, changes, answer))
        try:
            if self._senders < _AT_ONCE:
                self._senders += 1
                await self._send_some()  # by the task that is here anyway
            return await answer
        except asyncio.CancelledError:
            if not answer.cancel() and not answer.cancelled():
                answer.exception()  # which nobody asks for any more
            raise

    async def _send_some(self) -> None:
        """Send what waits by now; if more has come meanwhile, or this is cut off, another goes on.

        Raises nothing but what is not an Exception: what goes wrong is told to those who wait.
        """
        try:
            if self._senders > 1 or self._last_batch > 1:
                await asyncio.sleep(0)  # those who come at the same time go along
            if batch := self._next():
                await self._send_batch(batch)
        except GeneratorExit:  # the loop is gone, and nobody can go on
            raise
        except BaseException:
            self._go_on()
            raise
        self._go_on()

    def _go_on(self) -> None:
        if self._waiting:
            self._spawn(self._send_some())
        else:
            self._senders -= 1

    def _next(self) -> list[_Save]:
        batch: list[_Save] = []
        while self._waiting and len(batch) < _MOST:
            if batch and self._waiting[0].worker != batch[0].worker:
                break
            if batch and (self._waiting[0].changes.key or batch[0].changes.key):
                break  # a step with a key goes alone: if the key is taken, its statement fails
            batch.append(self._waiting.popleft())
        self._last_batch = len(batch)
        return batch

    async def _send_batch(self, batch: list[_Save]) -> None:
        """Send the steps by one statement, and answer each; whatever happens, none of them waits for ever."""
        try:
            batch.sort(key=lambda save: storable(save.changes.session_id))  # see `_SAVE`
            key = batch[0].changes.key
            arrays = _as_arrays(batch, history=self._history)
            about = batch[0].worker, self._cache.numbers_wanted(), *arrays
            if key is None:
                (answer,) = await self._send(sql.SAVE, *about)
            else:
                (answer,) = await self._send(sql.SAVE_KEYED, *about, *of_key(key))
            alive, position, saved, numbers = answer
            self._cache.add_numbers(numbers)
            done = {*saved}
        except (Refused, Conflict, NotStorable) as exc:
            if len(batch) > 1:  # one of them is to blame
                await self._send_singly(batch)
            elif isinstance(exc, Conflict):
                _answer(batch[0], (Fate.STALE, 0))
            else:
                _fail(batch, exc)
        except BaseException as exc:
            _fail(batch, exc if isinstance(exc, Exception) else Unanswered())
            if not isinstance(exc, Exception):
                raise
        else:
            for number, each in enumerate(batch):
                fate = Fate.SAVED if number in done else Fate.STALE if alive else Fate.DEAD
                _answer(each, (fate, position))

    async def _send_singly(self, batch: list[_Save]) -> None:
        """Send the steps one by one; when cut off, leave those that were not sent yet to another sender."""
        for number, each in enumerate(batch, 1):
            try:
                await self._send_batch([each])
            except BaseException:
                self._waiting.extendleft(reversed(batch[number:]))
                raise


def _answer(save: _Save, answer: tuple[Fate, int]) -> None:
    if not save.answer.done():
        save.answer.set_result(answer)


def _fail(batch: list[_Save], why: Exception) -> None:
    for each in batch:
        if not each.answer.done():
            each.answer.set_exception(why)


def _as_arrays(batch: list[_Save], *, history: bool) -> list[list[list[str | None]]]:
    """Return the rows that are to be written as arrays of texts, as `save` in the database takes them.

    The first column of each row is the number of its step.
    """
    sessions: list[Row] = []
    accepted: list[Row] = []
    moved: list[Row] = []
    done: list[Row] = []
    messages: list[Row] = []
    entries: list[Row] = []
    for number, (_, changes, _) in enumerate(batch):
        session_id = storable(changes.session_id)
        accepts = None
        if changes.new:
            (row,) = changes.new
            accepted.append((number, *of_run(row)))
            accepts = storable(row.run_id)
        sessions.append((number, changes.before is None, accepts, session_id, *of_session(changes.after)))
        for run_id, state, covered, place in changes.moved:
            moved.append((number, storable(run_id), state.value, covered, place))
        done += [(number, storable(each.run_id), *of_complete(each)) for each in changes.done]
        messages += [(number, *columns) for columns in of_messages(changes.messages)]
        if history and changes.entries:
            entries.append((number, session_id, json.dumps(changes.entries)))
    return [
        [[None if value is None else str(value) for value in row] for row in rows]
        for rows in (sessions, accepted, moved, done, messages, entries)
    ]
