"""``turngate trace --follow``: judges a recording while it is being written."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from turngate_verify.cli.show import EXIT_CODES, bold, err, out, styled
from turngate_verify.monitor import Accusation, Monitor, Remark, Window, follow, prometheus_text, tail_of
from turngate_verify.monitor.metrics import MetricsServer, observe_by_opentelemetry, write_metrics
from turngate_verify.trace import NEVER_SHOWN
from turngate_verify.words import counted

_REMARKS = 20
"""How many remarks about the recording itself are printed; further ones are only counted."""
_WRITE_EVERY = 1.0
"""Seconds between two versions of the metrics file."""


class _Telling:
    """Prints what is found, when it is found."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._remarks = 0

    def tell(self, found: Accusation | Remark) -> None:
        """Print a violation on standard output, a remark on standard error."""
        if isinstance(found, Remark):
            self._remarks += 1
            if self._remarks <= _REMARKS:
                more = "; further ones are only counted" if self._remarks == _REMARKS else ""
                err.print(f"line {found.line}: {found.what}{more}")
            return
        self._remarks = 0
        if self._as_json:
            out.print(json.dumps(as_object(found)).replace("\x7f", r"\u007f"))
            return
        head = f"session {found.session}, line {found.line}: "
        out.print(head, bold(found.property), f": {found.what}", sep="")
        for shown in found.history:
            out.print(f"  {shown.line:6}  {shown.text}")


def as_object(found: Accusation) -> dict[str, Any]:
    """Return a violation as the object that ``--json`` prints, on one line."""
    return {
        "session": found.session,
        "property": str(found.property),
        "line": found.line,
        "expected": found.what,
        "history": [{"line": shown.line, "text": shown.text} for shown in found.history],
    }


def trace_follow(
    name: str,
    *,
    as_json: bool,
    from_end: bool,
    window: tuple[int, str] | None,
    remember: int,
    metrics_file: Path | None,
    metrics_port: int | None,
) -> int:
    """Follow a recording until its stream ends, or until Ctrl-C or SIGTERM; return the exit code."""
    monitor = Monitor(remember=remember)
    written = [0.0]

    def tick() -> None:
        if metrics_file is not None and time.monotonic() - written[0] >= _WRITE_EVERY:
            write_metrics(metrics_file, monitor.figures)
            written[0] = time.monotonic()

    with contextlib.ExitStack() as stack:
        try:
            tail = tail_of(name, from_end=from_end)
            tick()
        except OSError as wrong:
            raise click.ClickException(f"{wrong.filename}: {wrong.strerror}") from None
        stopped = stack.enter_context(_until_signalled())
        if metrics_port is not None:
            server = _metrics_server(metrics_port, monitor)
            stack.callback(server.close)
            err.print(f"metrics: http://127.0.0.1:{server.port}/metrics")
        observe_by_opentelemetry(lambda: monitor.figures)
        telling = _Telling(as_json=as_json)
        windowed = None if window is None else Window(*window)
        follow(tail, monitor, telling.tell, window=windowed, stopped=stopped.is_set, tick=tick)
    if metrics_file is not None:
        write_metrics(metrics_file, monitor.figures)
    return _summary(monitor, as_json=as_json)


def _metrics_server(port: int, monitor: Monitor) -> MetricsServer:
    try:
        return MetricsServer(port, lambda: prometheus_text(monitor.figures))
    except OSError as wrong:
        what = f"port {port} cannot be used ({wrong.strerror}); choose another with --metrics-port"
        raise click.ClickException(what) from None


@contextlib.contextmanager
def _until_signalled() -> Iterator[threading.Event]:
    """Let Ctrl-C and SIGTERM set an event instead of ending the process."""
    stopped = threading.Event()
    kinds = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(kind, lambda *_: stopped.set()) for kind in kinds]
    try:
        yield stopped
    finally:
        for kind, handler in zip(kinds, before, strict=True):
            signal.signal(kind, handler)


def _summary(monitor: Monitor, *, as_json: bool) -> int:
    """Say what was seen, and return the exit code. With JSON, only objects are on standard output."""
    figures = monitor.figures
    printed = err if as_json else out
    seen = f"{counted(figures.events, 'event')}, {counted(figures.accepted, 'run')}"
    printed.print(f"{seen}, {counted(figures.violated, 'violation')}")
    for count, what in (
        (figures.unreadable, "could not be read"),
        (figures.unseen, "named a run whose accept was not seen"),
    ):
        if count:
            printed.print(f"{counted(count, 'line')} {what}")
    if figures.restarts:
        printed.print(f"began again with every session unknown: {counted(figures.restarts, 'time')}")
    if figures.in_flight:
        printed.print(f"not checked: what is still owed to {counted(figures.in_flight, 'run')} in flight")
    printed.print(f"never shown by a recording: {', '.join(NEVER_SHOWN)}")
    verdict = "violated" if figures.violated else "holds" if figures.accepted else "unknown"
    printed.print("verdict:", styled(verdict))
    return EXIT_CODES[verdict]
