"""A streaming agent on the keyboard: a line is a prompt or joins the turn, an empty line cancels.

Standard input need not be a terminal: `cat prompts.txt | python streaming.py`.
"""

import asyncio
import sys
import threading

from turngate import Delta, Dispatcher, Subscription, Turn

SESSION = "keyboard"


async def agent(turn: Turn) -> None:
    """Say every word of the prompts, one at a time; follow-ups join as they come."""
    to_say = [turn.run]
    for run in to_say:
        turn.write(f"[{run.run_id.rpartition('-')[2]}]")
        for word in f"you said: {run.prompt} ".split(" "):
            turn.write(f" {word}")
            await asyncio.sleep(0.2)
            to_say += await turn.fold()


async def show(events: Subscription) -> None:
    """Print the text as it comes, and how each run ended."""
    async for event in events:
        if isinstance(event, Delta):
            print(event.text, end="", flush=True)
        elif event.folded_into is None:
            print(f"\n  -- {'cancelled' if event.cancelled else event.error or 'done'}", flush=True)


def read_lines(lines: asyncio.Queue[str | None], loop: asyncio.AbstractEventLoop) -> None:
    """Read standard input off the loop; None is its end."""
    for line in sys.stdin:
        loop.call_soon_threadsafe(lines.put_nowait, line.strip())
    loop.call_soon_threadsafe(lines.put_nowait, None)


async def main() -> None:
    """Send what is typed; stop at the end of input, when everything said is answered."""
    print("Type a prompt. An empty line cancels, Ctrl-D ends.")
    lines: asyncio.Queue[str | None] = asyncio.Queue()
    threading.Thread(target=read_lines, args=(lines, asyncio.get_running_loop()), daemon=True).start()
    async with Dispatcher(agent) as d:
        shown = asyncio.create_task(show(d.subscribe(SESSION)))
        run = None
        while (line := await lines.get()) is not None:
            if line:
                run = await d.submit(SESSION, line)
                await asyncio.sleep(0.5)  # so that piped lines come one after the other, as typed ones do
            elif not await d.cancel(SESSION):
                print("  -- nothing to cancel")
        if run is not None:
            await run
    await shown


if __name__ == "__main__":
    asyncio.run(main())
