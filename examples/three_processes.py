"""Three processes on one ledger, and a reader who kills them at will.

    python examples/three_processes.py                                  # a file, ledger.db
    python examples/three_processes.py postgresql://user@host/database  # or a PostgreSQL

Start it in three terminals. Each one submits prompts, and any may run a turn. Kill one with `kill -9`, and
another one sees to what it has left: nothing is lost, and nothing is done twice.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys

from turngate import Turn
from turngate.durable import DurableDispatcher, PostgresLedger, SqliteLedger


async def agent(turn: Turn) -> str:
    """Take some time, so that there is something to be killed."""
    for word in ("thinking", "still thinking", "done"):
        turn.write(word + " ")
        await asyncio.sleep(random.random())  # noqa: S311 - nothing secret
    return f"answered by process {os.getpid()}, attempt {turn.attempt}"


async def main(where: str) -> None:
    """Submit prompts, one after another, and print how each of them ended."""
    ledger = PostgresLedger(where) if where.startswith("postgres") else SqliteLedger(where)
    async with DurableDispatcher(agent, ledger, on_death="retry", lease=5.0) as d:
        print(f"process {os.getpid()} is there; kill it with: kill -9 {os.getpid()}")
        for number in range(1_000):
            run = await d.submit(f"session {number % 3}", f"prompt {number}", when_busy="queue")
            complete = await run
            print(f"{complete.session_id}, run {complete.seq}: {complete.outcome}, {complete.text}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "ledger.db"))
