"""Keeps complete runs: the RunComplete, and a digest of the payload that tells a retry from a conflict.

A complete run is kept as one plain tuple of strings and numbers. The garbage collector stops tracking such
a tuple after one pass; it would visit an object, and all that the object holds, in every full collection.
"""

from __future__ import annotations

import weakref
from sys import getsizeof
from typing import TYPE_CHECKING

from turngate._errors import CursorExpired
from turngate._events import RunComplete, Waiters

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Sequence
    from typing import Self

    from turngate._events import LoopCheck
    from turngate._handles import Run
    from turngate._prompt import Payload

_FIELDS = len(RunComplete._fields)
_PAYLOAD, _WRITTEN, _REFERENCE, _SIZE = range(-4, 0)
"""Indexes into a kept completion, from its end: what is kept in addition to the RunComplete."""
_EACH = 512
"""Roughly the bytes that a kept completion takes in addition to its text, its error and its names."""
_DIGITS = 20
"""Every number of a completion has fewer digits; Python refuses to read a number of thousands of digits."""
_SHORT = 128
"""Names with at most this many characters in all are covered by that estimate."""


class Completions:
    """The completions that can be looked up by run_id, limited in number and in bytes; the oldest go first.

    They are numbered from 1 in the order in which they were published; a cursor is the number of the last
    one read, with the dispatcher's own `name` before it.
    """

    def __init__(self, limit: int, bytes_limit: int, name: str) -> None:
        self.waiters = Waiters()
        self.is_over = False
        """Whether the dispatcher has closed, so that no more will come."""
        self._limit = limit
        self._bytes_limit = bytes_limit
        self._name = name
        self._bytes = 0
        self._kept: dict[str, tuple[object, ...]] = {}
        self._order: list[str] = []
        self._forgotten = 0
        """How many were forgotten; `_order` still begins with the names of the last `_gone` of them."""
        self._gone = 0

    def keep(self, run: Run, complete: RunComplete, *, named: bool) -> None:
        """Keep what the dispatcher remembers of a complete run.

        A run that its caller `named` is likely to be looked up by that name, so its handle is found too, as
        long as a caller holds it.
        """
        payload = hash(run.payload)
        session_id, run_id = complete.session_id, complete.run_id
        pieces = run.pieces
        # What the turn wrote is kept separately only if it returned something else.
        written: object = None if pieces is None else True
        size = _EACH
        if pieces and (joined := "".join(pieces)) != complete.text:
            written = joined
            size += getsizeof(joined)
        if complete.text:
            size += getsizeof(complete.text)
        if complete.error is not None:
            size += getsizeof(complete.error)
        if len(run_id) + len(session_id) > _SHORT:
            size += getsizeof(run_id) + getsizeof(session_id)
        reference = weakref.ref(run) if named else None
        self._kept[run_id] = (*complete, payload, written, reference, size)
        self._order.append(run_id)
        self._bytes += size
        while self._bytes > self._bytes_limit or len(self._kept) > self._limit:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        size = self._kept.pop(self._order[self._gone])[_SIZE]
        assert isinstance(size, int)
        self._bytes -= size
        self._gone += 1
        self._forgotten += 1
        if self._gone > len(self._order) // 2:
            del self._order[: self._gone]
            self._gone = 0

    def find(self, run_id: str) -> RunComplete | None:
        """Return the completion of the run, None if there is none or it is no longer kept."""
        kept = self._kept.get(run_id)
        return None if kept is None else _complete(kept)

    def is_same(self, run_id: str, payload: Payload) -> bool:
        """Return whether a kept run had this payload; the answer is wrong with a chance of 1 in 2**64."""
        return self._kept[run_id][_PAYLOAD] == hash(payload)

    def pieces(self, run_id: str) -> Sequence[str] | None:
        """Return the text that the turn of the run has written; None if it never had a turn."""
        kept = self._kept[run_id]
        written = kept[_WRITTEN]
        if written is None:
            return None
        text = written if isinstance(written, str) else _complete(kept).text
        return (text,) if text else ()

    def handle(self, run_id: str) -> Run | None:
        """Return the handle of a run whose completion is kept, if it was named and is still held."""
        reference: object = self._kept[run_id][_REFERENCE]
        return reference() if isinstance(reference, weakref.ref) else None

    def number_of(self, cursor: str | None) -> int:
        """Return the number of the completion that the cursor was given with, 0 without one."""
        if cursor is None:
            return self._forgotten
        name, _, digits = str(cursor).rpartition(".")
        is_number = digits.isascii() and digits.isdecimal() and len(digits) < _DIGITS
        if name != self._name or not is_number or int(digits) > self._forgotten + len(self._kept):
            raise CursorExpired(f"the cursor {cursor!r:.80} is not one of this dispatcher")
        return int(digits)

    def after(self, number: int) -> tuple[str, RunComplete] | None:
        """Return the completion after this number; None if that was the last."""
        index = number - self._forgotten
        if index < 0:
            raise CursorExpired(f"the completions behind number {number} are no longer all kept")
        if self._gone + index >= len(self._order):
            return None
        return f"{self._name}.{number + 1}", _complete(self._kept[self._order[self._gone + index]])

    def end(self) -> str:
        """Return the cursor of the newest completion, or of the beginning if there is none yet."""
        return f"{self._name}.{self._forgotten + len(self._kept)}"

    async def wait(self, loop: AbstractEventLoop) -> None:
        """Wait for the next completion, or for the close."""
        await self.waiters.wait(loop)

    def wake(self) -> None:
        """Wake the waiting readers: there is a new completion, or nothing more will come."""
        self.waiters.wake()

    def end_all(self) -> None:
        """End the streams: no more completions will come."""
        self.is_over = True
        self.waiters.wake()

    def __contains__(self, run_id: str) -> bool:
        return run_id in self._kept

    def __len__(self) -> int:
        return len(self._kept)


class CompletionStream:
    """The completions that are kept, oldest first, then those to come; see `Dispatcher.completions`.

    An async iterator. A reader that is cancelled while it waits, say by a time-out, loses none.
    """

    def __init__(
        self, loop_check: LoopCheck, completions: Completions, after: str | None, until: str | None
    ) -> None:
        self._loop_check = loop_check
        self._completions = completions
        self.number = completions.number_of(after)
        """The number of the last completion that was read."""
        self._until = None if until is None else completions.number_of(until)
        completions.after(self.number)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[str, RunComplete]:
        loop = self._loop_check.check_loop()
        if self._until is not None and self.number >= self._until:
            raise StopAsyncIteration
        while (found := self._completions.after(self.number)) is None:
            if self._completions.is_over:
                raise StopAsyncIteration
            await self._completions.wait(loop)
        self.number += 1
        return found


def _complete(kept: tuple[object, ...]) -> RunComplete:
    return RunComplete._make(kept[:_FIELDS])
