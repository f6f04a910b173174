"""The recording and the log: what the cores decide, in the order in which they decide it."""

from __future__ import annotations

import io
import json
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from dispatching import Agent, active, echo, in_loop, queued, steps
from turngate import AlreadyEntered, Dispatcher
from turngate._core import RunRecord, SessionCore


def contract(entry: dict[str, Any]) -> dict[str, Any]:
    """The entry without the keys that the contract does not name, `runs` apart."""
    return {key: value for key, value in entry.items() if key not in {"seq", "from", "to"}}


@in_loop
async def test_a_recording_has_every_event_in_order() -> None:
    entries: list[dict[str, Any]] = []
    agent = Agent()
    async with Dispatcher(agent, record=entries.append) as d:
        a = await active(d, "s", "p", run_id="a")
        await queued(d, "s", "p", run_id="b")
        await agent.turns[0].fold()
        c = await queued(d, "s", "p", run_id="c")
        agent.fail(a, RuntimeError("boom"))
        await a
        await steps()
        await queued(d, "s", "p", run_id="d")
        await d.clear_queue("s")
        await d.cancel_run("c")
        await c
        await d.cancel("s")
        e = await d.accept("s", "p", run_id="e")
        await d.accept("s", "p", run_id="f", when_busy="interrupt")
        await d.enter(e)
        await e
    s = {"session": "s"}
    assert [contract(entry) for entry in entries] == [
        {"event": "accept", **s, "run": "a"},
        {"event": "enter", **s, "run": "a", "state": "active"},
        {"event": "accept", **s, "run": "b"},
        {"event": "enter", **s, "run": "b", "state": "queued"},
        {"event": "fold", **s, "run": "b", "into": "a"},
        {"event": "accept", **s, "run": "c"},
        {"event": "enter", **s, "run": "c", "state": "queued"},
        {"event": "complete", **s, "run": "a", "cancelled": False, "error": "RuntimeError: boom"},
        {"event": "complete", **s, "run": "b", "cancelled": False, "error": "RuntimeError: boom"},
        {"event": "handoff", **s, "run": "c"},
        {"event": "accept", **s, "run": "d"},
        {"event": "enter", **s, "run": "d", "state": "queued"},
        {"event": "clear", **s},
        {"event": "complete", **s, "run": "d", "cancelled": False, "error": "cleared from the queue"},
        {"event": "cancel", **s, "runs": ["c"]},
        {"event": "complete", **s, "run": "c", "cancelled": True},
        {"event": "cancel", **s},
        {"event": "accept", **s, "run": "e"},
        {"event": "cancel", **s},
        {"event": "accept", **s, "run": "f"},
        {"event": "enter", **s, "run": "e", "state": "cancel_on_entry"},
        {"event": "complete", **s, "run": "e", "cancelled": True},
        {"event": "cancel", **s},
        {"event": "complete", **s, "run": "f", "cancelled": True, "error": "released before entry"},
        {"event": "end"},
    ]
    moved = [(entry["seq"], entry["from"], entry["to"]) for entry in entries if "from" in entry]
    assert moved[:3] == [(1, "accepted", "active"), (2, "accepted", "queued"), (2, "queued", "active")]


@in_loop
async def test_a_cancel_of_one_run_names_the_covered_runs_and_none_when_it_covers_none() -> None:
    entries: list[dict[str, Any]] = []
    agent = Agent()
    async with Dispatcher(agent, record=entries.append) as d:
        await active(d, "s", "p", run_id="a")
        await queued(d, "s", "p", run_id="b")
        await agent.turns[0].fold()
        entries.clear()
        await d.cancel_run("b")
        await d.wait("b")
        await d.cancel_run("b")
        await d.cancel_run("nobody")
        cancels = [entry for entry in entries if entry["event"] == "cancel"]
        assert cancels == [{"event": "cancel", "session": "s", "runs": ["a", "b"]}]


@in_loop
async def test_a_text_stream_receives_json_lines() -> None:
    stream = io.StringIO()
    async with Dispatcher(echo, record=stream) as d:
        await d.ask('s "quoted"\n', "p", run_id="ü")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["event"] for line in lines] == ["accept", "enter", "complete", "end"]
    assert (lines[0]["session"], lines[0]["run"]) == ('s "quoted"\n', "ü")


@in_loop
async def test_a_line_says_when_and_a_clock_that_is_set_back_reverses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = iter([100.0, 90.0, 101.0, 50.0])
    stream = io.StringIO()
    async with Dispatcher(echo, record=stream) as d:
        monkeypatch.setattr("turngate._effects.time", SimpleNamespace(time=lambda: next(times, 102.0)))
        await d.ask("s", "p")
    lines = [json.loads(line)["at"] for line in stream.getvalue().splitlines()]
    assert lines == sorted(lines)
    assert len({*lines}) > 1


@in_loop
async def test_a_recording_that_fails_is_logged_once_and_harms_no_run(caplog: Any) -> None:
    class Full(io.StringIO):
        def write(self, line: str) -> int:
            raise OSError("disk full")

    async with Dispatcher(echo, record=Full()) as d:
        assert (await d.ask("s", "p")).error is None
        assert (await d.ask("s", "q")).error is None
    assert caplog.text.count("the recording raised at") == 1
    assert caplog.text.count("Traceback") == 1


@in_loop
async def test_every_move_is_logged_at_debug_level_with_what_it_is_about(caplog: Any) -> None:
    caplog.set_level(logging.DEBUG, logger="turngate")
    async with Dispatcher(echo) as d:
        await d.ask("s", "p", run_id="r")
    assert (
        caplog.messages
        == [
            "event=accept session=s run=r seq=1",
            "event=enter session=s run=r seq=1 from=accepted to=active state=active",
            "event=complete session=s run=r seq=1 from=active to=complete cancelled=False",
            "event=cancel session=s",
        ][:3]
    )
    assert caplog.records[1].turngate["to"] == "active"


@in_loop
async def test_subscribers_to_moves_do_not_receive_the_end_of_the_recording(
    caplog: pytest.LogCaptureFixture,
) -> None:
    entries: list[dict[str, Any]] = []
    d = Dispatcher(echo, record=entries.append)
    moves = d.subscribe(moves=True)
    await d.aclose()
    assert entries == [{"event": "end"}]
    assert [event async for event in moves] == []
    assert caplog.messages == []


def test_to_cancel_a_run_of_the_turn_is_noted_as_a_cancel_of_that_run() -> None:
    core = SessionCore("s", "msg-")
    run = RunRecord("s", "r", 1, "p")
    core.accept(run, 1)
    core.enter(run)
    assert core.turn is not None
    core.begin(core.turn)
    _, decided = core.cancel_run(run)
    assert decided[1] == [({"event": "cancel", "session": "s", "runs": ["r"]}, None)]


def test_a_step_returns_its_own_entries_and_none_of_another() -> None:
    core = SessionCore("s", "msg-")
    run = RunRecord("s", "r", 1, "p")
    assert [entry.line["event"] for entry in core.accept(run, 1)[1]] == ["accept"]
    assert [entry.line["event"] for entry in core.enter(run)[1]] == ["enter"]
    with pytest.raises(AlreadyEntered):
        core.enter(run)
    assert [entry.line["event"] for entry in core.clear()[1][1]] == ["clear"]


@in_loop
async def test_nothing_is_kept_without_subscribers() -> None:
    async with Dispatcher(echo) as d:
        await d.accept("s", "p")
        assert not d._journal._pending
        assert not d._sessions.cores["s"]._entries


def test_the_log_is_off_by_default() -> None:
    assert not logging.getLogger("turngate").isEnabledFor(logging.DEBUG)


@pytest.mark.parametrize("design", ["recorded", "not recorded"])
def test_recording_changes_no_decision(design: str) -> None:
    @in_loop
    async def check() -> None:
        agent = Agent()
        record = print if design == "recorded" else None
        async with Dispatcher(agent, record=record) as d:
            first = await active(d, "s", "p")
            second = await queued(d, "s", "q")
            await d.cancel_run(first.run_id)
            await steps()
            assert agent.turns[-1].run is second

    check()
