"""The closed world itself: for each property, a dispatcher that breaks it, and the world that says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from turngate import Covered, Dispatcher, Message, Moved, Run, SessionView, Turn
from turngate._core import Decided, RunRecord, SessionCore, TurnRecord
from turngate_model import Property
from turngate_verify.drivers import sabotage
from turngate_verify.world.expecting import Broken
from turngate_verify.world.world import World


def broken(world: World) -> Property:
    """Return what the world says is broken, at the latest at its end."""

    def come_to_an_end() -> None:
        world.check()
        world.finish()

    with pytest.raises(Broken) as raised:
        come_to_an_end()
    world.abandon()
    return raised.value.violation.property


def turn_with_queue(make: type[Dispatcher], runs: str = "ab") -> World:
    """Return a world in which the first run is active and the others are queued."""
    world = World(make)
    for run in runs:
        world.accept("s", run)
        world.enter(run)
    world.loop.settle()
    return world


def test_a_world_without_a_problem_ends() -> None:
    world = turn_with_queue(Dispatcher, "abc")
    world.runner.players["a"].tell("fold")
    world.cancel_run("b")
    world.wait("c")
    world.ask("t", "d")
    world.cancel("u")
    world.check()
    world.finish()
    assert [complete.run_id for complete in world.monitor.delivered] == ["b", "a", "c", "d"]


def test_a_broken_promise_is_reported_before_an_internal_difference() -> None:
    class Both(sabotage.NoAcceptTracking):
        def queued(self, session_id: str) -> list[Run]:
            return []

    world = turn_with_queue(Both)
    world.accept("s", "c")
    world.cancel("s")
    world.enter("c")
    assert broken(world) is Property.FULL_COVERAGE


def test_only_what_is_claimed_is_waited_for() -> None:
    world = World(sabotage.SilentDrop, claimed=(Property.NO_RESIDUE,))
    for run in "ab":
        world.accept("s", run)
        world.enter(run)
    world.cancel("s")
    world.check()
    world.finish()


def test_an_oracle_that_falls_over_does_not_pass() -> None:
    world = World()
    world.record({"event": "enter", "session": "s", "run": "nobody", "state": "active"})
    with pytest.raises(KeyError):
        world.check()


def test_a_task_that_dies_does_not_pass() -> None:
    class Dies(sabotage.Sabotaged):
        class sessions_class(sabotage.HandlesOfRecords):
            def forget_if_quiet(self, core: SessionCore) -> None:
                raise LookupError("died")

    world = World(Dies, claimed=(Property.FIFO,))
    world.accept("s", "a")
    world.enter("a")
    world.monitor.claimed = frozenset()
    with pytest.raises(AssertionError):
        world.finish()
    world.abandon()


# One for each property.


def poisoned() -> World:
    world = World(sabotage.PendingFlag)
    world.accept("s", "a")
    world.cancel("s")
    world.accept("s", "b")
    world.enter("b")
    return world


def uncovered() -> World:
    world = World(sabotage.NoAcceptTracking)
    world.accept("s", "a")
    world.cancel("s")
    world.enter("a")
    return world


def miscounted() -> World:
    class Boasts(Dispatcher):
        async def cancel(self, session_id: str, *, key: str | None = None) -> Covered:
            return Covered([*(await super().cancel(session_id, key=key)).runs] * 2)

    world = turn_with_queue(Boasts)
    world.cancel("s")
    return world


def told_twice() -> World:
    class Twice(sabotage.Sabotaged):
        class effects_class(sabotage.PublishesAgain):
            def _publish(self, record: RunRecord) -> None:
                super()._publish(record)
                super()._publish(record)

    world = World(Twice)
    world.accept("s", "a")
    world.release("a")
    return world


def told_to_the_wrong_one() -> World:
    class Unhooked(sabotage.Sabotaged):
        class effects_class(sabotage.PublishesAgain):
            def _publish(self, record: RunRecord) -> None:
                self._sessions.runs[record.run_id].on_complete = None
                super()._publish(record)

    world = World(Unhooked)
    world.accept("s", "a", hook=True)
    world.release("a")
    return world


def never_told() -> World:
    class Silent(sabotage.Sabotaged):
        class effects_class(sabotage.PublishesAgain):
            def _publish(self, record: RunRecord) -> None:
                pass

    world = World(Silent)
    world.accept("s", "a")
    world.release("a")
    return world


def two_turns() -> World:
    world = World(sabotage.UnserializedEntry)
    for run in "ab":
        world.accept("s", run)
    for run in "ab":
        world.enter(run)
    world.loop.settle()
    return world


def stranded() -> World:
    world = turn_with_queue(sabotage.StrandedQueue)
    world.runner.players["a"].obey("fail")
    return world


def overtaken() -> World:
    world = turn_with_queue(sabotage.IdleGap)
    world.accept("s", "c")
    world.runner.players["a"].obey("finish")
    world.loop.step()
    world.enter("c")
    return world


def idle_and_cancelled() -> World:
    class Eager(Dispatcher):
        async def cancel(self, session_id: str, *, key: str | None = None) -> Covered:
            await self.accept(session_id, "why was I cancelled?", run_id="x")
            return Covered([])

    world = World(Eager)
    world.cancel("s")
    return world


def written_late() -> World:
    world = turn_with_queue(sabotage.PublishFirst, "a")
    world.runner.players["a"].obey("finish")
    world.loop.settle()
    return world


def off_the_record() -> World:
    class Euphemistic(sabotage.Sabotaged):
        class core(sabotage.Core):
            def outcome(self, turn: TurnRecord) -> tuple[Message, ...]:
                said = [message._replace(finish_reason="end_turn") for message in super().outcome(turn)]
                return tuple(said)

            def written(
                self, turn: TurnRecord, messages: tuple[Message, ...], failure: str | None
            ) -> Decided | None:
                said = [message._replace(finish_reason="canceled") for message in messages]
                return super().written(turn, tuple(said), failure)

    world = turn_with_queue(Euphemistic, "a")
    world.cancel("s")
    return world


def meddled_with() -> World:
    class Meddler(Dispatcher):
        async def cancel(self, session_id: str, *, key: str | None = None) -> Covered:
            for core in [*self._sessions.cores.values()]:
                self._cancel(core)
            return Covered([])

    world = World(Meddler)
    world.accept("t", "a")
    world.cancel("s")
    return world


def left_over() -> World:
    world = World(sabotage.LeakySession)
    world.accept("s", "a")
    world.release("a")
    return world


def changed_afterwards() -> World:
    class Revises(sabotage.Sabotaged):
        class effects_class(sabotage.PublishesAgain):
            def _publish(self, record: RunRecord) -> None:
                super()._publish(record)
                assert record.complete is not None
                record.complete = record.complete._replace(text="on second thoughts")

    world = World(Revises)
    world.accept("s", "a")
    world.release("a")
    return world


def undeclared() -> World:
    class FoldsAll(sabotage.Sabotaged):
        class core(sabotage.Core):
            def fold(self, turn: TurnRecord) -> tuple[list[RunRecord], Decided]:
                for run in self.queue.in_order():
                    run.when_busy = "fold"
                return super().fold(turn)

    world = World(FoldsAll)
    for run in "ab":
        world.accept("s", run, when_busy="queue")
        world.enter(run)
    world.loop.settle()
    world.runner.players["a"].obey("fold")
    world.loop.settle()
    return world


def forgotten() -> World:
    class Forgets(Dispatcher):
        def queued(self, session_id: str) -> list[Run]:
            return []

    return turn_with_queue(Forgets)


@pytest.mark.parametrize(
    ("breaks", "property_"),
    [
        (poisoned, Property.NEVER_POISONED),
        (uncovered, Property.FULL_COVERAGE),
        (miscounted, Property.FULL_COVERAGE),
        (told_twice, Property.EXACTLY_ONE_COMPLETE),
        (told_to_the_wrong_one, Property.EXACTLY_ONE_COMPLETE),
        (never_told, Property.EXACTLY_ONE_COMPLETE),
        (two_turns, Property.ONE_TURN),
        (stranded, Property.NO_STRAND),
        (overtaken, Property.FIFO),
        (idle_and_cancelled, Property.IDLE_CANCEL),
        (written_late, Property.LAST_WORD),
        (off_the_record, Property.ON_RECORD),
        (meddled_with, Property.ISOLATION),
        (left_over, Property.NO_RESIDUE),
        (changed_afterwards, Property.TERMINAL_IS_FINAL),
        (undeclared, Property.DECLARED_MOVE),
        (forgotten, Property.REFINES),
    ],
)
def test_a_broken_property_is_named(breaks: Callable[[], World], property_: Property) -> None:
    assert broken(breaks()) is property_


class LiesAboutMoves(Dispatcher):
    """Tells those who subscribed to moves of a fold as if it were a handoff."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        deliver = self._subscribers.to_moves.deliver

        def lie(event: Any, size: int = 0) -> None:
            wrong = isinstance(event, Moved) and event.event == "enter"
            deliver(event._replace(event="handoff") if wrong else event, size)

        self._subscribers.to_moves.deliver = lie  # type: ignore[method-assign]  # the lie


class LiesAboutViews(Dispatcher):
    """Shows an empty queue."""

    def session(self, session_id: str) -> SessionView:
        return super().session(session_id)._replace(queued=())


class StreamsTooMuch(Dispatcher):
    """Gives a reader of a complete run its text twice."""

    def find(self, run_id: str) -> Run | None:
        run = super().find(run_id)
        if run is not None and run.pieces:
            run.pieces = (*run.pieces, *run.pieces)
        return run


class CallsBackTwice(sabotage.Sabotaged):
    """Calls back twice."""

    class effects_class(sabotage.PublishesAgain):
        def _publish(self, record: RunRecord) -> None:
            self._sessions.runs[record.run_id].callbacks *= 2
            super()._publish(record)


class KeepsNothing(sabotage.Sabotaged):
    """Forgets what a runner keeps."""

    class turn_class(Turn):
        __slots__ = ()

        def keep(self, data: object) -> None:
            pass


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (LiesAboutMoves, "among the moves"),
        (LiesAboutViews, "a look at s shows"),
        (StreamsTooMuch, "a stream of a from 0 gives"),
        (CallsBackTwice, "the done callback of the run"),
        (KeepsNothing, "beside the reply to a is None"),
    ],
)
def test_onlookers_see_what_is_wrong(make: type[Dispatcher], said: str) -> None:
    world = World(make)

    def live() -> None:
        for run in "ab":
            world.accept("s", run)
            world.enter(run)
            world.loop.settle()
            world.check()
        world.runner.players["a"].obey("write")
        world.loop.settle()
        world.check()
        world.finish()

    with pytest.raises(AssertionError, match=said):
        live()
    world.abandon()
