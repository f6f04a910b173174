"""Everything that is sent, in the order of one subscription to the dispatcher.

Events are taken as they come, however slowly the client reads, so that none is dropped. Of text only its end
is noted: the run keeps the text, and the outbox reads it when it sends it. Updates and responses wait in one
line. So no update of a turn follows the response to its prompt, and none of the next turn precedes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from turngate._core import ACTIVE
from turngate._errors import SubscriberCutOff, TurngateError
from turngate._events import Delta, Moved, Note, RunComplete
from turngate._log import log_error
from turngate.acp._content import CHUNK, OVER, chunks, is_update, update
from turngate.acp._peer import Questions
from turngate.acp._wire import Code

if TYPE_CHECKING:
    from collections.abc import Sequence

    from turngate._events import Event, Subscription
    from turngate._handles import TextStream
    from turngate._messages import Message
    from turngate.acp._peer import Prompt
    from turngate.acp._wire import Wire

STOP_REASONS: Final = ("end_turn", "max_tokens", "max_turn_requests", "refusal")
"""What a runner may give as its reason to stop; the dispatcher alone says that a turn is `cancelled`."""
UPDATES_LIMIT: Final = 16_384
"""Updates from notes that may wait to be sent; those beyond it are dropped."""
_LEFT: Final = (
    "the server has ended before the outcome was known; on a ledger, the run goes on with its next start"
)


class ShownTurn:
    """A turn, as far as the client has seen it. `prompt` is the first of the client's prompts in it."""

    def __init__(self, prompt: Prompt) -> None:
        self.prompt = prompt
        self.stop = "end_turn"
        self.sent = 0
        """How many characters the client has been sent."""
        self.tools: dict[str, str | None] = {}
        """The tool calls that the client takes for open, each with how it ended if that was dropped."""
        self._stream: TextStream | None = None

    async def read(self, end: float) -> str:
        """Return the text that comes next, about as much as one update takes; "" if there is none.

        Never waits for text that is yet to be written. A turn of another process has none before its end.
        """
        run, text = self.prompt.run, ""
        while run is not None and self.sent < end and len(text) < CHUNK:
            is_written = run.turn is not None and (end == math.inf or run.turn.length >= end)
            if run.complete is None and not is_written:
                break
            self._stream = self._stream or run.stream()
            if not (piece := await anext(self._stream, "")):
                break
            self.sent += len(piece)
            text += piece
        return text


class _Text(NamedTuple):
    turn: ShownTurn
    end: int


class _Update(NamedTuple):
    message: dict[str, Any]


class _Question(NamedTuple):
    message: dict[str, Any]


class _Response(NamedTuple):
    prompt: Prompt
    turn: ShownTurn | None
    complete: RunComplete


class _Replay(NamedTuple):
    number: str | int | None
    session_id: str
    messages: Sequence[Message]


class Outbox:
    """Takes events, and sends the client what they mean."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.questions = Questions(self._put_question)
        self.prompts: dict[str, Prompt] = {}
        """By their runs, the prompts whose RunCompletes have not come."""
        self.unanswered = 0
        """How many prompts have not been answered on the wire."""
        self._turns: dict[str, ShownTurn] = {}
        """By their lead runs, the turns that prompts of the client are part of."""
        self._turn_of: dict[str, ShownTurn] = {}
        """By the runs of these prompts, the same turns."""
        self._line: deque[_Text | _Update | _Question | _Replay | _Response] = deque()
        self._updates = 0
        """How many updates wait in the line."""
        self._changed = asyncio.Event()
        self._is_over = False

    # Taking events.

    async def take_all(self, events: Subscription) -> None:
        """Take events until the dispatcher has closed."""
        try:
            async for event in events:
                self._take(event)
                self._changed.set()
        except SubscriberCutOff as why:
            log_error(why, "some prompts will be answered without their outcome")
        finally:
            self._is_over = True
            self._changed.set()

    def _take(self, event: Event) -> None:
        match event:
            case Moved():
                self._take_move(event)
            case Delta() if (turn := self._turns.get(event.run_id)) is not None:
                last = self._line[-1] if self._line else None
                if isinstance(last, _Text) and last.turn is turn:
                    self._line.pop()
                self._line.append(_Text(turn, event.offset + len(event.text)))
            case Note() if (turn := self._turns.get(event.run_id)) is not None:
                self._take_note(turn, event)
            case RunComplete():
                self.questions.resolve_covered()
                self._turns.pop(event.run_id, None)
                turn = self._turn_of.pop(event.run_id, None)
                if (prompt := self.prompts.pop(event.run_id, None)) is not None:
                    self._line.append(_Response(prompt, turn, event))

    def _take_move(self, move: Moved) -> None:
        if move.event == "cancel":
            self.questions.resolve_covered()
        if move.run_id is None or (prompt := self.prompts.get(move.run_id)) is None:
            return
        if move.event in ("fold", "handoff") or move.state is ACTIVE:
            lead = move.into or move.run_id
            self._turn_of[move.run_id] = self._turns.setdefault(lead, ShownTurn(prompt))
            prompt.has_begun.set()

    def _take_note(self, turn: ShownTurn, note: Note) -> None:
        if note.kind == "stop_reason" and str(note.data) in STOP_REASONS:
            turn.stop = str(note.data)
        if not is_update(note):
            return
        is_dropped = self._updates >= UPDATES_LIMIT
        if note.kind.startswith("tool_call"):
            tool, status = str(note.data["toolCallId"]), note.data.get("status")
            if status not in OVER:
                turn.tools.setdefault(tool)
            elif is_dropped:
                turn.tools[tool] = status
            else:
                turn.tools.pop(tool, None)
        if not is_dropped:
            self._updates += 1
            self._line.append(_Update(update(note.session_id, note.kind, note.data)))

    def _put_question(self, message: dict[str, Any]) -> None:
        self._line.append(_Question(message))
        self._changed.set()

    def replay(self, number: str | int | None, session_id: str, messages: Sequence[Message]) -> None:
        """Show the messages of a session, and answer the request to do so."""
        self._line.append(_Replay(number, session_id, messages))
        self._changed.set()

    # Sending.

    async def send_all(self) -> None:
        """Send what is taken until there is no more; raise ConnectionError without a client."""
        while True:
            while self._line:
                await self._send(self._line.popleft())
                await self._wire.drain()
            if self._is_over:
                break
            self._changed.clear()
            await self._changed.wait()
        for run_id, prompt in self.prompts.items():
            self._answer(prompt, error=_error(Code.INTERNAL_ERROR, _LEFT, runId=run_id))

    async def _send(self, entry: _Text | _Update | _Question | _Replay | _Response) -> None:
        match entry:
            case _Text(turn, end):
                await self._send_text(turn, end)
            case _Update(message):
                self._updates -= 1
                self._wire.send(message)
            case _Question(message):
                if self.questions.is_open(message):
                    self._wire.send(message)
            case _Replay():
                await self._send_replay(entry)
            case _Response(prompt, turn, complete):  # pragma: no branch - there is no other kind
                if turn is not None:
                    await self._send_rest(turn, complete)
                stop = "end_turn" if turn is None else turn.stop
                self._answer(prompt, **response(complete, stop))

    async def _send_replay(self, replay: _Replay) -> None:
        for message in replay.messages:
            kind = "user_message_chunk" if message.role == "user" else "agent_message_chunk"
            for chunk in chunks(replay.session_id, kind, message.text):
                self._wire.send(chunk)
                await self._wire.drain()
        self._wire.send({"id": replay.number, "result": {}})

    async def _send_text(self, turn: ShownTurn, end: float) -> None:
        await turn.prompt.is_known.wait()
        while text := await turn.read(end):
            self._send_chunks(turn, text)
            await self._wire.drain()

    async def _send_rest(self, turn: ShownTurn, complete: RunComplete) -> None:
        """Send what is left of the text, and end the tool calls that the runner has left open."""
        with contextlib.suppress(TurngateError):  # the dispatcher closed before the handle was up to date
            await self._send_text(turn, math.inf)
        run = turn.prompt.run
        if run is None or run.complete is None:  # the turn was one of another process
            rest = complete.text[turn.sent :]
            turn.sent += len(rest)
            self._send_chunks(turn, rest)
        ended = "completed" if complete.outcome == "finished" else "failed"
        tools, turn.tools = turn.tools, {}
        for tool, status in tools.items():
            data = {"toolCallId": tool, "status": status or ended}
            self._wire.send(update(complete.session_id, "tool_call_update", data))

    def _send_chunks(self, turn: ShownTurn, text: str) -> None:
        for message in chunks(turn.prompt.session_id, "agent_message_chunk", text):
            self._wire.send(message)

    def _answer(self, prompt: Prompt, **message: Any) -> None:
        self.unanswered -= 1
        self._wire.send({"id": prompt.number, **message})


def response(complete: RunComplete, stop: str) -> dict[str, Any]:
    """Return the result, or the error, with which a prompt is answered."""
    about = {"runId": complete.run_id}
    if complete.folded_into is not None:
        about["foldedInto"] = complete.folded_into
    match complete.outcome:
        case "finished" | "cancelled" as outcome:
            reason = stop if outcome == "finished" else "cancelled"
            return {"result": {"stopReason": reason, "_meta": {"turngate": about}}}
        case "cleared" | "released" as outcome:
            code, message = Code.REQUEST_CANCELLED, complete.error or f"the run was {outcome}"
        case outcome:
            code, message = Code.INTERNAL_ERROR, complete.error or f"the run has {outcome}"
    return {"error": _error(code, message, outcome=outcome, **about)}


def _error(code: int, message: str, **data: Any) -> dict[str, Any]:
    return {"code": code, "message": message, "data": data}
