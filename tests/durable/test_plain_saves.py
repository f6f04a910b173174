"""A plain step alone is saved by a statement of its own: it writes what the one for several steps writes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from dispatching import Agent, echo, in_loop
from ledgers import MakeLedger, ledgers, still
from turngate import RunConflict
from turngate.durable import DurableDispatcher, PostgresLedger, _postgres_saves
from turngate.durable._ledger import LeaseLost
from turngate.durable._postgres_sql import SAVE_PLAIN
from turngate.durable._rows import Ask, Decision, Loaded
from turngate.durable._step import Step

TABLES = ("session", "run", "message", "history")
DIFFERENT = {"position", "accepted_at", "completed_at", "at", "since", "recent", "fence", "version"}
"""What is another thing each time."""

pytestmark = pytest.mark.needs


class Statements:
    """Counts the statements of a ledger that save, by whether they are for a plain step."""

    def __init__(self, ledger: Any) -> None:
        self.plain, self.others = 0, 0
        self._send = ledger._saves._send
        ledger._saves._send = self.send

    def send(self, statement: str, *about: object) -> Any:
        if statement == SAVE_PLAIN:
            self.plain += 1
        else:
            self.others += 1
        return self._send(statement, *about)


async def live(d: DurableDispatcher, agent: Agent) -> list[dict[str, list[dict[str, Any]]]]:
    """Take every kind of step that a session can take, and return what was on record in between."""
    seen = []
    strange = 'a "quoted" \\ text, with {braces}, NUL \0 and half a pair \ud800'
    for number, prompt in enumerate(["first", strange, ""]):
        run = await d.submit("s", prompt, run_id=f"r{number}", attachments=["a"])
        await still(d)
        if number == 1:
            agent.turns[-1].keep({"kept": [1, None]})
            agent.turns[-1].write(strange)
            agent.fail(run, ValueError("no"))
        else:
            agent.finish(run, prompt or None)
        await run
        seen.append(await tables(d._ledger))
    held = await d.accept("s", "held", run_id="held")
    seen.append(await tables(d._ledger))
    await d.enter(held)
    await still(d)
    seen.append(await tables(d._ledger))
    queued = [await d.submit("s", f"q{n}", run_id=f"q{n}", when_busy="queue") for n in range(3)]
    await d.cancel_run("q1")
    await still(d)
    seen.append(await tables(d._ledger))
    agent.finish(held, "done")
    await held
    await still(d)
    seen.append(await tables(d._ledger))
    await d.cancel("s")
    await asyncio.gather(*queued)
    await (await d.accept("s", "never", run_id="never")).close()
    await still(d)
    return [*seen, await tables(d._ledger)]


async def tables(ledger: Any) -> dict[str, list[dict[str, Any]]]:
    """Return what is on record, but for what differs each time."""
    tokens = await ledger._fetch("SELECT token FROM {s}.session")
    found = {}
    for table in TABLES:
        rows = await ledger._fetch(f"SELECT to_jsonb(t)::text FROM {{s}}.{table} t ORDER BY 1")
        text = [row[0].replace(tokens[0][0], "token") for row in rows]
        found[table] = [{k: v for k, v in json.loads(row).items() if k not in DIFFERENT} for row in text]
        found[table].sort(key=str)
    return found


def test_a_plain_step_writes_what_it_would_write_among_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []
    for plain in (True, False):
        if not plain:
            monkeypatch.setattr(_postgres_saves, "_is_plain", lambda _: False)

        @in_loop
        async def live_once(make: MakeLedger, plain: bool = plain) -> None:
            ledger: Any = make()
            agent = Agent()
            async with DurableDispatcher(agent, ledger) as d:
                statements = Statements(ledger)
                written.append(await live(d, agent))
                assert (statements.plain > 10) is plain
                assert statements.others > 0

        with ledgers("postgres", tmp_path) as make:
            live_once(make)
    assert written[0] == written[1]
    assert all(written[0][-1].values())


def on_postgres(test: Any) -> Any:
    def wrapper(tmp_path: Path) -> None:
        with ledgers("postgres", tmp_path) as make:
            in_loop(test)(make())

    wrapper.__name__ = test.__name__
    return wrapper


@on_postgres
async def test_a_run_that_is_known_already_is_found_and_nothing_is_saved_twice(
    ledger: PostgresLedger,
) -> None:
    async with DurableDispatcher(echo, ledger) as d:
        await d.ask("other", "p", run_id="one")
        await d.ask("s", "p")
        statements = Statements(ledger)
        with pytest.raises(RunConflict):
            await d.submit("s", "p", run_id="one")
        assert statements.plain == 1
        assert (await d.ask("other", "p", run_id="one")).text == "p"
        assert (await d.ask("s", "next")).seq == 2


@on_postgres
async def test_a_session_that_another_process_has_changed_is_loaded_again(ledger: PostgresLedger) -> None:
    beside = PostgresLedger(ledger.dsn, schema=ledger.schema)
    async with DurableDispatcher(echo, ledger) as one, DurableDispatcher(echo, beside) as other:
        for seq in range(1, 7):
            assert (await (one, other)[seq % 2].ask("s", "p")).seq == seq


@on_postgres
async def test_a_worker_that_counts_as_dead_saves_nothing(ledger: PostgresLedger) -> None:
    async with DurableDispatcher(echo, ledger) as d:
        await d.ask("s", "p")
        statements = Statements(ledger)

        def decide(loaded: Loaded, step_id: str) -> Decision:
            step = Step(loaded, 10**9, step_id)
            step.accept("late", "p", "", "fold", 100)
            return step.decision(step_id, None)

        with pytest.raises(LeaseLost):
            await ledger.step(Ask("s", 10**9, "late-step", run_id="late", is_new=True), decide)
        assert statements.plain == 1
        assert await d.find("late") is None
        assert (await d.ask("s", "q")).seq == 2
