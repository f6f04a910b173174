"""What a turn leaves behind, and the store that keeps it."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

Role = Literal["user", "assistant"]
FinishReason = Literal["end_turn", "canceled", "error"]


class Message(NamedTuple):
    """One message of a session; an assistant message carries the run_id of the turn's lead run."""

    id: str
    session_id: str
    run_id: str
    role: Role
    text: str
    finish_reason: FinishReason | None = None


ListOfMessages = list[Message]
"""What a store's `list` returns; within a class, after that method, `list` means the method."""


class Messages(Protocol):
    """A store of messages: implement these two methods to bring your own.

    Neither needs to guard against concurrent calls for one session's turn; calls for different turns do
    overlap. A store may fail (the run then completes with an error) and must return, fail or honour
    cancellation.
    """

    async def put(self, messages: Sequence[Message]) -> None:
        """Write all the messages or none; one whose id is known replaces the old one in its place.

        Whoever cancels the turn's task meanwhile makes the dispatcher put the same messages again: writing
        twice must be writing once. The messages are a tuple.
        """

    async def list(self, session_id: str) -> ListOfMessages:
        """Return the messages of the session in the order in which they were first put."""
        ...


class MemoryMessages:
    """Messages in memory, for as long as the process lives; nothing is ever forgotten."""

    def __init__(self) -> None:
        self._sessions: defaultdict[str, dict[str, Message]] = defaultdict(dict)

    async def put(self, messages: Sequence[Message]) -> None:
        """Write all the messages; never waits."""
        for message in messages:
            self._sessions[message.session_id][message.id] = message

    async def list(self, session_id: str) -> ListOfMessages:
        """Return the messages of the session; never waits."""
        return [*self._sessions.get(session_id, {}).values()]

    def __repr__(self) -> str:
        return f"<MemoryMessages of {len(self._sessions)} sessions>"
