"""Idempotency keys, sentence by sentence: a repetition changes nothing, and returns the same answer."""

from __future__ import annotations

from typing import Any

import pytest

from dispatching import Agent, active, echo, in_loop, look, queued, steps
from turngate import Covered, Dispatcher, KeyConflict, TurngateError


def ids(answer: Any) -> list[str]:
    runs = answer.runs if isinstance(answer, Covered) else answer
    return [run.run_id for run in runs]


@pytest.mark.requirement("R-KEY-1")
@in_loop
async def test_a_repeated_cancel_covers_nothing_that_came_after_the_first() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        first = await active(d, "s", run_id="first")
        await queued(d, "s", "p", run_id="second", when_busy="queue")
        assert ids(await d.cancel("s", key="k")) == ["first", "second"]
        assert (await first.wait()).cancelled
        later = await active(d, "s", run_id="later")
        for _ in range(2):
            again = await d.cancel("s", key="k")
            assert (ids(again), again.known, bool(again)) == (["first", "second"], True, True)
            assert [(await run.wait()).cancelled for run in again.runs] == [True, True]
        agent.finish(later)
        assert not (await later.wait()).cancelled


@pytest.mark.requirement("R-KEY-1")
@in_loop
async def test_each_operation_is_done_once_under_its_key() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        lead = await active(d, "s", run_id="lead")
        await queued(d, "s", "p", run_id="dropped", when_busy="queue")
        assert ids(await d.clear_queue("s", key="clear")) == ["dropped"]
        await queued(d, "s", "p", run_id="kept", when_busy="queue")
        assert ids(await d.clear_queue("s", key="clear")) == ["dropped"]
        assert ids(await look(d.queued("s"))) == ["kept"]
        assert ids(await d.cancel_run("lead", waiting_only=True, key="only")) == []
        assert ids(await d.cancel_run("kept", key="run")) == ["kept"]
        assert ids(await d.cancel_run("kept", key="run")) == ["kept"]
        assert ids(await d.cancel_all(key="all")) == ["lead"]
        assert (await lead.wait()).cancelled
        other = await active(d, "t", run_id="other")
        assert ids(await d.cancel_all(key="all")) == ["lead"]
        agent.finish(other)
        assert not (await other.wait()).cancelled


@pytest.mark.requirement("R-KEY-2")
@in_loop
async def test_a_call_that_covered_nothing_is_remembered_too() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        assert ids(await d.cancel("s", key="cancel")) == []
        assert ids(await d.clear_queue("s", key="clear")) == []
        assert ids(await d.cancel_all(key="all")) == []
        unknown = await d.cancel_run("r", key="run")
        assert (ids(unknown), unknown.known) == ([], False)
        run = await active(d, "s", run_id="r")
        waiting = await queued(d, "s", "p", run_id="q", when_busy="queue")
        assert ids(await d.cancel("s", key="cancel")) == []
        assert ids(await d.clear_queue("s", key="clear")) == []
        assert ids(await d.cancel_all(key="all")) == []
        again = await d.cancel_run("r", key="run")
        assert (ids(again), again.known) == ([], False)
        agent.finish(run)
        await run.wait()
        await steps()
        agent.finish(waiting)
        assert [(await each.wait()).outcome for each in (run, waiting)] == ["finished", "finished"]
        over = await d.cancel_run("r", key="over")
        assert (ids(over), over.known) == ([], True)
        assert (await d.cancel_run("r", key="over")).known


@pytest.mark.requirement("R-KEY-3")
@in_loop
async def test_a_key_belongs_to_one_request() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        run = await active(d, "s", run_id="r")
        await d.cancel("t", key="session")
        await d.cancel_run("nobody", key="run")
        for calls in (
            lambda: d.cancel("s", key="session"),
            lambda: d.clear_queue("t", key="session"),
            lambda: d.cancel_all(key="session"),
            lambda: d.cancel_run("t", key="session"),
            lambda: d.cancel_run("r", key="run"),
            lambda: d.cancel_run("nobody", waiting_only=True, key="run"),
        ):
            with pytest.raises(KeyConflict, match="was used for"):
                await calls()
        assert issubclass(KeyConflict, TurngateError)
        agent.finish(run)
        assert (await run.wait()).outcome == "finished"


@in_loop
async def test_without_a_key_every_call_counts_and_keys_are_apart() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        for number, key in enumerate([None, None, "k1", "k2", "ключ\0\ud800" + "x" * 240]):
            run = await active(d, "s", run_id=f"r{number}")
            assert ids(await d.cancel("s", key=key)) == [f"r{number}"]
            await run.wait()


@pytest.mark.requirement("R-KEY-4")
@in_loop
async def test_what_cannot_be_a_key_is_refused_in_one_line_and_nothing_is_done() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        run = await active(d, "s", run_id="r")
        for key in ("", "x" * 257):
            for call in (d.cancel("s", key=key), d.clear_queue("s", key=key), d.cancel_all(key=key)):
                with pytest.raises(ValueError, match=r"^a key [^\n]+$"):
                    await call
            with pytest.raises(ValueError, match=r"^a key [^\n]+$"):
                await d.cancel_run("r", key=key)
        odd: Any = 7
        with pytest.raises(TypeError, match="int"):
            await d.cancel("s", key=odd)
        assert ids(await d.cancel("s", key="x" * 256)) == ["r"]
        await run.wait()


@in_loop
async def test_each_key_life_has_a_name_and_its_own_keys() -> None:
    async with Dispatcher(echo) as d:
        life = await look(d.key_life())
        assert isinstance(life, str)
        assert life.isascii()
        assert life == await look(d.key_life())
        assert await look(d.continues_life(life)) is True
        assert await look(d.continues_life("another")) is False
        assert await look(d.knows_key("k")) is False
        await d.cancel("s", key="k")
        assert await look(d.knows_key("k")) is True
        with pytest.raises(ValueError, match="a key"):
            await look(d.knows_key(""))


def test_another_dispatcher_in_memory_has_another_life() -> None:
    lives: list[str] = []

    @in_loop
    async def live() -> None:
        async with Dispatcher(echo) as d:
            lives.append(await look(d.key_life()))

    live()
    live()
    assert len({*lives}) == 2
