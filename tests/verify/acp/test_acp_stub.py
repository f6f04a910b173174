"""The stub model: whose call it is, how each API is answered, and what a hang-up is."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dispatching import in_loop
from turngate_verify.acp.providers import marked
from turngate_verify.acp.rig import shell_tool
from turngate_verify.acp.stub import ModelCall, StubModel

SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}, "timeout": {"type": "integer"}}}
NEEDS = SCHEMA | {"required": ["command", "timeout"]}
Said = dict[str, Any]


def chat(text: str, *, stream: bool) -> tuple[str, Said]:
    tools = [{"type": "function", "function": {"name": "run_shell", "parameters": NEEDS}}]
    return "/v1/chat/completions", {"messages": said(text), "tools": tools, "stream": stream}


def responses(text: str, *, stream: bool) -> tuple[str, Said]:
    tools = [{"type": "function", "name": "run_shell", "parameters": NEEDS}]
    return "/v1/responses", {"input": said(text), "tools": tools, "stream": stream}


def anthropic(text: str, *, stream: bool) -> tuple[str, Said]:
    tools = [{"name": "run_shell", "input_schema": NEEDS}]
    return "/v1/messages", {"messages": said(text), "tools": tools, "stream": stream}


def gemini(text: str, *, stream: bool) -> tuple[str, Said]:
    tools = [{"functionDeclarations": [{"name": "run_shell", "parametersJsonSchema": NEEDS}]}]
    contents = [{"role": each["role"], "parts": [{"text": each["content"]}]} for each in said(text)]
    how = "streamGenerateContent?alt=sse" if stream else "generateContent"
    return f"/v1beta/models/x:{how}", {"contents": contents, "tools": tools}


def said(text: str) -> list[Said]:
    before = {"role": "user", "content": marked(1)}, {"role": "assistant", "content": marked(2)}
    return [*before, {"role": "user", "content": text}]


@asynccontextmanager
async def stub(answers: Callable[[ModelCall], None]) -> AsyncIterator[tuple[StubModel, list[ModelCall]]]:
    calls: list[ModelCall] = []

    def called(call: ModelCall) -> None:
        calls.append(call)
        answers(call)

    model = StubModel(called)
    await model.listen()
    try:
        yield model, calls
    finally:
        await model.close()


async def post(model: StubModel, path: str, body: Said, *, chunked: bool = False) -> tuple[int, str]:
    """Post a request; return the status and the whole body, with the chunks put together."""
    reader, writer = await asyncio.open_connection("127.0.0.1", model.port)
    raw = json.dumps(body).encode()
    if chunked:
        half = len(raw) // 2
        parts = [b"%x\r\n%s\r\n" % (len(part), part) for part in (raw[:half], raw[half:], b"")]
        writer.write(f"POST {path} HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n".encode() + b"".join(parts))
    else:
        writer.write(f"POST {path} HTTP/1.1\r\nContent-Length: {len(raw)}\r\n\r\n".encode() + raw)
    head, _, answer = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    if b"chunked" in head:
        whole = b""
        while answer:
            size, _, answer = answer.partition(b"\r\n")
            whole, answer = whole + answer[: int(size, 16)], answer[int(size, 16) + 2 :]
        answer = whole
    return int(head.split(b" ")[1]), answer.decode()


def frames(text: str) -> list[Said]:
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def texts(value: Any) -> str:
    """Return every text in an answer, wherever its API puts it."""
    if isinstance(value, dict):
        keys = ("text", "content", "delta", "output", "choices", "message", "candidates", "parts")
        return "".join(texts(value[key]) for key in keys if key in value)
    if isinstance(value, list):
        return "".join(map(texts, value))
    return value if isinstance(value, str) else ""


@pytest.mark.parametrize("api", [chat, responses, anthropic, gemini])
@pytest.mark.parametrize("stream", [True, False])
@in_loop
async def test_each_api_is_answered(api: Callable[..., tuple[str, Said]], stream: bool) -> None:
    def answers(call: ModelCall) -> None:
        match call.asked.markers:
            case (3,):
                call.write("hel")
                call.finish("lo")
            case (4,):
                tool = shell_tool(call.asked.tools, "true")
                assert tool == ("run_shell", {"command": "true", "timeout": 60000})
                call.use("run_shell", {"command": "true", "timeout": 60000})
            case _:
                call.fail("no luck")

    async with stub(answers) as (model, calls):
        status, answer = await post(model, *api(marked(3), stream=stream), chunked=True)
        assert status == 200
        if stream:
            pieces = [frame for frame in frames(answer) if "done" not in frame.get("type", "")]
            pieces = [frame for frame in pieces if "response" not in frame]
            assert "".join(texts(frame) for frame in pieces) == "hello"
        else:
            assert texts(json.loads(answer)) == "hello"
        status, answer = await post(model, *api(marked(4), stream=stream))
        assert status == 200
        assert "run_shell" in answer
        assert "true" in answer
        status, answer = await post(model, *api(marked(5), stream=stream))
        assert (status, "no luck" in answer) == (400, True)
        assert [call.asked.markers for call in calls] == [(3,), (4,), (5,)]
        assert {call.state for call in calls} == {"answered"}
        assert {call.asked.is_streamed for call in calls} == {stream}


@in_loop
async def test_side_calls_are_answered_at_once_and_not_shown() -> None:
    async with stub(lambda call: None) as (model, calls):
        path, body = chat(marked(3), stream=False)
        for changed in (body | {"tools": []}, body | {"messages": [{"role": "user", "content": "a title"}]}):
            status, answer = await post(model, path, changed)
            assert (status, texts(json.loads(answer))) == (200, "ok")
        status, answer = await post(model, "/v1/messages/count_tokens", {})
        assert (status, json.loads(answer)["input_tokens"]) == (200, 1)
        assert (calls, model.side_calls) == ([], 2)
        model.needs_tools = False  # of an agent that offers none, the call whose last message is the prompt
        posting = asyncio.ensure_future(post(model, path, body | {"tools": []}))
        while not calls:
            await asyncio.sleep(0)
        calls[0].finish("hello")
        assert texts(json.loads((await posting)[1])) == "hello"


@in_loop
async def test_a_call_that_is_given_up_is_hung_up() -> None:
    async with stub(lambda call: None) as (model, calls):
        path, body = chat(marked(3), stream=True)
        reader, writer = await asyncio.open_connection("127.0.0.1", model.port)
        raw = json.dumps(body).encode()
        writer.write(f"POST {path} HTTP/1.1\r\nContent-Length: {len(raw)}\r\n\r\n".encode() + raw)
        while not calls:
            await asyncio.sleep(0)
        calls[0].write("half")
        assert "half" in (await reader.readuntil(b"half")).decode()
        assert calls[0].is_open
        writer.close()
        await calls[0].changed.wait()
        assert calls[0].state == "hung up"
        calls[0].finish("too late")
        assert calls[0].state == "hung up"
