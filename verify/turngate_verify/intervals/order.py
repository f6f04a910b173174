"""The search for an order of items, within their intervals, that a state accepts.

This is Wing and Gong's search with Lowe's memo. An item happens at one moment of its interval. Item x
comes before item y in every order if x ends before y begins, or if y names x in ``after``. A
configuration is the set of items that are placed and the state that they have led to. No configuration is
visited twice.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

from turngate_model.properties import Property, Violation

Verdict: TypeAlias = Literal["holds", "violated", "unknown"]


class State(Protocol):
    """What the items lead to, one after the other."""

    def copy(self) -> Any:
        """Return a copy. What happens to the one changes nothing in the other."""
        ...

    def key(self) -> Hashable:
        """Return a value that is equal for two states if they accept the same items from here on."""
        ...

    def take(self, what: Any, /) -> list[Violation]:
        """Take one item in; return what it breaks."""
        ...


S = TypeVar("S", bound=State)


class Item(NamedTuple):
    """Something that happened at one moment between ``lo`` and ``hi``."""

    lo: float
    hi: float
    what: Any
    optional: bool = False
    """Whether it may never have happened: a call that did not return."""
    after: frozenset[int] = frozenset()
    """The items, by number, that come before this one whatever the intervals say."""

    @property
    def middle(self) -> float:
        """The middle of the interval, or its beginning if it has no end."""
        return self.lo if self.hi == inf else (self.lo + self.hi) / 2


def due(item: Item) -> float:
    """Try first what must have happened first, which finds an order soonest."""
    return item.hi


def middle(item: Item) -> float:
    """Try first what probably happened first, which finds the order that is easiest to explain."""
    return item.middle


def nothing_owed(_: Any) -> list[Violation]:
    """Owe nothing: for a history that may go on."""
    return []


def plainest(possible: Iterable[Property]) -> tuple[Property, ...]:
    """Return the properties that may be broken, without DECLARED_MOVE if there is a plainer one."""
    found = tuple(possible)
    return tuple(each for each in found if each is not Property.DECLARED_MOVE) or found


@dataclass
class Found(Generic[S]):
    """The result of a search."""

    verdict: Verdict
    order: list[int] = field(default_factory=list)
    """An order that breaks nothing; if there is none, the one that gets furthest before it does."""
    broken: Violation | None = None
    """What the next item breaks in that order, or the end."""
    culprit: int | None = None
    """The item that breaks it; None if the end does."""
    states: list[S] = field(default_factory=list)
    """The state in which the order ends; with ``all_ends``, the states in which any order may end."""
    visited: int = 0
    """How many configurations were visited."""


class _Placed(NamedTuple):
    """An order so far, as a list from its last item back."""

    item: int
    before: _Placed | None


class _Frame(NamedTuple):
    """A configuration: every item before ``base`` is placed, and those after it whose bit is set."""

    base: int
    mask: int
    state: Any
    order: _Placed | None
    length: int
    certain: int
    left: list[int]
    """The items that may come next and have not been tried."""


def search(
    items: Sequence[Item],
    starts: Sequence[S],
    *,
    owed: Callable[[S], Sequence[Violation]] = nothing_owed,
    limit: int = 1_000_000,
    all_ends: bool = False,
    first: Callable[[Item], float] = due,
) -> Found[S]:
    """Find an order that breaks nothing and leaves nothing owed. ``items`` are sorted by ``lo``.

    With ``all_ends``, find every state in which such an order may end. Without
    an order the verdict is violated, or unknown if there are more than ``limit``
    configurations.
    """
    return _Search(items, owed, limit, all_ends, first).run(starts)


class _Search(Generic[S]):
    def __init__(
        self,
        items: Sequence[Item],
        owed: Callable[[S], Sequence[Violation]],
        limit: int,
        all_ends: bool,
        first: Callable[[Item], float],
    ) -> None:
        self._items = items
        self._owed = owed
        self._limit = limit
        self._all_ends = all_ends
        self._rank = [-first(item) for item in items]  # of a stack the last is tried first
        self._certain = sum(not item.optional for item in items)
        self._seen: set[Hashable] = set()
        self._ends: dict[Hashable, tuple[S, _Placed | None]] = {}
        self._stack: list[_Frame] = []
        self._furthest = (-1, -inf)
        self._found: Found[S] = Found("violated")

    def run(self, starts: Sequence[S]) -> Found[S]:
        found = self._found
        for start in starts:
            if self._visit(0, 0, start.copy(), None, 0, 0):
                break
            if self._walk():
                break
        found.visited = len(self._seen)
        if self._ends and found.verdict != "unknown":
            found.verdict, found.broken, found.culprit = "holds", None, None
            found.states = [state for state, _ in self._ends.values()]
            found.order = _unrolled(next(iter(self._ends.values()))[1])
        return found

    def _walk(self) -> bool:
        """Try everything that is on the stack; return whether the search has ended."""
        items, stack = self._items, self._stack
        while stack:
            frame = stack[-1]
            if not frame.left:
                stack.pop()
                continue
            if len(self._seen) > self._limit:
                self._found.verdict = "unknown"
                return True
            nth = frame.left.pop()
            state = (
                frame.state.copy() if frame.left else frame.state
            )  # the last one may have the state itself
            if broken := state.take(items[nth].what):
                self._note(frame.length, frame.order, broken[0], nth)
                continue
            mask = frame.mask | 1 << (nth - frame.base)
            certain = frame.certain + (not items[nth].optional)
            order = _Placed(nth, frame.order)
            if self._visit(frame.base, mask, state, order, frame.length + 1, certain):
                return True
        return False

    def _visit(
        self, base: int, mask: int, state: S, order: _Placed | None, length: int, certain: int
    ) -> bool:
        """Visit a configuration; return whether the search has ended."""
        while mask & 1:
            mask >>= 1
            base += 1
        key = (base, mask, state.key())
        if key in self._seen:
            return False
        self._seen.add(key)
        if certain == self._certain:
            if broken := self._owed(state):
                self._note(length + 1, order, broken[0], None)
            elif self._all_ends:
                self._ends.setdefault(state.key(), (state.copy(), order))
            else:
                found = self._found
                found.verdict, found.order, found.states = "holds", _unrolled(order), [state]
                found.broken = found.culprit = None
                return True
        left = self._candidates(base, mask)
        self._stack.append(_Frame(base, mask, state, order, length, certain, left))
        return False

    def _candidates(self, base: int, mask: int) -> list[int]:
        """Return the items that may come next: no item that is left must come before them."""
        items, able, ends = self._items, list[int](), inf
        last = max(base, base + mask.bit_length()) - 1
        latest = items[last].lo if last >= 0 else -inf  # no item that is placed begins later
        for nth in range(base, len(items)):
            item = items[nth]
            if item.lo > ends:
                break
            if not mask >> (nth - base) & 1:
                able.append(nth)
                if item.hi < ends and not item.optional:
                    ends = item.hi
        able = [
            nth
            for nth in able
            if items[nth].lo <= ends
            and items[nth].hi >= latest
            and all(each < base or mask >> (each - base) & 1 for each in items[nth].after)
        ]
        able.sort(key=self._rank.__getitem__)
        return able

    def _note(self, length: int, order: _Placed | None, broken: Violation, culprit: int | None) -> None:
        """Keep the order that gets furthest; of two, the one whose next item is due sooner."""
        due_at = -inf if culprit is None else self._items[culprit].hi
        if (length, -due_at) > self._furthest:
            self._furthest = (length, -due_at)
            found = self._found
            found.order, found.broken, found.culprit = _unrolled(order), broken, culprit


def _unrolled(order: _Placed | None) -> list[int]:
    items: list[int] = []
    while order is not None:
        items.append(order.item)
        order = order.before
    return items[::-1]
