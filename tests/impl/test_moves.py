"""Subscriptions that show every move, in one order with the text and the RunCompletes."""

from __future__ import annotations

import pytest

from dispatching import Agent, SlowMessages, active, in_loop, queued, steps
from told import rest, spelled, unread
from turngate import Dispatcher, Moved, RunComplete, State, SubscriberCutOff

pytestmark = pytest.mark.requirement("R-LOK-2")


@in_loop
async def test_every_move_is_told_in_the_order_in_which_it_was_decided() -> None:
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
async def test_one_session_is_told_its_own_moves_only() -> None:
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
        d.subscribe(moves=True)  # and nobody holds it
        with_block = d.subscribe(moves=True)
        async with with_block:
            pass
        agent.finish(run)
        await run
        await d.aclose()
        assert await rest(events) == ["accept r", "enter r active", "complete r finished"]
        assert await rest(with_block) == []


@in_loop
async def test_a_session_that_was_seen_goes_on_when_nobody_looks_any_more() -> None:
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
