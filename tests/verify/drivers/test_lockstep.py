"""The real dispatcher and the mechanism, step by step."""

from __future__ import annotations

from typing import Any

import pytest

from turngate import Dispatcher, Run
from turngate._core import SessionCore
from turngate._journal import JournaledCore
from turngate._queue import Queue
from turngate_model import Property
from turngate_model.checker import Bounds
from turngate_verify.drivers.lockstep import DECLARED, compare


@pytest.mark.requirement("REFINES", "DECLARED_MOVE")
def test_every_step_of_the_mechanism_is_a_step_of_the_dispatcher() -> None:
    result = compare(Bounds(prompts=2, cancels=1))
    assert result.violation is None, (result.path, result.violation)
    assert (result.states, result.steps) == (190, 1_282)


def test_every_declared_move_is_seen_on_the_dispatcher_and_no_other() -> None:
    result = compare(Bounds(prompts=2, cancels=0))
    assert result.moves == DECLARED
    assert result.unseen == frozenset()


def with_core(core: type[JournaledCore]) -> type[Dispatcher]:
    """Return a dispatcher that decides by another core."""

    class Sabotaged(Dispatcher):
        def _new_core(self, session_id: str) -> SessionCore:
            return core(session_id, self._message_prefix, self._journal.untold)

    return Sabotaged


class InOrderOfEntry(Queue):
    def first(self) -> Run:
        return next(iter(self.values()))

    def take_first(self) -> Run:
        return self.pop(next(iter(self)))

    def in_order(self) -> list[Run]:
        return [*self.values()]


class QueuesInOrderOfEntry(JournaledCore):
    def _enqueue(self, run: Run) -> None:
        queue, self.queue = self.queue, InOrderOfEntry()
        for each in (*queue.in_order(), run):
            self.queue.add(each)


class NeverMarks(JournaledCore):
    def _covers(self, run: Run) -> bool:
        return run.covered


class Accepts(Dispatcher):
    """Makes a new run of a known run_id."""

    async def accept(self, *args: Any, **options: Any) -> Run:
        self._runs.pop(str(options["run_id"]), None)
        return await super().accept(*args, **options)


@pytest.mark.parametrize(
    ("make", "broken"),
    [
        (with_core(QueuesInOrderOfEntry), {Property.FIFO, Property.REFINES}),
        (with_core(NeverMarks), {Property.FULL_COVERAGE, Property.REFINES}),
        (Accepts, {Property.EXACTLY_ONE_COMPLETE}),
    ],
    ids=["order of entry", "no mark", "reused id"],
)
def test_a_dispatcher_that_differs_is_found(make: type[Dispatcher], broken: set[Property]) -> None:
    result = compare(Bounds(prompts=3, cancels=1) if make is not Accepts else Bounds(2, 1), make=make)
    assert result.violation is not None
    assert result.violation.property in broken
    assert 1 <= len(result.path) <= 8
