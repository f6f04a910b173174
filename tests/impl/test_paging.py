"""Messages page by page, and those of one run: in memory and on SQLite alike."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from dispatching import Agent, active, in_loop, queued, steps
from turngate import Dispatcher, MemoryMessages, Message, SqliteMessages, State, Turn, _sqlite

Stores = Callable[[], Any]


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Stores:
    @asynccontextmanager
    async def opened() -> AsyncIterator[Any]:
        if request.param == "memory":
            yield MemoryMessages()
        else:
            async with SqliteMessages(tmp_path / "messages.db") as messages:
                yield messages

    return opened


def message(number: int, session: str = "s", **more: Any) -> Message:
    return Message(f"m{number}", session, f"r{number}", "user", f"text {number}")._replace(**more)


def ids(messages: list[Message]) -> list[str]:
    return [message.id for message in messages]


@in_loop
async def test_every_page_of_every_size_from_everywhere(store: Stores) -> None:
    async with store() as messages:
        for number in range(7):
            await messages.put([message(number), message(100 + number, "t")])
        everything = [f"m{number}" for number in range(7)]
        assert ids(await messages.list("s")) == everything
        for limit in [None, *range(10), 10**6, sys.maxsize, 10**30]:
            assert ids(await messages.list("s", limit=limit)) == everything[:limit]
            for start, after in enumerate(everything, 1):
                page = await messages.list("s", after=after, limit=limit)
                assert ids(page) == everything[start:][:limit]
        read: list[str] = []
        while page := await messages.list("s", after=read[-1] if read else None, limit=2):
            read += ids(page)
        assert read == everything


@pytest.mark.parametrize("after", ["unknown", "", "m100", "\ud800"])
@pytest.mark.parametrize("limit", [None, 0, 1])
@in_loop
async def test_a_message_that_the_session_does_not_have_is_no_place_to_go_on(
    store: Stores, after: str, limit: int | None
) -> None:
    async with store() as messages:
        await messages.put([message(0), message(100, "t")])
        with pytest.raises(ValueError, match="'s'"):
            await messages.list("s", after=after, limit=limit)
        with pytest.raises(ValueError, match="'nobody'"):
            await messages.list("nobody", after="m0", limit=limit)
        assert await messages.list("nobody", limit=limit) == []


@pytest.mark.parametrize("limit", [-1, 1.5, "1"])
@in_loop
async def test_a_limit_is_a_whole_number(store: Stores, limit: Any) -> None:
    async with store() as messages:
        await messages.put([message(0)])
        for session in ("s", "nobody"):
            with pytest.raises(ValueError, match="limit"):
                await messages.list(session, limit=limit)


@in_loop
async def test_a_message_that_is_written_again_keeps_its_place(store: Stores) -> None:
    async with store() as messages:
        await messages.put([message(0), message(1), message(2)])
        await messages.put([message(0, text="changed", data=[1])])
        assert ids(await messages.list("s")) == ["m0", "m1", "m2"]
        assert [each.text for each in await messages.list("s", limit=1)] == ["changed"]
        assert ids(await messages.list("s", after="m0", limit=1)) == ["m1"]


@in_loop
async def test_a_page_while_more_is_written(store: Stores) -> None:
    async def echo(turn: Turn) -> str:
        return turn.run.prompt

    async with store() as messages, Dispatcher(echo, messages=messages) as d:
        read: list[Message] = []
        for number in range(5):
            await d.ask("s", f"p{number}")
            read += await messages.list("s", after=read[-1].id if read else None, limit=3)
        read += await messages.list("s", after=read[-1].id)
        assert read == await messages.list("s")
        assert len(read) == 10


@in_loop
async def test_odd_texts_and_ids_can_be_paged(store: Stores) -> None:
    odd = ["\ud800", "", "a\x00b", "'; --", "é", "\N{WAVING HAND SIGN}"]
    async with store() as messages:
        written = [
            Message(f"id {text}", f"s {text}", f"r {text}", "assistant", text, "end_turn", {text: text})
            for text in odd
        ]
        await messages.put(written)
        for each in written:
            assert await messages.list(each.session_id, limit=1) == [each]
            assert await messages.list(each.session_id, after=each.id) == []
            assert await messages.of_run(each.run_id) == [each]


# The messages of a run.


@in_loop
async def test_the_messages_of_a_run_are_those_of_its_turn(store: Stores) -> None:
    agent = Agent()
    async with store() as messages, Dispatcher(agent, messages=messages) as d:
        lead = await active(d, "s", "lead", run_id="lead")
        await queued(d, "s", "folded", run_id="folded")
        await agent.turns[0].fold()
        behind = await queued(d, "s", "behind", run_id="behind", when_busy="queue")
        assert await messages.of_run("lead") == []
        agent.turns[0].keep([1])
        agent.finish(lead, "answer")
        await lead
        await steps()
        dropped = await queued(d, "s", "dropped", run_id="dropped")
        await dropped.cancel()
        agent.finish(behind, "another")
        await behind
        turn = ["lead", "folded", "answer"]
        assert [each.text for each in await messages.of_run("lead")] == turn
        assert [each.text for each in await messages.of_run("folded")] == turn
        assert [each.data for each in await messages.of_run("folded")] == [None, None, [1]]
        assert [each.text for each in await messages.of_run("behind")] == ["behind", "another"]
        for unknown in ("dropped", "nobody", ""):
            assert await messages.of_run(unknown) == []


@in_loop
async def test_of_run_does_not_mix_turns_up_that_end_while_others_run(store: Stores) -> None:
    agent = Agent()
    async with store() as messages, Dispatcher(agent, messages=messages) as d:
        first = await active(d, "s", "first", run_id="first")
        on_entry = await d.accept("s", "on entry", run_id="on entry")
        other = await active(d, "t", "other", run_id="other")
        await on_entry.cancel()
        assert await d.enter(on_entry) is State.CANCEL_ON_ENTRY
        await on_entry
        assert [each.text for each in await messages.of_run("on entry")] == ["on entry", ""]
        agent.finish(other, "b")
        await other
        agent.finish(first, "a")
        await first
        assert [each.text for each in await messages.of_run("first")] == ["first", "a"]
        assert [each.text for each in await messages.of_run("other")] == ["other", "b"]
        assert [each.text for each in await messages.of_run("on entry")] == ["on entry", ""]


@in_loop
async def test_of_a_run_id_that_was_used_twice_the_last_turn_counts(store: Stores) -> None:
    async def echo(turn: Turn) -> str:
        return turn.run.prompt.upper()

    async with store() as messages, Dispatcher(echo, messages=messages, completions_kept=0) as d:
        await d.ask("s", "a", run_id="r")
        await d.ask("s", "other")
        await d.ask("s", "b", run_id="r")
        assert [each.text for each in await messages.of_run("r")] == ["b", "B"]
        await d.ask("s", "c", run_id="r")
        assert [each.text for each in await messages.of_run("r")] == ["c", "C"]


@in_loop
async def test_a_turn_without_an_answer_is_none(store: Stores) -> None:
    async with store() as messages:
        await messages.put([message(0)])
        assert await messages.of_run("r0") == []
        await messages.put([message(0), message(0, id="m0-reply", role="assistant")])
        assert ids(await messages.of_run("r0")) == ["m0", "m0-reply"]


@pytest.mark.parametrize("seed", range(5))
@in_loop
async def test_memory_and_sqlite_agree(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    memory = MemoryMessages()
    async with SqliteMessages(tmp_path / "messages.db") as sqlite:
        known: list[str] = ["unknown"]
        runs: list[str] = ["unknown"]
        for number in range(60):
            session = chance.choice("st")
            lead = f"r{number}"
            folded = [f"r{number}-{n}" for n in range(chance.randrange(3))]
            turn = [Message(f"m-{run}", session, run, "user", run) for run in [lead, *folded]]
            data = chance.choice([None, number, {"a": [number]}])
            turn.append(Message(f"m-{lead}-reply", session, lead, "assistant", "text", "end_turn", data))
            for _ in range(chance.choice([1, 1, 2])):
                await memory.put(turn)
                await sqlite.put(turn)
            known += ids(turn)
            runs += [each.run_id for each in turn]
            run = chance.choice(runs)
            assert await memory.of_run(run) == await sqlite.of_run(run)
            about: dict[str, Any] = {
                "after": chance.choice([None, *known]),
                "limit": chance.choice([None, 0, 1, 5]),
            }
            answers: list[Any] = []
            for messages in (memory, sqlite):
                try:
                    answers.append(await messages.list(session, **about))
                except ValueError as exc:
                    answers.append(str(exc))
            assert answers[0] == answers[1]


# A file of the first version.

VERSION_1 = """
    CREATE TABLE messages (
        position INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, session_id TEXT NOT NULL,
        run_id TEXT NOT NULL, role TEXT NOT NULL, text TEXT NOT NULL, finish_reason TEXT
    );
    CREATE INDEX messages_of_session ON messages (session_id, position);
    INSERT INTO messages (id, session_id, run_id, role, text, finish_reason) VALUES
        ('m1', 's', 'r1', 'user', 'hello', NULL),
        ('m1-reply', 's', 'r1', 'assistant', 'hi', 'end_turn');
    PRAGMA user_version = 1;
"""


@pytest.fixture
def version_1(tmp_path: Path) -> Path:
    path = tmp_path / "old.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(VERSION_1)
    return path


@in_loop
async def test_a_file_of_the_first_version_is_brought_along(version_1: Path) -> None:
    async def runner(turn: Turn) -> str:
        turn.keep([message.data for message in await turn.history()])
        return "again"

    for opened in range(2):
        async with SqliteMessages(version_1) as messages, Dispatcher(runner, messages=messages) as d:
            await d.ask("s", f"p{opened}")
    async with SqliteMessages(version_1) as messages:
        assert [(each.text, each.data) for each in await messages.list("s")] == [
            ("hello", None),
            ("hi", None),
            ("p0", None),
            ("again", [None, None]),
            ("p1", None),
            ("again", [None, None, None, [None, None]]),
        ]
        assert [each.text for each in await messages.of_run("r1")] == ["hello", "hi"]
        assert ids(await messages.list("s", after="m1", limit=1)) == ["m1-reply"]
    with closing(sqlite3.connect(version_1)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (2,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


@in_loop
async def test_several_stores_migrate_a_file_of_the_first_version_once(version_1: Path) -> None:
    stores = [SqliteMessages(version_1, lock_timeout=300) for _ in range(6)]
    try:
        for messages in await asyncio.gather(*[store.list("s") for store in stores]):
            assert ids(messages) == ["m1", "m1-reply"]
        await asyncio.gather(*[store.put([message(10 + n, data=n)]) for n, store in enumerate(stores)])
        assert sorted(each.data for each in (await stores[0].list("s"))[2:]) == [*range(6)]
    finally:
        for store in stores:
            await store.close()


@in_loop
async def test_a_migration_that_fails_leaves_the_file_as_it_was(
    version_1: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        broken = (_sqlite._MIGRATIONS[0], (*_sqlite._MIGRATIONS[1], "CREATE TABLE messages (id)"))
        patch.setattr(_sqlite, "_MIGRATIONS", broken)
        async with SqliteMessages(version_1) as messages:
            with pytest.raises(sqlite3.OperationalError, match="already exists"):
                await messages.list("s")
    async with SqliteMessages(version_1) as messages:
        assert ids(await messages.list("s")) == ["m1", "m1-reply"]
        assert [each.data for each in await messages.of_run("r1")] == [None, None]
