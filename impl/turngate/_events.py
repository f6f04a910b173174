"""What subscribers receive, and how: what a turn writes and notes, every move, one RunComplete a run."""

from __future__ import annotations

import weakref
from collections import deque
from sys import getsizeof
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from turngate._errors import SubscriberCutOff
from turngate._waiters import Waiters

if TYPE_CHECKING:
    from typing import Self

    from turngate._lifecycle import State
    from turngate._shell import Shell

Outcome = Literal["finished", "failed", "cancelled", "cleared", "released", "lost"]


class RunComplete(NamedTuple):
    """The one terminal event of a run.

    `text` is what the turn produced, as far as it came. `error` is for people, `outcome` for programs: it is
    "cancelled" exactly if `cancelled` is true. `message_id` names the assistant message, None when none is
    known to be written. `folded_into` names the lead run of the turn that took this run in.
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
    """What a runner told the subscribers with `turn.emit`; `run_id` is the turn's lead run."""

    session_id: str
    run_id: str
    kind: str
    data: Any


class Moved(NamedTuple):
    """A decision of the dispatcher, as a recorded history has it; None where something does not apply.

    `event` is accept, enter (with the `state` entered), fold (`into` the lead run), handoff, cancel or clear.
    A cancel of single runs names them in `runs`; a cancel of the whole session names none.
    """

    session_id: str
    event: str
    run_id: str | None = None
    seq: int | None = None
    state: State | None = None
    into: str | None = None
    runs: tuple[str, ...] | None = None


Event = RunComplete | Delta | Note | Moved


class Subscription:
    """The events of one session, or of all, from the moment of subscribing: iterate to receive them.

    A reader that lags loses deltas and notes, counted in `dropped`, and never a RunComplete or a move. One
    that leaves more than `complete_limit` of these unread is cut off: what is buffered is still delivered,
    and then iterating raises SubscriberCutOff. On a ledger a subscription is also cut off when a RunComplete
    cannot be told: it was purged first, or the ledger failed while the dispatcher closed. Iterating ends when
    the subscription or the dispatcher closes. Cancelling a waiting reader loses no event. A subscription that
    nobody holds any more receives nothing.
    """

    def __init__(
        self,
        shell: Shell,
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
        self._shell = shell
        self._subscribers = shell._subscribers
        self._delta_limit = delta_limit
        self._delta_bytes = delta_bytes
        self._complete_limit = complete_limit
        self._unread: deque[Event] = deque()
        self._sizes: deque[int] = deque()
        """How many bytes each unread delta and note takes."""
        self._unread_bytes = 0
        self._closed = False
        self._cut_off = ""
        """Why it was cut off, if it was."""
        self._waiters = Waiters()
        self._subscribers.add(self)

    def _receive(self, event: Event, size: int) -> None:
        """Take an event in; one that may be dropped has a size."""
        if size:
            if len(self._sizes) >= self._delta_limit or self._unread_bytes + size > self._delta_bytes:
                self.dropped += 1
                return
            self._sizes.append(size)
            self._unread_bytes += size
        elif len(self._unread) - len(self._sizes) >= self._complete_limit:
            self.cut_off(f"more than {self._complete_limit} RunCompletes and moves were left unread")
            return
        self._unread.append(event)
        self._waiters.wake()

    def cut_off(self, why: str) -> None:
        """Stop receiving, because what comes next is missing; reading raises SubscriberCutOff at the end."""
        if not self._closed:
            self._cut_off = why
            self._close()

    def _take(self) -> Event:
        event = self._unread.popleft()
        if isinstance(event, Delta | Note):
            self._unread_bytes -= self._sizes.popleft()
        return event

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
                raise SubscriberCutOff(self._cut_off)
            if self._closed:
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
        life = "cut off" if self._cut_off else "closed" if self._closed else "open"
        return f"<Subscription to {about}: {life}, {len(self._unread)} unread, {self.dropped} dropped>"


class Audience:
    """Those who subscribed to each session, and to all, as long as somebody holds their subscriptions."""

    def __init__(self) -> None:
        self.by_session: dict[str | None, dict[weakref.ref[Subscription], None]] = {}

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

    def deliver(self, event: Event, size: int = 0) -> None:
        """Give the event to those who subscribed to its session or to all; of a size if it may be dropped."""
        for about in (event.session_id, None):
            for reference in [*self.by_session.get(about, ())]:
                subscription = reference()
                if subscription is not None:
                    subscription._receive(event, size)

    def close(self) -> None:
        """End every subscription after what it has received."""
        for of_session in [*self.by_session.values()]:
            for reference in [*of_session]:
                subscription = reference()
                if subscription is not None:
                    subscription._close()


class Subscribers:
    """Who receives what.

    What a turn writes and notes goes to everybody. Those `to_moves` are told everything else in the order in
    which it is decided; the others receive RunCompletes as they are published, unless a hook receives them.
    """

    def __init__(self) -> None:
        self.to_moves = Audience()
        self.to_completes = Audience()
        self.being_read: set[Subscription] = set()
        """Held here because the task that reads one may be known to nobody else."""

    def _audience(self, subscription: Subscription) -> Audience:
        return self.to_moves if subscription.moves else self.to_completes

    def add(self, subscription: Subscription) -> None:
        """Deliver to the subscription from now on."""
        self._audience(subscription).add(subscription)

    def remove(self, subscription: Subscription) -> None:
        """Deliver to the subscription no longer."""
        self._audience(subscription).remove(subscription)

    def listen(self) -> bool:
        """Say whether there is anybody at all."""
        return bool(self.to_completes.by_session or self.to_moves.by_session)

    def stream(self, event: Delta | Note, size: int) -> None:
        """Deliver what a turn has written or noted, which takes so many bytes."""
        self.to_completes.deliver(event, size)
        self.to_moves.deliver(event, size)

    def close(self) -> None:
        """End every subscription after what it has received."""
        self.to_completes.close()
        self.to_moves.close()


def size_of(delta: Delta) -> int:
    """Return the bytes of a delta, as limits count them."""
    return getsizeof(delta.text)
