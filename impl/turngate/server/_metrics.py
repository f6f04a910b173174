"""Figures for Prometheus, as its text format has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from turngate import Outcome

if TYPE_CHECKING:
    from turngate.server._backend import InFlight
    from turngate.server._event_log import EventLog
    from turngate.server._streams import Streams


def metrics(log: EventLog, streams: Streams, in_flight: InFlight, dropped: int) -> str:
    """Return every figure with what it means."""
    ring, counts, of_streams = log.ring, log.counts, streams.counts
    completed = {f'{{outcome="{outcome}"}}': counts[outcome] for outcome in get_args(Outcome)}
    figures = [
        ("sessions_in_flight", "Sessions with runs in flight.", in_flight.sessions),
        ("runs_in_flight", "Runs that are not complete.", in_flight.runs),
        ("runs_accepted_total", "Runs accepted.", counts["run.accept"]),
        ("runs_completed_total", "RunCompletes by outcome.", completed),
        ("events_total", "Events put into the log.", ring.head),
        ("ring_events", "Events that are kept.", len(ring)),
        ("ring_bytes", "Bytes of these.", ring.bytes),
        ("events_dropped_total", "Deltas and notes lost by the log itself.", dropped),
        ("streams", "Event streams that are open.", len(streams)),
        ("streams_opened_total", "Event streams ever opened.", of_streams["opened"]),
        ("streams_gaps_total", "Times that a reader was too far behind for the log.", of_streams["gaps"]),
        ("streams_resets_total", "Times that a reader resumed from an unknown id.", of_streams["resets"]),
        ("streams_dropped_total", "Readers dropped because they blocked.", of_streams["dropped"]),
    ]
    lines: list[str] = []
    for name, meaning, value in figures:
        kind = "counter" if name.endswith("_total") else "gauge"
        lines += [f"# HELP turngate_{name} {meaning}", f"# TYPE turngate_{name} {kind}"]
        by_label = value if isinstance(value, dict) else {"": value}
        lines += [f"turngate_{name}{label} {number}" for label, number in by_label.items()]
    return "".join(f"{line}\n" for line in lines)
