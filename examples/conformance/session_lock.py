"""One asyncio.Lock per session: the task that holds it has the turn.

Check it with: turngate conform examples/conformance/session_lock.py:SessionLockSubject
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable

from turngate_verify.conform import AsyncioSubject


class SessionLocks:
    """Runs every prompt in a task of its own, which takes the lock of its session first."""

    def __init__(self, run: Callable[[str], Awaitable[str]]) -> None:
        self._run = run
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._active: dict[str, asyncio.Task[str]] = {}

    def submit(self, session: str, prompt: str) -> asyncio.Task[str]:
        """Start the task of a prompt."""
        return asyncio.create_task(self._turn(session, prompt))

    def cancel(self, session: str) -> None:
        """Stop what the session is doing."""
        if task := self._active.get(session):
            task.cancel()

    async def _turn(self, session: str, prompt: str) -> str:
        async with self._locks[session]:
            task = asyncio.current_task()
            assert task is not None
            self._active[session] = task
            try:
                return await self._run(prompt)
            finally:
                del self._active[session]


class SessionLockSubject(AsyncioSubject):
    """The adapter."""

    def start(self) -> None:
        """Make the dispatcher."""
        self.locks = SessionLocks(self.runner)

    async def do_accept(self, session: str, run: str) -> None:
        """Submit, and show the outcome when the caller would have it."""
        self.watch(run, self.locks.submit(session, run))

    async def do_cancel(self, session: str) -> None:
        """Cancel."""
        self.locks.cancel(session)
