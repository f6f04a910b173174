"""A runner for `turngate serve` that records its turns, and ends each when its prompt says so."""

from __future__ import annotations

import asyncio
import os

from turngate import Turn
from turngate_verify.recording import IntervalLog

LOG = IntervalLog(open(os.environ["RECORDING"], "a", encoding="utf-8"))  # noqa: SIM115 - as long as it serves


async def agent(turn: Turn) -> str:
    with LOG.running(turn.run.run_id):
        while turn.run.prompt.startswith("/") and not os.path.exists(turn.run.prompt):  # noqa: ASYNC240
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.02)
        return "done"
