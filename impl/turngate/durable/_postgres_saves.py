"""Saving steps in PostgreSQL: steps that wait at the same time are saved by one statement.

Each of them is saved, or not, by itself: only if its session is still at the version that it was decided on.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from turngate.durable import _postgres_statements as sql
from turngate.durable._ledger import LedgerUnavailable, NotStorable
from turngate.durable._records import Row, of_complete, of_key, of_messages, of_run, of_session, storable
from turngate.durable._swap import Fate, Unanswered

if TYPE_CHECKING:
    from asyncio import Future, Task
    from collections.abc import Callable, Coroutine, Iterable

    from turngate.durable._cache import SessionCache
    from turngate.durable._records import Changes

_BATCH_LIMIT: Final = 64
"""The most steps that one statement saves."""
_SENDERS_LIMIT: Final = 2
"""The most statements under way: while one is written to disk, the next is collected."""


class Refused(LedgerUnavailable):
    """The server has refused a statement: nothing was done."""


class Conflict(Exception):
    """Another process was faster: nothing was done."""


class _Save(NamedTuple):
    worker: int
    changes: Changes
    answer: Future[tuple[Fate, int]]


class Saves:
    """The steps that wait to be saved.

    send   has a statement carried out once
    spawn  starts a background task
    cache  is given the fresh numbers that come with the answers
    """

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
        self._senders: set[Task[Any]] = set()

    async def save(self, worker: int, changes: Changes) -> tuple[Fate, int]:
        """Save a step if its session is still at its version and the worker is alive.

        Returns how that ended, and the position. A caller that is cancelled before the step was sent takes it
        back; afterwards it is saved all the same.
        """
        answer: Future[tuple[Fate, int]] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Save(worker, changes, answer))
        if len(self._senders) < _SENDERS_LIMIT:
            sender = self._spawn(self._send_waiting())
            self._senders.add(sender)
            sender.add_done_callback(self._senders.discard)
        return await answer

    def close(self) -> None:
        """Refuse the steps that were not sent."""
        _fail(self._waiting, LedgerUnavailable("the ledger is closed"))
        self._waiting.clear()

    async def _send_waiting(self) -> None:
        try:
            while batch := self._next_batch():
                try:
                    await self._send_batch(batch)
                except asyncio.CancelledError:
                    _fail(batch, Unanswered())
                    raise
        finally:
            # In the same step in which it found nothing left: a step that comes next needs another sender.
            self._senders.discard(cast("Task[Any]", asyncio.current_task()))

    def _next_batch(self) -> list[_Save]:
        """Take steps of one worker; a step with a key goes alone, because a taken key fails its statement."""
        batch: list[_Save] = []
        while self._waiting and len(batch) < _BATCH_LIMIT:
            save = self._waiting[0]
            if batch and (save.worker != batch[0].worker or save.changes.key or batch[0].changes.key):
                break
            self._waiting.popleft()
            if not save.answer.done():
                batch.append(save)
        # In one order, so that statements of several processes do not wait for each other in a circle.
        return sorted(batch, key=lambda save: storable(save.changes.session_id))

    async def _send_batch(self, batch: list[_Save]) -> None:
        """Send the steps by one statement, and answer each."""
        worker, changes, _ = batch[0]
        try:
            about = (worker, self._cache.numbers_wanted(), *_as_arrays(batch, history=self._history))
            if changes.key is None:
                (answer,) = await self._send(sql.SAVE, *about)
            else:
                (answer,) = await self._send(sql.SAVE_KEYED, *about, *of_key(changes.key))
            alive, position, saved, numbers = answer
            self._cache.add_numbers(numbers)
        except (Refused, Conflict, NotStorable) as exc:
            if len(batch) > 1:  # one of them is to blame
                for each in batch:
                    await self._send_batch([each])
            elif isinstance(exc, Conflict):
                _answer(batch[0], (Fate.STALE, 0))
            else:
                _fail(batch, exc)
        except Exception as exc:
            _fail(batch, exc)
        else:
            for number, each in enumerate(batch):
                fate = Fate.SAVED if number in saved else Fate.STALE if alive else Fate.DEAD
                _answer(each, (fate, position))


def _answer(save: _Save, answer: tuple[Fate, int]) -> None:
    if not save.answer.done():
        save.answer.set_result(answer)


def _fail(saves: Iterable[_Save], why: Exception) -> None:
    for each in saves:
        if not each.answer.done():
            each.answer.set_exception(why)


def _as_arrays(batch: list[_Save], *, history: bool) -> list[list[list[str | None]]]:
    """Return the rows to write as arrays of texts, which the stored function `save` takes.

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
        for run_id, state, covered, place in changes.changed:
            moved.append((number, storable(run_id), state.value, covered, place))
        done += [(number, storable(each.run_id), *of_complete(each)) for each in changes.done]
        messages += [(number, *columns) for columns in of_messages(changes.messages)]
        if history and changes.entries:
            entries.append((number, session_id, json.dumps(changes.entries)))
    return [
        [[None if value is None else str(value) for value in row] for row in rows]
        for rows in (sessions, accepted, moved, done, messages, entries)
    ]
