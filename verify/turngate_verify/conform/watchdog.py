"""A watchdog for subjects that block their thread.

A subject on a virtual loop runs in the thread of the kit. If one of its callbacks never returns, because it
waits for a lock of a thread or loops without an await, nothing else could end the program. An alarm of the
operating system interrupts it. It works in the main thread only, where POSIX has alarms, and stays away from
alarms that are somebody else's.
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


class Blocked(BaseException):
    """Interrupts a callback that blocks the thread."""


class Watchdog:
    """Watches the callback that runs now."""

    def __init__(self) -> None:
        self._thread = 0
        """The thread that is watched; none if this is 0."""
        self._running = False
        self._ticks = 0
        self._has_bitten = False

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the callbacks that run in this thread."""
        if not _is_free():
            yield
            return
        previous = signal.signal(signal.SIGALRM, self._tick)
        signal.setitimer(signal.ITIMER_REAL, TICK, TICK)
        self._thread = threading.get_ident()
        try:
            yield
        finally:
            self._thread = 0
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, previous)

    def _tick(self, *_: object) -> None:
        if not self._running:
            return
        self._ticks += 1
        if self._ticks >= TICKS:
            self._ticks = 0
            self._has_bitten = True
            raise Blocked

    def begin(self) -> None:
        """Note that a callback begins."""
        if self._thread == threading.get_ident():
            self._running, self._ticks = True, 0

    def end(self) -> bool:
        """Note that the callback has returned; return whether it had to be interrupted."""
        if self._thread != threading.get_ident():
            return False
        self._running = False
        bitten, self._has_bitten = self._has_bitten, False
        return bitten


def _is_free() -> bool:
    """Tell whether this thread can have alarms, and nothing else has any."""
    return (
        hasattr(signal, "setitimer")
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
        and signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    )


WATCHDOG = Watchdog()
"""The one of this process, as there is one alarm."""
