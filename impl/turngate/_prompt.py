"""What callers send: a prompt, what goes with it, and what makes it acceptable."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypedDict, get_args

from turngate._errors import EmptyPrompt, MissingSession
from turngate._events import RunComplete

if TYPE_CHECKING:
    from collections.abc import Sequence

OnComplete = Callable[[RunComplete], object]
"""A hook: receives the RunComplete of its run instead of the subscribers; not a coroutine function."""
WhenBusy = Literal["fold", "queue", "interrupt", "reject"]
"""What a prompt does behind a busy session."""
WHEN_BUSY = frozenset(get_args(WhenBusy))


class Unchanged(Enum):
    """The default of what an edit may leave as it is."""

    UNCHANGED = "unchanged"


UNCHANGED: Final = Unchanged.UNCHANGED


class PromptOptions(TypedDict, total=False):
    """What accept, submit and ask take besides the session and the prompt."""

    run_id: str | None
    attachments: Sequence[Attachment | str]
    when_busy: WhenBusy
    on_complete: OnComplete | None
    into: str | None
    data: object


Payload = tuple[str, str, tuple["Attachment | str", ...], str | None]
"""What an accept under a known run_id is compared by: session, prompt, attachments, and data as JSON text."""


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
    """Raise if no run can be made of these, before anything has changed; return a tuple of attachments."""
    if not isinstance(session_id, str) or not session_id:
        raise MissingSession(f"the session id must be a non-empty string, not {session_id!r}")
    attached = check_attachments(attachments)
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
    """Return the attachments as a tuple of plain values; raise if they cannot be."""
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
    """Raise unless a waiting run can be changed to this."""
    if when_busy not in ("fold", "queue"):
        raise ValueError(f"a waiting run can be changed to fold or queue, not to {when_busy!r}")


def check_one_position(before: object, to: object) -> None:
    """Raise unless exactly one of the two says where a run is moved to."""
    if (before is None) == (to is None):
        raise ValueError("say where to move the run: either before=run_id, or to='first' or 'last'")
    if to is not None and to not in ("first", "last"):
        raise ValueError(f"a run is moved to 'first' or 'last', not to {to!r}")


def plain(text: str) -> str:
    """Return the text as a plain string: one of a subclass may compare and hash as it likes."""
    return text if type(text) is str else str.__str__(text)


def _checked(attachment: object) -> Attachment | str:
    """Return the attachment, made of plain strings and bytes; raise if it cannot be."""
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
            raise TypeError(f"{name} must be a plain function: nobody would await what this one returns")


def _is_text(attachment: Attachment | str) -> bool:
    if isinstance(attachment, str):
        return bool(attachment.strip())
    return attachment.mime_type.startswith("text/") and bool(attachment.content.strip())
