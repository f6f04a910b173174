"""Hearing the signals that end a server, beside whoever handles them."""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ENDING: Final = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def chained(heard: Callable[[], object]) -> Iterator[None]:
    """Call `heard` when the process is asked to end, and then whoever was called before.

    Where nobody handles a signal, it keeps its meaning. Only the main thread can listen.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[signal.Signals, Any] = {}
    for number in ENDING:
        handler = signal.getsignal(number)
        if callable(handler) and handler is not signal.default_int_handler:
            before[number] = handler

    def hear(number: int, frame: Any) -> None:
        heard()
        before[signal.Signals(number)](number, frame)

    for number in before:
        signal.signal(number, hear)
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is hear:
                signal.signal(number, handler)
