"""The queue of a session: runs in line, by their ranks, whatever the order in which they entered."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from turngate._core import RunRecord


class Queue:
    """Queued runs by rank. Adding a run and taking the first free one cost log n, in any order of entry.

    Held runs are kept aside: a handoff and a fold pass them by. A run that is taken out of the middle leaves
    its rank in the heap; the heap is swept as soon as such ranks outnumber the runs.
    """

    __slots__ = ("_free", "_heap", "_held")

    def __init__(self) -> None:
        self._free: dict[int, RunRecord] = {}
        self._held: dict[int, RunRecord] = {}
        self._heap: list[int] = []

    def __len__(self) -> int:
        return len(self._free) + len(self._held)

    def has_free(self) -> bool:
        """Say whether a run waits that is not held."""
        return bool(self._free)

    def add(self, run: RunRecord) -> None:
        """Put the run where its rank belongs."""
        if run.held:
            self._held[run.rank] = run
        else:
            self._free[run.rank] = run
            heappush(self._heap, run.rank)

    def first(self) -> RunRecord:
        """Return the first run that is not held; there must be one."""
        while self._heap[0] not in self._free:
            heappop(self._heap)
        return self._free[self._heap[0]]

    def take_first(self) -> RunRecord:
        """Take out the first run that is not held; there must be one."""
        while (run := self._free.pop(heappop(self._heap), None)) is None:
            pass  # it was taken out of the middle
        return run

    def take(self, run: RunRecord) -> None:
        """Take out this run."""
        del (self._held if run.held else self._free)[run.rank]
        if len(self._heap) > 2 * len(self._free):
            self._heap = sorted(self._free)  # which is a heap

    def take_all(self) -> list[RunRecord]:
        """Take out every run, first in line first."""
        runs = self.in_order()
        self.refill(())
        return runs

    def refill(self, runs: Iterable[RunRecord]) -> None:
        """Hold these runs and no others: their ranks have changed."""
        self._free.clear()
        self._held.clear()
        self._heap.clear()
        for run in runs:
            self.add(run)

    def in_order(self) -> list[RunRecord]:
        """Return the runs, held ones included, first in line first."""
        if not self._held:
            return [self._free[rank] for rank in sorted(self._free)]
        return sorted([*self._free.values(), *self._held.values()], key=lambda run: run.rank)

    def free_in_order(self) -> list[RunRecord]:
        """Return the runs that are not held, first in line first."""
        return [self._free[rank] for rank in sorted(self._free)]
