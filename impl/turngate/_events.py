"""What subscribers receive, and how: deltas while a turn runs, one RunComplete when a run is over."""

from __future__ import annotations

import weakref
from collections import deque
from sys import getsizeof
from typing import TYPE_CHECKING, NamedTuple

from turngate._errors import SubscriberCutOff
from turngate._waiters import Waiters

if TYPE_CHECKING:
    from typing import Self

    from turngate._shell import Shell


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


class Subscription:
    """The events of one session, or of all, from the moment of subscribing: iterate to receive them.

    A reader that lags loses deltas, counted in `dropped`, and never a RunComplete. One that leaves more than
    `complete_limit` RunCompletes unread is cut off: what is buffered is still delivered, and then iterating
    raises SubscriberCutOff. Iterating ends when the subscription or the dispatcher closes. Cancelling a
    waiting reader loses no event. A subscription that nobody holds any more receives nothing.
    """

    def __init__(
        self,
        shell: Shell,
        *,
        session_id: str | None,
        delta_limit: int,
        delta_bytes: int,
        complete_limit: int,
    ) -> None:
        self.session_id = session_id
        self.dropped = 0
        self._shell = shell
        self._subscribers = shell._subscribers
        self._delta_limit = delta_limit
        self._delta_bytes = delta_bytes
        self._complete_limit = complete_limit
        self._unread: deque[Event] = deque()
        self._unread_deltas = 0
        self._unread_bytes = 0
        self._closed = False
        self._cut_off = False
        self._waiters = Waiters()
        self._subscribers.add(self)

    def _receive(self, event: Event) -> None:
        if isinstance(event, Delta):
            size = getsizeof(event.text)
            if self._unread_deltas >= self._delta_limit or self._unread_bytes + size > self._delta_bytes:
                self.dropped += 1
                return
            self._unread_deltas += 1
            self._unread_bytes += size
        elif len(self._unread) - self._unread_deltas >= self._complete_limit:
            self._cut_off = True
            self._close()
            return
        self._unread.append(event)
        self._waiters.wake()

    def close(self) -> None:
        """Stop receiving; what is buffered can still be read. Idempotent."""
        self._shell._in_thread()
        self._close()

    def _close(self) -> None:
        if not self._closed:
            self._closed = True
            self._subscribers.remove(self)
            self._waiters.wake()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        loop = self._shell._here()
        while not self._unread:
            if self._cut_off:
                raise SubscriberCutOff(f"more than {self._complete_limit} RunCompletes were left unread")
            if self._closed:
                raise StopAsyncIteration
            self._subscribers.being_read.add(self)
            try:
                await self._waiters.wait(loop)
            finally:
                if not self._waiters:
                    self._subscribers.being_read.discard(self)
        event = self._unread.popleft()
        if isinstance(event, Delta):
            self._unread_deltas -= 1
            self._unread_bytes -= getsizeof(event.text)
        return event

    def __repr__(self) -> str:
        about = "all sessions" if self.session_id is None else repr(self.session_id)
        life = "cut off" if self._cut_off else "closed" if self._closed else "open"
        return f"<Subscription to {about}: {life}, {len(self._unread)} unread, {self.dropped} dropped>"


class Subscribers:
    """Who receives what: the subscriptions to each session, and to all, as long as somebody holds them.

    A subscription that is being read is held here: the task that reads it may be known to nobody else.
    """

    def __init__(self) -> None:
        self.by_session: dict[str | None, dict[weakref.ref[Subscription], None]] = {}
        self.being_read: set[Subscription] = set()

    def add(self, subscription: Subscription) -> None:
        """Deliver to the subscription from now on."""
        about = subscription.session_id
        reference = weakref.ref(subscription, lambda gone: self._remove(about, gone))
        self.by_session.setdefault(about, {})[reference] = None

    def remove(self, subscription: Subscription) -> None:
        """Deliver to the subscription no longer."""
        # A reference that has a callback is equal to one that has none, as long as what it is of lives.
        self._remove(subscription.session_id, weakref.ref(subscription))

    def _remove(self, about: str | None, reference: weakref.ref[Subscription]) -> None:
        of_session = self.by_session.get(about, {})
        of_session.pop(reference, None)
        if not of_session:
            self.by_session.pop(about, None)

    def deliver(self, event: Event) -> None:
        """Give the event to those who subscribed to its session or to all."""
        for about in (event.session_id, None):
            for reference in [*self.by_session.get(about, ())]:
                subscription = reference()
                if subscription is not None:
                    subscription._receive(event)

    def close(self) -> None:
        """End every subscription after what it has received."""
        for of_session in [*self.by_session.values()]:
            for reference in [*of_session]:
                subscription = reference()
                if subscription is not None:
                    subscription._close()
