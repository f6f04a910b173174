"""Background tasks: a failure is logged and passes, or reaches those that depend on the task."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest

from dispatching import in_loop
from turngate._supervise import Supervisor


class Work:
    """Fails a given number of times, then waits until it may end."""

    def __init__(self, *failures: BaseException) -> None:
        self._failures = [*failures]
        self.starts = 0
        self.going = asyncio.Event()
        self.end = asyncio.Event()

    async def __call__(self) -> None:
        self.starts += 1
        await asyncio.sleep(0)
        if self._failures:
            raise self._failures.pop(0)
        self.going.set()
        await self.end.wait()


def _supervisor() -> Supervisor:
    return Supervisor(first_pause=0.001, longest_pause=0.01)


@in_loop
async def test_a_failure_is_logged_with_its_traceback_and_the_task_starts_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    supervisor, work = _supervisor(), Work(OSError("away"), ArithmeticError("odd"), OSError("away again"))
    task = supervisor.start("the follower", work)
    await work.going.wait()
    assert work.starts == 4
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.exc_info is not None for record in errors] == [True, True, True]
    assert all("the follower" in record.getMessage() for record in errors)
    work.end.set()
    await task
    assert len(supervisor) == 0


@in_loop
async def test_a_cancelled_error_from_within_does_not_end_a_task(caplog: pytest.LogCaptureFixture) -> None:
    supervisor, work = _supervisor(), Work(asyncio.CancelledError())
    task = supervisor.start("the follower", work)
    await work.going.wait()
    assert work.starts == 2
    await supervisor.stop(task)
    assert task.cancelled()


@pytest.mark.parametrize("complains", [False, True])
@in_loop
async def test_dependents_of_a_task_learn_when_it_cannot_go_on(
    complains: bool, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[BaseException] = []

    def tell(exc: BaseException) -> None:
        told.append(exc)
        if complains:
            raise ValueError("the dependant is broken, too")

    final = ArithmeticError("for good")
    task = _supervisor().start("the follower", Work(OSError(), final), final=(ArithmeticError,), failed=tell)
    await task
    assert told == [final]
    assert "the follower" in caplog.text


@in_loop
async def test_close_ends_every_task_and_pauses_too() -> None:
    supervisor = Supervisor(first_pause=1000)
    works = Work(), Work(OSError("and then it pauses"))
    tasks = [supervisor.start("one of two", work) for work in works]
    await works[0].going.wait()
    while works[1].starts == 0:
        await asyncio.sleep(0)
    await supervisor.close()
    await supervisor.close()
    assert all(task.cancelled() for task in tasks)


@in_loop
async def test_a_task_may_close_its_supervisor() -> None:
    supervisor = _supervisor()
    other = Work()

    async def closes() -> None:
        await other.going.wait()
        await supervisor.close()

    first = supervisor.start("another", other)
    await supervisor.start("one that closes", closes)
    assert first.cancelled()


@pytest.mark.parametrize("meant_for_the_process", [KeyboardInterrupt, SystemExit])
def test_what_is_meant_for_the_process_passes(
    meant_for_the_process: Callable[[], BaseException],
) -> None:
    async def main() -> None:
        await _supervisor().start("the follower", Work(meant_for_the_process()))

    with pytest.raises((KeyboardInterrupt, SystemExit)):
        asyncio.run(main())


@in_loop
async def test_a_task_may_fail_for_good_with_no_one_to_tell(caplog: pytest.LogCaptureFixture) -> None:
    supervisor, work = _supervisor(), Work(OSError("gone"))
    await supervisor.start("the follower", work, final=(OSError,))
    assert work.starts == 1
    assert "the follower" in caplog.text


@in_loop
async def test_a_task_that_ran_for_long_starts_again_after_the_first_pause(
    caplog: pytest.LogCaptureFixture,
) -> None:
    starts = 0

    async def works_for_a_while() -> None:
        nonlocal starts
        starts += 1
        if starts < 4:
            await asyncio.sleep(0.01)
            raise OSError("away")

    await Supervisor(first_pause=0.001, longest_pause=0.002).start("the follower", works_for_a_while)
    assert caplog.text.count("0.001 seconds") == 3
