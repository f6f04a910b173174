"""Leave a ledger behind with something in every state: python leave_ledger.py LEDGER.

LEDGER is a path for SQLite, or a dsn for PostgreSQL. The process kills itself. It uses public names only, so
that the code of every version of the schema can run it; the dumps in tests/durable/dumps were written by it,
each by the code of its version. It prints the cursor behind the second completion.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import sys

from turngate import Turn
from turngate.durable import DurableDispatcher, PostgresLedger, SqliteLedger


async def runner(turn: Turn) -> str:
    prompt = turn.run.prompt
    if prompt == "fail":
        raise ValueError("no")
    if prompt == "hang":
        await asyncio.Event().wait()
    if prompt.startswith("wait"):
        while len(turn.runs) < 3:
            await asyncio.sleep(0.01)
            await turn.fold()
    turn.keep({"cost": 1})
    return f"answer to {prompt}"


async def leave(ledger: PostgresLedger | SqliteLedger) -> None:
    d = DurableDispatcher(runner, ledger)
    await d.__aenter__()
    await d.ask("a", "first", run_id="first")
    await d.ask("b", "fail", run_id="failed")
    completions = d.completions()
    cursors = [(await anext(completions))[0] for _ in range(2)]
    lead = await d.submit("a", "wait 1", run_id="lead")
    await d.submit("a", "also 1", run_id="folded-1")
    await d.submit("a", "also 2", run_id="folded-2")
    await lead.wait()
    await d.ask("b", "second", run_id="second")
    cancelled = await d.submit("c", "hang", run_id="cancelled")
    while (found := await d.find("cancelled")) is None or found.state != "active":
        await asyncio.sleep(0.01)
    await d.cancel("c")
    await cancelled.wait()
    if "key" in inspect.signature(d.cancel).parameters:  # since version 4
        await d.cancel("nobody", key="left behind")
    await d.submit("d", "hang", run_id="hanging")
    await d.submit("d", "queued", run_id="queued")
    await d.accept("e", "accepted", run_id="accepted")
    sys.stdout.write(cursors[-1] + "\n")
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    where = sys.argv[1]
    asyncio.run(leave(PostgresLedger(where) if where.startswith("postgres") else SqliteLedger(where)))


if __name__ == "__main__":
    main()
