"""Dispatchers that are wrong on purpose, each in a few lines: what the checks must find."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
from collections.abc import Callable
from typing import Any

from turngate import Covered, Dispatcher, Run, RunConflict, State
from turngate._core import Effect, SessionCore
from turngate._events import Audience, Event, Subscription
from turngate._handles import Turn
from turngate._journal import JournaledCore
from turngate._lifecycle import Phase
from turngate._messages import Message, Messages
from turngate._settle import _Clock


class SplitEntry(Dispatcher):
    """Looks whether the session is busy, lets others go first, and then believes it still."""

    async def enter(self, run: Run) -> State:
        core = self._session(run.session_id)
        seen = core.turn
        await asyncio.sleep(0)
        if seen is None:
            core.turn = None
        return self._enter(run)


class _WithoutSecondLook(JournaledCore):
    def written(self, turn: Turn, messages: tuple[Message, ...], error: str | None) -> list[Effect]:
        reply = messages[-1]._replace(finish_reason="canceled") if turn.covered else messages[-1]
        return super().written(turn, (*messages[:-1], reply), error)


class NoSecondLook(Dispatcher):
    """Does not look again whether a cancel came while the messages were written."""

    def _new_core(self, session_id: str) -> SessionCore:
        return _WithoutSecondLook(session_id, self._message_prefix, self._journal.untold)


class Unwatched(Dispatcher):
    """Does not see that the task of a turn is over before it has begun."""

    def _start(self, turn: Turn) -> None:
        super()._start(turn)
        assert turn._made is not None
        turn._made.remove_done_callback(turn._task_is_over)


class Unguarded(Dispatcher):
    """Lets what a callback raises into the run's way."""

    def _guard(self, about: str, call: Callable[..., object], *args: Any) -> object:
        return call(*args)


class Deaf(Dispatcher):
    """Swallows what is to end the process."""

    def _guard(self, about: str, call: Callable[..., object], *args: Any) -> object:
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


class LeavesTasks(Dispatcher):
    """Leaves a task behind for every run."""

    def _publish(self, run: Run) -> None:
        self._here().create_task(asyncio.Event().wait())
        super()._publish(run)


class ForgetsToAwait(Dispatcher):
    """Makes a coroutine for every run, and never awaits it."""

    def _publish(self, run: Run) -> None:
        asyncio.sleep(0)  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine] - the mistake
        super()._publish(run)


class ForgetsToLook(Dispatcher):
    """Has a task for every run whose failure nobody looks at."""

    def _publish(self, run: Run) -> None:
        self._here().create_task(self.wait("nobody"))
        super()._publish(run)


class HesitantEntry(Dispatcher):
    """Looks whether the session is busy, waits three times, and then believes it still."""

    async def enter(self, run: Run) -> State:
        core = self._session(run.session_id)
        seen = core.turn
        for _ in range(3):
            await asyncio.sleep(0)
        if seen is None:
            core.turn = None
        return self._enter(run)


class Spins(Dispatcher):
    """Never comes to rest once a run is complete."""

    def _publish(self, run: Run) -> None:
        super()._publish(run)
        self._spin()

    def _spin(self) -> None:
        self._here().call_soon(self._spin)


# What hooks find.


class GuardsTooLittle(Dispatcher):
    """Stands a callback that fails, and not one that is cancelled."""

    def _guard(self, about: str, call: Callable[..., object], *args: Any) -> object:
        with contextlib.suppress(Exception):
            return call(*args)
        return None


class PerformsAtOnce(Dispatcher):
    """Performs what follows from a callback in the middle of what is being performed."""

    def _perform(self, effects: list[Effect]) -> None:
        performing, self._performing = self._performing, None
        super()._perform(effects)
        self._performing = performing


class ForgetsTooLate(Dispatcher):
    """Forgets a quiet session after its callbacks were called, with what they have begun there."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._quiet: list[SessionCore] = []

    def _forget_if_quiet(self, core: SessionCore) -> None:
        self._quiet += [core] if core.is_quiet() else []

    def _perform(self, effects: list[Effect]) -> None:
        super()._perform(effects)
        while self._quiet:
            self._sessions.pop(self._quiet.pop().session_id, None)
        if self._closing:
            self._close_if_quiet()


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
    """Keeps one completion less than it was told to."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._completions._limit -= 1


class ForgetsTheLatest(Dispatcher):
    """Forgets the latest completion that it has instead of the oldest."""

    def _publish(self, run: Run) -> None:
        completions = self._completions
        if len(completions) == completions._limit:
            completions._order.insert(completions._gone, completions._order.pop())
        super()._publish(run)


class GoesByRunId(Dispatcher):
    """Closes the handle of whatever run has the run_id now."""

    def _release(self, run: Run) -> None:
        super()._release(self._runs.get(run.run_id, run))


class EmptiesHandles(Dispatcher):
    """Takes the outcome from the handle of a run that it forgets."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._handles: list[Run] = []

    def _publish(self, run: Run) -> None:
        super()._publish(run)
        self._handles.append(run)
        if self._handles[0].run_id not in self._completions:
            self._handles.pop(0).complete = None


class RefusesTheForgotten(Dispatcher):
    """Does not let a run_id live again."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._ever: set[str] = set()

    async def accept(self, session_id: str, prompt: str, **options: Any) -> Run:
        run_id = options.get("run_id", "")
        if run_id in self._ever and run_id not in self._runs and run_id not in self._completions:
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


class TakesLateWrites(Dispatcher):
    """Takes a write to a turn that is over, if a cancel covers it."""

    class _Core(JournaledCore):
        def write(self, turn: Turn, text: str) -> int:
            if turn.covered and turn.phase is Phase.SETTLING:
                return turn.length
            return super().write(turn, text)

    def _new_core(self, session_id: str) -> SessionCore:
        return self._Core(session_id, self._message_prefix, self._journal.untold)


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
                if isinstance(clock, _Clock) and clock.task is task:
                    clock.__exit__()
                    clock._deadline = loop.time() + clock._within
                    clock.__enter__()
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
                if isinstance(getattr(timer._callback, "__self__", None), _Clock):
                    timer.cancel()

    def __init__(self, *args: Any, messages: Messages, **options: Any) -> None:
        super().__init__(*args, messages=self._Unhurried(messages), **options)


class RunsInItsOwnContext(Dispatcher):
    """Runs turns in the context of whoever enters them."""

    def _start(self, turn: Turn) -> None:
        turn.run._context = contextvars.copy_context()
        super()._start(turn)


class AnyLoop(Dispatcher):
    """Takes calls from any loop."""

    def _belong_to(self, loop: asyncio.AbstractEventLoop | None) -> asyncio.AbstractEventLoop:
        if self._loop is None and loop is not None:
            return super()._belong_to(loop)
        assert self._loop is not None
        return self._loop


class GivesLists(Dispatcher):
    """Gives the store the very list that it goes on with."""

    class _Core(JournaledCore):
        def outcome(self, turn: Turn) -> Any:
            return [*super().outcome(turn)]

    def _new_core(self, session_id: str) -> SessionCore:
        return self._Core(session_id, self._message_prefix, self._journal.untold)


class LogsUnguarded(Dispatcher):
    """Lets what a log handler raises into the way of what is to be performed."""

    def _perform(self, effects: list[Effect]) -> None:
        if self._journal.untold:
            logging.getLogger("turngate").debug("told")
        super()._perform(effects)


class RecordsAfterTheEnd(Dispatcher):
    """Records what is done when it is closed."""

    def _close_if_quiet(self) -> None:
        record = self._journal.record
        super()._close_if_quiet()
        self._journal.record = record
