"""Purges: slice by slice, beside everything else, and never hiding a RunComplete from a reader in silence."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dispatching import echo, in_loop
from ledgers import spec_of
from old_ledgers import new_database
from surroundings import ROOT
from turngate import CursorExpired
from turngate.durable import (
    DurableDispatcher,
    LedgerUnavailable,
    PostgresLedger,
    PurgeCutShort,
    SqliteLedger,
    _sql,
)
from turngate.durable._swap import Unanswered

ENGINES = ("sqlite", "postgres")
LATER = 60.0
"""Everything that is complete was complete before in so many seconds."""


def make_ledger(engine: str, folder: Path) -> Any:
    if engine == "sqlite":
        return SqliteLedger(folder / "ledger.db", synchronous="NORMAL")
    return PostgresLedger(new_database(), connections=2)


def another(ledger: Any) -> Any:
    return SqliteLedger(ledger.path) if isinstance(ledger, SqliteLedger) else PostgresLedger(ledger.dsn)


def on_engines(test: Any) -> Any:
    @pytest.mark.parametrize("engine", ENGINES)
    def wrapper(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(_sql, "_SLICE", 10)
        in_loop(test)(make_ledger(engine, tmp_path))

    wrapper.__name__ = test.__name__
    return wrapper


async def complete(d: DurableDispatcher, number: int, name: str = "r") -> None:
    async with asyncio.TaskGroup() as group:
        for n in range(number):
            group.create_task(d.ask(f"{name}-session-{n % 30}", "p", run_id=f"{name}-{n}"))


async def kept(d: DurableDispatcher) -> set[str]:
    end = await d.end_cursor()
    return {each.run_id async for _, each in d.completions(until=end)}


@on_engines
async def test_a_purge_goes_slice_by_slice_and_others_get_their_turn(ledger: Any) -> None:
    async with DurableDispatcher(echo, ledger) as d, DurableDispatcher(echo, another(ledger)) as other:
        await complete(d, 200)
        await asyncio.sleep(0.05)
        before = time.time()  # not later: what is asked meanwhile would have to be purged too, without an end
        seen: list[int] = []
        asked = 0

        async def keep_asking() -> None:
            nonlocal asked
            while True:
                await other.ask("meanwhile", "p")
                asked += 1

        asking = asyncio.create_task(keep_asking())
        try:
            gone = await d.purge(before=before, progress=seen.append)
        finally:
            asking.cancel()
        await asyncio.wait([asking])
        assert asked > 0
        assert seen == sorted(set(seen))
        assert seen[-1] == gone >= 200
        assert len(seen) >= 20
        assert not await kept(d) & {f"r-{n}" for n in range(200)}
        assert await d.messages.list("r-session-1") == []
        assert (await d.ask("r-session-1", "p")).seq == 1  # the session is gone too


@on_engines
async def test_a_purge_takes_what_was_complete_in_time_and_nothing_else(ledger: Any) -> None:
    async with DurableDispatcher(echo, ledger) as d:
        await complete(d, 40, "old")
        await asyncio.sleep(0.05)
        before = time.time()
        await asyncio.sleep(0.05)
        await complete(d, 40, "new")
        held = await d.accept("old-session-3", "p", run_id="held")
        assert await d.purge(before=before) == 40
        assert await kept(d) == {f"new-{n}" for n in range(40)}
        assert (await d.ask("old-session-3", "p")).seq > 2  # a session with a run in flight stays
        assert (await d.ask("old-session-1", "p")).seq == 1
        assert (await d.ask("new-session-1", "p")).seq > 1
        assert [each.text for each in await d.messages.of_run("new-0")] == ["p", "p"]
        await d.enter(held)
        assert (await held.wait()).outcome == "finished"
        assert await d.purge(before=before) == 0


@on_engines
async def test_a_purge_that_is_cut_short_says_what_is_gone_and_another_takes_the_rest(ledger: Any) -> None:
    fetch, slices = ledger.fetch, 0

    async def failing(name: str, *about: object) -> Any:
        nonlocal slices
        slices += name == "purge_look_at_runs"
        if slices == 4:
            slices += 1
            raise LedgerUnavailable("the ledger is away")
        return await fetch(name, *about)

    async with DurableDispatcher(echo, ledger) as d:
        await complete(d, 60)
        ledger.fetch = failing
        with pytest.raises(PurgeCutShort, match="the ledger is away") as cut_short:
            await d.purge(before=time.time() + LATER)
        gone = cut_short.value.purged
        assert 0 < gone < 60
        assert len(await kept(d)) == 60 - gone
        assert await d.purge(before=time.time() + LATER) == 60 - gone
        slices = 3
        with pytest.raises(LedgerUnavailable) as nothing_done:
            await d.purge(before=time.time() + LATER)
        assert not isinstance(nothing_done.value, PurgeCutShort)


@pytest.mark.parametrize("saved", [True, False])
def test_runs_whose_purge_was_not_answered_count_once(saved: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = make_ledger("postgres", Path())
    monkeypatch.setattr(_sql, "_SLICE", 10)

    @in_loop
    async def test() -> None:
        async with DurableDispatcher(echo, ledger) as d:
            await complete(d, 30)
            send, lost = ledger._server.send, 0

            async def losing(statement: str, *about: object) -> Any:
                nonlocal lost
                if "DELETE FROM turngate.run" in statement and lost == 0:
                    lost += 1
                    if saved:
                        await send(statement, *about)
                    raise Unanswered("no answer")
                return await send(statement, *about)

            ledger._server.send = losing
            assert await d.purge(before=time.time() + LATER) == 30
            assert lost == 1

    test()


@pytest.mark.needs
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("read_first", [0, 2])
def test_a_process_that_was_stopped_across_a_purge_is_told_that_something_is_missing(
    engine: str, read_first: int, tmp_path: Path
) -> None:
    ledger = make_ledger(engine, tmp_path)

    async def line(process: asyncio.subprocess.Process, heard: set[str], *wanted: str) -> None:
        assert process.stdout is not None
        while not heard.issuperset(wanted):
            heard.add((await process.stdout.readline()).decode().strip() or "the end")
            assert "the end" not in heard

    @in_loop
    async def test() -> None:
        async with DurableDispatcher(echo, ledger, enter_timeout=600.0) as d, asyncio.timeout(60):
            await d.ask("s", "p", run_id="first")
            waited_for = await d.accept("t", "p", run_id="waited-for")
            program = ROOT / "tests" / "support" / "reading_process.py"
            where = spec_of(ledger).split(" ")[0]
            process = await asyncio.create_subprocess_exec(
                sys.executable, program, where, await d.end_cursor(), stdout=asyncio.subprocess.PIPE
            )
            heard: set[str] = set()
            try:
                await line(process, heard, "completes begins", "moves begins", "wait begins")
                for n in range(read_first):
                    await d.ask("s", "p", run_id=f"read-{n}")
                    await line(process, heard, *(f"{who} read-{n}" for who in ("completes", "moves")))
                    await line(process, heard, f"completions read-{n}")
                os.kill(process.pid, signal.SIGSTOP)
                await complete(d, 5, "hidden")
                await d.enter(waited_for)
                await waited_for.wait()
                assert await d.purge(before=time.time() + LATER) == 7 + read_first
                await d.ask("s", "p", run_id="last")
                os.kill(process.pid, signal.SIGCONT)
                await line(
                    process, heard, "completes is cut off", "moves is cut off", "completions have expired",
                    "wait does not know the run",
                )  # fmt: skip
                assert not {each for each in heard if "last" in each}
            finally:
                process.kill()
                await process.wait()
                process._transport.close()  # type: ignore[attr-defined]  # or it is left to the garbage collector

    test()


@on_engines
async def test_completions_that_began_on_an_empty_ledger_expire_too(ledger: Any) -> None:
    async with DurableDispatcher(echo, ledger) as d:
        waiting = d.completions()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(waiting), 0.2)
        finished, passed = ledger.completions_after, asyncio.Event()

        async def late(*about: Any) -> Any:
            await passed.wait()
            return await finished(*about)

        ledger.completions_after = late
        reading = asyncio.create_task(anext(waiting))
        await asyncio.sleep(0.05)
        await d.ask("s", "p")
        ledger.completions_after = finished
        assert await d.purge(before=time.time() + LATER) == 1
        passed.set()
        with pytest.raises(CursorExpired):
            await reading


@on_engines
async def test_readers_that_have_read_what_is_purged_go_on(ledger: Any) -> None:
    async with (
        DurableDispatcher(echo, ledger) as d,
        d.subscribe() as events,
        d.subscribe(moves=True) as moves,
    ):
        reading = d.completions()
        for name in ("a", "b", "c"):
            await complete(d, 25, name)
            read = {(await anext(reading))[1].run_id for _ in range(25)}
            assert read == {(await anext(events)).run_id for _ in range(25)}
            while read:
                event = await anext(moves)
                if type(event).__name__ == "RunComplete":
                    read.discard(event.run_id or "")
            assert await d.purge(before=time.time() + LATER) == 25


@pytest.mark.deep
def test_a_million_runs_are_purged_while_others_go_on(tmp_path: Path) -> None:
    number, day = 1_000_000, 86_400.0
    path = tmp_path / "ledger.db"

    def fill() -> None:
        """Write old runs as the tables have them, which is quicker than to run them."""
        old = time.time() - 9 * day
        with closing(sqlite3.connect(path)) as connection:
            connection.executemany(
                """
                INSERT INTO run (run_id, session_id, seq, state, when_busy, covered, holder, place, prompt,
                    attachments, digest, accepted_at, completed_at, text, cancelled, message_id, outcome,
                    position, ordinal)
                VALUES
                    (?, ?, ?, 'complete', 'fold', 0, 1, 0, '', '', '', ?, ?, 'text', 0, ?, 'finished', ?, 0)
                """,
                ((f"run-{n}", f"session-{n // 10}", n, old, old, f"msg-{n}", 100 + n) for n in range(number)),
            )
            connection.execute("UPDATE meta SET number = ?", (number + 1_000,))
            connection.commit()

    async def main() -> None:
        async with DurableDispatcher(echo, SqliteLedger(path)) as d:
            await d.ask("s", "p", run_id="before")
        await asyncio.to_thread(fill)
        async with (
            DurableDispatcher(echo, SqliteLedger(path)) as d,
            DurableDispatcher(echo, SqliteLedger(path)) as other,
        ):
            seen: list[int] = []
            purging = asyncio.create_task(d.purge(before=time.time() - day, progress=seen.append))
            asked = 0
            while not purging.done():
                await other.ask(f"meanwhile-{asked}", "p")
                asked += 1
            assert await purging == seen[-1] == number
            assert len(seen) > 1_000
            assert asked > 10
            assert len(await kept(d)) == asked + 1

    asyncio.run(main())
