"""A closed world: a real dispatcher whose callers, runner, store and loop are controlled by a driver.

A driver makes things happen by calling the methods of a ``World``. Nothing else
happens, so the same calls always have the same consequences. After each of them
the driver calls ``check``, which raises what the monitor has found wrong.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, TypeAlias

from turngate import Dispatcher
from turngate_model import Property, Successor, successor
from turngate_verify.world import ending
from turngate_verify.world.actors import ScriptedRunner, Store
from turngate_verify.world.callers import Callers
from turngate_verify.world.followers import CompletionsFollower, TextFollower
from turngate_verify.world.monitor import Monitor
from turngate_verify.world.virtual_loop import VirtualLoop

Make: TypeAlias = Callable[..., Dispatcher]


class World(Callers):
    """A dispatcher, its callers, a scripted runner and store, a virtual loop, and a monitor.

    ``claimed`` are the properties that a known-bad design is said to break: ``check`` raises for these alone.
    """

    monitor_class: ClassVar[type[Monitor]] = Monitor

    def __init__(
        self,
        make: Make = Dispatcher,
        *,
        claimed: Sequence[Property] = (),
        declared: Successor = successor,
        turns_limit: int | None = None,
        **options: Any,
    ) -> None:
        loop = VirtualLoop()
        monitor = self.monitor_class(loop, claimed=claimed, declared=declared, turns_limit=turns_limit)
        self.runner = ScriptedRunner(loop, monitor)
        self.store = Store(loop, monitor)
        self.blocked = 0.0
        """For how many seconds the loop was blocked, or left something undone."""
        if turns_limit is not None:
            options["turns_limit"] = turns_limit
        dispatcher = make(self.runner.run, messages=self.store, record=self.record, **options)
        dispatcher._sessions._message_prefix = "msg-"  # otherwise it would differ each time
        dispatcher._completions._name = "completions"  # so would this
        dispatcher._home._warns_if_dropped = False  # drivers drop many worlds before their end
        super().__init__(loop, dispatcher, monitor)
        monitor.watch(dispatcher)

    def record(self, entry: dict[str, Any]) -> None:
        """Act as the ``record`` of the dispatcher: pass the entry to the monitor."""
        self.monitor.hear(entry)

    def pass_time(self, seconds: float, *, blocked: bool = False) -> None:
        """Let time pass, but not beyond the next timer unless the loop is blocked."""
        until = self.loop.next_timer()
        if not blocked and until is not None:
            seconds = min(seconds, until - self.loop.time())
        self.blocked += seconds if blocked or self.loop.ready else 0.0
        self.loop.advance(seconds)

    def check(self) -> None:
        """Raise the first problem so far: Broken if a property does not hold."""
        for complete in self.monitor.read_published():
            self.store.since.pop(complete.run_id, None)
        if not self.loop.ready:
            within = self.dispatcher._effects.settle_timeout + 2 * self.blocked
            self.monitor.errors += map(AssertionError, self.store.overdue(within))
            self.monitor.at_rest()
            self._expect_awake()
        self.monitor.compare()
        self.monitor.raise_what_is_broken()

    def _expect_awake(self) -> None:
        """Expect no follower to sleep while there is something to read."""
        for follower in [] if self.monitor.claimed else self.followers:
            if isinstance(follower, CompletionsFollower):
                follower.expect_awake()
            elif isinstance(follower, TextFollower):
                lead = self.monitor.lead_of(follower.run)
                if lead in self.runner.players:
                    follower.expect_awake("".join(self.runner.parts[lead]))

    def finish(self) -> None:
        """Let every run complete, and close; raise if anything is owed or left over."""
        ending.finish(self)

    def abandon(self) -> None:
        """End every task of a world that may be broken, so that none complains later."""
        ending.end_tasks(self)


@contextmanager
def without_log() -> Iterator[None]:
    """Keep what is raised on purpose out of the log."""
    logs = [logging.getLogger(name) for name in ("turngate", "turngate.server")]
    were_disabled = [log.disabled for log in logs]
    for log in logs:
        log.disabled = True
    try:
        yield
    finally:
        for log, was_disabled in zip(logs, were_disabled, strict=True):
            log.disabled = was_disabled


def dispatcher_option(make: Make) -> str:
    """Return the option that makes a command use this dispatcher; empty for Turngate's own."""
    if make is Dispatcher:
        return ""
    return f" --dispatcher {make.__module__}:{getattr(make, '__qualname__', make)}"
