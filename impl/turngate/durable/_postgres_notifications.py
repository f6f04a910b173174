"""Hints and relayed messages between the processes on one PostgreSQL ledger, by NOTIFY and LISTEN.

Three kinds of channels, all named after the schema:

turngate_SCHEMA         hints for every worker, and announcements of processes that listen to relayed messages
turngate_SCHEMA_WORKER  hints for one worker
turngate_SCHEMA_relay   relayed messages, each after the token of its sender
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from typing import TYPE_CHECKING, Any, Final

from turngate._log import log_error
from turngate._supervise import Supervisor
from turngate.durable._ledger import LedgerUnavailable

if TYPE_CHECKING:
    from asyncio import Task
    from collections.abc import Callable, Coroutine, Sequence

    Listen = Callable[[list[str], Callable[[], None], Callable[[str, str], None]], Coroutine[Any, Any, None]]

_ANNOUNCE_INTERVAL: Final = 5.0
"""Seconds after which a process that listens to relayed messages announces it again."""
_HINT_DELAY: Final = 0.005
"""Seconds for which hints are collected before they are sent together."""


class Notifications:
    """What this process sends to the others, and receives from them.

    fetch   executes the statement of a name
    listen  listens to channels forever: calls its second argument if something was missed, its third with the
            channel and the text of each notification
    spawn   starts a background task
    """

    def __init__(
        self,
        schema: str,
        fetch: Callable[..., Coroutine[Any, Any, list[Any]]],
        listen: Listen,
        spawn: Callable[[Coroutine[Any, Any, None]], Task[Any]],
    ) -> None:
        self._channel = f"turngate_{schema}"
        self._fetch = fetch
        self._listen_to = listen
        self._spawn = spawn
        self._supervisor = Supervisor(spawn)
        self._token = secrets.token_hex(6)
        self._worker = 0
        self._wake: Callable[[], None] | None = None
        self._heard: Callable[[str], None] | None = None
        self._listener: Task[None] | None = None
        self._announcer: Task[None] | None = None
        self._hints: set[str] = set()
        self._has_listeners_until = 0.0

    def set_worker(self, worker: int) -> None:
        """Listen to the hints for this worker from now on."""
        self._worker = worker
        if self._wake is not None:
            self.listen(self._wake)

    def listen(self, wake: Callable[[], None]) -> None:
        """Call `wake` when there is a hint for this worker, or for all."""
        self._wake = wake
        if self._listener is not None:
            self._listener.cancel()
        channels = [self._channel, f"{self._channel}_{self._worker}"]
        if self._heard is not None:
            channels.append(f"{self._channel}_relay")
        self._listener = self._supervisor.start(
            "listening to PostgreSQL", lambda: self._listen_to(channels, wake, self._notice)
        )

    def close(self) -> None:
        """Start no more tasks. The ledger, which has spawned the running ones, ends them."""
        self._wake = None
        self._hints = set()

    def _notice(self, channel: str, text: str) -> None:
        """Handle a notification; exceptions must not reach the connection."""
        try:
            self._take(text)
        except Exception as exc:
            log_error(exc, "a notification of PostgreSQL could not be handled")

    def _take(self, text: str) -> None:
        sender, _, message = text.partition(" ")
        if not sender:  # a hint
            if self._wake is not None:
                self._wake()
        elif sender != self._token:
            if not message:
                self._has_listeners_until = time.monotonic() + 3 * _ANNOUNCE_INTERVAL
            elif self._heard is not None:
                self._heard(message)

    def has_listeners(self) -> bool:
        """Return whether another process has lately announced that it listens to relayed messages."""
        return time.monotonic() < self._has_listeners_until

    async def relay(self, messages: Sequence[str]) -> None:
        """Send messages to the processes that listen; they may be lost."""
        texts = [f"{self._token} {message}" for message in messages]
        await self._fetch("say", f"{self._channel}_relay", texts)

    def on_relay(self, heard: Callable[[str], None] | None) -> None:
        """Call `heard` with the messages of other processes; None stops that."""
        self._heard = heard
        if self._announcer is not None:
            self._announcer.cancel()
        if self._wake is None:
            return
        self.listen(self._wake)
        if heard is not None:
            self._announcer = self._supervisor.start(
                "telling other processes that this one listens", self._announce
            )

    async def _announce(self) -> None:
        while True:
            with contextlib.suppress(LedgerUnavailable):
                await self._fetch("say", self._channel, [self._token])
            await asyncio.sleep(_ANNOUNCE_INTERVAL)

    def hint(self, workers: set[int]) -> None:
        """Hint that these workers, or all if the set is empty, should look soon. Never waits."""
        is_first = not self._hints
        self._hints |= {f"{self._channel}_{worker}" for worker in workers} or {self._channel}
        if is_first:
            self._spawn(self._send_hints())

    async def _send_hints(self) -> None:
        await asyncio.sleep(_HINT_DELAY)
        channels, self._hints = self._hints, set()
        try:
            await self._fetch("hint", [*channels])
        except LedgerUnavailable:
            pass  # the workers will look by themselves
        except Exception as exc:
            log_error(exc, "other processes could not be notified")
