"""What the recipes share: ending in peace, and reading what earlier turns kept."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from turngate import Message, Turn

Stop = Callable[[], Coroutine[Any, Any, object]]


async def in_peace(
    turn: Turn, work: Coroutine[Any, Any, None], *, stop: Stop | None = None, within: float = 5.0
) -> None:
    """Do the work; when the turn is interrupted, stop it once and let it end by itself.

    However often a person presses Escape meanwhile, the work feels one cancel, or none if there is another
    way to `stop` it. Libraries clean up after a cancel, and not all of them survive a second one meanwhile.
    """
    task = asyncio.create_task(work)
    try:
        await asyncio.wait({task})
    except asyncio.CancelledError:
        await turn.clean_up(_ended(task, stop), within)
        raise
    task.result()


async def _ended(task: asyncio.Task[None], stop: Stop | None) -> None:
    if stop is None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return
    stopping = asyncio.create_task(stop())  # an ended client may never answer a stop
    try:
        await asyncio.gather(task, return_exceptions=True)
    finally:
        stopping.cancel()
        await asyncio.gather(stopping, return_exceptions=True)


class Earlier(NamedTuple):
    """An earlier turn: what was asked, what was said, and what it kept, None if its runner was not called."""

    prompts: list[Message]
    text: str
    data: Any


async def earlier(turn: Turn) -> list[Earlier]:
    """Return the earlier turns of the session, in the order in which they were written."""
    turns: list[Earlier] = []
    prompts: list[Message] = []
    for message in await turn.history():
        if message.role == "user":
            prompts.append(message)
        else:
            turns.append(Earlier(prompts, message.text, message.data))
            prompts = []
    return turns
