"""Several processes behind one address, on one ledger: a parent that listens, and workers that serve.

1. The parent opens the socket and serves nothing; each worker is a `turngate serve` that inherits it.
2. A worker that dies is started again. The others take over its runs through the ledger.
3. A signal to the parent is passed on, and the parent ends when every worker has. Workers are not in its
   process group, so that Ctrl-C does not reach them twice; should the parent die, they notice, and end.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from socket import socket
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from turngate.cli.endings import INTERRUPTED
from turngate.cli.terminal import err

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import Callable, Sequence

_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
_AS_ASKED: Final = (0, INTERRUPTED, -signal.SIGTERM, -signal.SIGINT)
"""The exit codes of a worker that was asked to end; the signals themselves, if it had hardly begun."""


class Inherited(NamedTuple):
    """What a worker has from its parent, by the numbers of the files: `3,4,5` on the command line."""

    listener: int
    ready: int
    """A pipe into which a worker says that it serves."""
    life: int
    """A pipe that is never written to: it ends when the parent does."""

    def socket(self) -> socket:
        """Return the listening socket, which is not for what a runner may start in its turn."""
        for number in self:
            os.set_inheritable(number, False)
        return socket(fileno=self.listener)

    def tell(self, _port: int) -> None:
        """Say that this worker serves, and end as at SIGTERM when the parent is gone; on the loop."""
        os.write(self.ready, b".")
        os.close(self.ready)
        asyncio.get_running_loop().add_reader(self.life, self._is_orphaned)

    def _is_orphaned(self) -> None:
        asyncio.get_running_loop().remove_reader(self.life)
        signal.raise_signal(signal.SIGTERM)


class Workers:
    """Several processes of `turngate serve` with the same arguments, which share one listening socket."""

    def __init__(self, arguments: Sequence[str], count: int, listener: socket) -> None:
        self._arguments = arguments
        self._count = count
        self._listener = listener
        self._running: set[Process] = set()
        self._interrupted = False
        self._ending = asyncio.Event()
        self._life, self._kept_open = os.pipe()

    def run(self, on_start: Callable[[], object]) -> int:
        """Serve until a signal comes; `on_start` is called when every worker serves. Return the exit code."""
        try:
            return asyncio.run(self._serve(on_start))
        finally:
            os.close(self._life)
            os.close(self._kept_open)

    async def _serve(self, on_start: Callable[[], object]) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._pass_on, number)
        # One alone at first: what is wrong with all of them is said once.
        first, serves = await self._start()
        if not serves:
            return await self._ended(first)
        started = [asyncio.Event() for _ in range(self._count - 1)]
        keeping = [asyncio.create_task(self._keep(event, None)) for event in started]
        keeping.append(asyncio.create_task(self._keep(asyncio.Event(), first)))
        ending: asyncio.Future[Any] = asyncio.ensure_future(self._ending.wait())
        serving: asyncio.Future[Any] = asyncio.gather(*(event.wait() for event in started))
        await asyncio.wait([serving, ending], return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            on_start()
        codes = await asyncio.gather(*keeping)
        serving.cancel()
        ending.cancel()
        wrong = [code for code in codes if code not in _AS_ASKED]
        return wrong[0] if wrong else INTERRUPTED if self._interrupted else 0

    def _pass_on(self, number: signal.Signals) -> None:
        self._interrupted = self._interrupted or number == signal.SIGINT
        self._ending.set()
        for process in self._running:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)

    async def _keep(self, serves: asyncio.Event, process: Process | None) -> int:
        """Keep one worker running until the end; return the exit code of the last."""
        pause = _FIRST_PAUSE
        code = 0
        while True:
            if process is None:
                process, has_begun = await self._start()
                if has_begun:
                    serves.set()
                    pause = _FIRST_PAUSE
            code = await self._ended(process)
            if self._ending.is_set():
                return code
            err.print(f"turngate: worker {process.pid} ended with {code}; starting another")
            process = None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._ending.wait()
                return 0
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def _start(self) -> tuple[Process, bool]:
        """Start a worker; return it, and whether it has begun to serve."""
        heard, ready = os.pipe()
        inherited = Inherited(self._listener.fileno(), ready, self._life)
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "turngate", "serve", "--inherited", ",".join(map(str, inherited))),
                *self._arguments,
                pass_fds=inherited,
                start_new_session=True,
            )
        finally:
            os.close(ready)
        self._running.add(process)
        if self._ending.is_set():
            process.terminate()
        try:
            said = await asyncio.get_running_loop().run_in_executor(None, os.read, heard, 1)
        finally:
            os.close(heard)
        return process, bool(said)

    async def _ended(self, process: Process) -> int:
        code = await process.wait()
        self._running.discard(process)
        return code
