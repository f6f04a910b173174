"""One thread that does all the work on one SQLite connection, as many jobs in a transaction as are waiting.

A commit waits for the disk, so those who wait share one (group commit). What one job raises undoes that one
alone: a step has written nothing yet when it raises, and any other job runs under a savepoint of its own. The
jobs are answered when all of it is on disk. A batch without a job that writes takes no lock.

Before and after each batch, and several times a second without one, the thread looks whether the file is
still the one that was opened, and at the beginning of each batch whether an older ledger was written into it.
If the ledger is gone in one way or the other, the batch is not acknowledged, the connection is closed, and
every later job is refused.

The thread does not die of what it did not expect. The transaction is rolled back, and each job in hand is
told the truth: LedgerUnavailable if none of it is in the file, OutcomeUnknown if it may be. Then the thread
goes on, after a pause that grows. If it fails time after time, or cannot roll back, it counts the ledger as
gone and refuses every later job.
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

from turngate._guard import complain, describe
from turngate.durable._ledger import LedgerGone, LedgerUnavailable, NotStorable, OutcomeUnknown
from turngate.durable._sqlite_steps import Steps, data_version

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future

    from turngate.durable._rows import Ask, Decide, Decision

T = TypeVar("T")

_LOOKS_EVERY: Final = 0.05
"""Seconds after which the thread looks whether another process has written, unless it works anyway."""
_DAMAGED: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_MOST: Final = 256
"""So many jobs at most are in one transaction."""
_FAILURES: Final = 10
"""After so many unexpected failures in a row the thread gives up."""
_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 2.0
_ABOUT_DATA: Final = (sqlite3.DataError, sqlite3.IntegrityError, OverflowError, UnicodeError)
"""What is raised because of a value: it will be refused again."""
_RESTORED: Final = (
    "an older ledger was restored while it was open; nothing more is written; restart to use what is there "
    "now"
)


class _Job(NamedTuple):
    call: Callable[[sqlite3.Connection], Any]
    writes: bool
    answer: Future[Any]
    is_step: bool


class CommitThread:
    """The thread, and the jobs that wait for it. Made on the loop that it answers to.

    connect  opens the file, at the first job
    problem  says what has become of the file if it is no longer the one that was opened
    """

    def __init__(
        self, connect: Callable[[], sqlite3.Connection], problem: Callable[[], str | None], *, history: bool
    ) -> None:
        self._loop: AbstractEventLoop = asyncio.get_running_loop()
        self._connect = connect
        self._problem = problem
        self._gone: str | None = None
        """Why nothing is done any more."""
        self._steps = Steps(history=history)
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        """Those that wait; None is the last."""
        self._in_hand: list[_Job] = []
        """Those that the thread has taken and not answered."""
        self._may_be_saved = False
        """Whether what those have written may be in the file."""
        self._is_dead = False
        """Whether the thread is over, or will take no job any more."""
        self._ending = False
        self._over = asyncio.Event()
        self._changed: Callable[[], None] | None = None
        self._data_version: int | None = None
        self._thread = threading.Thread(target=self._work, name="turngate-ledger", daemon=True)
        self._thread.start()

    def do(self, call: Callable[[sqlite3.Connection], T], *, writes: bool = False) -> Future[T]:
        """Have the thread call, within a transaction, and return the answer when that is committed.

        Whoever is cancelled while waiting leaves the job to be done.
        """
        return self._add(call, writes, is_step=False)

    def step(self, ask: Ask, decide: Decide) -> Future[Decision]:
        """Have the thread take a step, as `do` does."""
        return self._add(lambda connection: self._steps.step(connection, ask, decide), True, is_step=True)

    def _add(self, call: Callable[[sqlite3.Connection], T], writes: bool, *, is_step: bool) -> Future[T]:
        if self._ending:
            raise LedgerUnavailable("the ledger is closed")
        answer: Future[T] = self._loop.create_future()
        self._jobs.put(_Job(call, writes, answer, is_step))
        if self._is_dead:
            answer.set_exception(LedgerUnavailable("the thread of the ledger is dead"))
        return answer

    def tell_changes(self, changed: Callable[[], None]) -> None:
        """Have `changed` called on the loop when another process has written."""
        self._changed = changed

    async def end(self) -> None:
        """Do what is left, close the connection, and end."""
        self._ending = True
        self._jobs.put(None)
        await self._over.wait()
        self._thread.join()

    # In the thread.

    def _work(self) -> None:
        try:
            self._work_on()
        except BaseException as exc:
            complain(exc, "the thread of the ledger has died")
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
                    self._jobs.put(None)  # the one that was there may be lost
            if self._gone is not None and connection is not None:
                # SQLite copies its log into the file if that is still in its place, and only then.
                _close(connection)
                connection = None
                self._wake()
        if connection is not None:
            _close(connection)

    def _connected(self, batch: list[_Job]) -> sqlite3.Connection | None:
        """Open the file; if that cannot be done, say so to those who wait."""
        try:
            return self._connect()
        except BaseException as exc:
            self._refuse(batch, exc)
            return None

    def _recover(self, connection: sqlite3.Connection | None, exc: BaseException, failures: int) -> None:
        """Go on after what was not expected: undo what can be undone, and answer the jobs in hand."""
        complain(exc, "the thread of the ledger has failed (%d in a row)", failures)
        try:
            self._steps.forget()
            if connection is not None and connection.in_transaction:
                connection.execute("ROLLBACK")
        except BaseException as raised:
            complain(raised, "the thread of the ledger cannot undo what it has begun, and gives up")
            self._gone = f"the ledger cannot be used any more: {describe(exc)}; open it again"
        if failures >= _FAILURES:
            self._gone = f"the ledger failed {failures} times in a row: {describe(exc)}; open it again"
        for job in self._in_hand:
            unknown = self._may_be_saved and job.writes
            why = (OutcomeUnknown if unknown else LedgerUnavailable)(f"the ledger failed: {describe(exc)}")
            why.__cause__ = exc
            self._refuse([job], why)
        if self._gone is None and not self._ending:
            time.sleep(min(_PAUSE * 2 ** (failures - 1), _LONGEST_PAUSE))

    def _do_batch(self, connection: sqlite3.Connection, batch: list[_Job]) -> None:
        """Do the jobs and answer them, unless the file is gone.

        If it goes while the jobs are done, it may or may not have taken in what they wrote.
        """
        self._gone = self._problem()
        if self._gone is not None:
            self._refuse(batch, LedgerGone(self._gone))
            return
        writes = any(job.writes for job in batch)
        answers = self._run(connection, batch, writes=writes) if batch else []
        self._gone = self._gone or self._problem()
        if self._gone is None:
            self._answer(answers)
            self._in_hand = []
            self._look(connection, writes=writes)
            return
        for job, (_, _, exc) in zip(batch, answers, strict=True):
            unknown = job.writes and exc is None
            self._refuse([job], OutcomeUnknown(self._gone) if unknown else LedgerGone(self._gone))

    def _refuse(self, batch: list[_Job], exc: BaseException) -> None:
        self._answer([(job.answer, None, exc) for job in batch])

    def _next_batch(self) -> list[_Job] | None:
        """Wait for jobs, for a while; None when there are none and none will come."""
        jobs, in_hand = self._jobs, self._in_hand
        try:
            job = jobs.get(timeout=_LOOKS_EVERY if self._changed is not None else None)
        except Empty:
            return []
        is_last = job is None
        if job is not None:
            in_hand.append(job)
        for _ in range(min(jobs.qsize(), _MOST - 1)):
            job = jobs.get_nowait()
            if job is not None:
                in_hand.append(job)
            is_last = is_last or job is None
        if is_last and in_hand:
            jobs.put(None)  # for the next time
        return None if is_last and not in_hand else [*in_hand]

    def _run(
        self, connection: sqlite3.Connection, batch: list[_Job], *, writes: bool
    ) -> list[tuple[Future[Any], Any, BaseException | None]]:
        steps = self._steps
        committing, others_are = False, self._may_be_saved
        try:
            if writes:
                connection.execute("BEGIN IMMEDIATE")
                steps.begin(connection)
            else:
                connection.execute("BEGIN")
            if steps.is_restored(connection):
                self._gone = _RESTORED
                connection.execute("ROLLBACK")
                return [(job.answer, None, LedgerGone(_RESTORED)) for job in batch]
            answers = [self._do(connection, job) for job in batch]
            steps.write(connection)
            committing = self._may_be_saved = True
            connection.execute("COMMIT")
            steps.committed()
        except BaseException as exc:
            if committing and not isinstance(exc, sqlite3.Error) and not connection.in_transaction:
                raise  # SQLite itself did not refuse the commit
            steps.forget()
            with contextlib.suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            if getattr(exc, "sqlite_errorcode", 0) & 0xFF in _DAMAGED:
                self._gone = f"the ledger is damaged: {exc}"
            elif connection.in_transaction:
                raise
            self._may_be_saved = others_are  # nothing of this batch is in the file
            if isinstance(exc, _ABOUT_DATA):
                if len(batch) > 1:  # one of them is to blame
                    return [
                        answer for job in batch for answer in self._run(connection, [job], writes=job.writes)
                    ]
                refused = NotStorable(f"the ledger cannot store this: {exc}")
                refused.__cause__ = exc
                return [(batch[0].answer, None, refused)]
            why = LedgerUnavailable(f"the ledger could not be written: {exc}")
            why.__cause__ = exc
            return [(job.answer, None, why) for job in batch]
        return answers

    def _do(self, connection: sqlite3.Connection, job: _Job) -> tuple[Future[Any], Any, BaseException | None]:
        """Do one job; undo what it did if it raises. An error of SQLite's own ends the whole batch."""
        if not job.is_step:
            self._steps.write(connection)
            connection.execute("SAVEPOINT job")
        try:
            answer = job.call(connection)
        except sqlite3.Error:
            raise
        except BaseException as exc:
            if not job.is_step:
                connection.execute("ROLLBACK TO job")
                connection.execute("RELEASE job")
            return job.answer, None, exc
        if not job.is_step:
            connection.execute("RELEASE job")
            if job.writes:
                self._steps.forget()
        return job.answer, answer, None

    def _look(self, connection: sqlite3.Connection, *, writes: bool) -> None:
        """Find out whether another connection has written since the last look; who writes has looked."""
        if self._changed is None:
            return
        try:
            version = self._steps.data_version if writes else data_version(connection)
        except sqlite3.Error:
            return  # whoever asks for something will be told
        if version != self._data_version:
            self._data_version = version
            self._wake()

    def _wake(self) -> None:
        if self._changed is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._changed)

    def _answer(self, answers: list[tuple[Future[Any], Any, BaseException | None]]) -> None:
        if answers:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(_set, answers)


def _close(connection: sqlite3.Connection) -> None:
    with contextlib.suppress(sqlite3.Error):
        connection.close()


def _set(answers: list[tuple[Future[Any], Any, BaseException | None]]) -> None:
    for future, answer, exc in answers:
        if future.done():
            continue  # whoever asked has been cancelled
        if exc is None:
            future.set_result(answer)
        elif isinstance(exc, StopIteration):  # which a future does not take
            future.set_exception(RuntimeError(f"a job of the ledger raised {exc!r}"))
        else:
            future.set_exception(exc)
