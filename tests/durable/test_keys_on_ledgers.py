"""Idempotency keys on ledgers: processes that share a key, answers that are lost, calls of several steps."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dispatching import Agent, echo, in_loop
from ledgers import MakeLedger, ledgers, on_each, still
from old_ledgers import DUMPS, load, new_database
from turngate import KeyConflict, OutcomeUnknown, State, UnknownRun
from turngate.durable import DurableDispatcher, LedgerUnavailable, PostgresLedger, SqliteLedger
from turngate.durable._swap import Unanswered
from turngate_verify.world.memory_ledger import MemoryLedger, Tables


def ids(covered: Any) -> list[str]:
    return [run.run_id for run in covered.runs]


@on_each
async def test_of_processes_that_use_one_key_at_once_one_acts_and_all_return_its_answer(
    make: MakeLedger,
) -> None:
    agent = Agent()
    async with DurableDispatcher(agent, make()) as one, DurableDispatcher(agent, make()) as two:
        for number in range(5):
            first = await one.submit("s", "p", run_id=f"first-{number}")
            await still(one, two)
            answers = await asyncio.gather(
                *[d.cancel("s", key=f"k{number}") for d in (one, two, one, two)],
                *[d.cancel_run("nobody", key=f"run-{number}") for d in (one, two)],
                *[d.clear_queue("t", key=f"clear-{number}") for d in (one, two)],
            )
            assert [ids(answer) for answer in answers[:4]] == [[f"first-{number}"]] * 4
            assert (await first).cancelled
            later = await two.submit("s", "p", run_id=f"later-{number}")
            await still(one, two)
            assert ids(await one.cancel("s", key=f"k{number}")) == [f"first-{number}"]
            agent.finish(later)
            assert (await later).outcome == "finished"


@on_each
async def test_of_two_requests_under_one_key_at_once_one_is_refused_and_does_nothing(
    make: MakeLedger,
) -> None:
    agent = Agent()
    async with DurableDispatcher(agent, make()) as one, DurableDispatcher(agent, make()) as two:
        runs = [await one.submit(session, "p", run_id=session) for session in ("s", "t")]
        await still(one, two)
        answers = await asyncio.gather(
            one.cancel("s", key="k"), two.cancel("t", key="k"), return_exceptions=True
        )
        refused = [isinstance(answer, KeyConflict) for answer in answers]
        assert sorted(refused) == [False, True]
        spared, covered = runs[refused.index(True)], runs[refused.index(False)]
        assert (await covered).cancelled
        agent.finish(spared)
        assert (await spared).outcome == "finished"


@on_each
async def test_a_key_outlives_every_process_and_the_runs_that_it_names(make: MakeLedger) -> None:
    agent = Agent()
    async with DurableDispatcher(agent, make()) as d:
        run = await d.submit("s", "p", run_id="r")
        await still(d)
        assert ids(await d.cancel("s", key="k")) == ["r"]
        await run
    async with DurableDispatcher(agent, make()) as d:
        again = await d.cancel("s", key="k")
        assert ids(again) == ["r"]
        assert (await again.runs[0].wait()).cancelled
        assert (await again.runs[0].cancel()).runs == []
        assert await d.knows_key("k")
        if not await d.purge(before=time.time() + 1):
            return  # the ledger in memory keeps everything
        (gone,) = (await d.cancel("s", key="k")).runs
        assert (gone.run_id, gone.session_id, gone.seq, gone.state) == ("r", "s", 1, State.COMPLETE)
        for call in (gone.wait(), anext(gone.stream())):
            with pytest.raises(UnknownRun):
                await asyncio.wait_for(call, 20)
        await gone.close()
        assert (await gone.cancel()).runs == []


@pytest.mark.requirement("R-KEY-6")
@on_each
async def test_an_interrupted_cancel_all_goes_on_and_then_covers_nothing_more(
    make: MakeLedger,
) -> None:
    agent = Agent()
    ledger: Any = make()
    sound = ledger.step
    broken = True

    async def step(ask: Any, decide: Any) -> Any:
        if broken and ask.session_id == "b" and ask.key is not None:
            raise LedgerUnavailable("on purpose")
        return await sound(ask, decide)

    ledger.step = step
    async with DurableDispatcher(agent, ledger) as d, DurableDispatcher(agent, make()) as other:
        runs = {name: await d.submit(name, "p", run_id=name) for name in "abc"}
        await still(d, other)
        with pytest.raises(LedgerUnavailable):
            await d.cancel_all(key="k")
        assert (await runs["a"]).cancelled
        runs["a again"] = await d.submit("a", "p", run_id="a again")
        runs["new"] = await other.submit("d", "p", run_id="new")
        await still(d, other)
        broken = False
        assert ids(await other.cancel_all(key="k")) == ["a", "b", "c"]
        assert [(await runs[name]).cancelled for name in "bc"] == [True, True]
        runs["b again"] = await d.submit("b", "p", run_id="b again")
        await still(d, other)
        answers = await asyncio.gather(d.cancel_all(key="k"), other.cancel_all(key="k"))
        assert [ids(answer) for answer in answers] == [["a", "b", "c"]] * 2
        with pytest.raises(KeyConflict):
            await d.cancel("a", key="k")
        for name in ("a again", "b again", "new"):
            agent.finish(runs[name])
            assert (await runs[name]).outcome == "finished"


@pytest.mark.parametrize("key", ["k", None])
@in_loop
async def test_a_step_whose_answer_was_lost_is_found_by_its_key_when_the_session_has_forgotten_it(
    key: str | None,
) -> None:
    tables = Tables(now=time.time)
    agent = Agent()
    lost = False

    def lose(ledger: MemoryLedger, kind: str) -> None:
        nonlocal lost
        if kind == "answer" and not lost:
            lost = True
            row = tables.sessions["s"]
            tables.sessions["s"] = row._replace(recent=(), version=row.version + 100)
            raise Unanswered

    async with DurableDispatcher(agent, MemoryLedger(tables)) as d:
        run = await d.submit("s", "p", run_id="r")
        await still(d)
        tables.trouble = lose
        if key is None:
            with pytest.raises(OutcomeUnknown):
                await d.cancel("s")
        else:
            assert ids(await d.cancel("s", key=key)) == ["r"]
            assert (await asyncio.wait_for(run.wait(), 20)).cancelled
        assert lost


@pytest.mark.requirement("R-KEY-5")
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_keys_that_are_older_than_a_day_are_forgotten_in_slices(kind: str, tmp_path: Path) -> None:
    dsn = new_database() if kind == "postgres" else ""

    def make() -> Any:
        return PostgresLedger(dsn, connections=2) if dsn else SqliteLedger(tmp_path / "ledger.db")

    @in_loop
    async def keep() -> None:
        async with DurableDispatcher(echo, make()) as d:
            for key in ("old", "young"):
                await d.cancel("s", key=key)

    @in_loop
    async def see_them_go() -> None:
        async with DurableDispatcher(echo, make(), poll=0.01) as d, asyncio.timeout(60):
            while await d.knows_key("old") or await d.knows_key("old 1199"):
                await asyncio.sleep(0.01)
            assert await d.knows_key("young")

    keep()
    many = "INSERT INTO {} SELECT 'old ' || n, '', 'r', '{{}}', '', at FROM {}, {} WHERE key = 'old'"
    if dsn:
        pytest.importorskip("asyncpg")
        asyncio.run(age_on_postgres(dsn, many))
    else:
        with closing(sqlite3.connect(tmp_path / "ledger.db")) as connection, connection:
            connection.execute("UPDATE operation_key SET at = at - 86500 WHERE key = 'old'")
            connection.execute("UPDATE operation_key SET at = at - 86300 WHERE key = 'young'")
            numbers = "WITH RECURSIVE c (n) AS (VALUES (0) UNION ALL SELECT n + 1 FROM c WHERE n < 1199) "
            connection.execute(numbers + many.format("operation_key", "operation_key", "c"))
    see_them_go()


async def age_on_postgres(dsn: str, many: str) -> None:
    import asyncpg  # noqa: PLC0415 - it may be missing

    connection = await asyncpg.connect(dsn)
    for key, seconds in (("old", 86_500), ("young", 86_300)):
        await connection.execute(
            f"UPDATE turngate.operation_key SET at = at - interval '{seconds} seconds' WHERE key = '{key}'"
        )
    table = "turngate.operation_key"
    await connection.execute(many.format(table, table, "generate_series(0, 1199) n"))
    await connection.close()


@pytest.mark.parametrize(
    "dump", [dump for dump in DUMPS if int(dump.stem.split("_")[1]) >= 4], ids=lambda dump: dump.stem
)
def test_a_key_kept_by_an_older_turngate_is_known(dump: Path, tmp_path: Path) -> None:
    ledger = load(dump, tmp_path)

    @in_loop
    async def know() -> None:
        await ledger.open()
        kept = await ledger.find_key("left behind")
        await ledger.close()
        assert kept is not None
        assert kept.answer == '{"runs": [], "known": true}'

    know()


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_key_is_stored_if_and_only_if_its_step_is(kind: str, tmp_path: Path) -> None:
    """A step that is not saved leaves no key: the worker counts as dead, and takes a new name."""
    with ledgers(kind, tmp_path) as make:

        @in_loop
        async def survive() -> None:
            agent = Agent()
            async with DurableDispatcher(agent, make()) as d, DurableDispatcher(agent, make()) as other:
                run = await other.submit("s", "p", run_id="r")
                await still(d, other)
                await d._ledger.retire(d._stepper.name)
                assert ids(await d.cancel("s", key="k")) == ["r"]
                assert (await run).cancelled
                assert await other.knows_key("k")

        survive()
