"""A process of its own on a ledger, which dies at a given point: python durable_process.py LEDGER POINT.

It says on standard output what it was told, a line each, as soon as it is told.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

from turngate.durable import DurableDispatcher, DurableTurn, Ledger, PostgresLedger, SqliteLedger
from turngate.durable._records import Ask, Decide, Decision, Loaded

POINTS = (
    "before load", "deciding", "after commit", "in the runner", "between accept and enter", "folding",
    "finishing", "finished", "cancelling", "cancelled",
)  # fmt: skip
"""Where a process can die: around the step of a submit, in a turn, around later steps."""


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def tell(what: str) -> None:
    sys.stdout.write(what + "\n")
    sys.stdout.flush()


def dying(ledger: Any, before: int = 0, deciding: int = 0, after: int = 0) -> Ledger:
    """Have the process die at the step of this number: before it, within it, or when it is saved."""
    taken = 0
    take_step = ledger.step

    async def step(ask: Ask, decide: Decide) -> Decision:
        nonlocal taken
        taken += 1
        number = taken
        if number == before:
            die()

        def decide_or_die(loaded: Loaded, step_id: str) -> Decision:
            if number == deciding:
                die()
            return decide(loaded, step_id)

        decision: Decision = await take_step(ask, decide_or_die)
        if number == after:
            die()
        return decision

    ledger.step = step
    changed: Ledger = ledger
    return changed


def ledger_of(spec: str) -> Any:
    """Return the ledger that a command line names."""
    if spec.startswith("postgresql:"):
        dsn, schema = spec.split()
        return PostgresLedger(dsn, schema=schema, connections=2)
    return SqliteLedger(spec, synchronous="NORMAL")


async def main(spec: str, point: str) -> None:
    async def agent(turn: Any) -> str | None:
        assert isinstance(turn, DurableTurn)
        turn.write("half of ")
        await asyncio.sleep(0.05)
        if point == "in the runner":
            await asyncio.sleep(0.3)  # time to put the text by
            die()
        if turn.run.run_id == "b":
            await asyncio.sleep(3600)
        await turn.fold()
        return "all of it"

    # The steps: 1 submits a, 2 submits b, 3 submits c, 4 folds, 5 finishes a and hands off, 6 cancels.
    where = {
        "before load": {"before": 2},
        "deciding": {"deciding": 2},
        "after commit": {"after": 2},
        "folding": {"after": 4},
        "finishing": {"deciding": 5},
        "finished": {"after": 5},
        "cancelling": {"deciding": 6},
        "cancelled": {"after": 6},
    }
    ledger = dying(ledger_of(spec), **where.get(point, {}))
    d = DurableDispatcher(agent, ledger, poll=0.1, checkpoint=0.05, lease=60.0)
    async with d:
        if point == "between accept and enter":
            await d.accept("s", "accepted only", run_id="a")
            tell("a")
            die()
        a = await d.submit("s", "prompt of a", run_id="a", when_busy="queue")
        tell("a")
        await d.submit("s", "prompt of b", run_id="b", when_busy="queue")
        tell("b")
        await d.submit("s", "prompt of c", run_id="c", when_busy="queue")
        tell("c")
        await a
        await d.cancel("s")
        tell("cancelled")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
