"""The messages that turns leave behind, and the store that keeps them."""

from __future__ import annotations

from collections import defaultdict
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from turngate._errors import counted
from turngate._prompt import whole_number

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Role = Literal["user", "assistant"]
FinishReason = Literal["end_turn", "canceled", "error"]


class Message(NamedTuple):
    """One message of a session; an assistant message carries the run_id of the turn's lead run.

    `data` is the JSON that the turn kept with its text (`turn.keep`); None if it kept none.
    """

    id: str
    session_id: str
    run_id: str
    role: Role
    text: str
    finish_reason: FinishReason | None = None
    data: Any = None


ListOfMessages = list[Message]
"""What a store's `list` returns; within a class, after that method, `list` means the method."""


class Messages(Protocol):
    """A store of messages: implement these two methods to bring your own.

    The stores that come with turngate can also page (`list` with `after` and `limit`), and have `of_run`.

    Calls for the same turn never overlap, but calls for different turns do. A store may fail (the run then
    completes with an error), and must return, fail or honour cancellation.
    """

    async def put(self, messages: Sequence[Message]) -> None:
        """Write all the messages or none; one whose id is known replaces the old one in its place.

        If the turn's task is cancelled meanwhile, the dispatcher puts the same messages again, so writing
        twice must have the effect of writing once. The messages are a tuple.
        """

    async def list(self, session_id: str) -> ListOfMessages:
        """Return the messages of the session in the order in which they were first put."""
        ...


class MemoryMessages:
    """Messages in memory, for as long as the process lives; nothing is ever forgotten."""

    def __init__(self) -> None:
        self._sessions: defaultdict[str, dict[str, Message]] = defaultdict(dict)
        self._session_of: dict[str, str] | None = None
        """The session of each run, kept from the first call of `of_run` on."""

    async def put(self, messages: Sequence[Message]) -> None:
        """Write all the messages; never waits."""
        for message in messages:
            self._sessions[message.session_id][message.id] = message
            if self._session_of is not None:
                self._session_of[message.run_id] = message.session_id

    async def list(
        self, session_id: str, *, after: str | None = None, limit: int | None = None
    ) -> ListOfMessages:
        """Return the messages of the session, at most `limit`, starting after `after`; never waits.

        Raises ValueError if the session has no message `after`.
        """
        messages = page([*self._sessions.get(session_id, {}).values()], session_id, after, limit)
        return [_copied(message) for message in messages]

    async def of_run(self, run_id: str) -> ListOfMessages:
        """Return the messages of the turn that the run was part of; never waits."""
        if self._session_of is None:
            written = (message for of_session in self._sessions.values() for message in of_session.values())
            self._session_of = {message.run_id: message.session_id for message in written}
        session_id = self._session_of.get(run_id, "")
        return [_copied(each) for each in of_turn(self._sessions.get(session_id, {}).values(), run_id)]

    def __repr__(self) -> str:
        return f"<MemoryMessages of {counted(len(self._sessions), 'session')}>"


def _copied(message: Message) -> Message:
    """Return the message with its own copy of the data, which the receiver may change."""
    return message if message.data is None else message._replace(data=deepcopy(message.data))


def page(
    messages: Sequence[Message], session_id: str, after: str | None, limit: int | None
) -> Sequence[Message]:
    """Return at most `limit` of the messages, starting after `after`."""
    if limit is not None:
        whole_number("limit", limit, at_least=0)
    start = 0
    if after is not None:
        start = next((index for index, message in enumerate(messages, 1) if message.id == after), 0)
        if start == 0:
            raise ValueError(f"session {session_id!r} has no message {after!r}")
    return messages[start : None if limit is None else start + limit]


def of_turn(messages: Iterable[Message], run_id: str) -> ListOfMessages:
    """Return, from the messages of its session, those of the last turn that the run was part of.

    A turn is written at once and its assistant message comes last, so an assistant message ends a turn.
    """
    turn: ListOfMessages = []
    found: ListOfMessages = []
    for message in messages:
        turn.append(message)
        if message.role == "assistant":
            if any(each.run_id == run_id for each in turn):
                found = turn
            turn = []
    return found
