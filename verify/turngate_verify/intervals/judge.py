"""Judges a history of which only intervals are known.

A history holds if some order within the intervals breaks nothing and, if the history is whole, leaves
nothing owed. It is violated if no order does, and unknown if the search has found none within its limit.
Sessions are judged apart, and each in segments: between two moments at which nothing of it is in flight.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf

from turngate_model.properties import Property, Violation
from turngate_verify.intervals.lines import History, Line, read
from turngate_verify.intervals.order import (
    Found,
    Item,
    Verdict,
    due,
    middle,
    nothing_owed,
    plainest,
    search,
)
from turngate_verify.intervals.session import SessionState, known_of
from turngate_verify.intervals.tighten import tightened

LIMIT = 200_000
"""The most configurations of one segment."""
TELLING = 5_000
"""The most configurations that a plainer explanation may cost."""


@dataclass
class Breach:
    """What no order explains, in the smallest part of the history that shows it."""

    session: str
    broken: Property
    what: str
    possible: tuple[Property, ...] = ()
    """Every property that explains the breach alone: if it were not demanded, nothing would be broken."""
    history: list[Item] = field(default_factory=list)
    """The items of that part, in the order that gets furthest; the last is the one that breaks it."""
    left: list[Item] = field(default_factory=list)
    """The items that come after it, or have no place in that order."""

    @property
    def where(self) -> str:
        """The line that breaks it."""
        line: Line = (self.history or self.left)[-1].what
        return line.where


@dataclass
class JudgedHistory:
    """The result of judging a history."""

    verdict: Verdict
    events: int = 0
    runs: int = 0
    whole: bool = False
    breaches: list[Breach] = field(default_factory=list)
    undecided: list[str] = field(default_factory=list)
    """The sessions for which the search came to its limit."""
    cannot_show: list[str] = field(default_factory=list)
    """What the intervals are too wide to show."""
    segments: int = 0
    visited: int = 0
    """How many configurations were visited."""
    witness: dict[str, list[str]] = field(default_factory=dict)
    """For each session the lines in an order that explains them."""


def judge_files(
    files: Iterable[tuple[str, Iterable[str | bytes]]],
    *,
    limit: int = LIMIT,
    shrink: bool = True,
    tell: bool = True,
) -> JudgedHistory:
    """Judge the lines of several files, each with its name. Raise BadHistory for a line that is not one."""
    return judge(read(files), limit=limit, shrink=shrink, tell=tell)


def judge(history: History, *, limit: int = LIMIT, shrink: bool = True, tell: bool = True) -> JudgedHistory:
    """Judge a history; keep the first breach of each session.

    Without `tell`, a breach says what is broken in the order that gets furthest, and no more: that is quick.
    """
    result = JudgedHistory("holds", history.events, history.runs, history.whole)
    for session, items in history.sessions.items():
        _judge_session(session, items, result, limit=limit, shrink=shrink, tell=tell)
        result.cannot_show += _cannot_show(session, items)
    if result.breaches:
        result.verdict = "violated"
    elif result.undecided or not history.runs:
        result.verdict = "unknown"
    return result


def _judge_session(
    session: str, items: Sequence[Item], result: JudgedHistory, *, limit: int, shrink: bool, tell: bool
) -> None:
    parts = list(segments(items))
    over: frozenset[str] = frozenset()
    for nth, part in enumerate(parts):
        whole = result.whole or nth + 1 < len(parts)
        found = decided(part, over, whole=whole, limit=limit)
        result.segments += 1
        result.visited += found.visited
        if found.verdict == "violated":
            result.breaches.append(
                _breach(session, part, over, found, whole=whole, limit=limit, shrink=shrink)
                if tell
                else Breach(session, *_first(found))
            )
            return
        if found.verdict == "unknown":
            result.undecided.append(session)
            return
        result.witness.setdefault(session, []).extend(part[each].what.where for each in found.order)
        again = (
            {item.what.run for later in parts[nth + 1 :] for item in later} if nth + 1 < len(parts) else set()
        )
        over = frozenset(
            item.what.run for done in (part,) for item in done if item.what.run in again
        ) | frozenset(run for run in over if run in again)


def segments(items: Sequence[Item]) -> Iterator[list[Item]]:
    """Cut a session where no interval is open, every run is complete and no runner works.

    There every order agrees.
    """
    part: list[Item] = []
    until, in_flight, working = -inf, set[str](), set[str]()
    ends = {item.what.run for item in items if item.what.kind == "ended"}
    for item in items:
        if part and item.lo > until and not in_flight and not working:
            yield part
            part = []
        part.append(item)
        until = max(until, item.hi)
        line: Line = item.what
        if line.kind == "accept":
            in_flight.add(line.run)
            working.update({line.run} & ends)
        elif line.kind == "ended":
            working.discard(line.run)
        elif line.kind == "complete" and not item.optional:
            in_flight.discard(line.run)
    if part:
        yield part


def decided(items: Sequence[Item], over: frozenset[str], *, whole: bool, limit: int) -> Found[SessionState]:
    """Search with every shortcut."""
    narrow = tightened(items)
    if any(item.lo > item.hi and not item.optional for item in narrow):
        plain = plainly(items, over, whole=whole, limit=limit)
        return (
            plain if plain.verdict != "unknown" else Found("violated", broken=plain.broken, order=plain.order)
        )
    places = sorted(range(len(items)), key=lambda nth: narrow[nth].lo)
    where = {nth: place for place, nth in enumerate(places)}
    moved = [
        narrow[nth]._replace(after=frozenset(where[each] for each in narrow[nth].after)) for nth in places
    ]
    start = SessionState(known_of(moved, over, look_ahead=True))
    owed = SessionState.owed if whole else nothing_owed
    found = search(moved, [start], owed=owed, limit=limit, first=due)
    found.order = [places[nth] for nth in found.order]
    found.culprit = None if found.culprit is None else places[found.culprit]
    return found


def plainly(
    items: Sequence[Item],
    over: frozenset[str],
    *,
    whole: bool,
    limit: int,
    forgiven: Property | None = None,
) -> Found[SessionState]:
    """Search without shortcuts, the likeliest order first: explains a breach, and checks the shortcuts."""
    start = SessionState(known_of(items, over, look_ahead=False), forgiven)
    owed = SessionState.owed if whole else nothing_owed
    return search(items, [start], owed=owed, limit=limit, first=middle)


def _breach(
    session: str,
    part: list[Item],
    over: frozenset[str],
    found: Found[SessionState],
    *,
    whole: bool,
    limit: int,
    shrink: bool,
) -> Breach:
    plain = plainly(part, over, whole=whole, limit=TELLING)
    if plain.verdict == "violated":
        found = plain
    assert found.broken is not None or part
    if shrink:
        part, found = _smallest(part, over, found, whole=whole, limit=limit)
    broken = _first(found)
    order = [part[nth] for nth in found.order]
    if found.culprit is not None:
        order.append(part[found.culprit])
    possible = plainest(
        each
        for each in Property
        if plainly(part, over, whole=whole, limit=TELLING, forgiven=each).verdict == "holds"
    )
    left = [item for item in part if item not in order]
    return Breach(session, broken.property, broken.what, possible, order, left)


def _first(found: Found[SessionState]) -> Violation:
    """Return what is broken first in the order that gets furthest."""
    return found.broken or Violation(Property.DECLARED_MOVE, "no order is possible within these intervals")


def _smallest(
    items: list[Item], over: frozenset[str], found: Found[SessionState], *, whole: bool, limit: int
) -> tuple[list[Item], Found[SessionState]]:
    """Leave out whole runs, then cancels and clears, as long as the same property stays broken."""

    def kept(fewer: list[Item]) -> bool:
        nonlocal items, found
        if not fewer or len(fewer) == len(items):
            return False
        if decided(fewer, over, whole=whole, limit=min(limit, TELLING)).verdict != "violated":
            return False
        again = plainly(fewer, over, whole=whole, limit=TELLING)
        same = again.verdict == "violated" and _property(again) is _property(found)
        if same:
            items, found = fewer, again
        return same

    runs = list(dict.fromkeys(item.what.run for item in items if item.what.run))
    size = max(1, len(runs) // 2)
    while runs:
        for first in range(0, len(runs), size):
            gone = set(runs[first : first + size])
            kept(
                [
                    item
                    for item in items
                    if not gone.intersection((item.what.run, item.what.into, item.what.before))
                ]
            )
        runs = [run for run in runs if any(item.what.run == run for item in items)]
        if size == 1:
            break
        size = max(1, size // 2)
    for item in [item for item in items if not item.what.run]:
        kept([each for each in items if each is not item])
    return items, found


def _property(found: Found[SessionState]) -> Property | None:
    return None if found.broken is None else found.broken.property


def _cannot_show(session: str, items: Sequence[Item]) -> list[str]:
    """Say how many cancels may have been ignored or late, because they overlap the end of a run."""
    accepts = {item.what.run: item for item in items if item.what.kind == "accept"}
    ends = [item for item in items if item.what.kind == "complete" and not item.what.cancelled]
    open_ = 0
    for cancel in (item for item in items if item.what.kind == "cancel"):
        for end in ends:
            accept = accepts.get(end.what.run)
            if accept and accept.lo <= cancel.hi and cancel.lo <= end.hi and cancel.hi >= end.lo:
                open_ += 1
                break
    if not open_:
        return []
    cancels = "1 cancel overlaps" if open_ == 1 else f"{open_} cancels overlap"
    return [f"session {session}: {cancels} the end of a run: ignored or too late, that cannot be seen"]
