"""The figures of a monitor, as Prometheus text and as OpenTelemetry metrics."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

from turngate_model.properties import Property
from turngate_verify.trace import NEVER_SHOWN

SHOWN = tuple(
    each
    for each in Property
    if each not in (*NEVER_SHOWN, Property.IDLE_CANCEL, Property.ISOLATION, Property.REFINES)
)
"""The properties under which a recording can show a violation."""


@dataclass
class Figures:
    """What a monitor counts."""

    events: int = 0
    accepted: int = 0
    """The runs whose accepts were seen."""
    unreadable: int = 0
    unseen: int = 0
    """The lines about runs whose accepts were not seen."""
    sessions: int = 0
    """The sessions in which known runs are in flight."""
    in_flight: int = 0
    kept: int = 0
    """The lines kept for those runs, and the complete runs that are remembered."""
    violations: dict[Property, int] = field(default_factory=lambda: dict.fromkeys(SHOWN, 0))
    restarts: int = 0
    """How often the monitor has lost its place, and begun again with every session unknown."""
    lag_bytes: int = 0
    """How much of the file has not been read yet."""
    lag_seconds: float | None = None
    """How old the last line was when it was judged, by its ``at``; None if it has none."""

    @property
    def violated(self) -> int:
        """How many violations there were."""
        return sum(self.violations.values())


class Metric(NamedTuple):
    """One figure under its name."""

    name: str
    kind: str
    help: str
    values: tuple[tuple[str, float], ...]
    """The values, each with the property that it is about, or with an empty text."""


def metrics_of(figures: Figures) -> list[Metric]:
    """Return the figures under the names by which they are known outside."""

    def one(value: float | None) -> tuple[tuple[str, float], ...]:
        return () if value is None else (("", value),)

    by_property = tuple((str(each), count) for each, count in figures.violations.items())
    return [
        Metric("events_total", "counter", "Lines that were judged.", one(figures.events)),
        Metric("accepted_total", "counter", "Runs whose accept was seen.", one(figures.accepted)),
        Metric("violations_total", "counter", "Violations, by property.", by_property),
        Metric("unreadable_total", "counter", "Lines that are no event.", one(figures.unreadable)),
        Metric("unseen_total", "counter", "Lines about runs whose accept was not seen.", one(figures.unseen)),
        Metric(
            "restarts_total", "counter", "Times that every session became unknown.", one(figures.restarts)
        ),
        Metric("sessions", "gauge", "Sessions with runs in flight.", one(figures.sessions)),
        Metric("runs_in_flight", "gauge", "Runs that are not complete.", one(figures.in_flight)),
        Metric("kept", "gauge", "Lines and complete runs that are kept in memory.", one(figures.kept)),
        Metric("lag_bytes", "gauge", "Bytes of the file that are not read yet.", one(figures.lag_bytes)),
        Metric(
            "lag_seconds",
            "gauge",
            "Age of the last line when it was judged, by its key at.",
            one(figures.lag_seconds),
        ),
    ]


def prometheus_text(figures: Figures) -> str:
    """Return the figures in the text format of Prometheus."""
    lines = []
    for name, kind, said, values in metrics_of(figures):
        full = f"turngate_trace_{name}"
        lines += [f"# HELP {full} {said}", f"# TYPE {full} {kind}"]
        for about, value in values:
            label = f'{{property="{about}"}}' if about else ""
            lines.append(f"{full}{label} {value:g}" if value % 1 else f"{full}{label} {int(value)}")
    return "".join(f"{line}\n" for line in lines)


def write_metrics(path: Path, figures: Figures) -> None:
    """Write the text to a file; a reader sees either the old text or the new."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(prometheus_text(figures), encoding="utf-8")
    beside.replace(path)


class MetricsServer:
    """Answers ``GET /metrics`` on a port of the loopback interface, in a thread of its own."""

    def __init__(self, port: int, text: Callable[[], str]) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                known = self.path.partition("?")[0] == "/metrics"
                body = (text() if known else "The metrics are at /metrics.\n").encode()
                self.send_response(200 if known else 404)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the base
                """Say nothing of each request."""

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Free the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def observe_by_opentelemetry(figures: Callable[[], Figures]) -> bool:
    """Have OpenTelemetry observe the figures, if it is installed. Say whether it is.

    The program that starts the monitor decides where they go: ``opentelemetry-instrument``, or an SDK that
    it has set up.
    """
    try:
        from opentelemetry import metrics  # noqa: PLC0415 - it may not be installed
    except ImportError:
        return False
    meter = metrics.get_meter("turngate.trace")

    def observed(name: str) -> Callable[[metrics.CallbackOptions], Iterable[metrics.Observation]]:
        def observe(_: metrics.CallbackOptions) -> Iterable[metrics.Observation]:
            for metric in metrics_of(figures()):
                if metric.name == name:
                    for about, value in metric.values:
                        yield metrics.Observation(value, {"property": about} if about else {})

        return observe

    for name, kind, said, _ in metrics_of(figures()):
        make = meter.create_observable_counter if kind == "counter" else meter.create_observable_gauge
        make(f"turngate.trace.{name.removesuffix('_total')}", callbacks=[observed(name)], description=said)
    return True
