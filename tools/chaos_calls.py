"""What callers do in chaos, on a dispatcher or over HTTP, and the log of what they were told.

Each call is logged before it is made and when it is answered. A call without an answer may have happened. One
that was refused has changed nothing.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from turngate import OutcomeUnknown, TurngateError, WhenBusy

SESSIONS = 16
INTERRUPTED = 4
"""The number of sessions with prompts that interrupt: their cancels have no call of their own."""
AGAIN = 3
"""How often a call whose outcome is unknown is repeated under its key."""


class Log:
    """A file that several processes append to, a line at a time."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1, encoding="utf-8")
        self._calls = 0

    def say(self, **line: Any) -> None:
        """Write a line."""
        self._file.write(json.dumps({"at": time.monotonic_ns(), "pid": os.getpid(), **line}) + "\n")

    @contextmanager
    def call(self, op: str, **about: Any) -> Iterator[dict[str, Any]]:
        """Log a call; what the block puts into the dictionary is the answer."""
        self._calls += 1
        name = f"{os.getpid()}-{self._calls}"
        self.say(event="call", call=name, op=op, **about)
        answer: dict[str, Any] = {}
        try:
            yield answer
        except (OutcomeUnknown, TimeoutError):
            self.say(event="unknown", call=name)
        except TurngateError as refused:
            self.say(event="refused", call=name, why=type(refused).__name__)
        except asyncio.CancelledError:
            self.say(event="unknown", call=name, cancelled=True)
            raise
        else:
            self.say(event="answered", call=name, **answer)


class Sending:
    """Says to all processes since when this one has been sending prompts that may be sent again.

    A run_id protects a prompt only as long as the run is not purged.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._file = os.open(folder / str(os.getpid()), os.O_CREAT | os.O_WRONLY)
        self._since: list[float] = []
        self._write()

    @contextmanager
    def prompt(self) -> Iterator[None]:
        """Send a prompt in this block."""
        since = time.time()
        self._since.append(since)
        self._write()
        try:
            yield
        finally:
            self._since.remove(since)
            self._write()

    def _write(self) -> None:
        oldest = min(self._since) if self._since else 1e12
        os.pwrite(self._file, f"{oldest:24.6f}".encode(), 0)

    @staticmethod
    def oldest(folder: Path) -> float:
        """Return since when a prompt may have been on its way."""
        found = [1e12]
        for file in folder.iterdir():
            with suppress(OSError, ValueError):
                found.append(float(file.read_text()))
        return min(found)


class Operations:
    """Makes every kind of call there is, on a dispatcher or a client: both have the same names."""

    def __init__(self, target: Any, log: Log, sending: Sending, dice: random.Random, name: str) -> None:
        self._target = target
        self._log = log
        self._sending = sending
        self._dice = dice
        self._name = name
        self._count = 0
        self._others: list[Callable[[str], Awaitable[None]]] = [
            self._cancel, self._cancel_run, self._clear, self._hold, self._hold_run, self._resume,
            self._resume, self._resume_run, self._stop, self._move, self._move, self._edit, self._edit,
            self._edit, self._send_now, self._into,
        ]  # fmt: skip

    def new_name(self) -> str:
        """Return a name that nothing has had before."""
        self._count += 1
        return f"{self._name}-{self._count}"

    async def one(self) -> None:
        """Make one call, or a few that belong together."""
        session = f"s{self._dice.randrange(SESSIONS)}"
        if self._dice.random() < 0.55:
            await self._submit(session)
        else:
            await self._dice.choice(self._others)(session)

    async def _repeated(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """Make a call again, under the same key, while it is unknown what became of it."""
        for left in reversed(range(AGAIN)):
            try:
                return await call()
            except OutcomeUnknown:
                if not left:
                    raise
                await asyncio.sleep(0.05)
        return None

    async def _submit(self, session: str) -> None:
        ways: list[WhenBusy] = ["fold", "fold", "queue", "queue", "queue", "reject"]
        if int(session[1:]) < INTERRUPTED:
            ways.append("interrupt")
        run_id = self.new_name()
        way = self._dice.choice(ways)
        await self._send(session, run_id, when_busy=way)
        if self._dice.random() < 0.4:
            await self._wait(run_id)

    async def _into(self, session: str) -> None:
        if (active := await self._active(session)) is not None:
            await self._send(session, self.new_name(), into=active)

    async def _send(self, session: str, run_id: str, **options: Any) -> None:
        prompt = f"{run_id} as it was sent"
        data = {"version": "as it was sent"}
        about = {"session": session, "run": run_id, "prompt": prompt, "data": data, **options}
        with self._log.call("submit", **about), self._sending.prompt():
            await self._repeated(
                lambda: self._target.submit(session, prompt, run_id=run_id, data=data, **options)
            )

    async def _wait(self, run_id: str) -> None:
        with self._log.call("wait", run=run_id) as answer:
            async with asyncio.timeout(self._dice.random() * 10):
                complete = await self._target.wait(run_id)
            answer["complete"] = list(complete)

    # What is in flight.

    async def _view(self, session: str) -> Any:
        with suppress(TurngateError):
            return await self._target.session(session)
        return None

    async def _active(self, session: str) -> str | None:
        view = await self._view(session)
        return None if view is None or view.active is None else str(view.active.run_id)

    async def _queued(self, session: str) -> list[str]:
        view = await self._view(session)
        return [] if view is None else [run.run_id for run in view.queued]

    # Operations on a session.

    async def _do(self, op: str, about: str, *more: Any, **options: Any) -> None:
        """Make a call under a key; it is about a session or a run."""
        key = self.new_name()
        with self._log.call(op, about=about, **options) as answer:
            call = getattr(self._target, op)
            found = await self._repeated(lambda: call(about, *more, key=key, **options))
            answer.update(told(found))

    async def _cancel(self, session: str) -> None:
        await self._do("cancel", session)

    async def _clear(self, session: str) -> None:
        await self._do("clear_queue", session)

    async def _hold(self, session: str) -> None:
        await self._do("hold", session)

    async def _resume(self, session: str) -> None:
        await self._do("resume", session)

    async def _stop(self, session: str) -> None:
        turn = await self._active(session) if self._dice.random() < 0.5 else None
        await self._do("stop", session, turn=turn)

    # Operations on a run that waits.

    async def _to_one(self, op: str, session: str, **options: Any) -> None:
        if queued := await self._queued(session):
            await self._do(op, self._dice.choice(queued), **options)

    async def _cancel_run(self, session: str) -> None:
        await self._to_one("cancel_run", session)

    async def _hold_run(self, session: str) -> None:
        await self._to_one("hold_run", session)

    async def _resume_run(self, session: str) -> None:
        await self._to_one("resume_run", session)

    async def _edit(self, session: str) -> None:
        if queued := await self._queued(session):
            run_id, version = self._dice.choice(queued), self.new_name()
            options: dict[str, Any] = {"prompt": f"{run_id} as {version}", "data": {"version": version}}
            if self._dice.random() < 0.3:
                options["when_busy"] = self._dice.choice(["fold", "queue"])
            await self._do("edit", run_id, **options)

    async def _move(self, session: str) -> None:
        if queued := await self._queued(session):
            run_id, other = self._dice.choice(queued), self._dice.choice(queued)
            if other == run_id or self._dice.random() < 0.5:
                await self._do("move", run_id, to=self._dice.choice(["first", "last"]))
            else:
                await self._do("move", run_id, before=other)

    async def _send_now(self, session: str) -> None:
        turn = await self._active(session) if self._dice.random() < 0.3 else None
        await self._to_one("send_now", session, turn=turn)


def told(answer: Any) -> dict[str, Any]:
    """Return what an answer says: the runs that were covered, held and so on, by their ids."""
    if hasattr(answer, "waiting"):
        covered = answer.runs if hasattr(answer, "runs") else answer.covered
        return {"runs": names(covered), "held": names(answer.held), "waiting": names(answer.waiting)}
    if isinstance(answer, list):
        return {"runs": names(answer)}
    return {"runs": names([answer])}


def names(runs: Any) -> list[str]:
    """Return the ids of runs that are handles or ids."""
    return [run if isinstance(run, str) else run.run_id for run in runs]
