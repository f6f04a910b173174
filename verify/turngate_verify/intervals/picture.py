"""Draws a breach as lines of text: what happened, and when it may have."""

from __future__ import annotations

from math import inf

from turngate_verify.intervals.judge import Breach

WIDTH = 40


def drawn(breach: Breach) -> list[str]:
    """Return one line for each item: where it stands, what it says, and its interval as a bar.

    The items are in the order that gets furthest. An arrow marks the one that breaks it.
    """
    items = [*breach.history, *breach.left]
    times = [time for item in items for time in (item.lo, item.hi) if abs(time) != inf]
    begin, end = min(times, default=0.0), max(times, default=0.0)
    scale = (WIDTH - 1) / (end - begin) if end > begin else 0.0
    where = max(len(item.what.where) for item in items)
    said = max(len(str(item.what)) for item in items)
    lines = []
    for nth, item in enumerate(items):
        first = 0 if item.lo == -inf else round((item.lo - begin) * scale)
        last = WIDTH - 1 if item.hi == inf else round((item.hi - begin) * scale)
        bar = " " * first + "|" + ("-" * (last - first - 1) + "|" if last > first else "")
        if item.hi == inf:
            bar = bar[:-1] + ">"
        mark = "->" if breach.history and nth == len(breach.history) - 1 else "  "
        lines.append(f"{mark} {item.what.where:{where}}  {item.what!s:{said}}  {bar}".rstrip())
    return lines
