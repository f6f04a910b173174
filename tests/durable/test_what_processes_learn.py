"""What a process learns of runs on a ledger: nothing waits for ever, and nothing is missed without a word."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from dispatching import HANG, Agent, echo, in_loop
from ledgers import MakeLedger, on_each, open_transaction, still
from turngate import Delta, DispatcherClosed, RunComplete, State, SubscriberCutOff, Turn, UnknownRun
from turngate.durable import DurableDispatcher, LedgerUnavailable, OutcomeUnknown
from turngate.durable._swap import Unanswered
from turngate_verify.world.memory_ledger import MemoryLedger, Tables


async def until(condition: Callable[[], object]) -> None:
    """Wait for an outcome, as long as the test may take."""
    while not condition():
        await asyncio.sleep(0.005)


def two(make: MakeLedger, runner: Any, **options: Any) -> tuple[DurableDispatcher, DurableDispatcher]:
    options = {"poll": 0.05, **options}
    return DurableDispatcher(runner, make(), **options), DurableDispatcher(runner, make(), **options)


# Runs that are purged before this process has read their outcomes.


class Blind:
    """A ledger that answers no question about completions until it may, as that of a stopped process."""

    def __init__(self, ledger: Any) -> None:
        self.may_look = asyncio.Event()
        for name in ("find", "completions_after"):
            setattr(ledger, name, functools.partial(self._ask, getattr(ledger, name)))

    async def _ask(self, question: Any, *about: Any) -> Any:
        await self.may_look.wait()
        return await question(*about)


@pytest.mark.parametrize("how", ["wait", "run.wait", "stream", "await"])
@pytest.mark.parametrize("many", [False, True])
def test_waiting_for_a_run_that_was_purged_raises_unknown_run(how: str, many: bool) -> None:
    @in_loop
    async def check() -> None:
        tables = Tables(now=time.time)
        agent = Agent()
        one, other = two(lambda: MemoryLedger(tables), agent)
        async with one, other:
            others = [await one.submit(f"s{n}", "p") for n in range(501 if many else 0)]
            held = [await other.find(run.run_id) for run in others]
            waiters = [asyncio.ensure_future(run.wait()) for run in held if run is not None]
            run = await one.submit("s", "p", run_id="r")
            here = await other.find("r")
            assert here is not None
            if many:
                await until(lambda: other._worker.recovery._looked_until is not None)
            blind = Blind(other._ledger)

            async def read() -> list[str]:
                return [piece async for piece in here.stream()]

            calls: dict[str, Any] = {
                "wait": lambda: other.wait("r"), "run.wait": here.wait, "await": lambda: here, "stream": read,
            }  # fmt: skip
            waiting = asyncio.ensure_future(calls[how]())
            here.add_done_callback(lambda _: None)
            await asyncio.sleep(0.02)
            agent.finish(run)
            await run
            del tables.runs["r"], tables.complete["r"]  # as a purge does
            blind.may_look.set()
            with pytest.raises(UnknownRun, match="no longer kept"):
                await waiting
            with pytest.raises(UnknownRun):
                await other.wait("r")
            with pytest.raises(UnknownRun, match="no longer kept"):
                await here.wait()
            with pytest.raises(UnknownRun, match="no longer kept"):
                here.add_done_callback(lambda _: None)
            assert await other.find("r") is None
            assert here.state is State.COMPLETE
            assert "r" not in other._runs.waited_for
            assert "r" not in other._runs.unlooked
            for each in others:
                agent.finish(each)
            assert {complete.outcome for complete in await asyncio.gather(*waiters)} <= {"finished"}

    check()


@on_each
async def test_a_purge_wakes_waits_in_other_processes(make: MakeLedger) -> None:
    """With ledgers that purge: each of those who wait gets the outcome, or is told that it is gone."""
    if isinstance(make(), MemoryLedger):
        return
    agent = Agent()
    one, other = two(make, agent, poll=0.2)
    async with one, other:
        for number in range(10):
            run = await one.submit("s", "p", run_id=f"r{number}")
            await still(one)
            waiting = asyncio.ensure_future(other.wait(run.run_id))
            await asyncio.sleep(0.01 * number)
            agent.finish(run)
            await run
            await one.purge(before=time.time() + 60)
            with suppress(UnknownRun):
                assert (await waiting).outcome == "finished"


@on_each
async def test_a_run_id_used_again_after_a_purge_is_another_run(make: MakeLedger) -> None:
    if isinstance(make(), MemoryLedger):
        return
    async with DurableDispatcher(echo, make(), poll=0.05) as d:
        first = await d.submit("s", "old", run_id="r")
        old = await first
        assert await d.purge(before=time.time() + 60) == 1
        second = await d.submit("s", "new", run_id="r")
        assert second is not first
        assert (await second).text == "new"
        assert (await d.wait("r")).text == "new"
        assert first.complete == old


# Looks that fail.


@in_loop
async def test_a_failed_look_loses_no_outcome() -> None:
    tables = Tables(now=time.time)
    agent = Agent()
    one, other = two(lambda: MemoryLedger(tables), agent)
    async with one, other:
        runs = [await one.submit(f"s{n}", "p") for n in range(501)]
        held = [await other.find(run.run_id) for run in runs]
        late = await one.submit("late", "p", run_id="late")
        here = await other.find("late")
        waiters = [asyncio.ensure_future(run.wait()) for run in held if run is not None]
        await until(lambda: other._worker.recovery._looked_until is not None)
        agent.finish(late)
        await late
        await until(
            lambda: (other._worker.recovery._looked_until or (0, 0))[0] >= tables.complete["late"].position
        )
        find, failed = other._ledger.find, 0

        async def away(run_ids: Any) -> Any:
            nonlocal failed
            if "late" in run_ids and not failed:
                failed += 1
                raise LedgerUnavailable("away for a moment")
            return await find(run_ids)

        other._ledger.find = away  # type: ignore[method-assign]  # to fail once
        assert here is not None
        assert (await here.wait()).outcome == "finished"
        assert failed
        for run in runs:
            agent.finish(run)
        await asyncio.gather(*waiters)
        assert not other._runs.waited_for
        assert not other._runs.unlooked


@on_each
async def test_waiting_for_many_runs_does_not_depend_on_a_transaction_elsewhere(make: MakeLedger) -> None:
    agent = Agent()
    one, other = two(make, agent, poll=0.1)
    async with one, other:
        await one.submit("busy", "p")
        many = await asyncio.gather(
            *[other.submit("busy", "p", when_busy="queue", run_id=f"q{n}") for n in range(520)]
        )
        runs = [await one.submit(f"s{n}", "p") for n in range(20)]
        held = [await other.find(run.run_id) for run in runs]
        waiters = [asyncio.ensure_future(run.wait()) for run in held if run is not None]
        await until(lambda: other._worker.recovery._looked_until is not None)
        async with open_transaction(one._ledger):
            for run in runs:
                agent.finish(run)
            assert len(await asyncio.gather(*waiters)) == 20
        await one.cancel("busy")
        await asyncio.gather(*(run.wait() for run in many))


@on_each
async def test_a_failed_checkpoint_is_retried(make: MakeLedger) -> None:
    agent = Agent()

    async def runner(turn: Turn) -> str:
        turn.write("an hour of work")
        turn.keep({"pages": 3})
        return str(await agent(turn))

    one, other = two(make, runner, checkpoint=0.02)
    checkpoint, calls = one._ledger.checkpoint, 0

    async def failing(points: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise LedgerUnavailable("away for a moment")
        await checkpoint(points)

    ledger: Any = one._ledger
    ledger.checkpoint = failing
    async with one, other:
        run = await one.submit("s", "p")
        await still(one)
        while (await other.session("s")).text != "an hour of work":
            await asyncio.sleep(0.01)
        tried = calls
        await asyncio.sleep(0.1)
        assert calls == tried == 2  # and what is there already is not written again
        agent.finish(run)
        await run


# What is seen of runs that are in flight elsewhere.


@on_each
async def test_a_run_is_shown_as_it_is_on_the_ledger(make: MakeLedger) -> None:
    agent = Agent()
    one, other = two(make, agent, poll=3_600)
    async with one, other:
        lead = await one.submit("s", "p", run_id="lead")
        queued = await other.submit("s", "p", run_id="queued", when_busy="queue")
        accepted = await other.accept("s", "p", run_id="accepted")
        assert (queued.state, accepted.state) == (State.QUEUED, State.ACCEPTED)
        entered = await one.find("accepted")
        assert entered is not None
        assert await one.enter(entered) is State.QUEUED
        assert (await other.find("accepted")) is accepted
        assert accepted.state is State.QUEUED
        agent.finish(lead)
        await lead
        await still(one)
        view = await other.session("s")
        assert view.active is queued
        assert (queued.state, accepted.state) == (State.ACTIVE, State.QUEUED)
        (all_of_them,) = await other.sessions()
        assert [run.run_id for run in all_of_them.queued] == ["accepted"]
        await one.cancel("s")
        for run_id in ("queued", "accepted"):
            await one.wait(run_id)
            found = await other.find(run_id)
            assert found is not None
            assert (found.state, found.complete is not None) == (State.COMPLETE, True)


# Turns that wait for a place.


@pytest.mark.requirement("R-PLC-3")
@pytest.mark.parametrize("how", ["cancel", "cancel_run", "stop", "send_now"])
@on_each
async def test_a_turn_in_line_that_another_process_cancels_is_over_at_once(
    make: MakeLedger, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its process learns of it while the place is still taken, and the runner is never called."""
    agent, called = Agent(), list[RunComplete]()
    one, other = two(make, agent, turns_limit=1)
    async with one, other:
        holder = await one.submit("with the place", "p", run_id="holder")
        await until(lambda: agent.turns)
        run = await one.submit("s", "in line", run_id="run")
        run.add_done_callback(called.append)
        behind = await one.submit("s", "behind", run_id="behind", when_busy="queue")
        assert run.state is State.ACTIVE
        if how in ("cancel_run", "send_now"):
            await getattr(other, how)("run" if how == "cancel_run" else "behind")
        else:
            await getattr(other, how)("s")
        complete = await run.wait()
        assert (complete.outcome, complete.text, called) == ("cancelled", "", [complete])
        assert [piece async for piece in run.stream()] == []
        assert not holder.complete
        await other.cancel("s")
        await behind.wait()
        agent.finish(holder)
        await holder
        last = await one.submit("s", "last")  # the place is free again
        await until(lambda: agent.turns[-1].run.prompt == "last")
        assert "in line" not in agent.prompts
        agent.finish(last)
        await last
    assert [each.levelname for each in caplog.records if each.levelname != "INFO"] == []


# Answers that are lost.


@pytest.mark.parametrize("moves", [False, True])
@pytest.mark.parametrize("early_bird", [False, True], ids=["alone", "behind another subscriber"])
@pytest.mark.parametrize("answer", ["late", "lost", "never", "odd"])
@on_each
async def test_a_subscription_made_during_a_finish_gets_its_run_complete(
    make: MakeLedger, answer: str, early_bird: bool, moves: bool
) -> None:
    """The finish is saved, and as far as the process knows the run is not complete."""
    agent = Agent()
    async with DurableDispatcher(agent, make(), poll=0.05) as d:
        early = d.subscribe(moves=moves) if early_bird else None
        run = await d.submit("s", "p", run_id="r")
        await still(d)
        saved, may_answer = asyncio.Event(), asyncio.Event()
        spoil_answer(d._ledger, answer, saved, may_answer)
        agent.finish(run)
        await saved.wait()
        if early is not None:
            await _next_complete(early)
        assert run.complete is None
        events = d.subscribe(moves=moves)
        may_answer.set()
        complete = await run
        assert await _next_complete(events) == complete
        after = await d.submit("s", "p", run_id="after")
        await still(d)
        agent.finish(after)
        assert (await _next_complete(events)).run_id == "after"
        assert not d._feed.hooked


def spoil_answer(ledger: Any, answer: str, saved: asyncio.Event, may_answer: asyncio.Event) -> None:
    """Let the answer to the next step that completes something come late, or not at all."""
    swaps = hasattr(ledger, "save")
    name = "save" if swaps and answer == "lost" else "step"
    original = getattr(ledger, name)

    async def spoilt(ask: Any, given: Any) -> Any:
        came_of = await original(ask, given)
        changes = given if name == "save" else came_of.changes
        if changes is not None and changes.done and not saved.is_set():
            saved.set()
            await may_answer.wait()
            if answer == "lost":
                raise Unanswered if name == "save" else OutcomeUnknown("the answer was lost")
            if answer == "never":
                raise OutcomeUnknown("nobody knows")
            if answer == "odd":
                raise ArithmeticError("on purpose")
        return came_of

    setattr(ledger, name, spoilt)


async def _next_complete(events: Any) -> RunComplete:
    async with asyncio.timeout(HANG):
        while not isinstance(event := await anext(events), RunComplete):
            pass
    return event


# What is held back, and what is left behind.


@on_each
async def test_the_text_held_back_at_a_gate_is_bounded_and_drops_are_counted(make: MakeLedger) -> None:
    go_on = asyncio.Event()

    async def runner(turn: Turn) -> str:
        for _ in range(50):
            turn.write("x" * 100)
        turn.emit("note", {"n": 1})
        await go_on.wait()
        return "done"

    async with DurableDispatcher(runner, make(), delta_limit=10, delta_bytes=1_000_000) as d:
        mine, others, moves = d.subscribe("s"), d.subscribe("other"), d.subscribe("s", moves=True)
        await d.session("s")
        await hold_back(d)
        run = await d.submit("s", "p")
        await until(lambda: mine.dropped)
        await until(
            lambda: mine.dropped + sum(len(each) for _, each in d._feed.delivery.gates.values()) == 51
        )
        assert (mine.dropped, moves.dropped, others.dropped) == (41, 41, 0)
        assert d._feed.delivery.held == 10
        let_go(d)
        go_on.set()
        complete = await run
        deltas = [await anext(mine) for _ in range(10)]
        assert [event.offset for event in deltas if isinstance(event, Delta)] == [*range(0, 1_000, 100)]
        assert await _next_complete(mine) == await _next_complete(moves) == complete
        assert (d._feed.delivery.held, d._feed.delivery.held_bytes, d._feed.delivery.gates) == (0, 0, {})


async def hold_back(d: DurableDispatcher) -> None:
    """Keep the horizon where it is, as a transaction that is open elsewhere does."""
    ledger: Any = d._ledger
    horizon = (await ledger.read_point()).horizon
    finished, told = ledger.completions_after, ledger.history_after

    def restore() -> None:
        ledger.completions_after, ledger.history_after = finished, told

    d.__dict__["let_go"] = restore

    async def finished_so_far(after: Any, limit: int) -> Any:
        purged, _, found = await finished(after, limit)
        return purged, horizon, [each for each in found if each.position < horizon]

    async def told_so_far(after: Any, limit: int) -> Any:
        purged, _, found = await told(after, limit)
        return purged, horizon, [each for each in found if each.position < horizon]

    ledger.completions_after, ledger.history_after = finished_so_far, told_so_far


def let_go(d: DurableDispatcher) -> None:
    d.__dict__["let_go"]()


@on_each
async def test_a_horizon_that_does_not_move_is_not_polled_constantly(make: MakeLedger) -> None:
    agent = Agent()
    async with DurableDispatcher(agent, make(), poll=3_600) as d, d.subscribe() as events:
        await d.session("s")
        await hold_back(d)
        run = await d.submit("s", "p")
        read, asked = d._ledger.history_after, 0

        async def counted(after: Any, limit: int) -> Any:
            nonlocal asked
            asked += 1
            return await read(after, limit)

        d._ledger.history_after = counted  # type: ignore[method-assign]  # to count
        await asyncio.sleep(1.0)
        assert 0 < asked < 50  # not once in five milliseconds
        let_go(d)
        agent.finish(run)
        assert await _next_complete(events) == await run


@pytest.mark.parametrize("moves", [False, True, None], ids=["completes", "moves", "both"])
@on_each
async def test_hooks_leave_nothing_behind(make: MakeLedger, moves: bool | None) -> None:
    async with DurableDispatcher(echo, make(), poll=0.05) as d:
        subscriptions = [d.subscribe(moves=each) for each in ((False, True) if moves is None else (moves,))]
        hooked: list[RunComplete] = []
        for number in range(20):
            await d.ask(f"s{number}", "p", on_complete=hooked.append)
        last = await d.ask("last", "p")
        for events in subscriptions:
            told = [await _next_complete(events)]
            while told[-1] != last:
                told.append(await _next_complete(events))
            assert len(told) == (21 if events.moves else 1)
        assert len(hooked) == 20
        await until(lambda: not d._feed.hooked)


# The end.


@on_each
async def test_a_reader_of_text_gets_an_error_when_the_dispatcher_closes_first(make: MakeLedger) -> None:
    agent = Agent()
    one, other = two(make, agent)
    async with one:
        await one.submit("s", "p", run_id="r")
        async with other:
            here = await other.find("r")
            assert here is not None
            reading = asyncio.ensure_future(anext(here.stream()))
            await asyncio.sleep(0.02)
        with pytest.raises(DispatcherClosed):
            await reading


@pytest.mark.parametrize("times", [3, 1_000_000])
@in_loop
async def test_a_subscription_that_misses_the_last_events_at_the_close_is_cut_off(times: int) -> None:
    ledger: Any = MemoryLedger(Tables())
    d = DurableDispatcher(echo, ledger, poll=3_600)
    async with d:
        events = d.subscribe()
        await d.session("s")
        finished, failed = ledger.history_after, 0

        async def failing(after: Any, limit: int) -> Any:
            nonlocal failed
            failed += 1
            if failed <= times:
                raise LedgerUnavailable("on purpose")
            return await finished(after, limit)

        ledger.history_after = failing
        complete = await d.ask("s", "p")
    if times == 3:
        assert [event async for event in events] == [complete]
    else:
        with pytest.raises(SubscriberCutOff, match="on purpose"):
            await anext(events)
    assert not ledger._open


@on_each
async def test_completions_end_with_the_dispatcher_at_any_moment(make: MakeLedger) -> None:
    d = DurableDispatcher(echo, make(), poll=0.01)
    async with d:
        complete = await d.ask("s", "p")
        reading = [asyncio.ensure_future(_all(d.completions())) for _ in range(20)]
        await asyncio.sleep(0.02)
    assert all(read in ([], [complete]) for read in await asyncio.gather(*reading))


async def _all(completions: Any) -> list[RunComplete]:
    return [complete async for _, complete in completions]
