"""The handles that callers and runners hold: Run, Turn and Covered; and what a prompt must be."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict, get_args

from turngate._errors import EmptyPrompt, MissingSession
from turngate._events import RunComplete
from turngate._lifecycle import ACCEPTED, STARTING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Generator, Sequence

    from turngate._dispatcher import Dispatcher
    from turngate._lifecycle import State
    from turngate._messages import Message

OnComplete = Callable[[RunComplete], object]
WhenBusy = Literal["fold", "queue", "interrupt", "reject"]
Runner = Callable[["Turn"], Awaitable[str | None]]
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
    """Refuse what no run can be made of, before anything has changed; return the attachments for good."""
    if not isinstance(session_id, str) or not session_id:
        raise MissingSession(f"the session id must be a non-empty string, not {session_id!r}")
    if not isinstance(prompt, str):
        raise TypeError(f"the prompt must be a string, not {type(prompt).__name__}")
    if isinstance(attachments, str):
        raise TypeError("attachments must be a sequence of attachments, not one string")
    attached = tuple(attachments)
    if not prompt.strip() and not any(_is_text(attachment) for attachment in attached):
        raise EmptyPrompt(f"the prompt for session {session_id!r} has neither text nor a text attachment")
    if run_id is not None and (not isinstance(run_id, str) or not run_id):
        raise ValueError(f"run_id must be a non-empty string, not {run_id!r}")
    if on_complete is not None and not callable(on_complete):
        raise TypeError(f"on_complete must be callable, not {type(on_complete).__name__}")
    if when_busy not in WHEN_BUSY:
        raise ValueError(f"when_busy must be one of {', '.join(get_args(WhenBusy))}, not {when_busy!r}")
    return attached


def _is_text(attachment: Attachment | str) -> bool:
    if isinstance(attachment, str):
        return bool(attachment.strip())
    return attachment.mime_type.startswith("text/") and bool(attachment.content.strip())


class Run:
    """The life of one prompt, from accept to its RunComplete. To be read, and awaited, not changed.

    `complete` is the RunComplete, None until there is one.
    """

    __slots__ = (
        "_dispatcher", "_waiters", "attachments", "complete", "covered", "on_complete", "prompt", "run_id",
        "seq", "session_id", "state", "when_busy",
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
        self._dispatcher = dispatcher
        self._waiters: dict[asyncio.Future[None], None] | None = None

    async def wait(self) -> RunComplete:
        """Return the RunComplete, at once if there is one.

        When cancelled while waiting, neither the run nor anyone else who waits for it is touched.
        """
        while self.complete is None:
            if self._waiters is None:
                self._waiters = {}
            waiter: asyncio.Future[None] = self._dispatcher._bound_loop().create_future()
            self._waiters[waiter] = None
            try:
                await waiter
            finally:
                del self._waiters[waiter]
        return self.complete

    def __await__(self) -> Generator[Any, Any, RunComplete]:
        return self.wait().__await__()

    async def close(self) -> None:
        """Release the run if it has not entered, otherwise do nothing. Idempotent; never waits."""
        self._dispatcher._release(self)

    def __repr__(self) -> str:
        outcome = ""
        if self.complete is not None:
            outcome = ", cancelled" if self.complete.cancelled else ""
            outcome += f", error {self.complete.error!r}" if self.complete.error else ""
        return f"<Run {self.run_id} of session {self.session_id!r}, seq {self.seq}, {self.state}{outcome}>"


class Turn:
    """One call of the runner: what it is to answer, and what it can do meanwhile. Not to be changed.

    `run` is the lead run; `covered` says whether a cancel covers the turn.
    """

    __slots__ = ("_runs", "covered", "error", "parts", "phase", "run", "task", "text")

    def __init__(self, run: Run, *, covered: bool = False) -> None:
        self.run = run
        self._runs = [run]
        self.covered = covered
        self.phase = STARTING
        self.parts: list[str] = []
        self.text = ""
        self.error: str | None = None
        self.task: asyncio.Task[None] | None = None

    @property
    def runs(self) -> list[Run]:
        """The lead run and the folded ones, in the order in which they joined."""
        return self._runs.copy()

    def write(self, text: str) -> None:
        """Stream text to the subscribers; it is the turn's text if the runner returns none."""
        self.run._dispatcher._write(self, text)

    async def fold(self) -> list[Run]:
        """Take in the queued follow-ups that may join this turn, and return them; none once it is cancelled.

        Never waits, so it is never cancelled half-way.
        """
        return self.run._dispatcher._fold(self)

    async def history(self) -> list[Message]:
        """Return what the store holds of the session: the earlier turns, not this one.

        When cancelled while waiting, the store is.
        """
        return await self.run._dispatcher.messages.list(self.run.session_id)

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
