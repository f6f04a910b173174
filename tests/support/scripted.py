"""One scripted conversation for every agent framework, and what the agent must have been shown.

Each framework's test translates what its library sends to the provider into a list of Heard, asks the script
what to reply, and translates that back. The script refuses a history that no provider would take.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

TOOL = "look_up"


class Heard(NamedTuple):
    """One item of the history as a provider is given it: `text` of who spoke, or the `id` of a tool call."""

    kind: Literal["user", "assistant", "call", "return"]
    text: str


class Reply(NamedTuple):
    """What the provider answers: words, and then perhaps a tool call with this id, about this subject."""

    words: list[str]
    call: str | None = None
    subject: str = ""


class Malformed(AssertionError):
    """A provider would refuse this history, or the user would not recognise it."""


@dataclass
class Script:
    """Looks up what a prompt asks to have looked up, once, then answers the last prompt."""

    heard: list[list[Heard]] = field(default_factory=list)
    looked_up: list[str] = field(default_factory=list)
    meanwhile: Callable[[], Awaitable[None]] | None = None
    """What happens while the tool is at work."""
    calls: int = 0

    def reply(self, history: list[Heard]) -> Reply:
        """Check what the agent is shown, and say what it says."""
        self.heard.append(history)
        check(history)
        at = max(index for index, item in enumerate(history) if item.kind == "user")
        prompt = history[at].text
        if prompt.startswith("look up ") and not any(item.kind == "call" for item in history[at:]):
            self.calls += 1
            return Reply(["let ", "me ", "see. "], f"call-{self.calls}", prompt.removeprefix("look up "))
        return Reply(["answer ", "to: ", prompt])

    async def look_up(self, subject: str) -> str:
        """Be the tool: takes a few steps, and a moment."""
        await asyncio.sleep(0)
        if self.meanwhile is not None:
            await self.meanwhile()
        await asyncio.sleep(1.0)
        self.looked_up.append(subject)
        await asyncio.sleep(0)
        return f"all about {subject}"

    @property
    def prompts(self) -> list[str]:
        """What the user said, as the agent was last shown it."""
        return [item.text for item in self.heard[-1] if item.kind == "user"]


def check(history: list[Heard]) -> None:
    """Raise Malformed unless every call has its one return right behind it and nothing is there twice."""
    owed: list[str] = []
    seen: set[Heard] = set()
    for item in history:
        if item.kind == "return":
            if item.text not in owed:
                raise Malformed(f"a return for {item.text}, which no call waits for, in {history}")
            owed.remove(item.text)
        elif owed and item.kind != "call":
            raise Malformed(f"{item} while {owed} have no return in {history}")
        if item.kind == "call":
            owed.append(item.text)
        if item.kind != "assistant" and item in seen:
            raise Malformed(f"{item} twice in {history}")
        seen.add(item)
    if owed:
        raise Malformed(f"no return for {owed} in {history}")
    if not history or history[-1].kind not in {"user", "return"}:
        raise Malformed(f"nothing to answer in {history}")
