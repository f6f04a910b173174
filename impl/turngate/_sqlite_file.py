"""The file of an SQLite database: where its path leads, and whether that is still the file that was opened.

SQLite finds the write-ahead log of a file by the file's name. If one file has two names, or one name leads to
two files one after the other, data are lost. So the path is made absolute when it is given, links are
resolved, and a file with several names is refused. The file is checked again after each commit: what is
acknowledged after it was replaced would be gone after a restart.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from typing import Self

_RESTART: Final = "nothing more is written; restart to use what is there now"


class UnusableFile(OSError):
    """The path does not lead to a file that can be used safely; the text says what would help."""


class FileId(NamedTuple):
    """What identifies a file on this machine."""

    device: int
    inode: int

    @classmethod
    def of(cls, status: os.stat_result) -> Self:
        """Return the id of the file with this status."""
        return cls(status.st_dev, status.st_ino)


def absolute(path: str | os.PathLike[str]) -> str:
    """Return the absolute path, so that a later `os.chdir` changes nothing.

    Refuses ":memory:" and "", which SQLite takes for a database that dies with its connection.
    """
    name = os.fspath(path)
    if name in {"", ":memory:"}:
        raise ValueError(f"a file is needed, not {name!r}")
    return os.path.abspath(name)


def resolved(path: str) -> Path:
    """Return the path with all links followed, even to a file that is missing."""
    return Path(os.path.realpath(path))


def check_usable(path: Path) -> None:
    """Raise UnusableFile unless the path leads to a plain file with one name, or can become one."""
    if not path.parent.is_dir():
        hint = " (a ~ is not expanded)" if "~" in path.parts else ""
        raise UnusableFile(f"the folder {path.parent} does not exist{hint}")
    try:
        status = path.stat()
    except FileNotFoundError:
        return
    if not stat.S_ISREG(status.st_mode):
        raise UnusableFile(f"{path} is not a regular file")
    if status.st_nlink > 1:
        raise UnusableFile(
            f"{path} has {status.st_nlink} hard links, and SQLite loses data when it is opened by several "
            f"names; keep one of them"
        )


class OpenedFile:
    """A file as it was when it was opened.

    given  the path by which it was asked for, absolute; links in it may be changed
    path   where that led
    """

    def __init__(self, given: str, path: Path) -> None:
        self._given = given
        self._path = os.fspath(path)
        self.id = FileId.of(os.stat(self._path))
        self._log: FileId | None = None

    def problem(self) -> str | None:
        """Say what has become of the file if it is not the one that was opened; None if it still is."""
        path = self._path
        try:
            status = os.stat(path)
            if FileId.of(status) != self.id:
                return f"{path} was replaced by another file while it was open; {_RESTART}"
            if status.st_size == 0:
                return f"{path} was emptied while it was open; {_RESTART}"
            if self._given != path and FileId.of(os.stat(self._given)) != self.id:
                return f"{self._given} no longer leads to {path}; {_RESTART}"
        except (FileNotFoundError, NotADirectoryError) as exc:
            return f"{exc.filename} was removed or renamed while it was open; {_RESTART}"
        except OSError:
            pass  # for instance, the folder may not be read: the file may still be there
        return self._problem_of_log(f"{path}-wal")

    def _problem_of_log(self, log: str) -> str | None:
        """Check the write-ahead log, which exists from the first statement to the last close."""
        try:
            found: FileId | None = FileId.of(os.stat(log))
        except (FileNotFoundError, NotADirectoryError):
            found = None
        except OSError:
            return None
        if self._log is None:
            self._log = found
        elif found != self._log:
            return f"{log} was removed or replaced while it was open; {_RESTART}"
        return None
