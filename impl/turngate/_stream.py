"""Reading the text of a turn while it is written, and afterwards.

The turn keeps its text once, in the pieces in which it was written. A reader is a position in it: a slow one
loses nothing, and costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from turngate._run import Run


class TextStream:
    """The pieces of text of the turn that a run is part of, as an async iterator; see `Run.stream`.

    `offset` counts the characters up to where it has come. Whoever is cancelled while waiting for a piece,
    say by a time-out, loses none.
    """

    __slots__ = ("_index", "_run", "_skip", "offset")

    def __init__(self, run: Run, start: int) -> None:
        self.offset = start
        self._run = run
        self._index = 0
        self._skip = start

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        run = self._run
        loop = run._dispatcher._here()
        checked = False
        while True:
            pieces = run._pieces if run.complete is not None else run._dispatcher._pieces_of(run)
            if pieces is not None and (piece := self._next(pieces)):
                return piece
            if run.complete is not None:
                raise StopAsyncIteration
            run._check_not_forgotten()
            if not checked:
                checked = True
                await run._dispatcher._check_wait(run)
                continue
            await run._listen().wait(loop)

    def _next(self, pieces: Sequence[str]) -> str:
        """Return the next piece that is not empty, or an empty one if there is none yet."""
        while self._index < len(pieces):
            piece = pieces[self._index]
            self._index += 1
            if self._skip < len(piece):
                piece, self._skip = piece[self._skip :], 0
                self.offset += len(piece)
                return piece
            self._skip -= len(piece)
        return ""

    def __repr__(self) -> str:
        return f"<TextStream of run {self._run.run_id} at {self.offset}>"
