"""Reads the ledger for the subscriptions of this process."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from turngate._core import moved
from turngate._log import log_or_propagate
from turngate.durable.feed._delivery import BEHIND, Batch, Gap, Lane

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from turngate._events import Event, Subscription
    from turngate.durable._ledger import HistoryStep, Ledger, Place
    from turngate.durable.feed._delivery import Delivery

_PAGE: Final = 500
_EVERYTHING: Final = sys.maxsize
"""The horizon when there is nothing to read for anyone."""


class LedgerFollower:
    """Delivers the moves and RunCompletes of all processes, in the order of the ledger.

    has_hook  says whether an `on_complete` of this process waits for the RunComplete of a run
    """

    def __init__(self, ledger: Ledger, delivery: Delivery, has_hook: Callable[[str], bool]) -> None:
        self._ledger = ledger
        self._delivery = delivery
        self._has_hook = has_hook
        self.hooked: dict[str, int] = {}
        """Runs whose RunComplete a hook has received, with its position, until that has been read."""

    async def walk(self, joining: Sequence[object]) -> int | None:
        """Deliver everything below the horizon, and return the horizon; None when a subscription joins."""
        while lanes := self._delivery.lanes():
            for lane in lanes:
                if lane.more and not lane.coming:
                    await self._load(lane)
            if joining:
                return None
            lane = min(lanes, key=Lane.next)
            while lane.coming:
                self._deliver_next(lane)
                if lane.more and not lane.coming:
                    break
                lane = min(lanes, key=Lane.next)
            else:
                self._delivery.open_gates(lane.horizon)
                self.hooked = {run_id: at for run_id, at in self.hooked.items() if at >= lane.horizon}
                return lane.horizon
        return _EVERYTHING

    async def missed(self, subscription: Subscription, under_way: frozenset[int]) -> list[Event]:
        """Return the events at these positions that the lane of the subscription has passed already."""
        lane = self._delivery.lane_of(subscription)
        missed: list[Event] = []
        for position in sorted(filter(lane.has_loaded, under_way)):
            batch = await self._read_batch(lane, (position - 1, BEHIND))
            missed += [
                event
                for at, event in batch.events
                if at == position
                and subscription.session_id in (None, event.session_id)
                and (at, event) not in lane.coming
                and not isinstance(event, Gap)
                and not self._is_for_hook(lane, event)
            ]
        return missed

    async def _load(self, lane: Lane) -> None:
        batch = await self._read_batch(lane, lane.at)
        if lane.at < batch.purged:
            self._delivery.cut_off_purged(lane, batch.purged[0])
        lane.load(batch)

    async def _read_batch(self, lane: Lane, after: Place) -> Batch:
        if lane is self._delivery.completes:
            purged, horizon, finished = await self._ledger.completions_after(after, _PAGE)
            events: list[tuple[int, Event | Gap]] = [(each.position, each.complete) for each in finished]
            end, more = [each[:2] for each in finished[-1:]], len(finished) == _PAGE
        else:
            purged, horizon, told = await self._ledger.history_after(after, _PAGE)
            events = await self._events_of(told)
            end, more = [each[:2] for each in told[-1:]], len(told) == _PAGE
        return Batch(events, horizon, purged, max([after, purged, *end]), more)

    async def _events_of(self, told: list[HistoryStep]) -> list[tuple[int, Event | Gap]]:
        """Return the moves and RunCompletes of these steps."""
        entries = [(step, entry) for step in told for entry in step.entries]
        completed = [entry["run"] for _, entry in entries if entry["event"] == "complete"]
        found = await self._ledger.find(completed) if completed else []
        known = {each.row.run_id: each.complete for each in found}
        return [
            (
                step.position,
                (known.get(entry["run"]) or Gap(step.session_id, entry["run"]))
                if entry["event"] == "complete"
                else moved(entry),
            )
            for step, entry in entries
        ]

    def _deliver_next(self, lane: Lane) -> None:
        position, event = lane.coming.popleft()
        if self._is_for_hook(lane, event):
            return
        try:
            self._delivery.deliver(lane, event, position)
        except BaseException as exc:
            log_or_propagate(exc, "delivering an event raised")

    def _is_for_hook(self, lane: Lane, event: Event | Gap) -> bool:
        """Say whether a hook of this process receives the RunComplete, so that the lane does not."""
        if lane is self._delivery.moves:
            return False
        assert event.run_id is not None
        return event.run_id in self.hooked or self._has_hook(event.run_id)
