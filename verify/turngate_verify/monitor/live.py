"""Follows a recording: reads what comes, has it judged, and tells what is wrong at once."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator

from turngate_verify.monitor.following import Item, LostPlace, Tail
from turngate_verify.monitor.judge import Accusation, Monitor, Remark
from turngate_verify.monitor.window import Window

EVERY = 0.1
"""Seconds between two looks at a file to which nothing was appended."""


def follow(
    tail: Tail,
    monitor: Monitor,
    tell: Callable[[Accusation | Remark], object],
    *,
    window: Window | None = None,
    stopped: Callable[[], bool] = lambda: False,
    tick: Callable[[], object] = lambda: None,
) -> None:
    """Judge what comes until the stream has ended, or until it is stopped.

    ``tell`` is called with everything that is found, as soon as the line is read that shows it. ``tick`` is
    called several times a second. What is held back in a window is judged in the end.
    """
    while not tail.ended and not stopped():
        items = [*tail.poll()]
        _judge(monitor, _in_order(items, window), tell)
        monitor.figures.lag_bytes = tail.behind
        tick()
        if not items and not tail.behind:
            tail.wait(EVERY)
    if window is not None:
        _judge(monitor, window.flush(), tell)
    tail.close()
    tick()


def _in_order(items: Iterable[Item], window: Window | None) -> Iterator[Item]:
    if window is None:
        yield from items
        return
    for item in items:
        yield from window.put(item)
    yield from window.overdue()


def _judge(monitor: Monitor, items: Iterable[Item], tell: Callable[[Accusation | Remark], object]) -> None:
    last = b""
    for item in items:
        if isinstance(item, LostPlace):
            monitor.restart(anew=item.anew)
            tell(Remark(item.number, f"{item.why}: lines may be missing, and every session is unknown now"))
            continue
        for found in monitor.judge(item.text, item.number):
            tell(found)
        last = item.text
    if last and (age := _age_of(last)) is not None:
        monitor.figures.lag_seconds = age


def _age_of(line: bytes) -> float | None:
    """Return how many seconds ago a line was written, by its key ``at``; None if it has none."""
    try:
        at = json.loads(line).get("at")
    except (ValueError, AttributeError, RecursionError):
        return None
    known = isinstance(at, int | float) and not isinstance(at, bool)
    return time.time() - at if known else None
