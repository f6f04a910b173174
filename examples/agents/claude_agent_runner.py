"""claude-agent-sdk behind Turngate: `Dispatcher(runner(ClaudeAgentOptions(...)))`.

The text streams as Claude sends it. Claude's transcript of the turn is kept with its text, and the next
turn resumes from what was kept, so Turngate's history is the only one; each turn has a Claude process of
its own. Prompts that were cancelled before Claude had them are sent along with the next one. A cancel tells
Claude to stop, and reads to its ResultMessage: by then the transcript is whole.

Follow-ups are not folded: where a prompt lands that is sent while Claude works is Claude's to decide, so
each has a turn of its own. A tool that blocks in a thread goes on after its turn has ended: no cancel stops a
thread.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import cast

from claude_agent_sdk import (
    ClaudeAgentOptions,
    ClaudeSDKClient,
    CLIConnectionError,
    ResultMessage,
    StreamEvent,
)
from claude_agent_sdk.types import SessionKey, SessionStore, SessionStoreEntry

from turngate import Runner, Turn
from turns import Earlier, earlier, in_peace

Making = Callable[[ClaudeAgentOptions], ClaudeSDKClient]


def runner(options: ClaudeAgentOptions, client: Making = ClaudeSDKClient) -> Runner:
    """Return a runner that has Claude answer each turn."""

    async def run_turn(turn: Turn) -> None:
        transcript = Transcript(await earlier(turn))
        store = cast(SessionStore, transcript)  # the rest of its methods may be left out
        resumed = replace(options, session_store=store, resume=transcript.session_id)
        claude = client(replace(resumed, include_partial_messages=True))

        async def stop() -> None:
            with suppress(CLIConnectionError):  # nothing has been asked yet, or it has ended
                await claude.interrupt()

        await in_peace(turn, answer(claude, transcript, turn), stop=stop, within=30)

    return run_turn


async def answer(claude: ClaudeSDKClient, transcript: "Transcript", turn: Turn) -> None:
    """Ask, unless a cancel came first, read to the end, and keep the result."""
    try:
        await claude.connect()
        if not turn.covered:
            await claude.query("\n\n".join([*transcript.missed.values(), turn.run.prompt]))
            async for message in claude.receive_response():
                if isinstance(message, StreamEvent) and message.parent_tool_use_id is None:
                    turn.write(message.event.get("delta", {}).get("text", ""))
                elif isinstance(message, ResultMessage) and message.is_error:
                    raise RuntimeError(message.result or message.subtype)
    finally:
        await claude.disconnect()
        if transcript.new:
            told = [*transcript.missed]
            turn.keep({"session_id": transcript.session_id, "entries": transcript.new, "told": told})


class Transcript:
    """Claude's record of the session: what earlier turns kept, and what this one adds."""

    def __init__(self, turns: list[Earlier]) -> None:
        kept = [turn.data for turn in turns if turn.data is not None]
        self.session_id: str | None = kept[-1]["session_id"] if kept else None
        self.past: list[SessionStoreEntry] = [entry for data in kept for entry in data["entries"]]
        self.new: list[SessionStoreEntry] = []
        missed = [prompt for turn in turns if turn.data is None for prompt in turn.prompts]
        told = {message_id for data in kept for message_id in data["told"]}
        self.missed = {prompt.id: prompt.text for prompt in missed if prompt.id not in told}

    async def append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        """Take what Claude has written down; subagents have transcripts of their own, which are not kept."""
        if "subpath" not in key:
            self.session_id = key["session_id"]
            self.new += entries

    async def load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        """Return what Claude is to go on from."""
        return self.past or None
