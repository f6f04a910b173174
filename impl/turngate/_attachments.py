"""Attachments as JSON: in requests over HTTP, and on a ledger."""

from __future__ import annotations

import base64
from collections.abc import Mapping

from turngate._prompt import Attachment

EncodedAttachment = Mapping[str, str] | str
"""`{"name", "mime_type", "text" or "base64"}`; an attachment that is a string stays one."""


def encode_attachment(attachment: Attachment | str) -> dict[str, str] | str:
    """Return an attachment as JSON data: text as it is, bytes in base64."""
    if isinstance(attachment, str):
        return attachment
    name, mime_type, content = attachment
    if isinstance(content, str):
        return {"name": name, "mime_type": mime_type, "text": content}
    return {"name": name, "mime_type": mime_type, "base64": base64.b64encode(content).decode("ascii")}


def decode_attachment(data: EncodedAttachment) -> Attachment | str:
    """Return the attachment that was encoded so; raises ValueError if `base64` is not base64."""
    if isinstance(data, str):
        return data
    content = data["text"] if "text" in data else base64.b64decode(data["base64"], validate=True)
    return Attachment(data["name"], data["mime_type"], content)
