"""``turngate chat`` with a server that is a list of answers, and a screen that is a list of lines."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from answering import Answer, Routes, problem, said, streamed
from stepping import in_steps
from turngate.cli import chat, main
from turngate.client import Client

RUNS, CANCEL, STOP, HOLD = (f"POST /v1/sessions/s/{call}" for call in ("runs", "cancel", "stop", "hold"))


class Screen:
    """Yields lines, each when the one before has been answered, and keeps what is shown."""

    def __init__(self, *lines: str | None) -> None:
        self.said = ""
        self.states: list[str] = []
        self._lines = lines

    def show(self, text: str) -> None:
        self.said += text

    def status(self, text: str) -> None:
        self.states.append(text)

    async def lines(self) -> AsyncIterator[str | None]:
        for line in self._lines:
            yield line


def frame(name: str, number: int, **data: Any) -> str:
    return f"event: {name}\nid: {number}\ndata: {json.dumps({'session_id': 's', **data})}\n\n"


def snapshot(number: int, *, reset: bool = False) -> str:
    return frame("snapshot", number, sessions=[], reset=reset, cursor="c")


def complete(number: int, run_id: str, **more: Any) -> str:
    data = {
        "run_id": run_id, "seq": 1, "text": "", "error": None, "cancelled": False, "message_id": None,
        "folded_into": None, "outcome": "finished",
    }  # fmt: skip
    return frame("run.complete", number, **(data | more))


def chatted(
    *events: str | float,
    lines: tuple[str | None, ...],
    to_the_end: bool = False,
    twice_within: float = 0.0,
    **routes: list[Answer],
) -> Screen:
    """Return the screen of a chat in which these lines were typed and these events came."""
    screen = Screen(*lines)
    run = {
        "run_id": "r", "session_id": "s", "seq": 1, "state": "accepted", "prompt": "", "complete": None,
    }  # fmt: skip
    server = Routes(
        {
            "GET /v1/sessions/s/events": [streamed(*events, 999.0)],
            RUNS: routes.get("runs", [said(run)]),
            CANCEL: routes.get("cancel", [said({"covered": ["r"]})]),
            STOP: routes.get("stop", []),
            HOLD: routes.get("hold", []),
        }
    )

    async def talk(_: object) -> None:
        async with Client("http://server", transport=server) as client:
            await chat.Chat(client, "s", screen, twice_within).go_on(to_the_end=to_the_end)  # type: ignore[arg-type]  # a screen

    in_steps(talk)
    return screen


def test_a_restart_of_the_server_is_shown_and_ends_the_wait() -> None:
    screen = chatted(snapshot(1), 1.0, snapshot(2, reset=True), lines=("tea",), to_the_end=True)
    assert screen.said == "> tea\n-- the server has restarted: how earlier prompts ended is unknown\n"
    assert screen.states[-1] == "idle"


def test_skipped_text_and_turns_of_other_clients_are_shown() -> None:
    events = (
        'event: gap\ndata: {"session_id": "s"}\n\n',
        snapshot(2),
        frame("run.enter", 3, run_id="a", seq=1, state="active"),
        frame("delta", 4, run_id="a", text="one\ntwo", offset=0),
        *(frame("run.accept", 5, run_id=run_id, seq=2) for run_id in ("b", "c")),
        *(frame("run.enter", 6, run_id=run_id, seq=2, state="queued") for run_id in ("b", "c")),
        frame("run.fold", 7, run_id="b", seq=2, into="a"),
        complete(8, "b", folded_into="a"),
        complete(9, "a", outcome="failed", error="no tea left"),
        complete(10, "c", outcome="cleared"),
        snapshot(11, reset=True),
    )
    screen = chatted(snapshot(1), 1.0, *events, lines=("tea",), to_the_end=True)
    assert screen.said.split("\n") == [
        "> tea", "-- some text was skipped", "one", "two", "-- no tea left", "-- cleared",
        "-- the server has restarted: how earlier prompts ended is unknown", "",
    ]  # fmt: skip
    assert "a turn runs · 2 waiting" in screen.states
    assert "a turn runs · 1 waiting" in screen.states
    assert "idle · 1 waiting" in screen.states


def test_a_refused_prompt_is_reported_and_not_waited_for() -> None:
    screen = chatted(
        snapshot(1), lines=("tea", None), to_the_end=True, runs=[problem(429, "queue-full")],
        cancel=[problem(401, "unauthorized")],
    )  # fmt: skip
    assert screen.said == ("> tea\n-- refused: the reason\n-- not cancelled: 401 unauthorized: the reason\n")
    screen = chatted(snapshot(1), lines=(None,), cancel=[said({"covered": []})])
    assert screen.said == "-- nothing to cancel\n"


def test_a_stop_with_nothing_to_stop_and_refused_commands_are_told() -> None:
    nothing = said({"covered": [], "held": [], "waiting": []})
    closing = problem(503, "shutting-down")
    assert "-- nothing to stop\n" in chatted(snapshot(1), lines=("/stop",), stop=[nothing]).said
    escaped = chatted(snapshot(1), lines=(None,), stop=[nothing], twice_within=1.0)
    assert "-- nothing to cancel\n" in escaped.said
    stopped = said({"covered": ["r"], "held": [], "waiting": []})
    assert "-- stopped; nothing waits\n" in chatted(snapshot(1), lines=("/stop",), stop=[stopped]).said
    refused = chatted(snapshot(1), lines=("/hold", None), hold=[closing], stop=[closing], twice_within=1.0)
    assert "-- refused: the reason\n" in refused.said
    assert "-- not cancelled: the reason\n" in refused.said


def test_an_address_of_something_else_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def answer() -> None:
        with listener.accept()[0] as line:
            line.recv(65_536)
            line.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        answering = threading.Thread(target=answer)
        answering.start()
        assert main.run(["chat", f"http://127.0.0.1:{listener.getsockname()[1]}"]) == 2
        answering.join()
    assert capsys.readouterr().err == "turngate: 404 unknown: Not Found\n"
