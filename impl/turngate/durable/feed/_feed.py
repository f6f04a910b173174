"""The feed of a process: what its subscribers and readers of completions learn of the ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING

from turngate._events import Subscribers, Subscription
from turngate.durable.feed._completions import LedgerCompletions, LedgerCursor
from turngate.durable.feed._delivery import BEHIND, Delivery
from turngate.durable.feed._follower import LedgerFollower
from turngate.durable.feed._host import News
from turngate.durable.feed._relay import StreamRelay

if TYPE_CHECKING:
    from collections.abc import Callable

    from turngate._events import Delta, Note
    from turngate.durable._ledger import Ledger
    from turngate.durable.feed._host import Host


class Feed:
    """Tells the subscribers of one process what all processes do.

    poll          seconds after which the ledger is read although no hint has come
    delta_limit, delta_bytes, complete_limit
                  what a subscription may leave unread
    """

    def __init__(
        self,
        ledger: Ledger,
        host: Host,
        *,
        poll: float,
        delta_limit: int,
        delta_bytes: int,
        complete_limit: int,
    ) -> None:
        self._ledger = ledger
        self._host = host
        self._delta_limit = delta_limit
        self._delta_bytes = delta_bytes
        self._complete_limit = complete_limit
        self._news = News(poll)
        self.subscribers = Subscribers()
        self.delivery = Delivery(self.subscribers, delta_limit, delta_bytes)
        self.relay = StreamRelay(ledger, host, self.delivery)
        self.follower = LedgerFollower(ledger, host, self._news, self.delivery, self.relay)

    # What callers of the dispatcher call.

    def subscribe(self, session_id: str | None, *, moves: bool) -> Subscription:
        """Receive the events of the session, or of all; see `DurableDispatcher.subscribe`."""
        self._host.check_loop()
        if moves and not self._ledger.history:
            raise ValueError("moves are read from the history, which this ledger does not keep")
        subscription = Subscription(
            self._host,
            self.subscribers,
            session_id=session_id,
            moves=moves,
            delta_limit=self._delta_limit,
            delta_bytes=self._delta_bytes,
            complete_limit=self._complete_limit,
        )
        if self._news.stopping:
            subscription.close()
        else:
            self.follower.join(subscription)
        return subscription

    async def beginning(self, subscription: Subscription) -> Callable[[str], bool]:
        """Wait for the beginning of a subscription; see `DurableDispatcher.beginning`."""
        beginning = await self.follower.beginning(subscription)
        return lambda cursor: not beginning.is_behind(LedgerCursor.parse(cursor).at[0])

    def completions(self, after: str | None, until: str | None) -> LedgerCompletions:
        """Return the completions of all processes; see `DurableDispatcher.completions`."""
        self._host.check_thread()
        return LedgerCompletions(self._ledger, self._news, self._ready, after, until)

    async def end_cursor(self) -> str:
        """Return the cursor of this moment; see `DurableDispatcher.end_cursor`."""
        await self._ready()
        moment = await self._ledger.moment()
        return str(LedgerCursor(await self._ledger.name(), (moment.horizon - 1, BEHIND), moment))

    async def _ready(self) -> None:
        await self._host.ready()
        await self.until_joined()

    # What steps and turns of this process report.

    async def until_joined(self) -> None:
        """Wait until a step may be sent: it must not overtake a subscription that has no beginning yet.

        Raises LedgerUnavailable while the ledger cannot be reached.
        """
        await self.follower.until_joined()

    def wake(self) -> None:
        """Read the ledger soon: something may have been saved."""
        self._news.wake()

    def hooked(self, run_id: str, position: int) -> None:
        """Leave the RunComplete, saved at this position, to the hook that receives it."""
        self.follower.on_hooked(run_id, position)

    def begin_turn(self, run_id: str, position: int) -> None:
        """Stream what the turn of this run writes after everything up to this position, where it started."""
        if self.subscribers.listen() and self.following:
            self.delivery.gate(run_id, position)
            self.wake()

    def listen(self) -> bool:
        """Say whether there is any subscription, here or in another process."""
        return self.subscribers.listen() or self.relay.has_listeners()

    def stream(self, event: Delta | Note, size: int) -> None:
        """Deliver what a turn of this process has written or noted, here and to other processes."""
        self.relay.send(event)
        self.delivery.stream(event, size)

    async def end_turn(self, run_id: str) -> None:
        """Send other processes the last of what the turn has streamed, before its outcome is saved."""
        await self.relay.end_turn(run_id)

    # Closing, in this order.

    async def flush(self) -> None:
        """Send other processes what they have not been sent."""
        await self.relay.flush()

    @property
    def following(self) -> bool:
        """Whether the ledger is being read for subscriptions."""
        return self.follower.task is not None

    async def read_to(self, position: int, *, patience: float, answer_within: float | None) -> None:
        """Deliver everything up to this position; see `LedgerFollower.read_to`."""
        await self.follower.read_to(position, patience=patience, answer_within=answer_within)

    def stop(self) -> None:
        """Stop reading: the ledger is about to be closed."""
        self._news.stopping = True
        self.follower.stop()

    def close(self) -> None:
        """End all subscriptions and all readers of completions."""
        self._news.close()
        self.subscribers.close()
        self.follower.joined.wake()
