"""The text of a run on a server, piece by piece, whatever becomes of the line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from turngate import Delta, Moved, RunComplete, State
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
    """

    def __init__(
        self, client: Client, session_id: str, prompt: str, run_id: str, options: PromptOptions
    ) -> None:
        self.session_id = session_id
        self.run_id = run_id
        self.text = ""
        """What has come so far."""
        self.complete: RunComplete | None = None
        self._client = client
        self._prompt = prompt
        self._options = options
        self._events: EventStream | None = None
        self._lead: str | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        if self._events is None and (piece := await self._begin()):
            self.text = piece
            return piece
        assert self._events is not None
        while self.complete is None:
            piece = await self._piece_of(await anext(self._events))
            if self.complete is not None:
                await self._events.aclose()
            if piece:
                self.text += piece
                return piece
        raise StopAsyncIteration

    async def _begin(self) -> str:
        """Send the prompt; return its text if the run was complete already."""
        self._events = self._client.events(self.session_id)
        await anext(self._events)  # a snapshot: from here on nothing is missed
        options: PromptOptions = {**self._options, "run_id": self.run_id}
        run = await self._client.submit(self.session_id, self._prompt, **options)
        self.complete = run.complete
        if run.complete is None:
            return ""
        await self._events.aclose()
        return run.complete.text

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
            self.complete = (await self._client.run(self.run_id)).complete
            if self.complete is not None:
                return self._rest_of(self.complete.text)
        return ""

    def _rest_of(self, text: str) -> str:
        """Return what comes behind the text so far; a runner may return another text than it has written."""
        return text[len(self.text) :] if text.startswith(self.text) else ""
