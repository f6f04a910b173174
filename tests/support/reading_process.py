"""A process that reads a ledger: python reading_process.py LEDGER CURSOR. It prints what it receives.

It subscribes to RunCompletes and to moves, follows the completions from the cursor on, and waits for the run
"waited-for". Its parent stops and continues it.
"""

from __future__ import annotations

import asyncio
import sys

from turngate import CursorExpired, RunComplete, SubscriberCutOff, Turn, UnknownRun
from turngate.durable import DurableDispatcher, PostgresLedger, SqliteLedger


def say(*what: object) -> None:
    sys.stdout.write(" ".join(map(str, what)) + "\n")
    sys.stdout.flush()


async def runner(turn: Turn) -> str:
    return turn.run.prompt


async def subscribe(d: DurableDispatcher, name: str, *, moves: bool) -> None:
    try:
        async with d.subscribe(moves=moves) as events:
            await d.find("first")  # which waits until the subscription has begun
            say(name, "begins")
            async for event in events:
                if isinstance(event, RunComplete):
                    say(name, event.run_id)
    except SubscriberCutOff:
        say(name, "is cut off")


async def follow(d: DurableDispatcher, cursor: str) -> None:
    try:
        async for _, complete in d.completions(cursor):
            say("completions", complete.run_id)
    except CursorExpired:
        say("completions have expired")


async def wait(d: DurableDispatcher) -> None:
    run = await d.find("waited-for")
    assert run is not None
    say("wait begins")
    try:
        complete = await run.wait()
    except UnknownRun:
        say("wait does not know the run")
    else:
        say("wait", complete.run_id)


async def main(where: str, cursor: str) -> None:
    ledger = PostgresLedger(where) if where.startswith("postgres") else SqliteLedger(where)
    dispatcher = DurableDispatcher(runner, ledger, poll=0.2, lease=600.0, enter_timeout=600.0)
    async with dispatcher as d, asyncio.TaskGroup() as group:
        group.create_task(subscribe(d, "completes", moves=False))
        group.create_task(subscribe(d, "moves", moves=True))
        group.create_task(follow(d, cursor))
        group.create_task(wait(d))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
