"""The server as an ASGI application, served by itself or mounted into another one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from turngate import Dispatcher, DispatcherClosed
from turngate.durable import DurableDispatcher
from turngate.server._endpoints import KEY_LIFE, Handlers, endpoints_at, match_method, path_of
from turngate.server._ledger_backend import LedgerBackend
from turngate.server._limits import Limits
from turngate.server._memory_backend import MemoryBackend
from turngate.server._openapi import openapi
from turngate.server._page import Page
from turngate.server._problems import Problem, refusal
from turngate.server._security import Security
from turngate.server._signals import Listener, heard_by

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from starlette.types import Receive, Scope, Send

    from turngate import Runner
    from turngate.server._backend import Backend

_LOOK: Final = 0.1
"""Seconds between two checks for runs in flight, when the application closes the dispatcher."""

log = logging.getLogger("turngate.server")


class App:
    """The calls, the event stream and the page, over one dispatcher; see `asgi_app`."""

    def __init__(
        self,
        backend: Backend,
        security: Security,
        limits: Limits,
        *,
        owns: bool,
        finish: float,
        make: Callable[[], Backend] | None = None,
    ) -> None:
        self._backend = backend
        self._owns = owns
        self._make = make
        """Makes a dispatcher for the next lifespan; None if the caller made the dispatcher."""
        self.limits = limits
        self._finish = finish
        self._is_hasty = False
        """Whether a second signal has come, in this lifespan."""
        self._security = security
        self._page = Page()
        self._has_lifespan = False
        self._begun: asyncio.Task[None] | None = None
        self._ended: asyncio.Task[None] | None = None
        self._hastening: asyncio.Task[Any] | None = None
        self._handlers: Handlers
        self._key_life = ""

    @property
    def dispatcher(self) -> Dispatcher | DurableDispatcher:
        """The dispatcher that is served; another one after a restart with a runner."""
        return self._backend.dispatcher

    # Its life.

    @contextlib.asynccontextmanager
    async def lifespan(self, app: object = None) -> AsyncIterator[None]:
        """Begin, and end when the application around it ends: `FastAPI(lifespan=mounted.lifespan)`.

        Frameworks do not run the lifespan of a mounted application, so the application around it has to enter
        this one. Leaving it closes the dispatcher, unless that is the application's own (`owns=False`).

        Servers wait for open connections, or cut them, before they end a lifespan. So this also handles the
        signals that end a server, and closes the dispatcher while the connections are still open: the server
        receives the signal when every reader has its RunCompletes. With `owns=False` the server receives it
        at once, and the event streams go on until the dispatcher is closed, nothing is in flight, or `finish`
        seconds have passed.
        """
        self._has_lifespan = True
        await self.begin()
        with heard_by(Listener(self._begin_end_at_signal, self._hasten)):
            try:
                yield
            finally:
                if self._owns:
                    await self.end()
                else:
                    self._handlers.closing = True

    async def begin(self) -> None:
        """Open the dispatcher if this application owns it, and follow it; further calls do nothing.

        Raises LedgerUnavailable if the ledger cannot be reached; a later call tries again.
        """
        if self._ended is not None and self._ended.done():
            if self._make is None:
                raise DispatcherClosed("this application and its dispatcher are closed")
            self._backend, self._begun, self._ended, self._is_hasty = self._make(), None, None, False
        if self._begun is None:
            # A task of its own: a caller that is cancelled meanwhile does not take the others along.
            self._begun = asyncio.create_task(self._open(), name="turngate begin")
        begun = self._begun
        try:
            await asyncio.shield(begun)
        except BaseException:
            if self._begun is begun and begun.done():
                self._begun = None
            raise

    async def _open(self) -> None:
        backend = self._backend
        if self._owns:
            await backend.dispatcher.__aenter__()
        self._key_life = await backend.dispatcher.key_life()
        self._handlers = Handlers(backend, self.limits, self._key_life, self._describe)
        await self._handlers.log.begin()
        backend.call_before_close(self._handlers.deliver)

    def begin_end(self) -> None:
        """Refuse new prompts and begin to end, from a signal handler on the loop."""
        if self._begun is None or not self._begun.done() or self._begun.exception() is not None:
            return
        self._handlers.closing = True
        if self._ended is None:
            self._ended = asyncio.create_task(self._end(), name="turngate end")

    def _begin_end_at_signal(self) -> asyncio.Future[None] | None:
        """Begin to end; return what the signal waits for."""
        self.begin_end()
        return self._ended if self._owns else None

    def _hasten(self) -> None:
        """Stop waiting for runs to finish by themselves, if this application owns the dispatcher."""
        self._is_hasty = True
        if self._owns and self._ended is not None and not self._ended.done():
            self._hastening = asyncio.create_task(self._backend.hasten_close(), name="turngate hasten")

    async def end(self) -> None:
        """Refuse new prompts, let runs in flight finish, deliver every RunComplete and end the streams."""
        self.begin_end()
        if self._ended is not None:
            await asyncio.shield(self._ended)

    async def _end(self) -> None:
        try:
            if self._owns:
                await self._backend.dispatcher.aclose(finish=0.0 if self._is_hasty else self._finish)
            else:
                await self._until_quiet()
        finally:
            await self._handlers.deliver()
        if self._owns:
            await self._backend.dispatcher.__aexit__(None, None, None)

    async def _until_quiet(self) -> None:
        """Wait until the application has closed the dispatcher or nothing is in flight, for a while."""
        deadline = asyncio.get_running_loop().time() + self._finish
        while not self._handlers.log.ended.is_set() and asyncio.get_running_loop().time() < deadline:
            if not self._backend.in_flight().sessions:
                return
            await asyncio.sleep(_LOOK)

    # Requests.

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1000})

    async def _live(self, receive: Receive, send: Send) -> None:
        """Run the lifespan when served by itself."""
        await receive()
        phase = "startup"
        try:
            async with self.lifespan():
                await send({"type": "lifespan.startup.complete"})
                phase = "shutdown"
                await receive()
        except Exception as wrong:
            await send({"type": f"lifespan.{phase}.failed", "message": str(wrong)})
            raise
        await send({"type": "lifespan.shutdown.complete"})

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        origin = None
        try:
            path, method = path_of(scope), scope["method"]
            found = endpoints_at(path)
            is_open = path in self._page or any(endpoint.is_open for endpoint, _ in found)
            origin = self._security.check(scope, self.limits, is_open=is_open)
            if origin is not None and method == "OPTIONS":
                response = Response(status_code=204, headers=_PREFLIGHT)
            elif path in self._page:
                response = self._page.response(path, method)
            else:
                self._warn_of_missing_lifespan()
                await self.begin()
                endpoint, ids = match_method(found, method)
                response = await self._handlers.answer(endpoint, ids, Request(scope, receive))
        except Problem as problem:
            response = problem.response()
        except ClientDisconnect:
            return
        except Exception as wrong:
            refused = refusal(wrong)
            if refused is None:
                log.exception("%s raised", scope["method"])
                refused = Problem("internal-error", "the server's log says what went wrong")
            response = refused.response()
        if origin is not None:
            response.headers.update({"access-control-allow-origin": origin, **_CORS})
        if self._key_life:
            response.raw_headers.append((KEY_LIFE.encode(), self._key_life.encode()))
        await response(scope, receive, send)

    def _warn_of_missing_lifespan(self) -> None:
        if not self._has_lifespan:
            self._has_lifespan = True  # once is enough
            log.warning(
                "the lifespan of the mounted application was not started, so nothing closes its dispatcher, "
                "and a shutdown may lose prompts that were accepted: give it to the application around it, "
                "as in FastAPI(lifespan=mounted.lifespan)"
            )

    def _describe(self, root: str) -> dict[str, Any]:
        return openapi(root, self.limits, token=self._security.token is not None)


_PREFLIGHT: Final = {
    "access-control-allow-methods": "GET, POST, PATCH, DELETE",
    "access-control-allow-headers": (
        "Authorization, Content-Type, Idempotency-Key, Last-Event-ID, Turngate-Key-Life"
    ),
    "access-control-max-age": "600",
}
_CORS: Final = {
    "access-control-expose-headers": "Location, Retry-After, Turngate-Key-Life",
    "vary": "Origin",
}
"""The headers that let a page of another origin read an answer, besides the name of that origin."""


def backend_of(dispatcher: Dispatcher | DurableDispatcher) -> Backend:
    """Return the adapter of a dispatcher."""
    return MemoryBackend(dispatcher) if isinstance(dispatcher, Dispatcher) else LedgerBackend(dispatcher)


def asgi_app(
    dispatcher: Dispatcher | DurableDispatcher | Runner,
    *,
    owns: bool = True,
    token: str | None = None,
    hosts: frozenset[str] | set[str] | None = None,
    origins: frozenset[str] | set[str] = frozenset(),
    limits: Limits | None = None,
    finish: float = 10.0,
    **options: Any,
) -> App:
    """Return the server as an ASGI application, to be mounted into yours under any prefix.

    dispatcher  a dispatcher; or a runner, for which a `Dispatcher` is made with the other `options`
    owns        whether `lifespan` closes the dispatcher; False: the application closes it
    token       what clients present as `Authorization: Bearer ...`; None: nothing
    hosts the names that it answers under; None: all, because the application around it decides
    origins     other origins whose pages may call it, as browsers spell them: `https://example.org`
    limits      see `Limits`
    finish      seconds that runs may go on by themselves when the dispatcher is closed; with `owns=False`,
                seconds after a signal that event streams wait for the application to close it

    Frameworks do not run the lifespan of a mounted application: give `lifespan` to the application around it.
    """
    if token is not None and not token:
        raise ValueError("token must not be empty")
    if not isinstance(finish, int | float) or not finish >= 0:
        raise ValueError(f"finish must be at least 0 seconds, not {finish!r}")
    names = None if hosts is None else frozenset(each.lower() for each in hosts)
    others = frozenset(each.lower().rstrip("/") for each in origins)
    security = Security(token, names, origins=others)
    limits = limits or Limits()
    if isinstance(dispatcher, Dispatcher | DurableDispatcher):
        if options:
            given = ", ".join(sorted(options))
            raise TypeError(f"{given}: give these to the dispatcher; asgi_app takes them only with a runner")
        return App(backend_of(dispatcher), security, limits, owns=owns, finish=finish)
    if not owns:
        raise ValueError(
            "owns=False needs a dispatcher: the application closes the one that it makes for a runner"
        )
    runner = dispatcher

    def make() -> Backend:
        return backend_of(Dispatcher(runner, **options))

    return App(make(), security, limits, owns=True, finish=finish, make=make)
