"""langgraph-api, as `langgraph dev` starts it: a thread for each session, and the strategy enqueue, its default.

There is no cancel of a thread: a cancel lists the runs that are pending or running, and cancels these.
Check it with: turngate conform examples/conformance/peers/langgraph_enqueue.py:LangGraphSubject
"""

import asyncio
import sys
import threading
from typing import Any, TypedDict

import servers
from langgraph.graph import START, StateGraph
from langgraph_api.cli import run_server
from langgraph_sdk import get_client

from turngate_verify.conform import RealtimeSubject

sys.modules["turngate_peer"] = sys.modules[__name__]  # so that the server finds the graph of this very module
SUBJECTS: dict[int, "LangGraphSubject"] = {}
SAYS = {"error": "failed", "timeout": "timed out"}


class Asked(TypedDict):
    number: int
    run: str


async def turn(asked: Asked) -> dict[str, Any]:
    if subject := SUBJECTS.get(asked["number"]):
        await subject.runner(asked["run"])
    return {}


graph = StateGraph(Asked).add_node("turn", turn).add_edge(START, "turn").compile()


class LangGraphSubject(RealtimeSubject):
    async def set_up(self) -> None:
        port = servers.free_port()
        options = {"graphs": {"agent": "turngate_peer:graph"}, "disable_persistence": True, "server_level": "CRITICAL"}
        threading.Thread(target=run_server, kwargs={"port": port, **options}, daemon=True).start()
        type(self).client = get_client(url=f"http://127.0.0.1:{port}")
        while not await servers.answers(port):
            await asyncio.sleep(0.1)

    async def start(self) -> None:
        SUBJECTS[self.number], self.looking = self, asyncio.Lock()
        self.threads, self.open = dict[str, str](), dict[str, tuple[str, str]]()

    async def look(self) -> None:
        async with self.looking:
            for run, at in list(self.open.items()):
                status = (await self.client.runs.get(*at))["status"]
                if status not in ("pending", "running"):
                    del self.open[run]
                    self.completed(run, cancelled=status == "interrupted", error=SAYS.get(status))

    async def do_accept(self, session: str, run: str) -> None:
        async with self.looking:
            if session not in self.threads:
                self.threads[session] = (await self.client.threads.create())["thread_id"]
            thread, asked = self.threads[session], {"number": self.number, "run": run}
            made = await self.client.runs.create(thread, "agent", input=asked, multitask_strategy="enqueue")
            self.open[run] = (thread, made["run_id"])

    async def do_cancel(self, session: str) -> None:
        if thread := self.threads.get(session):
            listed = [await self.client.runs.list(thread, status=status) for status in ("pending", "running")]
            if runs := [run["run_id"] for part in listed for run in part]:
                await self.client.runs.cancel_many(thread_id=thread, run_ids=runs)
