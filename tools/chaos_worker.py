"""One of the processes of chaos that work on the ledger: it runs turns, serves HTTP, and calls for itself."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from chaos_calls import SESSIONS, Log, Operations, Sending
from chaos_ledger import ledger_at, unreliable
from turngate import Turn, TurngateError, WhenBusy
from turngate.durable import DurableDispatcher, PurgeCutShort, SqliteLedger
from turngate.server import Limits, asgi_app
from turngate.server._serving import HttpServer, config, listening

LEASE = 2.0
RING = 40
"""Events that a reader can be behind; few, so that readers fall behind."""


class Worker:
    """Does what callers do, and what servers do, and writes down what it was told."""

    def __init__(self, folder: Path, spec: str, seed: int, on_death: Any) -> None:
        self.folder = folder
        self.random = random.Random(seed)
        self.log = Log(folder / "log")
        self.quiet, self.settled = folder / "quiet", folder / "settled"
        self.parent = os.getppid()
        self.name = f"w{seed}"
        self.d = DurableDispatcher(
            self.agent,
            unreliable(ledger_at(spec), self.random),
            lease=LEASE,
            poll=0.2,
            checkpoint=0.3,
            enter_timeout=2.0,
            on_death=on_death,
        )
        self.app = asgi_app(self.d, limits=Limits(ring_events=RING, heartbeat=1.0), finish=0.0)
        self.calls = Operations(self.d, self.log, Sending(folder / "sending"), self.random, self.name)

    async def agent(self, turn: Turn) -> str | None:
        """Work on a turn, now and then for longer."""
        about = {"session": turn.run.session_id, "fence": turn.fence}
        self.log.say(event="start", given=[given(run) for run in turn.runs], **about)
        try:
            for _ in range(self.random.choice([0, 1, 2, 3, 4, 12])):
                turn.write("x")
                await asyncio.sleep(self.random.random() * 0.05)
                if self.random.random() < 0.3 and (folded := await turn.fold()):
                    self.log.say(event="fold", given=[given(run) for run in folded], **about)
            if self.random.random() < 0.1:
                raise RuntimeError("no luck")
            if self.random.random() < 0.003:
                self.log.say(event="dies")
                os.kill(os.getpid(), signal.SIGKILL)
            return None
        finally:
            self.log.say(event="stop", **about)

    async def main(self) -> None:
        """Work until killed."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, print_tasks)
        while True:
            try:
                await self.d._stepper.ready()
                break
            except TurngateError:  # the server is being restarted, or somebody holds the ledger
                await asyncio.sleep(0.2)
        own = listening("127.0.0.1", 0)
        server = _Server(self.app, config(self.app, "127.0.0.1", 0), self.serves)
        serving = asyncio.create_task(server.serve([own]))
        serving.add_done_callback(self.stopped_serving)
        await asyncio.gather(*(self.call(number) for number in range(3)), self.fill_disk(), self.purge())
        while os.getppid() == self.parent and not self.settled.exists():  # noqa: ASYNC110 - a parent's end is not announced
            await asyncio.sleep(0.2)  # see to what others have left
        if os.getppid() == self.parent:
            await self.say_what_is_left()
        while os.getppid() == self.parent:  # noqa: ASYNC110
            await asyncio.sleep(0.5)
        os._exit(1)

    def stopped_serving(self, serving: asyncio.Task[None]) -> None:
        """End: the ledger was out of reach, and another process will come."""
        if not serving.cancelled():
            self.log.say(event="dies")
            os._exit(3)

    def serves(self, port: int) -> None:
        """Say where."""
        made = self.folder / f"serves-{os.getpid()}"
        made.write_text(str(port))
        made.rename(self.folder / "servers" / str(os.getpid()))

    async def say_what_is_left(self) -> None:
        """Look until nothing is left of what is over: as long as the judge waits."""
        while True:
            gc.collect()
            left = self.residue()
            if not left:
                break
            (self.folder / f"left-{os.getpid()}").write_text(repr(left))
            await asyncio.sleep(0.2)
        self.log.say(event="nothing left")

    def residue(self) -> dict[str, Any]:
        """Return what is held in memory although every session is quiet and every reader is gone."""
        d, streams = self.d, self.app._handlers._streams
        backend: Any = self.app._backend
        found = {
            "handles": [*d._runs.handles],
            "waited for": [*d._runs.waited_for],
            "hooked": [*d._feed.hooked],
            "turns": [*d._turns.owned],
            "steps": d._stepper.under_way,
            "streams": len(streams.open),
            "readers": len(streams.log._readers),
            "gates": [*d._feed.delivery.gates],
            "in flight": backend._in_flight,
            "ahead": backend._ahead,
        }
        return {name: left for name, left in found.items() if left}

    async def fill_disk(self) -> None:
        """Let an SQLite file have no page more, for a moment, now and then."""
        ledger: Any = self.d._ledger
        while isinstance(ledger, SqliteLedger) and not self.quiet.exists():
            await asyncio.sleep(self.random.random() * 16)
            for pages in (1, 2**30):
                try:
                    await ledger._working().do(
                        lambda connection: connection.execute(f"PRAGMA max_page_count = {pages}").fetchall()  # noqa: B023 - awaited here
                    )
                except TurngateError:
                    continue
                if pages == 1:
                    self.log.say(event="full")
                    await asyncio.sleep(self.random.random())

    async def purge(self) -> None:
        """Purge what is complete, now and then, but no run of a prompt that may still be on its way."""
        while not self.quiet.exists():
            await asyncio.sleep(self.random.random() * 6)
            before = min(
                time.time() - self.random.random() * 4, Sending.oldest(self.folder / "sending") - 0.1
            )
            try:
                self.log.say(event="purged", runs=await self.d.purge(before=before))
            except PurgeCutShort as short:
                self.log.say(event="purged", runs=short.purged, cut=True)
            except TurngateError:
                pass

    async def call(self, number: int) -> None:
        """Make one call after the other."""
        while not self.quiet.exists():
            if os.getppid() != self.parent:
                os._exit(1)  # the judge is gone
            dice = self.random.random()
            if dice < 0.06:
                await self.cancelled()
            elif dice < 0.2:
                await self.accept_and_enter()
            else:
                await self.calls.one()
            await asyncio.sleep(self.random.random() * 0.12)

    async def accept_and_enter(self) -> None:
        """Accept a prompt, and let it enter a little later."""
        session, run_id = f"s{self.random.randrange(SESSIONS)}", self.calls.new_name()
        way: WhenBusy = self.random.choice(["fold", "queue"])
        about = {"session": session, "run": run_id, "prompt": "p", "data": None}
        run = None
        with self.log.call("submit", **about):
            run = await self.d.accept(session, "p", run_id=run_id, when_busy=way)
        if run is not None:
            await asyncio.sleep(self.random.random() * 0.05)
            with self.log.call("enter", run=run_id):
                await self.d.enter(run)

    async def cancelled(self) -> None:
        """Call, and be cancelled after some turns of the loop: at each await there is."""
        session, run_id = f"s{self.random.randrange(SESSIONS)}", self.calls.new_name()
        about = {"session": session, "run": run_id, "prompt": "p", "data": None}
        calls: list[tuple[str, dict[str, Any], Callable[[], Any]]] = [
            ("submit", about, lambda: self.d.submit(session, "p", run_id=run_id, when_busy="queue")),
            ("submit", about, lambda: self.d.ask(session, "p", run_id=run_id)),
            ("cancel", {"about": session}, lambda: self.d.cancel(session)),
            ("clear_queue", {"about": session}, lambda: self.d.clear_queue(session)),
            ("stop", {"about": session}, lambda: self.d.stop(session)),
        ]
        op, what, make = self.random.choice(calls)

        async def logged() -> None:
            with self.log.call(op, **what):
                await make()

        call = asyncio.ensure_future(logged())
        for _ in range(self.random.randrange(60)):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait({call})


class _Server(HttpServer):
    """Leaves signals to the killer."""

    def capture_signals(self) -> Any:
        """Capture none."""
        return contextlib.nullcontext()


def print_tasks() -> None:
    """Print where every task waits."""
    for task in asyncio.all_tasks():
        task.print_stack()


def given(run: Any) -> list[Any]:
    """Return what a runner is given of a run."""
    return [run.run_id, run.prompt, run.data]
