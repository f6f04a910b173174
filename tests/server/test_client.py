"""The client, over connections that break and servers that come back without their runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from dispatching import Agent, in_loop
from serving import Line, served, serving, small
from turngate import (
    Attachment,
    Delta,
    Dispatcher,
    EmptyPrompt,
    Moved,
    Note,
    RunComplete,
    RunConflict,
    SessionBusy,
    State,
    Turn,
    UnknownRun,
)
from turngate.client import Client, EventStream, Gap, Refused, RemoteEvent, Snapshot, Unreachable
from turngate.server import asgi_app


async def talkative(turn: Turn) -> None:
    for word in turn.run.prompt.split():
        turn.write(f"{word} ")
        await asyncio.sleep(0.001)
    for run in await turn.fold():
        turn.write(f"+{run.prompt}")


@in_loop
async def test_the_calls() -> None:
    agent = Agent()
    d = Dispatcher(agent)
    async with d, served(d) as (url, _), Client(url) as client:
        run = await client.submit(
            "s/1", "tea", run_id="a", attachments=[Attachment("n", "text/plain", b"\0"), "txt"]
        )
        assert (run.run_id, run.session_id, run.seq, run.state, run.complete) == (
            "a",
            "s/1",
            1,
            State.ACCEPTED,
            None,
        )
        await client.submit("s/1", "soup", run_id="b", when_busy="queue")
        await client.submit("s/1", "cake", run_id="c", when_busy="queue")
        (session,) = await client.sessions()
        assert session == (await client.session("s/1"))._replace(cursor=session.cursor)
        assert session.active is not None
        assert (session.active.run_id, [each.run_id for each in session.queued]) == ("a", ["b", "c"])
        assert agent.turns[0].run.attachments == (("n", "text/plain", b"\0"), ("", "text/plain", "txt"))
        with pytest.raises(SessionBusy):
            await client.submit("s/1", "x", when_busy="reject")
        with pytest.raises(RunConflict):
            await client.submit("s/1", "x", run_id="a")
        with pytest.raises(EmptyPrompt):
            await client.submit("s/1", " ")
        assert await client.cancel_run("b", waiting_only=True) == ["b"]
        assert await client.clear_queue("s/1") == ["c"]
        with pytest.raises(TimeoutError):
            await client.wait("a", timeout=0.02)
        assert await client.cancel("s/1") == ["a"]
        assert (await client.wait("a")).cancelled
        assert (await client.run("a")).state is State.COMPLETE
        assert [message.finish_reason for message in await client.messages("s/1")] == [None, "canceled"]
        assert await client.messages("s/1", limit=1) == (await client.messages("s/1"))[:1]
        with pytest.raises(UnknownRun):
            await client.wait("nobody")
        with pytest.raises(ValueError, match="cannot be part"):
            await client.session("..")
        with pytest.raises(TypeError, match="on_complete"):
            await client.submit("s", "x", on_complete=print)


@in_loop
async def test_events_are_those_of_the_dispatcher() -> None:
    async def noting(turn: Turn) -> str:
        turn.write("hi")
        turn.emit("step", [1])
        return "hi"

    d = Dispatcher(noting)
    async with d, served(d) as (url, _), Client(url) as client, client.events() as events:
        first = await anext(events)
        assert isinstance(first, Snapshot)
        done = await client.ask("s", "tea", run_id="r")
        heard = await until_complete(events, {"r"})
        assert heard == [
            Moved("s", "accept", "r", 1),
            Moved("s", "enter", "r", 1, State.ACTIVE),
            Delta("s", "r", "hi", 0),
            Note("s", "r", "step", [1]),
            done,
        ]
        again = client.events(after=first.cursor)
        assert await until_complete(again, {"r"}) == heard
        await again.aclose()


async def until_complete(events: EventStream, runs: set[str]) -> list[RemoteEvent]:
    heard: list[RemoteEvent] = []
    owed = set(runs)
    while owed:
        event = await anext(events)
        heard.append(event)
        if isinstance(event, RunComplete):
            assert event.run_id in owed
            owed.discard(event.run_id)
    return heard


@in_loop
async def test_over_lines_that_are_cut_every_completion_comes_once() -> None:
    for ring in (3, 8_192):
        d = Dispatcher(talkative)
        async with d, served(d, limits=small(ring_events=ring)) as (url, _):
            line = Line(url, cuts=(500, 4_000), seed=ring)
            async with line.up() as near, Client(near) as cut, Client(url) as whole:
                events = cut.events()
                runs = {f"r{number}" for number in range(60)}
                hearing = asyncio.create_task(until_complete(events, runs))
                for number, run in enumerate(sorted(runs)):
                    sent = await (cut if number % 3 else whole).submit(f"s{number % 3}", "a b c", run_id=run)
                    assert sent.run_id == run
                await hearing
                assert events.connections > 3
                await events.aclose()


@in_loop
async def test_the_text_of_a_run_comes_whole_over_any_line() -> None:
    prompt = " ".join(f"wörd{number}😀" for number in range(60))
    for ring in (2, 8_192):
        d = Dispatcher(talkative)
        async with d, served(d, limits=small(ring_events=ring)) as (url, _):
            line = Line(url, cuts=(600, 3_000))
            async with line.up() as near, Client(near) as client:
                text = client.stream("s", prompt)
                pieces = [piece async for piece in text]
                assert "".join(pieces) == prompt + " " == text.text
                assert text.complete is not None
                assert text.complete.text == text.text


@in_loop
async def test_text_that_was_dropped_on_the_way_is_asked_for_while_the_turn_runs() -> None:
    gates = [asyncio.Event(), asyncio.Event()]

    async def breathless(turn: Turn) -> None:
        for number in range(3_000):  # more than a subscription keeps
            turn.write(f"{number} ")
        await gates[0].wait()
        turn.write("end")
        await gates[1].wait()

    d = Dispatcher(breathless)
    async with d, served(d) as (url, _), Client(url) as client:
        text = client.stream("s", "x")
        await anext(text)
        gates[0].set()
        while not text.text.endswith("end"):
            await anext(text)
        assert text.text == "".join(f"{number} " for number in range(3_000)) + "end"
        assert text.complete is None
        gates[1].set()
        assert [piece async for piece in text] == []


@in_loop
async def test_a_folded_run_has_the_text_of_its_turn_from_the_beginning() -> None:
    async def folding(turn: Turn) -> None:
        turn.write("one two ")
        while not turn.waiting():
            await asyncio.sleep(0.001)
        for run in await turn.fold():
            turn.write(f"+{run.prompt}")

    d = Dispatcher(folding)
    async with d, served(d) as (url, _), Client(url) as client:
        lead = client.stream("s", "x")
        pieces = [await anext(lead)]
        joining = client.stream("s", "more")
        joined = asyncio.create_task(collected(joining))
        pieces += [piece async for piece in lead]
        assert pieces == ["one two ", "+more"]
        assert await joined == "one two +more"
        assert joining.complete is not None
        assert joining.complete.folded_into == lead.run_id
        # And again, after the fact.
        assert await collected(client.stream("s", "more", run_id=joining.run_id)) == await joined


async def collected(text: AsyncIterator[str]) -> str:
    return "".join([piece async for piece in text])


@in_loop
async def test_without_a_ledger_a_restart_leaves_unknown_what_it_has_forgotten() -> None:
    agent = Agent()
    async with Client("http://127.0.0.1:1", patience=0.05) as nobody:
        with pytest.raises(Unreachable):
            await nobody.submit("s", "x")
        with pytest.raises(Unreachable):
            async for _ in nobody.events(patience=0.05):
                pass
    async with serving(asgi_app(agent, finish=0)) as url:
        port = int(url.rpartition(":")[2])
        client = Client(url)
        events = client.events()
        await anext(events)
        await client.submit("s", "x", run_id="r")
        waiting = asyncio.create_task(client.wait("forgotten-later"))
        with pytest.raises(UnknownRun):
            await waiting
    seen: list[RemoteEvent] = []
    async with serving(asgi_app(agent, finish=0), port=port):
        while not (seen and isinstance(seen[-1], Snapshot)):
            seen.append(await anext(events))
        assert seen[-1].reset
        # The old server said how the run ended before it went; the new one does not know it.
        assert [event.outcome for event in seen if isinstance(event, RunComplete)] == ["cancelled"]
        with pytest.raises(UnknownRun):
            await client.wait("r")
        await events.aclose()
        await client.aclose()


@in_loop
async def test_a_token_is_presented_and_a_refusal_is_raised() -> None:
    async with served(talkative, token="t-√") as (url, _):
        async with Client(url, "t-√") as client:
            assert (await client.ask("s", "x")).text == "x "
        async with Client(url) as client:
            with pytest.raises(Refused, match="401 unauthorized"):
                await client.submit("s", "x")
            with pytest.raises(Refused) as refused:
                await anext(client.events())
            assert (refused.value.status, refused.value.name) == (401, "unauthorized")


@in_loop
async def test_a_reader_that_falls_behind_receives_a_gap() -> None:
    d = Dispatcher(talkative)
    async with d, served(d, limits=small(ring_events=2)) as (url, _), Client(url) as client:
        events = client.events()
        first = await anext(events)
        assert isinstance(first, Snapshot)
        await events.aclose()
        for number in range(4):
            await d.ask("s", "a b", run_id=f"r{number}")
        async with client.events(after=first.cursor) as events:
            heard = [await anext(events) for _ in range(6)]
            assert heard[0] == Gap(None, first.cursor)
            assert [event.run_id for event in heard if isinstance(event, RunComplete)] == [
                "r0",
                "r1",
                "r2",
                "r3",
            ]
            assert isinstance(heard[-1], Snapshot)
            assert not heard[-1].reset
