"""langgraph-api, as `langgraph dev` starts it: a thread for each session, and its multitask strategies.

There is no cancel of a thread: a cancel lists the runs that are pending or running, and cancels these.
Check it with: turngate conform examples/conformance/peers/langgraph_strategies.py:LangGraphSubject
"""

import asyncio
import sys
import threading
from functools import partialmethod

import servers
from langgraph.graph import START, StateGraph
from langgraph_api.cli import run_server
from langgraph_sdk import errors, get_client

from turngate_verify.conform import Features, RealtimeSubject

sys.modules["turngate_peer"] = sys.modules[__name__]  # so that the server finds the graph of this very module
SUBJECTS, SAYS = dict[int, "LangGraphSubject"](), {"error": "failed", "timeout": "timed out"}


async def turn(asked: dict[str, str]) -> None:
    if subject := SUBJECTS.get(int(asked["number"])):
        await subject.runner(asked["run"])


graph = StateGraph(dict).add_node("turn", turn).add_edge(START, "turn").compile()


class LangGraphSubject(RealtimeSubject):
    features = Features(interrupt=True, reject=True)

    async def set_up(self) -> None:
        agents, port = {"agent": "turngate_peer:graph"}, servers.free_port()
        options = {"port": port, "graphs": agents, "disable_persistence": True, "n_jobs_per_worker": 10}
        threading.Thread(target=run_server, kwargs=options, daemon=True).start()
        type(self).client = get_client(url=f"http://127.0.0.1:{await servers.listening(port)}")

    async def start(self) -> None:
        SUBJECTS[self.number], self.threads, self.open, self.looking = self, {}, {}, asyncio.Lock()

    async def look(self) -> None:
        async with self.looking:
            for run, at in list(self.open.items()):
                if (status := (await self.client.runs.get(*at))["status"]) not in ("pending", "running"):
                    del self.open[run]
                    self.completed(run, cancelled=status == "interrupted", error=SAYS.get(status))

    async def do_accept(self, session: str, run: str, strategy: str = "enqueue") -> None:
        async with self.looking:
            if session not in self.threads:
                self.threads[session] = (await self.client.threads.create())["thread_id"]
            asked, thread = {"number": str(self.number), "run": run}, self.threads[session]
            try:
                made = await self.client.runs.create(
                    thread, "agent", input=asked, multitask_strategy=strategy
                )
                self.open[run] = thread, made["run_id"]
            except errors.ConflictError:
                self.refused(run)

    do_interrupt = partialmethod(do_accept, strategy="interrupt")
    do_reject = partialmethod(do_accept, strategy="reject")

    async def do_cancel(self, session: str) -> None:
        runs, thread = self.client.runs, self.threads.get(session, "")
        states = ("pending", "running") if thread else ()
        if ids := [run["run_id"] for state in states for run in await runs.list(thread, status=state)]:
            await runs.cancel_many(thread_id=thread, run_ids=ids)

    async def end(self) -> None:
        del SUBJECTS[self.number]
