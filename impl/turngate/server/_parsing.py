"""What comes over the line, checked: paths, numbers, prompts. 400 is a wrong shape, 422 a wrong value."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, get_args
from urllib.parse import unquote_to_bytes

from starlette.requests import ClientDisconnect

from turngate import Attachment, WhenBusy
from turngate._keys import check_key
from turngate._words import counted
from turngate.server._problems import Problem

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request

    from turngate.server._limits import Limits

_KEYS: Final = {"prompt", "run_id", "when_busy", "attachments"}
_ATTACHMENT_KEYS: Final = {"name", "mime_type", "text", "base64"}


class NewRun(NamedTuple):
    """What a client wants to have run."""

    prompt: str
    run_id: str | None
    when_busy: WhenBusy
    attachments: tuple[Attachment, ...]


def segment(raw: bytes) -> str:
    """Return one segment of a path as text; it may hold any character, a slash included."""
    try:
        return unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        raise Problem("malformed", "the path is not percent-encoded UTF-8") from None


def checked_id(name: str, value: str, limits: Limits) -> str:
    """Return an id that can be a segment of a path, or refuse it."""
    if len(value) > limits.id_limit:
        raise Problem("invalid", f"{name} has at most {limits.id_limit} characters (id_limit)")
    if value in ("", ".", ".."):
        raise Problem(
            "invalid", f"{name} must not be empty, nor one or two dots, which addresses cannot name"
        )
    _check_text(name, value)
    return value


def _check_text(name: str, value: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Problem("invalid", f"{name} holds half of a surrogate pair, which is no character") from None


def seconds(text: str | None, most: float) -> float:
    """Return how long to wait, at most as long as is allowed."""
    if not text:
        return 0.0
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not value >= 0:
        raise Problem("invalid", "wait must be a number of seconds, 0 or more")
    return min(value, most)


def page_size(text: str | None, limits: Limits) -> int:
    """Return how many messages to answer with."""
    if text is None:
        return min(100, limits.page_limit)
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and 1 <= int(text) <= limits.page_limit):
        raise Problem("invalid", f"limit must be a whole number from 1 to {limits.page_limit} (page_limit)")
    return int(text)


def flag(name: str, text: str | None) -> bool:
    """Return whether something is wanted."""
    if text not in (None, "true", "false"):
        raise Problem("invalid", f"{name} must be true or false")
    return text == "true"


async def body_of(request: Request, limits: Limits) -> bytes:
    """Return the whole body, if it is not too large and comes in time."""
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limits.body_limit:
        raise _too_large(limits)
    try:
        async with asyncio.timeout(limits.body_timeout):
            body: bytes = b""
            while True:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                body += message.get("body", b"")
                if len(body) > limits.body_limit:
                    raise _too_large(limits)
                if not message.get("more_body", False):
                    return body
    except TimeoutError:
        slow = f"the body did not arrive within {limits.body_timeout:g} s (body_timeout)"
        raise Problem("malformed", slow, connection="close") from None


def _too_large(limits: Limits) -> Problem:
    said = f"a body has at most {counted(limits.body_limit, 'byte')} (body_limit)"
    return Problem("too-large", said, connection="close")


async def new_run(request: Request, limits: Limits) -> NewRun:
    """Return what the body of a request wants to have run."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise Problem("unsupported-media-type")
    try:
        said = _decoder.decode((await body_of(request, limits)).decode())
    except (ValueError, RecursionError) as wrong:
        reason = "it is nested too deeply" if isinstance(wrong, RecursionError) else str(wrong)
        raise Problem("malformed", f"the body is not JSON: {reason}") from None
    if not isinstance(said, dict):
        raise Problem("malformed", "the body must be an object with the key prompt")
    if unknown := said.keys() - _KEYS:
        raise Problem("malformed", f"unknown keys {_listed(unknown)}; there are {_listed(_KEYS)}")
    prompt = _text(said, "prompt", "")
    _check_text("prompt", prompt)
    when_busy = _text(said, "when_busy", "fold")
    if when_busy not in get_args(WhenBusy):
        raise Problem("invalid", f"when_busy must be one of {', '.join(get_args(WhenBusy))}")
    if "prompt" not in said:
        raise Problem("malformed", "the key prompt is missing")
    attachments = _attachments(said.get("attachments") or (), limits)
    return NewRun(prompt, _run_id(request, said, limits), when_busy, attachments)  # type: ignore[arg-type]  # when_busy was checked above


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"there is no number {name}")


_decoder: Final = json.JSONDecoder(parse_constant=_refuse_constant)  # json.loads would make one each time


def _listed(keys: set[str]) -> str:
    return ", ".join(sorted(key[:40] for key in keys))


def _text(said: Mapping[str, Any], key: str, default: str) -> str:
    value = said.get(key, default)
    if value is None and key == "when_busy":
        return default
    if not isinstance(value, str):
        raise Problem("malformed", f"{key} must be a string")
    return value


def _run_id(request: Request, said: Mapping[str, Any], limits: Limits) -> str | None:
    """Return the id that the client chose, in the body or as the Idempotency-Key."""
    run_id = said.get("run_id")
    if run_id is not None and not isinstance(run_id, str):
        raise Problem("malformed", "run_id must be a string")
    key = _header_key(request)
    if key is not None:
        if run_id is not None and run_id != key:
            raise Problem("malformed", "the Idempotency-Key stands for run_id, and differs from it")
        run_id = key
    return None if run_id is None else checked_id("run_id", run_id, limits)


def idempotency_key(request: Request) -> str | None:
    """Return the key under which a repetition of the request changes nothing."""
    key = _header_key(request)
    try:
        return None if key is None else check_key(key)
    except ValueError as wrong:
        raise Problem("invalid", f"Idempotency-Key: {wrong}") from None


def _header_key(request: Request) -> str | None:
    """Return the Idempotency-Key, which may be written as a string in quotes."""
    keys = {*request.headers.getlist("idempotency-key")}
    if len(keys) > 1:
        raise Problem("malformed", "there is more than one Idempotency-Key")
    key = keys.pop() if keys else None
    return key[1:-1] if key is not None and len(key) > 2 and key[0] == key[-1] == '"' else key


def _attachments(said: object, limits: Limits) -> tuple[Attachment, ...]:
    if not isinstance(said, list | tuple):
        raise Problem("malformed", "attachments must be a list")
    if len(said) > limits.attachments_limit:
        raise Problem(
            "invalid",
            f"a prompt has at most {counted(limits.attachments_limit, 'attachment')} (attachments_limit)",
        )
    return tuple(_attachment(each) for each in said)


def _attachment(said: object) -> Attachment:
    if not isinstance(said, dict) or said.keys() - _ATTACHMENT_KEYS:
        raise Problem("malformed", "an attachment is an object with name, mime_type, and text or base64")
    if ("text" in said) == ("base64" in said):
        raise Problem("malformed", "an attachment has either text or base64")
    for key in ("name", "mime_type", "text" if "text" in said else "base64"):
        if not isinstance(said.get(key), str):
            raise Problem("malformed", f"{key} of an attachment must be a string")
        _check_text(f"{key} of an attachment", said[key])
    content: str | bytes
    if "text" in said:
        content = said["text"]
    else:
        try:
            content = base64.b64decode(said["base64"], validate=True)
        except (binascii.Error, ValueError):
            raise Problem("invalid", "base64 of an attachment is not base64") from None
    return Attachment(said["name"], said["mime_type"], content)
