"""The handles that callers and runners hold: Run, Turn and Covered; and what a prompt must be."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict, get_args

from turngate._errors import EmptyPrompt, MissingSession
from turngate._events import RunComplete
from turngate._lifecycle import ACCEPTED, STARTING
from turngate._waiters import Waiters

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Coroutine, Generator, Sequence
    from contextvars import Context

    from turngate._dispatcher import Dispatcher
    from turngate._lifecycle import State
    from turngate._messages import Message

Runner = Callable[["Turn"], Awaitable[str | None]]
"""What the user brings: called once per turn."""
OnComplete = Callable[[RunComplete], object]
"""A hook: receives the RunComplete of its run instead of the subscribers; not a coroutine function."""
WhenBusy = Literal["fold", "queue", "interrupt", "reject"]
"""What a prompt does behind a busy session."""
WHEN_BUSY = frozenset(get_args(WhenBusy))


class PromptOptions(TypedDict, total=False):
    """What accept, submit and ask take besides the session and the prompt."""

    run_id: str | None
    attachments: Sequence[Attachment | str]
    when_busy: WhenBusy
    on_complete: OnComplete | None


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
) -> tuple[Attachment | str, ...]:
    """Raise if no run can be made of these, before anything has changed; return a tuple of attachments."""
    if not isinstance(session_id, str) or not session_id:
        raise MissingSession(f"the session id must be a non-empty string, not {session_id!r}")
    if not isinstance(prompt, str):
        raise TypeError(f"the prompt must be a string, not {type(prompt).__name__}")
    if isinstance(attachments, str):
        raise TypeError("attachments must be a sequence of attachments, not one string")
    attached: tuple[Attachment | str, ...] = ()
    if attachments:
        attached = tuple(attachments)
        for attachment in attached:
            _check_attachment(attachment)
    if not prompt.strip() and not any(_is_text(attachment) for attachment in attached):
        raise EmptyPrompt(f"the prompt for session {session_id!r} has neither text nor a text attachment")
    if run_id is not None and (not isinstance(run_id, str) or not run_id):
        raise ValueError(f"run_id must be a non-empty string, not {run_id!r}")
    if on_complete is not None:
        _check_hook(on_complete)
    if when_busy not in WHEN_BUSY:
        raise ValueError(f"when_busy must be one of {', '.join(get_args(WhenBusy))}, not {when_busy!r}")
    return attached


def _check_attachment(attachment: object) -> None:
    content = attachment.content if isinstance(attachment, Attachment) else attachment
    if not isinstance(content, str) and not (
        isinstance(attachment, Attachment) and isinstance(content, bytes)
    ):
        raise TypeError(
            "an attachment must be a string, or an Attachment whose content is str or bytes, "
            f"not {attachment!r:.80}"
        )


def _check_hook(on_complete: object) -> None:
    if not callable(on_complete):
        raise TypeError(f"on_complete must be callable, not {type(on_complete).__name__}")
    for function in (on_complete, type(on_complete).__call__):
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError("on_complete must be a plain function: nobody would await what this one returns")


def _is_text(attachment: Attachment | str) -> bool:
    if isinstance(attachment, str):
        return bool(attachment.strip())
    return attachment.mime_type.startswith("text/") and bool(attachment.content.strip())


class Run:
    """The life of one prompt, from accept to its RunComplete. To be read, and awaited, not changed.

    `complete` is the RunComplete, None until there is one.
    """

    __slots__ = (
        "__weakref__", "_context", "_dispatcher", "_waiters", "attachments", "complete", "covered",
        "on_complete", "prompt", "run_id", "seq", "session_id", "state", "when_busy",
    )  # fmt: skip

    def __init__(
        self,
        dispatcher: Dispatcher,
        session_id: str,
        run_id: str,
        seq: int,
        prompt: str,
        attachments: tuple[Attachment | str, ...] = (),
        when_busy: WhenBusy = "fold",
        on_complete: OnComplete | None = None,
        context: Context | None = None,
    ) -> None:
        self.session_id = session_id
        self.run_id = run_id
        self.seq = seq
        self.prompt = prompt
        self.attachments = attachments
        self.when_busy: WhenBusy = when_busy
        self.on_complete = on_complete
        self.state: State = ACCEPTED
        self.covered = False
        self.complete: RunComplete | None = None
        self._context = context
        self._dispatcher = dispatcher
        self._waiters: Waiters | None = None

    async def wait(self) -> RunComplete:
        """Return the RunComplete, at once if there is one.

        When cancelled while waiting, neither the run nor anyone else who waits for it is touched.
        """
        loop = self._dispatcher._here()
        while self.complete is None:
            if self._waiters is None:
                self._waiters = Waiters()
            await self._waiters.wait(loop)
        return self.complete

    def __await__(self) -> Generator[Any, Any, RunComplete]:
        return self.wait().__await__()

    async def close(self) -> None:
        """Release the run if it has not entered, otherwise do nothing. Idempotent; never waits."""
        self._dispatcher._here()
        self._dispatcher._release(self)

    def __repr__(self) -> str:
        outcome = ""
        if self.complete is not None:
            outcome = ", cancelled" if self.complete.cancelled else ""
            outcome += f", error {self.complete.error!r}" if self.complete.error else ""
        return f"<Run {self.run_id} of session {self.session_id!r}, seq {self.seq}, {self.state}{outcome}>"


class Turn:
    """One call of the runner: what it is to answer, and what it can do meanwhile. Not to be changed.

    `run` is the lead run; `covered` says whether a cancel covers the turn; `task` is the task that conducts
    it, None until it does. (What the loop has made may only stand for that task: `_made`.)
    """

    text: str
    error: str | None
    """What came of the runner, from its end on."""

    __slots__ = (
        "_conducting", "_made", "_runs", "_unsent", "covered", "error", "parts", "phase", "run",
        "task", "text",
    )  # fmt: skip

    def __init__(self, run: Run, *, covered: bool = False) -> None:
        self.run = run
        self._runs = [run]
        self.covered = covered
        self.phase = STARTING
        self.parts: list[str] | None = None
        self.task: asyncio.Task[None] | None = None
        self._made: asyncio.Future[None] | None = None
        self._conducting: Coroutine[Any, Any, None] | None = None
        self._unsent: list[str] | None = None

    @property
    def runs(self) -> list[Run]:
        """The lead run and the folded ones, in the order in which they joined."""
        return self._runs.copy()

    def write(self, text: str) -> None:
        """Stream text to the subscribers; it is the turn's text if the runner returns none.

        May be called from a thread that the runner started. Raises TurnEnded once the runner is over.
        """
        self.run._dispatcher._write(self, text)

    async def fold(self) -> list[Run]:
        """Take in the queued follow-ups that may join this turn, and return them; none once it is cancelled.

        Never waits, so it is never cancelled half-way.
        """
        return self.run._dispatcher._fold(self)

    async def history(self) -> list[Message]:
        """Return what the store holds of the session: the earlier turns, not this one.

        Cancelling the caller cancels the store's `list`.
        """
        return await self.run._dispatcher.messages.list(self.run.session_id)

    def _task_is_over(self, task: asyncio.Future[None]) -> None:
        self.run._dispatcher._task_is_over(self, task)

    def __repr__(self) -> str:
        folded = f" and {len(self._runs) - 1} folded" if len(self._runs) > 1 else ""
        covered = ", covered" if self.covered else ""
        return f"<Turn of {self.run.run_id}{folded}, {self.phase.value}{covered}>"


@dataclass(frozen=True)
class Covered:
    """What a cancel covered, in sequence order; false when nothing was in flight."""

    runs: list[Run]

    def __bool__(self) -> bool:
        return bool(self.runs)
