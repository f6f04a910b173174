"""What ACP messages carry: prompts, as the dispatcher takes them, and updates, as notes describe them."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any, Final

from turngate._prompt import Attachment
from turngate.acp._wire import Code, RpcError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from turngate._events import Note

CHUNK: Final = 4_096
"""Characters of text in one update: however they are escaped, the line is shorter than 64 KiB."""
UPDATES: Final = {
    "tool_call": ("toolCallId", "title"),
    "tool_call_update": ("toolCallId",),
    "plan": ("entries",),
    "agent_thought_chunk": ("content",),
    "available_commands_update": ("availableCommands",),
    "current_mode_update": ("currentModeId",),
    "session_info_update": (),
    "usage_update": ("used", "size"),
}
"""The kinds of notes that are passed on as updates of the same name, and what such an update must have."""
OVER: Final = ("completed", "failed")
"""The states that a tool call does not leave."""


def as_prompt(blocks: object) -> tuple[str, list[Attachment]]:
    """Return the text of a prompt and what goes with it.

    Links are part of the text. What a prompt embeds is an attachment, and its address is part of the text.
    """
    if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
        raise RpcError(Code.INVALID_PARAMS, "prompt must be a list of content blocks")
    text: list[str] = []
    attachments: list[Attachment] = []
    for block in blocks:
        try:
            _add(block, text, attachments)
        except (KeyError, TypeError, AttributeError, binascii.Error) as wrong:
            kind = block.get("type")
            raise RpcError(
                Code.INVALID_PARAMS, f"a content block is incomplete or wrong: {wrong!r}", type=kind
            ) from None
    return "\n".join(text), attachments


def _add(block: dict[str, Any], text: list[str], attachments: list[Attachment]) -> None:
    match block.get("type"):
        case "text":
            text.append(_string(block["text"]))
        case "resource_link":
            text.append(f"[{_string(block['name'])}]({_string(block['uri'])})")
        case "image" | "audio" as kind:
            name = _string(block.get("uri") or kind)
            attachments.append(Attachment(name, _string(block["mimeType"]), _decoded(block["data"])))
        case "resource":
            resource = block["resource"]
            uri, is_text = _string(resource["uri"]), "text" in resource
            content = _string(resource["text"]) if is_text else _decoded(resource["blob"])
            mime_type = resource.get("mimeType") or ("text/plain" if is_text else "application/octet-stream")
            mime_type = _string(mime_type)
            text.append(f"[{uri}]({uri})")
            attachments.append(Attachment(uri, mime_type, content))
        case kind:
            raise RpcError(Code.INVALID_PARAMS, "there is no such type of content block", type=kind)


def _string(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} instead of a string")
    return value


def _decoded(data: object) -> bytes:
    return base64.b64decode(_string(data), validate=True)


def update(session_id: str, kind: str, data: dict[str, Any]) -> dict[str, Any]:
    """Return the notification of an update."""
    about = {"sessionId": session_id, "update": {**data, "sessionUpdate": kind}}
    return {"method": "session/update", "params": about}


def chunks(session_id: str, kind: str, text: str) -> Iterator[dict[str, Any]]:
    """Yield the notifications of a text."""
    for start in range(0, len(text), CHUNK):
        content = {"type": "text", "text": text[start : start + CHUNK]}
        yield update(session_id, kind, {"content": content})


def is_update(note: Note) -> bool:
    """Return whether a note describes an update of the protocol."""
    needed = UPDATES.get(note.kind)
    return needed is not None and isinstance(note.data, dict) and all(key in note.data for key in needed)
