"""The calls: each takes a request, asks the dispatcher, and returns an answer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from msgspec import Struct, structs
from starlette.responses import Response

from turngate import DispatcherClosed
from turngate._words import counted
from turngate.server._metrics import metrics
from turngate.server._models import (
    CancelRunQuery,
    CoveredBody,
    DroppedBody,
    MessagesBody,
    MessagesQuery,
    RunQuery,
    SessionAtPlaceBody,
    StatusBody,
    encode,
    encode_around,
    message_body,
    run_body,
)
from turngate.server._problems import Problem
from turngate.server._requests import check_id, idempotency_key, parse_new_run, parse_query

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request

    from turngate import Run, RunComplete
    from turngate.server._backend import Backend
    from turngate.server._event_log import EventLog
    from turngate.server._limits import Limits
    from turngate.server._streams import Streams


KEY_LIFE: Final = "turngate-key-life"
"""The header by which the server names the time in which it remembers keys, and a client the one it means."""
_ANOTHER_LIFE: Final = (
    "this server was restarted since the call was first made, or its ledger was; it has done nothing now"
)
_LAST_LOOK: Final = 1.0
"""Seconds in which a completion must be known that came with the end of the dispatcher."""


def answer(body: bytes | Struct, status: int = 200, **headers: str) -> Response:
    """Return an answer in JSON."""
    content = body if isinstance(body, bytes) else encode(body)
    return Response(content, status, headers, "application/json")


class Handlers:
    """The calls on one dispatcher."""

    def __init__(self, backend: Backend, log: EventLog, streams: Streams, limits: Limits) -> None:
        self._backend = backend
        self._d = backend.dispatcher
        self._log = log
        self._streams = streams
        self._limits = limits
        self.closing = False
        """Whether prompts are refused."""
        self.over = asyncio.Event()
        """Set when the dispatcher is closed: there is nothing more to wait for."""
        self.all_answered = asyncio.Event()
        """Set while no call waits for a completion."""
        self.all_answered.set()
        self._waiting = 0
        self.key_life = ""
        """The time in which keys are remembered; clients that repeat a call say which one they mean."""

    def _session_id(self, request: Request) -> str:
        return check_id("the session id", request.path_params["session"], self._limits)

    async def _key(self, request: Request) -> dict[str, str]:
        """Return the idempotency key, as the operations of a dispatcher take it.

        A repetition that is meant for another life is refused unless the key is known: it may have been
        carried out there, and would be carried out a second time here.
        """
        key = idempotency_key(request)
        if key is None:
            return {}
        if KEY_LIFE in request.headers and not await self._backend.knows_key(key):
            await self._refuse_another_life(request)
        return {"key": key}

    async def _refuse_another_life(self, request: Request) -> None:
        """Refuse what was meant for a life whose keys are not remembered here."""
        life = request.headers.get(KEY_LIFE, self.key_life)
        if life != self.key_life and not await self._backend.continues_life(life):
            raise Problem("outcome-unknown", _ANOTHER_LIFE)

    # Runs.

    async def submit(self, request: Request) -> Response:
        """Take a prompt in: 202, or 200 if the run is known with the same payload."""
        session_id = self._session_id(request)
        new = await parse_new_run(request, self._limits)
        if self.closing:
            raise Problem("shutting-down")
        known = new.run_id is not None and await self._backend.find(new.run_id) is not None
        if not known:
            await self._refuse_another_life(request)
            if not await self._backend.has_room(session_id, self._limits.sessions_limit):
                sessions = counted(self._limits.sessions_limit, "session")
                raise Problem("queue-full", f"{sessions} in flight (sessions_limit)")
        run = await self._d.submit(
            session_id,
            new.prompt,
            run_id=new.run_id,
            when_busy=new.when_busy,
            attachments=new.attachments,
        )
        self._backend.expect(run.run_id, new.prompt)
        location = f"{quote(request.scope.get('root_path', ''))}/v1/runs/{quote(run.run_id, safe='')}"
        return answer(run_body(run), 200 if known else 202, location=location)

    async def _find(self, request: Request) -> Run:
        run = await self._backend.find(request.path_params["run"])
        if run is None:
            raise Problem("unknown-run")
        return run

    async def run(self, request: Request) -> Response:
        """Return a run, after its completion if that comes within the time to wait."""
        patience = min(parse_query(request, RunQuery).wait, self._limits.wait_limit)
        run = await self._find(request)
        complete = run.complete
        if complete is None and patience > 0:
            complete = await self._completed_within(run, patience, request)
        prompt = None
        if complete is not None and not run.prompt:
            prompt = await self._backend.find_prompt(run.run_id)
        return answer(run_body(run, complete, prompt))

    async def _completed_within(self, run: Run, patience: float, request: Request) -> RunComplete | None:
        """Wait for a completion, as long as there is a client and a dispatcher that is not closed."""
        waiting: asyncio.Task[Any] = asyncio.ensure_future(run.wait())
        others = [asyncio.ensure_future(_gone(request)), asyncio.ensure_future(self.over.wait())]
        self._waiting += 1
        self.all_answered.clear()
        try:
            await asyncio.wait([waiting, *others], timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done() and self.over.is_set():
                await asyncio.wait([waiting], timeout=_LAST_LOOK)
            return waiting.result() if waiting.done() else None
        except DispatcherClosed:  # the run goes on in another process, or with the next start
            return None
        finally:
            self._waiting -= 1
            if not self._waiting:
                self.all_answered.set()
            for task in (waiting, *others):
                task.cancel()
            await asyncio.gather(waiting, *others, return_exceptions=True)

    async def cancel_run(self, request: Request) -> Response:
        """Cancel one run, or the turn that it is part of."""
        waiting_only = parse_query(request, CancelRunQuery).waiting_only == "true"
        covered = await self._d.cancel_run(
            request.path_params["run"], waiting_only=waiting_only, **await self._key(request)
        )
        if not covered.known:
            raise Problem("unknown-run")
        return answer(CoveredBody(covered=_ids(covered.runs)))

    # Sessions.

    async def cancel_session(self, request: Request) -> Response:
        """Cancel all that a session has in flight."""
        session_id = self._session_id(request)
        covered = await self._d.cancel(session_id, **await self._key(request))
        return answer(CoveredBody(covered=_ids(covered.runs)))

    async def clear_queue(self, request: Request) -> Response:
        """Drop what is queued."""
        session_id = self._session_id(request)
        dropped = await self._d.clear_queue(session_id, **await self._key(request))
        return answer(DroppedBody(dropped=_ids(dropped)))

    async def sessions(self, request: Request) -> Response:
        """Return every session that has something in flight, and where the event stream is at that step."""
        place, sessions = await self._log.look()
        return answer(encode_around(sessions, cursor=str(place)))

    async def session(self, request: Request) -> Response:
        """Return one session, which may be quiet."""
        place, session = await self._log.look_at(self._session_id(request))
        return answer(SessionAtPlaceBody(**structs.asdict(session), cursor=str(place)))

    async def messages(self, request: Request) -> Response:
        """Return messages of a session, a page at a time."""
        session_id, most = self._session_id(request), self._limits.page_limit
        query = parse_query(request, MessagesQuery)
        if query.limit > most and "limit" in request.query_params:
            raise Problem("invalid", f"limit must be a whole number from 1 to {most} (page_limit)")
        limit = min(query.limit, most)
        try:
            found = await self._backend.list_messages(session_id, query.after or None, limit + 1)
        except ValueError as unknown:
            raise Problem("invalid", str(unknown)) from None
        messages = [message_body(each) for each in found[:limit]]
        return answer(MessagesBody(messages=messages, next=messages[-1].id if len(found) > limit else None))

    # The server itself.

    async def health(self, request: Request) -> Response:
        """Say that the server is alive."""
        return answer(StatusBody(status="alive"))

    async def ready(self, request: Request) -> Response:
        """Say whether the server takes prompts."""
        if self.closing:
            raise Problem("shutting-down")
        return answer(StatusBody(status="ready"))

    async def metrics(self, request: Request) -> Response:
        """Return figures for Prometheus."""
        figures = metrics(self._log, self._streams, await self._backend.in_flight(), self._backend.dropped)
        return Response(figures, media_type="text/plain; version=0.0.4; charset=utf-8")


def _ids(runs: Sequence[Run]) -> list[str]:
    return [run.run_id for run in runs]


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
