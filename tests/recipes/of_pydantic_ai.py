"""pydantic-ai with a scripted provider."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence

from pydantic_ai import Agent, ModelMessage, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.messages import UserPromptPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel

from pydantic_ai_runner import runner
from scripted import TOOL, Heard, Script
from turngate import Runner

LEAVES = "ScopedTask.__init__.<locals>.run"
"""A task of pydantic-ai 2.66's own, which a cancel at one of six moments leaves waiting for nothing."""


def make(script: Script, tool: Callable[..., object] | None = None) -> Runner:
    """Make the recipe's runner; its tool is the script's, or another of that name."""

    async def provider(messages: list[ModelMessage], _: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
        reply = script.reply(heard(messages))
        for word in reply.words:
            await asyncio.sleep(0)
            yield word
        if reply.call is not None:
            await asyncio.sleep(0)
            subject = json.dumps({"subject": reply.subject})
            yield {1: DeltaToolCall(name=TOOL, json_args=subject, tool_call_id=reply.call)}

    agent = Agent(FunctionModel(stream_function=provider), tools=[tool or script.look_up])
    return runner(agent)


def heard(messages: Sequence[ModelMessage]) -> list[Heard]:
    """Translate what pydantic-ai sends."""
    found: list[Heard] = []
    for message in messages:
        for part in message.parts:
            match part:
                case UserPromptPart(content=str(text)):
                    found.append(Heard("user", text))
                case TextPart(content=text):
                    found.append(Heard("assistant", text))
                case ToolCallPart(tool_call_id=call):
                    found.append(Heard("call", call))
                case ToolReturnPart(tool_call_id=call):
                    found.append(Heard("return", call))
                case _:
                    raise AssertionError(f"unexpected: {part}")
    return found
