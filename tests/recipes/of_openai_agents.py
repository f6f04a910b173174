"""openai-agents with a scripted provider."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from agents import Agent, Model, ModelResponse, function_tool, set_tracing_disabled
from agents.items import TResponseStreamEvent
from agents.testing import assistant_message, function_call
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseOutputItemDoneEvent,
    ResponseTextDeltaEvent,
)

from openai_agents_runner import runner
from scripted import TOOL, Heard, Script
from turngate import Runner

LEAVES = None

set_tracing_disabled(True)  # it would send its traces somewhere


def make(script: Script, tool: Callable[..., object] | None = None) -> Runner:
    """Make the recipe's runner; its tool is the script's, or another of that name."""
    return runner(
        Agent(name="scripted", model=Provider(script), tools=[function_tool(tool or script.look_up)])
    )


class Provider(Model):
    """Says what the script says, as the Responses API would."""

    def __init__(self, script: Script) -> None:
        self.script = script

    async def get_response(self, *_: Any, **__: Any) -> ModelResponse:
        """Every request streams."""
        raise NotImplementedError

    async def stream_response(self, *args: Any, **_: Any) -> AsyncIterator[TResponseStreamEvent]:
        """Stream words, then the items that they are part of, then the whole."""
        reply = self.script.reply(heard(args[1]))
        for word in reply.words:
            await asyncio.sleep(0)
            yield ResponseTextDeltaEvent(
                type="response.output_text.delta", delta=word, logprobs=[],
                item_id="m", output_index=0, content_index=0, sequence_number=0,
            )  # fmt: skip
        output = [assistant_message("".join(reply.words))]
        if reply.call is not None:
            output.append(function_call(TOOL, {"subject": reply.subject}, call_id=reply.call))
        for index, item in enumerate(output):
            await asyncio.sleep(0)
            yield ResponseOutputItemDoneEvent(
                type="response.output_item.done", item=item, output_index=index, sequence_number=0
            )
        await asyncio.sleep(0)
        response = Response(
            id="r", created_at=0, model="scripted", object="response", output=output,
            tool_choice="none", tools=[], parallel_tool_calls=False,
        )  # fmt: skip
        yield ResponseCompletedEvent(type="response.completed", response=response, sequence_number=0)


def heard(items: Iterable[Any]) -> list[Heard]:
    """Translate what openai-agents sends."""
    found: list[Heard] = []
    for item in items:
        match item.get("type", "message"):
            case "message":
                content = item["content"]
                text = content if isinstance(content, str) else "".join(part["text"] for part in content)
                found.append(Heard(item["role"], text))
            case "function_call":
                found.append(Heard("call", item["call_id"]))
            case "function_call_output":
                found.append(Heard("return", item["call_id"]))
            case _:
                raise AssertionError(f"unexpected: {item}")
    return found
