"""Which subscription receives which event, and in which order. Nothing here does I/O.

Events of the ledger reach the subscriptions on two lanes: completions, and all moves. Both lanes are walked
together, by position. What a turn streams is delivered after everything that was saved before the turn
started, and before everything that was saved later, on either lane.
"""

from __future__ import annotations

import math
import weakref
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from turngate._events import RunComplete, Subscription

if TYPE_CHECKING:
    from turngate._events import Audience, Delta, Event, Note, Subscribers
    from turngate.durable._ledger import Place, ReadPoint

BEHIND: Final = 2**31 - 1
"""An ordinal behind every other."""
_COMPLETE_RUNS: Final = 4_096


class Beginning(NamedTuple):
    """Where a subscription begins: after what could be read at a moment, except steps then under way."""

    moment: ReadPoint
    under_way: frozenset[int]

    def is_behind(self, position: int) -> bool:
        """Say whether the position is before the beginning."""
        return self.moment.has(position) and position not in self.under_way

    def first(self) -> int:
        """Return the lowest position at which there may be something to deliver."""
        return min(self.moment.horizon, self.moment.until, *self.under_way)


class Gap(NamedTuple):
    """Stands for a RunComplete that was purged before it could be read."""

    session_id: str
    run_id: str


class Batch(NamedTuple):
    """What one read of the ledger returned for a lane."""

    events: list[tuple[int, Event | Gap]]
    """Each with its position, in order."""
    horizon: int
    purged: Place
    """The last place that was purged."""
    end: Place
    """The place of the last of the events, or where the read began."""
    more: bool
    """Whether there may be more events below the horizon."""


class Lane:
    """One kind of event on its way to its audience."""

    def __init__(self, audience: Audience) -> None:
        self.audience = audience
        self.in_use = False
        """Whether it is walked; if not, it begins where its next subscription does."""
        self.at: Place = (-1, -1)
        """Everything up to this place has been loaded."""
        self.coming: deque[tuple[int, Event | Gap]] = deque()
        """What has been loaded and not delivered, by position."""
        self.more = True
        """Whether there may be more between what has been loaded and the horizon."""
        self.horizon = 0

    def begin(self, first: int) -> None:
        """Walk on from this position, unless the lane is walked already."""
        if not self.in_use:
            self.in_use = True
            self.at, self.horizon, self.more = (first - 1, BEHIND), first, True
            self.coming.clear()

    def load(self, batch: Batch) -> None:
        """Add what comes next."""
        self.coming += batch.events
        self.horizon, self.more, self.at = batch.horizon, batch.more, batch.end
        if not self.more:  # nothing can appear below the horizon any more
            self.at = max(self.at, (self.horizon - 1, BEHIND))

    def has_loaded(self, position: int) -> bool:
        """Say whether the position has been loaded, and will not be again."""
        return self.in_use and position <= self.at[0]

    def next(self) -> int:
        """Return the position of the next event; the horizon if none is known."""
        return self.coming[0][0] if self.coming else self.horizon


class Delivery:
    """Delivers to each subscription from its beginning on, and what turns stream at its place in that order.

    The gate of a turn holds back what the turn streams until everything before its start has been delivered.
    All gates together hold back as much as one subscription may leave unread; the rest is dropped, and
    counted by the subscriptions that would have received it.
    """

    def __init__(self, subscribers: Subscribers, delta_limit: int, delta_bytes: int) -> None:
        self.subscribers = subscribers
        self._delta_limit = delta_limit
        self._delta_bytes = delta_bytes
        self.completes = Lane(subscribers.to_completes)
        self.moves = Lane(subscribers.to_moves)
        self.beginnings: weakref.WeakKeyDictionary[Subscription, Beginning] = weakref.WeakKeyDictionary()
        self.gates: dict[str, tuple[int, list[tuple[Delta | Note, int]]]] = {}
        """By the lead run of a turn, the position of its start, and what is held back with its size."""
        self.held = self.held_bytes = 0
        """How much all gates hold back."""
        self.complete_runs: dict[str, None] = {}
        """The runs whose RunCompletes were delivered last."""

    def lane_of(self, subscription: Subscription) -> Lane:
        """Return the lane that leads to the subscription."""
        return self.moves if subscription.moves else self.completes

    def lanes(self) -> list[Lane]:
        """Return the lanes that lead to any subscription."""
        for lane in (self.completes, self.moves):
            lane.in_use = lane.in_use and bool(lane.audience.by_session)
        return [lane for lane in (self.completes, self.moves) if lane.in_use]

    def begin(self, subscription: Subscription, beginning: Beginning) -> None:
        """Deliver what comes from there on."""
        self.beginnings[subscription] = beginning
        self.lane_of(subscription).begin(beginning.first())

    def deliver(self, lane: Lane, event: Event | Gap, position: int) -> None:
        """Deliver an event of the ledger, after what turns have streamed that started before it."""
        self.open_gates(position)
        if isinstance(event, RunComplete):
            self.complete_runs[event.run_id] = None
            if len(self.complete_runs) > _COMPLETE_RUNS:
                del self.complete_runs[next(iter(self.complete_runs))]
        for subscription in lane.audience.receivers(event.session_id):
            beginning = self.beginnings.get(subscription)
            if beginning is not None and beginning.is_behind(position):
                continue
            if isinstance(event, Gap):
                subscription.cut_off(f"the RunComplete of run {event.run_id} was purged before it was told")
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
        for lane in (self.completes, self.moves):
            for subscription in lane.audience.receivers(event.session_id):
                subscription.dropped += number

    def gate(self, run_id: str, position: int) -> None:
        """Hold back what the turn of this run streams until everything up to the position is delivered."""
        self.gates[run_id] = position, []

    def open_gates(self, below: float) -> None:
        """Deliver what was held back of the turns that started at a position below this one."""
        for run_id, (position, events) in [*self.gates.items()]:
            if position < below:
                del self.gates[run_id]
                self.held -= len(events)
                for event, size in events:
                    self.held_bytes -= size
                    self.subscribers.stream(event, size)

    def cut_off_purged(self, lane: Lane, position: int) -> None:
        """Cut off the subscriptions that may have missed something up to this position, which is purged."""
        for subscription in lane.audience:
            beginning = self.beginnings.get(subscription)
            if beginning is None or position >= beginning.first():
                subscription.cut_off("RunCompletes or moves were purged before they were told")

    def cut_off(self, why: str) -> None:
        """Cut off every subscription."""
        for lane in (self.completes, self.moves):
            for subscription in lane.audience:
                subscription.cut_off(why)

    def stop(self) -> None:
        """Open all gates; the next subscription begins afresh."""
        self.completes.in_use = self.moves.in_use = False
        self.open_gates(math.inf)
