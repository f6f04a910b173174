"""What the server needs of a dispatcher: one asynchronous protocol, with an adapter for each dispatcher.

`MemoryBackend` adapts a `Dispatcher`, `LedgerBackend` a `DurableDispatcher`. What both have in the same form
is called on the dispatcher itself. A backend also follows its dispatcher for the event log: it puts every
event into the log, and knows which RunCompletes are among them (`Passed`).
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from turngate import Dispatcher, Message, Run, SessionView
    from turngate.durable import DurableDispatcher
    from turngate.server._cursor import Cursor
    from turngate.server._event_log import EventLog

T = TypeVar("T")
BEGINS_ANEW: Final = "the event log does not have all events; every reader learns what it missed"


class Passed(NamedTuple):
    """Which RunCompletes have been put into the event log.

    completions  all of them up to this cursor of `Dispatcher.completions`
    ahead        the marks of those beyond it (see `mark`)
    """

    completions: str = ""
    ahead: frozenset[str] = frozenset()


class InFlight(NamedTuple):
    """How much is in flight."""

    sessions: int
    runs: int


class Backend(Protocol):
    """A dispatcher, as the server sees it."""

    passed: Passed
    """Which RunCompletes have been put into the log."""

    @property
    def dispatcher(self) -> Dispatcher | DurableDispatcher:
        """The dispatcher itself, for the calls that both have in the same form."""
        ...

    @property
    def outlives_process(self) -> bool:
        """Whether the completions do, so that a client may come with a cursor of another process."""
        ...

    @property
    def dropped(self) -> int:
        """How many deltas and notes were lost because the dispatcher was faster than the log."""
        ...

    async def find(self, run_id: str) -> Run | None:
        """Return a run, None if it is unknown."""
        ...

    async def look(self, session_id: str | None, place: Callable[[], T]) -> tuple[T, Sequence[SessionView]]:
        """Return a view of one session, or of all in flight, and its place in the event log.

        In memory both are taken in one step. On a ledger the place is taken first: what happens between the
        two is among the events to come, which say nothing new then.
        """
        ...

    def in_flight(self) -> InFlight:
        """Count what is in flight."""
        ...

    def has_room(self, session_id: str, sessions_limit: int) -> bool:
        """Return whether a prompt may come: its session is in flight, or fewer than the limit are."""
        ...

    async def begin(self, log: EventLog) -> None:
        """Subscribe to the dispatcher; from here on every event goes to the log."""

    async def follow(self) -> None:
        """Put events into the log until the dispatcher is closed. If it raises, it can be called again."""

    def expect(self, run_id: str, prompt: str) -> None:
        """Remember the prompt of a run that was just submitted here, for the event of its accept."""

    async def catch_up_with(self, place: Cursor) -> None:
        """Wait until the log has what another log of the same completions had at that place.

        Raises CursorExpired if no log can have been there.
        """

    def call_before_close(self, call: Callable[[], Awaitable[None]]) -> None:
        """Call this while a closing dispatcher can still be read, if it cannot be read later."""

    async def hasten_close(self) -> None:
        """Have a closing dispatcher cancel the turns of this process now."""

    async def drain(self) -> None:
        """Put everything that has happened so far into the log; nothing may come after it."""

    def end(self) -> None:
        """Follow the dispatcher no longer."""


def runs_of(view: SessionView) -> list[Run]:
    """Return every run that a session has in flight."""
    turn = () if view.active is None else (view.active, *view.folded)
    return [*view.accepted, *view.settling, *view.queued, *turn]


async def list_messages(store: Any, session_id: str, after: str | None, limit: int) -> Sequence[Message]:
    """Return messages of a session, from a store that pages or one that does not.

    Raises ValueError if the session has no message `after`.
    """
    found: Sequence[Message]
    if "after" in inspect.signature(store.list).parameters:
        found = await store.list(session_id, after=after, limit=limit)
        return found
    found = await store.list(session_id)
    start = 0
    if after is not None:
        start = next((index for index, each in enumerate(found, 1) if each.id == after), 0)
        if not start:
            raise ValueError(f"session {session_id!r} has no message {after!r}")
    return found[start : start + limit]


async def find_sent(store: Any, run_id: str) -> Message | None:
    """Return the message with the prompt of a complete run, None if it had no turn or none is kept."""
    if not hasattr(store, "of_run"):
        return None
    messages: Sequence[Message] = await store.of_run(run_id)
    return next((each for each in messages if (each.run_id, each.role) == (run_id, "user")), None)


async def find_prompt(store: Any, run_id: str) -> str | None:
    """Return the prompt of a complete run from its messages, None if it had no turn or none is kept."""
    sent = await find_sent(store, run_id)
    return None if sent is None else sent.text
