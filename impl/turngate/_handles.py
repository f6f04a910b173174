"""The handles that callers and runners hold: Run, Turn, Covered and TextStream.

A handle points at a record, which the core works on, and carries what the core does not need: the context,
the tasks that wait, hooks and callbacks. Both dispatchers use the same handles; `Home` is what a handle needs
of either.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import AsyncIterable, Awaitable, Callable
from dataclasses import dataclass, field
from sys import getsizeof
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from turngate._core import COMPLETE
from turngate._errors import TurnEnded, TurngateError, UnknownRun
from turngate._events import Delta, Note, Waiters
from turngate._log import call_back, guard
from turngate._loop import clean_up
from turngate._prompt import check_callback, decode, encode, plain, seconds, whole_number
from turngate._turn import current_turn

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Generator, Sequence
    from contextvars import Context
    from typing import Self

    from turngate._core import RunRecord, State, TurnRecord
    from turngate._deadlock import DeadlockCheck
    from turngate._events import RunComplete, TurnStream
    from turngate._loop import HomeLoop
    from turngate._messages import ListOfMessages, Message
    from turngate._prompt import Attachment, OnComplete, Payload, WhenBusy
    from turngate._turn import Execution, TurnHost


T = TypeVar("T")

Runner = Callable[["Turn"], Awaitable[str | None] | AsyncIterable[str]]
"""The user's function, called once per turn: an async function, or an async generator that yields text."""


class Home(Protocol):
    """What a handle needs of the dispatcher that it belongs to."""

    loop: HomeLoop
    """The loop that it belongs to."""
    events: TurnStream
    """Receives what turns write and note."""
    turn_host: TurnHost
    """Begins and ends turns."""
    deadlocks: DeadlockCheck
    """Refuses waits of runners that would never end."""

    def expect_end(self, run: Run) -> None:
        """Make sure that this process learns the end of the run; raise if it cannot."""

    def find(self, run_id: str) -> Run | None:
        """Return the handle of a run, None if the run is no longer known."""
        ...

    async def blocks(self, run: Run) -> bool:
        """Return whether the run cannot complete before the active turn of its session ends."""
        ...

    async def knows(self, run_id: str) -> bool:
        """Return whether there is a run of this id."""
        ...

    async def cancel(self, run: Run) -> Covered:
        """Cover the run, or the whole turn that it is part of."""
        ...

    async def release(self, run: Run) -> None:
        """Complete the run if it has not entered."""

    async def fold(self, turn: Turn) -> list[Run]:
        """Take follow-ups into the turn."""
        ...

    def foldable(self, turn: Turn) -> list[Run]:
        """Return what a fold would take into the turn."""
        ...

    async def list_messages(self, session_id: str) -> ListOfMessages:
        """Return what the store holds of the session."""
        ...


class Run:
    """The life of one prompt, from accept to its RunComplete. Read it and await it; do not change it.

    `complete` is the RunComplete, None until there is one. In a handle that `find` had to make for a
    complete run, `prompt` and `attachments` are empty.
    """

    __slots__ = (
        "__weakref__", "accepted_as", "attachments", "callbacks", "context", "home", "led_by", "listeners",
        "on_complete", "pieces", "record", "turn", "version", "waiters",
    )  # fmt: skip

    def __init__(
        self,
        home: Home,
        record: RunRecord,
        attachments: tuple[Attachment | str, ...] = (),
        on_complete: OnComplete | None = None,
        context: Context | None = None,
    ) -> None:
        self.home = home
        self.record = record
        self.attachments = attachments
        self.on_complete = on_complete
        self.context = context
        self.accepted_as: Payload | None = None
        """The payload with which the run was accepted, if it was edited since."""
        self.turn: Turn | None = None
        """The turn that the run is part of while it is active, if that runs in this process."""
        self.led_by: Run | None = None
        """The lead of the turn that the run was folded into, once that has ended."""
        self.pieces: Sequence[str] | None = None
        """The text of the turn that the run was part of, once that has ended."""
        self.version = 0
        """On a ledger: the version of the session at which the run was last seen."""
        self.waiters: Waiters | None = None
        """The tasks that wait for the end, if there are any."""
        self.listeners: Waiters | None = None
        """The tasks that wait for text, if there are any."""
        self.callbacks: tuple[OnComplete, ...] = ()

    @property
    def session_id(self) -> str:
        """The session that the run belongs to."""
        return self.record.session_id

    @property
    def run_id(self) -> str:
        """The name of the run."""
        return self.record.run_id

    @property
    def seq(self) -> int:
        """The accept sequence."""
        return self.record.seq

    @property
    def prompt(self) -> str:
        """The text of the prompt."""
        return self.record.prompt

    @property
    def when_busy(self) -> WhenBusy:
        """What the prompt does when its session is busy."""
        return self.record.when_busy

    @property
    def state(self) -> State:
        """The state of the run in its lifecycle."""
        return self.record.state

    @property
    def covered(self) -> bool:
        """Whether a cancel of this run alone covers it while it is accepted."""
        return self.record.covered

    @property
    def held(self) -> bool:
        """Whether the run is waiting and held, so that it does not start before it is resumed."""
        return self.record.held

    @property
    def data(self) -> Any:
        """The JSON data sent with the prompt, a new copy each time; None if there are none."""
        return decode(self.record.data)

    @property
    def payload(self) -> Payload:
        """The payload as first accepted, with which an accept under the same run_id is compared."""
        record = self.record
        return self.accepted_as or (record.session_id, record.prompt, self.attachments, record.data)

    @property
    def complete(self) -> RunComplete | None:
        """The RunComplete, None until there is one."""
        return self.record.complete

    async def wait(self) -> RunComplete:
        """Return the RunComplete, at once if there is one, whichever process the run ends in.

        Cancelling the caller touches neither the run nor other waiting callers. Raises WouldDeadlock in a
        runner, and in tasks that it started, if the run cannot complete before the runner's turn ends.
        Raises UnknownRun if the completion is no longer kept. On a ledger, raises DispatcherClosed when this
        process's dispatcher closes first (the run goes on elsewhere, or later), and LedgerUnavailable when
        the ledger is gone for good.
        """
        loop = self.home.loop.check_loop()
        complete = self.record.complete
        if complete is not None:
            return complete
        self.check_not_forgotten()
        turn = current_turn()
        if turn is not None:
            return await self.home.deadlocks.wait(turn, self)
        return await self.until_complete(loop)

    async def until_complete(self, loop: asyncio.AbstractEventLoop) -> RunComplete:
        """Return the RunComplete as soon as there is one."""
        while (complete := self.record.complete) is None:
            self.check_not_forgotten()
            self.home.expect_end(self)
            self.waiters = self.waiters or Waiters()
            await self.waiters.wait(loop)
        return complete

    def __await__(self) -> Generator[Any, Any, RunComplete]:
        return self.wait().__await__()

    @property
    def lead(self) -> Run | None:
        """The lead run of the turn that this run is part of, maybe itself; None if it was never in a turn.

        Also None if the lead completed so long ago that it has been forgotten. On a ledger, this is what this
        process knows.
        """
        self.home.loop.check_thread()
        if self.turn is not None:
            return self.turn.run
        complete = self.complete
        if complete is not None and complete.folded_into is not None:
            return self.led_by or self.home.find(complete.folded_into)
        return None if self.pieces is None else self

    def stream(self, start: int = 0) -> TextStream:
        """Return the text that the run's turn writes, piece by piece, from the character `start` on.

        The text is there from its beginning, even after the end of the turn, and whether the run leads the
        turn or was folded into it. If the turn writes nothing, the stream gives what the runner returns, as
        one piece. The stream ends when the run is complete; for a run that never has a turn it is empty.
        Raises WouldDeadlock where a runner would have to wait for text of its own session.
        """
        return TextStream(self, whole_number("start", start, at_least=0))

    def add_done_callback(self, callback: OnComplete) -> None:
        """Call `callback` once, with the RunComplete, whichever way the run ends.

        It is called in addition to the subscribers and `on_complete`. If the run is already complete, it is
        called soon. What it raises is logged. It must not be a coroutine function. On a ledger, raises
        UnknownRun if the run is known to be purged; if it is purged later, before this process has read its
        outcome, an error is logged and nothing is called.
        """
        loop = self.home.loop.check_loop()
        check_callback("the callback", callback)
        self.check_not_forgotten()
        complete = self.complete
        if complete is not None:
            loop.call_soon(call_back, "a callback", callback, complete)
        else:
            self.callbacks += (callback,)
            with contextlib.suppress(TurngateError):
                self.home.expect_end(self)

    async def cancel(self) -> Covered:
        """Cover this run or, when it is part of the active turn, the whole turn; as `cancel_run` does."""
        self.home.loop.check_loop()
        return await self.home.cancel(self)

    async def close(self) -> None:
        """Release the run if it has not entered, otherwise do nothing. Idempotent."""
        self.home.loop.check_loop()
        await self.home.release(self)

    def check_not_forgotten(self) -> None:
        """Raise UnknownRun if the run is complete and its RunComplete is no longer known."""
        if self.record.state is COMPLETE and self.record.complete is None:
            raise UnknownRun(f"run {self.run_id!r} is complete, and its completion is no longer kept")

    def leave_turn(self) -> None:
        """Keep what outlives the turn: its text, and its lead."""
        turn = self.turn
        if turn is not None:
            text = turn.record.text
            self.pieces = turn.parts or ((text,) if text else ())
            self.led_by = turn.run if turn.run is not self else None
            self.turn = None

    def __repr__(self) -> str:
        outcome = ""
        if self.complete is not None:
            outcome = ", cancelled" if self.complete.cancelled else ""
            outcome += f", error {self.complete.error!r}" if self.complete.error else ""
        return f"<Run {self.run_id} of session {self.session_id!r}, seq {self.seq}, {self.state}{outcome}>"


class Turn:
    """One call of the runner: the runs to answer, and what the runner can do meanwhile. Do not change it.

    `run` is the lead run, and `task` the task that runs the turn (None until it starts). `attempt` says which
    attempt at the turn this is, from 1; in memory there is only one. `fence` is a number that grows with
    every owner of the session's turn: pass it to the systems that the runner writes to, so that they can
    refuse writes of an owner that was declared dead. `given_up` says whether this process has lost the turn;
    then nothing that it does counts any more.
    """

    __slots__ = (
        "__weakref__", "_lock", "_unsent", "attempt", "execution", "fence", "folded", "given_up", "home",
        "is_over", "kept", "length", "parts", "record", "run", "task",
    )  # fmt: skip

    def __init__(self, home: Home, record: TurnRecord, lead: Run, fence: int, attempt: int = 1) -> None:
        self.home = home
        self.record = record
        self.run = lead
        self.folded: tuple[Run, ...] = ()
        self.fence = fence
        self.attempt = attempt
        self.given_up = False
        self.task: asyncio.Task[None] | None = None
        self.execution: Execution | None = None
        self.is_over = False
        """Whether the runner has ended, so that the turn accepts nothing more."""
        self.parts: Sequence[str] = ()
        """The text, in the pieces in which it was written."""
        self.length = 0
        self.kept: str | None = None
        """The JSON that is kept with the text."""
        self._lock = threading.Lock()
        self._unsent: list[tuple[Delta | Note, int]] | None = None
        """What was written or noted and is not delivered yet, with its size in bytes."""

    @property
    def runs(self) -> list[Run]:
        """The lead run and the folded ones, in the order in which they joined."""
        return [self.run, *self.folded]

    @property
    def covered(self) -> bool:
        """Whether a cancel covers the turn."""
        return self.record.covered

    def write(self, text: str) -> None:
        """Stream text to the subscribers. It is the turn's text if the runner returns None.

        May be called from a thread that the runner started. Raises TurnEnded once the runner has ended.
        """
        if not isinstance(text, str):
            raise TypeError(f"a turn writes strings, not {type(text).__name__}")
        text = plain(text)
        with self._lock:
            self.check_open("write to")
            if text:
                if not isinstance(self.parts, list):
                    self.parts = []
                self.parts.append(text)
            run = self.run.record
            is_first = self._append(Delta(run.session_id, run.run_id, text, self.length), getsizeof(text))
            self.length += len(text)
        self._send_or_schedule(is_first)

    def emit(self, kind: str, data: object = None) -> None:
        """Send the subscribers something that is not part of the text: a tool call, reasoning, progress.

        They receive a Note, in order with the text. The data must be JSON, nested at most 200 levels deep;
        otherwise raises TypeError. May be called from a thread that the runner started. Raises TurnEnded once
        the runner has ended.
        """
        if not isinstance(kind, str):
            raise TypeError(f"the kind of a note must be a string, not {type(kind).__name__}")
        kind, text = plain(kind), encode(data, "turn.emit")
        run = self.run.record
        note = Note(run.session_id, run.run_id, kind, decode(text))
        with self._lock:
            self.check_open("emit from")
            is_first = self._append(note, len(kind) + len(text))
        self._send_or_schedule(is_first)

    def keep(self, data: object) -> None:
        """Keep JSON data with the text of the assistant message, written in the same write.

        The data are copied at the call, and the last call wins, whatever the outcome of the turn. Data that
        are not JSON, or nested more than 200 levels deep, raise TypeError. Never waits, so it may be called
        while the turn is being cancelled, and from a thread that the runner started. Raises TurnEnded once
        the runner has ended.
        """
        text = encode(data, "turn.keep")
        with self._lock:
            self.check_open("keep in")
            self.kept = text

    async def fold(self) -> list[Run]:
        """Take in the queued follow-ups that may join this turn, and return them; none once it is cancelled.

        In memory it never waits, so it is never cancelled half-way. On a ledger, if it is cancelled while it
        waits, follow-ups that were taken in on record are among `runs` anyway; it raises TurnEnded if
        the turn was given up.
        """
        return await self.home.fold(self)

    def waiting(self) -> list[Run]:
        """Return what `fold` would take in now, without doing it, so that the runner can decline.

        On a ledger, this is what this process knows; it looks again with every poll.
        """
        return self.home.foldable(self)

    async def clean_up(self, awaitable: Awaitable[T], within: float = 5.0) -> T:
        """Await something to its end even if the turn is interrupted again meanwhile; return its result.

        For clean-ups that a second cancel must not cut short: `except CancelledError: await
        turn.clean_up(...)`. Raises TimeoutError if it takes longer than `within` seconds. An interrupt that
        comes meanwhile is raised afterwards. The clean-up runs in a task of its own.
        """
        within = seconds("within", within)
        self.home.loop.check_loop()
        return await clean_up(awaitable, within)

    async def history(self) -> list[Message]:
        """Return what the store holds of the session: the earlier turns, not this one.

        Cancelling the caller cancels the store's `list`.
        """
        self.home.loop.check_loop()
        return await self.home.list_messages(self.run.session_id)

    def join(self, runs: list[Run]) -> None:
        """Add runs to the turn."""
        self.folded += (*runs,)
        for run in runs:
            run.turn = self
            if run.listeners:
                run.listeners.wake()

    def so_far(self) -> tuple[int, str, str | None]:
        """Return the length of the text, the text, and the kept data, all at one moment."""
        with self._lock:
            return self.length, "".join(self.parts), self.kept

    def end_output(self) -> None:
        """Accept nothing more: the runner has ended. What threads have written so far is part of the turn."""
        with self._lock:
            self.is_over = True
        if self._unsent:
            guard("sending what threads have written", self._send)

    def check_open(self, what: str) -> None:
        """Raise TurnEnded if the runner has ended."""
        if self.is_over:
            raise TurnEnded(f"{what} the turn of run {self.run.run_id}, which has ended")

    def _append(self, event: Delta | Note, size: int) -> bool:
        """Add the event to the outbox; return whether it is the first there. The lock is held."""
        if self._unsent is not None:
            self._unsent.append((event, size))
            return False
        self._unsent = [(event, size)]
        return True

    def _send_or_schedule(self, is_first: bool) -> None:
        """Send at once on the loop. From a thread, have the loop send, unless it will do so anyway."""
        home = self.home.loop
        if home.is_running_here():
            self._send()
        elif is_first:
            assert home.loop is not None
            try:
                home.loop.call_soon_threadsafe(self._send)
            except RuntimeError as closed:
                raise TurnEnded(f"write to the turn of {self.run.run_id}, whose loop is closed") from closed

    def _send(self) -> None:
        with self._lock:
            unsent, self._unsent = self._unsent, None
        for event, size in unsent or ():
            self.home.events.stream(event, size)
        for run in (self.run, *self.folded):
            if run.listeners:
                run.listeners.wake()

    def __repr__(self) -> str:
        folded = f" and {len(self.folded)} folded" if self.folded else ""
        covered = ", covered" if self.covered else ""
        return f"<Turn of {self.run.run_id}{folded}, {self.record.phase.value}{covered}>"


class TextStream:
    """The pieces of text of the turn that a run is part of, as an async iterator; see `Run.stream`.

    The turn keeps its text once, in the pieces in which it was written. A reader is a position in that text,
    so a slow reader loses nothing and costs nothing. `offset` counts the characters up to that position. A
    reader that is cancelled while it waits for a piece, for instance by a time-out, loses none.
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
        loop = run.home.loop.check_loop()
        is_checked = False
        while True:
            pieces = run.pieces if run.turn is None else run.turn.parts
            if pieces is not None and (piece := self._next(pieces)):
                return piece
            if run.complete is not None:
                raise StopAsyncIteration
            run.check_not_forgotten()
            if not is_checked:
                is_checked = True
                if (turn := current_turn()) is not None:
                    await run.home.deadlocks.check_read(turn, run)
                    continue
            run.home.expect_end(run)
            run.listeners = run.listeners or Waiters()
            await run.listeners.wait(loop)

    def _next(self, pieces: Sequence[str]) -> str:
        """Return the next non-empty piece, or an empty one if there is none yet."""
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


@dataclass(frozen=True)
class Covered:
    """The runs that a cancel covered, in sequence order; false when nothing was in flight.

    `known` is false when a cancel was for one run and the dispatcher does not know that run (any more). After
    `stop` and `send_now`, `held` are the runs that this call held, and `waiting` all that still wait, in the
    order of their positions.
    """

    runs: list[Run]
    known: bool = True
    held: list[Run] = field(default_factory=list)
    waiting: list[Run] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.runs)


class SessionView(NamedTuple):
    """A session at the moment of looking, taken in one step: it does not change afterwards, its runs do.

    `active` leads the turn that the `folded` runs have joined; None when there is none. `text` is what the
    turn has written so far, `covered` says whether a cancel covers it, `since` when it became active (in
    seconds since the epoch), `phase` is "waiting" (for a place, see `turns_limit`), "starting", "running" or
    "settling". `accepted` have not entered, `settling` were cancelled on entry and are being written down.
    `waiting` are the accepted and the queued runs together, in order.
    """

    session_id: str
    accepted: tuple[Run, ...] = ()
    settling: tuple[Run, ...] = ()
    queued: tuple[Run, ...] = ()
    active: Run | None = None
    folded: tuple[Run, ...] = ()
    text: str = ""
    covered: bool = False
    phase: str | None = None
    since: float | None = None
    waiting: tuple[Run, ...] = ()
