"""The decisions of all processes in the order of the ledger, as lines of a recorded history."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from turngate._errors import CursorExpired, DispatcherClosed
from turngate.durable._ledger import LedgerUnavailable
from turngate.durable.feed._completions import LedgerCursor, check_cursor

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from turngate.durable._ledger import HistoryStep, Ledger, Place
    from turngate.durable.feed._feed import News

_PAGE: Final = 1_000
FOLLOWING: Final = 0.25
"""Seconds between two looks for what other processes have decided."""


async def history_pages(
    ledger: Ledger, news: News, ready: Callable[[], Awaitable[None]], after: str | None, *, follow: bool
) -> AsyncIterator[list[dict[str, Any]]]:
    """Yield the lines that the ledger keeps, page by page; with `follow`, those to come until it closes."""
    cursor = None if after is None else LedgerCursor.parse(after)
    await ready()
    if cursor is not None:
        await check_cursor(ledger, cursor)
    place: Place = (-1, -1) if cursor is None else cursor.at
    begun, latest = cursor is not None, 0.0
    while not (follow and news.closed):
        heard = news.count
        try:
            await ready()
            purged, _, steps = await ledger.history_after(place, _PAGE)
            epoch = await ledger.epoch()
        except (DispatcherClosed, LedgerUnavailable):
            if not (follow and news.stopping):
                raise
            return
        if begun and place < purged:
            raise CursorExpired("what comes behind the cursor is no longer all kept")
        lines = []
        for step in steps:
            latest = max(latest, step.at)
            lines += _lines(step, latest, epoch)
            place = step.position, step.ordinal
        begun = begun or bool(steps)
        if lines:
            yield lines
        elif not follow:
            return
        else:
            await news.wait(heard, FOLLOWING)


def _lines(step: HistoryStep, at: float, epoch: str) -> list[dict[str, Any]]:
    """Return the lines of a step, each with its time; the last one has the cursor after the step."""
    lines = [{**entry, "at": at} for entry in step.entries]
    if lines:
        lines[-1]["cursor"] = str(LedgerCursor(epoch, (step.position, step.ordinal)))
    return lines
