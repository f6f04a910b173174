"""An aiojobs scheduler per session, with a limit of one.

Check it with: turngate conform examples/conformance/aiojobs_limit_one.py:AiojobsSubject
"""

from __future__ import annotations

import asyncio

import aiojobs

from turngate_verify.conform import AsyncioSubject, RunnerFailed


class AiojobsSubject(AsyncioSubject):
    """The adapter; aiojobs is the dispatcher. Closing a job is its way to cancel it."""

    def start(self) -> None:
        """Begin without schedulers."""
        self.schedulers: dict[str, aiojobs.Scheduler] = {}
        self.jobs: dict[str, list[aiojobs.Job[str]]] = {}

    async def do_accept(self, session: str, run: str) -> None:
        """Spawn a job and wait for it, as its caller would."""
        if session not in self.schedulers:
            self.schedulers[session] = aiojobs.Scheduler(limit=1, pending_limit=0)
        job = await self.schedulers[session].spawn(self.runner(run))
        self.jobs.setdefault(session, []).append(job)
        try:
            await job.wait()
            self.completed(run)
        except RunnerFailed as error:
            self.completed(run, error=str(error))
        except asyncio.CancelledError:
            self.completed(run, cancelled=True)

    async def do_cancel(self, session: str) -> None:
        """Close the jobs that there are, all at once, as a scheduler that closes does."""
        await asyncio.gather(*(job.close() for job in self.jobs.pop(session, ())), return_exceptions=True)

    async def do_close(self) -> None:
        """Close the schedulers."""
        for scheduler in self.schedulers.values():
            await scheduler.close()
