"""A streaming agent for the keyboard: it says every word of the prompts, and follow-ups join as they come.

Serve it with `turngate serve examples/streaming.py:agent`, and talk to it in another terminal with
`turngate chat http://127.0.0.1:8765`: Enter sends, Escape cancels.
"""

import asyncio

from turngate import Turn


async def agent(turn: Turn) -> None:
    """Say every word of the prompts, one at a time."""
    to_say = [turn.run]
    for number, run in enumerate(to_say, 1):
        turn.write(f"[{number}]")
        for word in f"you said: {run.prompt} ".split(" "):
            turn.write(f" {word}")
            await asyncio.sleep(0.2)
            to_say += await turn.fold()
