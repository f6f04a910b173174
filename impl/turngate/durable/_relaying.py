"""Telling the other processes what the turns of this one stream, and hearing what theirs do.

What is streamed is never put on record. What comes within a fifth of a second is said in one piece, to
whoever listens at that moment, and may be lost on the way: what is known to be missing, by the offsets of the
text and the numbers of the notes, is counted in `dropped` of the subscriptions that it concerns. What comes
when the RunComplete has been told is too late, and not told any more.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Final

from turngate._events import Delta, Note, size_of
from turngate._guard import complain
from turngate._surroundings import running_loop
from turngate.durable._following import Following
from turngate.durable._ledger import LedgerUnavailable

if TYPE_CHECKING:
    from turngate._run import Turn

_EVERY: Final = 0.2
"""Seconds for which what is streamed is collected."""
_MOST: Final = 262_144
"""So many characters are collected at most; more is dropped."""
_TURNS: Final = 10_000
"""Of so many turns elsewhere it is known what was heard last."""
_DELTA: Final = 4
"""So many things are said of a delta, and one more of a note."""


class Relaying(Following):
    """A worker that tells others what its turns stream."""

    def __init__(self, *args: Any, **limits: int) -> None:
        super().__init__(*args, **limits)
        self._subscribers.relay = self._relay
        self._noted: dict[str, int] = {}
        """How many notes each turn of this process has told."""
        self._to_say: list[list[Any]] = []
        self._size_to_say = 0
        self._saying: asyncio.TimerHandle | None = None
        self._speaking = asyncio.Lock()
        self._overhears = False
        self._expected: dict[str, tuple[int, int]] = {}
        """At which offset the text of each turn elsewhere goes on, and which note comes next."""

    # Saying.

    def _write(self, turn: Turn, text: str) -> None:
        super()._write(turn, text)
        if running_loop() is self._loop and not self._subscribers.listen():
            run = turn.run
            self._relay(Delta(run.session_id, run.run_id, text, turn.length - len(text)))

    def _relay(self, event: Delta | Note) -> None:
        """Have what a turn has streamed told to the others, if any listens."""
        session_id, run_id = event.session_id, event.run_id
        if isinstance(event, Note):
            number = self._noted[run_id] = self._noted.get(run_id, -1) + 1
            said = [session_id, run_id, number, event.kind, event.data]
            size = len(event.kind) + len(json.dumps(event.data))
        else:
            said = [session_id, run_id, event.offset, event.text]
            size = len(event.text)
        if not self._is_open or not self._ledger.has_listeners() or self._size_to_say + size > _MOST:
            return  # whoever listens will find that it is missing
        self._size_to_say += size
        last = self._to_say[-1] if self._to_say else []
        if last[:2] == said[:2] and len(last) == len(said) == _DELTA and last[2] + len(last[3]) == said[2]:
            last[3] += said[3]
        else:
            self._to_say.append(said)
        if self._saying is None:
            self._saying = self._here().call_later(_EVERY, lambda: self._spawn(self._say()))

    async def _say(self) -> None:
        """Say what has been collected, behind what is being said."""
        if self._saying is not None:
            self._saying.cancel()
            self._saying = None
        async with self._speaking:
            said, self._to_say, self._size_to_say = self._to_say, [], 0
            try:
                if messages := _messages(said, self._ledger.longest_message):
                    await self._ledger.relay(messages)
            except LedgerUnavailable:
                pass  # whoever listens will find that it is missing
            except Exception as exc:
                complain(exc, "what turns have streamed could not be relayed")

    async def _finish(self, turn: Any) -> None:
        """Say the last of it before the outcome is on record, though the outcome does not wait for long."""
        self._noted.pop(turn.run.run_id, None)
        if self._to_say:
            await asyncio.wait({self._spawn(self._say())}, timeout=_EVERY)
        await super()._finish(turn)

    # Hearing.

    async def _let_join(self) -> None:
        await super()._let_join()
        if not self._overhears and self._subscribers.listen():
            self._overhears = True
            self._guard("listening to other processes", self._ledger.on_relay, self._overhear)

    def _stop_following(self) -> None:
        super()._stop_following()
        if self._overhears:
            self._overhears = False
            self._guard("listening to other processes no longer", self._ledger.on_relay, None)
            self._expected.clear()

    def _overhear(self, message: str) -> None:
        """Deliver what another process has said."""
        try:
            for said in json.loads(message):
                self._hear(*said)
        except Exception as exc:
            complain(exc, "what another process said makes no sense")

    def _hear(self, session_id: str, run_id: str, number: int, what: str, *more: Any) -> None:
        if run_id in self._subscribers.over:
            self._expected.pop(run_id, None)
            return
        known = self._expected.pop(run_id, None)
        offset, note = known or (number, number)
        event: Delta | Note
        if more:
            event, missing = Note(session_id, run_id, what, more[0]), number - note
            self._expected[run_id] = offset if known else 0, number + 1
            size = len(what) + len(json.dumps(more[0]))
        else:
            event, missing = Delta(session_id, run_id, what, number), int(number > offset)
            self._expected[run_id] = number + len(what), note if known else 0
            size = size_of(event)
        if len(self._expected) > _TURNS:
            del self._expected[next(iter(self._expected))]
        self._subscribers.overheard(event, size, missing)


def _messages(said: list[list[Any]], longest: int) -> list[str]:
    """Return it as texts of so many characters at most; long text is cut, a long note left out."""
    messages: list[str] = []
    for each in said:
        for piece in _pieces(each, longest - 2):
            if messages and len(messages[-1]) + len(piece) + 2 <= longest:
                messages[-1] += f",{piece}"
            else:
                messages.append(f"[{piece}")
    return [f"{message}]" for message in messages]


def _pieces(said: list[Any], longest: int) -> list[str]:
    text = json.dumps(said)
    if len(text) <= longest:
        return [text]
    if len(said) != _DELTA or len(said[3]) < 2:
        return []
    half = len(said[3]) // 2
    first, second = [*said[:3], said[3][:half]], [*said[:2], said[2] + half, said[3][half:]]
    return _pieces(first, longest) + _pieces(second, longest)
