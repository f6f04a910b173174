"""Handles the signals that end a server before the server does.

A server that is told to end by a signal first closes its connections, or waits for them, and tells its
applications last. Event streams would keep it waiting, or would be cut before the last RunComplete. So the
application hears the signal first, and may hold it back:

1. The first signal is passed on when every listener has come to its end.
2. The same signal again, or Ctrl-C after any signal, hastens the listeners. The signals are then passed on
   after `HASTE` seconds at the latest. SIGTERM after Ctrl-C does not hasten: a parent process that has
   received the same Ctrl-C sends it to each of its workers.
3. One more signal is passed on at once, together with those that are held back.

A server that has its signals from the event loop (`loop.add_signal_handler`) hears them at once in any case.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ENDING: Final = (signal.SIGINT, signal.SIGTERM)
HASTE: Final = 5.0
"""Seconds for which a signal is held back at most after a second one has come."""


class Listener(NamedTuple):
    """What an application does when a signal comes. Both methods are called on its loop.

    begin   begins to end; returns what ends when the signal may be passed on, None for at once
    hasten  ends faster
    """

    begin: Callable[[], asyncio.Future[Any] | None]
    hasten: Callable[[], object]


class _Relay:
    """Replaces the signal handlers of a process as long as there are listeners, which share one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.listeners: list[Listener] = []
        self.loop = loop
        self._held: list[int] = []
        self._first = 0
        self._hastened = False
        self._passing: asyncio.Task[None] | None = None
        self._before: dict[int, Any] = {}

    def install(self) -> None:
        """Stand before each handler that there is; where there is none, a signal keeps its meaning."""
        for number in ENDING:
            handler = signal.getsignal(number)
            if callable(handler) and handler is not signal.default_int_handler:
                self._before[number] = handler
                signal.signal(number, self._hear)

    def remove(self) -> None:
        """Put the handlers back, and pass on what is held back."""
        for number, handler in self._before.items():
            if signal.getsignal(number) == self._hear:
                signal.signal(number, handler)
        if self._passing is not None:
            self._passing.cancel()
        self._pass_on()

    def _hear(self, number: int, _frame: object) -> None:
        """Take a signal; as a handler, so at any point of the program."""
        self._held.append(number)
        if self.loop.is_closed():
            self._pass_on()
        else:
            self.loop.call_soon_threadsafe(self._act, number)

    def _act(self, number: int) -> None:
        if self._passing is None:
            self._first = number
            waited_for = {each for listener in self.listeners if (each := listener.begin()) is not None}
            self._passing = self.loop.create_task(self._pass_on_after(waited_for), name="turngate signals")
        elif self._hastened or self._passing.done():
            self._pass_on()
        elif number in (self._first, signal.SIGINT):
            self._hastened = True
            for listener in self.listeners:
                listener.hasten()
            self.loop.call_later(HASTE, self._pass_on)

    async def _pass_on_after(self, waited_for: set[asyncio.Future[Any]]) -> None:
        if waited_for:
            await asyncio.wait(waited_for)
        self._pass_on()

    def _pass_on(self) -> None:
        held, self._held = self._held, []
        for number in held:
            self._before[number](number, None)


_relay: _Relay | None = None


@contextlib.contextmanager
def heard_by(listener: Listener) -> Iterator[None]:
    """Have the listener hear the signals that end a server. Only the main thread can."""
    global _relay  # noqa: PLW0603 - signal handlers are global too
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    if _relay is None or _relay.loop is not loop:
        _relay = _Relay(loop)
        _relay.install()
    relay = _relay
    relay.listeners.append(listener)
    try:
        yield
    finally:
        relay.listeners.remove(listener)
        if not relay.listeners:
            if relay is _relay:
                _relay = None
            relay.remove()
