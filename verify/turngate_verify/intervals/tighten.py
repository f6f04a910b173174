"""Narrows intervals by what every order has in common that the abstract session accepts.

Each rule follows from a property, so an order that is lost here would have been refused anyway. The search
does not need this to be right; it only tries fewer impossible orders.
"""

from __future__ import annotations

from collections.abc import Sequence

from turngate_verify.intervals.lines import Line
from turngate_verify.intervals.order import Item
from turngate_verify.intervals.session import changes_the_line

ROUNDS = 8
_WITHIN_A_RUN = (
    ("accept", "enter"),
    ("accept", "active"),
    ("enter", "active"),
    ("accept", "complete"),
    ("enter", "complete"),
    ("active", "complete"),
    ("active", "ended"),
    ("accept", "ended"),
)
"""The order of events in the life of a run."""


def tightened(items: Sequence[Item], rounds: int = ROUNDS) -> list[Item]:
    """Return the items in their order, with narrower intervals, and with what must come before each."""
    return _Tightening(items).run(rounds)


class _Tightening:
    def __init__(self, items: Sequence[Item]) -> None:
        self._items = items
        self._lo = [item.lo for item in items]
        self._hi = [item.hi for item in items]
        self._edges: set[tuple[int, int]] = set()
        self._one: dict[str, dict[str, int]] = {}
        """For each run the item of each kind, if there is one of it and it certainly happened."""
        self._entered: set[str] = set()
        """The runs with an enter line of their own."""
        often: set[tuple[str, str]] = set()
        for nth, item in enumerate(items):
            line: Line = item.what
            if not line.run or item.optional:
                continue
            kind = _role(line)
            if line.kind == "enter":
                self._entered.add(line.run)
            known = self._one.setdefault(line.run, {})
            if kind in known:
                often.add((line.run, kind))
            known[kind] = nth
        for run, kind in often:
            del self._one[run][kind]
        self._over: dict[str, list[int]] = {}
        """For each turn, by its lead, what must happen before the next one begins."""
        self._life_of_runs()
        self._turns = sorted(
            (run for run in self._over if "active" in self._one[run]),
            key=lambda run: self._lo[self._active(run)],
        )
        reordered = changes_the_line(item.what for item in items)
        self._in_line = sorted(
            (
                run
                for run, at in self._one.items()
                if run not in self._entered and "accept" in at and "active" in at and not reordered
            ),
            key=lambda run: self._lo[self._active(run)],
        )
        self._cancels = [
            nth
            for nth, item in enumerate(items)
            if item.what.kind == "cancel" and item.what.runs is None and not item.optional
        ]
        self._spared = [
            (at["accept"], at["complete"])
            for at in self._one.values()
            if "accept" in at and "complete" in at and not items[at["complete"]].what.cancelled
        ]

    def _active(self, run: str) -> int:
        return self._one[run]["active"]

    def run(self, rounds: int) -> list[Item]:
        self._propagate()
        for _ in range(rounds):
            known = len(self._edges)
            self._exclude_each_other()
            self._first_come()
            self._cover()
            if not self._propagate() and len(self._edges) == known:
                break
        after: list[set[int]] = [set() for _ in self._items]
        for first, then in self._edges:
            if not self._hi[first] < self._lo[then]:
                after[then].add(first)
        return [
            item._replace(lo=self._lo[nth], hi=self._hi[nth], after=item.after | frozenset(after[nth]))
            for nth, item in enumerate(self._items)
        ]

    def _edge(self, first: int | None, then: int | None) -> None:
        if first is not None and then is not None:
            self._edges.add((first, then))

    def _life_of_runs(self) -> None:
        """Note that a run is accepted, enters, becomes active, ends and is complete, in this order."""
        for run, at in self._one.items():
            done = at.get("complete")
            line = None if done is None else self._items[done].what
            fine = line is not None and not line.cancelled and line.error is None
            for first, then in _WITHIN_A_RUN:
                self._edge(at.get(first), at.get(then))
            if fine:
                self._edge(at.get("ended"), done)
            if "active" not in at:
                continue
            lead = self._items[at["active"]].what.into or run
            own = self._one.get(lead, {})
            if lead != run:
                self._edge(own.get("active"), at["active"])
                self._edge(at["active"], own.get("ended"))
                self._edge(at["active"], own.get("complete"))
                if fine:
                    self._edge(own.get("ended"), done)
            if lead in self._one:
                over = self._over.setdefault(lead, [])
                over += [each for each in (done, at.get("ended")) if each is not None]

    def _exclude_each_other(self) -> None:
        """ONE_TURN and LAST_WORD: of two turns, one is over before the other begins."""
        lo, hi = self._lo, self._hi
        for nth, first in enumerate(self._turns):
            if not self._over[first]:
                continue
            begins, over = self._active(first), max(hi[each] for each in self._over[first])
            for second in self._turns[nth + 1 :]:
                then = self._active(second)
                if lo[then] > over:
                    break
                if any(hi[begins] < lo[each] for each in self._over[second]):
                    self._edges.update((each, then) for each in self._over[first])
                elif any(hi[then] < lo[each] for each in self._over[first]):
                    self._edges.update((each, begins) for each in self._over[second])

    def _first_come(self) -> None:
        """FIFO: runs that enter with their accept become active in the order of their accepts."""
        lo, hi = self._lo, self._hi
        for nth, first in enumerate(self._in_line):
            begins, came = self._active(first), self._one[first]["accept"]
            for second in self._in_line[nth + 1 :]:
                then, next_ = self._active(second), self._one[second]["accept"]
                if lo[then] > hi[begins] and lo[next_] > hi[came]:
                    if lo[next_] > hi[begins]:
                        break
                    continue
                if hi[begins] < lo[then] or hi[came] < lo[next_]:
                    self._edges.update(((came, next_), (begins, then)))
                elif hi[then] < lo[begins] or hi[next_] < lo[came]:
                    self._edges.update(((next_, came), (then, begins)))

    def _cover(self) -> None:
        """FULL_COVERAGE: no cancel lies between accept and RunComplete of a run that was not cancelled."""
        lo, hi = self._lo, self._hi
        for cancel in self._cancels:
            for accept, complete in self._spared:
                if hi[accept] < lo[cancel]:
                    self._edges.add((complete, cancel))
                elif hi[cancel] < lo[complete]:
                    self._edges.add((cancel, accept))

    def _propagate(self) -> bool:
        """Move the beginnings and the ends of what comes before and after; return whether any has moved."""
        lo, hi = self._lo, self._hi
        moved, again = False, True
        while again:
            again = False
            for first, then in self._edges:
                if lo[then] < lo[first]:
                    lo[then], again = lo[first], True
                if hi[first] > hi[then]:
                    hi[first], again = hi[then], True
            moved |= again
        return moved


def _role(line: Line) -> str:
    return "active" if line.activates else line.kind
