"""The events that are kept for readers: encoded once, shared by all, bounded in number and bytes."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from turngate.server._cursor import Cursor

_SHARED: Final = 64
"""So many joined pieces are kept for the next reader who is at the same place."""


class Entry(NamedTuple):
    """An event as it goes over the line; `place` says which RunCompletes whoever has read it has."""

    number: int
    session_id: str
    frame: bytes
    place: Cursor


class Piece(NamedTuple):
    """Some events, joined, and where whoever has read them is; None for where the log is."""

    frames: bytes
    number: int
    place: Cursor | None


class Ring:
    """The newest events of all sessions, numbered from 1; the oldest go first."""

    def __init__(self, events_limit: int, bytes_limit: int) -> None:
        self.head = 0
        """The number of the newest event, 0 before the first."""
        self.evicted = 0
        self.bytes = 0
        self._events_limit = events_limit
        self._bytes_limit = bytes_limit
        self._entries: deque[Entry] = deque()
        self._by_session: dict[str, deque[Entry]] = {}
        self._joined: dict[tuple[str | None, int], Piece] = {}
        """What readers at one place have been given since the newest event, for the next of them."""

    @property
    def floor(self) -> int:
        """The number up to which events are no longer kept: whoever has come to there can go on."""
        return self.head - len(self._entries)

    def append(self, session_id: str, frame: bytes, place: Cursor) -> None:
        """Keep one more event; `place` is where whoever has read it is."""
        self.head += 1
        entry = Entry(self.head, session_id, frame, place)
        self._entries.append(entry)
        of_session = self._by_session.get(session_id)
        if of_session is None:
            of_session = self._by_session[session_id] = deque()
        of_session.append(entry)
        self.bytes += len(frame)
        if self._joined:
            self._joined.clear()
        while len(self._entries) > self._events_limit or self.bytes > self._bytes_limit:
            self._evict()

    def _evict(self) -> None:
        entry = self._entries.popleft()
        self.bytes -= len(entry.frame)
        self.evicted += 1
        of_session = self._by_session[entry.session_id]
        of_session.popleft()
        if not of_session:
            del self._by_session[entry.session_id]

    def forget(self) -> None:
        """Keep none of the events, and count one that nobody has: every reader is behind."""
        while self._entries:
            self._evict()
        self.head += 1
        self._joined.clear()

    def take(self, session_id: str | None, after: int, size: int) -> Piece:
        """Return the events behind the number `after`, of the session or of all, up to about `size` bytes."""
        piece = self._joined.get((session_id, after))
        if piece is None:
            piece = self._join(session_id, after, size)
            if len(self._joined) < _SHARED:
                self._joined[session_id, after] = piece
        return piece

    def _join(self, session_id: str | None, after: int, size: int) -> Piece:
        entries = self._entries if session_id is None else self._by_session.get(session_id, deque())
        fresh: list[Entry] = []
        for entry in reversed(entries):
            if entry.number <= after:
                break
            fresh.append(entry)
        frames: list[bytes] = []
        while fresh and size > 0:
            entry = fresh.pop()
            frames.append(entry.frame)
            size -= len(entry.frame)
        if fresh:
            return Piece(b"".join(frames), entry.number, entry.place)
        return Piece(b"".join(frames), self.head, None)

    def __len__(self) -> int:
        return len(self._entries)
