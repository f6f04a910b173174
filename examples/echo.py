"""An echo agent: a follow-up is folded into the turn, and a cancel covers what came before it.

Serve it, with a page to look at, with: turngate serve examples/echo.py:agent
"""

import asyncio

from turngate import Dispatcher, Turn


async def agent(turn: Turn) -> str:
    """Answer with the prompts of the turn, follow-ups included."""
    await asyncio.sleep(0.1)
    await turn.fold()
    return " / ".join(run.prompt for run in turn.runs)


async def main() -> None:
    """Send three prompts to one session, and cancel a fourth."""
    async with Dispatcher(agent) as d:
        first = await d.submit("session", "hello")
        await d.submit("session", "and good morning")
        print(await first)
        run = await d.submit("session", "never mind")
        await d.cancel("session")
        print(await run)
        for message in await d.messages.list("session"):
            print(f"{message.role:9} {message.text} ({message.finish_reason})")


if __name__ == "__main__":
    asyncio.run(main())
