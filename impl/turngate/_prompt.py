"""Checks and encodes what callers pass in: prompts, attachments, JSON and limits."""

from __future__ import annotations

import base64
import functools
import inspect
import json
import math
from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypedDict, get_args

from turngate._errors import EmptyPrompt, MissingSession
from turngate._events import RunComplete

if TYPE_CHECKING:
    from collections.abc import Sequence


def whole_number(name: str, value: int, *, at_least: int) -> int:
    """Return the value of the limit; raise if it is not valid."""
    if not isinstance(value, int) or value < at_least:
        raise ValueError(f"{name} must be a whole number of at least {at_least}, not {value!r}")
    return value


def seconds(name: str, value: float) -> float:
    """Return the value of the time-out; raise if it is not valid."""
    if not isinstance(value, int | float) or not value > 0:
        raise ValueError(f"{name} must be more than 0 seconds, not {value!r}")
    return value


def check_finish(value: float) -> float:
    """Return the seconds that a close may wait; raise if the value is not valid."""
    if not isinstance(value, int | float) or not value >= 0:
        raise ValueError(f"finish must be at least 0 seconds, not {value!r}")
    return value


_LEVELS: Final = 200
"""How deep data may be nested: data encoded on one stack must also be written, read and copied on others."""


def encode(data: object, where: str) -> str:
    """Return the data as JSON text, the same text for equal data; raise TypeError if they are not JSON."""
    try:
        _check(data, _LEVELS)
        return json.dumps(data, sort_keys=True)
    except (TypeError, ValueError, RecursionError) as wrong:
        raise TypeError(f"{where} must be JSON: {wrong}") from None


def decode(text: str | None) -> Any:
    """Return a new copy of the encoded data; None if there are none."""
    return None if text is None else json.loads(text)


def _check(data: object, levels: int) -> None:
    """Refuse what `json.dumps` would silently change: keys that are not strings, infinity, NaN."""
    if isinstance(data, dict | list | tuple):
        if levels == 0:
            raise TypeError(f"it is nested more than {_LEVELS} levels deep")
        if isinstance(data, dict):
            for key in data:
                if not isinstance(key, str):
                    raise TypeError(f"a key must be a string, not {type(key).__name__}")
        for value in data.values() if isinstance(data, dict) else data:
            _check(value, levels - 1)
    elif isinstance(data, float) and not math.isfinite(data):
        raise TypeError(f"there is no number {data!r}")


OnComplete = Callable[[RunComplete], object]
"""A hook: receives the RunComplete of its run instead of the subscribers; not a coroutine function."""
WhenBusy = Literal["fold", "queue", "interrupt", "reject"]
"""What a prompt does when its session is busy."""
WHEN_BUSY = frozenset(get_args(WhenBusy))


class Unchanged(Enum):
    """The default for values that an edit leaves unchanged."""

    UNCHANGED = "unchanged"


UNCHANGED: Final = Unchanged.UNCHANGED


class PromptOptions(TypedDict, total=False):
    """What accept, submit and ask take in addition to the session and the prompt."""

    run_id: str | None
    attachments: Sequence[Attachment | str]
    when_busy: WhenBusy
    on_complete: OnComplete | None
    into: str | None
    data: object


Payload = tuple[str, str, tuple["Attachment | str", ...], str | None]
"""What an accept under a known run_id is compared with: session, prompt, attachments, data as JSON text."""


class Attachment(NamedTuple):
    """Something sent along with a prompt; the runner finds it in `Run.attachments`."""

    name: str
    mime_type: str
    content: str | bytes


def check_prompt(
    session_id: object,
    prompt: object,
    run_id: object,
    attachments: Sequence[Attachment | str],
    when_busy: object,
    on_complete: object,
    into: object = None,
) -> tuple[Attachment | str, ...]:
    """Raise if no run can be made of these arguments; return the attachments as a tuple."""
    if not isinstance(session_id, str) or not session_id:
        raise MissingSession(f"the session id must be a non-empty string, not {session_id!r}")
    attached = () if attachments == () else check_attachments(attachments)
    check_text(session_id, prompt, attached)
    if run_id is not None and (not isinstance(run_id, str) or not run_id):
        raise ValueError(f"run_id must be a non-empty string, not {run_id!r}")
    if on_complete is not None:
        check_callback("on_complete", on_complete)
    if when_busy not in WHEN_BUSY:
        raise ValueError(f"when_busy must be one of {', '.join(get_args(WhenBusy))}, not {when_busy!r}")
    if into is not None:
        if not isinstance(into, str):
            raise TypeError(f"into must be a run_id, not {type(into).__name__}")
        if when_busy != "fold":
            raise ValueError(f"a prompt with into can only be folded, so when_busy cannot be {when_busy!r}")
    return attached


def check_attachments(attachments: Sequence[Attachment | str]) -> tuple[Attachment | str, ...]:
    """Return the attachments as a tuple of plain values; raise if they are not valid."""
    if isinstance(attachments, str):
        raise TypeError("attachments must be a sequence of attachments, not one string")
    return tuple(_checked(attachment) for attachment in attachments) if attachments else ()


def check_text(session_id: str, prompt: object, attachments: tuple[Attachment | str, ...]) -> None:
    """Raise unless the prompt is a string and there is text for the runner."""
    if not isinstance(prompt, str):
        raise TypeError(f"the prompt must be a string, not {type(prompt).__name__}")
    if not prompt.strip() and not any(_is_text(attachment) for attachment in attachments):
        raise EmptyPrompt(f"the prompt for session {session_id!r} has neither text nor a text attachment")


def check_edited_when_busy(when_busy: object) -> None:
    """Raise unless this is a mode that an edit can set."""
    if when_busy not in ("fold", "queue"):
        raise ValueError(f"a waiting run can be changed to fold or queue, not to {when_busy!r}")


def check_one_position(before: object, to: object) -> None:
    """Raise unless exactly one of the two says where a run is moved to."""
    if (before is None) == (to is None):
        raise ValueError("say where to move the run: either before=run_id, or to='first' or 'last'")
    if to is not None and to not in ("first", "last"):
        raise ValueError(f"a run is moved to 'first' or 'last', not to {to!r}")


def plain(text: str) -> str:
    """Return the text as a plain string: a subclass may define its own comparison and hash."""
    return text if type(text) is str else str.__str__(text)


def _checked(attachment: object) -> Attachment | str:
    """Return the attachment, made of plain strings and bytes; raise if it is not valid."""
    if isinstance(attachment, str):
        return plain(attachment)
    if isinstance(attachment, Attachment):
        name, mime_type, content = attachment
        if isinstance(name, str) and isinstance(mime_type, str) and isinstance(content, str | bytes):
            content = plain(content) if isinstance(content, str) else bytes(content)
            return Attachment(plain(name), plain(mime_type), content)
    raise TypeError(
        "an attachment must be a string, or an Attachment whose name and mime_type are str and whose content "
        f"is str or bytes, not {attachment!r:.80}"
    )


def check_callback(name: str, callback: object) -> None:
    """Raise unless the callback is callable, and not a coroutine function."""
    if not callable(callback):
        raise TypeError(f"{name} must be callable, not {type(callback).__name__}")
    function: object = callback
    while isinstance(function, functools.partial | staticmethod):
        function = function.func if isinstance(function, functools.partial) else function.__func__
    for each in (function, type(function).__call__):
        if inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each):
            raise TypeError(f"{name} must be a plain function: what this one returns would not be awaited")


def _is_text(attachment: Attachment | str) -> bool:
    if isinstance(attachment, str):
        return bool(attachment.strip())
    return attachment.mime_type.startswith("text/") and bool(attachment.content.strip())


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
    """Decode an attachment; raise ValueError if `base64` is not base64."""
    if isinstance(data, str):
        return data
    content = data["text"] if "text" in data else base64.b64decode(data["base64"], validate=True)
    return Attachment(data["name"], data["mime_type"], content)
