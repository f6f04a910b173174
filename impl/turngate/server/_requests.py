"""Checks what requests bring: ids, queries, prompts. 400 is a wrong shape, 422 a wrong value."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar, get_args
from urllib.parse import unquote_to_bytes

import msgspec
from starlette.requests import ClientDisconnect

from turngate import WhenBusy
from turngate._errors import counted
from turngate._keys import check_key
from turngate._prompt import decode_attachment, encode
from turngate.server._models import EditBody, NewRunBody
from turngate.server._problems import Problem

if TYPE_CHECKING:
    from starlette.requests import Request

    from turngate import Attachment
    from turngate.server._limits import Limits
    from turngate.server._models import AttachmentBody

Q = TypeVar("Q", bound=msgspec.Struct)


def decode_segment(raw: str) -> str:
    """Return one segment of a path as text; it may hold any character, a slash included."""
    try:
        return unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        raise Problem("malformed", "the path is not percent-encoded UTF-8") from None


def check_id(name: str, value: str, limits: Limits) -> str:
    """Return an id that can be a segment of a path, or refuse it."""
    if len(value) > limits.id_limit:
        raise Problem("invalid", f"{name} has at most {limits.id_limit} characters (id_limit)")
    if value in ("", ".", ".."):
        raise Problem("invalid", f"{name} must not be empty, '.' or '..', which an address cannot contain")
    return value


def parse_query(request: Request, kind: type[Q]) -> Q:
    """Return the query of a request; parameters that are empty or not known count as not given."""
    given = {name: value for name, value in request.query_params.items() if value}
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as wrong:
        raise Problem("invalid", f"the query is not valid: {wrong}") from None


async def read_body(request: Request, limits: Limits) -> bytes:
    """Return the whole body, if it is not too large and comes in time."""
    declared, body = request.headers.get("content-length", ""), b""
    size = int(declared) if declared.isdecimal() else 0
    more = True
    try:
        async with asyncio.timeout(limits.body_timeout):
            while more and size <= limits.body_limit:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                body += message.get("body", b"")
                size, more = max(size, len(body)), message.get("more_body", False)
    except TimeoutError:
        slow = f"the body did not arrive within {limits.body_timeout:g} s (body_timeout)"
        raise Problem("malformed", slow, connection="close") from None
    if size > limits.body_limit:
        too_large = f"a body has at most {counted(limits.body_limit, 'byte')} (body_limit)"
        raise Problem("too-large", too_large, connection="close")
    return body


async def parse_body(request: Request, kind: type[Q], limits: Limits, *, is_needed: bool) -> Q:
    """Return the body of a request; its shape is checked, its values are not."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if is_needed and media_type != "application/json":
        raise Problem("unsupported-media-type")
    raw = await read_body(request, limits)
    if not raw and not is_needed:
        return kind()
    if media_type != "application/json":
        raise Problem("unsupported-media-type")
    # Not with msgspec, which has no way to tell half of a surrogate pair from what is no JSON.
    try:
        data = _decoder.decode(raw.decode())
    except (ValueError, RecursionError) as wrong:
        reason = "it is nested too deeply" if isinstance(wrong, RecursionError) else str(wrong)
        raise Problem("malformed", f"the body is not JSON: {reason}") from None
    attachments = data.get("attachments") if isinstance(data, dict) else None
    if isinstance(attachments, list) and len(attachments) > limits.attachments_limit:
        most = counted(limits.attachments_limit, "attachment")
        raise Problem("invalid", f"a prompt has at most {most} (attachments_limit)")
    try:
        body = msgspec.convert(data, kind)
    except msgspec.ValidationError as wrong:
        raise Problem("malformed", f"the body is not valid: {wrong}") from None
    if b"\\u" in raw and not _is_unicode(data):
        raise Problem("invalid", "the body contains half of a surrogate pair, which is not a character")
    return body


async def parse_new_run(request: Request, limits: Limits) -> tuple[str, dict[str, Any]]:
    """Return the prompt in the body of a request and its options."""
    body = await parse_body(request, NewRunBody, limits, is_needed=True)
    when_busy = body.when_busy or "fold"
    if when_busy not in get_args(WhenBusy):
        raise Problem("invalid", f"when_busy must be one of {', '.join(get_args(WhenBusy))}")
    if body.into is not None and when_busy != "fold":
        raise Problem("invalid", f"a prompt with into can only be folded, so when_busy cannot be {when_busy}")
    return body.prompt, {
        "run_id": _run_id(request, body.run_id, limits),
        "when_busy": when_busy,
        "attachments": [_attachment(each) for each in body.attachments or ()],
        "into": body.into,
        "data": _checked(body.data),
    }


async def parse_edit(request: Request, limits: Limits) -> dict[str, Any]:
    """Return what a request changes of a run that waits, as `Dispatcher.edit` takes it."""
    body = await parse_body(request, EditBody, limits, is_needed=True)
    changes: dict[str, Any] = {}
    if body.prompt is not msgspec.UNSET:
        changes["prompt"] = body.prompt or ""
    if body.attachments is not msgspec.UNSET:
        changes["attachments"] = [_attachment(each) for each in body.attachments or ()]
    if body.when_busy is not msgspec.UNSET:
        changes["when_busy"] = body.when_busy or "fold"
        if changes["when_busy"] not in ("fold", "queue"):
            raise Problem("invalid", "a waiting run can be changed to fold or queue")
    if body.data is not msgspec.UNSET:
        changes["data"] = _checked(body.data)
    return changes


def _checked(data: object) -> object:
    try:
        encode(data, "data")
    except TypeError as wrong:
        raise Problem("invalid", str(wrong)) from None
    return data


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


_decoder: Final = json.JSONDecoder(parse_constant=_refuse_constant)


def _is_unicode(data: object) -> bool:
    try:
        json.dumps(data, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _attachment(body: AttachmentBody) -> Attachment | str:
    given = msgspec.structs.asdict(body).items()
    try:
        return decode_attachment({name: each for name, each in given if each is not msgspec.UNSET})
    except ValueError:
        raise Problem("invalid", "the base64 of an attachment is not valid") from None


def _run_id(request: Request, run_id: str | None, limits: Limits) -> str | None:
    """Return the id that the client chose, in the body or as the Idempotency-Key."""
    key = _header_key(request)
    if key is not None and run_id is not None and run_id != key:
        raise Problem("malformed", "the Idempotency-Key must equal run_id if both are given")
    chosen = run_id if key is None else key
    return None if chosen is None else check_id("run_id", chosen, limits)


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
        raise Problem("malformed", "the request has more than one Idempotency-Key")
    key = keys.pop() if keys else None
    return key[1:-1] if key is not None and len(key) > 2 and key[0] == key[-1] == '"' else key
