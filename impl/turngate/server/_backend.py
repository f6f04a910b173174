"""The dispatcher behind the server: in memory it answers at once, on a ledger it is awaited."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from turngate import Attachment, Covered, Event, Run, RunComplete, SessionView, WhenBusy

T = TypeVar("T")


class Events(Protocol):
    """A subscription: iterate to receive events."""

    dropped: int

    def __aiter__(self) -> AsyncIterator[Event]: ...

    async def __anext__(self) -> Event: ...

    def close(self) -> object:
        """Stop receiving."""


@runtime_checkable
class AnyDispatcher(Protocol):
    """What the server needs of a dispatcher: `Dispatcher` has it, and so has `DurableDispatcher`."""

    @property
    def messages(self) -> Any:
        """The store."""

    async def __aenter__(self) -> object:
        """Open it."""

    async def __aexit__(self, *_: object) -> None:
        """Close it, if it is not closed, and what it has opened."""

    async def submit(
        self,
        session_id: str,
        prompt: str,
        *,
        run_id: str | None = ...,
        attachments: Sequence[Attachment | str] = ...,
        when_busy: WhenBusy = ...,
    ) -> Run:
        """Take a prompt in."""
        ...

    async def cancel(self, session_id: str, *, key: str | None = None) -> Covered:
        """Cancel a session."""
        ...

    async def cancel_run(self, run_id: str, *, waiting_only: bool = False, key: str | None = None) -> Covered:
        """Cancel a run."""
        ...

    async def cancel_all(self, *, key: str | None = None) -> object:
        """Cancel every session."""

    async def clear_queue(self, session_id: str, *, key: str | None = None) -> Sequence[Run]:
        """Drop what is queued."""
        ...

    def key_life(self) -> Any:
        """Return a name for the time in which keys are remembered, or what to await for it."""

    def continues_life(self, life: str) -> Any:
        """Return whether the keys of that life are remembered, or what to await for it."""

    def knows_key(self, key: str) -> Any:
        """Return whether a key is remembered, or what to await for it."""

    async def aclose(self, *, finish: float = 0.0) -> None:
        """Close, and wait for the end."""

    def sessions(self) -> Any:
        """Return the views of the sessions that have something in flight, or what to await for them."""

    def session(self, session_id: str) -> Any:
        """Return the view of a session, or what to await for it."""

    def find(self, run_id: str) -> Any:
        """Return a run or None, or what to await for it."""

    def completions(
        self, after: str | None = None, *, until: str | None = None
    ) -> AsyncIterator[tuple[str, RunComplete]]:
        """Return the completions behind a cursor, up to another."""
        ...

    def end_cursor(self) -> Any:
        """Return the cursor of the newest completion, or what to await for it."""

    def subscribe(self, session_id: str | None = None, *, moves: bool = False) -> Events:
        """Receive what happens from now on."""
        ...


class OnLedger(AnyDispatcher, Protocol):
    """What the server needs beside of a dispatcher on a ledger."""

    async def beginning(self, subscription: Any, /) -> Callable[[str], bool]:
        """Wait for the beginning of a subscription; return what says of cursors whether it brings theirs."""
        ...


def is_in_memory(d: AnyDispatcher) -> bool:
    """Say whether a dispatcher answers at once what is asked about its sessions."""
    return not inspect.iscoroutinefunction(d.sessions)


def before_ledger_closes(d: AnyDispatcher, call: Callable[[], Awaitable[None]]) -> None:
    """Have something done when the runs of a closing dispatcher are complete and its ledger can be read.

    A dispatcher in memory can be read after it is closed, too, and calls nothing.
    """
    calls: list[Callable[[], Awaitable[None]]] | None = getattr(d, "_before_ledger_closes", None)
    if calls is not None:
        calls.append(call)


async def hasten_close(d: AnyDispatcher) -> None:
    """Have a closing dispatcher cancel the turns of this process now."""
    hasten: Callable[[], None] | None = getattr(d, "_hasten_close", None)
    if hasten is None:
        await d.cancel_all()
    else:  # on a ledger, `cancel_all` would cancel the runs of other processes too
        hasten()


def to_be_awaited(answer: object) -> bool:
    """Say whether an answer has still to be awaited; a Run can be awaited, too, but is an answer."""
    return inspect.iscoroutine(answer) or asyncio.isfuture(answer)


async def settled(answer: T | Awaitable[T]) -> T:
    """Return an answer; in the same step of the loop unless it has to be awaited."""
    return await answer if to_be_awaited(answer) else answer  # type: ignore[misc, return-value]  # see above


async def views(d: AnyDispatcher, session_id: str | None) -> list[SessionView]:
    """Look at one session, or at all that have something in flight."""
    if session_id is not None:
        return [await settled(d.session(session_id))]
    seen: Sequence[SessionView] = await settled(d.sessions())
    return [*seen]


def at_hand(iterator: AsyncIterator[T]) -> Iterator[T]:
    """Yield what a subscription or the completions of a dispatcher in memory hold ready; never waits.

    Their `__anext__` is a coroutine that waits only if there is nothing to be had. Then it is closed, by
    which it loses nothing.
    """
    take: Callable[[], Any] = iterator.__anext__
    while True:
        step = take()
        try:
            step.send(None)
        except StopIteration as got:
            yield got.value
        except StopAsyncIteration:
            return
        else:
            step.close()
            return
