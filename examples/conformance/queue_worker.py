"""One asyncio.Queue and one worker task per session: the dispatcher most services start with.

Check it with: turngate conform examples/conformance/queue_worker.py:QueueWorkerSubject
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from turngate_verify.conform import AsyncioSubject


class QueueWorkers:
    """Runs the prompts of a session one after the other, in a worker of its own."""

    def __init__(self, run: Callable[[str], Awaitable[str]]) -> None:
        self._run = run
        self._queues: dict[str, asyncio.Queue[tuple[str, asyncio.Future[str]]]] = {}
        self._workers: dict[str, asyncio.Task[None]] = {}

    def submit(self, session: str, prompt: str) -> asyncio.Future[str]:
        """Queue a prompt, and return what its caller waits for."""
        if session not in self._queues:
            self._queues[session] = asyncio.Queue()
            self._workers[session] = asyncio.create_task(self._work(self._queues[session]))
        done: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._queues[session].put_nowait((prompt, done))
        return done

    def cancel(self, session: str) -> None:
        """Stop what the session is doing."""
        if session in self._workers:
            self._workers[session].cancel()

    async def _work(self, queue: asyncio.Queue[tuple[str, asyncio.Future[str]]]) -> None:
        while True:
            prompt, done = await queue.get()
            try:
                done.set_result(await self._run(prompt))
            except Exception as error:
                done.set_exception(error)
            finally:
                queue.task_done()


class QueueWorkerSubject(AsyncioSubject):
    """The adapter."""

    def start(self) -> None:
        """Make the dispatcher."""
        self.workers = QueueWorkers(self.runner)

    async def do_accept(self, session: str, run: str) -> None:
        """Submit, and show the outcome when the caller would have it."""
        self.watch(run, self.workers.submit(session, run))

    async def do_cancel(self, session: str) -> None:
        """Cancel."""
        self.workers.cancel(session)
