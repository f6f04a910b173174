"""The completions of all processes in the order of the ledger, and the cursors that name a place in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from turngate._errors import CursorExpired, DispatcherClosed
from turngate.durable._ledger import LedgerUnavailable, ReadPoint
from turngate.durable.feed._delivery import BEHIND

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Self

    from turngate._events import RunComplete
    from turngate.durable._ledger import CompletionRecord, Ledger, Place
    from turngate.durable.feed._feed import News

_PAGE: Final = 500
_DIGITS: Final = 19
"""Every number in a cursor has fewer digits."""


class LedgerCursor(NamedTuple):
    """A place among the completions of an epoch, with later ones that were passed already."""

    epoch: str
    at: Place
    passed: ReadPoint | None = None

    @classmethod
    def parse(cls, text: str) -> LedgerCursor:
        """Parse a cursor; raise CursorExpired if the text cannot be one of a ledger."""
        epoch, *digits = str(text).split(".")
        if not all(each.isascii() and each.isdecimal() and len(each) < _DIGITS for each in digits):
            digits = []
        match [*map(int, digits)]:
            case [position, ordinal]:
                return cls(epoch, (position, min(ordinal, BEHIND)))
            case [position, ordinal, until, *pending]:
                moment = ReadPoint(position + 1, until, frozenset(pending))
                return cls(epoch, (position, min(ordinal, BEHIND)), moment)
        raise CursorExpired(f"the cursor {text!r:.80} is not one of a ledger")

    def __str__(self) -> str:
        place = f"{self.epoch}.{self.at[0]}.{self.at[1]}"
        if self.passed is None or self.passed.until <= self.at[0] + 1:
            return place
        return ".".join([place, str(self.passed.until), *map(str, sorted(self.passed.pending))])

    def reach(self) -> int:
        """Return the last position that the cursor includes."""
        return self.at[0] if self.passed is None else max(self.at[0], self.passed.until - 1)


class LedgerCompletions:
    """The completions that the ledger keeps, in order, then those to come; see `completions`.

    An async iterator. Cancelling a task that waits for the next one, for instance by a time-out, loses none.
    """

    def __init__(
        self,
        ledger: Ledger,
        news: News,
        ready: Callable[[], Awaitable[None]],
        after: str | None,
        until: str | None,
    ) -> None:
        self._ledger = ledger
        self._news = news
        self._ready = ready
        first = None if after is None else LedgerCursor.parse(after)
        last = None if until is None else LedgerCursor.parse(until)
        self._unchecked = [cursor for cursor in (first, last) if cursor is not None]
        """Cursors that may be of another ledger, or of a part of this one that is lost."""
        self._begun = first is not None
        self._at: Place = (-1, -1) if first is None else first.at
        self._passed = None if first is None else first.passed
        """Completions that were already there when the first cursor was taken."""
        self._until = None if last is None else last.at
        self._epoch = ""
        self._page: list[CompletionRecord] = []
        """Completions that have been read; the next one is the last."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[str, RunComplete]:
        if self._unchecked and not self._news.closed:
            await self._check_cursors()
        while not self._is_over():
            if not self._page:
                await self._turn_page()
                continue
            position, ordinal, complete = self._page.pop()
            self._at, self._begun = (position, ordinal), True
            if self._until is not None and self._at > self._until:
                break
            if self._passed is None or not self._passed.has(position):
                return str(LedgerCursor(self._epoch, self._at, self._passed)), complete
        raise StopAsyncIteration

    def _is_over(self) -> bool:
        if self._until is not None and self._at >= self._until:
            return True
        return self._news.closed and not self._page

    async def _turn_page(self) -> None:
        """Read on; if there is nothing, wait for a while. Ends when the dispatcher closes."""
        try:
            await self._read_page()
        except (DispatcherClosed, LedgerUnavailable):
            if not self._news.stopping:
                raise
            while not self._news.closed:
                await self._news.wait(self._news.count)

    async def _read_page(self) -> None:
        await self._ready()
        heard = self._news.count
        purged, horizon, page = await self._ledger.completions_after(self._at, _PAGE)
        if self._begun and self._at < purged:
            raise CursorExpired("what comes behind the cursor is no longer all kept")
        if page:
            self._epoch = await self._ledger.epoch()  # the epoch of the last of them, or a later one
            self._page = page[::-1]
        elif self._until is not None and self._until[0] < horizon:
            self._at = self._until
        else:
            self._begun = True
            self._at = max(self._at, (horizon - 1, BEHIND))
            await self._news.wait(heard)

    async def _check_cursors(self) -> None:
        """Raise CursorExpired unless the ledger has reached its cursors, in their epochs."""
        await self._ready()
        while self._unchecked:
            await check_cursor(self._ledger, self._unchecked[-1])
            self._unchecked.pop()


async def check_cursor(ledger: Ledger, cursor: LedgerCursor) -> None:
    """Raise CursorExpired unless the ledger has reached a cursor, in its epoch."""
    end = await ledger.epoch_end(cursor.epoch)
    if end is None:
        raise CursorExpired("the cursor is one of another ledger, or of a part of this one that is lost")
    if cursor.reach() >= end:
        raise CursorExpired("the cursor is beyond the end of the ledger, which was restored since")
