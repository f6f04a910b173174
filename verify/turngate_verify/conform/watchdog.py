"""A watchdog for subjects that block their thread.

A subject on a virtual loop runs in the thread of the kit. If one of its callbacks never returns, because it
waits for a lock of a thread or loops without an await, nothing else could end the program. Another thread
notices that, and a signal interrupts the callback. This works in the main thread only, where POSIX has
signals, and uses one that is not in use and does nothing otherwise.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

TICK = 1.0
"""The seconds between two looks at the callback that runs."""
TICKS = 30
"""A callback that runs at this many looks in a row blocks the thread. A stopped process does not look."""
SIGNAL: signal.Signals | None = getattr(signal, "SIGURG", None)
"""The signal that interrupts a callback. Without a handler it is ignored."""


class Blocked(BaseException):
    """Interrupts a callback that blocks the thread."""


class Watchdog:
    """Watches the callback that runs now."""

    def __init__(self) -> None:
        self._thread = 0
        """The thread that is watched; none if this is 0."""
        self._callbacks = 0
        """How many callbacks have begun."""
        self._running = False
        self._has_bitten = False

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the callbacks that run in this thread."""
        if SIGNAL is None or not _is_free(SIGNAL):
            yield
            return
        previous = signal.signal(SIGNAL, self._bite)
        self._thread = threading.get_ident()
        over = threading.Event()
        looking = threading.Thread(target=self._look, args=(over, SIGNAL), name="watchdog", daemon=True)
        looking.start()
        try:
            yield
        finally:
            over.set()
            looking.join()
            self._thread = 0
            signal.signal(SIGNAL, previous)

    def _look(self, over: threading.Event, how: signal.Signals) -> None:
        """Have the callback interrupted that is the same at too many looks in a row."""
        seen, ticks = 0, 0
        while not over.wait(TICK):
            ticks = ticks + 1 if self._running and self._callbacks == seen else 0
            seen = self._callbacks
            if ticks >= TICKS:
                ticks = 0
                signal.pthread_kill(self._thread, how)

    def _bite(self, *_: object) -> None:
        if self._running:
            self._has_bitten = True
            raise Blocked

    @property
    def is_watching(self) -> bool:
        """Whether the callbacks of this thread are watched."""
        return self._thread == threading.get_ident()

    def begin(self) -> None:
        """Note that a callback begins."""
        if self.is_watching:
            self._callbacks += 1
            self._running = True

    def end(self) -> bool:
        """Note that the callback has returned; return whether it had to be interrupted."""
        if not self.is_watching:
            return False
        self._running = False
        bitten, self._has_bitten = self._has_bitten, False
        return bitten


def _is_free(how: signal.Signals) -> bool:
    """Tell whether this thread can have signals, and nothing else has this one."""
    in_main = threading.current_thread() is threading.main_thread()
    return in_main and signal.getsignal(how) in (signal.SIG_DFL, signal.SIG_IGN)


WATCHDOG = Watchdog()
"""The one of this process."""
