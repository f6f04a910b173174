"""gradio: an event with a concurrency limit of one for each session, driven by its own client.

The event is an async generator: these can be cancelled while they run. A cancel calls Job.cancel() on the
session's jobs that are not done, the newest first, so that none is let go.
Check it with: turngate conform examples/conformance/peers/gradio_queue.py:GradioSubject
"""

import asyncio
from collections.abc import AsyncIterator

import gradio
import servers
from gradio_client import Client
from gradio_client.client import Job
from gradio_client.utils import Status

from turngate_verify.conform import RealtimeSubject, Timing
from turngate_verify.conform.programs import SESSIONS

SUBJECTS: dict[str, "GradioSubject"] = {}


async def turn(key: str) -> AsyncIterator[str]:
    number, run = key.split(":")
    if number not in SUBJECTS:  # it is over, and this was still in the queue
        return
    working = asyncio.ensure_future(SUBJECTS[number].runner(run))
    try:
        while not working.done():
            yield "..."  # a token: here a generator can be stopped
            await asyncio.wait({working}, timeout=0.05)
        yield working.result()
    finally:
        working.cancel()


class GradioSubject(RealtimeSubject):
    timing = Timing(quiet=0.5)  # so long its client may take to hear of what the server has done

    async def set_up(self) -> None:
        with gradio.Blocks(analytics_enabled=False) as demo:
            for session in SESSIONS:
                asked, said = gradio.Textbox(), gradio.Textbox()
                asked.submit(turn, asked, said, api_name=session, concurrency_limit=1, concurrency_id=session)
        demo.queue().launch(
            server_port=servers.free_port(), prevent_thread_lock=True, quiet=True, ssr_mode=False
        )
        type(self).client = await asyncio.to_thread(Client, demo.local_url, verbose=False)

    async def start(self) -> None:
        SUBJECTS[str(self.number)], self.jobs = self, dict[str, dict[str, Job]]()

    async def look(self) -> None:
        for jobs in self.jobs.values():
            for run in [run for run, job in jobs.items() if job.done()]:
                job = jobs.pop(run)
                error = None if job.future.cancelled() else job.exception()
                stopped = job.future.cancelled() or job.status().code is Status.CANCELLED
                self.completed(run, cancelled=stopped, error=None if stopped or not error else repr(error))

    async def do_accept(self, session: str, run: str) -> None:
        job = await asyncio.to_thread(self.client.submit, f"{self.number}:{run}", api_name=f"/{session}")
        while not job.communicator.event_id:  # until the server has put it into its queue
            await asyncio.sleep(0.01)
        self.jobs.setdefault(session, {})[run] = job

    async def do_cancel(self, session: str) -> None:
        for job in reversed(list(self.jobs.get(session, {}).values())):
            await asyncio.to_thread(job.cancel)

    async def end(self) -> None:
        del SUBJECTS[str(self.number)]
        for session in self.jobs:
            await self.do_cancel(session)
