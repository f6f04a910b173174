"""The client: the calls of the server as methods, repeated while connections break."""

from __future__ import annotations

import asyncio
import uuid
import weakref
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import httpx2

from turngate import UNCHANGED, Attachment, Message, PromptOptions
from turngate._prompt import check_one_position, encode_attachment
from turngate.client._calls import Calls
from turngate.client._events import EventStream
from turngate.client._text import RemoteText
from turngate.client._types import RemoteCovered, run_of, session_of

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence
    from typing import Literal, Self, Unpack

    from turngate import RunComplete, Unchanged
    from turngate.client._types import RemoteRun, RemoteSession

_WAIT = 20.0
"""How many seconds the server may wait before it answers."""


class Client:
    """Talks to a server; an async context manager.

    url       where the server is: `http://127.0.0.1:8765`, or where it is mounted
    token     the bearer token that the server expects
    patience  for how many seconds a call is repeated while connections break; then it raises Unreachable
    timeout   after how many silent seconds a connection counts as broken

    A repeated call does nothing twice: every call that changes something has an idempotency key; that of
    `submit` is the run_id. A call raises OutcomeUnknown if its answer was lost and it may have been carried
    out. A cancel does, for example, if the server was restarted without a ledger meanwhile, or had never
    answered this client. The exceptions of a dispatcher keep their names: EmptyPrompt, RunConflict,
    SessionBusy, QueueFull, DispatcherClosed, UnknownRun, KeyConflict, NotWaiting, NotRunning.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        patience: float = 30.0,
        timeout: float = 10.0,
        transport: Any = None,
    ) -> None:
        # In UTF-8, as servers expect it: a token need not be ASCII.
        headers = {} if token is None else {b"Authorization": f"Bearer {token}".encode()}
        limits = httpx2.Limits(max_connections=None)
        self._http = httpx2.AsyncClient(
            base_url=url.rstrip("/") + "/",
            headers=headers,
            timeout=timeout,
            limits=limits,
            transport=transport,
        )
        self.patience = patience
        self._calls = Calls(self._http, patience)
        self._streams: weakref.WeakSet[EventStream] = weakref.WeakSet()
        self._reading: set[asyncio.Task[None]] = set()
        """The tasks that read event streams."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close every connection and end the event streams. What was submitted goes on."""
        for stream in [*self._streams]:
            await stream.aclose()
        if self._reading:  # streams that were dropped end by themselves
            await asyncio.wait(self._reading)
        await self._http.aclose()

    # Prompts.

    async def submit(self, session_id: str, prompt: str, **options: Unpack[PromptOptions]) -> RemoteRun:
        """Send a prompt. Takes the options of `Dispatcher.submit`, except for `on_complete`."""
        _check_options("Client.submit", options)
        run_id = options.get("run_id") or _new_run_id()
        body: dict[str, Any] = {"prompt": prompt, "run_id": run_id}
        carried: dict[str, Any] = {name: options.get(name) for name in ("when_busy", "into", "data")}
        body |= {name: value for name, value in carried.items() if value is not None}
        if attachments := options.get("attachments"):
            body["attachments"] = _attached(attachments)
        data = await self._calls.change(
            "POST",
            f"{_session(session_id)}/runs",
            key=run_id if _fits_a_header(run_id) else None,  # the body has it, too
            bound=options.get("when_busy") == "interrupt",
            json=body,
        )
        return run_of(data)

    async def ask(self, session_id: str, prompt: str, **options: Unpack[PromptOptions]) -> RunComplete:
        """Send a prompt, and wait for its RunComplete."""
        run = await self.submit(session_id, prompt, **options)
        return await self.wait(run.run_id)

    def stream(self, session_id: str, prompt: str, **options: Unpack[PromptOptions]) -> RemoteText:
        """Send a prompt, and iterate over the text of its turn; `complete` is its RunComplete at the end."""
        _check_options("Client.stream", options)
        return RemoteText(self, session_id, prompt, options.get("run_id") or _new_run_id(), options)

    async def run(self, run_id: str) -> RemoteRun:
        """Return a run. Raises UnknownRun if the server does not have it."""
        return run_of(await self._calls.look(_run(run_id)))

    async def wait(self, run_id: str, timeout: float | None = None) -> RunComplete:  # noqa: ASYNC109 - asked of the server
        """Return the RunComplete of a run, however long that takes.

        Raises UnknownRun if the server does not know the run, or no longer; how it ended is then unknown.
        Raises TimeoutError after `timeout` seconds.
        """
        async with asyncio.timeout(timeout):
            pause = 0.0
            while True:
                data = await self._calls.look(_run(run_id), params={"wait": _WAIT}, timeout=_WAIT + 10)
                if (complete := run_of(data).complete) is not None:
                    return complete
                await asyncio.sleep(pause)  # a server may answer sooner than asked
                pause = min(pause + 0.05, 1.0)

    # Cancels. Without `key`, an idempotency key, the client makes one.

    async def cancel(self, session_id: str, *, key: str | None = None) -> list[str]:
        """Cancel everything that the session has in flight; return the ids of the covered runs."""
        path = f"{_session(session_id)}/cancel"
        covered: list[str] = (await self._calls.change("POST", path, key=_key(key)))["covered"]
        return covered

    async def cancel_run(
        self, run_id: str, *, waiting_only: bool = False, key: str | None = None
    ) -> list[str]:
        """Cancel a run, or the turn that it is part of; return the ids of the covered runs."""
        path = f"{_run(run_id)}/cancel"
        params = {"waiting_only": "true" if waiting_only else "false"}
        answer = await self._calls.change("POST", path, key=_key(key), params=params)
        covered: list[str] = answer["covered"]
        return covered

    async def clear_queue(self, session_id: str, *, key: str | None = None) -> list[str]:
        """Drop the queue of the session; return the ids of the dropped runs."""
        path = f"{_session(session_id)}/queue"
        dropped: list[str] = (await self._calls.change("DELETE", path, key=_key(key)))["dropped"]
        return dropped

    # The line. Without `key`, an idempotency key, the client makes one.

    async def hold(self, session_id: str, *, key: str | None = None) -> list[str]:
        """Hold everything that waits in the session; return the ids of the runs that were not held before."""
        return await self._line(f"{_session(session_id)}/hold", key)

    async def hold_run(self, run_id: str, *, key: str | None = None) -> list[str]:
        """Hold a waiting run. Raises NotWaiting if it does not wait."""
        return await self._line(f"{_run(run_id)}/hold", key)

    async def resume(self, session_id: str, *, key: str | None = None) -> list[str]:
        """Resume everything that is held in the session; return the ids of the resumed runs."""
        return await self._line(f"{_session(session_id)}/resume", key)

    async def resume_run(self, run_id: str, *, key: str | None = None) -> list[str]:
        """Resume a held run. Raises NotWaiting if it does not wait."""
        return await self._line(f"{_run(run_id)}/resume", key)

    async def _line(self, path: str, key: str | None) -> list[str]:
        runs: list[str] = (await self._calls.change("POST", path, key=_key(key)))["runs"]
        return runs

    async def stop(
        self, session_id: str, *, turn: str | None = None, key: str | None = None
    ) -> RemoteCovered:
        """Cancel the active turn alone and hold what waits; with `turn`, only if that run is part of it."""
        path = f"{_session(session_id)}/stop"
        return RemoteCovered(**await self._calls.change("POST", path, key=_key(key), json={"turn": turn}))

    async def send_now(
        self, run_id: str, *, turn: str | None = None, key: str | None = None
    ) -> RemoteCovered:
        """Make a queued run the next, and cancel the active turn. Raises NotWaiting if it is not queued."""
        path = f"{_run(run_id)}/send-now"
        return RemoteCovered(**await self._calls.change("POST", path, key=_key(key), json={"turn": turn}))

    async def move(
        self,
        run_id: str,
        *,
        before: str | None = None,
        to: Literal["first", "last"] | None = None,
        key: str | None = None,
    ) -> RemoteRun:
        """Move a waiting run before another, or to the first or last position."""
        check_one_position(before, to)
        where = {"to": to} if before is None else {"before": before}
        return run_of(await self._calls.change("POST", f"{_run(run_id)}/move", key=_key(key), json=where))

    async def edit(
        self,
        run_id: str,
        *,
        prompt: str | None = None,
        attachments: Sequence[Attachment | str] | Unchanged | None = UNCHANGED,
        when_busy: Literal["fold", "queue"] | None = None,
        data: object = UNCHANGED,
        key: str | None = None,
    ) -> RemoteRun:
        """Change a waiting run. What is not given stays; None removes the attachments or the data."""
        changes: dict[str, Any] = {"prompt": prompt, "when_busy": when_busy}
        changes = {name: value for name, value in changes.items() if value is not None}
        if attachments is not UNCHANGED:
            changes["attachments"] = _attached(attachments or ())
        if data is not UNCHANGED:
            changes["data"] = data
        return run_of(await self._calls.change("PATCH", _run(run_id), key=_key(key), json=changes))

    # Views.

    async def sessions(self) -> list[RemoteSession]:
        """Return every session with runs in flight, all at one moment."""
        data = await self._calls.look("v1/sessions")
        return [session_of({**each, "cursor": data["cursor"]}) for each in data["sessions"]]

    async def session(self, session_id: str) -> RemoteSession:
        """Return a session, which may be quiet."""
        return session_of(await self._calls.look(_session(session_id)))

    async def messages(
        self, session_id: str, *, after: str | None = None, limit: int | None = None
    ) -> list[Message]:
        """Return the messages of a session after the message `after`: all of them, or at most `limit`."""
        found: list[Message] = []
        while limit is None or len(found) < limit:
            params: dict[str, Any] = {"limit": 100 if limit is None else min(100, limit - len(found))}
            if after is not None:
                params["after"] = after
            page = await self._calls.look(f"{_session(session_id)}/messages", params=params)
            found += [Message(**each) for each in page["messages"]]
            after = page["next"]
            if after is None:
                break
        return found

    def events(
        self, session_id: str | None = None, *, after: str | None = None, patience: float | None = None
    ) -> EventStream:
        """Receive the events of a session, or of all, from now on or from the cursor `after` on.

        The stream reconnects for as long as it takes, or for `patience` seconds.
        """
        path = "v1/events" if session_id is None else f"{_session(session_id)}/events"
        stream = EventStream(self._http, path, after, patience, self._read)
        self._streams.add(stream)
        return stream

    def _read(self, reading: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Read an event stream in a task, whose end the client waits for when it is closed."""
        task = asyncio.create_task(reading, name="turngate events")
        self._reading.add(task)
        task.add_done_callback(self._reading.discard)
        return task

    def __repr__(self) -> str:
        return f"<Client of {self._http.base_url}>"


def _attached(attachments: Sequence[Attachment | str]) -> list[Any]:
    """Return attachments as JSON."""
    return [
        encode_attachment(Attachment("", "text/plain", each) if isinstance(each, str) else each)
        for each in attachments
    ]


def _new_run_id() -> str:
    return f"run-{uuid.uuid4().hex}"


def _key(key: str | None) -> str:
    """Return the key, or a new one."""
    if key is None:
        return uuid.uuid4().hex
    if not _fits_a_header(key):
        raise ValueError(f"a key that is sent to a server must be printable ASCII, not {key!r}")
    return key


def _fits_a_header(text: str) -> bool:
    """Return whether a header can carry the text: white space around it is lost, and so are quotes."""
    return text.isascii() and text.isprintable() and text == text.strip() and not text.startswith('"')


def _session(session_id: str) -> str:
    return f"v1/sessions/{_segment(session_id)}"


def _run(run_id: str) -> str:
    return f"v1/runs/{_segment(run_id)}"


def _segment(name: str) -> str:
    """Return an id as a segment of a path."""
    if name in ("", ".", ".."):
        raise ValueError(f"{name!r} cannot be part of an address")
    return quote(name, safe="")


def _check_options(call: str, options: PromptOptions) -> None:
    """Raise TypeError, as Python does, for an unknown option, or one that cannot be sent."""
    for name, value in options.items():
        if name not in PromptOptions.__annotations__:
            raise TypeError(f"{call}() got an unexpected keyword argument {name!r}")
        if name == "on_complete" and value is not None:
            raise TypeError(f"{name} cannot be sent to a server")


def is_address(url: str, segment: str = "") -> bool:
    """Return whether a server can be reached under this URL, with one more segment of a path."""
    try:
        named = httpx2.URL(url + quote(segment, safe=""))
    except (httpx2.InvalidURL, ValueError):  # a ValueError for what is not Unicode
        return False
    return named.scheme in ("http", "https") and bool(named.host) and (named.port or 1) in range(1, 65_536)
