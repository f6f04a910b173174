"""The feed of a process: reads the ledger for its subscribers and readers of completions."""

from __future__ import annotations

import asyncio
import math
import sys
import weakref
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from turngate._core import moved
from turngate._errors import DispatcherClosed, TurngateError
from turngate._events import RunComplete, Subscribers, Subscription, Waiters
from turngate._log import describe, log_error, log_or_propagate
from turngate.durable._ledger import LedgerGone, LedgerUnavailable
from turngate.durable.feed._completions import LedgerCompletions, LedgerCursor
from turngate.durable.feed._delivery import BEHIND, Beginning, Delivery, Gap
from turngate.durable.feed._history import history_pages
from turngate.durable.feed._relay import StreamRelay

if TYPE_CHECKING:
    from asyncio import Future, Task
    from collections.abc import AsyncIterator, Callable, Mapping
    from typing import Any

    from turngate._events import Delta, Event, Note
    from turngate.durable._ledger import HistoryStep, Place, ReadPoint
    from turngate.durable._stepper import PendingStep, Stepper

_PAGE: Final = 500
_EVERYTHING: Final = sys.maxsize
"""The horizon when there is nothing to read for anyone."""
_SHORTEST: Final = 0.005
_LONGEST: Final = 0.2
"""Seconds between two reads while a gate is closed."""
_TRIES: Final = 100
_PAUSE: Final = 0.01
"""How often the last events are read before a close gives up, and the seconds in between."""


class News:
    """Wakes the tasks that read the ledger: there may be something new, or the feed has closed.

    A task remembers `count` before it looks, and passes it to `wait`. So it misses nothing, even if several
    tasks wait.
    """

    def __init__(self, poll: float) -> None:
        self.count = 0
        self.stopping = False
        """Whether the ledger is about to be closed, so that a failure to read it means nothing."""
        self.closed = False
        self._poll = poll
        self._event = asyncio.Event()

    def wake(self) -> None:
        """Wake every task that waits."""
        self.count += 1
        self._event.set()

    async def wait(self, heard: int, within: float | None = None) -> None:
        """Return once `count` differs from `heard`, or after `within` seconds; by default, a poll."""
        if self.count != heard:
            return
        self._event.clear()
        try:
            async with asyncio.timeout(self._poll if within is None else within):
                await self._event.wait()
        except TimeoutError:
            pass

    def close(self) -> None:
        """Wake every task for the last time."""
        self.stopping = self.closed = True
        self.wake()


@dataclass(eq=False, slots=True)
class _Joiner:
    """A subscription that has no beginning yet, and the steps that were under way when it was made."""

    reference: weakref.ref[Subscription]
    steps: list[PendingStep]
    moment: ReadPoint | None = None


class Start(NamedTuple):
    """Where a subscription begins, in terms of `completions`."""

    cursor: str
    """A cursor before everything that the subscription delivers."""
    beginning: Beginning

    def brings(self, cursor: str, session_id: str) -> bool:
        """Return whether the subscription delivers the RunComplete of the session that has this cursor."""
        return not self.beginning.is_behind(session_id, LedgerCursor.parse(cursor).at[0])


class Feed:
    """Delivers to the subscribers of one process what all processes do.

    A subscription begins at a moment that the ledger names, which takes a while. Steps that this process
    sends after `subscribe` wait until that moment is known, so they come after it. Steps that were under way
    at `subscribe` are delivered even if they were saved before the moment, and so is what any process did to
    their sessions after them: a run that this process believed to be in flight when the subscription was made
    completes within the subscription.

    has_hook  says whether an `on_complete` of this process waits for the RunComplete of a run
    """

    def __init__(self, stepper: Stepper, has_hook: Callable[[str], bool]) -> None:
        settings = stepper.settings
        self._ledger = stepper.ledger
        self._stepper = stepper
        self._loop = stepper.loop
        self._has_hook = has_hook
        self._news = News(settings.poll)
        self.subscribers = Subscribers()
        self._subscription = partial(
            Subscription,
            self._loop,
            self.subscribers,
            delta_limit=settings.delta_limit,
            delta_bytes=settings.delta_bytes,
            complete_limit=settings.complete_limit,
        )
        self.delivery = Delivery(self.subscribers, settings.delta_limit, settings.delta_bytes)
        self.relay = StreamRelay(stepper, self.delivery)
        self.hooked: dict[str, int] = {}
        """Runs whose RunComplete a hook has received, with its position, until it has been read."""
        self._task: Task[None] | None = None
        """Reads the ledger while there are subscriptions."""
        self._at: Place | None = None
        """Everything up to this place has been delivered; None while there are no subscriptions."""
        self._reading = asyncio.Lock()
        self.joining: list[_Joiner] = []
        self._moment_known: Future[None] | None = None
        """Done when the ledger has named the moment of every subscription that steps must not overtake."""
        self._joined = Waiters()
        """Tasks that wait for a subscription to get a beginning."""

    # Calls from callers of the dispatcher.

    def subscribe(self, session_id: str | None, *, moves: bool) -> Subscription:
        """Receive the events of the session, or of all; see `DurableDispatcher.subscribe`."""
        loop = self._loop.check_loop()
        subscription = self._subscription(session_id=session_id, moves=moves)
        if self._news.stopping:
            subscription.close()
            return subscription
        self._moment_known = self._moment_known or loop.create_future()
        self.joining.append(_Joiner(weakref.ref(subscription), [*self._stepper.pending]))
        self._news.wake()
        if self._task is None:
            self._task = self._stepper.tasks.supervisor.start(
                "reading the ledger for subscribers", self._follow
            )
        return subscription

    async def beginning(self, subscription: Subscription) -> Start:
        """Wait for the beginning of a subscription; see `DurableDispatcher.beginning`."""
        loop = self._loop.check_loop()
        while subscription not in self.delivery.beginnings:
            if subscription.closed or self._news.closed:
                raise DispatcherClosed("the subscription was closed before it had begun")
            await self._joined.wait(loop)
        beginning = self.delivery.beginnings[subscription]
        before = LedgerCursor(await self._ledger.epoch(), (beginning.first() - 1, BEHIND))
        return Start(str(before), beginning)

    def completions(self, after: str | None, until: str | None) -> LedgerCompletions:
        """Return the completions of all processes; see `DurableDispatcher.completions`."""
        self._loop.check_thread()
        return LedgerCompletions(self._ledger, self._news, self._ready, after, until)

    def history(self, after: str | None, *, follow: bool) -> AsyncIterator[list[dict[str, Any]]]:
        """Return the lines of the history, page by page; see `DurableDispatcher.write_history`."""
        self._loop.check_thread()
        return history_pages(self._ledger, self._news, self._ready, after, follow=follow)

    async def end_cursor(self) -> str:
        """Return the cursor of this moment; see `DurableDispatcher.end_cursor`."""
        await self._ready()
        moment = await self._ledger.read_point()
        return str(LedgerCursor(await self._ledger.epoch(), (moment.horizon - 1, BEHIND), moment))

    async def _ready(self) -> None:
        await self._stepper.open()
        await self.until_joined()

    # Calls from steps and turns of this process.

    def is_joining(self) -> bool:
        """Return whether there is a subscription that steps must not overtake."""
        return self._moment_known is not None

    async def until_joined(self) -> None:
        """Wait until a step may be sent: it must not overtake a subscription that has no beginning yet.

        Raises LedgerUnavailable while the ledger cannot be reached.
        """
        while self._moment_known is not None:
            await asyncio.shield(self._moment_known)

    def wake(self) -> None:
        """Read the ledger soon: something may have been saved."""
        self._news.wake()

    def leave_to_hook(self, run_id: str, position: int) -> None:
        """Leave the RunComplete, saved at this position, to the hook that receives it."""
        if self._task is not None:
            self.hooked[run_id] = position

    def begin_turn(self, run_id: str, position: int) -> None:
        """Deliver what the turn streams after everything up to this position, at which it started."""
        if self.subscribers.listen() and self._task is not None:
            self.delivery.gate(run_id, position)
            self.wake()

    def listen(self) -> bool:
        """Return whether there is any subscription, here or in another process."""
        return self.subscribers.listen() or self.relay.has_listeners()

    def stream(self, event: Delta | Note, size: int) -> None:
        """Deliver what a turn of this process has written or noted, here and to other processes."""
        self.relay.send(event)
        self.delivery.stream(event, size)

    async def end_turn(self, run_id: str) -> None:
        """Send other processes the last of what the turn has streamed, before its outcome is saved."""
        await self.relay.end_turn(run_id)

    # Reading.

    async def _follow(self) -> None:
        pause, reached = _SHORTEST, -1
        while self.subscribers.listen() and not self._news.closed:
            heard, horizon = self._news.count, reached
            try:
                await self._stepper.open()
                horizon = await self._read()
            except Exception as exc:  # the ledger cannot be reached, or is broken; either may be temporary
                self._fail_joining(exc)
                if not self._news.closed and not isinstance(exc, LedgerGone):
                    log_error(exc, "the events of the ledger cannot be delivered yet")
            # A transaction that is open elsewhere may hold the horizon back for a long time.
            pause = _SHORTEST if horizon != reached else min(2 * pause, _LONGEST)
            reached = horizon
            await self._news.wait(heard, pause if self.delivery.gates else None)
        self._stop_following()

    def _stop_following(self) -> None:
        self._task = None
        self.joining.clear()
        if self._moment_known is not None:
            if not self._moment_known.done():
                self._moment_known.set_result(None)
            self._moment_known = None
        self._joined.wake()
        self.hooked.clear()
        self._at = None
        self.delivery.open_gates()
        self.relay.stop_listening()

    async def _read(self) -> int:
        """Deliver everything below the horizon, and return the horizon."""
        async with self._reading:
            while True:
                await self._let_join()
                if self._at is None:
                    return _EVERYTHING
                purged, horizon, steps = await self._ledger.history_after(self._at, _PAGE)
                events = await self._events_of(steps)
                await self._let_join()  # what is delivered now must not reach one without a beginning
                if self._at is None:  # the last subscription was closed meanwhile
                    return _EVERYTHING
                if self._at < purged:
                    self.delivery.cut_off_purged(purged[0])
                for position, event in events:
                    self._deliver(event, position)
                self._at = max([self._at, purged, *(step[:2] for step in steps[-1:])])
                if len(steps) < _PAGE:  # nothing can appear below the horizon any more
                    self._at = max(self._at, (horizon - 1, BEHIND))
                    self.delivery.open_gates(horizon)
                    self.hooked = {run_id: at for run_id, at in self.hooked.items() if at >= horizon}
                    return horizon

    def _deliver(self, event: Event | Gap, position: int) -> None:
        try:
            self.delivery.deliver(event, position, for_hook=self._is_for_hook(event))
        except BaseException as exc:
            log_or_propagate(exc, "delivering an event raised")

    def _is_for_hook(self, event: Event | Gap) -> bool:
        """Return whether a hook of this process receives the RunComplete."""
        if not isinstance(event, RunComplete | Gap):
            return False
        return event.run_id in self.hooked or self._has_hook(event.run_id)

    async def _events_of(self, steps: list[HistoryStep]) -> list[tuple[int, Event | Gap]]:
        """Return the decisions and RunCompletes of these steps, with their positions."""
        entries = [(step, entry) for step in steps for entry in step.entries]
        completed = [entry["run"] for _, entry in entries if entry["event"] == "complete"]
        found = await self._ledger.find(completed) if completed else []
        known = {(each.row.run_id, each.position): each.complete for each in found}
        return [
            (
                step.position,
                (known.get((entry["run"], step.position)) or Gap(step.session_id, entry["run"]))
                if entry["event"] == "complete"
                else moved(entry),
            )
            for step, entry in entries
        ]

    # Beginnings.

    def _fail_joining(self, why: Exception) -> None:
        """Fail the steps that wait for the moment of a subscription: it is not known yet."""
        if self._moment_known is None:
            return
        if not isinstance(why, TurngateError):
            cause, why = why, LedgerUnavailable(f"a subscription cannot begin: {describe(why)}")
            why.__cause__ = cause
        self._moment_known.set_exception(why)
        self._moment_known.exception()  # perhaps no step is waiting
        self._moment_known = self._loop.check_loop().create_future()

    async def _let_join(self) -> None:
        """Give all new subscriptions a beginning. A failure here is retried with the next read."""
        while self.joining:
            await self._learn_moment()
            joiner = self.joining[0]
            assert joiner.moment is not None
            under_way = await self._saved_of(joiner.steps)
            subscription = joiner.reference()
            if subscription is not None:
                missed = await self._missed(subscription, under_way)
                beginning = Beginning(joiner.moment, under_way)
                self.delivery.beginnings[subscription] = beginning
                self._at = self._at or (beginning.first() - 1, BEHIND)
                for event in missed:
                    subscription.receive(event)
            self.joining.remove(joiner)
            self._joined.wake()
        if self.subscribers.listen():
            self.relay.listen()

    async def _learn_moment(self) -> None:
        """Have the ledger name the moment of all subscriptions that have none yet."""
        unnamed = [joiner for joiner in self.joining if joiner.moment is None]
        if not unnamed:
            return
        moment = await self._ledger.read_point()
        for joiner in unnamed:
            joiner.moment = moment
        if self._moment_known is not None and all(joiner.moment is not None for joiner in self.joining):
            known, self._moment_known = self._moment_known, None
            known.set_result(None)

    async def _saved_of(self, steps: list[PendingStep]) -> dict[str, int]:
        """Return the lowest position at which one of these steps was saved, by session.

        If the answer to a step is lost, its position is unknown, but the runs that it completed can be found.
        """
        lowest: dict[str, int] = {}
        for step in steps:
            position = await step.result()
            if not position and step.completes:
                found = await self._ledger.find([*step.completes])
                position = min((known.position for known in found), default=0)
            if position:
                lowest[step.session_id] = min(position, lowest.get(step.session_id, position))
        return lowest

    async def _missed(self, subscription: Subscription, under_way: Mapping[str, int]) -> list[Event]:
        """Return the events from these positions on that were delivered before the subscription began."""
        missed: list[Event] = []
        at = self._at or (-1, -1)
        place: Place = (min(under_way.values(), default=at[0] + 1) - 1, BEHIND)
        while place < at:
            _, _, steps = await self._ledger.history_after(place, _PAGE)
            mine = [
                step
                for step in steps
                if step.position >= under_way.get(step.session_id, math.inf)
                and step[:2] <= at
                and subscription.session_id in (None, step.session_id)
            ]
            for _, event in await self._events_of(mine):
                is_complete = isinstance(event, RunComplete) and not self._is_for_hook(event)
                if not isinstance(event, Gap) and (subscription.moves or is_complete):
                    missed.append(event)
            place = steps[-1][:2] if len(steps) == _PAGE else at
        return missed

    # Closing, in this order.

    async def flush(self) -> None:
        """Send other processes what has not been sent yet."""
        await self.relay.flush()

    @property
    def following(self) -> bool:
        """Whether the ledger is being read for subscriptions."""
        return self._task is not None

    async def read_to(self, position: int, *, patience: float, answer_within: float | None) -> None:
        """Deliver everything up to this position, before the ledger is closed.

        Failures are retried for `patience` seconds; if the ledger has a time limit for its answer, the first
        failure counts. Subscriptions that cannot get everything are cut off.
        """
        why = "a transaction elsewhere held back what the ledger tells"
        loop = self._loop.check_loop()
        deadline = loop.time() + patience
        for _ in range(_TRIES):
            try:
                async with asyncio.timeout(answer_within):
                    if await self._read() > position:
                        return
            except Exception as exc:
                why = describe(exc)
                log_error(exc, "the last events on the ledger could not be read yet")
                if answer_within is not None or loop.time() >= deadline:
                    break
            await asyncio.sleep(_PAUSE)
        log_error(None, "subscribers miss the last events of this process: %s", why)
        self.delivery.cut_off(f"the dispatcher was closed before everything was delivered: {why}")

    def stop(self) -> None:
        """Stop reading: the ledger is about to be closed."""
        self._news.stopping = True
        if self._task is not None:
            self._task.cancel()
            self._stop_following()

    def close(self) -> None:
        """End all subscriptions and all readers of completions."""
        self._news.close()
        self.subscribers.close()
        self._joined.wake()
