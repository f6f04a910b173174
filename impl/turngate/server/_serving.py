"""`turngate serve`: uvicorn, with limits on what it waits for, and an end in the right order.

uvicorn closes its sockets first, then waits for open connections, and tells the application last: event
streams would keep it waiting, and clients would never hear how their runs ended. So the application comes to
its end first, while the server still answers (readyz says 503, prompts are refused); then uvicorn shuts down.
It is the lifespan of the application that hears the signals (see `heard_by`).
"""

from __future__ import annotations

import asyncio
import signal
from socket import AF_INET, AF_INET6, IPPROTO_TCP, SO_REUSEADDR, SOCK_STREAM, SOL_SOCKET, socket
from typing import TYPE_CHECKING, Any, Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from turngate.server._app import App

HEADER_TIMEOUT: Final = 20.0
"""Seconds until the headers of a request must have arrived; then the connection is dropped."""
KEEP_ALIVE: Final = 10
"""Seconds that a connection may wait for its next request."""
GRACE: Final = 5
"""Seconds that uvicorn waits for connections when the application has come to its end."""


class HttpProtocol(H11Protocol):
    """HTTP as uvicorn speaks it, but a request that does not come to the end of its head is not waited for.

    uvicorn waits for the next request for `timeout_keep_alive`, and for the rest of one that has begun for
    ever: a client that sends a byte now and then would keep the connection (slow loris).
    """

    _waiting: asyncio.TimerHandle | None = None
    """Set while the head of a request is to come."""

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        """Take what has come; wait for the rest if it is a part of a head."""
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            self._wait_no_longer()
        elif self._waiting is None and before is not None and before.response_complete:
            self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        self._wait_no_longer()
        super().connection_lost(exc)

    def _wait_for_head(self) -> None:
        self._waiting = self.loop.call_later(HEADER_TIMEOUT, self.transport.abort)

    def _wait_no_longer(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None


class HttpServer(uvicorn.Server):
    """Lets the application begin and end before the connections; a signal is the ordinary end that it is."""

    def __init__(self, app: App, config: uvicorn.Config, on_start: Callable[[int], object]) -> None:
        super().__init__(config)
        self.interrupted = False
        self._app = app
        self._on_start = on_start

    async def serve(self, sockets: list[socket] | None = None) -> None:
        """Start the application first, so that its errors are raised before a client can connect."""
        await self._app.begin()
        await super().serve(sockets)

    async def startup(self, sockets: list[socket] | None = None) -> None:
        """Start, and say on which port."""
        await super().startup(sockets)
        if self.started:  # pragma: no branch - if not, uvicorn has raised; older ones return
            self._on_start(self.servers[0].sockets[0].getsockname()[1])

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        """End the application first, unless a signal has done that."""
        await self._app.end()
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Shut down; in haste from the second signal on. The signal has no other meaning afterwards."""
        self.interrupted = self.interrupted or sig == signal.SIGINT
        self.force_exit = self.should_exit
        self.should_exit = True


def config(app: App, host: str, port: int, *, verbose: bool = False) -> uvicorn.Config:
    """Return how uvicorn is set up: what it waits for is limited, and nothing of a request is logged."""
    return uvicorn.Config(
        app,
        host=host,
        port=port,
        http=HttpProtocol,
        ws="none",
        lifespan="on",
        log_level="info" if verbose else "warning",
        access_log=verbose,
        server_header=False,
        h11_max_incomplete_event_size=app.limits.header_limit * 2,
        limit_concurrency=app.limits.streams_limit * 2 + 1_000,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=GRACE,
    )


def serve(
    app: App,
    host: str = "127.0.0.1",
    port: int = 8765,
    *,
    verbose: bool = False,
    on_start: Callable[[int], object] = lambda port: None,
    listener: socket | None = None,
) -> bool:
    """Serve until a signal comes; `on_start` receives the port, on the loop. Return whether it was Ctrl-C.

    `listener` is a socket that listens already, maybe for other processes too; it is closed at the end.
    Raises OSError when the address is not available, LedgerUnavailable when the ledger cannot be reached.
    """
    server = HttpServer(app, config(app, host, port, verbose=verbose), on_start)
    with listener or listening(host, port) as own:
        server.run([own])
    return server.interrupted


def listening(host: str, port: int) -> socket:
    """Return a socket that listens on this address.

    It says that its protocol is TCP: asyncio has small packets sent at once only on sockets that say so, and
    every answer would take 40 ms longer.
    """
    host = "127.0.0.1" if host == "localhost" else host.strip("[]")
    own = socket(AF_INET6 if ":" in host else AF_INET, SOCK_STREAM, IPPROTO_TCP)
    try:
        own.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
        own.bind((host, port))
        own.listen(2_048)
    except BaseException:
        own.close()
        raise
    return own
