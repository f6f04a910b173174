"""A network in memory between clients and a server. Every byte goes over it, and a driver injects faults.

One end of a connection belongs to the client's connection pool, the other to the protocol of the server; both
are the real ones. Bytes arrive one step of the loop later, in order, unless a fault intervenes.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import Context, ContextVar
from typing import Any, Final, NamedTuple, Protocol

import httpcore2

from turngate_verify.world.virtual_loop import VirtualLoop

PROCESS: ContextVar[int] = ContextVar("process", default=0)
"""The process of a server that a task or a timer belongs to; 0 for clients."""

FAULTS: Final = (
    "refused", "request lost", "request cut", "request late", "request doubled", "answer lost", "answer cut",
    "answer late", "502 before", "502 after",
)  # fmt: skip
"""What can happen to an exchange.

refused          no connection is made, and an idle one is lost
request lost     the connection breaks before the request has arrived
request cut      the connection breaks in the middle of the request
request late     the request stays in the network until the driver lets it through
request doubled  the request arrives, and arrives again when the driver lets it through
answer lost      the connection breaks before the answer has arrived
answer cut       the connection breaks in the middle of the answer
answer late      the answer stays in the network until the driver lets it through
502 before       a proxy answers 502 and the server has not seen the request
502 after        a proxy answers 502 and the server has acted
"""
_BAD_GATEWAY: Final = b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_END: Final = None
"""Stands after the last byte of a direction."""


class NetworkLoop(VirtualLoop):
    """A virtual loop that knows the process of every task, and closes dropped generators."""

    def __init__(self) -> None:
        super().__init__()
        self.process_of: dict[asyncio.Task[Any], int] = {}
        self._hooks: list[Any] = []

    def create_task(
        self, coro: Any, *, name: object = None, context: Context | None = None, **more: Any
    ) -> asyncio.Task[Any]:
        """Make a task, and note its process."""
        task = super().create_task(coro, name=name, context=context, **more)
        maker = asyncio.current_task(self)  # its context may be that of another process
        self.process_of[task] = PROCESS.get() or (self.process_of.get(maker, 0) if maker is not None else 0)
        return task

    def end_process(self, process: int, more: Callable[[], Iterable[asyncio.Task[Any]]] = tuple) -> None:
        """End a process as a kill would: its tasks, and `more`, are gone, and its timers never fire."""
        for _ in range(100):
            left = [task for task in self.tasks if self.process_of[task] == process and not task.done()]
            left += more()
            if not left:
                break
            for task in left:
                task.cancel()
            self.settle()
        for handle in self._scheduled:
            if handle._context.get(PROCESS, 0) == process:  # type: ignore[attr-defined]  # not in the stubs
                handle.cancel()

    def __enter__(self) -> None:
        super().__enter__()
        self._hooks.append(sys.get_asyncgen_hooks())
        sys.set_asyncgen_hooks(finalizer=self._end_generator)

    def __exit__(self, *exc: object) -> None:
        sys.set_asyncgen_hooks(*self._hooks.pop())
        super().__exit__(*exc)

    def _end_generator(self, generator: Any) -> None:
        if not self.is_closed():
            self.call_soon(self.create_task, generator.aclose())


class Listener(Protocol):
    """The process of a server that accepts connections."""

    process: int
    context: Context

    def protocol(self) -> asyncio.Protocol:
        """Return the protocol for a new connection."""
        ...


class Fault(NamedTuple):
    """The fate of an exchange: the fault, and the byte at which it strikes."""

    kind: str
    at: int = 0


class Network:
    """Connects clients with the listening server, if there is one."""

    def __init__(self, loop: NetworkLoop, *, may_double: Callable[[bytes, int], bool]) -> None:
        self.loop = loop
        self.server: Listener | None = None
        self.is_down = False
        """Whether no connection can be made."""
        self.connections: list[Connection] = []
        self.faults: deque[Fault] = deque()
        """The fates of the next exchanges."""
        self.late: list[Callable[[], None]] = []
        """Messages that the driver can let through."""
        self.struck: list[str] = []
        """The faults that have happened so far."""
        self._may_double = may_double
        """Says whether a request that went to one process may arrive a second time now."""

    def connect(self) -> Connection:
        """Make a connection. Raises ConnectError if no server accepts it."""
        refused = bool(self.faults) and self.faults[0].kind == "refused"
        if self.server is None or self.is_down or refused:
            if refused:
                self.next_fault()
            raise httpcore2.ConnectError("refused")
        connection = Connection(self, self.server)
        self.connections.append(connection)
        return connection

    def next_fault(self) -> Fault:
        """Return the fate of an exchange that begins."""
        if not self.faults:
            return Fault("")
        fault = self.faults.popleft()
        self.struck.append(fault.kind)
        return fault

    def resend(self, request: bytes, process: int) -> None:
        """Deliver a request once more; its answer is not read."""
        if self.server is None or not self._may_double(request, process):
            return
        again = Connection(self, self.server)
        self.connections.append(again)
        again.is_copy = True
        again.pass_on(request)

    def let_through(self, nth: int) -> None:
        """Let a late message arrive."""
        if self.late:
            self.late.pop(nth % len(self.late))()

    def lose_process(self, process: int) -> None:
        """Break every connection of a process that is gone, and forget what was on its way."""
        if self.server is not None and self.server.process == process:
            self.server = None
        for connection in [each for each in self.connections if each.server.process == process]:
            connection.die()

    def break_lines(self, after: int | None) -> None:
        """Break every connection, at once or after some more bytes of its answer."""
        for connection in [*self.connections]:
            if after is None:
                connection.reset()
            else:
                connection.bytes_left = after

    def heal(self) -> None:
        """Let everything through, and inject no more faults."""
        self.faults.clear()
        while self.late:
            self.let_through(0)
        for connection in self.connections:
            connection.bytes_left = None


class Connection:
    """A connection of a client with a server."""

    def __init__(self, network: Network, server: Listener) -> None:
        self.server = server
        self.bytes_left: int | None = None
        """How many bytes the client still receives before the connection breaks; None means all."""
        self.is_copy = False
        """Whether it carries a doubled request, so that no client has the other end."""
        self._network = network
        self.client = ClientEnd(self)
        self.far = ServerEnd(self)
        self._request = b""
        self._to_server: deque[bytes | None] = deque()
        self._to_client: deque[bytes | None] = deque()
        self._held = {"request": False, "answer": False}
        self._answers_502 = False
        self._protocol: asyncio.Protocol | None = server.context.run(server.protocol)
        server.context.run(self._protocol.connection_made, self.far)

    # From the client.

    def write(self, data: bytes) -> None:
        """Take bytes of a request, which is passed on once it is complete."""
        self._request += data
        if not _is_whole(self._request):
            return
        request, self._request = self._request, b""
        kind, at = self._network.next_fault()
        match kind:
            case "refused" | "request lost":
                self.reset()
            case "request cut":
                self.pass_on(request[: max(1, at % len(request))])
                self._network.loop.call_soon(self.reset)
            case "502 before":
                self.client.receive(_BAD_GATEWAY)
                self.client.receive(_END)
                self.hang_up()
            case _:
                self._prepare_answer(kind, at)
                if kind == "request late":
                    self._hold("request")
                if kind == "request doubled":
                    self._network.late.append(lambda: self._network.resend(request, self.server.process))
                self.pass_on(request)

    def _prepare_answer(self, kind: str, at: int) -> None:
        if kind == "answer lost":
            self.bytes_left = 0
        elif kind == "answer cut":
            self.bytes_left = at
        elif kind == "answer late":
            self._hold("answer")
        elif kind == "502 after":
            self._answers_502 = True

    def _hold(self, which: str) -> None:
        self._held[which] = True

        def release() -> None:
            self._held[which] = False
            self._move()

        self._network.late.append(release)

    def pass_on(self, data: bytes | None) -> None:
        """Send bytes, or the end of the stream, to the server."""
        self._to_server.append(data)
        self._move()

    def hang_up(self) -> None:
        """Close the connection from the side of the client."""
        self.pass_on(_END)

    # From the server.

    def answer(self, data: bytes | None) -> None:
        """Send bytes, or the end of the stream, to the client."""
        if self.is_copy:
            if data is not None:
                self._network.loop.call_soon(self.hang_up)
        elif self._answers_502 and data is not None:
            self._answers_502 = False
            self.client.receive(_BAD_GATEWAY)
            self.client.receive(_END)
            self._network.loop.call_soon(self.hang_up)
        else:
            self._to_client.append(data)
            self._move()

    # On the way.

    def _move(self) -> None:
        """Let everything that is not held arrive, each a step of the loop later."""
        loop = self._network.loop
        if not self._held["request"] and not self.far.is_paused:
            while self._to_server:
                loop.call_soon(self._arrive, self._to_server.popleft(), context=self.server.context.copy())
        if not self._held["answer"]:
            while self._to_client:
                loop.call_soon(self._deliver, self._to_client.popleft())

    def _arrive(self, data: bytes | None) -> None:
        if self._protocol is None or self.far.is_closing():
            self._forget_if_over()
        elif data is not None:
            self._protocol.data_received(data)
        else:
            self.far.lose(None)

    def _deliver(self, data: bytes | None) -> None:
        if data is not None and self.bytes_left is not None:
            data = data[: self.bytes_left]
            self.bytes_left -= len(data)
            self.client.receive(data)
            if not self.bytes_left:
                self.reset()
        else:
            self.client.receive(data)

    # The end.

    def reset(self) -> None:
        """Break the connection, on both sides."""
        self.client.fail()
        if self._protocol is not None and not self.far.is_closing():
            self.server.context.copy().run(self.far.lose, ConnectionResetError("reset"))
        self._forget_if_over()

    def die(self) -> None:
        """Break the connection on the side of the client; there is no other side any more."""
        self._protocol = None
        self._to_server.clear()
        self._to_client.clear()
        self.far.has_ended = True
        self.client.fail()
        self._forget_if_over()

    def lost(self, reason: Exception | None) -> None:
        """Tell the protocol of the server that the connection is lost."""
        protocol, self._protocol = self._protocol, None
        if protocol is not None:
            protocol.connection_lost(reason)
        self.answer(_END)
        self._forget_if_over()

    def _forget_if_over(self) -> None:
        is_over = self.far.is_closing() and (self.client.is_closed or self.is_copy)
        if is_over and self in self._network.connections:
            self._network.connections.remove(self)

    def client_closed(self) -> None:
        """Note that the client has closed its end."""
        self.hang_up()
        self._forget_if_over()


class ClientEnd(httpcore2.AsyncNetworkStream):
    """The stream that the connection pool of a client reads and writes."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._buffer = bytearray()
        self._has_ended = False
        self._is_broken = False
        self.is_closed = False
        self._changed = asyncio.Event()

    def receive(self, data: bytes | None) -> None:
        """Take bytes that have arrived, or the end of the stream."""
        if data is None:
            self._has_ended = True
        else:
            self._buffer += data
        self._changed.set()

    def fail(self) -> None:
        """Note that the connection is broken; what has arrived can still be read."""
        self._is_broken = True
        self._changed.set()

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109 - as httpcore has it
        """Return what has arrived."""
        try:
            async with asyncio.timeout(timeout):
                while not (self._buffer or self._has_ended or self._is_broken):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError as late:
            raise httpcore2.ReadTimeout("no bytes in time") from late
        if self._is_broken and not self._buffer:
            raise httpcore2.ReadError("the connection is broken")
        data = bytes(self._buffer[:max_bytes])
        del self._buffer[:max_bytes]
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109 - as httpcore has it
        """Send bytes."""
        if self._is_broken or self.is_closed:
            raise httpcore2.WriteError("the connection is broken")
        if buffer:
            self._connection.write(buffer)

    async def aclose(self) -> None:
        """Close the connection."""
        if not self.is_closed:
            self.is_closed = True
            self._connection.client_closed()

    def get_extra_info(self, info: str) -> Any:
        """Return whether something can be read without waiting."""
        return bool(self._buffer or self._has_ended or self._is_broken) if info == "is_readable" else None


class ServerEnd(asyncio.Transport):
    """The transport that the protocol of the server writes to."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection
        self.has_ended = False
        self.is_paused = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return nothing: there is no socket."""
        return default

    def write(self, data: Any) -> None:
        """Send bytes to the client."""
        if not self.has_ended and data:
            self._connection.answer(bytes(data))

    def is_closing(self) -> bool:
        """Return whether the transport is closing."""
        return self.has_ended

    def close(self) -> None:
        """Send the end."""
        if not self.has_ended:
            self.has_ended = True
            asyncio.get_running_loop().call_soon(self._connection.lost, None)

    def abort(self) -> None:
        """Close at once."""
        self.close()

    def lose(self, reason: Exception | None) -> None:
        """Close, because the client is gone."""
        if not self.has_ended:
            self.has_ended = True
            self._connection.lost(reason)

    def pause_reading(self) -> None:
        """Pause reading: nothing more arrives."""
        self.is_paused = True

    def resume_reading(self) -> None:
        """Resume reading."""
        self.is_paused = False
        self._connection._move()


class NetworkBackend(httpcore2.AsyncNetworkBackend):
    """Makes the connections of a connection pool."""

    def __init__(self, network: Network) -> None:
        self._network = network

    async def connect_tcp(self, *_: Any, **__: Any) -> httpcore2.AsyncNetworkStream:
        """Make a connection."""
        await asyncio.sleep(0)
        return self._network.connect().client

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)


def _is_whole(request: bytes) -> bool:
    """Return whether a request has all its bytes."""
    head, found, body = request.partition(b"\r\n\r\n")
    if not found:
        return False
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return len(body) >= int(line.partition(b":")[2])
    return True
