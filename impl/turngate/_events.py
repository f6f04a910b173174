"""What subscribers receive, and how: deltas while a turn runs, one RunComplete when a run is over."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from turngate._errors import SubscriberCutOff

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future
    from collections.abc import Iterable
    from typing import Self


class RunComplete(NamedTuple):
    """The one terminal event of a run.

    `text` is what the turn produced, as far as it came. `message_id` names the assistant message, None when
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


class Delta(NamedTuple):
    """Text that a turn wrote; `run_id` is the turn's lead run."""

    session_id: str
    run_id: str
    text: str


Event = RunComplete | Delta


def wake(waiters: Iterable[Future[None]]) -> None:
    """Let everyone who waits look again."""
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)


class Subscription:
    """The events of one session, or of all, from the moment of subscribing: iterate to receive them.

    A reader that lags loses deltas, counted in `dropped`, and never a RunComplete. One that leaves more than
    `complete_limit` RunCompletes unread is cut off: what is buffered is still delivered, and then iterating
    raises SubscriberCutOff. Iterating ends when the subscription or the dispatcher closes. Cancelling a
    waiting reader loses no event.
    """

    def __init__(
        self,
        loop: AbstractEventLoop,
        subscribers: Subscribers,
        *,
        session_id: str | None,
        delta_limit: int,
        complete_limit: int,
    ) -> None:
        self.session_id = session_id
        self.dropped = 0
        self._loop = loop
        self._subscribers = subscribers
        self._delta_limit = delta_limit
        self._complete_limit = complete_limit
        self._unread: deque[Event] = deque()
        self._unread_deltas = 0
        self._closed = False
        self._cut_off = False
        # Not a set, so that those who wait are woken in the order in which they came.
        self._waiters: dict[Future[None], None] = {}
        subscribers.add(self)

    def _receive(self, event: Event) -> None:
        if isinstance(event, Delta):
            if self._unread_deltas >= self._delta_limit:
                self.dropped += 1
                return
            self._unread_deltas += 1
        elif len(self._unread) - self._unread_deltas >= self._complete_limit:
            self._cut_off = True
            self.close()
            return
        self._unread.append(event)
        wake(self._waiters)

    def close(self) -> None:
        """Stop receiving; what is buffered can still be read. Idempotent."""
        if not self._closed:
            self._closed = True
            self._subscribers.remove(self)
            wake(self._waiters)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while not self._unread:
            if self._cut_off:
                raise SubscriberCutOff(f"more than {self._complete_limit} RunCompletes were left unread")
            if self._closed:
                raise StopAsyncIteration
            waiter: Future[None] = self._loop.create_future()
            self._waiters[waiter] = None
            try:
                await waiter
            finally:
                del self._waiters[waiter]
        event = self._unread.popleft()
        if isinstance(event, Delta):
            self._unread_deltas -= 1
        return event

    def __repr__(self) -> str:
        about = "all sessions" if self.session_id is None else repr(self.session_id)
        life = "cut off" if self._cut_off else "closed" if self._closed else "open"
        return f"<Subscription to {about}: {life}, {len(self._unread)} unread, {self.dropped} dropped>"


class Subscribers:
    """Who receives what: the subscriptions to each session, and to all."""

    def __init__(self) -> None:
        self.by_session: dict[str | None, list[Subscription]] = {}

    def add(self, subscription: Subscription) -> None:
        """Deliver to the subscription from now on."""
        self.by_session.setdefault(subscription.session_id, []).append(subscription)

    def remove(self, subscription: Subscription) -> None:
        """Deliver to the subscription no longer."""
        of_session = self.by_session[subscription.session_id]
        of_session.remove(subscription)
        if not of_session:
            del self.by_session[subscription.session_id]

    def deliver(self, event: Event) -> None:
        """Give the event to those who subscribed to its session or to all."""
        for about in (event.session_id, None):
            for subscription in [*self.by_session.get(about, ())]:
                subscription._receive(event)

    def close(self) -> None:
        """End every subscription after what it has received."""
        for subscription in [
            subscription for of_session in self.by_session.values() for subscription in of_session
        ]:
            subscription.close()
