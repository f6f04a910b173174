"""A server that is a list of answers, for a client in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, NamedTuple

import httpx2

LIFE = "turngate-key-life"


class Sent(NamedTuple):
    """A request as it came: when, and with what."""

    at: float
    method: str
    path: str
    key: str | None
    life: str | None
    after: str | None
    """The cursor behind which an event stream was asked to begin."""


Answer = httpx2.Response | Exception | Callable[[], httpx2.Response]


class Answers(httpx2.AsyncBaseTransport):
    """Gives one answer after another; the last one again and again."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = [*answers]
        self.sent: list[Sent] = []
        self.requests: list[httpx2.Request] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Note what was sent, and answer."""
        await request.aread()
        self.requests.append(request)
        headers = request.headers
        self.sent.append(
            Sent(
                round(asyncio.get_running_loop().time(), 6),
                request.method,
                request.url.raw_path.decode(),
                headers.get("idempotency-key"),
                headers.get(LIFE),
                headers.get("last-event-id"),
            )
        )
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, httpx2.Response) else answer()

    @property
    def times(self) -> list[float]:
        """When requests came."""
        return [each.at for each in self.sent]


class Routes(httpx2.AsyncBaseTransport):
    """Gives the answers that are listed for a method and a path, one after another; the last one again."""

    def __init__(self, routes: dict[str, list[Answer]]) -> None:
        self._routes = {route: Answers(*answers) for route, answers in routes.items()}
        self.asked: list[str] = []
        """What was asked for, as `GET /v1/sessions/s`."""
        self.bodies: list[bytes] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Note what was asked for, and answer."""
        route = f"{request.method} {request.url.path}"
        self.asked.append(route)
        self.bodies.append(await request.aread())
        return await self._routes[route].handle_async_request(request)


def said(body: Any, life: str | None = None) -> Callable[[], httpx2.Response]:
    """Answer 200 with JSON."""
    return lambda: httpx2.Response(200, json=body, headers={} if life is None else {LIFE: life})


def problem(status: int, name: str, life: str | None = None, **more: Any) -> Callable[[], httpx2.Response]:
    """Refuse as a Turngate server does."""
    headers = {"content-type": "application/problem+json"} | ({} if life is None else {LIFE: life})
    body = {"type": f"urn:turngate:problem:{name}", "detail": "the reason", **more}
    return lambda: httpx2.Response(status, json=body, headers=headers)


def foreign(status: int) -> Callable[[], httpx2.Response]:
    """Answer as a proxy does that knows nothing of Turngate."""
    return lambda: httpx2.Response(status, html="<p>no</p>")


class Body(httpx2.AsyncByteStream):
    """The body of an event stream: text, seconds to wait, or an error, one after another."""

    def __init__(self, parts: Iterable[str | float | Exception]) -> None:
        self.parts = parts
        self.is_closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self.parts:
            if isinstance(part, Exception):
                raise part
            if isinstance(part, str):
                yield part.encode()
            else:
                await asyncio.sleep(part)

    async def aclose(self) -> None:
        """Note that the client has let it go."""
        self.is_closed = True


def streamed(*parts: str | float | Exception) -> Callable[[], httpx2.Response]:
    """Answer with an event stream, which ends after the parts."""
    head = {"content-type": "text/event-stream"}
    return lambda: httpx2.Response(200, headers=head, stream=Body(parts))


def delta(offset: int, cursor: str | None, text: str = "x") -> str:
    """Return a frame of an event stream."""
    named = "" if cursor is None else f"id: {cursor}\n"
    body = f'{{"session_id": "s", "run_id": "r", "text": "{text}", "offset": {offset}}}'
    return f"event: delta\n{named}data: {body}\n\n"
