"""Followers of what a dispatcher gives piece by piece: the text of a run, completions, messages.

A follower reads in tasks, which may be cancelled at any moment. It continues with the next task, and must
not have lost anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from turngate import CursorExpired, Message, Run, RunComplete
from turngate._completions import CompletionStream
from turngate._handles import TextStream
from turngate_verify.world.expecting import expect
from turngate_verify.world.virtual_loop import VirtualLoop


@dataclass(eq=False)
class Follower:
    """Reads on from its place, in one task at a time."""

    reading: asyncio.Task[None] | None = field(default=None, init=False)
    ended: bool = field(default=False, init=False)
    """Whether nothing more will come."""

    @property
    def waits(self) -> bool:
        """Whether a task of the follower waits for more."""
        return self.reading is not None and not self.reading.done()

    def read(self, loop: VirtualLoop, *, to_end: bool) -> asyncio.Task[None] | None:
        """Read one piece, or all to the end, in a task; None while such a task still waits."""
        if self.waits:
            return None
        self.reading = loop.create_task(self._read(to_end=to_end), name=f"follows {self}")
        return self.reading

    def read_rest(self, loop: VirtualLoop) -> None:
        """Read what is left of something that has ended; this must not wait."""
        expect(not self.waits, f"who follows {self} still waits")
        loop.call(self._read(to_end=True))

    async def _read(self, *, to_end: bool) -> None:
        while not self.ended:
            await self._next()
            if not to_end:
                return

    def _next(self) -> Coroutine[Any, Any, None]:
        raise NotImplementedError


@dataclass(eq=False)
class TextFollower(Follower):
    """Reads the text of the turn that a run is part of, from an offset on."""

    run: Run
    start: int
    stream: TextStream
    pieces: list[str] = field(default_factory=list)

    async def _next(self) -> None:
        try:
            self.pieces.append(await anext(self.stream))
        except StopAsyncIteration:
            self.ended = True

    def expect_text(self, should: str) -> None:
        """Expect to have read this text, from the offset on, in pieces that are not empty."""
        text = "".join(self.pieces)
        expect(text == should[self.start :], f"who follows {self} reads {text!r} of {should!r}")
        expect(all(self.pieces), f"who follows {self} reads an empty piece")
        expect(self.stream.offset == self.start + len(text), f"{self.stream} has read {len(text)} characters")

    def expect_awake(self, written: str) -> None:
        """Expect that a waiting follower has read all that is written so far."""
        read = self.stream.offset
        slept = f"who follows {self} waits at {read}, though {len(written)} characters are written"
        expect(not self.waits or read >= len(written), slept)

    def __str__(self) -> str:
        return f"{self.run.run_id} from {self.start}"


@dataclass(eq=False)
class CompletionsFollower(Follower):
    """Reads the kept completions and those to come. ``number`` says how many came before."""

    stream: CompletionStream
    number: int
    completed: list[int]
    """The sequences of the complete runs of the world, in the order in which they became complete."""
    kept: int
    """How many completions the dispatcher keeps."""
    cursors: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    read_so_far: list[RunComplete] = field(default_factory=list)

    async def _next(self) -> None:
        try:
            cursor, complete = await anext(self.stream)
        except StopAsyncIteration:
            self.ended = True
            if self.number != len(self.completed):
                self.wrong.append(f"completions end at {self.number} of {len(self.completed)}")
            return
        except CursorExpired:
            self.ended = True
            if not is_expired(self.number, self.completed, self.kept):
                self.wrong.append(f"number {self.number + 1} is said to be forgotten, and should be kept")
            return
        if is_expired(self.number, self.completed, self.kept):
            self.wrong.append(f"number {self.number + 1} is told, and should be forgotten")
        elif [complete.seq] != (should := self.completed[self.number : self.number + 1]):
            self.wrong.append(f"number {self.number + 1} is {complete}: its sequence should be {should}")
        self.number += 1
        self.cursors.append(cursor)
        self.read_so_far.append(complete)

    def expect_awake(self) -> None:
        """Expect that a waiting follower has read every completion so far."""
        slept = f"who follows {self} waits, though there are {len(self.completed)}"
        expect(not self.waits or self.number == len(self.completed), slept)

    def __str__(self) -> str:
        return f"completions, {self.number} so far"


@dataclass(eq=False)
class MessagesFollower(Follower):
    """Reads the messages of a session, page by page; more may come until the session has ended."""

    messages: Any
    """A store that pages."""
    session: str
    limit: int
    read_so_far: list[Message] = field(default_factory=list)

    async def _read(self, *, to_end: bool) -> None:
        self.ended = False
        await super()._read(to_end=to_end)

    async def _next(self) -> None:
        after = self.read_so_far[-1].id if self.read_so_far else None
        page = await self.messages.list(self.session, after=after, limit=self.limit)
        self.read_so_far += page
        self.ended = not page

    def wrong_about(self, should: list[Message]) -> str:
        """Say what is wrong, given the session's messages in the end, in order; empty if nothing is.

        A message may have been rewritten after it was read, but only in its place.
        """
        read, there_are = ([message.id for message in each] for each in (self.read_so_far, should))
        return "" if read == there_are else f"who reads {self} gets {read}: there are {there_are}"

    def __str__(self) -> str:
        return f"the messages of {self.session}, {self.limit} at a time"


def is_expired(number: int, completed: list[int], kept: int) -> bool:
    """Return whether some completions after this number are no longer kept."""
    return number < len(completed) - kept
