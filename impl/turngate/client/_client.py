"""The client: the calls of the server as methods, patient with lines that break."""

from __future__ import annotations

import asyncio
import base64
import uuid
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import httpx2

from turngate import Attachment, DispatcherClosed, PromptOptions
from turngate.client._errors import Refused, Unreachable, error_in
from turngate.client._events import EventStream
from turngate.client._text import RemoteText
from turngate.client._types import message_of, run_of, session_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Self, Unpack

    from turngate import Message, RunComplete, TurngateError
    from turngate.client._types import RemoteRun, RemoteSession

_WAIT = 20.0
"""Seconds that the server is asked to wait with one answer."""


class Client:
    """Talks to a server; an async context manager.

    url       where the server is: `http://127.0.0.1:8765`, or where it is mounted
    token     what the server asks for
    patience  seconds for which a call is tried again when the line breaks; then Unreachable is raised

    A call that is tried again does nothing twice: `submit` names the run itself. What a dispatcher raises is
    raised by the same name: EmptyPrompt, RunConflict, SessionBusy, QueueFull, DispatcherClosed, UnknownRun.
    """

    def __init__(
        self, url: str, token: str | None = None, *, patience: float = 30.0, transport: Any = None
    ) -> None:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        limits = httpx2.Limits(max_connections=None)
        self._http = httpx2.AsyncClient(
            base_url=url.rstrip("/") + "/", headers=headers, timeout=10.0, limits=limits, transport=transport
        )
        self._patience = patience

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Let every connection go. What was submitted goes on."""
        await self._http.aclose()

    # Prompts.

    async def submit(self, session_id: str, prompt: str, **options: Unpack[PromptOptions]) -> RemoteRun:
        """Send a prompt. Takes what `Dispatcher.submit` takes, but for `on_complete`."""
        _check_options("Client.submit", options)
        if options.get("on_complete") is not None:
            raise TypeError("on_complete is not carried to a server; use wait")
        body: dict[str, Any] = {"prompt": prompt, "run_id": options.get("run_id") or _new_run_id()}
        if "when_busy" in options:
            body["when_busy"] = options["when_busy"]
        if attachments := options.get("attachments"):
            body["attachments"] = [_attachment(each) for each in attachments]
        return run_of(await self._call("POST", f"{_session(session_id)}/runs", json=body))

    async def ask(self, session_id: str, prompt: str, **options: Unpack[PromptOptions]) -> RunComplete:
        """Send a prompt, and wait for its RunComplete."""
        run = await self.submit(session_id, prompt, **options)
        return await self.wait(run.run_id)

    def stream(self, session_id: str, prompt: str, **options: Unpack[PromptOptions]) -> RemoteText:
        """Send a prompt, and iterate over the text of its turn; then `complete` is there."""
        _check_options("Client.stream", options)
        return RemoteText(self, session_id, prompt, options.get("run_id") or _new_run_id(), options)

    async def run(self, run_id: str) -> RemoteRun:
        """Look at a run; UnknownRun if the server has none by this id."""
        return run_of(await self._call("GET", _run(run_id)))

    async def wait(self, run_id: str, timeout: float | None = None) -> RunComplete:  # noqa: ASYNC109 - asked of the server
        """Return the RunComplete of a run, however long that takes.

        Raises UnknownRun when the server does not know the run, or no longer: then nobody knows how it ended.
        Raises TimeoutError after `timeout` seconds.
        """
        async with asyncio.timeout(timeout):
            while True:
                data = await self._call("GET", _run(run_id), params={"wait": _WAIT}, timeout=_WAIT + 10)
                if (complete := run_of(data).complete) is not None:
                    return complete

    # Cancels.

    async def cancel(self, session_id: str) -> list[str]:
        """Cancel all that the session has in flight; return the ids of the covered runs."""
        covered: list[str] = (await self._call("POST", f"{_session(session_id)}/cancel"))["covered"]
        return covered

    async def cancel_run(self, run_id: str, *, waiting_only: bool = False) -> list[str]:
        """Cancel a run, or the turn that it is part of; return the ids of the covered runs."""
        params = {"waiting_only": "true" if waiting_only else "false"}
        covered: list[str] = (await self._call("POST", f"{_run(run_id)}/cancel", params=params))["covered"]
        return covered

    async def clear_queue(self, session_id: str) -> list[str]:
        """Drop what the session has queued; return the ids of these runs."""
        dropped: list[str] = (await self._call("DELETE", f"{_session(session_id)}/queue"))["dropped"]
        return dropped

    # Looking on.

    async def sessions(self) -> list[RemoteSession]:
        """Look at every session that has something in flight, at one moment."""
        data = await self._call("GET", "v1/sessions")
        return [session_of({**each, "cursor": data["cursor"]}) for each in data["sessions"]]

    async def session(self, session_id: str) -> RemoteSession:
        """Look at a session, which may be quiet."""
        return session_of(await self._call("GET", _session(session_id)))

    async def messages(
        self, session_id: str, *, after: str | None = None, limit: int | None = None
    ) -> list[Message]:
        """Return the messages of a session behind the one with the id `after`: all of them, or `limit`."""
        found: list[Message] = []
        while limit is None or len(found) < limit:
            params: dict[str, Any] = {"limit": 100 if limit is None else min(100, limit - len(found))}
            if after is not None:
                params["after"] = after
            page = await self._call("GET", f"{_session(session_id)}/messages", params=params)
            found += map(message_of, page["messages"])
            after = page["next"]
            if after is None:
                break
        return found

    def events(
        self, session_id: str | None = None, *, after: str | None = None, patience: float | None = None
    ) -> EventStream:
        """Receive the events of a session, or of all, from now on or behind the cursor `after`.

        The stream connects again for as long as it takes, or for `patience` seconds.
        """
        path = "v1/events" if session_id is None else f"{_session(session_id)}/events"
        return EventStream(self._http, path, after, patience)

    async def _call(self, method: str, path: str, **more: Any) -> Any:
        """Make a call, again and again while the line breaks and there is patience left.

        So it is with a server that cannot reach its ledger; and with one that is shutting down, if it was
        only asked for something: another may be about to take its place.
        """
        loop = asyncio.get_running_loop()
        until, pause = loop.time() + self._patience, 0.1
        while True:
            error: TurngateError | None
            try:
                response = await self._http.request(method, path, **more)
            except httpx2.TransportError as lost:
                error = Unreachable(f"no answer within {self._patience:g} s: {lost}")
                error.__cause__ = lost
            else:
                error = error_in(response)
                if error is None:
                    return response.json()
                if not _may_pass(error, method):
                    raise error
            if loop.time() + pause > until:
                raise error
            await asyncio.sleep(pause)
            pause = min(pause * 2, 2.0)

    def __repr__(self) -> str:
        return f"<Client of {self._http.base_url}>"


def _may_pass(error: TurngateError, method: str) -> bool:
    """Say whether it may be otherwise in a moment."""
    if isinstance(error, DispatcherClosed):
        return method == "GET"
    return isinstance(error, Refused) and error.name == "ledger-unavailable"


def _new_run_id() -> str:
    return f"run-{uuid.uuid4().hex}"


def _session(session_id: str) -> str:
    return f"v1/sessions/{_segment(session_id)}"


def _run(run_id: str) -> str:
    return f"v1/runs/{_segment(run_id)}"


def _segment(name: str) -> str:
    """Return an id as a segment of a path."""
    if name in ("", ".", ".."):
        raise ValueError(f"{name!r} cannot be part of an address")
    return quote(name, safe="")


def _attachment(attachment: Attachment | str) -> dict[str, str]:
    if isinstance(attachment, str):
        return {"name": "", "mime_type": "text/plain", "text": attachment}
    name, mime_type, content = attachment
    if isinstance(content, str):
        return {"name": name, "mime_type": mime_type, "text": content}
    return {"name": name, "mime_type": mime_type, "base64": base64.b64encode(content).decode("ascii")}


def _check_options(call: str, options: Iterable[str]) -> None:
    """Raise TypeError, as Python does, for an option that no prompt has."""
    for name in options:
        if name not in PromptOptions.__annotations__:
            raise TypeError(f"{call}() got an unexpected keyword argument {name!r}")
