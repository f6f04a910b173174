"""The processes in which ``turngate verify`` makes its checks, one for each processor."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Generic, ParamSpec, Protocol, Self, TypeVar

AnswerT = TypeVar("AnswerT")
AnswerT_co = TypeVar("AnswerT_co", covariant=True)
P = ParamSpec("P")


class Job(Protocol[AnswerT_co]):
    """A check that is being made, or waits for its turn."""

    def result(self) -> AnswerT_co:
        """Return what the check has found, when it is done."""
        ...


class Workers:
    """Runs checks in processes of their own, in the order in which they were started.

    A check, its arguments and its result must be picklable.
    """

    def __init__(self, workers: int | None = None) -> None:
        # A forked process would inherit locks that the other threads of this process hold, forever.
        context = multiprocessing.get_context("spawn")
        self._before = multiprocessing.active_children()
        self._pool = ProcessPoolExecutor(workers, context)

    def start(self, check: Callable[P, AnswerT], *args: P.args, **options: P.kwargs) -> Future[AnswerT]:
        """Start a check."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return self._pool.submit(check, *args, **options)  # which may start a process
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, raised: object, *_: object) -> None:
        if raised is not None:
            for worker in multiprocessing.active_children():
                if worker not in self._before:
                    worker.terminate()  # the remaining results are not needed
        self._pool.shutdown(cancel_futures=True)


class Here(Generic[AnswerT]):
    """A check that is made in this process, as soon as its result is asked for."""

    def __init__(self, check: Callable[[], AnswerT]) -> None:
        self._check = check

    def result(self) -> AnswerT:
        """Make the check."""
        return self._check()


class NoWorkers:
    """Makes checks in this process."""

    def start(self, check: Callable[P, AnswerT], *args: P.args, **options: P.kwargs) -> Here[AnswerT]:
        """Return the check, which is made when its result is asked for."""
        return Here(lambda: check(*args, **options))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass
