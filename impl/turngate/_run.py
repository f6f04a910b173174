"""The handles that callers and runners hold: Run, Turn and Covered."""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from turngate._errors import UnknownRun
from turngate._lifecycle import ACCEPTED, COMPLETE, STARTING
from turngate._limits import seconds, whole_number
from turngate._prompt import check_callback
from turngate._stream import TextStream
from turngate._waiters import Waiters

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Coroutine, Generator, Sequence
    from contextvars import Context

    from turngate._dispatcher import Dispatcher
    from turngate._events import Delta, Note, RunComplete
    from turngate._lifecycle import State
    from turngate._messages import Message
    from turngate._prompt import Attachment, OnComplete, WhenBusy

T = TypeVar("T")

Runner = Callable[["Turn"], Awaitable[str | None] | AsyncIterable[str]]
"""What the user brings, called once per turn: an async function, or an async generator that yields text."""


class Run:
    """The life of one prompt, from accept to its RunComplete. To be read, and awaited, not changed.

    `complete` is the RunComplete, None until there is one. In a handle that `find` had to make anew, `prompt`
    and `attachments` are empty.
    """

    _lead: Run
    """Of a run that was folded into a turn, from when that is over: the lead of the turn."""

    __slots__ = (
        "__weakref__", "_callbacks", "_context", "_dispatcher", "_lead", "_listeners", "_pieces", "_waiters",
        "attachments", "complete", "covered", "on_complete", "prompt", "run_id", "seq", "session_id", "state",
        "when_busy",
    )  # fmt: skip

    def __init__(
        self,
        dispatcher: Dispatcher,
        session_id: str,
        run_id: str,
        seq: int,
        prompt: str,
        attachments: tuple[Attachment | str, ...] = (),
        when_busy: WhenBusy = "fold",
        on_complete: OnComplete | None = None,
        context: Context | None = None,
    ) -> None:
        self.session_id = session_id
        self.run_id = run_id
        self.seq = seq
        self.prompt = prompt
        self.attachments = attachments
        self.when_busy: WhenBusy = when_busy
        self.on_complete = on_complete
        self.state: State = ACCEPTED
        self.covered = False
        self.complete: RunComplete | None = None
        self._context = context
        self._dispatcher = dispatcher
        self._pieces: Sequence[str] | None = None
        self._waiters: Waiters | None = None
        self._listeners: Waiters | None = None
        self._callbacks: list[OnComplete] | None = None

    async def wait(self) -> RunComplete:
        """Return the RunComplete, at once if there is one.

        When cancelled while waiting, neither the run nor anyone else who waits for it is touched. Raises
        WouldDeadlock in the task of a turn of the same session, if the run cannot complete before that ends;
        and UnknownRun, if the completion is no longer kept.
        """
        loop = self._dispatcher._here()
        if self.complete is None:
            self._check_not_forgotten()
            await self._dispatcher._check_wait(self)
        while self.complete is None:
            if self._waiters is None:
                self._waiters = Waiters()
            await self._waiters.wait(loop)
        return self.complete

    def __await__(self) -> Generator[Any, Any, RunComplete]:
        return self.wait().__await__()

    @property
    def lead(self) -> Run | None:
        """The run whose turn this one is part of, itself if it leads; None if it has never been in a turn.

        Also None when the lead is so long complete that it is no longer known.
        """
        self._dispatcher._in_thread()
        if self.complete is None:
            turn = self._dispatcher._turn_of(self)
            return None if turn is None else turn.run
        if self.complete.folded_into is not None:
            return getattr(self, "_lead", None) or self._dispatcher.find(self.complete.folded_into)
        return None if self._pieces is None else self

    def stream(self, start: int = 0) -> TextStream:
        """Return the text that the run's turn writes, piece by piece, from the character `start` on.

        However late one begins, and whether the run leads the turn or was folded into it, the text is there
        from its beginning; it is there after the fact, too. If the turn writes nothing, what its runner
        returns is one piece. Ends when the run is complete; nothing comes of a run that never has a turn.
        Raises WouldDeadlock where a runner would have to wait for text of its own session.
        """
        return TextStream(self, whole_number("start", start, at_least=0))

    def add_done_callback(self, callback: OnComplete) -> None:
        """Have `callback` called once, with the RunComplete, whichever way the run ends.

        It is called beside the subscribers and beside `on_complete`, and soon if the run is complete already.
        What it raises is logged. Not a coroutine function.
        """
        loop = self._dispatcher._here()
        check_callback("the callback", callback)
        self._check_not_forgotten()
        if self.complete is not None:
            loop.call_soon(self._dispatcher._call_back, "a callback", callback, self.complete)
        elif self._callbacks is None:
            self._callbacks = [callback]
        else:
            self._callbacks.append(callback)

    async def cancel(self) -> Covered:
        """Cover this run or, when it is part of the active turn, the whole turn; as `cancel_run` does."""
        self._dispatcher._here()
        return self._dispatcher._cancel_one(self, waiting_only=False)

    async def close(self) -> None:
        """Release the run if it has not entered, otherwise do nothing. Idempotent; never waits."""
        self._dispatcher._here()
        self._dispatcher._release(self)

    def _check_not_forgotten(self) -> None:
        """Raise UnknownRun if the run is complete, and how it ended is no longer known."""
        if self.state is COMPLETE and self.complete is None:
            raise UnknownRun(f"run {self.run_id!r} is complete, and its completion is no longer kept")

    def _listen(self) -> Waiters:
        """Return those who wait for the text of the run's turn to go on."""
        if self._listeners is None:
            self._listeners = Waiters()
        return self._listeners

    def __repr__(self) -> str:
        outcome = ""
        if self.complete is not None:
            outcome = ", cancelled" if self.complete.cancelled else ""
            outcome += f", error {self.complete.error!r}" if self.complete.error else ""
        return f"<Run {self.run_id} of session {self.session_id!r}, seq {self.seq}, {self.state}{outcome}>"


class Turn:
    """One call of the runner: what it is to answer, and what it can do meanwhile. Not to be changed.

    `run` is the lead run; `covered` says whether a cancel covers the turn; `task` is the task that conducts
    it, None until it does. (What the loop has made may only stand for that task: `_made`.)
    """

    text: str
    error: str | None
    pieces: Sequence[str]
    """What came of the runner, from its end on."""

    __slots__ = (
        "_by_factory", "_conducting", "_made", "_runs", "_unsent", "covered", "error", "has_place", "kept",
        "length", "parts", "phase", "pieces", "run", "since", "task", "text",
    )  # fmt: skip

    def __init__(self, run: Run, *, covered: bool = False) -> None:
        self.run = run
        self._runs = [run]
        self.covered = covered
        self.phase = STARTING
        self.has_place = False
        self.since: float | None = None
        self.parts: list[str] | None = None
        self.length = 0
        self.kept: str | None = None
        self.task: asyncio.Task[None] | None = None
        self._by_factory = False
        self._made: asyncio.Future[None] | None = None
        self._conducting: Coroutine[Any, Any, None] | None = None
        self._unsent: list[tuple[Delta | Note, int]] | None = None

    @property
    def runs(self) -> list[Run]:
        """The lead run and the folded ones, in the order in which they joined."""
        return self._runs.copy()

    @property
    def attempt(self) -> int:
        """Which attempt at the turn this is, from 1. In memory there is only the first."""
        return 1

    @property
    def fence(self) -> int:
        """A number that grows with every turn of the session, for the systems that the runner writes to."""
        return self.run.seq

    def write(self, text: str) -> None:
        """Stream text to the subscribers; it is the turn's text if the runner returns none.

        May be called from a thread that the runner started. Raises TurnEnded once the runner is over.
        """
        self.run._dispatcher._write(self, text)

    def emit(self, kind: str, data: object = None) -> None:
        """Tell the subscribers something that is not part of the text: a tool call, reasoning, progress.

        They receive a Note, in order with the text. The data are JSON, nested at most 200 levels deep, else
        TypeError. May be called from a thread that the runner started. Raises TurnEnded once the runner is
        over.
        """
        self.run._dispatcher._emit(self, kind, data)

    def keep(self, data: object) -> None:
        """Keep JSON data beside the text of the assistant message, written in the same write.

        The data are taken at the call, and the last call wins, whatever the outcome of the turn. What is not
        JSON, or nested more than 200 levels deep, raises TypeError. Never waits, so it may be called while
        the turn is being cancelled, and from a thread that the runner started. Raises TurnEnded once the
        runner is over.
        """
        self.run._dispatcher._keep(self, data)

    async def fold(self) -> list[Run]:
        """Take in the queued follow-ups that may join this turn, and return them; none once it is cancelled.

        Never waits, so it is never cancelled half-way.
        """
        return self.run._dispatcher._fold(self)

    def waiting(self) -> list[Run]:
        """Return what `fold` would take in now, without taking it: for those who may refuse it."""
        return self.run._dispatcher._foldable(self)

    async def clean_up(self, awaitable: Awaitable[T], within: float = 5.0) -> T:
        """Await something to its end although the turn is interrupted again meanwhile; return its result.

        For what must not be cut short by a second cancel: `except CancelledError: await turn.clean_up(...)`.
        Raises TimeoutError when it takes longer than `within` seconds. An interrupt that came meanwhile is
        raised when it is over. It runs in a task of its own.
        """
        return await self.run._dispatcher._clean_up(awaitable, seconds("within", within))

    async def history(self) -> list[Message]:
        """Return what the store holds of the session: the earlier turns, not this one.

        Cancelling the caller cancels the store's `list`.
        """
        self.run._dispatcher._here()
        return await self.run._dispatcher.messages.list(self.run.session_id)

    def _task_is_over(self, task: asyncio.Future[None]) -> None:
        self.run._dispatcher._task_is_over(self, task)

    def __repr__(self) -> str:
        folded = f" and {len(self._runs) - 1} folded" if len(self._runs) > 1 else ""
        covered = ", covered" if self.covered else ""
        return f"<Turn of {self.run.run_id}{folded}, {self.phase.value}{covered}>"


@dataclass(frozen=True)
class Covered:
    """What a cancel covered, in sequence order; false when nothing was in flight.

    `known` is false when a cancel was meant for one run and there is no such run, or no longer.
    """

    runs: list[Run]
    known: bool = True

    def __bool__(self) -> bool:
        return bool(self.runs)
