"""What a ledger refuses: other encodings, values that it cannot store, roles without the privileges."""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dispatching import Agent, in_loop
from old_ledgers import ask_postgres, load, new_database
from postgres import cluster
from surroundings import ROOT
from turngate import Turn
from turngate.durable import DurableDispatcher, LedgerUnavailable, NotStorable, PostgresLedger, SqliteLedger
from turngate.durable._sql import migrations

ENGINES = ("sqlite", "postgres")
SOON = 60.0


async def runner(turn: Turn) -> str:
    """Answer with what the prompt asks for."""
    if turn.run.prompt.startswith("keep "):
        turn.keep({"what": turn.run.prompt.removeprefix("keep ")})
        return "kept"
    if turn.run.prompt.startswith("write "):
        turn.write(turn.run.prompt.removeprefix("write "))
        await asyncio.Event().wait()
    if turn.run.prompt.startswith("fail "):
        raise ValueError(turn.run.prompt.removeprefix("fail "))
    return turn.run.prompt.upper()


# Values that are refused for good.

REFUSED = "POISON"
"""What the ledgers of these tests refuse to store; in lower case they take it."""


async def open_choosy(engine: str, folder: Path, tables: dict[str, str]) -> Any:
    """Make a ledger that refuses poison in these columns, as it would refuse what is too large."""
    ledger: Any
    if engine == "sqlite":
        ledger = SqliteLedger(folder / "ledger.db")
        await ledger.open()
        await ledger.close()
        with closing(sqlite3.connect(ledger.path)) as connection:
            for table, column in tables.items():
                for event in ("INSERT", "UPDATE"):
                    connection.execute(f"""
                        CREATE TRIGGER choosy_{table}_{event} BEFORE {event} ON {table}
                        WHEN instr(new.{column}, '{REFUSED}') BEGIN SELECT RAISE(ABORT, 'string too big'); END
                    """)
            connection.commit()
        return SqliteLedger(ledger.path)
    ledger = PostgresLedger(new_database(), patience=1.0)
    await ledger.open()
    await ledger.close()
    for table, column in tables.items():
        script = f"""
            CREATE FUNCTION turngate.choosy_{table}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                IF strpos(new.{column}, '{REFUSED}') > 0 THEN
                    RAISE EXCEPTION 'string too big' USING ERRCODE = '54000';
                END IF;
                RETURN new;
            END $$;
            CREATE TRIGGER choosy BEFORE INSERT OR UPDATE ON turngate.{table}
            FOR EACH ROW EXECUTE FUNCTION turngate.choosy_{table}();
        """
        ask_postgres(ledger.dsn, script)
    return PostgresLedger(ledger.dsn, patience=1.0)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_turn_that_can_never_be_written_completes_with_an_error(engine: str, tmp_path: Path) -> None:
    @in_loop
    async def test() -> None:
        ledger = await open_choosy(engine, tmp_path, {"run": "text", "message": "text"})
        async with asyncio.timeout(SOON), DurableDispatcher(runner, ledger, poll=0.1) as d:
            prompts = ["poison", "fine", "poison and more"]
            ends = await asyncio.gather(*[d.ask("s", each, when_busy="queue") for each in prompts])
            others = await asyncio.gather(*[d.ask(f"other-{n}", "fine") for n in range(5)])
            assert [each.outcome for each in ends] == ["failed", "finished", "failed"]
            assert "the ledger refuses" in (ends[0].error or "")
            assert ends[0].text == ""
            assert {each.text for each in others} == {"FINE"}
            messages = await d.messages.list("s")
            assert [each.finish_reason for each in messages] == [
                None,
                "error",
                None,
                "end_turn",
                None,
                "error",
            ]
            assert await d.wait(ends[0].run_id) == ends[0]
            await d.submit("s", "poison")
            await d.aclose(finish=1)  # returns

    test()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("prompt", ["keep POISON", "fail POISON", "write POISON"])
def test_a_turn_whose_data_error_or_checkpoint_cannot_be_written_completes_with_an_error(
    engine: str, prompt: str, tmp_path: Path
) -> None:
    @in_loop
    async def test() -> None:
        choosy = {"message": "data"} if prompt.startswith("keep") else {"run": "error", "checkpoint": "text"}
        if prompt.startswith("write"):
            choosy = {"run": "text", "checkpoint": "text"}
        ledger = await open_choosy(engine, tmp_path, choosy)
        async with asyncio.timeout(SOON), DurableDispatcher(runner, ledger, poll=0.1, checkpoint=0.05) as d:
            run = await d.submit("s", prompt)
            if prompt.startswith("write"):
                await asyncio.sleep(0.3)
                await d.cancel("s")
            end = await run.wait()
            assert end.outcome == ("cancelled" if prompt.startswith("write") else "failed")
            assert (await d.ask("s", "fine")).text == "FINE"

    test()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_run_completes_though_its_messages_cannot_be_written_at_all(engine: str, tmp_path: Path) -> None:
    @in_loop
    async def test() -> None:
        ledger = await open_choosy(engine, tmp_path, {"message": "text"})
        async with asyncio.timeout(SOON), DurableDispatcher(runner, ledger, poll=0.1) as d:
            end = await d.ask("s", "POISON")  # which is a message of its own
            assert (end.outcome, end.message_id) == ("failed", None)
            assert await d.messages.list("s") == []
            assert (await d.ask("s", "fine")).text == "FINE"

    test()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_prompt_that_cannot_be_stored_is_refused(engine: str, tmp_path: Path) -> None:
    @in_loop
    async def test() -> None:
        ledger = await open_choosy(engine, tmp_path, {"run": "prompt"})
        async with asyncio.timeout(SOON), DurableDispatcher(runner, ledger, poll=0.1) as d:
            sent = [d.submit("s", "fine"), d.submit("s", "POISON", run_id="refused"), d.submit("t", "fine")]
            first, refused, third = await asyncio.gather(*sent, return_exceptions=True)
            assert isinstance(refused, NotStorable)
            assert len(str(refused).splitlines()) == 1
            assert await d.find("refused") is None
            for run in (first, third):
                assert not isinstance(run, BaseException)
                assert (await run.wait()).text == "FINE"

    test()


def test_a_text_too_large_for_sqlite_is_refused(tmp_path: Path) -> None:
    @in_loop
    async def test() -> None:
        ledger = SqliteLedger(tmp_path / "ledger.db")
        async with asyncio.timeout(SOON), DurableDispatcher(large, ledger, poll=0.1) as d:
            await ledger._working().do(
                lambda connection: connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 100_000)
            )
            assert (await d.ask("s", "p")).outcome == "failed"
            with pytest.raises(NotStorable):
                await d.ask("s", "p" * 200_000)

    async def large(turn: Turn) -> str:
        return "x" * 200_000

    test()


# Encodings.


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_a_database_of_another_encoding_is_refused(encoding: str) -> None:
    dsn = new_database(options=f"ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
    with pytest.raises(LedgerUnavailable, match=f"has the encoding {encoding}.*needs UTF8") as refused:
        asyncio.run(PostgresLedger(dsn).open())
    assert len(str(refused.value).splitlines()) == 1
    assert ask_postgres(dsn, "SELECT 1 FROM pg_namespace WHERE nspname = 'turngate'") == []


# Roles.

USE = "GRANT USAGE ON SCHEMA turngate TO {role}"
TABLES = "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA turngate TO {role}"
SEQUENCES = "GRANT USAGE ON ALL SEQUENCES IN SCHEMA turngate TO {role}"
NO_FUNCTIONS = "REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA turngate FROM PUBLIC"


def as_role(dsn: str, *grants: str) -> PostgresLedger:
    """Make a role with these privileges, and a ledger that it opens."""
    role = f"r{secrets.token_hex(6)}"
    ask_postgres(cluster().dsn, f"CREATE ROLE {role} LOGIN")
    for grant in grants:
        ask_postgres(dsn, grant.format(role=role))
    return PostgresLedger(dsn.replace("turngate@", f"{role}@"), connections=2)


def made() -> str:
    """Make a database with a ledger that is current."""
    dsn = new_database()

    async def make() -> None:
        ledger = PostgresLedger(dsn)
        await ledger.open()
        await ledger.close()

    asyncio.run(make())
    return dsn


def test_a_role_that_may_only_read_and_write_can_use_a_current_ledger() -> None:
    ledger = as_role(made(), USE, TABLES, SEQUENCES)

    @in_loop
    async def test() -> None:
        async with asyncio.timeout(SOON), DurableDispatcher(runner, ledger) as d, d.subscribe() as events:
            end = await d.ask("s", "p")
            assert await anext(events) == end
            assert await d.purge(before=4e9) == 1

    test()


def test_a_role_that_may_not_see_which_server_it_is_finds_the_workers_of_others_alive() -> None:
    """Roles that see more and less open one ledger in turn, which is no restore of it."""
    dsn = made()
    hide = "REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC"
    ledgers = [as_role(dsn, USE, TABLES, SEQUENCES, hide), PostgresLedger(dsn, connections=2)]

    @in_loop
    async def test() -> None:
        agent = Agent()
        async with (
            asyncio.timeout(SOON),
            DurableDispatcher(agent, PostgresLedger(dsn), lease=100_000.0, on_death="retry") as d,
        ):
            run = await d.submit("s", "p")
            while not agent.turns:
                await asyncio.sleep(0.01)
            for ledger in ledgers:
                async with DurableDispatcher(runner, ledger, poll=0.01, on_death="retry") as other:
                    assert (await other.ask("t", "p")).outcome == "finished"
                    await asyncio.sleep(0.1)  # ten looks
            agent.finish(run)
            assert (await run).outcome == "finished"
            assert [turn.attempt for turn in agent.turns] == [1]

    test()


@pytest.mark.parametrize(
    ("grants", "missing"),
    [
        ([TABLES, SEQUENCES], "USAGE on schema turngate"),
        ([USE, SEQUENCES], "INSERT on table turngate.run"),
        ([USE, TABLES], "USAGE on sequence turngate.number"),
        ([USE, TABLES, SEQUENCES, NO_FUNCTIONS], "EXECUTE on function turngate.save"),
    ],
)
def test_a_missing_privilege_is_named(grants: list[str], missing: str) -> None:
    ledger = as_role(made(), *grants)
    with pytest.raises(LedgerUnavailable, match=f"lacks privileges .*{missing}") as refused:
        asyncio.run(ledger.open())
    assert len(str(refused.value).splitlines()) == 1


def test_a_role_that_may_not_migrate_or_create_a_ledger_learns_which_role_may() -> None:
    old = load(ROOT / "tests" / "durable" / "dumps" / "postgres_2.sql", Path())
    current = len(migrations("postgres"))
    with pytest.raises(LedgerUnavailable, match=f"2.*{current}.*schema turngate"):
        asyncio.run(as_role(old.dsn, USE, TABLES, SEQUENCES).open())
    with pytest.raises(LedgerUnavailable, match=f"0.*{current}.*database"):
        asyncio.run(as_role(new_database()).open())
