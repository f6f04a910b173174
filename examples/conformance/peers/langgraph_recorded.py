"""langgraph-api with a graph that records when its turns start and end: PORT FILE.

tools/gallery_history.py starts it, and judges what it records beside what its callers do.
"""

import asyncio
import sys

from langgraph.graph import START, StateGraph
from langgraph_api.cli import run_server

from turngate_verify.recording import IntervalLog

PORT, FILE = sys.argv[1:]
LOG = IntervalLog(open(FILE, "w", encoding="utf-8"))  # noqa: SIM115 - as long as it serves
sys.modules["turngate_peer"] = sys.modules[__name__]  # so that the server finds the graph of this very module


async def turn(asked: dict[str, str]) -> None:
    with LOG.running(asked["run"]):
        await asyncio.sleep(float(asked["seconds"]))


graph = StateGraph(dict).add_node("turn", turn).add_edge(START, "turn").compile()
agents = {"agent": "turngate_peer:graph"}
run_server(port=int(PORT), graphs=agents, disable_persistence=True, n_jobs_per_worker=10)
