"""Connections to a PostgreSQL server, the meaning of their errors, listening, and the lease of a worker.

The only module that imports asyncpg. A statement can fail in these ways:

    it could not be sent             LedgerUnavailable    nothing was done
    the server refused it            Refused              nothing was done
    the server refused a value       NotStorable          nothing was done
    another process was faster       Conflict             nothing was done
    the answer did not come          Unanswered           it may have been done, or may yet be
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

import asyncpg

from turngate._log import log_error
from turngate.durable._ledger import LedgerUnavailable, NotStorable
from turngate.durable._swap import Conflict, Refused, Unanswered

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")

_LOST: Final = (
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
)
"""Errors that mean that a connection is gone, or an answer is late."""
_FASTER: Final = (asyncpg.UniqueViolationError, asyncpg.SerializationError, asyncpg.DeadlockDetectedError)
_ABOUT_DATA: Final = ("22", "23", "54")
"""The classes of errors about a value: its content, its constraints, its size."""
_HEARS_NOTHING: Final = 15.0
"""Seconds without a notification after which a listener checks its connection."""
_MOMENT: Final = 1.0
"""Seconds for which a connection attempt may go on after its caller was cancelled."""
_AGAIN: Final = 0.2
"""Seconds to wait before reconnecting."""


class Server:
    """A server, and some connections to it, each used for one statement at a time."""

    def __init__(self, dsn: str, connections: int, statement_timeout: float, cached_statements: int) -> None:
        self._dsn = dsn
        self._timeout = statement_timeout
        self._cached = cached_statements
        self._idle: list[asyncpg.Connection] = []
        self._free = asyncio.Semaphore(connections)
        self._closed = False

    async def connect(self, moment: float = _MOMENT) -> asyncpg.Connection:
        """Return a new connection. A cancelled caller waits at most `moment` seconds longer."""
        connecting = asyncpg.connect(
            self._dsn,
            timeout=self._timeout,  # pyright: ignore[reportArgumentType] - its stubs want whole seconds
            command_timeout=self._timeout,
            statement_cache_size=self._cached,
            server_settings={"application_name": "turngate"},
        )
        try:
            return await _connected(asyncio.ensure_future(connecting), moment)
        except (*_LOST, asyncpg.PostgresError, ValueError) as exc:
            raise LedgerUnavailable(f"PostgreSQL cannot be reached: {_words(exc)}") from exc

    async def fetch(self, statement: str, *about: object) -> list[Any]:
        """Execute a statement that may be repeated: twice if the connection turns out to be gone."""
        try:
            return await self.send(statement, *about)
        except (Unanswered, LedgerUnavailable):
            if self._closed:
                raise LedgerUnavailable("the ledger is closed") from None
        try:
            return await self.send(statement, *about)
        except Unanswered as exc:
            raise LedgerUnavailable(f"PostgreSQL does not answer: {exc}") from exc

    async def send(self, statement: str, *about: object) -> list[Any]:
        """Execute a statement once. Raises Unanswered if it is not known whether it was executed."""
        async with self._free:
            if self._closed:
                raise LedgerUnavailable("the ledger is closed")
            connection = await self._connection()
            try:
                rows = await connection.fetch(statement, *about)
            except _LOST as exc:
                connection.terminate()  # `close` would wait for a server that is gone
                raise Unanswered(_words(exc)) from exc
            except BaseException as exc:
                if isinstance(exc, asyncpg.PostgresError):
                    self._give_back(connection)
                    if isinstance(exc, _FASTER):
                        raise Conflict(str(exc)) from exc
                    if _is_about_data(exc):
                        raise NotStorable(f"the ledger cannot store this: {_words(exc)}") from exc
                    raise Refused(f"PostgreSQL refused: {_words(exc)}") from exc
                connection.terminate()  # cancelled: the answer will not be read
                raise
            self._give_back(connection)
            return [*rows]

    def _give_back(self, connection: asyncpg.Connection) -> None:
        if self._closed:  # while the statement was under way
            connection.terminate()
        else:
            self._idle.append(connection)

    async def _connection(self) -> asyncpg.Connection:
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed():
                return connection
        return await self.connect()

    async def in_transaction(self, call: Callable[[asyncpg.Connection], Coroutine[Any, Any, T]]) -> T:
        """Make a call within a transaction on a connection of its own, and return what it returns."""
        connection = await self.connect()
        try:
            async with connection.transaction():
                return await call(connection)
        except (*_LOST, asyncpg.PostgresError) as exc:
            raise LedgerUnavailable(f"PostgreSQL refused: {_words(exc)}") from exc
        finally:
            connection.terminate()

    async def close(self) -> None:
        """Close the connections. Idempotent."""
        self._closed = True
        while self._idle:
            connection = self._idle.pop()
            with contextlib.suppress(*_LOST, asyncpg.PostgresError):
                await connection.close(timeout=1)
            connection.terminate()


async def _connected(connecting: asyncio.Future[asyncpg.Connection], moment: float) -> asyncpg.Connection:
    """Wait for the connection; when cancelled, give it a moment to be established, then end it.

    If asyncpg is interrupted while it connects, it leaves behind a future whose exception is never retrieved.
    """
    try:
        return await asyncio.shield(connecting)
    except asyncio.CancelledError:
        connecting.add_done_callback(_end)
        try:
            await asyncio.wait([connecting], timeout=moment)
        finally:
            connecting.cancel()
        raise


def _end(connecting: asyncio.Future[asyncpg.Connection]) -> None:
    if not connecting.cancelled() and connecting.exception() is None:
        connecting.result().terminate()


def _is_about_data(exc: asyncpg.PostgresError) -> bool:
    """Return whether the server refused a value, which it would refuse again."""
    state = str(getattr(exc, "sqlstate", None) or "")
    return state[:2] in _ABOUT_DATA or (state == "XX000" and "memory alloc" in str(exc))


def _words(exc: BaseException) -> str:
    return f"{type(exc).__name__}: {exc}" if str(exc) else type(exc).__name__


async def listen(
    server: Server, channels: list[str], wake: Callable[[], None], heard: Callable[[str, str], None]
) -> None:
    """Call `heard` with the channel and the text of each notification, forever.

    After a lost connection it reconnects, and calls `wake` for whatever was missed. A half-open connection
    does not report itself, so the connection is checked now and then. Other errors are raised, and the
    supervisor restarts the task.
    """
    while True:
        connection = None
        try:
            connection = await server.connect()
            lost = asyncio.Event()
            connection.add_termination_listener(lambda *_, lost=lost: lost.set())
            for channel in channels:
                await connection.add_listener(channel, lambda _, __, where, what: heard(where, str(what)))
            wake()
            while not lost.is_set():
                try:
                    async with asyncio.timeout(_HEARS_NOTHING):
                        await lost.wait()
                except TimeoutError:
                    await connection.fetchval("SELECT 1")
        except (*_LOST, asyncpg.PostgresError, LedgerUnavailable):
            pass
        finally:
            if connection is not None:
                connection.terminate()
        await asyncio.sleep(_AGAIN)


class Beat:
    """A thread that renews a worker's lease, so that a runner that blocks the loop does not lose it.

    It has its own loop and connection. It calls `lost` once, on the dispatcher's loop, when the server says
    that the worker is dead, or when no beat was answered for the length of a lease by this process's clock.
    That time is counted from the sending of the last answered beat, so `lost` is never called too late. A
    beat that fails unexpectedly is logged and retried, like one that was not answered.
    """

    def __init__(
        self, server: Server, statement: str, worker: int, lease: float, lost: Callable[[int], None]
    ) -> None:
        self._server = server
        self._statement = statement
        self._worker = worker
        self._lease = lease
        self._lost = lost
        self._home = asyncio.get_running_loop()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended = threading.Event()
        self._good_until = time.monotonic() + lease
        self._thread = threading.Thread(target=self._run, name="turngate-beat", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop renewing the lease; the thread ends by itself."""
        self._ended.set()

    def _run(self) -> None:
        try:
            asyncio.run(self._beat_on())
        except BaseException as exc:
            log_error(exc, "the heartbeat of worker %d has stopped", self._worker)
            self._say_lost()

    async def _beat_on(self) -> None:
        connection: asyncpg.Connection | None = None
        pause = self._lease / 3
        while not await asyncio.to_thread(self._ended.wait, pause):
            sent = time.monotonic()
            try:
                async with asyncio.timeout(max(self._good_until - sent, self._lease / 10)):
                    if connection is None or connection.is_closed():
                        connection = await self._server.connect(moment=0.0)  # the lease cannot wait
                    alive = await connection.fetchval(self._statement, self._worker, self._lease)
            except Exception as exc:
                if not isinstance(exc, (*_LOST, asyncpg.PostgresError, LedgerUnavailable)):
                    log_error(exc, "a heartbeat of worker %d has failed", self._worker)
                pause = self._lease / 20
                if connection is not None:
                    connection.terminate()
                    connection = None
                if time.monotonic() < self._good_until:
                    continue
                alive = None
            if alive is None:
                self._say_lost()
                break
            self._good_until, pause = sent + self._lease, self._lease / 3
        if connection is not None:
            connection.terminate()

    def _say_lost(self) -> None:
        with contextlib.suppress(RuntimeError):  # the dispatcher's loop is closed
            self._home.call_soon_threadsafe(self._lost, self._worker)
