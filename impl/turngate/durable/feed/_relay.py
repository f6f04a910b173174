"""Relays what turns stream between the processes that share a ledger.

What is streamed is never saved. It is collected for a fifth of a second, sent in one piece to the processes
that listen at that moment, and may be lost on the way. Offsets of text and numbers of notes show what is
missing, which is counted in `dropped` of the subscriptions concerned. What arrives after the RunComplete has
been delivered is ignored.
"""

from __future__ import annotations

import asyncio
import json
from sys import getsizeof
from typing import TYPE_CHECKING, Any, Final

from turngate._events import Delta, Note
from turngate._log import log_error, log_or_propagate
from turngate.durable._ledger import LedgerUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from turngate.durable._stepper import Stepper
    from turngate.durable.feed._delivery import Delivery

Item = list[Any]
"""A delta: session, run, offset, text. A note: session, run, number, kind, data."""

_EVERY: Final = 0.2
"""Seconds for which items are collected."""
_COLLECTED: Final = 262_144
"""The most characters that are collected; the rest is dropped."""
_TURNS: Final = 10_000
"""The number of turns elsewhere for which the relay remembers what arrived last."""
_DELTA: Final = 4
"""The number of fields of a delta."""


class StreamRelay:
    """Sends what the turns of this process stream, and delivers what those of other processes do."""

    def __init__(self, stepper: Stepper, delivery: Delivery) -> None:
        self._ledger = stepper.ledger
        self._stepper = stepper
        self._delivery = delivery
        self.notes: dict[str, int] = {}
        """The number of the last note of each turn of this process."""
        self.outbox: list[Item] = []
        self._size = 0
        """The characters in the outbox."""
        self._timer: asyncio.TimerHandle | None = None
        self._sending = asyncio.Lock()
        self._listens = False
        self._expected: dict[str, tuple[int | None, int | None]] = {}
        """For each turn elsewhere, the offset at which its text goes on, and the number of its next note.

        None for what has not arrived yet: it may have begun before this process listened.
        """

    # Sending.

    def has_listeners(self) -> bool:
        """Return whether another process may be listening."""
        return self._ledger.has_listeners()

    def send(self, event: Delta | Note) -> None:
        """Collect what a turn has streamed for other processes, if any of them listens."""
        item: Item
        if isinstance(event, Note):
            number = self.notes[event.run_id] = self.notes.get(event.run_id, -1) + 1
            item = [event.session_id, event.run_id, number, event.kind, event.data]
            size = len(event.kind) + len(json.dumps(event.data))
        else:
            item = [event.session_id, event.run_id, event.offset, event.text]
            size = len(event.text)
        if not self.has_listeners() or self._size + size > _COLLECTED:
            return  # listeners will notice that it is missing
        self._size += size
        last = self.outbox[-1] if self.outbox else []
        if last[:2] == item[:2] and len(last) == len(item) == _DELTA and last[2] + len(last[3]) == item[2]:
            last[3] += item[3]
        else:
            self.outbox.append(item)
        if self._timer is None:
            loop = self._stepper.loop.check_loop()
            self._timer = loop.call_later(_EVERY, self._start_flush)

    async def flush(self) -> None:
        """Send what has been collected."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        async with self._sending:
            items, self.outbox, self._size = self.outbox, [], 0
            try:
                if messages := pack(items, self._ledger.longest_message):
                    await self._ledger.relay(messages)
            except LedgerUnavailable:
                pass  # listeners will notice that it is missing
            except Exception as exc:
                log_error(exc, "the text and notes of turns could not be relayed")

    async def end_turn(self, run_id: str) -> None:
        """Send the last of what a turn has streamed, and wait a short time for that."""
        self.notes.pop(run_id, None)
        if self.outbox:
            await asyncio.wait({self._start_flush()}, timeout=_EVERY)

    def _start_flush(self) -> asyncio.Task[None]:
        return self._stepper.tasks.supervisor.start("relaying what turns stream", self.flush)

    # Receiving.

    def listen(self) -> None:
        """Deliver what other processes send, from now on. Idempotent."""
        if not self._listens:
            self._listens = True
            self._overhear(self.on_message)

    def stop_listening(self) -> None:
        """Deliver nothing more from other processes. Idempotent."""
        if self._listens:
            self._listens = False
            self._overhear(None)
            self._expected.clear()

    def _overhear(self, heard: Callable[[str], None] | None) -> None:
        try:
            self._ledger.on_relay(heard)
        except BaseException as exc:  # only what is streamed elsewhere is missing
            log_or_propagate(exc, "starting or ending to listen to other processes raised")

    def on_message(self, message: str) -> None:
        """Deliver what another process has sent."""
        try:
            for item in json.loads(message):
                self._receive(*item)
        except Exception as exc:
            log_error(exc, "a message of another process is invalid")

    def _receive(self, session_id: str, run_id: str, number: int, what: str, *data: Any) -> None:
        offset, note = self._expected.pop(run_id, (None, None))
        if run_id in self._delivery.complete_runs:
            return
        event: Delta | Note
        if data:
            event = Note(session_id, run_id, what, data[0])
            missing = 0 if note is None else number - note
            self._expected[run_id] = offset, number + 1
            size = len(what) + len(json.dumps(data[0]))
        else:
            event = Delta(session_id, run_id, what, number)
            missing = int(offset is not None and number > offset)
            self._expected[run_id] = number + len(what), note
            size = getsizeof(what)
        if len(self._expected) > _TURNS:
            del self._expected[next(iter(self._expected))]
        self._delivery.stream_remote(event, size, missing)


def pack(items: list[Item], longest: int) -> list[str]:
    """Return the items as JSON, in messages of at most `longest` characters.

    Long text is split; a note that is too long is left out.
    """
    messages: list[str] = []
    for item in items:
        for piece in _pieces(item, longest - 2):
            if messages and len(messages[-1]) + len(piece) + 2 <= longest:
                messages[-1] += f",{piece}"
            else:
                messages.append(f"[{piece}")
    return [f"{message}]" for message in messages]


def _pieces(item: Item, longest: int) -> list[str]:
    text = json.dumps(item)
    if len(text) <= longest:
        return [text]
    if len(item) != _DELTA or len(item[3]) < 2:
        return []
    half = len(item[3]) // 2
    first, second = [*item[:3], item[3][:half]], [*item[:2], item[2] + half, item[3][half:]]
    return _pieces(first, longest) + _pieces(second, longest)
