"""Closing: what may end by itself, what is cancelled when the time is up, whom a close waits for."""

from __future__ import annotations

import asyncio
import logging
import math
from typing import Any

import pytest

from dispatching import Agent, SlowMessages, Stubborn, active, in_loop, on_record, outcome, queued, steps
from turngate import Dispatcher, DispatcherClosed, Run, RunComplete, State, Turn
from turngate._close import _NAMED, _REMINDER
from turngate_verify.world.virtual_loop import VirtualLoop

DONE = ("done", None, False)
CANCELLED = ("", None, True)
RELEASED = ("", "released before entry", False)


class World:
    """A dispatcher on a loop whose time the test tells."""

    def __init__(self, runner: Any = None, **options: Any) -> None:
        self.loop = VirtualLoop()
        self.agent = Agent()
        self.d = Dispatcher(runner or self.agent, **options)

    def accept(self, session: str, prompt: str) -> Run:
        return self.loop.call(self.d.accept(session, prompt))

    def submit(self, session: str, prompt: str, **options: Any) -> Run:
        run = self.loop.call(self.d.submit(session, prompt, **options))
        self.loop.settle()
        return run

    def enter(self, run: Run) -> State:
        return self.loop.call(self.d.enter(run))

    def close(self, finish: float) -> asyncio.Task[None]:
        closing = self.loop.create_task(self.d.aclose(finish=finish))
        self.loop.settle()
        return closing

    def begin_close(self, finish: float = 0.0) -> None:
        with self.loop:
            self.d.begin_close(finish=finish)
        self.loop.settle()

    def finish(self, run: Run) -> None:
        self.agent.finish(run)
        self.loop.settle()

    def wait(self, seconds: float) -> None:
        self.loop.advance(seconds)
        self.loop.settle()

    def end(self) -> None:
        """The dispatcher is closed, and left nothing on its loop."""
        assert self.d._close.is_done
        assert self.loop.problems == []
        self.loop.tidy()
        assert [timer for timer in self.loop.timers if not timer.cancelled()] == []


def came(run: Run) -> tuple[str, str | None, bool]:
    assert run.complete is not None
    return outcome(run.complete)


# What may end by itself.


def test_turns_that_end_in_time_end_by_themselves_and_so_does_what_is_queued() -> None:
    w = World()
    lead, behind = w.submit("s", "p"), w.submit("s", "q", when_busy="queue")
    elsewhere = w.submit("t", "p")
    closing = w.close(10)
    w.wait(9)
    assert [run.complete for run in (lead, behind, elsewhere)] == [None] * 3
    w.finish(lead)
    w.finish(elsewhere)
    assert not closing.done()
    w.finish(behind)
    assert closing.done()
    assert [came(run) for run in (lead, behind, elsewhere)] == [DONE] * 3
    w.end()


def test_what_is_not_over_when_the_time_is_up_is_cancelled() -> None:
    w = World()
    lead, behind, accepted = w.submit("s", "p"), w.submit("s", "q"), w.accept("s", "r")
    closing = w.close(10)
    w.wait(9.99)
    assert not closing.done()
    assert not w.agent.turns[0].covered
    w.wait(0.02)
    assert closing.done()
    assert [came(run) for run in (lead, behind)] == [CANCELLED] * 2
    assert came(accepted) == ("", "released before entry", True)
    assert w.agent.prompts == ["p"]
    w.end()


def test_nothing_is_waited_for_unless_asked() -> None:
    w = World()
    lead = w.submit("s", "p")
    assert w.close(0).done()
    assert came(lead) == CANCELLED
    w.end()


def test_infinity_is_as_long_as_it_takes() -> None:
    w = World()
    lead, accepted = w.submit("s", "p"), w.accept("s", "q")
    closing = w.close(math.inf)
    w.wait(10.0**9)
    assert not closing.done()
    assert lead.complete is None
    assert accepted.complete is None
    w.finish(lead)
    assert closing.done()
    assert came(lead) == DONE
    assert came(accepted) == RELEASED
    w.end()


@pytest.mark.parametrize("finish", [10, math.inf])
def test_a_submitted_run_that_has_not_entered_enters_and_finishes(finish: float) -> None:
    w = World()
    runs = [w.loop.call(w.d.submit("s", prompt, when_busy="queue")) for prompt in "pq"]
    closing = w.close(finish)
    w.finish(runs[0])
    w.finish(runs[1])
    assert closing.done()
    assert [came(run) for run in runs] == [DONE] * 2
    w.end()


def test_a_submitted_run_that_is_released_before_it_enters_keeps_no_close_from_its_end() -> None:
    w = World()
    run = w.loop.call(w.d.submit("s", "p"))
    accepted = w.accept("t", "q")
    with w.loop:
        w.d.begin_close(finish=math.inf)
    w.loop.call(run.close())
    assert accepted.complete is None
    w.loop.settle()
    assert came(run) == came(accepted) == RELEASED
    w.end()


def test_an_accepted_run_may_still_enter_while_the_rest_finishes() -> None:
    w = World()
    lead, accepted, other = w.submit("s", "p"), w.accept("s", "q"), w.accept("t", "r")
    closing = w.close(10)
    assert w.enter(accepted) is State.QUEUED
    assert w.enter(other) is State.ACTIVE
    w.loop.settle()
    w.finish(lead)
    w.finish(accepted)
    assert not closing.done()
    w.finish(other)
    assert closing.done()
    assert [came(run) for run in (lead, accepted, other)] == [DONE] * 3
    w.end()


def test_accepted_runs_are_released_when_only_such_are_left() -> None:
    w = World()
    lead = w.submit("s", "p")
    accepted = [w.accept("s", "q"), w.accept("t", "r")]
    closing = w.close(math.inf)
    assert [run.complete for run in accepted] == [None, None]
    w.finish(lead)
    assert closing.done()
    assert came(lead) == DONE
    assert [came(run) for run in accepted] == [RELEASED] * 2
    w.end()


def test_accepted_runs_are_released_at_once_when_nothing_else_is_there() -> None:
    w = World()
    accepted = w.accept("s", "p")
    assert w.close(math.inf).done()
    assert came(accepted) == RELEASED
    w.end()


def test_a_cancel_on_entry_is_waited_for_before_accepted_runs_are_released() -> None:
    store = SlowMessages()
    w = World(messages=store)
    covered, accepted = w.accept("s", "p"), w.accept("t", "q")
    w.loop.call(w.d.cancel("s"))
    assert w.enter(covered) is State.CANCEL_ON_ENTRY
    w.loop.settle()
    closing = w.close(1)
    assert accepted.complete is None
    store.gates[0].set_result(None)
    w.loop.settle()
    assert closing.done()
    assert came(covered) == CANCELLED
    assert came(accepted) == RELEASED
    w.end()


@in_loop
async def test_new_prompts_are_refused_at_once_and_known_ones_can_be_waited_for() -> None:
    agent = Agent()
    d = Dispatcher(agent)
    run = await active(d, "s", "p", run_id="known")
    d.begin_close(finish=math.inf)
    for call in (d.accept, d.submit, d.ask):
        with pytest.raises(DispatcherClosed):
            await call("s", "q")
    assert d.accepted_count("s") == 0
    agent.finish(run)
    assert outcome(await d.wait("known")) == DONE
    await d.aclose()
    with pytest.raises(DispatcherClosed):
        await d.submit("s", "q")


def test_later_closes_join_the_first_ones_deadline() -> None:
    w = World()
    run = w.submit("s", "p")
    first = w.close(10)
    shorter, longer = w.close(0), w.close(math.inf)
    w.wait(9.9)
    assert run.complete is None
    assert not any(task.done() for task in (first, shorter, longer))
    w.wait(0.2)
    assert came(run) == CANCELLED
    assert all(task.done() for task in (first, shorter, longer))
    w.end()


@pytest.mark.parametrize("finish", [10, math.inf])
def test_cancel_all_shortens_a_close(finish: float) -> None:
    w = World()
    lead, behind, accepted = w.submit("s", "p"), w.submit("s", "q"), w.accept("t", "r")
    submitted = w.loop.call(w.d.submit("u", "s"))
    closing = w.loop.create_task(w.d.aclose(finish=finish))
    w.loop.step()  # which enters the run of u
    covered = w.loop.call(w.d.cancel_all())
    assert covered.runs == [lead, behind, accepted, submitted]
    w.loop.settle()
    assert closing.done()
    assert [came(run) for run in (lead, behind, submitted)] == [CANCELLED] * 3
    assert came(accepted) == ("", "released before entry", True)
    w.end()


@pytest.mark.parametrize("finish", [math.nan, -1, -0.001, -math.inf, "5", None, [1.0]])
@in_loop
async def test_a_time_that_is_none_is_refused_in_one_line_and_nothing_closes(finish: Any) -> None:
    async with Dispatcher(Agent()) as d:
        with pytest.raises(ValueError, match=r"^finish .*$"):
            d.begin_close(finish=finish)
        with pytest.raises(ValueError, match=r"^finish .*$"):
            await d.aclose(finish=finish)
        assert "open" in repr(d)


# Beginning, without waiting.


@in_loop
async def test_a_close_can_be_begun_without_waiting_for_it() -> None:
    agent = Agent()
    d = Dispatcher(agent)
    run, behind = await active(d, "s", "p"), await queued(d, "s", "q")
    events = d.subscribe()
    d.begin_close(finish=math.inf)
    d.begin_close()
    assert "closing" in repr(d)
    agent.finish(run)
    await run
    await steps()
    agent.finish(behind)
    assert [event async for event in events] == [await run, await behind]
    assert "closed" in repr(d)


@pytest.mark.parametrize("finish", [0.0, math.inf])
@in_loop
async def test_a_runner_can_begin_to_close_the_dispatcher_it_runs_in(finish: float) -> None:
    async def last_words(turn: Turn) -> str:
        turn.write("so far")
        d.begin_close(finish=finish)
        await steps()
        return "done"

    d = Dispatcher(last_words)
    run = await d.submit("s", "p")
    assert outcome(await run) == (DONE if finish else ("so far", None, True))
    await d.aclose()


@in_loop
async def test_a_close_that_begins_in_a_hook_lets_the_successor_finish() -> None:
    agent = Agent()

    def begin(_: RunComplete) -> None:
        d.begin_close(finish=math.inf)

    d = Dispatcher(agent)
    run = await active(d, "s", "p", on_complete=begin)
    behind, accepted = await queued(d, "s", "q"), await d.accept("t", "r")
    agent.finish(run)
    await run
    await steps()
    assert accepted.complete is None
    agent.finish(behind)
    assert outcome(await behind) == DONE
    await d.aclose()
    assert outcome(await accepted) == RELEASED


# Waiting for those who do not end.


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "turngate" and record.levelno == logging.WARNING
    ]


def test_a_close_that_waits_says_for_which_runs(caplog: pytest.LogCaptureFixture) -> None:
    w = World()
    lead, behind = w.submit("s", "p", run_id="lead"), w.submit("s", "q", run_id="behind")
    closing = w.close(math.inf)
    w.wait(_REMINDER - 0.1)
    assert warnings_in(caplog) == []
    w.wait(0.2)
    assert warnings_in(caplog) == ["closing waits for 2 runs: lead (active), behind (queued)"]
    w.finish(lead)
    w.wait(_REMINDER)
    assert warnings_in(caplog)[1:] == ["closing waits for 1 run: behind (active)"]
    assert not any(turn.covered for turn in w.agent.turns)
    w.finish(behind)
    assert closing.done()
    w.wait(10 * _REMINDER)
    assert len(warnings_in(caplog)) == 2
    w.end()


@pytest.mark.parametrize("more", [0, 1, 13])
def test_of_many_runs_the_first_are_named(more: int, caplog: pytest.LogCaptureFixture) -> None:
    w = World()
    runs = [w.submit("s", "p", run_id=f"r{n}", when_busy="queue") for n in range(_NAMED + more)]
    w.close(2 * _REMINDER)
    w.wait(_REMINDER)
    (said,) = warnings_in(caplog)
    named = ["r0 (active)", *(f"r{n} (queued)" for n in range(1, _NAMED))]
    rest = f" and {more} more" if more else ""
    assert said == f"closing waits for {len(runs)} runs: {', '.join(named)}{rest}"
    w.wait(_REMINDER)
    w.end()


def test_a_runner_that_swallowed_a_cancel_is_interrupted_again_and_again() -> None:
    stubborn = Stubborn(4)
    w = World(stubborn)
    run = w.submit("s", "p")
    closing = w.close(0)
    assert stubborn.interrupts == 1
    for interrupts in (2, 3):
        w.wait(_REMINDER)
        assert stubborn.interrupts == interrupts
    assert not closing.done()
    w.wait(_REMINDER)
    assert closing.done()
    assert came(run) == ("as if nothing had happened", None, True)
    w.end()


def test_no_turn_is_interrupted_before_the_time_to_finish_is_up() -> None:
    stubborn = Stubborn(2)
    w = World(stubborn)
    w.submit("s", "p")
    closing = w.close(3 * _REMINDER + 0.5)
    for _ in range(3):
        w.wait(_REMINDER)
        assert stubborn.interrupts == 0
    w.wait(0.5)
    assert stubborn.interrupts == 1
    w.wait(_REMINDER)
    assert closing.done()
    w.end()


def test_a_turn_that_is_being_written_is_named_and_not_interrupted(caplog: pytest.LogCaptureFixture) -> None:
    store = SlowMessages()
    w = World(messages=store, settle_timeout=100)
    run = w.submit("s", "p", run_id="r")
    closing = w.close(0)
    w.wait(_REMINDER)
    assert warnings_in(caplog) == ["closing waits for 1 run: r (active)"]
    assert len(store.puts) == 1
    store.gates[0].set_result(None)
    w.loop.settle()
    assert closing.done()
    assert came(run) == CANCELLED
    w.end()


@in_loop
async def test_a_close_without_a_deadline_sets_no_timer_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, delays = asyncio.get_running_loop(), list[float]()
    call_later = loop.call_later

    def noted(delay: float, *call: Any) -> asyncio.TimerHandle:
        delays.append(delay)
        return call_later(delay, *call)

    monkeypatch.setattr(loop, "call_later", noted)
    await Dispatcher(Agent()).aclose(finish=math.inf)
    assert delays == [_REMINDER]


# After the end.


@pytest.mark.parametrize("level", [logging.WARNING, logging.DEBUG])
@in_loop
async def test_nothing_is_recorded_after_the_end(level: int) -> None:
    logging.getLogger("turngate").setLevel(level)
    try:
        entries: list[dict[str, Any]] = []
        d = Dispatcher(Agent(), record=entries.append)
        run = await active(d, "s", "p", run_id="r")
        await d.aclose()
        assert entries[-1] == {"event": "end"}
        recorded = len(entries)
        assert not await d.cancel("s")
        assert not await d.cancel_run("r")
        assert not await d.cancel_all()
        assert await d.clear_queue("s") == []
        await run.close()
        await d.aclose()
        assert len(entries) == recorded
        assert await on_record(d, "s") == [("user", "p", None), ("assistant", "", "canceled")]
    finally:
        logging.getLogger("turngate").setLevel(logging.NOTSET)
