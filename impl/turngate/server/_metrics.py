"""Figures for Prometheus, as its text format has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from turngate.server._backend import InFlight
    from turngate.server._event_log import EventLog
    from turngate.server._streams import Streams

_OUTCOMES = ("finished", "failed", "cancelled", "cleared", "released", "lost")


def metrics(log: EventLog, streams: Streams, in_flight: InFlight, dropped: int) -> str:
    """Return every figure with what it means."""
    return "".join(f"{line}\n" for line in _lines(log, streams, in_flight, dropped))


def _lines(log: EventLog, streams: Streams, in_flight: InFlight, dropped: int) -> Iterator[str]:
    ring, counts = log.ring, log.counts
    yield from _figure(
        "sessions_in_flight", "gauge", "Sessions with something in flight.", in_flight.sessions
    )
    yield from _figure("runs_in_flight", "gauge", "Runs that are not complete.", in_flight.runs)
    yield from _figure("runs_accepted_total", "counter", "Runs accepted.", counts.get("run.accept", 0))
    yield "# HELP turngate_runs_completed_total RunCompletes by outcome."
    yield "# TYPE turngate_runs_completed_total counter"
    for outcome in _OUTCOMES:
        yield f'turngate_runs_completed_total{{outcome="{outcome}"}} {counts.get(outcome, 0)}'
    yield from _figure("events_total", "counter", "Events put into the log.", ring.head)
    yield from _figure("ring_events", "gauge", "Events that are kept.", len(ring))
    yield from _figure("ring_bytes", "gauge", "Bytes of these.", ring.bytes)
    yield from _figure("events_dropped_total", "counter", "Deltas and notes lost by the log itself.", dropped)
    yield from _figure("streams", "gauge", "Event streams that are open.", len(streams))
    for name, meaning in (
        ("opened", "Event streams ever opened."),
        ("gaps", "Times that a reader was behind the ring."),
        ("resets", "Times that a reader's place was not known."),
        ("dropped", "Readers dropped because they blocked."),
    ):
        yield from _figure(f"streams_{name}_total", "counter", meaning, streams.counts[name])


def _figure(name: str, kind: str, meaning: str, value: int) -> Iterator[str]:
    yield f"# HELP turngate_{name} {meaning}"
    yield f"# TYPE turngate_{name} {kind}"
    yield f"turngate_{name} {value}"
