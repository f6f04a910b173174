"""The thread that does the work of an SQLite ledger: by itself, on a file of its own."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

import turngate.durable._sqlite_thread as thread_module
from dispatching import in_loop
from turngate.durable import LedgerUnavailable, SqliteLedger
from turngate.durable._ledger import LedgerGone, NotStorable
from turngate.durable._sqlite_thread import CommitThread, _SeenLedger


@in_loop
async def make(path: Path) -> None:
    ledger = SqliteLedger(path)
    await ledger.open()
    await ledger.register(5.0)
    await ledger.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    make(tmp_path / "ledger.db")
    return tmp_path / "ledger.db"


def connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None, check_same_thread=False)


def write(path: Path, statement: str = "PRAGMA user_version = 1") -> None:
    with closing(connect(path)) as other:
        other.execute(statement)


def nothing(connection: sqlite3.Connection) -> None:
    pass


def test_what_was_seen_is_looked_for_when_another_connection_has_written(path: Path) -> None:
    with closing(connect(path)) as connection:
        seen, looks = _SeenLedger(), list[str]()
        connection.set_trace_callback(looks.append)
        assert not seen.is_lost(connection)
        looks.clear()
        assert not seen.is_lost(connection)
        assert looks == ["PRAGMA data_version"]
        write(path)
        assert not seen.is_lost(connection)
        assert len(looks) > 2
        seen.reached += 1  # a step that is not there any more
        assert not seen.is_lost(connection)
        write(path, "PRAGMA user_version = 2")
        assert seen.is_lost(connection)


def test_steps_of_others_are_no_loss_and_a_step_of_ours_that_is_gone_is(path: Path) -> None:
    @in_loop
    async def check() -> None:
        async with bench(path) as at:
            write(path, "UPDATE meta SET number = 101")
            assert await outcomes(at.thread.do(nothing)) == [None]
            await at.thread.do(lambda it: it.execute("UPDATE meta SET number = 103") and None, writes=True)
            write(path, "UPDATE meta SET number = 102")
            assert await outcomes(at.thread.do(nothing)) == ["LedgerGone"]

    check()


def test_each_write_of_another_connection_is_told_once(path: Path) -> None:
    @in_loop
    async def check() -> None:
        told: list[None] = []
        thread = CommitThread(lambda: connect(path), lambda: None)
        thread.on_change(lambda: told.append(None))
        for _ in range(5):
            await thread.do(nothing)
        write(path)
        for _ in range(5):
            await thread.do(nothing)
        await thread.end()
        assert len(told) == 2  # the first look counts as one

    check()


def test_a_connection_to_a_file_that_is_gone_is_closed(path: Path) -> None:
    @in_loop
    async def check() -> None:
        gone: list[str] = []
        connections: list[sqlite3.Connection] = []

        def opened() -> sqlite3.Connection:
            connections.append(connect(path))
            return connections[-1]

        thread = CommitThread(opened, lambda: gone[-1] if gone else None)
        told: list[None] = []
        await thread.do(nothing)
        thread.on_change(lambda: told.append(None))
        await thread.do(nothing)
        await thread.do(nothing)  # by then it has looked for the first time
        assert len(told) == 1
        gone.append("it was removed")
        with pytest.raises(LedgerGone, match="it was removed"):
            await thread.do(lambda connection: connection.execute("PRAGMA user_version = 7"), writes=True)
        with pytest.raises(LedgerGone, match="it was removed"):
            await thread.do(nothing)  # by then the connection is closed
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            connections[0].execute("SELECT 1")
        assert len(connections) == 1
        await thread.end()
        assert len(told) == 2
        with closing(connect(path)) as other:
            assert other.execute("PRAGMA user_version").fetchone() != (7,)

    check()


def test_the_pause_between_failures_grows_until_it_gives_up(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(thread_module, "time", SimpleNamespace(sleep=pauses.append))

    is_well = [False] * 3 + [True, True]

    def fails() -> Any:
        if not is_well or not is_well.pop(0):
            raise MemoryError("no room")

    @in_loop
    async def check() -> None:
        thread = CommitThread(lambda: connect(path), fails)
        for _ in range(3):
            with pytest.raises(LedgerUnavailable, match="the ledger failed") as failed:
                await thread.do(nothing)
            assert isinstance(failed.value.__cause__, MemoryError)
        await thread.do(nothing)  # and begins to count again
        assert pauses == pytest.approx([0.02, 0.04, 0.08])
        pauses.clear()
        for _ in range(thread_module._FAILURES_LIMIT):
            with pytest.raises(LedgerUnavailable, match="the ledger failed"):
                await thread.do(nothing)
        with pytest.raises(LedgerGone, match="10"):
            await thread.do(nothing)
        await thread.end()

    check()
    assert pauses == pytest.approx([0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.0, 2.0])


class Trouble(NamedTuple):
    """What a statement raises, before or after it is carried out."""

    error: BaseException
    is_done_first: bool = False


class Faulty(sqlite3.Connection):
    """A connection whose statements raise: the next one that begins so, the one after it, and so on."""

    def __init__(self, *about: Any, **options: Any) -> None:
        super().__init__(*about, **options)
        self.troubles: dict[str, list[Trouble | None]] = {}
        self.is_closed = False

    def execute(self, sql: str, *about: Any) -> Any:
        ((troubles),) = [self.troubles[each] for each in self.troubles if sql.startswith(each)] or [[]]
        trouble = troubles.pop(0) if troubles else None
        if trouble is not None and not trouble.is_done_first:
            raise trouble.error
        cursor = super().execute(sql, *about)
        if trouble is not None:
            raise trouble.error
        return cursor

    def close(self) -> None:
        self.is_closed = True
        super().close()


class Bench:
    """A thread with a faulty connection, and what a test can do to it."""

    def __init__(self, path: Path) -> None:
        write(path, "CREATE TABLE IF NOT EXISTS kept (number INTEGER UNIQUE)")
        self.path = path
        self.problems: list[str | BaseException | None] = []
        """What the looks at the file find, one after the other."""
        self.connections: list[Faulty] = []
        self.refusals: list[BaseException] = []
        """What opening the file raises, one after the other."""
        self._may_go_on = threading.Event()
        self.thread = CommitThread(self._connect, self._problem)

    def _connect(self) -> sqlite3.Connection:
        if self.refusals:
            raise self.refusals.pop(0)
        made = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, factory=Faulty)
        self.connections.append(made)
        return made

    def _problem(self) -> str | None:
        found = self.problems.pop(0) if self.problems else None
        if isinstance(found, BaseException):
            raise found
        return found

    @property
    def connection(self) -> Faulty:
        return self.connections[-1]

    async def busy(self) -> asyncio.Future[bool]:
        """Keep the thread busy until `go_on`, so that what is asked meanwhile is one batch."""
        begun, self._may_go_on = threading.Event(), threading.Event()

        def wait(connection: sqlite3.Connection) -> bool:
            begun.set()
            return self._may_go_on.wait()

        job = self.thread.do(wait)
        await asyncio.to_thread(begun.wait)
        return job

    def go_on(self) -> None:
        self._may_go_on.set()

    def kept(self) -> list[int]:
        with closing(connect(self.path)) as other:
            return [number for (number,) in other.execute("SELECT number FROM kept ORDER BY number")]


def keep(number: int, error: BaseException | None = None) -> Callable[[sqlite3.Connection], int]:
    """Return a job that writes a number, and may fail after that."""

    def job(connection: sqlite3.Connection) -> int:
        connection.execute("INSERT INTO kept VALUES (?)", [number])
        if error is not None:
            raise error
        return number

    return job


def fail(error: BaseException) -> Callable[[sqlite3.Connection], None]:
    def job(connection: sqlite3.Connection) -> None:
        raise error

    return job


@asynccontextmanager
async def bench(path: Path) -> AsyncIterator[Bench]:
    made = Bench(path)
    try:
        await made.thread.do(nothing)
        yield made
    finally:
        await made.thread.end()
    assert all(each.is_closed for each in made.connections)


async def outcomes(*futures: Any) -> list[Any]:
    """Return what came of the jobs: the value, or the name of the error."""
    found = await asyncio.gather(*futures, return_exceptions=True)
    return [type(each).__name__ if isinstance(each, BaseException) else each for each in found]


def test_what_a_failed_job_has_written_is_undone_and_nothing_else(path: Path) -> None:
    @in_loop
    async def check() -> None:
        async with bench(path) as at:
            do, first = at.thread.do, await at.busy()
            three = (keep(1), keep(2, KeyError("no")), keep(3))
            jobs = [do(each, writes=True) for each in three]
            at.go_on()
            assert await outcomes(first, *jobs) == [True, 1, "KeyError", 3]
            assert at.kept() == [1, 3]
            assert await outcomes(do(keep(4, KeyError("no")), writes=True)) == ["KeyError"]
            assert at.kept() == [1, 3]
            first = await at.busy()
            two = [do(each, writes=True) for each in (keep(5), keep(6, KeyError("no")))]
            at.go_on()
            assert await outcomes(first, *two) == [True, 5, "KeyError"]
            assert at.kept() == [1, 3, 5]

    check()


def test_a_job_that_fails_before_it_writes_shares_the_commit_of_the_others(path: Path) -> None:
    @in_loop
    async def check() -> None:
        async with bench(path) as at:
            first, commits = await at.busy(), list[str]()
            jobs = [at.thread.do(each, writes=True) for each in (keep(1), fail(KeyError("no")), keep(2))]
            at.connection.set_trace_callback(commits.append)
            at.go_on()
            assert await outcomes(first, *jobs) == [True, 1, "KeyError", 2]
            # Of the busy one there is the end alone, and of these three one transaction.
            assert [each for each in commits if each.startswith(("BEGIN", "COMMIT", "ROLLBACK"))] == [
                *("COMMIT", "BEGIN IMMEDIATE", "COMMIT")
            ]

    check()


@pytest.mark.parametrize(
    "error", [sqlite3.DataError("odd"), sqlite3.IntegrityError("twice"), OverflowError(), UnicodeError()]
)
def test_a_value_that_cannot_be_stored_is_refused_for_good(path: Path, error: Exception) -> None:
    @in_loop
    async def check() -> None:
        async with bench(path) as at:
            with pytest.raises(NotStorable, match="cannot store this") as refused:
                await at.thread.do(fail(error), writes=True)
            assert refused.value.__cause__ is error
            assert await outcomes(at.thread.do(keep(1), writes=True)) == [1]

    check()


def test_an_answer_that_no_future_takes_is_given_in_other_words(path: Path) -> None:
    @in_loop
    async def check() -> None:
        async with bench(path) as at:
            first = await at.busy()
            left, odd = at.thread.do(keep(1), writes=True), at.thread.do(fail(StopIteration()))
            left.cancel()
            at.go_on()
            with pytest.raises(RuntimeError, match="StopIteration"):
                await odd
            assert await first
            assert at.kept() == [1]  # a caller that does not wait any more has asked all the same

    check()


def test_a_file_that_goes_while_jobs_are_done_leaves_their_writes_in_doubt(path: Path) -> None:
    @in_loop
    async def check() -> None:
        async with bench(path) as at:
            first = await at.busy()
            at.problems = [None, None, "it was moved"]  # of the busy one, then before and after these
            jobs = [
                at.thread.do(keep(1), writes=True),
                at.thread.do(nothing),
                at.thread.do(fail(KeyError("no")), writes=True),
            ]
            at.go_on()
            assert await outcomes(first, *jobs) == [True, "OutcomeUnknown", "LedgerGone", "LedgerGone"]
            with pytest.raises(LedgerGone, match="it was moved"):
                await at.thread.do(nothing)
            assert at.connection.is_closed

    check()


def test_nothing_is_done_on_an_older_ledger_that_was_restored_meanwhile(path: Path) -> None:
    @in_loop
    async def check() -> None:
        async with bench(path) as at:
            at.thread._seen.reached += 1
            write(path)
            with pytest.raises(LedgerGone, match="restored"):
                await at.thread.do(keep(1), writes=True)
            assert at.kept() == []
            assert await outcomes(at.thread.do(nothing)) == ["LedgerGone"]
            assert at.connection.is_closed

    check()


def damage(code: int) -> sqlite3.Error:
    error = sqlite3.DatabaseError("the disk image is malformed")
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize("code", [sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, 267])
def test_a_damaged_file_is_not_used_any_more(path: Path, code: int) -> None:
    @in_loop
    async def check() -> None:
        async with bench(path) as at:
            assert await outcomes(at.thread.do(fail(damage(code)))) == ["LedgerGone"]
            with pytest.raises(LedgerGone, match="damaged: the disk image is malformed"):
                await at.thread.do(nothing)

    check()


def test_jobs_that_sqlite_refuses_are_undone_together(path: Path) -> None:
    @in_loop
    async def check() -> None:
        async with bench(path) as at:
            first, full = await at.busy(), sqlite3.OperationalError("database or disk is full")
            jobs: list[asyncio.Future[Any]] = [
                at.thread.do(each, writes=True) for each in (keep(1), fail(full))
            ]
            at.go_on()
            assert await outcomes(first, *jobs) == [True, "LedgerUnavailable", "LedgerUnavailable"]
            assert [getattr(job.exception(), "__cause__", None) for job in jobs] == [full, full]
            assert at.kept() == []
            assert await outcomes(at.thread.do(keep(2), writes=True)) == [2]

    check()


@pytest.mark.parametrize("rollbacks", [1, 2])
def test_a_transaction_that_cannot_be_undone_is_undone_later_or_never(
    path: Path, rollbacks: int, caplog: pytest.LogCaptureFixture
) -> None:
    @in_loop
    async def check() -> None:
        async with bench(path) as at:
            broken = Trouble(sqlite3.OperationalError("no"))
            at.connection.troubles["ROLLBACK"] = [broken] * rollbacks
            job = at.thread.do(keep(1, sqlite3.OperationalError("full")), writes=True)
            with pytest.raises(LedgerUnavailable, match="the ledger failed: OperationalError: full"):
                await job
            if rollbacks == 1:
                assert await outcomes(at.thread.do(keep(2), writes=True)) == [2]
                assert at.kept() == [2]
            else:
                with pytest.raises(LedgerGone, match="cannot be used any more: OperationalError: full"):
                    await at.thread.do(nothing)
                assert at.kept() == []

    check()
    assert len(caplog.records) == rollbacks  # the failure, and that it cannot be undone


def test_what_fails_behind_a_commit_that_failed_is_not_in_doubt(path: Path) -> None:
    @in_loop
    async def check() -> None:
        async with bench(path) as at:
            first = await at.busy()
            at.connection.troubles["COMMIT"] = [None, Trouble(sqlite3.OperationalError("full"))]
            at.problems = [None, None, MemoryError("no room")]
            job = at.thread.do(keep(1), writes=True)
            at.go_on()
            assert await outcomes(first, job) == [True, "LedgerUnavailable"]
            assert at.kept() == []

    check()


def test_a_transaction_that_cannot_begin_is_no_failure_of_the_thread(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    @in_loop
    async def check() -> None:
        async with bench(path) as at:
            at.connection.troubles["BEGIN"] = [Trouble(MemoryError("no room"))]
            with pytest.raises(LedgerUnavailable, match="could not be written: no room"):
                await at.thread.do(keep(1), writes=True)
            assert await outcomes(at.thread.do(keep(2), writes=True)) == [2]

    check()
    assert not caplog.records


@pytest.mark.parametrize(
    ("trouble", "outcome", "kept"),
    [
        (Trouble(MemoryError()), "LedgerUnavailable", []),
        (Trouble(MemoryError(), is_done_first=True), "OutcomeUnknown", [1]),
        (Trouble(sqlite3.OperationalError("full")), "LedgerUnavailable", []),
    ],
)
def test_a_commit_that_fails_is_told_as_it_is(
    path: Path, trouble: Trouble, outcome: str, kept: list[int]
) -> None:
    @in_loop
    async def check() -> None:
        async with bench(path) as at:
            at.connection.troubles["COMMIT"] = [trouble]
            assert await outcomes(at.thread.do(keep(1), writes=True)) == [outcome]
            assert at.kept() == kept
            at.connection.troubles["COMMIT"] = [trouble]
            assert await outcomes(at.thread.do(nothing)) == ["LedgerUnavailable"]  # it has written nothing
            assert await outcomes(at.thread.do(keep(2), writes=True)) == [2]

    check()


def test_a_look_that_fails_is_no_news_and_the_next_one_counts(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    @in_loop
    async def check() -> None:
        async with bench(path) as at:
            told: list[None] = []
            at.thread.on_change(lambda: told.append(None))
            await at.thread.do(nothing)
            told.clear()
            # The thread may look at any time, so what fails is every look behind the check of what was seen.
            busy = Trouble(sqlite3.OperationalError("busy"))
            first = await at.busy()
            at.connection.troubles["PRAGMA data_version"] = [busy]
            write(path)
            at.go_on()
            assert await first
            assert told == []
            await at.thread.do(nothing)
            await at.thread.do(nothing)
            assert told == [None]

    check()
    assert not caplog.records


def test_a_file_that_cannot_be_opened_refuses_the_jobs_and_is_opened_for_the_next(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, looked = list[list[Any] | None](), threading.Event()
    take = CommitThread._next_batch

    def counted(thread: CommitThread) -> list[Any] | None:
        looks.append(take(thread))
        if looks[-2:] == [[], []]:  # twice without work, and without a connection to look with
            looked.set()
        return looks[-1]

    monkeypatch.setattr(CommitThread, "_next_batch", counted)
    monkeypatch.setattr(thread_module, "_LOOK_INTERVAL", 0.001)

    @in_loop
    async def check() -> None:
        at = Bench(path)
        at.thread.on_change(lambda: None)
        at.refusals = [LedgerUnavailable("locked")]
        with pytest.raises(LedgerUnavailable, match="locked"):
            await at.thread.do(nothing)
        await asyncio.to_thread(looked.wait)
        assert at.connections == []
        assert await outcomes(at.thread.do(keep(1), writes=True)) == [1]
        await at.thread.end()
        assert [each.is_closed for each in at.connections] == [True]

    check()


@pytest.mark.parametrize("writes", [True, False])
def test_a_thread_that_dies_answers_all_that_is_and_will_be_asked(
    path: Path, writes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    def log_error(exc: BaseException | None, message: str, *about: object) -> None:
        said.append(message)
        if len(said) == 1:
            raise MemoryError("not even for a line in the log")

    monkeypatch.setattr(thread_module, "log_error", log_error)
    monkeypatch.setattr(thread_module, "_BATCH_LIMIT", 1)

    @in_loop
    async def check() -> None:
        at = Bench(path)
        first = await at.busy()
        at.problems = [None, None, MemoryError()] if writes else [None, MemoryError()]
        jobs = [at.thread.do(keep(number), writes=True) for number in range(3)]
        at.thread._jobs.put(None)  # as the end does
        at.go_on()
        unwritten = "LedgerUnavailable"
        in_hand = "OutcomeUnknown" if writes else unwritten  # after its commit, or before it began
        assert await outcomes(first, *jobs) == [True, in_hand, unwritten, unwritten]
        assert at.kept() == [0] * writes
        with pytest.raises(LedgerUnavailable, match="the thread of the ledger is dead"):
            await at.thread.do(nothing)
        await at.thread.end()
        at.connection.close()
        assert said[1:] == ["the thread of the ledger has died"]

    check()


def test_all_jobs_are_done_before_the_end_and_none_is_taken_behind_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined: list[tuple[str, bool]] = []
    join = threading.Thread.join

    def noted(thread: threading.Thread, timeout: float | None = None) -> None:
        joined.append((thread.name, thread.daemon))  # a process may end without it
        join(thread, timeout)

    monkeypatch.setattr(threading.Thread, "join", noted)

    @in_loop
    async def check() -> None:
        at = Bench(path)
        first = await at.busy()
        jobs = [at.thread.do(keep(number), writes=True) for number in range(2)]
        end = asyncio.ensure_future(at.thread.end())
        await asyncio.sleep(0)
        with pytest.raises(LedgerUnavailable, match="the ledger is closed"):
            at.thread.do(nothing)
        at.go_on()
        assert await outcomes(first, *jobs) == [True, 0, 1]
        await end
        assert ("turngate-ledger", True) in joined
        assert at.connection.is_closed

    check()


def test_a_failure_at_the_end_does_not_keep_it_from_ending(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_pause(seconds: float) -> None:
        raise AssertionError("there is nothing to wait for at the end")

    monkeypatch.setattr(thread_module, "time", SimpleNamespace(sleep=no_pause))

    @in_loop
    async def check() -> None:
        at = Bench(path)
        first = await at.busy()
        job = at.thread.do(keep(1), writes=True)
        at.problems = [None, MemoryError("no room")]
        end = asyncio.ensure_future(at.thread.end())
        await asyncio.sleep(0)
        at.go_on()
        assert await outcomes(first, job) == [True, "LedgerUnavailable"]
        await end
        assert at.connection.is_closed

    check()


def test_a_failure_that_swallows_the_end_does_not_keep_it_from_ending(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = CommitThread._next_batch
    failures = [MemoryError("no room")]

    def failing(thread: CommitThread) -> list[Any] | None:
        batch = take(thread)
        if batch is None and failures:
            raise failures.pop()
        return batch

    monkeypatch.setattr(CommitThread, "_next_batch", failing)

    @in_loop
    async def check() -> None:
        async with bench(path) as at:
            at.problems = [MemoryError("no room")]  # and before the end it goes on
            assert await outcomes(at.thread.do(nothing)) == ["LedgerUnavailable"]
            assert await outcomes(at.thread.do(nothing)) == [None]
        assert not failures

    check()


def test_many_jobs_are_done_in_batches_of_a_limited_size(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_module, "_BATCH_LIMIT", 3)

    @in_loop
    async def check() -> None:
        async with bench(path) as at:
            first, statements = await at.busy(), list[str]()
            jobs = [at.thread.do(keep(number), writes=True) for number in range(4)]
            at.connection.set_trace_callback(statements.append)
            at.go_on()
            assert await outcomes(first, *jobs) == [True, 0, 1, 2, 3]
            assert [each.partition(" ")[0] for each in statements if each[:3] in {"COM", "INS"}] == [
                *("COMMIT", "INSERT", "INSERT", "INSERT", "COMMIT", "INSERT", "COMMIT")
            ]

    check()
