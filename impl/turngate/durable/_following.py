"""Telling the subscribers of this process what every process does, in the order of the ledger.

RunCompletes and moves are read from the ledger, those of this process too: so there is one order for all of
them, in each session that of its steps. What the turns of this process write is streamed at once, but a turn
is held back until the subscribers have been told what happened up to its start.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from turngate._errors import CursorExpired
from turngate._events import Subscribers, Subscription
from turngate._guard import complain
from turngate._journal import _moved
from turngate.durable._conducting import Conducting
from turngate.durable._ledger import LedgerUnavailable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from turngate._events import Delta, Note, RunComplete
    from turngate.durable._handles import DurableTurn
    from turngate.durable._ledger import Finished, Told

_PAGE: Final = 500
_BEHIND: Final = 2**62
"""An ordinal behind every other."""
_SOON: Final = 0.005


class GatedSubscribers(Subscribers):
    """Subscribers for whom what a turn streams is held back while the turn is `gated`, by its lead run."""

    def __init__(self) -> None:
        super().__init__()
        self.gated: dict[str, tuple[int, list[tuple[Delta | Note, int]]]] = {}

    def stream(self, event: Delta | Note, size: int) -> None:
        """Deliver what a turn has written or noted, or keep it until the turn is gated no longer."""
        held = self.gated.get(event.run_id)
        if held is None:
            super().stream(event, size)
        else:
            held[1].append((event, size))

    def open(self, below: int) -> None:
        """Deliver what the turns have streamed that started at a position below this one."""
        for run_id, (position, events) in [*self.gated.items()]:
            if position < below:
                del self.gated[run_id]
                for event, size in events:
                    super().stream(event, size)


class Following(Conducting):
    """A worker that reads the ledger for its subscribers."""

    def __init__(self, *args: Any, delta_limit: int, delta_bytes: int, complete_limit: int) -> None:
        super().__init__(*args)
        self._subscribers: GatedSubscribers = GatedSubscribers()
        self._delta_limit = delta_limit
        self._delta_bytes = delta_bytes
        self._complete_limit = complete_limit
        self._follower: asyncio.Task[None] | None = None
        self._from_here: asyncio.Future[None] | None = None
        """Done when the follower knows from where on it is to read."""
        self._news = asyncio.Event()
        self._reading = asyncio.Lock()
        self._read = (0, 0)
        self._heard = 0
        self._by_hook: set[str] = set()

    def subscribe(self, session_id: str | None = None, *, moves: bool = False) -> Subscription:
        """Receive the events of the session, or of all, from now on; see `Subscription`.

        RunCompletes, and with `moves` every accept, enter, fold, handoff, cancel and clear, are those of all
        processes, in each session in the order of its steps. Deltas and notes are those of the turns that
        run in this process. A RunComplete that a hook of this process receives is not told again here, except
        with `moves`; in other processes it is.
        """
        loop = self._here()
        if moves and not self._ledger.history:
            raise ValueError("moves are read from the history, which this ledger does not keep")
        subscription = Subscription(
            self,
            session_id=session_id,
            moves=moves,
            delta_limit=self._delta_limit,
            delta_bytes=self._delta_bytes,
            complete_limit=self._complete_limit,
        )
        if self._closed:
            subscription.close()
        elif self._follower is None:
            self._from_here = loop.create_future()
            self._follower = self._spawn(self._follow(self._from_here))
        return subscription

    async def _ready(self) -> None:
        """Open; what comes after a subscription waits until the follower knows where that was."""
        await super()._ready()
        if self._from_here is not None:
            await asyncio.shield(self._from_here)

    async def _follow(self, from_here: asyncio.Future[None]) -> None:
        """Read and deliver, as long as somebody is subscribed."""
        try:
            await super()._ready()
            last = await self._ledger.horizon() - 1
            self._read, self._heard = (last, _BEHIND), last
        except BaseException as exc:
            self._follower = None
            if not from_here.done():
                from_here.set_exception(exc)
                from_here.exception()
            raise
        finally:
            self._from_here = None
            if not from_here.done():
                from_here.set_result(None)
        while self._subscribers.listen():
            self._news.clear()
            try:
                await self._read_on()
            except LedgerUnavailable as away:
                complain(away, "subscribers are not told yet what happens on the ledger")
            await self._wait_for_news(_SOON if self._subscribers.gated else None)
        self._stop_following()

    def _stop_following(self) -> None:
        self._follower = None
        self._by_hook.clear()
        self._subscribers.open(_BEHIND)

    async def _wait_for_news(self, within: float | None = None) -> None:
        """Wait until this process has done something, another may have, or a while has passed."""
        try:
            async with asyncio.timeout(self._poll if within is None else within):
                await self._news.wait()
        except TimeoutError:
            pass

    async def _read_on(self) -> int:
        """Deliver what there is, let the turns stream that started before, and return the horizon."""
        async with self._reading:
            return await self._read_pages()

    async def _read_pages(self) -> int:
        while True:
            finished: list[Finished] = []
            told: list[Told] = []
            if self._subscribers.to_moves.by_session:
                _, told = await self._ledger.told(self._heard, _PAGE)
            if not told:
                _, horizon, finished = await self._ledger.finished(self._read, _PAGE)
            if told:
                await self._deliver_moves(told)
            self._deliver_completes(finished)
            if not told and not finished:
                self._subscribers.open(horizon)
                return horizon

    def _deliver_completes(self, finished: Sequence[Finished]) -> None:
        for position, ordinal, complete in finished:
            self._read = position, ordinal
            if complete.run_id in self._by_hook:
                self._by_hook.discard(complete.run_id)
            else:
                self._guard("delivering a RunComplete", self._subscribers.to_completes.deliver, complete)

    async def _deliver_moves(self, told: Sequence[Told]) -> None:
        complete = [each["run"] for step in told for each in step.entries if each["event"] == "complete"]
        known = (
            {each.row.run_id: each.complete for each in await self._ledger.find(complete)} if complete else {}
        )
        for step in told:
            self._heard = step.position
            for entry in step.entries:
                event = known.get(entry["run"]) if entry["event"] == "complete" else _moved(entry)
                if event is not None:
                    self._guard("delivering a move", self._subscribers.to_moves.deliver, event)

    def _hooked(self, run_id: str) -> None:
        if self._follower is not None:
            self._by_hook.add(run_id)

    def _gate(self, turn: DurableTurn, position: int) -> None:
        if self._subscribers.listen() and self._follower is not None:
            self._subscribers.gated[turn.run.run_id] = position, []
            self._news.set()

    # Completions.

    def completions(self, after: str | None = None) -> LedgerCompletions:
        """Return `(cursor, RunComplete)` of each complete run of every process, oldest kept first.

        An async iterator; at the end it waits for those to come, and ends when the dispatcher is closed.
        `after` is a cursor that it gave, here or in another process: go on behind it. Nothing appears later
        before a cursor already given. Raises CursorExpired, here or while iterating, when what comes behind
        it may have been purged, or it is a cursor of another ledger.
        """
        self._in_thread()
        return LedgerCompletions(self, after)


class LedgerCompletions:
    """The completions that the ledger keeps, in order, then those to come; see `completions`.

    An async iterator. Whoever is cancelled while waiting for one, say by a time-out, loses none.
    """

    def __init__(self, worker: Following, after: str | None) -> None:
        self._worker = worker
        self._name: str | None = None
        self._at = (-1, -1)
        self._page: list[Finished] = []
        if after is not None:
            name, *numbers = after.split(".")
            if len(numbers) != 2 or not all(number.isdecimal() for number in numbers):
                raise CursorExpired(f"the cursor {after!r} is not one of a ledger")
            self._name = name
            self._at = int(numbers[0]), int(numbers[1])
        self._begun = after is not None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[str, RunComplete]:
        worker = self._worker
        while not self._page:
            if worker._closed:
                raise StopAsyncIteration
            await worker._ready()
            name = await worker._ledger.name()
            if self._name is not None and name != self._name:
                raise CursorExpired("the cursor is one of another ledger")
            self._name = name
            worker._news.clear()
            purged, _, page = await worker._ledger.finished(self._at, _PAGE)
            if self._begun and self._at[0] < purged:
                raise CursorExpired("what comes behind the cursor is no longer all kept")
            self._page = page[::-1]
            if not page:
                await worker._wait_for_news()
        position, ordinal, complete = self._page.pop()
        self._at, self._begun = (position, ordinal), True
        return f"{self._name}.{position}.{ordinal}", complete
