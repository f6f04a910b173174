"""Text in rows of a terminal: words stay whole, and no character is wider than the place that it gets."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

from wcwidth import iter_graphemes, wcswidth, wcwidth

_CLOSES = frozenset({"Pe", "Pf", "Po"})
"""Categories of characters that stay in the row of what comes before them."""
_OPENS = frozenset({"Ps", "Pi"})
"""Categories of characters that stay in the row of what comes after them."""


def wrap(line: str, columns: int) -> list[str]:
    """Return a line in rows that fit, in order and with nothing left out.

    Spaces at the end of a row may hang over; `row.rstrip(" ")` always fits. A word that is too long for any
    row begins a row of its own and is broken where the row is full.
    """
    rows: list[str] = []
    row, used = "", 0
    for piece in _pieces(line):
        needed = cells(piece.rstrip(" "))
        if row and used + needed > columns:
            rows.append(row)
            row, used = "", 0
        if needed <= columns:
            row += piece
            used += cells(piece)
            continue
        for character in iter_graphemes(piece):
            width = cells(character)
            if row and character != " " and used + width > columns:
                rows.append(row)
                row, used = "", 0
            row += character
            used += width
    return [*rows, row]


def cells(text: str) -> int:
    """Return how many columns a text takes, at the most: terminals differ about joined emoji."""
    return sum(
        max(wcswidth(character), sum(max(wcwidth(each), 0) for each in character), 0)
        for character in iter_graphemes(text)
    )


def _pieces(line: str) -> Iterator[str]:
    """Yield what is not broken: words with the spaces behind them, and wide characters one by one."""
    piece, before = "", ""
    for character in iter_graphemes(line):
        if piece and _may_break(before, character):
            yield piece
            piece = ""
        piece += character
        before = character
    if piece:
        yield piece


def _may_break(before: str, after: str) -> bool:
    if after == " ":
        return False
    if before == " ":
        return True
    if cells(before) < 2 and cells(after) < 2:
        return False
    return unicodedata.category(after[0]) not in _CLOSES and unicodedata.category(before[0]) not in _OPENS
