"""Talk between the processes that share a file: each that listens has a socket beside it.

A process that has something to say sends it to every socket there is. A message that does not fit any more is
lost, and so is what is said where sockets cannot be had. A process that finds no listener behind a socket
removes it. Other files in the folder, those of a ledger with a similar name among them, are left alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import socket
import stat
from typing import TYPE_CHECKING, Final

from turngate._guard import complain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

LONGEST: Final = 60_000
_ROOM: Final = 4_194_304
_AT_ONCE: Final = 64


class Relay:
    """What this process says to the others, and hears of them."""

    def __init__(self, ledger: Path) -> None:
        self._ledger = ledger
        self._folder = ledger.parent
        self._prefix = f"{ledger.name}-relay-"
        self._ours = re.compile(re.escape(self._prefix) + "[0-9a-f]{16}")
        self._name = ""
        self._ear: socket.socket | None = None
        self._heard: Callable[[str], None] | None = None

    def others(self) -> list[str]:
        """Return the names of the sockets of the others."""
        try:
            names = os.listdir(self._folder)
        except OSError:
            return []
        return [name for name in names if self._ours.fullmatch(name) and name != self._name]

    def say(self, messages: Sequence[str]) -> None:
        """Send the messages to all the others, without waiting for any."""
        with self._reaching() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as mouth:
            mouth.setblocking(False)
            for name in self.others():
                for message in messages:
                    try:
                        mouth.sendto(message.encode("ascii"), f"{folder}/{name}")
                    except ConnectionRefusedError:  # no listener, or not a socket
                        self._remove(name)
                        break
                    except OSError:
                        break  # it is full, or gone

    def hear(self, heard: Callable[[str], None]) -> None:
        """Listen, if sockets can be had here."""
        if self._ear is not None:
            return
        self._heard = heard
        self._name = f"{self._prefix}{secrets.token_hex(8)}"
        try:
            ear = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        except OSError:
            return
        try:
            ear.setblocking(False)
            ear.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _ROOM)
            with self._reaching() as folder:
                ear.bind(f"{folder}/{self._name}")
            self._share()
            asyncio.get_running_loop().add_reader(ear, self._listen, ear)
        except (OSError, NotImplementedError):
            ear.close()
            self._remove(self._name)
            return
        self._ear = ear

    def _share(self) -> None:
        """Let those who may write to the ledger write to the socket."""
        with contextlib.suppress(OSError):
            status = os.stat(self._ledger)
            os.chmod(self._folder / self._name, stat.S_IMODE(status.st_mode) & 0o666)
            if os.geteuid() == 0:
                os.chown(self._folder / self._name, status.st_uid, status.st_gid)

    def _listen(self, ear: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            try:
                message = ear.recv(LONGEST + 1)
            except OSError:
                return
            if self._heard is not None:
                try:
                    self._heard(message.decode("ascii", "replace"))
                except Exception as exc:
                    complain(exc, "what another process has said could not be heard")

    def stop(self) -> None:
        """Listen no longer. Idempotent."""
        ear, self._ear, self._heard = self._ear, None, None
        if ear is not None:
            asyncio.get_running_loop().remove_reader(ear)
            ear.close()
            self._remove(self._name)

    def _remove(self, name: str) -> None:
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.lstat(self._folder / name).st_mode):
                os.unlink(self._folder / name)

    @contextlib.contextmanager
    def _reaching(self) -> Iterator[str]:
        """Give a short way to the folder: the address of a socket has little room."""
        handle = os.open(self._folder, os.O_RDONLY)
        try:
            short = f"/proc/self/fd/{handle}"
            yield short if os.path.isdir(short) else str(self._folder)
        finally:
            os.close(handle)
