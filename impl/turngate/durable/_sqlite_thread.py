"""One thread that does all the work on one SQLite connection, in transactions that waiting jobs share.

A commit waits for the disk, so all jobs that are waiting share one (group commit). A job that raises before
it has written anything does not disturb the others; if it has written, the transaction is rolled back, and
its jobs are done again one by one. A job is answered once its transaction is on disk. A transaction without a
job that writes takes no lock.

Before and after each transaction, and several times a second in between, the thread checks that the file is
still the one that was opened. At the beginning of each transaction it checks that no older ledger was written
into the file. If the ledger is gone in either way, the transaction is not acknowledged, the connection is
closed, and every later job is refused.

The thread survives unexpected errors. It rolls the transaction back and answers each job truthfully:
LedgerUnavailable if none of it is in the file, OutcomeUnknown if it may be. Then it goes on, after a pause
that grows. If it fails many times in a row, or cannot roll back, it treats the ledger as gone and refuses
every later job.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from turngate._log import describe, log_error
from turngate.durable._ledger import LedgerGone, LedgerUnavailable, NotStorable, OutcomeUnknown
from turngate.durable._sql import statements

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future

T = TypeVar("T")

_SQL: Final = statements("sqlite")
_LOOK_INTERVAL: Final = 0.05
"""Seconds between two looks at whether another process has written, while there is no work."""
_DAMAGED: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_BATCH_LIMIT: Final = 256
"""The most jobs that share a transaction."""
_FAILURES_LIMIT: Final = 10
"""The thread gives up after this many unexpected failures in a row."""
_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 2.0
_ABOUT_DATA: Final = (sqlite3.DataError, sqlite3.IntegrityError, OverflowError, UnicodeError)
"""Errors caused by a value, which would be refused again."""
_RESTORED: Final = (
    "an older ledger was restored while it was open; nothing more is written; restart to use what is there "
    "now"
)


class _Job(NamedTuple):
    call: Callable[[sqlite3.Connection], Any]
    writes: bool
    answer: Future[Any]


class _Answer(NamedTuple):
    future: Future[Any]
    value: Any
    error: BaseException | None


class _FailedJob(Exception):
    """A job has failed with the `error`, after it had written something."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


class _SeenLedger:
    """What this process has seen of the ledger. Numbers never decrease, so all of it must still be there.

    reached  the last number that was seen
    """

    def __init__(self) -> None:
        self.reached = 0
        self._epoch: tuple[int, str] = (0, "")
        self._data_version: int | None = None

    def is_lost(self, connection: sqlite3.Connection) -> bool:
        """Return whether something is gone; checks only if another connection has written."""
        version = _data_version(connection)
        if version == self._data_version:
            return False
        number = _last_number(connection)
        if self._data_version is not None:
            epoch, name = self._epoch
            about = {"1": name, "2": epoch, "3": self.reached}
            goes_on = connection.execute(_SQL["goes_on"], about).fetchone()[0]
            if number < self.reached or not goes_on:
                return True
        self._epoch = connection.execute(_SQL["last_epoch"]).fetchone()
        self._data_version, self.reached = version, number
        return False


class CommitThread:
    """The thread, and the jobs that wait for it. Created on the loop that it answers to.

    connect  opens the file, at the first job
    problem  says what has become of the file if it is not the one that was opened
    """

    def __init__(self, connect: Callable[[], sqlite3.Connection], problem: Callable[[], str | None]) -> None:
        self._loop: AbstractEventLoop = asyncio.get_running_loop()
        self._connect = connect
        self._problem = problem
        self._seen = _SeenLedger()
        self._gone: str | None = None
        """Why every job is refused from now on."""
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        """Waiting jobs; None ends the thread."""
        self._in_hand: list[_Job] = []
        """Jobs that the thread has taken and not answered yet."""
        self._may_be_saved = False
        """Whether the writes of the jobs in hand may be in the file."""
        self._is_dead = False
        """Whether the thread takes no more jobs."""
        self._ending = False
        self._over = asyncio.Event()
        self._changed: Callable[[], None] | None = None
        self._data_version: int | None = None
        self._thread = threading.Thread(target=self._work, name="turngate-ledger", daemon=True)
        self._thread.start()

    def do(self, call: Callable[[sqlite3.Connection], T], *, writes: bool = False) -> Future[T]:
        """Have the thread make the call within a transaction. The future is done once that is committed.

        Cancelling the future does not stop the job.
        """
        if self._ending:
            raise LedgerUnavailable("the ledger is closed")
        answer: Future[T] = self._loop.create_future()
        self._jobs.put(_Job(call, writes, answer))
        if self._is_dead:
            answer.set_exception(LedgerUnavailable("the thread of the ledger is dead"))
        return answer

    def on_change(self, changed: Callable[[], None]) -> None:
        """Have `changed` called on the loop when another process has written."""
        self._changed = changed

    async def end(self) -> None:
        """Do the jobs that are left, close the connection, and end the thread."""
        self._ending = True
        self._jobs.put(None)
        await self._over.wait()
        self._thread.join()

    # In the thread.

    def _work(self) -> None:
        try:
            self._work_on()
        except BaseException as exc:
            log_error(exc, "the thread of the ledger has died")
        finally:
            self._is_dead = True
            why = "the thread of the ledger is dead"
            self._refuse(self._in_hand, OutcomeUnknown(why) if self._may_be_saved else LedgerUnavailable(why))
            while not self._jobs.empty():
                if (job := self._jobs.get()) is not None:
                    self._refuse([job], LedgerUnavailable(why))
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._over.set)

    def _work_on(self) -> None:
        connection: sqlite3.Connection | None = None
        failures = 0
        is_over = False
        while not is_over:
            try:
                self._in_hand, self._may_be_saved = [], False
                batch = self._next_batch()
                if batch is None:
                    is_over = True
                elif self._gone is not None:
                    self._refuse(batch, LedgerGone(self._gone))
                elif batch or connection is not None:
                    connection = connection or self._connected(batch)
                    if connection is not None:
                        self._do_batch(connection, batch)
                        failures = 0
            except BaseException as exc:
                failures += 1
                self._recover(connection, exc, failures)
                if self._ending:
                    self._jobs.put(None)  # the failure may have consumed the one in the queue
            if self._gone is not None and connection is not None:
                # SQLite copies its log into the file only if the file is still in its place.
                _close(connection)
                connection = None
                self._wake()
        if connection is not None:
            _close(connection)

    def _next_batch(self) -> list[_Job] | None:
        """Wait a while for jobs; None if there are none and no more will come."""
        jobs, in_hand = self._jobs, self._in_hand
        try:
            job = jobs.get(timeout=_LOOK_INTERVAL if self._changed is not None else None)
        except Empty:
            return []
        is_last = job is None
        if job is not None:
            in_hand.append(job)
        for _ in range(min(jobs.qsize(), _BATCH_LIMIT - 1)):
            job = jobs.get_nowait()
            if job is not None:
                in_hand.append(job)
            is_last = is_last or job is None
        if is_last and in_hand:
            jobs.put(None)  # for the next time
        return None if is_last and not in_hand else [*in_hand]

    def _connected(self, batch: list[_Job]) -> sqlite3.Connection | None:
        """Open the file; if that fails, refuse the jobs."""
        try:
            return self._connect()
        except BaseException as exc:
            self._refuse(batch, exc)
            return None

    def _do_batch(self, connection: sqlite3.Connection, batch: list[_Job]) -> None:
        """Do the jobs and answer them, unless the file is gone.

        If it disappears while the jobs are done, their writes may or may not be in it.
        """
        self._gone = self._problem()
        if self._gone is not None:
            self._refuse(batch, LedgerGone(self._gone))
            return
        answers = self._run(connection, batch) if batch else []
        self._gone = self._gone or self._problem()
        if self._gone is None:
            self._answer(answers)
            self._in_hand = []
            self._look(connection)
            return
        for job, answer in zip(batch, answers, strict=True):
            unknown = job.writes and answer.error is None
            self._refuse([job], OutcomeUnknown(self._gone) if unknown else LedgerGone(self._gone))

    def _run(self, connection: sqlite3.Connection, batch: list[_Job]) -> list[_Answer]:
        """Do the jobs in one transaction; if one fails after it has written, each in its own."""
        committing, others_may_be = False, self._may_be_saved
        try:
            connection.execute("BEGIN IMMEDIATE" if any(job.writes for job in batch) else "BEGIN")
            if self._seen.is_lost(connection):
                self._gone = _RESTORED
                connection.execute("ROLLBACK")
                return [_Answer(job.answer, None, LedgerGone(_RESTORED)) for job in batch]
            answers = [_do(connection, job) for job in batch]
            number = _last_number(connection)
            committing = self._may_be_saved = True
            connection.execute("COMMIT")
            self._seen.reached = max(self._seen.reached, number)
        except BaseException as exc:
            if committing and not isinstance(exc, sqlite3.Error) and not connection.in_transaction:
                raise  # SQLite itself did not refuse the commit
            with contextlib.suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            if getattr(exc, "sqlite_errorcode", 0) & 0xFF in _DAMAGED:
                self._gone = f"the ledger is damaged: {exc}"
            elif connection.in_transaction:
                raise
            self._may_be_saved = others_may_be  # nothing from this batch is in the file
            if isinstance(exc, _FailedJob) and len(batch) > 1:
                return [answer for job in batch for answer in self._run(connection, [job])]
            why: BaseException
            if isinstance(exc, _FailedJob):
                why = exc.error
            else:
                why = LedgerUnavailable(f"the ledger could not be written: {exc}")
                why.__cause__ = exc
            return [_Answer(job.answer, None, why) for job in batch]
        return answers

    def _recover(self, connection: sqlite3.Connection | None, exc: BaseException, failures: int) -> None:
        """After an unexpected error: roll back, and answer the jobs in hand."""
        log_error(exc, "the thread of the ledger has failed (%d in a row)", failures)
        try:
            if connection is not None and connection.in_transaction:
                connection.execute("ROLLBACK")
        except BaseException as raised:
            log_error(raised, "the thread of the ledger cannot roll back its transaction, and gives up")
            self._gone = f"the ledger cannot be used any more: {describe(exc)}; open it again"
        if failures >= _FAILURES_LIMIT:
            self._gone = f"the ledger failed {failures} times in a row: {describe(exc)}; open it again"
        for job in self._in_hand:
            unknown = self._may_be_saved and job.writes
            why = (OutcomeUnknown if unknown else LedgerUnavailable)(f"the ledger failed: {describe(exc)}")
            why.__cause__ = exc
            self._refuse([job], why)
        if self._gone is None and not self._ending:
            time.sleep(min(_PAUSE * 2 ** (failures - 1), _LONGEST_PAUSE))

    def _look(self, connection: sqlite3.Connection) -> None:
        """Find out whether another connection has written since the last look."""
        if self._changed is None:
            return
        try:
            version = _data_version(connection)
        except sqlite3.Error:
            return  # the next job will fail with it
        if version != self._data_version:
            self._data_version = version
            self._wake()

    def _wake(self) -> None:
        if self._changed is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._changed)

    def _refuse(self, batch: list[_Job], error: BaseException) -> None:
        self._answer([_Answer(job.answer, None, error) for job in batch])

    def _answer(self, answers: list[_Answer]) -> None:
        if answers:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(_set, answers)


def _do(connection: sqlite3.Connection, job: _Job) -> _Answer:
    """Do one job. Raises _FailedJob if it has failed and its writes must be undone."""
    before = connection.total_changes
    error: BaseException
    try:
        return _Answer(job.answer, job.call(connection), None)
    except _ABOUT_DATA as exc:
        error = NotStorable(f"the ledger cannot store this: {exc}")
        error.__cause__ = exc
    except sqlite3.Error:
        raise
    except BaseException as exc:
        error = exc
    if connection.total_changes != before:
        raise _FailedJob(error)
    return _Answer(job.answer, None, error)


def _last_number(connection: sqlite3.Connection) -> int:
    return int(connection.execute(_SQL["number"]).fetchone()[0])


def _data_version(connection: sqlite3.Connection) -> int:
    """Return a number that changes when another connection has written."""
    return int(connection.execute("PRAGMA data_version").fetchone()[0])


def _close(connection: sqlite3.Connection) -> None:
    with contextlib.suppress(sqlite3.Error):
        connection.close()


def _set(answers: list[_Answer]) -> None:
    for future, value, error in answers:
        if future.done():
            continue  # the caller was cancelled
        if error is None:
            future.set_result(value)
        elif isinstance(error, StopIteration):  # a future does not accept it
            future.set_exception(RuntimeError(f"a job of the ledger raised {error!r}"))
        else:
            future.set_exception(error)
