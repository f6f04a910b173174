"""Who is told what of the ledger, from where on, and in which order. Nothing here does any I/O.

Two lanes lead to the subscribers: the completions, and every move. Both are walked by position, together, so
that what a turn streams comes between what happened before its start and what happened after it, for those of
either lane.
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from turngate._events import RunComplete, Subscribers, Subscription

if TYPE_CHECKING:
    from collections.abc import Callable

    from turngate._events import Audience, Delta, Event, Note
    from turngate.durable._ledger import ReadPoint

BEHIND: Final = 2**31 - 1
"""An ordinal behind every other."""
_OVER: Final = 4_096


class Beginning(NamedTuple):
    """Where a subscription begins: behind what was there at a moment, but for steps that were under way."""

    moment: ReadPoint
    under_way: frozenset[int]

    def is_behind(self, position: int) -> bool:
        """Say whether what is at this position was before the beginning."""
        return self.moment.has(position) and position not in self.under_way

    def is_all_behind(self, position: int) -> bool:
        """Say whether everything up to this position was before the beginning."""
        lowest = min(self.moment.until, *self.moment.pending, *self.under_way)
        return position < lowest

    def first(self) -> int:
        """Return the lowest position of which there may be something to tell."""
        return min(self.moment.horizon, *self.under_way, self.moment.until)


class Gap(NamedTuple):
    """What stands in a lane for a RunComplete that was purged before it could be read."""

    session_id: str
    run_id: str


class Lane:
    """One kind of event on its way to those who subscribed to it."""

    def __init__(self, audience: Audience) -> None:
        self.audience = audience
        self.in_use = False
        """Whether it is walked; if not, it begins where its next subscriber does."""
        self.at = (-1, -1)
        self.coming: deque[tuple[int, Event | Gap]] = deque()
        self.more = True
        """Whether there may be more, behind what is coming and below the horizon."""
        self.horizon = 0

    def begin(self, first: int) -> None:
        """Walk on from this position, unless it is walked already."""
        if not self.in_use:
            self.in_use = True
            self.at, self.horizon, self.more = (first - 1, BEHIND), first, True
            self.coming.clear()

    def load(self, events: list[tuple[tuple[int, int], Event | Gap]], horizon: int) -> None:
        """Take in what comes next, in order."""
        self.coming += [(position, event) for (position, _), event in events]
        self.horizon = horizon
        if events:
            self.at = events[-1][0]

    def settle(self) -> None:
        """Take note that nothing more will appear below the horizon, if everything there was loaded."""
        if not self.more:
            self.at = max(self.at, (self.horizon - 1, BEHIND))

    def passed(self, position: int) -> bool:
        """Say whether what is at this position was loaded before, so that it will not be again."""
        return self.in_use and position <= self.at[0]

    def coming_at(self, position: int) -> list[Event | Gap]:
        """Return what was loaded of this position and is not told yet."""
        return [event for at, event in self.coming if at == position]

    def next(self) -> int:
        """Return the position of what comes next: at least the horizon, if nothing is known to come."""
        return self.coming[0][0] if self.coming else self.horizon


class GatedSubscribers(Subscribers):
    """Subscribers who are told what the ledger has, from their beginnings on.

    What a turn streams is held back while the turn is `gated`, by its lead run. What all of them hold back
    together is limited like what one subscriber leaves unread; the rest is dropped, and counted by those who
    would have received it.
    """

    def __init__(self, delta_limit: int, delta_bytes: int) -> None:
        super().__init__()
        self.gated: dict[str, tuple[int, list[tuple[Delta | Note, int]]]] = {}
        self._delta_limit = delta_limit
        self._delta_bytes = delta_bytes
        self._held = 0
        """How many events the gated turns hold back."""
        self._held_bytes = 0
        self.beginnings: weakref.WeakKeyDictionary[Subscription, Beginning] = weakref.WeakKeyDictionary()
        self.relay: Callable[[Delta | Note], None] | None = None
        """Called with what the turns of this process stream."""
        self.over: dict[str, None] = {}
        """The runs whose RunCompletes were told last."""
        self.completes = Lane(self.to_completes)
        self.moves = Lane(self.to_moves)

    def lane_of(self, subscription: Subscription) -> Lane:
        """Return the lane that leads to the subscription."""
        return self.moves if subscription.moves else self.completes

    def begin(self, subscription: Subscription, beginning: Beginning) -> None:
        """Tell the subscription what comes from there on."""
        self.beginnings[subscription] = beginning
        self.lane_of(subscription).begin(beginning.first())

    def lanes(self) -> list[Lane]:
        """Return the lanes that somebody listens to."""
        for lane in (self.completes, self.moves):
            lane.in_use = lane.in_use and bool(lane.audience.by_session)
        return [lane for lane in (self.completes, self.moves) if lane.in_use]

    def tell(self, audience: Audience, event: Event | Gap, position: int) -> None:
        """Deliver what is at this position, behind what the turns have streamed that started before it."""
        self.open(position)
        if isinstance(event, RunComplete):
            self.over[event.run_id] = None
            if len(self.over) > _OVER:
                del self.over[next(iter(self.over))]
        if not self.beginnings and not isinstance(event, Gap):
            audience.deliver(event)
            return
        for about in (event.session_id, None):
            for reference in [*audience.by_session.get(about, ())]:
                subscription = reference()
                beginning = None if subscription is None else self.beginnings.get(subscription)
                if subscription is None or (beginning is not None and beginning.is_behind(position)):
                    continue
                if isinstance(event, Gap):
                    subscription.cut_off(
                        f"the RunComplete of run {event.run_id} was purged before it was told"
                    )
                else:
                    subscription._receive(event, 0)

    def stream(self, event: Delta | Note, size: int) -> None:
        """Deliver what a turn has written or noted, or keep it until the turn is gated no longer."""
        if self.relay is not None:
            self.relay(event)
        held = self.gated.get(event.run_id)
        if held is None:
            super().stream(event, size)
        elif self._held >= self._delta_limit or self._held_bytes + size > self._delta_bytes:
            self._drop(event, 1)
        else:
            held[1].append((event, size))
            self._held += 1
            self._held_bytes += size

    def _drop(self, event: Delta | Note, number: int) -> None:
        """Count events that those who would receive this one do not get."""
        for audience in (self.to_completes, self.to_moves):
            for about in (event.session_id, None):
                for reference in audience.by_session.get(about, ()):
                    if (subscription := reference()) is not None:
                        subscription.dropped += number

    def overheard(self, event: Delta | Note, size: int, missing: int) -> None:
        """Deliver what a turn of another process has streamed; before it, so many events are missing."""
        if missing > 0:
            self._drop(event, missing)
        for audience in (self.to_completes, self.to_moves):
            audience.deliver(event, size)

    def open(self, below: float) -> None:
        """Deliver what the turns have streamed that started at a position below this one."""
        for run_id, (position, events) in [*self.gated.items()]:
            if position < below:
                del self.gated[run_id]
                self._held -= len(events)
                for event, size in events:
                    self._held_bytes -= size
                    super().stream(event, size)

    def cut_off_before(self, lane: Lane, position: int) -> None:
        """Cut off those of a lane who may have to be told what was up to this position, and is purged."""
        for of_session in [*lane.audience.by_session.values()]:
            for reference in [*of_session]:
                subscription = reference()
                beginning = None if subscription is None else self.beginnings.get(subscription)
                if subscription is not None and (beginning is None or not beginning.is_all_behind(position)):
                    subscription.cut_off("RunCompletes or moves were purged before they were told")

    def cut_off(self, why: str) -> None:
        """Cut off everybody."""
        for audience in (self.to_completes, self.to_moves):
            for of_session in [*audience.by_session.values()]:
                for reference in [*of_session]:
                    if (subscription := reference()) is not None:
                        subscription.cut_off(why)

    def reached(self, horizon: int) -> None:
        """Take note that everybody has been told what there is below the horizon."""
        self.open(horizon)
        for subscription, beginning in [*self.beginnings.items()]:
            if beginning.moment.until <= horizon:
                del self.beginnings[subscription]
