"""What the server needs of a dispatcher: one asynchronous protocol, with an adapter for each dispatcher.

`MemoryBackend` adapts a `Dispatcher`, `LedgerBackend` a `DurableDispatcher`; `backend_of` chooses. A backend
also follows its dispatcher for the event log: it puts every event into an `EventSink`, and knows which
RunCompletes are among them (`Passed`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from turngate import Dispatcher, Event, Message, Run, SessionView
    from turngate.durable import DurableDispatcher
    from turngate.server._cursor import Cursor

T = TypeVar("T")
BEGINS_ANEW: Final = "the event log does not have all events; every reader is told what it missed"


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


class EventSink(Protocol):
    """The event log, as a backend sees it."""

    def append(self, event: Event, prompt: str | None) -> None:
        """Add an event; an accept comes with its prompt, if that is known."""

    def forget(self) -> None:
        """Drop every event: the backend has missed some, so every reader is behind."""


class Backend(Protocol):
    """A dispatcher, as the server sees it."""

    @property
    def dispatcher(self) -> Dispatcher | DurableDispatcher:
        """The dispatcher itself, for the calls that both have in the same form."""
        ...

    @property
    def outlives_process(self) -> bool:
        """Whether the completions do, so that a client may come with a cursor of another process."""
        ...

    # Looking at runs and messages.

    async def find(self, run_id: str) -> Run | None:
        """Return a run, None if it is unknown."""
        ...

    async def list_messages(self, session_id: str, after: str | None, limit: int) -> Sequence[Message]:
        """Return messages of a session; ValueError if it has no message `after`."""
        ...

    async def find_prompt(self, run_id: str) -> str | None:
        """Return the prompt of a complete run from its messages, None if it had no turn or none is kept."""
        ...

    async def in_flight(self) -> InFlight:
        """Count what is in flight."""
        ...

    async def has_room(self, session_id: str, sessions_limit: int) -> bool:
        """Say whether a prompt may come: its session is in flight, or fewer than the limit are."""
        ...

    # Idempotency keys.

    async def key_life(self) -> str:
        """Return a name for the time in which keys are remembered."""
        ...

    async def continues_life(self, life: str) -> bool:
        """Say whether the keys of that life are remembered."""
        ...

    async def knows_key(self, key: str) -> bool:
        """Say whether a call under this key is remembered."""
        ...

    # Closing.

    def call_before_close(self, call: Callable[[], Awaitable[None]]) -> None:
        """Have something called while a closing dispatcher can still be read, if it cannot be read later."""

    async def hasten_close(self) -> None:
        """Have a closing dispatcher cancel the turns of this process now."""

    # The event log.

    @property
    def passed(self) -> Passed:
        """Which RunCompletes have been put into the sink."""
        ...

    @property
    def dropped(self) -> int:
        """How many deltas and notes were lost because the dispatcher was faster than the log."""
        ...

    async def begin(self, sink: EventSink) -> None:
        """Subscribe to the dispatcher; from here on every event goes to the sink."""

    async def follow(self) -> None:
        """Put events into the sink until the dispatcher is closed. If it raises, it can be called again."""

    async def drain(self) -> None:
        """Put into the sink all that has happened up to now; there may be nothing after that."""

    def end(self) -> None:
        """Follow the dispatcher no longer."""

    def expect(self, run_id: str, prompt: str) -> None:
        """Take note of the prompt of a run that was just submitted here, for when its accept is told."""

    async def look(self, session_id: str | None, place: Callable[[], T]) -> tuple[T, Sequence[SessionView]]:
        """Look at one session or at all in flight; `place` names the place in the event log of that look.

        In memory both are taken in one step. On a ledger the place is taken first: what happens between the
        two is among the events to come, which say nothing new then.
        """
        ...

    async def catch_up_with(self, place: Cursor) -> None:
        """Wait until the sink has what another log of the same completions had at that place.

        Raises CursorExpired if no log can have been there.
        """


def prompt_among(messages: Sequence[Message], run_id: str) -> str | None:
    """Return the prompt of a run from the messages of its turn."""
    return next((each.text for each in messages if (each.run_id, each.role) == (run_id, "user")), None)


def runs_of(view: SessionView) -> list[Run]:
    """Return every run that a session has in flight."""
    turn = () if view.active is None else (view.active, *view.folded)
    return [*view.accepted, *view.settling, *view.queued, *turn]
