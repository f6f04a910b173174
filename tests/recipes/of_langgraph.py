"""LangGraph with a scripted provider."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, ToolMessage
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.tools import StructuredTool

from langgraph_runner import runner
from scripted import TOOL, Heard, Script
from turngate import Runner

LEAVES = None


def make(script: Script, tool: Callable[..., object] | None = None) -> Runner:
    """Make the recipe's runner; its tool is the script's, or another of that name."""
    about: Any = {"name": TOOL, "description": "looks something up"}
    if tool is None:
        return runner(
            Provider(script=script), [StructuredTool.from_function(coroutine=script.look_up, **about)]
        )
    return runner(Provider(script=script), [StructuredTool.from_function(tool, **about)])


class Provider(BaseChatModel):
    """Says what the script says."""

    script: Any

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, *_: Any, **__: Any) -> Any:
        """Know the tools already."""
        return self

    def _generate(self, *_: Any, **__: Any) -> ChatResult:
        raise NotImplementedError

    async def _astream(
        self, messages: list[BaseMessage], *_: Any, **__: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        reply = self.script.reply(heard(messages))
        for word in reply.words:
            await asyncio.sleep(0)
            yield ChatGenerationChunk(message=AIMessageChunk(content=word))
        if reply.call is not None:
            await asyncio.sleep(0)
            subject = json.dumps({"subject": reply.subject})
            chunk = tool_call_chunk(name=TOOL, args=subject, id=reply.call, index=0)
            yield ChatGenerationChunk(message=AIMessageChunk(content="", tool_call_chunks=[chunk]))


def heard(messages: Iterable[BaseMessage]) -> list[Heard]:
    """Translate what LangGraph sends."""
    found: list[Heard] = []
    for message in messages:
        match message:
            case HumanMessage():
                found.append(Heard("user", message.text))
            case ToolMessage():
                found.append(Heard("return", message.tool_call_id))
            case AIMessage():
                found += [Heard("assistant", message.text)] if message.text else []
                found += [Heard("call", str(call["id"])) for call in message.tool_calls]
            case _:
                raise AssertionError(f"unexpected: {message}")
    return found
