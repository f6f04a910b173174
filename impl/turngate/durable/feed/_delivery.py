"""Which subscription receives which event, and in which order. Nothing here does I/O.

What a turn streams is delivered after everything that was saved before the turn started, and before
everything that was saved later.
"""

from __future__ import annotations

import math
import weakref
from typing import TYPE_CHECKING, Final, NamedTuple

from turngate._events import RunComplete, Subscription

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from turngate._events import Delta, Event, Note, Subscribers
    from turngate.durable._ledger import ReadPoint

BEHIND: Final = 2**31 - 1
"""An ordinal after every other."""
_COMPLETE_RUNS: Final = 4_096


class Beginning(NamedTuple):
    """Where a subscription begins: after what could be read at some moment, or at a step under way then."""

    moment: ReadPoint
    under_way: Mapping[str, int]
    """By session, the lowest position of the steps of this process that were under way then."""

    def is_behind(self, session_id: str, position: int) -> bool:
        """Return whether what the session has at the position is before the beginning."""
        return self.moment.has(position) and position < self.under_way.get(session_id, math.inf)

    def first(self) -> int:
        """Return the lowest position at which there may be something to deliver."""
        return min(self.moment.horizon, self.moment.until, *self.under_way.values())


class Gap(NamedTuple):
    """Stands for a RunComplete that was purged before it could be read."""

    session_id: str
    run_id: str


class Delivery:
    """Delivers to each subscription from its beginning on, with what turns stream in its right place.

    The gate of a turn holds back what the turn streams until everything before its start has been delivered.
    All gates together hold back at most as much as one subscription may leave unread. The rest is dropped,
    and counted by the subscriptions that would have received it.
    """

    def __init__(self, subscribers: Subscribers, delta_limit: int, delta_bytes: int) -> None:
        self.subscribers = subscribers
        self._delta_limit = delta_limit
        self._delta_bytes = delta_bytes
        self.beginnings: weakref.WeakKeyDictionary[Subscription, Beginning] = weakref.WeakKeyDictionary()
        self.gates: dict[str, tuple[int, list[tuple[Delta | Note, int]]]] = {}
        """By the lead run of a turn, the position of its start, and what is held back with its size."""
        self.held = self.held_bytes = 0
        """How much all gates hold back."""
        self.complete_runs: dict[str, None] = {}
        """The runs whose RunCompletes were delivered last."""

    def __iter__(self) -> Iterator[Subscription]:
        """Yield every subscription."""
        yield from self.subscribers.to_completes
        yield from self.subscribers.to_moves

    def receivers(self, event: Event | Gap, *, for_hook: bool) -> Iterator[Subscription]:
        """Yield the subscriptions for an event; a RunComplete for a hook goes only to those with `moves`."""
        if isinstance(event, RunComplete | Gap) and not for_hook:
            yield from self.subscribers.to_completes.receivers(event.session_id)
        yield from self.subscribers.to_moves.receivers(event.session_id)

    def deliver(self, event: Event | Gap, position: int, *, for_hook: bool = False) -> None:
        """Deliver an event of the ledger, after what earlier turns have streamed."""
        self.open_gates(position)
        if isinstance(event, RunComplete):
            self.complete_runs[event.run_id] = None
            if len(self.complete_runs) > _COMPLETE_RUNS:
                del self.complete_runs[next(iter(self.complete_runs))]
        for subscription in self.receivers(event, for_hook=for_hook):
            beginning = self.beginnings.get(subscription)
            if beginning is not None and beginning.is_behind(event.session_id, position):
                continue
            if isinstance(event, Gap):
                subscription.cut_off(f"the RunComplete of run {event.run_id} was purged before it was sent")
            else:
                subscription.receive(event)

    def stream(self, event: Delta | Note, size: int) -> None:
        """Deliver what a turn of this process has written or noted, or hold it back at the turn's gate."""
        gate = self.gates.get(event.run_id)
        if gate is None:
            self.subscribers.stream(event, size)
        elif self.held >= self._delta_limit or self.held_bytes + size > self._delta_bytes:
            self._count_dropped(event, 1)
        else:
            gate[1].append((event, size))
            self.held += 1
            self.held_bytes += size

    def stream_remote(self, event: Delta | Note, size: int, missing: int) -> None:
        """Deliver what a turn of another process has streamed; `missing` events before it were lost."""
        if missing > 0:
            self._count_dropped(event, missing)
        self.subscribers.stream(event, size)

    def _count_dropped(self, event: Delta | Note, number: int) -> None:
        for audience in (self.subscribers.to_completes, self.subscribers.to_moves):
            for subscription in audience.receivers(event.session_id):
                subscription.dropped += number

    def gate(self, run_id: str, position: int) -> None:
        """Hold back what the turn of this run streams until everything up to the position is delivered."""
        self.gates[run_id] = position, []

    def open_gates(self, below: float = math.inf) -> None:
        """Deliver what was held back for turns that started at a position below this one."""
        for run_id, (position, events) in [*self.gates.items()]:
            if position < below:
                del self.gates[run_id]
                self.held -= len(events)
                for event, size in events:
                    self.held_bytes -= size
                    self.subscribers.stream(event, size)

    def cut_off_purged(self, position: int) -> None:
        """Cut off the subscriptions that may have missed something up to this position, which is purged."""
        for subscription in self:
            beginning = self.beginnings.get(subscription)
            if beginning is None or position >= beginning.first():
                subscription.cut_off("RunCompletes or decisions were purged before they were sent")

    def cut_off(self, why: str) -> None:
        """Cut off every subscription."""
        for subscription in self:
            subscription.cut_off(why)
