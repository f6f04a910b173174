"""How the client puts the text of a run together, event by event: a list of answers, in virtual time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2
import pytest

from answering import Answer, Routes, problem, said, streamed
from stepping import in_steps
from turngate import QueueFull, RunComplete, UnknownRun
from turngate.client import Client, Unreachable
from turngate.client._text import RemoteText

EVENTS, SESSION, RUN, SUBMIT = (
    "GET /v1/sessions/s/events", "GET /v1/sessions/s", "GET /v1/runs/r", "POST /v1/sessions/s/runs",
)  # fmt: skip
ENDLESS = 999.0
"""Seconds for which a line stays open and says nothing more."""


def complete(text: str, run_id: str = "r", **more: Any) -> dict[str, Any]:
    return {
        "session_id": "s", "run_id": run_id, "seq": 1, "text": text, "error": None, "cancelled": False,
        "message_id": None, "folded_into": None, "outcome": "finished",
    } | more  # fmt: skip


def run(state: str = "accepted", run_id: str = "r", done: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "run_id": run_id, "session_id": "s", "seq": 1, "state": state, "prompt": "tea", "complete": done,
        "held": False, "data": None,
    }  # fmt: skip


def session(text: str = "", **more: Any) -> dict[str, Any]:
    return {
        "session_id": "s", "accepted": [], "settling": [], "queued": [], "active": None, "folded": [],
        "text": text, "covered": False, "phase": None, "since": None, "cursor": "c",
    } | more  # fmt: skip


def frame(name: str, data: dict[str, Any]) -> str:
    return f"event: {name}\nid: 1\ndata: {json.dumps(data)}\n\n"


def snapshot(view: dict[str, Any] | None = None) -> str:
    return frame(
        "snapshot", {"sessions": [session() if view is None else view], "reset": False, "cursor": "c"}
    )


def moved(name: str, run_id: str = "r", **more: Any) -> str:
    return frame(name, {"session_id": "s", "run_id": run_id, "seq": 1, **more})


ENTERED = moved("run.enter", state="active")


def piece(text: str, offset: int, run_id: str = "r") -> str:
    return frame("delta", {"session_id": "s", "run_id": run_id, "text": text, "offset": offset})


def read(
    script: Callable[[RemoteText], Awaitable[Any]], *events: str | float, **routes: list[Answer]
) -> tuple[Any, Routes]:
    """Return what a script for a text comes to, and what was asked of the server."""
    answers = {
        EVENTS: routes.get("events", [streamed(*events, ENDLESS)]),
        SUBMIT: routes.get("submit", [said(run())]),
        SESSION: routes.get("session", []),
        RUN: routes.get("run", []),
    }
    server = Routes({route: given for route, given in answers.items() if given})

    async def main(_: object) -> Any:
        async with Client("http://server", patience=3.0, transport=server) as client:
            return await script(client.stream("s", "tea", run_id="r"))

    return in_steps(main), server


async def pieces(text: RemoteText) -> list[str]:
    """Read a text to its end."""
    found = [each async for each in text]
    assert text.text.endswith("".join(found))
    assert text.complete is not None
    await asyncio.sleep(0.01)
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "turngate events"]
    return found


def test_the_pieces_of_a_turn_and_what_it_returned() -> None:
    events = (ENTERED, piece("one ", 0), piece("two ", 4), frame("run.complete", complete("one two three")))
    found, server = read(pieces, snapshot(), *events)
    assert found == ["one ", "two ", "three"]
    assert server.asked == [EVENTS, SUBMIT]
    assert json.loads(server.bodies[1]) == {"prompt": "tea", "run_id": "r"}


def test_a_runner_may_return_another_text_than_it_has_written() -> None:
    found, _ = read(pieces, snapshot(), ENTERED, piece("one", 0), frame("run.complete", complete("two")))
    assert found == ["one"]
    found, _ = read(pieces, snapshot(), ENTERED, frame("run.complete", complete("")))
    assert found == []


def test_other_runs_are_none_of_its_business() -> None:
    others = (
        piece("not yet ", 0, "a"),
        piece("nor this", 0, "r"),  # it is not the lead of a turn as far as is known
        frame("run.complete", complete("theirs", "a")),
        moved("run.enter", "b", state="active"),
        piece("theirs", 0, "b"),
        moved("run.fold", "d", into="b"),
        moved("run.handoff", "b"),
    )
    mine = (moved("run.handoff"), piece("mine", 0), frame("run.complete", complete("mine")))
    queued = moved("run.enter", state="queued")
    found, server = read(pieces, snapshot(), queued, *others, *mine)
    assert found == ["mine"]
    assert server.asked == [EVENTS, SUBMIT]


def test_a_run_that_was_complete_has_its_text_at_once() -> None:
    done = said(run("complete", done=complete("all of it")))
    found, server = read(pieces, snapshot(), submit=[done])
    assert found == ["all of it"]
    assert server.asked == [EVENTS, SUBMIT]


@pytest.mark.parametrize("role", ["active", "folded"])
def test_a_turn_that_had_begun_is_looked_at(role: str) -> None:
    lead = run("active", "r" if role == "active" else "a")
    view = session("so far ", active=lead, folded=[run("active")] if role == "folded" else [])
    events = (
        piece("so far ", 0, lead["run_id"]),  # known already
        piece("far on", 3, lead["run_id"]),  # known in part
        piece("?", 0, "x"),
        frame("run.complete", complete("so far on and on")),
    )
    found, server = read(pieces, snapshot(), *events, submit=[said(run("active"))], session=[said(view)])
    assert found == ["so far ", "on", " and on"]
    assert server.asked == [EVENTS, SUBMIT, SESSION]


def test_text_from_before_a_fold_comes_first() -> None:
    lead, mine = run("active", "a"), run("active")
    events = (
        moved("run.enter", state="queued"),
        piece("before ", 0, "a"),
        moved("run.fold", into="a"),
        piece("after", 7, "a"),
        frame("run.complete", complete("before after", folded_into="a")),
    )
    found, server = read(
        pieces, snapshot(), *events, session=[said(session("before ", active=lead, folded=[mine]))]
    )
    assert found == ["before ", "after"]
    assert server.asked == [EVENTS, SUBMIT, SESSION]


def test_where_a_piece_was_dropped_the_session_is_looked_at() -> None:
    view = session("one two three ", active=run("active"))
    events = (
        ENTERED,
        piece("one ", 0),
        piece("three ", 8),
        piece("four", 14),
        frame("run.complete", complete("one two three four")),
    )
    found, server = read(pieces, snapshot(), *events, session=[said(view)])
    assert found == ["one ", "two three ", "four"]
    assert server.asked == [EVENTS, SUBMIT, SESSION]


@pytest.mark.parametrize("where", ["accepted", "queued", "settling"])
def test_a_snapshot_in_which_the_run_waits_changes_nothing(where: str) -> None:
    waits = snapshot(session("theirs", active=run("active", "a"), **{where: [run("queued")]}))
    found, server = read(
        pieces, snapshot(), waits, ENTERED, piece("mine", 0), frame("run.complete", complete("mine"))
    )
    assert found == ["mine"]
    assert server.asked == [EVENTS, SUBMIT]


def test_a_snapshot_in_which_the_turn_runs_has_its_text() -> None:
    view = snapshot(session("one two ", active=run("active")))
    found, _ = read(
        pieces,
        *(snapshot(), ENTERED, piece("one ", 0), view),
        *(piece("three", 8), frame("run.complete", complete("one two three"))),
    )
    assert found == ["one ", "two ", "three"]


def test_a_run_that_a_snapshot_does_not_have_is_asked_for() -> None:
    done = said(run("complete", done=complete("one two")))
    found, server = read(pieces, snapshot(), ENTERED, piece("one ", 0), snapshot(), run=[done])
    assert found == ["one ", "two"]
    assert server.asked == [EVENTS, SUBMIT, RUN]
    events = (snapshot(), snapshot(), ENTERED, frame("run.complete", complete("late")))
    found, server = read(pieces, *events, run=[said(run("queued"))])  # it moved on in between
    assert found == ["late"]


def test_a_run_that_the_server_has_forgotten_is_not_sent_again() -> None:
    async def script(text: RemoteText) -> None:
        assert await anext(text) == "one "
        with pytest.raises(UnknownRun):
            await anext(text)
        assert [each async for each in text] == []
        assert text.complete is None

    _, server = read(
        script, snapshot(), ENTERED, piece("one ", 0), snapshot(), run=[problem(404, "unknown-run")]
    )
    assert server.asked == [EVENTS, SUBMIT, RUN]


# Asked again.


def test_a_prompt_that_was_refused_is_sent_again_under_the_same_id_over_a_new_line() -> None:
    async def script(text: RemoteText) -> list[str]:
        with pytest.raises(QueueFull):
            await anext(text)
        return await pieces(text)

    found, server = read(
        script,
        *(snapshot(), ENTERED, frame("run.complete", complete("tea"))),
        submit=[problem(429, "queue-full"), said(run())],
    )
    assert found == ["tea"]
    assert server.asked == [EVENTS, SUBMIT, EVENTS, SUBMIT]
    assert json.loads(server.bodies[1]) == json.loads(server.bodies[3])


def test_a_text_that_was_cut_off_goes_on_without_sending_its_prompt_again() -> None:
    async def script(text: RemoteText) -> list[str]:
        assert await anext(text) == "one "
        with pytest.raises(Unreachable):
            await anext(text)
        assert text.text == "one "
        return [await anext(text), await anext(text)]

    view = said(session("one two ", active=run("active")))
    found, server = read(
        script,
        events=[
            streamed(snapshot(), ENTERED, piece("one ", 0)),
            *[httpx2.ConnectError("refused")] * 8,
            streamed(snapshot(), frame("run.complete", complete("one two three"))),
        ],
        session=[view],
        run=[said(run("active"))],
    )
    assert found == ["two ", "three"]
    assert server.asked.count(SUBMIT) == 1
    assert server.asked[-3:] == [EVENTS, RUN, SESSION]


def test_a_caller_that_times_out_while_the_session_is_looked_at_misses_nothing() -> None:
    async def script(text: RemoteText) -> list[str]:
        assert await anext(text) == "one "
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(text), 0.05)
        return await pieces(text)

    events = (
        ENTERED,
        piece("one ", 0),
        piece("three ", 8),
        frame("run.complete", complete("one two three ")),
    )
    view = said(session("one two three ", active=run("active")))
    found, server = read(script, snapshot(), *events, session=[httpx2.ConnectError("refused"), view])
    assert found == ["two three "]
    assert server.asked == [EVENTS, SUBMIT, SESSION, SESSION]


def test_a_caller_that_times_out_at_the_beginning_sends_its_prompt_once() -> None:
    async def script(text: RemoteText) -> list[str]:
        for _ in range(4):  # before the snapshot, and while the prompt is on its way
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(text), 0.3)
        return await pieces(text)

    found, server = read(
        script,
        *(0.5, snapshot(), 2.0, ENTERED, frame("run.complete", complete("tea"))),
        submit=[httpx2.ConnectError("refused"), httpx2.ConnectError("refused"), said(run())],
    )
    assert found == ["tea"]
    assert server.asked.count(EVENTS) == 1


# Its end.


def test_left_it_ends_and_lets_its_line_go() -> None:
    async def script(text: RemoteText) -> None:
        async with text as entered:
            assert entered is text
            assert await anext(text) == "one "
        assert [each async for each in text] == []
        await text.aclose()

    read(script, snapshot(), ENTERED, piece("one ", 0), piece("two", 4))


def test_when_the_client_is_closed_it_says_so() -> None:
    async def script(text: RemoteText) -> None:
        assert await anext(text) == "one "
        waiting: asyncio.Task[str] = asyncio.ensure_future(anext(text))
        await asyncio.sleep(1)
        await text._client.aclose()
        with pytest.raises(Unreachable, match="closed"):
            await waiting

    read(script, snapshot(), ENTERED, piece("one ", 0))


def test_what_it_came_to_is_the_run_complete() -> None:
    async def script(text: RemoteText) -> Any:
        assert (text.session_id, text.run_id, text.text, text.complete) == ("s", "r", "", None)
        await pieces(text)
        return text.complete

    found, _ = read(script, snapshot(), ENTERED, frame("run.complete", complete("tea", error="x")))
    assert found == RunComplete(**complete("tea", error="x"))
