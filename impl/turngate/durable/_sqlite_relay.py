"""Messages between the processes that share a file. Each that listens has a socket beside the file.

A process sends a message to every such socket. Messages are lost when a socket is full, or if sockets are
not available. A process that finds no listener behind a socket removes the socket. Other files in the
folder are left alone, including those of a ledger with a similar name.
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

from turngate._log import log_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

LONGEST: Final = 60_000
_ROOM: Final = 4_194_304
_AT_ONCE: Final = 64


class Relay:
    """Sends messages to the other processes, and receives theirs."""

    def __init__(self, ledger: Path) -> None:
        self._ledger = ledger
        self._folder = ledger.parent
        self._prefix = f"{ledger.name}-relay-"
        self._ours = re.compile(re.escape(self._prefix) + "[0-9a-f]{16}")
        self._name = ""
        self._receiver: socket.socket | None = None

    def others(self) -> list[str]:
        """Return the names of the other processes' sockets."""
        try:
            names = os.listdir(self._folder)
        except OSError:
            return []
        return [name for name in names if self._ours.fullmatch(name) and name != self._name]

    def send(self, messages: Sequence[str]) -> None:
        """Send the messages to all other processes, without waiting for any."""
        with self._reaching() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            for name in self.others():
                for message in messages:
                    try:
                        sender.sendto(message.encode("ascii"), f"{folder}/{name}")
                    except ConnectionRefusedError:  # no listener, or not a socket
                        self._remove(name)
                        break
                    except OSError:
                        break  # it is full, or gone

    def listen(self, heard: Callable[[str], None]) -> None:
        """Call `heard` with the messages of other processes, if sockets are available here."""
        if self._receiver is not None:
            return
        self._name = f"{self._prefix}{secrets.token_hex(8)}"
        try:
            receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        except OSError:
            return
        try:
            receiver.setblocking(False)
            receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _ROOM)
            with self._reaching() as folder:
                receiver.bind(f"{folder}/{self._name}")
            self._share()
            asyncio.get_running_loop().add_reader(receiver, _receive, receiver, heard)
        except (OSError, NotImplementedError):
            receiver.close()
            self._remove(self._name)
            return
        self._receiver = receiver

    def _share(self) -> None:
        """Let users who may write to the ledger write to the socket."""
        with contextlib.suppress(OSError):
            status = os.stat(self._ledger)
            os.chmod(self._folder / self._name, stat.S_IMODE(status.st_mode) & 0o666)
            if os.geteuid() == 0:
                os.chown(self._folder / self._name, status.st_uid, status.st_gid)

    def stop(self) -> None:
        """Stop listening. Idempotent."""
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            asyncio.get_running_loop().remove_reader(receiver)
            receiver.close()
            self._remove(self._name)

    def _remove(self, name: str) -> None:
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.lstat(self._folder / name).st_mode):
                os.unlink(self._folder / name)

    @contextlib.contextmanager
    def _reaching(self) -> Iterator[str]:
        """Provide a short path to the folder, because a socket's address has little room."""
        handle = os.open(self._folder, os.O_RDONLY)
        try:
            short = f"/proc/self/fd/{handle}"
            yield short if os.path.isdir(short) else str(self._folder)
        finally:
            os.close(handle)


def _receive(receiver: socket.socket, heard: Callable[[str], None]) -> None:
    for _ in range(_AT_ONCE):
        try:
            message = receiver.recv(LONGEST)
        except OSError:
            return
        try:
            heard(message.decode("ascii", "replace"))
        except Exception as exc:
            log_error(exc, "a message of another process could not be received")
