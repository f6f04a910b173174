"""Dispatchers that are wrong on purpose, each in a few lines: what the checks must find."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
from collections.abc import Callable
from typing import Any
from unittest import mock

from turngate import Covered, Delta, Dispatcher, Run, RunConflict, State, Turn, _effects, _log
from turngate._core import Decided, RunRecord, SessionCore, TurnRecord
from turngate._effects import MemoryHome
from turngate._events import Audience, Event, Subscription
from turngate._loop import HomeLoop
from turngate._messages import Message, Messages
from turngate._settle import WriteClock
from turngate._turn import TurnRunner
from turngate_verify.drivers.sabotage import Core, HandlesOfRecords, PublishesAgain, Sabotaged

Guard = Callable[..., object]


class SplitEntry(Dispatcher):
    """Looks whether the session is busy, lets others go first, and then believes it still."""

    async def enter(self, run: Run) -> State:
        core = self._sessions.core(run.session_id)
        seen = core.turn
        await asyncio.sleep(0)
        if seen is None:
            core.turn = None
        return self._enter(run)


class NoSecondLook(Sabotaged):
    """Does not look again whether a cancel came while the messages were written."""

    class core(Core):
        def written(
            self, turn: TurnRecord, messages: tuple[Message, ...], failure: str | None
        ) -> Decided | None:
            reply = messages[-1]._replace(finish_reason="canceled") if turn.covered else messages[-1]
            return super().written(turn, (*messages[:-1], reply), failure)


class Unwatched(Sabotaged):
    """Does not see that the task of a turn has ended before it has begun."""

    class turns_class(TurnRunner):
        def _task_is_over(self, turn: Turn, made: asyncio.Future[None]) -> None:
            pass


class _Guarding(PublishesAgain):
    """Publishes with another guard."""

    @staticmethod
    def guard(about: str, call: Guard, *args: Any) -> object:
        raise NotImplementedError

    def _publish(self, record: RunRecord) -> None:
        with mock.patch.object(_effects, "guard", self.guard), mock.patch.object(_log, "guard", self.guard):
            super()._publish(record)


class Unguarded(Sabotaged):
    """Lets what a callback raises into the run's way."""

    class effects_class(_Guarding):
        @staticmethod
        def guard(about: str, call: Guard, *args: Any) -> object:
            return call(*args)


class Deaf(Sabotaged):
    """Swallows what is to end the process."""

    class effects_class(_Guarding):
        @staticmethod
        def guard(about: str, call: Guard, *args: Any) -> object:
            with contextlib.suppress(BaseException):
                return call(*args)
            return None


class GivesUpWriting(Dispatcher):
    """Takes a cancelled task for a store that failed."""

    class Once:
        def __init__(self, inner: Messages) -> None:
            self._inner = inner
            self.list = inner.list

        async def put(self, messages: Any) -> None:
            try:
                await self._inner.put(messages)
            except asyncio.CancelledError:
                raise OSError("interrupted") from None

    def __init__(self, *args: Any, messages: Messages, **options: Any) -> None:
        super().__init__(*args, messages=self.Once(messages), **options)


class LeavesTasks(Sabotaged):
    """Leaves a task behind for every run."""

    class effects_class(PublishesAgain):
        def _publish(self, record: RunRecord) -> None:
            self._loop.check_loop().create_task(asyncio.Event().wait())
            super()._publish(record)


class ForgetsToAwait(Sabotaged):
    """Makes a coroutine for every run, and never awaits it."""

    class effects_class(PublishesAgain):
        def _publish(self, record: RunRecord) -> None:
            asyncio.sleep(0)  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine] - the mistake
            super()._publish(record)


class ForgetsToLook(Sabotaged):
    """Has a task for every run, and never looks at its failure."""

    class effects_class(PublishesAgain):
        def _publish(self, record: RunRecord) -> None:
            self._loop.check_loop().create_task(self.fail())
            super()._publish(record)

        async def fail(self) -> None:
            raise LookupError("no such thing")


class HesitantEntry(Dispatcher):
    """Looks whether the session is busy, waits three times, and then believes it still."""

    async def enter(self, run: Run) -> State:
        core = self._sessions.core(run.session_id)
        seen = core.turn
        for _ in range(3):
            await asyncio.sleep(0)
        if seen is None:
            core.turn = None
        return self._enter(run)


class Spins(Sabotaged):
    """Never comes to rest once a run is complete."""

    class effects_class(PublishesAgain):
        def _publish(self, record: RunRecord) -> None:
            super()._publish(record)
            self._spin()

        def _spin(self) -> None:
            self._loop.check_loop().call_soon(self._spin)


# What hooks find.


class GuardsTooLittle(Sabotaged):
    """Stands a callback that fails, and not one that is cancelled."""

    class effects_class(_Guarding):
        @staticmethod
        def guard(about: str, call: Guard, *args: Any) -> object:
            with contextlib.suppress(Exception):
                return call(*args)
            return None


class PerformsAtOnce(Sabotaged):
    """Performs what follows from a callback in the middle of what is being performed."""

    class effects_class(PublishesAgain):
        def perform(self, decided: Decided) -> None:
            performing, self._performing = self._performing, None
            super().perform(decided)
            self._performing = performing


class ForgetsTooLate(Sabotaged):
    """Forgets a quiet session after its callbacks were called, with what they have begun there."""

    class sessions_class(HandlesOfRecords):
        quiet: list[SessionCore]

        def forget_if_quiet(self, core: SessionCore) -> None:
            self.quiet += [core] if core.is_quiet() else []

    class effects_class(PublishesAgain):
        def perform(self, decided: Decided) -> None:
            super().perform(decided)
            assert isinstance(self._sessions, ForgetsTooLate.sessions_class)
            while self._sessions.quiet:
                self._sessions.cores.pop(self._sessions.quiet.pop().session_id, None)
            if self.after is not None:
                self.after()

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        assert isinstance(self._sessions, ForgetsTooLate.sessions_class)
        self._sessions.quiet = []


# What subscribers find that are cut off.


class _Subscribing(Dispatcher):
    kind: type[Subscription]

    def subscribe(self, session_id: str | None = None, *, moves: bool = False) -> Subscription:
        subscription = super().subscribe(session_id, moves=moves)
        subscription.__class__ = self.kind
        return subscription


class LosesTheBuffered(_Subscribing):
    """Takes from a subscriber that is cut off what it has received."""

    class kind(Subscription):
        def _close(self) -> None:
            super()._close()
            if self._cut_off:
                self._unread.clear()
                self._sizes.clear()


class NeverCutsOff(_Subscribing):
    """Lets a subscriber lag for ever."""

    class kind(Subscription):
        def receive(self, event: Event, size: int = 0) -> None:
            self._complete_limit = len(self._unread) + 1
            super().receive(event, size)


class CutsOffTooSoon(Dispatcher):
    """Cuts a subscriber off one RunComplete early."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._complete_limit -= 1


class CutsOffInSilence(_Subscribing):
    """Ends the events of a subscriber that is cut off as if there were no more."""

    class kind(Subscription):
        def _close(self) -> None:
            super()._close()
            self._cut_off = ""


class _Skipping(Audience):
    def deliver(self, event: Event, size: int = 0) -> None:
        for about in (event.session_id, None):
            nth = 0
            while nth < len(to := [*self.by_session.get(about, ())]):
                if (subscription := to[nth]()) is not None:
                    subscription.receive(event, size)
                nth += 1


class SkipsTheNext(Dispatcher):
    """Loses its place among the subscribers when one of them is cut off."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._subscribers.to_completes = _Skipping()


# What is found when completions are forgotten.


class NeverForgets(Dispatcher):
    """Keeps every completion."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._completions._limit = 1_000


class ForgetsOneMore(Dispatcher):
    """Keeps one completion less than it should."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._completions._limit -= 1


class ForgetsTheLatest(Sabotaged):
    """Forgets the latest completion that it has instead of the oldest."""

    class effects_class(PublishesAgain):
        def _publish(self, record: RunRecord) -> None:
            completions = self._completions
            if len(completions) == completions._limit:
                completions._order.insert(completions._gone, completions._order.pop())
            super()._publish(record)


class GoesByRunId(Sabotaged):
    """Closes the handle of whatever run has the run_id now."""

    class home_class(MemoryHome):
        async def release(self, run: Run) -> None:
            await super().release(self._sessions.runs.get(run.run_id, run))


class EmptiesHandles(Sabotaged):
    """Takes the outcome from the handle of a run that it forgets."""

    class effects_class(PublishesAgain):
        published: list[RunRecord]

        def _publish(self, record: RunRecord) -> None:
            super()._publish(record)
            self.published.append(record)
            if self.published[0].run_id not in self._completions:
                self.published.pop(0).complete = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        assert isinstance(self._effects, EmptiesHandles.effects_class)
        self._effects.published = []


class RefusesTheForgotten(Dispatcher):
    """Does not let a run_id live again."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._ever: set[str] = set()

    async def accept(self, session_id: str, prompt: str, **options: Any) -> Run:
        run_id = options.get("run_id", "")
        if run_id in self._ever and run_id not in self._sessions.runs and run_id not in self._completions:
            raise RunConflict(run_id)
        self._ever.add(run_id)
        return await super().accept(session_id, prompt, **options)


class CancelsWhatIsOver(Dispatcher):
    """Says that a cancel of a complete run covers it."""

    async def cancel_run(self, run_id: str, *, waiting_only: bool = False, key: str | None = None) -> Covered:
        over = self._completions.handle(run_id) if run_id in self._completions else None
        covered = await super().cancel_run(run_id, waiting_only=waiting_only, key=key)
        return covered or Covered([over] if over else [])


# What is found by what a runner leaves behind, by time, by contexts and by other loops.


class TakesLateWrites(Sabotaged):
    """Takes a write to a turn that has ended, if a cancel covers it."""

    class turn_class(Turn):
        __slots__ = ()

        def write(self, text: str) -> None:
            if self.covered and self.is_over:
                delta = Delta(self.run.session_id, self.run.run_id, text, self.length)
                self.home.events.stream(delta, len(text))
            else:
                super().write(text)


class StartsTheClockAnew(Dispatcher):
    """Gives each write of a turn the time that they should share."""

    class _Patient:
        def __init__(self, inner: Messages) -> None:
            self._inner = inner
            self.list = inner.list

        async def put(self, messages: Any) -> None:
            task = asyncio.current_task()
            loop = asyncio.get_running_loop()
            for timer in [*getattr(loop, "timers", ())]:
                clock = getattr(timer._callback, "__self__", None)
                if isinstance(clock, WriteClock) and clock._task is task:
                    clock.cancel()
                    clock._deadline = loop.time() + clock._within
                    clock.start()
            await self._inner.put(messages)

    def __init__(self, *args: Any, messages: Messages, **options: Any) -> None:
        super().__init__(*args, messages=self._Patient(messages), **options)


class StopsTheClock(Dispatcher):
    """Lets the store take as long as it likes."""

    class _Unhurried:
        def __init__(self, inner: Messages) -> None:
            self._inner = inner
            self.list = inner.list

        async def put(self, messages: Any) -> None:
            loop = asyncio.get_running_loop()
            loop.call_soon(self._stop_clocks, loop)
            await self._inner.put(messages)

        def _stop_clocks(self, loop: asyncio.AbstractEventLoop) -> None:
            for timer in [*getattr(loop, "timers", ())]:
                if isinstance(getattr(timer._callback, "__self__", None), WriteClock):
                    timer.cancel()

    def __init__(self, *args: Any, messages: Messages, **options: Any) -> None:
        super().__init__(*args, messages=self._Unhurried(messages), **options)


class RunsInItsOwnContext(Sabotaged):
    """Runs turns in the context of the task that enters them."""

    class turns_class(TurnRunner):
        def start(self, turn: Turn) -> None:
            turn.run.context = contextvars.copy_context()
            super().start(turn)


class AnyLoop(Sabotaged):
    """Takes calls from any loop."""

    class loop_class(HomeLoop):
        def check_loop(self) -> asyncio.AbstractEventLoop:
            return super().check_loop() if self.loop is None else self.loop


class GivesLists(Sabotaged):
    """Gives the store the very list that it goes on with."""

    class core(Core):
        def outcome(self, turn: TurnRecord) -> Any:
            return [*super().outcome(turn)]


class LogsUnguarded(Sabotaged):
    """Lets what a log handler raises stop the effects behind it."""

    class effects_class(PublishesAgain):
        def perform(self, decided: Decided) -> None:
            if decided[1]:
                logging.getLogger("turngate").debug("told")
            super().perform(decided)


class RecordsAfterTheEnd(Dispatcher):
    """Records what is done when it is closed."""

    def _end(self) -> None:
        record = self._journal.record
        super()._end()
        self._journal.record = record
