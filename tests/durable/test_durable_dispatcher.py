"""Several processes on one ledger: what callers, and a server, see of it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from pathlib import Path
from typing import Any

import pytest

from dispatching import Agent, echo, in_loop
from ledgers import KINDS, MakeLedger, ledgers, on_each, still
from turngate import CursorExpired, DispatcherClosed, Moved, RunComplete, Turn, UnknownRun, WouldDeadlock
from turngate._messages import of_turn
from turngate.durable import DurableDispatcher, LedgerUnavailable, PostgresLedger, SqliteLedger
from turngate_verify.world.memory_ledger import MemoryLedger


def test_the_constructor_does_nothing(tmp_path: Path) -> None:
    DurableDispatcher(echo, SqliteLedger(tmp_path / "ledger.db"))
    assert not [*tmp_path.iterdir()]
    with pytest.raises(TypeError):
        DurableDispatcher(echo, SqliteLedger(tmp_path / "ledger.db"), messages=None)  # type: ignore[call-arg]  # wrong on purpose


@in_loop
async def test_a_ledger_that_cannot_be_reached_is_unavailable_and_may_be_reached_later() -> None:
    d = DurableDispatcher(echo, PostgresLedger("postgresql://nobody@127.0.0.1:1/nothing"))
    for _ in range(2):
        with pytest.raises(LedgerUnavailable):
            await d.accept("s", "p")
    await d.aclose()


@on_each
async def test_a_run_is_found_waited_for_and_repeated_in_another_process(make: MakeLedger) -> None:
    agent = Agent()
    async with DurableDispatcher(agent, make()) as one, DurableDispatcher(agent, make(), poll=0.02) as two:
        run = await one.submit("s", "p", run_id="r")
        await still(one)
        waiting = asyncio.create_task(two.wait("r"))
        again = await two.accept("s", "p", run_id="r")
        assert (again.run_id, again.seq) == ("r", 1)
        found = await two.find("r")
        assert found is again
        with pytest.raises(UnknownRun):
            await two.wait("nobody")
        agent.finish(run)
        assert await waiting == await run == await again


@on_each
async def test_a_cancel_in_one_process_interrupts_the_turn_in_another(make: MakeLedger) -> None:
    agent = Agent()
    async with DurableDispatcher(agent, make(), poll=0.02) as one, DurableDispatcher(agent, make()) as two:
        run = await one.submit("s", "p", run_id="r")
        await still(one)
        assert [each.run_id for each in (await two.cancel("s")).runs] == ["r"]
        assert (await run).cancelled
        later = await one.submit("s", "later")
        await still(one)
        agent.finish(later)
        assert (await later).outcome == "finished"


@on_each
async def test_subscribers_and_completions_get_the_runs_of_every_process(make: MakeLedger) -> None:
    async with DurableDispatcher(echo, make()) as one, DurableDispatcher(echo, make(), poll=0.02) as two:
        async with two.subscribe() as events, two.subscribe(moves=True) as moves:
            await two.session("s")  # from here on
            complete = await one.ask("s", "p", run_id="r")
            assert await anext(events) == complete
            told = [await anext(moves) for _ in range(3)]
        assert [event.event for event in told if isinstance(event, Moved)] == ["accept", "enter"]
        assert told[2] == complete
        cursor, first = await anext(two.completions())
        assert first == complete
        second = await one.ask("s", "q")
        assert (await anext(one.completions(after=cursor)))[1] == second
        with pytest.raises(CursorExpired):
            await anext(two.completions(after="another.1.0"))


@pytest.mark.parametrize("kind", KINDS)
def test_many_awaited_runs_are_found_by_reading_completions(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turngate.durable._recovery._FEW", 2)

    @in_loop
    async def check(make: MakeLedger) -> None:
        agent = Agent()
        one, two = (DurableDispatcher(agent, make(), poll=0.02) for _ in range(2))
        async with one, two:
            runs = [await one.submit(f"s{number}", "p", run_id=f"r{number}") for number in range(8)]
            await still(one)
            found = [await two.find(run.run_id) for run in runs]
            waiting = [asyncio.create_task(two.wait(f"r{number}")) for number in range(4)]
            while two._worker.recovery._looked_until is None:
                await asyncio.sleep(0.005)
            for run in runs:
                agent.finish(run)
            completes = [await run for run in runs]
            assert await asyncio.gather(*waiting) == completes[:4]
            assert [await each for each in found[4:] if each is not None] == completes[4:]

    with ledgers(kind, tmp_path) as make:
        check(make)


@on_each
async def test_queued_runs_stay_when_a_process_closes_and_run_in_the_next(make: MakeLedger) -> None:
    agent = Agent()
    async with DurableDispatcher(agent, make()) as d:
        turn = await d.submit("s", "turn", run_id="turn")
        behind = await d.submit("s", "behind", run_id="behind", when_busy="queue")
        accepted = await d.accept("t", "accepted", run_id="accepted")
    assert (await turn).cancelled
    for run in (behind, accepted):
        with pytest.raises(DispatcherClosed):
            await run
    async with DurableDispatcher(echo, make(), poll=0.02) as d:
        assert (await d.wait("behind")).text == "behind"
        assert (await d.wait("accepted")).text == "accepted"


@on_each
async def test_an_accepted_run_that_its_holder_does_not_enter_is_entered(make: MakeLedger) -> None:
    async with DurableDispatcher(echo, make(), poll=0.02, enter_timeout=0.05) as d:
        run = await d.accept("s", "p")
        assert (await run).text == "p"


@on_each
async def test_a_turn_that_waits_for_a_place_is_cancelled_without_its_runner(make: MakeLedger) -> None:
    agent = Agent()
    async with DurableDispatcher(agent, make(), turns_limit=1) as d:
        first = await d.submit("s", "first")
        await still(d)
        waiting = await d.submit("t", "waiting")
        assert (await d.cancel_run(first.run_id, waiting_only=True)).runs == []
        assert (await d.cancel_run(waiting.run_id, waiting_only=True)).runs == [waiting]
        assert (await waiting).cancelled
        third = await d.submit("t", "third")
        agent.finish(first)
        await first
        while len(agent.turns) < 2:
            await asyncio.sleep(0.002)
        agent.finish(third)
        assert (await third).outcome == "finished"
        assert agent.prompts == ["first", "third"]


@on_each
async def test_cancelling_a_caller_leaves_its_run_going_on(make: MakeLedger) -> None:
    async with DurableDispatcher(echo, make()) as d:
        submitting = asyncio.create_task(d.submit("s", "p", run_id="r"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        submitting.cancel()
        await asyncio.wait({submitting})
        again = await d.submit("s", "p", run_id="r")
        assert (await again).text == "p"


@on_each
async def test_odd_text_comes_back_as_it_was(make: MakeLedger) -> None:
    async with DurableDispatcher(echo, make()) as d:
        for odd in (
            *("nul \0", "half \ud800", "\x1b[1m", "ä ∀ 🙂"),
            *('"', "\\", '\\"', '{"a",b}', "NULL", " , ", "a\n\tb", "\\n"),
        ):
            complete = await d.ask(odd, odd, run_id=odd)
            assert (complete.session_id, complete.run_id, complete.text) == (odd, odd, odd)
            assert [each.text for each in await d.messages.list(odd)] == [odd, odd]


class Text(str):
    """A subclass of str."""

    __slots__ = ()


@on_each
async def test_text_of_another_kind_is_text(make: MakeLedger) -> None:
    async def answer(turn: Turn) -> str:
        return Text('a "b", {c}')

    async with DurableDispatcher(answer, make()) as d:
        assert (await d.ask(Text("s"), Text('"p"'), run_id=Text("r"))).text == 'a "b", {c}'
        assert [each.text for each in await d.messages.list("s")] == ['"p"', 'a "b", {c}']


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "memory"])
def test_purging_keeps_runs_in_flight_and_forgets_the_rest(kind: str, tmp_path: Path) -> None:
    @in_loop
    async def check(make: MakeLedger) -> None:
        agent = Agent()
        async with DurableDispatcher(agent, make()) as d:
            run = await d.submit("s", "p", run_id="kept")
            await still(d)
            agent.finish(run)
            await run
            cursor, _ = await anext(d.completions())
            waiting = await d.submit("t", "q", run_id="flying")
            await still(d)
            assert await d.purge(before=time.time() + 60) == 1
            assert await d.find("kept") is not None  # a caller holds the handle
            assert await d.messages.list("s") == []
            again = await d.accept("s", "another payload", run_id="fresh")
            assert again.seq == 1
            agent.finish(waiting)
            assert isinstance(await waiting, RunComplete)
            await again.close()
            with pytest.raises(CursorExpired):
                await anext(d.completions(after=cursor.replace(cursor.split(".")[1], "0")))

    with ledgers(kind, tmp_path) as make:
        check(make)


@pytest.mark.parametrize("kind", ["postgres"])
def test_a_process_whose_lease_is_lost_gives_up_its_turns_and_comes_back(kind: str, tmp_path: Path) -> None:
    @in_loop
    async def check(make: MakeLedger) -> None:
        agent = Agent()
        async with DurableDispatcher(agent, make(), poll=0.02, lease=0.3) as d:
            run = await d.submit("s", "p", run_id="r")
            await still(d)
            name, ledger = d._stepper.name, d._ledger
            assert isinstance(ledger, PostgresLedger)
            await ledger._working().fetch(f"DELETE FROM {ledger.schema}.worker")
            complete = await run
            assert complete.outcome == "lost"
            assert (await d.cancel("s")).runs == []
            while d._stepper.name <= name:  # a slow machine may have lost the next lease, too
                await asyncio.sleep(0.02)

    with ledgers(kind, tmp_path) as make:
        check(make)


class Odd:
    """A method of a ledger that raises an unexpected error a few times."""

    def __init__(self, ledger: Any, method: str, times: int) -> None:
        self._method, self._left = getattr(ledger, method), times
        self.raised = 0
        setattr(ledger, method, self)

    async def __call__(self, *about: Any) -> Any:
        if self.raised < self._left:
            self.raised += 1
            raise ArithmeticError("on purpose")
        return await self._method(*about)


@pytest.mark.parametrize("method", ["expire_workers", "find", "read_point", "history_after"])
@pytest.mark.parametrize("kind", KINDS)
def test_unexpected_errors_of_a_ledger_stop_nothing_for_long(method: str, kind: str, tmp_path: Path) -> None:
    @in_loop
    async def check(make: MakeLedger) -> None:
        agent = Agent()
        one, two = DurableDispatcher(agent, make(), poll=0.02), DurableDispatcher(agent, make(), poll=0.02)
        async with one, two:
            run = await one.submit("s", "p", run_id="r")
            await still(one)
            odd = Odd(two._ledger, method, 3)
            events, completes = two.subscribe(moves=True), two.subscribe()
            while odd.raised < 3:
                with contextlib.suppress(ArithmeticError, LedgerUnavailable, TimeoutError):
                    async with asyncio.timeout(0.05):
                        await two.wait("r")
            await two.session("s")  # the subscriptions have begun
            agent.finish(run)
            complete = await two.wait("r")
            while await anext(events) != complete:
                pass
            assert await anext(completes) == complete

    with ledgers(kind, tmp_path) as make:
        check(make)


@on_each
async def test_an_orphan_that_cannot_be_recovered_is_tried_once_per_poll(make: MakeLedger) -> None:
    ledger = make()
    async with DurableDispatcher(echo, ledger, poll=3_600, enter_timeout=0.001) as d:
        d._worker.recovery.stop()  # so that no other task recovers it
        await d.accept("s", "p", run_id="r")
        await asyncio.sleep(0.01)
        odd = Odd(ledger, "step", 1_000)
        await d._worker.recovery._recover_orphans()
        assert odd.raised == 1
        odd.raised = 1_000
        await d._worker.recovery._recover_orphans()
        assert (await d.wait("r")).text == "p"


class Proxy:
    """What a factory may give for a task: just enough to wait for its end, or to cancel it."""

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self._task = task
        self.add_done_callback = task.add_done_callback
        self.cancel = task.cancel
        self.cancelled = task.cancelled
        self.set_name = task.set_name  # which the loop calls, from Python 3.13 on


def proxied(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> Any:
    return Proxy(asyncio.Task(coroutine, loop=loop, **options))


@on_each
async def test_a_factory_may_give_something_else_for_the_task_of_a_turn(make: MakeLedger) -> None:
    loop = asyncio.get_running_loop()
    async with DurableDispatcher(echo, make()) as d:
        await d.ask("s", "opened")
        loop.set_task_factory(proxied)
        try:
            complete = await d.ask("s", "p")
        finally:
            loop.set_task_factory(None)
        assert (complete.text, complete.error) == ("p", None)
        assert (await d.ask("s", "q")).text == "q"


# What a server asks of a dispatcher on a ledger beside the contract.


async def quick(turn: Turn) -> str:
    return "done"


@on_each
async def test_cursors_sort_in_the_order_of_the_completions(make: MakeLedger) -> None:
    async with DurableDispatcher(quick, make(), poll=0.05) as d:
        begin = await d.settled_cursor()
        for number in range(12):
            await d.ask("s", str(number))
        end = await d.settled_cursor()
        cursors = [begin, *[cursor async for cursor, _ in d.completions(begin, until=end)]]
        assert len(cursors) == 13
        assert sorted({*cursors}, key=d.cursor_order) == cursors
        assert d.cursor_order(end) >= d.cursor_order(cursors[-1])
        for wrong in ("", "x", "lost.1", "x.1.y"):
            with pytest.raises(CursorExpired):
                d.cursor_order(wrong)


@on_each
async def test_functions_called_before_the_close_can_read_the_ledger(make: MakeLedger) -> None:
    read: list[str] = []
    async with DurableDispatcher(quick, make(), poll=0.05) as d, d.subscribe():
        await d.ask("s", "x", run_id="r")

        async def look() -> None:
            read.extend(complete.run_id for _, complete in [each async for each in d.completions(until=end)])

        end = await d.end_cursor()
        d.call_before_close(look)
        await d.aclose()
    assert read == ["r"]


# The messages of a run on a ledger, however the run has ended, and what a purge leaves of them.


@on_each
async def test_the_messages_of_a_run_are_those_of_its_turn_however_it_ended(make: MakeLedger) -> None:
    agent = Agent()
    async with DurableDispatcher(agent, make()) as d:
        on_entry = await d.accept("s", "on entry", run_id="cancelled on entry")
        await d.cancel("s")
        await d.enter(on_entry)
        lead = await d.submit("s", "lead", run_id="lead")
        await still(d)
        for name in ("folded", "also folded"):
            await d.submit("s", name, run_id=name)
        await d.submit("s", "behind", run_id="behind", when_busy="queue")
        assert len(await agent.turns[-1].fold()) == 2
        agent.turns[-1].keep({"n": 1})
        agent.finish(lead)
        await lead
        await still(d)
        cleared = await d.submit("s", "cleared", run_id="cleared", when_busy="queue")
        assert await d.clear_queue("s") == [cleared]
        await (await d.accept("s", "released", run_id="released")).close()
        await d.cancel("s")
        await d.wait("behind")
        everything = await d.messages.list("s")
        written = {"cancelled on entry": 2, "lead": 4, "folded": 4, "also folded": 4, "behind": 2}
        for name in (*written, "cleared", "released", "unknown"):
            messages = await d.messages.of_run(name)
            assert messages == of_turn(everything, name), name
            assert len(messages) == written.get(name, 0), name
        assert (await d.messages.of_run("folded"))[-1].data == {"n": 1}
        if not isinstance(d._ledger, MemoryLedger):  # which forgets nothing
            assert await d.purge(before=time.time() + 60) == 7
            assert await d.messages.list("s") == []
            assert [await d.messages.of_run(name) for name in written] == [[]] * len(written)


# A runner that waits for its own session is told so, although another process holds what it waits for.


@on_each
async def test_a_run_of_another_process_is_looked_up(make: MakeLedger) -> None:
    refused: list[str] = []
    released: list[str] = []

    async def agent(turn: Turn) -> str:
        if turn.run.prompt == "first":
            behind = await other.accept("s", "second")  # the process of this turn has not seen it
            with pytest.raises(WouldDeadlock) as wrong:
                await here.wait(behind.run_id)
            refused.append(str(wrong.value))
            handle = await here.find(behind.run_id)
            assert handle is not None
            await behind.close()  # the handle here is not told at once
            released.append((await handle).outcome)
        return turn.run.prompt

    logging.disable()
    try:
        async with DurableDispatcher(agent, make()) as here, DurableDispatcher(agent, make()) as other:
            async with asyncio.timeout(60):
                assert (await here.ask("s", "first")).text == "first"
                assert (await other.ask("elsewhere", "second")).text == "second"
    finally:
        logging.disable(logging.NOTSET)
    assert len(refused) == 1
    assert "session 's'" in refused[0]
    assert released == ["released"]
