"""Reads what is appended to a file or comes through a pipe: whole lines, and where some may be missing.

A file may be rotated in two ways. If it is renamed and another one takes its place, the rest of the old one
is read first, as soon as something is in the new one: then the writer has moved on. If it is truncated in
place, what was not read before that is lost. A file that was truncated and has grown again since is noticed
by the bytes before the place that was read last.
"""

from __future__ import annotations

import os
import select
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, TypeAlias

CHUNK = 1 << 20
LONGEST = 1 << 24
"""A line with more bytes than this is not kept until its end: it counts as unreadable."""
_MARK = 256
"""How many bytes before the last position are compared."""


class Whole(NamedTuple):
    """A whole line, with its number in the file; without its end."""

    number: int
    text: bytes


class LostPlace(NamedTuple):
    """Lines may be missing here, and why."""

    number: int
    why: str
    anew: bool = False
    """Whether what comes may belong to another recording."""


Item: TypeAlias = Whole | LostPlace


class _Lines:
    """Makes lines of chunks. The last one waits until its end has come."""

    def __init__(self) -> None:
        self.number = 0
        self._torn: list[bytes] = []
        self._size = 0
        self._too_long = False

    def cut(self, chunk: bytes) -> Iterator[Item]:
        """Return the lines that are whole now."""
        *whole, rest = chunk.split(b"\n")
        for part in whole:
            yield from self._line(part)
        if self._too_long:
            return
        self._size += len(rest)
        if self._size > LONGEST:
            self._torn, self._size, self._too_long = [], 0, True
        elif rest:
            self._torn.append(rest)

    def _line(self, part: bytes) -> Iterator[Item]:
        self.number += 1
        if self._too_long:
            self._too_long = False
            yield Whole(self.number, b"(a line of more than 16 MiB)")
            return
        text = b"".join([*self._torn, part]) if self._torn else part
        self._torn, self._size = [], 0
        # Where a file was truncated under a writer that keeps its place, it begins with zeros.
        yield Whole(self.number, text.lstrip(b"\0"))

    def last(self) -> Iterator[Item]:
        """Return the line whose end will not come any more, if there is one."""
        if self._torn or self._too_long:
            yield from self._line(b"")

    def forget(self) -> None:
        """Begin another file."""
        self.number, self._torn, self._size, self._too_long = 0, [], 0, False

    def skip_one(self) -> None:
        """Do not return what comes up to the next end of a line."""
        self._too_long = True


class TailedFile:
    """A regular file to which lines are appended. Raises OSError if it cannot be opened."""

    def __init__(self, path: Path, *, from_end: bool = False) -> None:
        self._path = path
        self._file = os.open(path, os.O_RDONLY)
        self._lines = _Lines()
        self._place = 0
        self._mark = b""
        self._skip = False
        if from_end:
            self._place = os.fstat(self._file).st_size
            self._mark = os.pread(self._file, min(_MARK, self._place), max(0, self._place - _MARK))
            self._skip = bool(self._mark) and not self._mark.endswith(b"\n")

    ended = False

    @property
    def behind(self) -> int:
        """How many bytes of the file have not been read."""
        return max(0, os.fstat(self._file).st_size - self._place)

    def poll(self) -> Iterator[Item]:
        """Yield what has come, at most a chunk of it."""
        moved_on = self._another_has_begun()
        chunk = os.pread(self._file, CHUNK, self._place)
        if self._is_another_text():
            self._begin()
            yield LostPlace(1, "the file was truncated", anew=True)
            return
        if chunk:
            self._place += len(chunk)
            self._mark = (self._mark + chunk)[-_MARK:]
            yield from self._whole(chunk)
        elif moved_on:
            yield from self._lines.last()
            os.close(self._file)
            self._file = os.open(self._path, os.O_RDONLY)
            self._begin()

    def wait(self, seconds: float) -> None:
        """Wait until it is worth looking again."""
        select.select([], [], [], seconds)

    def close(self) -> Iterator[Item]:
        """Close the file. What has no end of line yet is not a line."""
        os.close(self._file)
        return iter(())

    def _whole(self, chunk: bytes) -> Iterator[Item]:
        if self._skip:
            _, end, chunk = chunk.partition(b"\n")
            self._skip = not end
        yield from self._lines.cut(chunk)

    def _begin(self) -> None:
        self._place, self._mark, self._skip = 0, b"", False
        self._lines.forget()

    def _is_another_text(self) -> bool:
        """Return whether what was read last is not in its place any more."""
        before = self._place - len(self._mark)
        return os.pread(self._file, len(self._mark), before) != self._mark

    def _another_has_begun(self) -> bool:
        """Return whether another file has the name, and something is in it."""
        try:
            named = os.stat(self._path)
        except OSError:
            return False  # it was renamed, and the next one is not there yet
        own = os.fstat(self._file)
        return (named.st_dev, named.st_ino) != (own.st_dev, own.st_ino) and named.st_size > 0


class TailedStream:
    """A pipe, a socket or a terminal. It ends when its writer closes it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lines = _Lines()
        self.ended = False

    behind = 0

    def poll(self) -> Iterator[Item]:
        """Yield what has come, at most a chunk of it, without waiting."""
        if self.ended or not select.select([self._descriptor], [], [], 0)[0]:
            return
        chunk = os.read(self._descriptor, CHUNK)
        if chunk:
            yield from self._lines.cut(chunk)
        else:
            self.ended = True
            yield from self._lines.last()

    def wait(self, seconds: float) -> None:
        """Wait until something has come."""
        select.select([self._descriptor], [], [], seconds)

    def close(self) -> Iterator[Item]:
        """Leave the stream to its owner."""
        return iter(())


Tail: TypeAlias = TailedFile | TailedStream


def tail_of(name: str, *, from_end: bool = False) -> Tail:
    """Return the tail of a file, of a named pipe, or of standard input for ``-``."""
    if name == "-":
        return TailedStream(0)
    if stat.S_ISREG(os.stat(name).st_mode):
        return TailedFile(Path(name), from_end=from_end)
    return TailedStream(os.open(name, os.O_RDONLY))
