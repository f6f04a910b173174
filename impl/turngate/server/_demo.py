"""The demonstration agent: it streams slowly, folds follow-ups, and fails on demand."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from turngate import Turn

_SPEECH: Final = (
    "I am a demonstration. I say these words slowly, so that you have time to send another prompt: "
    "it joins this turn, or waits for it to end. Press Escape, and every prompt that you have sent is "
    "cancelled, but not the next one."
)
PAUSE: Final = 0.12


async def demonstration(turn: Turn) -> None:
    """Repeat the prompt and talk about itself; a prompt with the word `fail` in it fails.

    A prompt that begins with a number limits the speech to that many words.
    """
    words = _SPEECH.split()
    count = turn.run.prompt.split()[0] if turn.run.prompt.split() else ""
    if count.isascii() and count.isdecimal() and len(count) < 4:
        words = words[: int(count)]
    turn.emit("progress", {"said": 0, "of": len(words)})
    turn.write(f"“{_short(turn.run.prompt)}”. ")
    for number, word in enumerate(words, 1):
        await asyncio.sleep(PAUSE)
        if any("fail" in run.prompt.lower().split() for run in turn.runs):
            raise RuntimeError("the prompt asked for a failure")
        turn.write(f"{word} ")
        for run in await turn.fold():
            turn.write(f"\n\n…and “{_short(run.prompt)}”, which joined this turn. ")
        if number % 8 == 0:
            turn.emit("progress", {"said": number, "of": len(words)})
    turn.keep({"words": len(words)})


def _short(prompt: str) -> str:
    return prompt if len(prompt) <= 60 else f"{prompt[:59]}…"
