"""What the tests of clean-ups share: a runner that cleans up, and something to clean up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from dispatching import HANG, steps
from turngate import Dispatcher, Run, Turn


class Cleaning:
    """A runner that waits, and cleans up when it is interrupted: what, and for how long, the test says."""

    def __init__(self, clean_up: Callable[[], Awaitable[Any]], within: float = HANG) -> None:
        self._clean_up = clean_up
        self._within = within
        self.came_of_it: list[Any] = []
        self.turns: list[Turn] = []

    async def __call__(self, turn: Turn) -> str:
        self.turns.append(turn)
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            try:
                self.came_of_it.append(await turn.clean_up(self._clean_up(), self._within))
            except BaseException as exc:
                self.came_of_it.append(type(exc))
                raise
        return "cleaned up"


class Gate:
    """Something to clean up that ends when the test says so."""

    def __init__(self) -> None:
        self.began = 0
        self.ended = 0
        self.cancelled = 0
        self.gate: asyncio.Future[Any] | None = None

    async def __call__(self) -> str:
        self.began += 1
        self.gate = asyncio.get_running_loop().create_future()
        try:
            result: str = await self.gate
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        self.ended += 1
        return result

    def open(self, result: str = "clean") -> None:
        assert self.gate is not None
        self.gate.set_result(result)


async def cleaning(d: Dispatcher) -> Run:
    """A run whose runner is cleaning up."""
    run = await d.submit("s", "p")
    await steps()
    await run.cancel()
    await steps()
    return run
