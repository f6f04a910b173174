"""The text of a run on a server, piece by piece, however often the connection breaks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from turngate import Delta, Moved, RunComplete, State, TurngateError, UnknownRun
from turngate.client._calls import Unreachable
from turngate.client._types import Snapshot

if TYPE_CHECKING:
    from typing import Self

    from turngate import PromptOptions
    from turngate.client._client import Client
    from turngate.client._events import EventStream
    from turngate.client._types import RemoteEvent, RemoteSession


class RemoteText:
    """The pieces of text that the turn of a run writes: an async iterator, and then `complete`.

    The prompt is sent when the first piece is asked for. Ends when the run is complete; raises UnknownRun
    when the server has forgotten it. Text that the turn wrote before the run was folded into it comes first.

    After a time-out or an error you can iterate again: a prompt that was refused is sent again under the same
    run_id, and a text that was cut off continues where it was. Also an async context manager: leaving it ends
    the iteration, and the run goes on.
    """

    def __init__(
        self, client: Client, session_id: str, prompt: str, run_id: str, options: PromptOptions
    ) -> None:
        self.session_id = session_id
        self.run_id = run_id
        self.text = ""
        """The text so far."""
        self.complete: RunComplete | None = None
        self._client = client
        self._prompt = prompt
        self._options = options
        self._events: EventStream | None = None
        self._event: RemoteEvent | None = None
        """The event that was received but not yet handed out: a cancelled caller has not seen it."""
        self._has_snapshot = False
        self._is_sent = False
        """Whether the server has accepted the prompt."""
        self._is_followed = False
        """Whether the events show everything that happens to the run from now on."""
        self._is_over = False
        self._lead: str | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        try:
            while not self._is_over and self.complete is None:
                piece = await (self._go_on() if self._is_followed else self._begin())
                if self.complete is not None:
                    self._let_go()
                if piece:
                    self.text += piece
                    return piece
        except TurngateError as wrong:
            self._is_over = isinstance(wrong, UnknownRun)  # to send it again would run it again
            self._let_go()
            raise
        raise StopAsyncIteration

    async def _begin(self) -> str:
        """Send the prompt, unless it was sent; return the text that there is already.

        May be cancelled at any point, and called again.
        """
        if self._events is None:
            self._events = self._client.events(self.session_id, patience=self._client.patience)
        if not self._has_snapshot:
            await self._next_event()  # a snapshot: from here on nothing is missed
            self._has_snapshot = True
        if self._is_sent:
            run = await self._client.run(self.run_id)
        else:
            options: PromptOptions = {**self._options, "run_id": self.run_id}
            run = await self._client.submit(self.session_id, self._prompt, **options)
            self._is_sent = True
        piece = ""
        if run.complete is not None:
            piece = self._rest_of(run.complete.text)
            self.complete = run.complete
        elif run.state is not State.ACCEPTED:  # a turn may have begun before the first event
            piece = await self._look(await self._client.session(self.session_id))
        self._is_followed = True
        return piece

    async def _go_on(self) -> str:
        """Return what the next event adds to the text."""
        if self._event is None:
            self._event = await self._next_event()
        piece = await self._piece_of(self._event)
        self._event = None
        return piece

    async def _next_event(self) -> RemoteEvent:
        assert self._events is not None
        try:
            return await anext(self._events)
        except StopAsyncIteration:
            raise Unreachable("the client was closed while the text was being read") from None

    async def _piece_of(self, event: RemoteEvent) -> str:
        """Return what an event adds to the text."""
        match event:
            case RunComplete() if event.run_id == self.run_id:
                self.complete = event
                return self._rest_of(event.text)
            case Snapshot():
                return await self._look(event.sessions[0])
            case Moved() if event.run_id == self.run_id:
                if event.event == "fold" and event.into is not None:
                    self._lead = event.into
                    return await self._look(await self._client.session(self.session_id))
                if event.event == "handoff" or event.state is State.ACTIVE:
                    self._lead = self.run_id
            case Delta() if event.run_id == self._lead:
                if event.offset > len(self.text):  # something between was dropped
                    return await self._look(await self._client.session(self.session_id))
                return event.text[len(self.text) - event.offset :]
        return ""

    async def _look(self, session: RemoteSession) -> str:
        """Return what the text of a session adds, if the run is part of its turn."""
        turn = [run.run_id for run in (session.active, *session.folded) if run is not None]
        if self.run_id in turn:
            self._lead = turn[0]
            return self._rest_of(session.text)
        waiting = {run.run_id for run in (*session.accepted, *session.queued, *session.settling)}
        if self.run_id not in waiting:
            complete = (await self._client.run(self.run_id)).complete
            if complete is not None:
                self.complete = complete
                return self._rest_of(complete.text)
        return ""

    def _rest_of(self, text: str) -> str:
        """Return what follows the text so far; a runner may return another text than it has written."""
        return text[len(self.text) :] if text.startswith(self.text) else ""

    def _let_go(self) -> None:
        """End the event stream; iterating again begins a new one."""
        events, self._events, self._event = self._events, None, None
        self._has_snapshot = self._is_followed = False
        if events is not None:
            events.close()

    async def aclose(self) -> None:
        """End the iteration and the event stream. The run goes on."""
        self._is_over = True
        events = self._events
        self._let_go()
        if events is not None:
            await events.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
