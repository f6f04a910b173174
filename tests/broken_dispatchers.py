"""Dispatchers that are wrong on purpose, each in a few lines: what the checks must find."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from turngate import Dispatcher, Run, State
from turngate._core import Effect, SessionCore
from turngate._journal import JournaledCore
from turngate._messages import Message
from turngate._run import Turn


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
    def written(self, turn: Turn, messages: list[Message], error: str | None) -> list[Effect]:
        reply = messages[-1]._replace(finish_reason="canceled") if turn.covered else messages[-1]
        return super().written(turn, [*messages[:-1], reply], error)


class NoSecondLook(Dispatcher):
    """Does not look again whether a cancel came while the messages were written."""

    def _new_core(self, session_id: str) -> SessionCore:
        return _WithoutSecondLook(session_id, self._message_prefix, self._journal.untold)


class Unprimed(Dispatcher):
    """Starts a turn in a task whose coroutine has not begun, so that a cancel may keep it from beginning."""

    def _start(self, turn: Turn) -> None:
        conduct = self._conduct(self._sessions[turn.run.session_id], turn)
        turn.task = self._bound_loop().create_task(conduct)


class Unguarded(Dispatcher):
    """Lets what a callback raises into the run's way."""

    def _guard(self, call: Callable[..., object], *args: Any) -> None:
        call(*args)


class Deaf(Dispatcher):
    """Swallows what is to end the process."""

    def _guard(self, call: Callable[..., object], *args: Any) -> None:
        with contextlib.suppress(BaseException):
            call(*args)


class GivesUpWriting(Dispatcher):
    """Takes a cancelled task for a store that failed."""

    async def _conduct(self, core: SessionCore, turn: Turn) -> None:
        inner = self.messages

        class Once:
            async def put(self, messages: Any) -> None:
                try:
                    await inner.put(messages)
                except asyncio.CancelledError:
                    raise OSError("interrupted") from None

        self.messages, kept = Once(), inner  # type: ignore[assignment]
        try:
            await super()._conduct(core, turn)
        finally:
            self.messages = kept


class LeavesTasks(Dispatcher):
    """Leaves a task behind for every run."""

    def _publish(self, run: Run) -> None:
        self._bound_loop().create_task(asyncio.Event().wait())
        super()._publish(run)


class ForgetsToAwait(Dispatcher):
    """Makes a coroutine for every run, and never awaits it."""

    def _publish(self, run: Run) -> None:
        asyncio.sleep(0)  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
        super()._publish(run)


class ForgetsToLook(Dispatcher):
    """Has a task for every run whose failure nobody looks at."""

    def _publish(self, run: Run) -> None:
        self._bound_loop().create_task(self.wait("nobody"))
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
        self._bound_loop().call_soon(self._spin)
