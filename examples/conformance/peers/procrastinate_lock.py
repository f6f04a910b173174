"""procrastinate: a job with the lock of its session, so that the jobs of a session run one by one, in order.

A cancel cancels or aborts the session's jobs that are not over, the newest first, so that none is let go.
Check it with: turngate conform examples/conformance/peers/procrastinate_lock.py:ProcrastinateSubject
"""

from __future__ import annotations

import asyncio

import procrastinate
import servers
from procrastinate.jobs import Status

from turngate_verify.conform import RealtimeSubject

GOES_ON, STOPPED = (Status.TODO, Status.DOING, Status.ABORTING), (Status.CANCELLED, Status.ABORTED)
SAYS = {Status.FAILED: "failed"}
SUBJECTS: dict[int, ProcrastinateSubject] = {}
app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=servers.postgres()))


@app.task(name="turn")
async def turn(number: int, run: str) -> None:
    if subject := SUBJECTS.get(number):
        await subject.runner(run)


class ProcrastinateSubject(RealtimeSubject):
    async def set_up(self) -> None:
        await app.open_async()
        await app.schema_manager.apply_schema_async()
        often = {"fetch_job_polling_interval": 0.05, "abort_job_polling_interval": 0.05}
        self.loop().create_task(app.run_worker_async(concurrency=8, install_signal_handlers=False, **often))

    async def start(self) -> None:
        SUBJECTS[self.number], self.jobs, self.looking = self, dict[str, dict[str, int]](), asyncio.Lock()

    async def look(self) -> None:
        async with self.looking:
            for jobs in self.jobs.values():
                for run, job in list(jobs.items()):
                    status = await app.job_manager.get_job_status_async(job)
                    if status not in GOES_ON:
                        del jobs[run]
                        self.completed(run, cancelled=status in STOPPED, error=SAYS.get(status))

    async def do_accept(self, session: str, run: str) -> None:
        async with self.looking:
            deferring = turn.configure(lock=self.named(session)).defer_async(number=self.number, run=run)
            self.jobs.setdefault(session, {})[run] = await deferring

    async def do_cancel(self, session: str) -> None:
        for job in reversed(list(self.jobs.get(session, {}).values())):
            await app.job_manager.cancel_job_by_id_async(job, abort=True)

    async def end(self) -> None:
        del SUBJECTS[self.number]
