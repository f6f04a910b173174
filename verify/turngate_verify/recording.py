"""Writes histories with intervals: what a process did, when it began and when it ended.

Give each process a log of its own, and judge all files together with ``turngate trace --intervals``. The
dispatcher need not be changed, and no common lock is needed. Standard library only.
"""

from __future__ import annotations

import functools
import inspect
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, TextIO, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")


class Call:
    """A call that has not returned. Its session and run can be added until it does."""

    def __init__(self, line: dict[str, Any]) -> None:
        self.line = line
        self._refused = False

    def refused(self) -> None:
        """Say that the call changed nothing, as the answer has said: no line is written of it."""
        self._refused = True

    @property
    def was_refused(self) -> bool:
        """Whether it changed nothing."""
        return self._refused


class IntervalLog:
    """Writes what one process does to a text stream, a line at a time; from any thread.

    ``clock`` gives seconds. Processes of one machine share ``time.time``. If the clocks of several machines
    differ, ``clock_error`` says by how much at most.
    """

    def __init__(
        self, out: TextIO, *, clock: Callable[[], float] = time.time, clock_error: float = 0.0
    ) -> None:
        self._out = out
        self._clock = clock
        self._lock = threading.Lock()
        if clock_error:
            self._write({"clock_error": clock_error})

    @contextmanager
    def call(self, event: str, **about: Any) -> Iterator[Call]:
        """Record what the block asks for, such as ``accept``, ``cancel``, ``clear``, ``hold`` or ``enter``.

        ``about`` is what the line says beside its times, such as ``session`` and ``run``. A block that raises
        may or may not have happened, and its line says so by having no ``return``.
        """
        made = Call({"event": event, **about, "call": self._clock()})
        try:
            yield made
        except BaseException:
            if not made.was_refused:
                self._write(made.line)
            raise
        if not made.was_refused:
            self._write({**made.line, "return": self._clock()})

    def records(self, event: str, **names: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
        """Decorate a function, ``async`` or not, each call of which is such a call.

        ``names`` says which parameter holds what the line needs:
        ``@log.records("cancel", session="session_id")``.
        """

        def decorate(function: Callable[P, T]) -> Callable[P, T]:
            signature = inspect.signature(function)
            if missing := [name for name in names.values() if name not in signature.parameters]:
                raise TypeError(f"{function.__qualname__} has no parameter {missing[0]!r}")

            def about(*args: Any, **kwargs: Any) -> dict[str, Any]:
                given = signature.bind(*args, **kwargs)
                given.apply_defaults()
                return {key: given.arguments[name] for key, name in names.items()}

            if inspect.iscoroutinefunction(function):

                @functools.wraps(function)
                async def later(*args: P.args, **kwargs: P.kwargs) -> Any:
                    with self.call(event, **about(*args, **kwargs)):
                        return await function(*args, **kwargs)

                return cast("Callable[P, T]", later)

            @functools.wraps(function)
            def now(*args: P.args, **kwargs: P.kwargs) -> T:
                with self.call(event, **about(*args, **kwargs)):
                    return function(*args, **kwargs)

            return now

        return decorate

    @contextmanager
    def running(self, run: str) -> Iterator[None]:
        """Record that the runner works on the turn of a run, as long as the block lasts."""
        self._write({"event": "start", "run": run, "at": self._clock()})
        try:
            yield
        finally:
            self._write({"event": "ended", "run": run, "at": self._clock()})

    def complete(
        self, run: str, *, cancelled: bool, error: str | None = None, unknown_at: float | None = None
    ) -> None:
        """Record that the RunComplete of a run is known by now.

        ``unknown_at`` is a moment at which the run was certainly not complete yet. The moment at which the
        caller began to wait is none: the run may have been complete then.
        """
        line: dict[str, Any] = {"event": "complete", "run": run, "cancelled": cancelled}
        if error is not None:
            line["error"] = error
        if unknown_at is not None:
            line["call"] = unknown_at
        self._write({**line, "return": self._clock()})

    def end(self) -> None:
        """Record that nothing more will happen, in any process."""
        self._write({"event": "end"})

    def _write(self, line: dict[str, Any]) -> None:
        with self._lock:
            self._out.write(json.dumps(line) + "\n")
            self._out.flush()
