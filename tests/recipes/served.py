"""What the tests of the FastAPI application start: `python served.py GATE FINISH`.

A turn waits until the file GATE is there. Before that it tells what it knows of the request.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider

from fastapi_app import REQUEST_ID, make_app, serve
from turngate import Turn

GATE = Path(sys.argv[1])


async def agent(turn: Turn) -> None:
    request = trace.get_current_span()
    with trace.get_tracer("agent").start_as_current_span("turn") as span:
        assert isinstance(request, ReadableSpan)
        assert isinstance(span, ReadableSpan)
        assert span.parent == request.get_span_context()
        trace_id = trace.format_trace_id(span.get_span_context().trace_id)
        turn.emit("began", {"request_id": REQUEST_ID.get(), "trace_id": trace_id})
        turn.write(f"about {turn.run.prompt}: ")
        while not await asyncio.to_thread(GATE.exists):
            await asyncio.sleep(0.01)
        turn.write("done")


trace.set_tracer_provider(TracerProvider())
serve(make_app(agent), finish=float(sys.argv[2]), port=0)
