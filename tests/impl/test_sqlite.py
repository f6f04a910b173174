from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import turngate
from dispatching import HANG, echo, in_loop, outcome, steps
from turngate import Dispatcher, Message, SqliteMessages, Turn, UnknownSchema
from turngate._sqlite_file import OpenedFile, UnusableFile, absolute, check_usable

SOURCE = str(Path(turngate.__file__).parent.parent)

#: Answers prompts for ever, folding two into each turn, and says on standard output which runs are complete.
WRITER = """
import asyncio, sys
from turngate import Dispatcher, SqliteMessages

async def agent(turn):
    await turn.fold()
    return "x" * 2000

async def main(path, session):
    async with SqliteMessages(path, lock_timeout=600) as store, Dispatcher(
        agent, messages=store, settle_timeout=600
    ) as d:
        for n in range(int(sys.argv[3])):
            runs = [await d.submit(session, f"prompt {n}.{k}", run_id=f"{session}.{n}.{k}") for k in range(3)]
            for run in runs:
                complete = await run
                assert complete.error is None, complete
                print(run.run_id, flush=True)

asyncio.run(main(sys.argv[1], sys.argv[2]))
"""


def writer(path: Path, session: str, turns: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), session, str(turns)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": SOURCE},
    )


async def stored(path: Path, session: str) -> list[Message]:
    async with SqliteMessages(path) as store:
        return await store.list(session)


def check_turns(messages: list[Message]) -> set[str]:
    """Every turn on record is whole: its user messages, then its assistant message. Returns the run ids."""
    on_record: set[str] = set()
    turn: list[Message] = []
    for message in messages:
        turn.append(message)
        if message.role == "assistant":
            assert [m.role for m in turn[:-1]] == ["user"] * (len(turn) - 1)
            assert len(turn) > 1
            assert message.run_id == turn[0].run_id
            assert message.finish_reason == "end_turn"
            on_record |= {m.run_id for m in turn[:-1]}
            turn = []
    assert turn == [], "half a turn is on record"
    return on_record


def test_a_killed_process_leaves_no_half_written_turn_and_loses_no_completed_one(tmp_path: Path) -> None:
    path = tmp_path / "messages.db"
    rng = random.Random(7)
    for kill in range(12):
        session = f"session-{kill}"
        with writer(path, session, 10**6) as process:
            assert process.stdout is not None
            complete = [process.stdout.readline().strip() for _ in range(rng.randrange(1, 25))]
            for _ in range(rng.randrange(2_000)):
                pass
            process.send_signal(signal.SIGKILL)
            complete += process.stdout.read().split("\n")[:-1]
        on_record = check_turns(asyncio.run(stored(path, session)))
        assert {run_id for run_id in complete if run_id} <= on_record
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_process_killed_while_it_makes_the_file_leaves_one_that_opens(tmp_path: Path) -> None:
    for kill in range(12):
        path = tmp_path / f"{kill}.db"
        with writer(path, "s", 10**6) as process:
            while not path.exists() and process.poll() is None:
                pass
            for _ in range(kill * 400):
                pass
            process.send_signal(signal.SIGKILL)
        check_turns(asyncio.run(stored(path, "s")))


def test_processes_that_share_a_file_and_open_it_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "messages.db"
    processes = [writer(path, f"session-{n}", 20) for n in range(4)]
    for process in processes:
        with process:
            process.communicate()
            assert process.returncode == 0
    for n in range(4):
        messages = asyncio.run(stored(path, f"session-{n}"))
        assert len(check_turns(messages)) == 60


@in_loop
async def test_the_file_is_in_wal_mode_and_has_a_version(tmp_path: Path) -> None:
    path = tmp_path / "messages.db"
    await stored(path, "s")
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA user_version").fetchone() == (2,)


@in_loop
async def test_a_file_of_a_newer_turngate_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "messages.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")
    before = path.read_bytes()

    async def echo(turn: Turn) -> str:
        return turn.run.prompt

    async with SqliteMessages(path) as store:
        with pytest.raises(UnknownSchema, match=r"99.*2"):
            await store.list("s")
        async with Dispatcher(echo, messages=store) as d:
            error = (await d.ask("s", "p")).error
            assert error is not None
            assert "99" in error
    assert path.read_bytes() == before


@in_loop
async def test_a_put_that_fails_half_way_writes_nothing(tmp_path: Path) -> None:
    wrong: Any = object()
    async with SqliteMessages(tmp_path / "messages.db") as store:
        with pytest.raises(sqlite3.Error):
            await store.put([Message("a", "s", "r", "user", "p"), Message("b", "s", "r", "user", wrong)])
        assert await store.list("s") == []
        await store.put([Message("a", "s", "r", "user", "p")])
        assert len(await store.list("s")) == 1


@in_loop
async def test_messages_outlive_the_store(tmp_path: Path) -> None:
    path = tmp_path / "messages.db"
    message = Message("a", "s", "r", "assistant", "text \N{SNOWMAN}", "end_turn")
    async with SqliteMessages(str(path)) as store:
        await store.put([message])
    assert await stored(path, "s") == [message]


@in_loop
async def test_closing_is_idempotent_and_goes_on_when_its_caller_is_cancelled(tmp_path: Path) -> None:
    store = SqliteMessages(tmp_path / "messages.db")
    await store.put([Message("a", "s", "r", "user", "p")])
    held = threading.Event()
    store._thread.submit(held.wait)
    closing_task = asyncio.create_task(store.close())
    await steps()
    closing_task.cancel()
    await steps()
    assert closing_task.cancelled()
    held.set()
    await store.close()
    assert store._connection is None
    await store.close()


@in_loop
async def test_a_closed_store_refuses(tmp_path: Path) -> None:
    store = SqliteMessages(tmp_path / "messages.db")
    await store.close()
    with pytest.raises(RuntimeError):
        await store.list("s")


def test_an_unclosed_store_closes_with_its_last_reference(tmp_path: Path) -> None:
    asyncio.run(SqliteMessages(tmp_path / "messages.db").put([Message("a", "s", "r", "user", "p")]))
    gc.collect()


@in_loop
async def test_a_file_that_cannot_be_opened_fails_the_run(tmp_path: Path) -> None:
    async def echo(turn: Turn) -> str:
        return turn.run.prompt

    async with SqliteMessages(tmp_path) as store, Dispatcher(echo, messages=store, settle_timeout=HANG) as d:
        text, error, cancelled = outcome(await d.ask("s", "p"))
        assert (text, cancelled) == ("p", False)
        assert error is not None
        assert error


@in_loop
async def test_a_write_cancelled_from_outside_is_made_again_and_found_once(tmp_path: Path) -> None:
    async def echo(turn: Turn) -> str:
        turns.append(turn)
        return turn.run.prompt

    turns: list[Turn] = []
    async with (
        SqliteMessages(tmp_path / "messages.db") as store,
        Dispatcher(echo, messages=store, settle_timeout=HANG) as d,
    ):
        held = threading.Event()
        store._thread.submit(held.wait)
        run = await d.submit("s", "p")
        await steps()
        for _ in range(3):
            task = turns[0].task
            assert task is not None
            task.cancel()
            await steps()
        held.set()
        assert outcome(await run) == ("p", None, False)
        assert [m.role for m in await store.list("s")] == ["user", "assistant"]


@in_loop
async def test_nothing_runs_on_the_event_loop(tmp_path: Path) -> None:
    async with SqliteMessages(tmp_path / "messages.db") as store:
        assert isinstance(store._thread, ThreadPoolExecutor)
        held = threading.Event()
        store._thread.submit(held.wait)
        put = asyncio.create_task(store.put([Message("a", "s", "r", "user", "p")]))
        await steps()
        assert not put.done()
        held.set()
        await put


#: Opens one new file after the other, each as soon as it is told to.
OPENER = """
import asyncio, sys
from turngate import Message, SqliteMessages

async def main(path):
    async with SqliteMessages(path, lock_timeout=600) as store:
        await store.put([Message(sys.argv[1], "s", sys.argv[1], "user", "p")])

print(flush=True)
for path in sys.stdin:
    asyncio.run(main(path.strip()))
    print(flush=True)
"""


def test_many_processes_may_open_a_new_file_at_the_same_moment(tmp_path: Path) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", OPENER, f"process-{n}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": SOURCE},
        )
        for n in range(12)
    ]
    streams = [(process.stdin, process.stdout) for process in processes]
    try:
        for path in [tmp_path / f"{n}.db" for n in range(15)]:
            for _, answers in streams:
                assert answers is not None
                assert answers.readline() == "\n"
            for orders, _ in streams:
                assert orders is not None
                orders.write(f"{path}\n")
                orders.flush()
    finally:
        for process in processes:
            process.communicate()
    assert [process.returncode for process in processes] == [0] * 12
    for n in range(15):
        assert len(asyncio.run(stored(tmp_path / f"{n}.db", "s"))) == 12


class Clock:
    """Replaces the clock: time passes during a sleep, and something may happen then."""

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        self.now = 0.0
        self.slept = 0
        self.meanwhile = meanwhile

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert 0 < seconds < 0.1
        self.slept += 1
        self.now += seconds
        self.meanwhile()


@pytest.fixture
def held(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """A new file that another connection holds until a commit."""
    with closing(
        sqlite3.connect(tmp_path / "messages.db", check_same_thread=False, isolation_level=None)
    ) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield other


@in_loop
async def test_a_file_that_is_held_for_a_moment_is_waited_for(
    held: sqlite3.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(lambda: held.execute("COMMIT"))
    monkeypatch.setattr("turngate._sqlite.time", clock)
    async with SqliteMessages(tmp_path / "messages.db", lock_timeout=0.1) as store:
        await store.put([Message("a", "s", "r", "user", "p")])
        assert len(await store.list("s")) == 1
    assert clock.slept == 1


@in_loop
async def test_a_file_that_is_held_longer_than_the_time_out_is_given_up(
    held: sqlite3.Connection, tmp_path: Path
) -> None:
    async with SqliteMessages(tmp_path / "messages.db", lock_timeout=0.05) as store:
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            await store.list("s")
        assert store._connection is None
        held.execute("COMMIT")
        assert await store.list("s") == []


@pytest.mark.parametrize("code", [sqlite3.SQLITE_BUSY, sqlite3.SQLITE_BUSY_SNAPSHOT, sqlite3.SQLITE_LOCKED])
@in_loop
async def test_a_file_is_tried_again_until_the_time_is_up(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def locked(_: sqlite3.Connection) -> None:
        exc = sqlite3.OperationalError("database is locked")
        exc.sqlite_errorcode = code
        raise exc

    clock = Clock(lambda: None)
    monkeypatch.setattr("turngate._sqlite.time", clock)
    monkeypatch.setattr("turngate._sqlite._migrate", locked)
    async with SqliteMessages(tmp_path / "messages.db", lock_timeout=2) as store:
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            await store.list("s")
    assert 100 <= clock.slept <= 2_000
    assert 2 <= clock.now < 2.1


@in_loop
async def test_a_problem_with_the_file_is_raised_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(lambda: None)
    monkeypatch.setattr("turngate._sqlite.time", clock)
    (tmp_path / "messages.db").write_bytes(b"this is no database" * 100)
    async with SqliteMessages(tmp_path / "messages.db") as store:
        with pytest.raises(sqlite3.DatabaseError, match="not a database"):
            await store.list("s")
    assert clock.slept == 0


@in_loop
async def test_lone_surrogates_cost_no_record(tmp_path: Path) -> None:
    async def echo(turn: Turn) -> str:
        return turn.run.prompt + "!"

    odd = "half of a smile: \ud83d, a file name: \udcff"
    async with (
        SqliteMessages(tmp_path / "messages.db") as store,
        Dispatcher(echo, messages=store, settle_timeout=HANG) as d,
    ):
        complete = await d.ask(f"session {odd}", odd, run_id=f"run {odd}")
        assert outcome(complete) == (f"{odd}!", None, False)
        messages = await store.list(f"session {odd}")
        assert [(m.session_id, m.run_id, m.text) for m in messages] == [
            (f"session {odd}", f"run {odd}", odd),
            (f"session {odd}", f"run {odd}", f"{odd}!"),
        ]
        assert await store.list("session") == []
        await store.put(messages)
        assert await store.list(f"session {odd}") == messages


@in_loop
async def test_a_store_without_a_file_keeps_its_messages_until_it_is_closed() -> None:
    async with SqliteMessages(":memory:") as store, Dispatcher(echo, messages=store) as d:
        await d.ask("s", "p")
        assert [message.text for message in await store.list("s")] == ["p", "p"]


# The file of an SQLite database: what is refused at the beginning, and what is noticed later.


def opened(path: Path, given: Path | None = None) -> OpenedFile:
    path.write_text("data")
    Path(f"{path}-wal").write_text("log")
    file = OpenedFile(os.fspath(given or path), path)
    assert file.problem() is None
    return file


def test_what_cannot_be_used_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="file"):
        absolute("")
    with pytest.raises(UnusableFile, match="does not exist"):
        check_usable(tmp_path / "nowhere" / "file")
    with pytest.raises(UnusableFile, match="a ~ is not expanded"):
        check_usable(Path("~") / "nowhere" / "file")
    with pytest.raises(UnusableFile, match="not a regular file"):
        check_usable(tmp_path)
    one = tmp_path / "one"
    one.write_text("data")
    os.link(one, tmp_path / "two")
    with pytest.raises(UnusableFile, match="2 hard links"):
        check_usable(one)


def replace(path: Path) -> None:
    other = path.with_name("other")
    other.write_text("other data")
    other.rename(path)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (replace, "was replaced by another file"),
        (lambda path: path.write_text(""), "was emptied"),
        (lambda path: path.unlink(), "was removed or renamed"),
        (lambda path: Path(f"{path}-wal").unlink(), "-wal was removed or replaced"),
        (lambda path: replace(Path(f"{path}-wal")), "-wal was removed or replaced"),
    ],
)
def test_a_file_that_changes_under_its_user_is_noticed(
    tmp_path: Path, change: Callable[[Path], object], told: str
) -> None:
    file = opened(tmp_path / "file")
    change(tmp_path / "file")
    assert told in (file.problem() or "")


def test_a_link_that_leads_elsewhere_is_noticed(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "file")
    file = opened(tmp_path / "file", link)
    link.unlink()
    (tmp_path / "other").write_text("other data")
    link.symlink_to(tmp_path / "other")
    assert "no longer leads to" in (file.problem() or "")


@pytest.mark.parametrize("hidden", ["file", "file-wal"])
def test_what_cannot_be_looked_at_is_no_problem(
    tmp_path: Path, hidden: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = opened(tmp_path / "file")
    stat = os.stat

    def refuses(path: Any, *args: Any, **options: Any) -> os.stat_result:
        if os.fspath(path) == os.fspath(tmp_path / hidden):
            raise PermissionError(13, "Permission denied", path)
        return stat(path, *args, **options)

    monkeypatch.setattr(os, "stat", refuses)
    assert file.problem() is None


@in_loop
async def test_messages_are_refused_once_the_file_was_replaced(tmp_path: Path) -> None:
    message = Message("id", "s", "r", "user", "text", None, None)
    async with SqliteMessages(tmp_path / "messages.db") as store:
        await store.put([message])
        replace(tmp_path / "messages.db")
        for _ in range(2):
            with pytest.raises(OSError, match="replaced"):
                await store.put([message])
