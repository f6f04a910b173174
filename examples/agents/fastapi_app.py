"""A FastAPI application in front of Turngate: `python fastapi_app.py`, then see http://127.0.0.1:8000/docs.

    curl -N localhost:8000/sessions/s/events &
    curl localhost:8000/sessions/s/prompts --json '{"prompt": "hello"}'
    curl -X POST localhost:8000/sessions/s/cancel

A prompt is answered with 202 when it is accepted; its outcome is among the session's events. A client
that goes away cancels nothing. The turn runs in the context of the request that its lead run came with, so
the runner knows the request's id, and its spans belong to the request's trace (FastAPI makes the request's
own span once OpenTelemetry is set up).

uvicorn ends the lifespan when its connections are closed, and a stream of events stays open until the
dispatcher is closed. So a signal begins to close the dispatcher first: what is in flight ends within
`finish` seconds or is cancelled, every RunComplete goes out, the streams end, and then the server does.
"""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Annotated, Any
from uuid import uuid4

import uvicorn
from fastapi import Body, FastAPI, Header, Request, Response
from fastapi.responses import JSONResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent
from opentelemetry import trace

from turngate import (
    Dispatcher,
    DispatcherClosed,
    QueueFull,
    Runner,
    SessionBusy,
    Turn,
    TurngateError,
    WhenBusy,
)

REQUEST_ID: ContextVar[str] = ContextVar("request_id")
STATUS = {DispatcherClosed: 503, QueueFull: 429, SessionBusy: 409}


def make_app(runner: Runner) -> FastAPI:
    """Return the application; `app.state.dispatcher` is there while it runs."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with Dispatcher(runner) as app.state.dispatcher:
            if stop := getattr(app.state, "stop", None):
                for number in (signal.SIGINT, signal.SIGTERM):
                    asyncio.get_running_loop().add_signal_handler(number, stop)
            yield

    app = FastAPI(lifespan=lifespan)

    @app.post("/sessions/{session_id}/prompts", status_code=202)
    async def send(
        session_id: str,
        prompt: Annotated[str, Body()],
        response: Response,
        when_busy: Annotated[WhenBusy, Body()] = "fold",
        x_request_id: Annotated[str | None, Header()] = None,
    ) -> dict[str, Any]:
        """Accept a prompt."""
        response.headers["X-Request-ID"] = x_request_id or uuid4().hex
        REQUEST_ID.set(response.headers["X-Request-ID"])
        run = await app.state.dispatcher.submit(session_id, prompt, when_busy=when_busy)
        return {"run_id": run.run_id, "seq": run.seq}

    @app.get("/sessions/{session_id}/events", response_class=EventSourceResponse)
    async def events(session_id: str) -> AsyncIterator[ServerSentEvent]:
        """Stream the events of the session from now on: Delta, Note, RunComplete."""
        async with app.state.dispatcher.subscribe(session_id) as subscription:
            yield ServerSentEvent(comment="from here on")
            async for event in subscription:
                yield ServerSentEvent(event=type(event).__name__, data=event._asdict())

    @app.post("/sessions/{session_id}/cancel")
    async def cancel(session_id: str) -> dict[str, Any]:
        """Cancel every prompt that has been accepted and is not complete."""
        covered = await app.state.dispatcher.cancel(session_id)
        return {"covered": [run.run_id for run in covered.runs]}

    @app.exception_handler(TurngateError)
    async def refuse(_: Request, refused: TurngateError) -> JSONResponse:
        return JSONResponse({"detail": str(refused)}, STATUS.get(type(refused), 422))

    return app


def serve(app: FastAPI, *, finish: float = 10.0, **options: Any) -> None:
    """Serve until SIGINT or SIGTERM; what is in flight then has `finish` seconds to end by itself."""
    server = uvicorn.Server(uvicorn.Config(app, **options))

    def stop() -> None:
        app.state.dispatcher.begin_close(finish=finish)
        server.should_exit = True

    app.state.stop = stop
    server.run()


async def agent(turn: Turn) -> None:
    """Repeat the prompt, word by word."""
    with trace.get_tracer("agent").start_as_current_span("turn") as span:
        span.set_attribute("request_id", REQUEST_ID.get())
        for word in turn.run.prompt.split():
            turn.write(f"{word} ")
            await asyncio.sleep(0.2)


if __name__ == "__main__":
    serve(make_app(agent))
