"""What the tests of streams share: a runner that writes in pieces, and a reader."""

from __future__ import annotations

import asyncio

from dispatching import steps
from turngate import Run, Turn

PIECES = ["Hel", "", "lo", " ", "wörld", "\N{WAVING HAND SIGN}", "!"]
TEXT = "".join(PIECES)


async def writes(turn: Turn) -> None:
    """Write the pieces, and let the loop go on in between."""
    for piece in PIECES:
        turn.write(piece)
        await steps(2)


async def read(run: Run, start: int = 0) -> str:
    return "".join([piece async for piece in run.stream(start)])


class Reader:
    """Someone who reads a stream in a task of their own."""

    def __init__(self, run: Run, start: int = 0) -> None:
        self.pieces: list[str] = []
        self.stream = run.stream(start)
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for piece in self.stream:
            self.pieces.append(piece)

    @property
    def text(self) -> str:
        return "".join(self.pieces)
