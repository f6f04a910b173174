"""DBOS: a queue with a concurrency of one for each partition, and a session is a partition.

A cancel cancels the session's workflows that are not over.
Check it with: turngate conform examples/conformance/peers/dbos_partition.py:DBOSSubject
"""

import asyncio

import servers
from dbos import DBOS, DBOSConfig, SetEnqueueOptions, WorkflowHandleAsync

from turngate_verify.conform import RealtimeSubject

SUBJECTS: dict[int, "DBOSSubject"] = {}
OVER = {"SUCCESS": None, "ERROR": "failed", "CANCELLED": None, "MAX_RECOVERY_ATTEMPTS_EXCEEDED": "gave up"}
URL = servers.postgres()
DBOS(config=DBOSConfig(name="peer", system_database_url=URL, log_level="CRITICAL", run_admin_server=False))


@DBOS.step()
async def ask(number: int, run: str) -> None:
    if subject := SUBJECTS.get(number):
        await subject.runner(run)


@DBOS.workflow()
async def turn(number: int, run: str) -> None:
    return await ask(number, run)


class DBOSSubject(RealtimeSubject):
    async def set_up(self) -> None:
        DBOS.launch()
        await DBOS.register_queue_async("turns", partition_concurrency=1, polling_interval_sec=0.05)

    async def start(self) -> None:
        SUBJECTS[self.number], self.looking = self, asyncio.Lock()
        self.open: dict[str, dict[str, WorkflowHandleAsync[None]]] = {}

    async def look(self) -> None:
        async with self.looking:
            for handles in self.open.values():
                for run, handle in list(handles.items()):
                    status = (await handle.get_status()).status
                    if status in OVER:
                        del handles[run]
                        self.completed(run, cancelled=status == "CANCELLED", error=OVER[status])

    async def do_accept(self, session: str, run: str) -> None:
        async with self.looking:
            with SetEnqueueOptions(queue_partition_key=self.named(session)):
                handle = await DBOS.enqueue_workflow_async("turns", turn, self.number, run)
            self.open.setdefault(session, {})[run] = handle

    async def do_cancel(self, session: str) -> None:
        await DBOS.cancel_workflows_async([each.workflow_id for each in self.open.get(session, {}).values()])

    async def end(self) -> None:
        del SUBJECTS[self.number]
