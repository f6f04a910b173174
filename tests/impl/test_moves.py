"""Subscriptions that show every move, in one order with the text and the RunCompletes."""

from __future__ import annotations

import asyncio
import gc
import io
import json
import random
from typing import Any

import pytest

from dispatching import Agent, SlowMessages, active, assert_nothing_left, in_loop, queued, steps
from told import check_order, rest, spelled, unread
from turngate import Dispatcher, Event, Moved, Run, RunComplete, State, SubscriberCutOff, Subscription, Turn
from turngate_verify.trace import check

pytestmark = pytest.mark.requirement("R-LOK-2")


@in_loop
async def test_every_move_is_delivered_in_the_order_of_the_decisions() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        events = d.subscribe(moves=True)
        first = await active(d, "s", "p", run_id="first", on_complete=lambda _: None)
        agent.turns[0].write("a")
        await queued(d, "s", "p", run_id="folded")
        await queued(d, "s", "p", run_id="next", when_busy="queue")
        await agent.turns[0].fold()
        agent.turns[0].emit("tool", {"name": "search"})
        agent.turns[0].write("b")
        agent.finish(first, None)
        await first
        await steps()
        await queued(d, "s", "p", run_id="cleared")
        await d.clear_queue("s")
        await d.accept("s", "p", run_id="on entry")
        await d.cancel_run("next")
        await d.cancel("s")
        await d.enter(d.session("s").accepted[0])
        released = await d.accept("t", "p", run_id="released")
        await released.close()
        await d.cancel("idle")
        await d.wait("next")
        await d.wait("on entry")
        await d.aclose()
        assert await rest(events) == [
            "accept first",
            "enter first active",
            "delta first a@0",
            "accept folded",
            "enter folded queued",
            "accept next",
            "enter next queued",
            "fold folded into first",
            "note first tool",
            "delta first b@1",
            "complete first finished",
            "complete folded finished",
            "handoff next",
            "accept cleared",
            "enter cleared queued",
            "clear",
            "complete cleared cleared",
            "accept on entry",
            "cancel next",
            "cancel",
            "enter on entry cancel_on_entry",
            "accept released",
            "complete released released",
            "cancel",
            "complete next cancelled",
            "complete on entry cancelled",
        ]


@in_loop
async def test_what_a_move_carries() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        events = d.subscribe("s", moves=True)
        run = await active(d, "s", "p", run_id="r")
        other = await queued(d, "s", "q", run_id="q")
        await agent.turns[0].fold()
        await d.cancel_run("q")
        assert unread(events) == [
            Moved("s", "accept", "r", run.seq),
            Moved("s", "enter", "r", run.seq, State.ACTIVE),
            Moved("s", "accept", "q", other.seq),
            Moved("s", "enter", "q", other.seq, State.QUEUED),
            Moved("s", "fold", "q", other.seq, None, "r"),
            Moved("s", "cancel", None, None, None, None, ("r", "q")),
        ]
        await d.cancel("s")
        assert unread(events)[-1] == Moved("s", "cancel")
        await run


@in_loop
async def test_a_subscriber_to_one_session_receives_its_moves_only() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        of_s, of_t, of_all = (d.subscribe(about, moves=True) for about in ("s", "t", None))
        plain = d.subscribe("s")
        for session in "st":
            run = await active(d, session, "p", run_id=session)
            agent.finish(run)
            await run
        await d.aclose()
        said = {"s": ["accept s", "enter s active", "complete s finished"]}
        said["t"] = [each.replace(" s ", " t ").replace("accept s", "accept t") for each in said["s"]]
        assert await rest(of_s) == said["s"]
        assert await rest(of_t) == said["t"]
        assert await rest(of_all) == said["s"] + said["t"]
        assert await rest(plain) == ["complete s finished"]


@in_loop
async def test_with_moves_the_completion_of_a_run_that_has_a_hook_is_seen_by_both() -> None:
    agent = Agent()
    received: list[RunComplete] = []
    async with Dispatcher(agent) as d:
        moves, plain = d.subscribe(moves=True), d.subscribe()
        run = await active(d, "s", "p", on_complete=received.append)
        agent.finish(run)
        await run
        assert received == [run.complete]
        assert unread(moves)[-1] == run.complete
        assert unread(plain) == []


@pytest.mark.parametrize("moment", ["accepted", "queued", "running", "settling"])
@in_loop
async def test_subscribing_in_the_middle_of_things(moment: str) -> None:
    agent, store = Agent(), SlowMessages()
    async with Dispatcher(agent, messages=store) as d:
        run = await d.accept("s", "p", run_id="r")
        behind = await d.accept("s", "q", run_id="behind")
        said: list[str] = []
        if moment == "accepted":
            events = d.subscribe(moves=True)
        await d.enter(run)
        said += ["enter r active"]
        await d.enter(behind)
        said += ["enter behind queued"]
        await steps()
        if moment == "queued":
            events, said = d.subscribe("s", moves=True), []
        agent.turns[0].write("a")
        said += ["delta r a@0"]
        if moment == "running":
            events, said = d.subscribe("s", moves=True), []
        agent.turns[0].write("b")
        said += ["delta r b@1"]
        agent.finish(run, None)
        await steps()
        if moment == "settling":
            events, said = d.subscribe("s", moves=True), []
        store.gates[0].set_result(None)
        await run
        await d.cancel("s")
        await steps()
        store.gates[1].set_result(None)
        await behind
        await d.aclose()
        said += ["complete r finished", "handoff behind", "cancel", "complete behind cancelled"]
        assert await rest(events) == said


@in_loop
async def test_a_second_subscription_and_one_that_has_gone_change_nothing_for_the_first() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        events = d.subscribe(moves=True)
        run = await active(d, "s", "p", run_id="r")
        d.subscribe(moves=True)  # and nothing holds it
        with_block = d.subscribe(moves=True)
        async with with_block:
            pass
        agent.finish(run)
        await run
        await d.aclose()
        assert await rest(events) == ["accept r", "enter r active", "complete r finished"]
        assert await rest(with_block) == []


@in_loop
async def test_a_session_goes_on_when_its_last_subscriber_leaves() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        async with d.subscribe(moves=True):
            run = await active(d, "s", "p")
        behind = await queued(d, "s", "q", when_busy="queue")
        assert not d._journal._pending
        agent.finish(run)
        await run
        await steps()
        agent.finish(behind)
        await behind
        assert not d._journal._pending
        run = await active(d, "s", "r")
        agent.finish(run)
        await run
        assert not d._journal._pending


@in_loop
async def test_a_reader_of_moves_that_lags_loses_deltas_and_no_move() -> None:
    agent = Agent()
    async with Dispatcher(agent, delta_limit=2) as d:
        events = d.subscribe(moves=True)
        run = await active(d, "s", "p", run_id="r")
        for text in "abc":
            agent.turns[0].write(text)
            agent.turns[0].emit("kind")
        agent.finish(run)
        await run
        assert events.dropped == 4
        await d.aclose()
        assert await rest(events) == [
            "accept r",
            "enter r active",
            "delta r a@0",
            "note r kind",
            "complete r finished",
        ]


@in_loop
async def test_unread_moves_are_bounded_like_run_completes() -> None:
    agent = Agent()
    async with Dispatcher(agent, complete_limit=3) as d:
        events, plain = d.subscribe(moves=True), d.subscribe()
        run = await active(d, "s", "p", run_id="r")
        agent.finish(run)
        await run
        assert "open" in repr(events)
        await d.cancel("s")
        assert "cut off" in repr(events)
        assert [spelled(await anext(events)) for _ in range(3)] == [
            "accept r",
            "enter r active",
            "complete r finished",
        ]
        with pytest.raises(SubscriberCutOff, match="more than 3"):
            await anext(events)
        assert unread(plain) == [run.complete]


# Moves while hooks, callbacks and recordings call back or close: none of them changes the order.


@in_loop
async def test_a_recording_that_closes_the_dispatcher_changes_no_order() -> None:
    agent = Agent()
    recorded: list[str] = []

    def record(entry: dict[str, Any]) -> None:
        if entry.get("run") == "second" and entry["event"] == "accept":
            d.begin_close()
        recorded.append(entry["event"] + " " + entry.get("run", ""))

    d = Dispatcher(agent, record=record)
    events = d.subscribe(moves=True)
    await active(d, "s", "p", run_id="first")
    second = await d.accept("s", "q", run_id="second")
    assert (await second).outcome == "cancelled"
    await d.aclose()
    assert await rest(events) == [
        "accept first",
        "enter first active",
        "accept second",
        "cancel",
        "complete second cancelled",
        "complete first cancelled",
    ]
    assert recorded == [
        "accept first",
        "enter first",
        "accept second",
        "cancel ",
        "complete second",
        "complete first",
        "end ",
    ]


@pytest.mark.parametrize("how", ["hook", "callback"])
@in_loop
async def test_a_hook_that_closes_the_dispatcher_changes_no_order(how: str) -> None:
    agent = Agent()

    def close(_: RunComplete) -> None:
        seen.append((d.session("s"), d.is_busy(), d.queued("s")))
        d.begin_close()
        d.begin_close(finish=5)
        d.subscribe(moves=True)

    seen: list[Any] = []
    d = Dispatcher(agent)
    events = d.subscribe(moves=True)
    first = await active(d, "s", "p", run_id="first", on_complete=close if how == "hook" else None)
    if how == "callback":
        first.add_done_callback(close)
    second = await queued(d, "s", "q", run_id="second", when_busy="queue")
    third = await queued(d, "s", "q", run_id="third", when_busy="queue")
    elsewhere = await active(d, "t", "p", run_id="elsewhere")
    agent.finish(first)
    await first
    await d.aclose()
    assert [run.complete.outcome for run in (first, second, third, elsewhere) if run.complete] == [
        "finished",
        "cancelled",
        "cancelled",
        "cancelled",
    ]
    assert [turn.run for turn in agent.turns] == [first, elsewhere]
    ((view, busy, behind),) = seen
    assert view.active is second
    assert view.phase == "starting"
    assert view.since is not None
    assert busy
    assert behind == [third]
    told = [event async for event in events]
    check_order(told)
    assert [spelled(event) for event in told][-7:] == [
        "complete first finished",
        "handoff second",
        "cancel",
        "complete third cancelled",
        "cancel",
        "complete second cancelled",
        "complete elsewhere cancelled",
    ]


@in_loop
async def test_a_hook_sees_the_state_that_the_stream_has_shown() -> None:
    agent = Agent()
    told: list[list[str]] = []
    async with Dispatcher(agent) as d:
        events = d.subscribe(moves=True)

        def look(complete: RunComplete) -> None:
            assert d.find(complete.run_id) is not None
            told.append([spelled(event) for event in unread(events)][-2:])

        run = await active(d, "s", "p", run_id="r", on_complete=look)
        await queued(d, "s", "q", run_id="q", when_busy="queue")
        agent.finish(run)
        await run
        assert told == [["complete r finished", "handoff q"]]


def test_a_reader_of_moves_that_waits_on_a_closed_loop_costs_no_run_its_completion(
    caplog: pytest.LogCaptureFixture,
) -> None:
    agent = Agent()
    runs: list[Run] = []

    async def main() -> tuple[Dispatcher, asyncio.Task[Event]]:
        d = Dispatcher(agent)
        d._home._warns_if_dropped = False
        runs.append(await active(d, "s", "active"))
        runs.append(await queued(d, "s", "queued", when_busy="queue"))
        reading = asyncio.ensure_future(anext(d.subscribe(moves=True)))
        await steps()
        return d, reading

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # the loop says that a task was destroyed, as it should
    d, reading = loop.run_until_complete(main())
    task = agent.turns[0].task
    assert task is not None
    coroutine = task.get_coro()
    assert coroutine is not None
    loop.close()
    coroutine.close()
    assert [run.state for run in runs] == [State.COMPLETE] * 2
    assert_nothing_left(d)
    assert "delivering {'event': 'complete'" in caplog.text
    agent.turns.clear()
    del task, coroutine, reading
    gc.collect()


# Moves while callers do anything at all: the stream is a history that holds, from any point on.


def line(event: Event) -> str | None:
    """An event of the stream as recorded histories spell it."""
    if isinstance(event, RunComplete):
        entry: dict[str, Any] = {"event": "complete", "run": event.run_id, "cancelled": event.cancelled}
        if event.error is not None:
            entry["error"] = event.error
        return json.dumps(entry)
    if isinstance(event, Moved):
        entry = {"event": event.event, "session": event.session_id, "run": event.run_id}
        entry |= {"state": event.state, "into": event.into, "runs": event.runs}
        return json.dumps({key: value for key, value in entry.items() if value is not None})
    return None


class Chatty:
    """A runner that writes, notes and folds at random, and ends as it likes."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance

    async def __call__(self, turn: Turn) -> str | None:
        for _ in range(self.chance.randrange(6)):
            match self.chance.randrange(5):
                case 0:
                    turn.write(self.chance.choice(["", "x", "some text"]))
                case 1:
                    turn.emit("note", self.chance.random())
                case 2:
                    waiting = turn.waiting()
                    assert await turn.fold() == waiting
                case _:
                    await steps(self.chance.randrange(4))
        if self.chance.random() < 0.2:
            raise asyncio.CancelledError  # logged less loudly than others, and as good
        return None if self.chance.random() < 0.5 else "returned"


async def anything(d: Dispatcher, chance: random.Random, known: list[Run]) -> None:
    """Do one of the things that a caller can do."""
    session = chance.choice("stu")
    match chance.randrange(12):
        case 0:
            await d.cancel(session)
        case 1 if known:
            await d.cancel_run(chance.choice(known).run_id, waiting_only=chance.random() < 0.5)
        case 2:
            await d.clear_queue(session)
        case 3 if known:
            await chance.choice(known).close()
        case 4 if known:
            await chance.choice(known).cancel()
        case 5:
            await steps(chance.randrange(10))
        case 6:
            for view in d.sessions():
                for run in view.accepted:
                    await d.enter(run)
        case 7:
            known.append(await d.accept(session, "p"))
        case _:
            busy: Any = chance.choice(["fold", "queue", "interrupt"])
            hook = (lambda _: None) if chance.random() < 0.2 else None
            known.append(await d.submit(session, "p", when_busy=busy, on_complete=hook))
    await steps(chance.randrange(3))


@pytest.mark.parametrize("limit", [None, 1, 2])
@pytest.mark.parametrize("seed", range(20))
@in_loop
async def test_the_stream_of_moves_is_a_history_that_holds(
    seed: int, limit: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("CRITICAL", "turngate")
    chance = random.Random(seed)
    recording = io.StringIO()
    record = recording if seed % 2 else None
    d = Dispatcher(Chatty(chance), turns_limit=limit, record=record)
    events = d.subscribe(moves=True)
    of_sessions = {session: d.subscribe(session, moves=True) for session in "stu"}
    known: list[Run] = []
    for _ in range(60):
        await anything(d, chance, known)
    d.begin_close(finish=chance.choice([0, 0.001, 1e9]))
    for _ in range(10):
        for view in d.sessions():
            for run in view.accepted[:1]:
                await d.enter(run)
        await steps(chance.randrange(5))
    await d.aclose()
    told = [event async for event in events]
    check_order(told)
    lines = [each for each in map(line, told) if each is not None]
    checked = check([*lines, '{"event": "end"}'])
    assert checked.offence is None
    assert checked.whole
    assert checked.runs == len(known)
    if record is not None:
        recorded = [json.loads(each) for each in recording.getvalue().splitlines()]
        assert [entry["event"] for entry in recorded[:-1]] == [json.loads(each)["event"] for each in lines]
    for session, of_session in of_sessions.items():
        assert [event async for event in of_session] == [e for e in told if e.session_id == session]


@in_loop
async def test_a_subscriber_that_joins_at_any_point_receives_the_rest() -> None:
    chance = random.Random(7)
    d = Dispatcher(Chatty(chance), delta_limit=10**6)
    whole = d.subscribe(moves=True)
    late: list[tuple[int, Subscription]] = []
    known: list[Run] = []
    for _ in range(80):
        late.append((len(whole._unread), d.subscribe(moves=True)))
        await anything(d, chance, known)
    await d.aclose()
    told = [event async for event in whole]
    for start, events in late:
        assert [event async for event in events] == told[start:]
    late.clear()
    gc.collect()
