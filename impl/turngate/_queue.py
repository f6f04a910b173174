"""The queue of a session: runs in the order of their sequences, whatever the order in which they entered."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from turngate._core import RunRecord


class Queue(dict[int, "RunRecord"]):
    """Runs by sequence. To add one and to take the first cost log n, in any order of entry.

    A run that is taken out of the middle leaves its sequence in the heap; the heap is swept as soon as such
    sequences outnumber the runs.
    """

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[int] = []

    def add(self, run: RunRecord) -> None:
        """Put the run where its sequence belongs."""
        self[run.seq] = run
        heappush(self._heap, run.seq)

    def first(self) -> RunRecord:
        """Return the run with the lowest sequence; there must be one."""
        while self._heap[0] not in self:
            heappop(self._heap)
        return self[self._heap[0]]

    def take_first(self) -> RunRecord:
        """Take out the run with the lowest sequence; there must be one."""
        while (run := self.pop(heappop(self._heap), None)) is None:
            pass  # it was taken out of the middle
        return run

    def take(self, run: RunRecord) -> None:
        """Take out this run."""
        del self[run.seq]
        if len(self._heap) > 2 * len(self):
            self._heap = sorted(self)  # which is a heap

    def take_all(self) -> list[RunRecord]:
        """Take out every run, first in line first."""
        runs = self.in_order()
        self.clear()
        self._heap.clear()
        return runs

    def in_order(self) -> list[RunRecord]:
        """Return the runs, first in line first."""
        return [self[seq] for seq in sorted(self)]
