"""Subscriptions, and the events they receive: deltas, notes, decisions, and one RunComplete per run."""

from __future__ import annotations

import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from turngate._errors import SubscriberCutOff

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future
    from collections.abc import Iterable, Iterator
    from typing import Self

    from turngate._core import State


Outcome = Literal["finished", "failed", "cancelled", "cleared", "released", "lost"]


class RunComplete(NamedTuple):
    """The one terminal event of a run.

    `text` is what the turn produced, as far as it got. `error` is for people, and `outcome` for programs: it
    is "cancelled" exactly if `cancelled` is true. `message_id` names the assistant message; it is None when
    none is known to be written. `folded_into` names the lead run of the turn that took this run in.
    """

    session_id: str
    run_id: str
    seq: int
    text: str
    error: str | None
    cancelled: bool
    message_id: str | None
    folded_into: str | None
    outcome: Outcome


class Delta(NamedTuple):
    """Text that a turn wrote; `run_id` is the turn's lead run.

    `offset` counts the characters that the turn had written before it.
    """

    session_id: str
    run_id: str
    text: str
    offset: int


class Note(NamedTuple):
    """What a runner sent to the subscribers with `turn.emit`; `run_id` is the turn's lead run."""

    session_id: str
    run_id: str
    kind: str
    data: Any


class Moved(NamedTuple):
    """A decision of the dispatcher, as in a recorded history; fields that do not apply are None.

    `event` is accept (with the lead run that it is `into`, if it is for one turn), enter (with the `state`
    entered), fold (`into` the lead run), handoff, cancel, clear, hold, resume, move (`before` another run;
    None: it is last) or edit. A cancel, clear, hold or resume of single runs names them in `runs`; one of
    the whole session names none.
    """

    session_id: str
    event: str
    run_id: str | None = None
    seq: int | None = None
    state: State | None = None
    into: str | None = None
    runs: tuple[str, ...] | None = None
    before: str | None = None


Event = RunComplete | Delta | Note | Moved


class Waiters(dict["Future[None]", None]):
    """Waiting tasks, woken in the order in which they came.

    Not a set, which would wake them in the order of their addresses.
    """

    __slots__ = ()

    async def wait(self, loop: AbstractEventLoop) -> None:
        """Wait until woken; the caller then checks whether what it waits for has come."""
        future: Future[None] = loop.create_future()
        self[future] = None
        try:
            await future
        finally:
            del self[future]

    def wake(self) -> None:
        """Wake every waiting task."""
        for future in self:
            if not future.done():
                future.set_result(None)


class LoopCheck(Protocol):
    """Refuses calls from outside the event loop that a dispatcher belongs to."""

    def check_loop(self) -> AbstractEventLoop:
        """Return the dispatcher's loop; raise WrongLoop unless it is running here."""
        ...

    def check_thread(self) -> None:
        """Raise WrongLoop in a thread other than the dispatcher's, and on another loop.

        Unlike `check_loop`, it does not need a running loop.
        """


class TurnStream(Protocol):
    """Receives what turns write and note."""

    def stream(self, event: Delta | Note, size: int) -> None:
        """Deliver what a turn has written or noted; `size` is its bytes."""


class Subscription:
    """The events of one session, or of all, from the moment of subscribing: iterate to receive them.

    A reader that lags loses deltas and notes, counted in `dropped`, but never a RunComplete or a decision. A
    reader that leaves more than `complete_limit` of these unread is cut off: what is buffered is still
    delivered, and then iterating raises SubscriberCutOff. On a ledger a subscription is also cut off when a
    RunComplete cannot be delivered: it was purged first, or the ledger failed while the dispatcher closed.
    Iterating ends when the subscription or the dispatcher closes. Cancelling a waiting reader loses no event.
    A subscription that nothing refers to any more receives nothing.
    """

    def __init__(
        self,
        loop_check: LoopCheck,
        subscribers: Subscribers,
        *,
        session_id: str | None,
        moves: bool,
        delta_limit: int,
        delta_bytes: int,
        complete_limit: int,
    ) -> None:
        self.session_id = session_id
        self.moves = moves
        self.dropped = 0
        self.closed = False
        """Whether it receives nothing more; what is buffered can still be read."""
        self._loop_check = loop_check
        self._subscribers = subscribers
        self._delta_limit = delta_limit
        self._delta_bytes = delta_bytes
        self._complete_limit = complete_limit
        self._unread: deque[Event] = deque()
        self._sizes: deque[int] = deque()
        """The bytes of each unread delta and note."""
        self._unread_bytes = 0
        self._cut_off = ""
        """Why it was cut off, if it was."""
        self._waiters = Waiters()
        subscribers.add(self)

    def receive(self, event: Event, size: int = 0) -> None:
        """Buffer an event. An event with a size is dropped when the reader lags."""
        if size:
            if len(self._sizes) >= self._delta_limit or self._unread_bytes + size > self._delta_bytes:
                self.dropped += 1
                return
            self._sizes.append(size)
            self._unread_bytes += size
        elif len(self._unread) - len(self._sizes) >= self._complete_limit:
            self.cut_off(f"more than {self._complete_limit} RunCompletes and decisions were left unread")
            return
        self._unread.append(event)
        self._waiters.wake()

    def cut_off(self, why: str) -> None:
        """Stop receiving because an event is missing; reading raises SubscriberCutOff at the end."""
        if not self.closed:
            self._cut_off = why
            self._close()

    def _take(self) -> Event:
        event = self._unread.popleft()
        if isinstance(event, Delta | Note):
            self._unread_bytes -= self._sizes.popleft()
        return event

    def close(self) -> None:
        """Stop receiving; what is buffered can still be read. Idempotent."""
        self._loop_check.check_thread()
        self._close()

    def _close(self) -> None:
        if not self.closed:
            self.closed = True
            self._subscribers.remove(self)
            self._waiters.wake()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        loop = self._loop_check.check_loop()
        while not self._unread:
            if self._cut_off:
                raise SubscriberCutOff(self._cut_off)
            if self.closed:
                raise StopAsyncIteration
            self._subscribers.being_read.add(self)
            try:
                await self._waiters.wait(loop)
            finally:
                if not self._waiters:
                    self._subscribers.being_read.discard(self)
        return self._take()

    def __repr__(self) -> str:
        about = "all sessions" if self.session_id is None else repr(self.session_id)
        life = "cut off" if self._cut_off else "closed" if self.closed else "open"
        return f"<Subscription to {about}: {life}, {len(self._unread)} unread, {self.dropped} dropped>"


class Audience:
    """The subscriptions to each session, and to all sessions, for as long as their readers hold them."""

    def __init__(self) -> None:
        self.by_session: dict[str | None, dict[weakref.ref[Subscription], None]] = {}

    def add(self, subscription: Subscription) -> None:
        """Deliver to the subscription from now on."""
        about = subscription.session_id
        reference = weakref.ref(subscription, lambda gone: self._remove(about, gone))
        self.by_session.setdefault(about, {})[reference] = None

    def remove(self, subscription: Subscription) -> None:
        """Stop delivering to the subscription."""
        # While the subscription lives, a reference with a callback equals one without.
        self._remove(subscription.session_id, weakref.ref(subscription))

    def _remove(self, about: str | None, reference: weakref.ref[Subscription]) -> None:
        of_session = self.by_session.get(about, {})
        of_session.pop(reference, None)
        if not of_session:
            self.by_session.pop(about, None)

    def receivers(self, session_id: str) -> Iterator[Subscription]:
        """Yield the subscriptions to this session, then those to all; some may end meanwhile."""
        for about in (session_id, None):
            yield from _living(self.by_session.get(about, ()))

    def __iter__(self) -> Iterator[Subscription]:
        """Yield every subscription; some may end meanwhile."""
        for of_session in [*self.by_session.values()]:
            yield from _living(of_session)

    def deliver(self, event: Event, size: int = 0) -> None:
        """Deliver to the subscriptions to the event's session and to all; see `Subscription.receive`."""
        for subscription in self.receivers(event.session_id):
            subscription.receive(event, size)

    def close(self) -> None:
        """End every subscription; what it has received can still be read."""
        for subscription in self:
            subscription._close()


def _living(references: Iterable[weakref.ref[Subscription]]) -> Iterator[Subscription]:
    for reference in [*references]:
        if (subscription := reference()) is not None:
            yield subscription


class Subscribers:
    """All subscriptions of a dispatcher.

    All of them receive what turns write and note. Those `to_moves` also receive everything else, in the order
    of the decisions; the others receive RunCompletes as they are published, except those that a hook
    receives.
    """

    def __init__(self) -> None:
        self.to_moves = Audience()
        self.to_completes = Audience()
        self.being_read: set[Subscription] = set()
        """Keeps alive a subscription whose only holder is the task that waits for its next event."""

    def _audience(self, subscription: Subscription) -> Audience:
        return self.to_moves if subscription.moves else self.to_completes

    def add(self, subscription: Subscription) -> None:
        """Deliver to the subscription from now on."""
        self._audience(subscription).add(subscription)

    def remove(self, subscription: Subscription) -> None:
        """Stop delivering to the subscription."""
        self._audience(subscription).remove(subscription)

    def listen(self) -> bool:
        """Return whether there is any subscription."""
        return bool(self.to_completes.by_session or self.to_moves.by_session)

    def stream(self, event: Delta | Note, size: int) -> None:
        """Deliver what a turn has written or noted; `size` is its bytes."""
        for audience in (self.to_completes, self.to_moves):
            if audience.by_session:
                audience.deliver(event, size)

    def close(self) -> None:
        """End every subscription; what it has received can still be read."""
        self.to_completes.close()
        self.to_moves.close()
