"""What the APIs of model providers say: whose call a request is, and how an answer is written.

OpenAI chat completions and responses, Anthropic messages, and Gemini. Each call
is read for its marker and its tools, and answered in pieces or as a whole.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from typing import Any, NamedTuple

MARKER = re.compile(r"turngate-run-(\d+)")
_USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
_THEIRS = ("assistant", "model", "system", "developer")


class Tool(NamedTuple):
    """A tool that the agent offers to the model."""

    name: str
    schema: dict[str, Any]
    """The JSON schema of its arguments."""


class Asked(NamedTuple):
    """A request to the model."""

    markers: tuple[int, ...]
    """The markers of the last message that has any and is not the model's own."""
    is_last: bool
    """Whether that is the last message of all."""
    told: tuple[int, ...]
    """Every marker in the conversation, in order, but for what the model itself has said."""
    tools: tuple[Tool, ...]
    is_streamed: bool
    wants_json: bool


def marked(number: int) -> str:
    """Return the marker of a run."""
    return f"turngate-run-{number}"


def markers_in(text: str) -> tuple[int, ...]:
    """Return the numbers of the runs that a text names, each once."""
    return tuple(dict.fromkeys(int(number) for number in MARKER.findall(text)))


def _objects(value: object) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _asked(body: dict[str, Any], messages: object, tools: list[Tool], *, streamed: bool) -> Asked:
    said = [{"role": "user", "content": messages}] if isinstance(messages, str) else _objects(messages)
    of_user = [message for message in said if message.get("role") not in _THEIRS]
    found = [(markers, message) for message in of_user if (markers := markers_in(json.dumps(message)))]
    told = tuple(dict.fromkeys(number for markers, _ in found for number in markers))
    markers, last = found[-1] if found else ((), None)
    is_last = last is not None and last is said[-1]
    return Asked(markers, is_last, told, tuple(tools), streamed, _wants_json(body))


def _wants_json(body: dict[str, Any]) -> bool:
    config = body.get("generationConfig")
    kind = config.get("responseMimeType") if isinstance(config, dict) else None
    return kind == "application/json" or any(body.get(each) for each in ("response_format", "output_format"))


def _frame(data: dict[str, Any], *, event: str = "") -> str:
    return (f"event: {event}\n" if event else "") + f"data: {json.dumps(data)}\n\n"


class Provider(ABC):
    """How one answer is written in one API. Frames are server-sent events."""

    name: str

    def __init__(self) -> None:
        self.text = ""
        self.tool: tuple[str, dict[str, Any]] | None = None

    @abstractmethod
    def asked(self, path: str, body: dict[str, Any]) -> Asked:
        """Return what a request asks."""

    def begin(self) -> str:
        """Return the frames with which a stream begins."""
        return ""

    @abstractmethod
    def write(self, text: str) -> str:
        """Return the frames of a piece of text."""

    @abstractmethod
    def call(self, name: str, arguments: dict[str, Any]) -> str:
        """Return the frames that ask for a tool call."""

    @abstractmethod
    def end(self) -> str:
        """Return the frames with which a stream ends."""

    @abstractmethod
    def whole(self) -> dict[str, Any]:
        """Return the answer as one object."""

    def error(self, message: str) -> dict[str, Any]:
        """Return the object that says why a request is refused."""
        about = {
            "message": message,
            "type": "invalid_request_error",
            "code": 400,
            "status": "INVALID_ARGUMENT",
        }
        return {"type": "error", "error": about}


class ChatCompletions(Provider):
    """OpenAI: POST .../chat/completions."""

    name = "OpenAI chat completions"

    def asked(self, path: str, body: dict[str, Any]) -> Asked:
        """Return what a request asks."""
        functions = [_objects([tool.get("function", tool)]) for tool in _objects(body.get("tools"))]
        tools = [Tool(str(each.get("name")), each.get("parameters") or {}) for (each,) in functions]
        return _asked(body, body.get("messages"), tools, streamed=bool(body.get("stream")))

    def _chunk(self, delta: dict[str, Any], reason: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        about: dict[str, Any] = {"usage": _USAGE} if reason else {}
        base = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "stub"}
        return _frame(base | about | {"choices": [choice]})

    def write(self, text: str) -> str:
        """Return the frames of a piece of text."""
        return self._chunk({"role": "assistant", "content": text})

    def _call(self) -> dict[str, Any]:
        assert self.tool is not None
        name, arguments = self.tool
        return {
            "id": "call_1",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)},
        }

    def call(self, name: str, arguments: dict[str, Any]) -> str:
        """Return the frames that ask for a tool call."""
        self.tool = name, arguments
        return self._chunk({"role": "assistant", "tool_calls": [{"index": 0, **self._call()}]})

    def end(self) -> str:
        """Return the frames with which a stream ends."""
        return self._chunk({}, "tool_calls" if self.tool else "stop") + "data: [DONE]\n\n"

    def whole(self) -> dict[str, Any]:
        """Return the answer as one object."""
        calls: dict[str, Any] = {"tool_calls": [self._call()]} if self.tool else {}
        message = {"role": "assistant", "content": self.text or None, **calls}
        choice = {
            "index": 0,
            "message": message,
            "finish_reason": "tool_calls" if self.tool else "stop",
        }
        base = {"id": "c", "object": "chat.completion", "created": 1, "model": "stub"}
        return {**base, "choices": [choice], "usage": _USAGE}


class Responses(Provider):
    """OpenAI: POST .../responses."""

    name = "OpenAI responses"

    def __init__(self) -> None:
        super().__init__()
        self._sequence = -1
        self._has_text = False

    def asked(self, path: str, body: dict[str, Any]) -> Asked:
        """Return what a request asks."""
        tools = [
            Tool(str(each.get("name")), each.get("parameters") or {})
            for each in _objects(body.get("tools"))
            if each.get("type") == "function"
        ]
        return _asked(body, body.get("input"), tools, streamed=bool(body.get("stream")))

    def _event(self, kind: str, **data: Any) -> str:
        self._sequence += 1
        return _frame({"type": kind, "sequence_number": self._sequence, **data}, event=kind)

    def _response(self, status: str) -> dict[str, Any]:
        usage = {
            "input_tokens": 1,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 1,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 2,
        }
        return {
            "id": "r",
            "object": "response",
            "created_at": 1,
            "model": "stub",
            "status": status,
            "output": self._output() if status == "completed" else [],
            "usage": usage if status == "completed" else None,
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
            "parallel_tool_calls": False,
            "tool_choice": "auto",
            "tools": [],
        }

    def _output(self) -> list[dict[str, Any]]:
        return [*([self._message("completed")] if self.text else []), *([self._call()] if self.tool else [])]

    def _message(self, status: str) -> dict[str, Any]:
        content = [{"type": "output_text", "text": self.text, "annotations": []}]
        is_begun = status == "completed"
        return {
            "id": "m",
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": content if is_begun else [],
        }

    def _call(self) -> dict[str, Any]:
        assert self.tool is not None
        name, arguments = self.tool
        about = {"id": "f", "call_id": "call_1", "name": name, "arguments": json.dumps(arguments)}
        return {"type": "function_call", "status": "completed", **about}

    def begin(self) -> str:
        """Return the frames with which a stream begins."""
        return self._event("response.created", response=self._response("in_progress"))

    def write(self, text: str) -> str:
        """Return the frames of a piece of text."""
        at, frames = {"item_id": "m", "output_index": 0, "content_index": 0}, ""
        if not self._has_text:
            self._has_text = True
            part = {"type": "output_text", "text": "", "annotations": []}
            frames += self._event(
                "response.output_item.added", output_index=0, item=self._message("in_progress")
            )
            frames += self._event("response.content_part.added", **at, part=part)
        return frames + self._event("response.output_text.delta", **at, delta=text)

    def call(self, name: str, arguments: dict[str, Any]) -> str:
        """Return the frames that ask for a tool call."""
        self.tool = name, arguments
        at = {"output_index": int(self._has_text)}
        item = self._call()
        said = {"item_id": "f", **at}
        return (
            self._event(
                "response.output_item.added", **at, item=item | {"arguments": "", "status": "in_progress"}
            )
            + self._event("response.function_call_arguments.delta", **said, delta=item["arguments"])
            + self._event("response.function_call_arguments.done", **said, arguments=item["arguments"])
            + self._event("response.output_item.done", **at, item=item)
        )

    def end(self) -> str:
        """Return the frames with which a stream ends."""
        frames = ""
        if self._has_text:
            at = {"item_id": "m", "output_index": 0, "content_index": 0}
            part = {"type": "output_text", "text": self.text, "annotations": []}
            frames += self._event("response.output_text.done", **at, text=self.text)
            frames += self._event("response.content_part.done", **at, part=part)
            frames += self._event(
                "response.output_item.done", output_index=0, item=self._message("completed")
            )
        return frames + self._event("response.completed", response=self._response("completed"))

    def whole(self) -> dict[str, Any]:
        """Return the answer as one object."""
        return self._response("completed")


class Messages(Provider):
    """Anthropic: POST .../messages."""

    name = "Anthropic messages"

    def __init__(self) -> None:
        super().__init__()
        self._block = -1

    def asked(self, path: str, body: dict[str, Any]) -> Asked:
        """Return what a request asks."""
        tools = [
            Tool(str(each.get("name")), each.get("input_schema") or {})
            for each in _objects(body.get("tools"))
        ]
        return _asked(body, body.get("messages"), tools, streamed=bool(body.get("stream")))

    def _event(self, kind: str, **data: Any) -> str:
        return _frame({"type": kind, **data}, event=kind)

    def _message(self, reason: str | None, content: list[dict[str, Any]]) -> dict[str, Any]:
        usage = {"input_tokens": 1, "output_tokens": 1}
        base = {"id": "m", "type": "message", "role": "assistant", "model": "stub"}
        return {**base, "content": content, "stop_reason": reason, "stop_sequence": None, "usage": usage}

    def begin(self) -> str:
        """Return the frames with which a stream begins."""
        return self._event("message_start", message=self._message(None, []))

    def _open(self, block: dict[str, Any]) -> str:
        ended = self._close()
        self._block += 1
        return ended + self._event("content_block_start", index=self._block, content_block=block)

    def _close(self) -> str:
        return self._event("content_block_stop", index=self._block) if self._block >= 0 else ""

    def write(self, text: str) -> str:
        """Return the frames of a piece of text."""
        opened = self._open({"type": "text", "text": ""}) if self._block < 0 else ""
        delta = {"type": "text_delta", "text": text}
        return opened + self._event("content_block_delta", index=self._block, delta=delta)

    def call(self, name: str, arguments: dict[str, Any]) -> str:
        """Return the frames that ask for a tool call."""
        self.tool = name, arguments
        opened = self._open({"type": "tool_use", "id": "call_1", "name": name, "input": {}})
        delta = {"type": "input_json_delta", "partial_json": json.dumps(arguments)}
        return opened + self._event("content_block_delta", index=self._block, delta=delta)

    def end(self) -> str:
        """Return the frames with which a stream ends."""
        reason = {"stop_reason": "tool_use" if self.tool else "end_turn", "stop_sequence": None}
        usage = {"output_tokens": 1}
        ended = self._close() + self._event("message_delta", delta=reason, usage=usage)
        return ended + self._event("message_stop")

    def whole(self) -> dict[str, Any]:
        """Return the answer as one object."""
        content: list[dict[str, Any]] = [{"type": "text", "text": self.text}] if self.text else []
        if self.tool:
            name, arguments = self.tool
            content.append({"type": "tool_use", "id": "call_1", "name": name, "input": arguments})
        return self._message("tool_use" if self.tool else "end_turn", content)


class Gemini(Provider):
    """Google: POST .../models/NAME:generateContent and :streamGenerateContent."""

    name = "Gemini"

    def asked(self, path: str, body: dict[str, Any]) -> Asked:
        """Return what a request asks."""
        declared = [
            each
            for tool in _objects(body.get("tools"))
            for each in _objects(tool.get("functionDeclarations"))
        ]
        tools = [
            Tool(str(each.get("name")), each.get("parametersJsonSchema") or each.get("parameters") or {})
            for each in declared
        ]
        return _asked(body, body.get("contents"), tools, streamed="streamGenerateContent" in path)

    def _content(self, parts: list[dict[str, Any]], reason: str = "") -> dict[str, Any]:
        candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": 0}
        if not reason:
            return {"candidates": [candidate]}
        usage = {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}
        return {"candidates": [candidate | {"finishReason": reason}], "usageMetadata": usage}

    def write(self, text: str) -> str:
        """Return the frames of a piece of text."""
        return _frame(self._content([{"text": text}]))

    def call(self, name: str, arguments: dict[str, Any]) -> str:
        """Return the frames that ask for a tool call."""
        self.tool = name, arguments
        return _frame(self._content([{"functionCall": {"name": name, "args": arguments}}]))

    def end(self) -> str:
        """Return the frames with which a stream ends."""
        return _frame(self._content([{"text": ""}], "STOP"))

    def whole(self) -> dict[str, Any]:
        """Return the answer as one object."""
        parts: list[dict[str, Any]] = [{"text": self.text}]
        if self.tool:
            parts = [{"functionCall": {"name": self.tool[0], "args": self.tool[1]}}]
        return self._content(parts, "STOP")


def provider_of(path: str) -> Provider | None:
    """Return the API that a path belongs to; None if it asks for no answer of the model."""
    bare = path.partition("?")[0].rstrip("/")
    if bare.endswith("/chat/completions"):
        return ChatCompletions()
    if bare.endswith("/responses"):
        return Responses()
    if bare.endswith("/messages"):
        return Messages()
    if bare.endswith((":generateContent", ":streamGenerateContent")):
        return Gemini()
    return None
