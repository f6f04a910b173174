"""The kit never says holds of a dispatcher that hangs, wherever it does."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, ClassVar

import pytest

import flights
from flights import Flight, Steps
from turngate_verify.conform import Effort, check, watchdog
from turngate_verify.conform.watchdog import Watchdog

QUICK = Effort(programs=300, examples=3, mid_flight=3)


class NeverReturns(Steps):
    """A cancel does its work, and never returns."""

    async def cancel(self, session: str) -> None:
        await super().cancel(session)
        await asyncio.Event().wait()


class NeverReturnsInARace(Steps):
    """A cancel waits for the end of a turn that may be over by then."""

    def __init__(self, run: Any) -> None:
        super().__init__(run)
        self.over_now = asyncio.Event()

    def over(self, session: str, answer: flights.Answer, turn: asyncio.Task[str]) -> None:
        super().over(session, answer, turn)
        self.over_now.set()

    async def cancel(self, session: str) -> None:
        if session in self.turns:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            self.over_now.clear()
            self.cover(session)
            await self.over_now.wait()


class WaitsForTheEnd(Steps):
    """A cancel returns when the turn that it has cancelled is over. That is right."""

    async def cancel(self, session: str) -> None:
        turn = self.turns.get(session)
        self.cover(session)
        if turn is not None:
            await asyncio.wait([turn])


@pytest.mark.parametrize(
    ("kind", "at"), [(NeverReturns, "at cancel: it hangs"), (NeverReturnsInARace, "cancel: it hangs")]
)
def test_an_operation_that_never_returns_is_no_dispatcher_that_holds(kind: type[Any], at: str) -> None:
    result = check(flights.flight(kind), effort=QUICK)
    assert result.failed is not None
    assert at in result.failed.what
    assert result.verdict == "unknown"


def test_an_operation_may_wait_for_what_it_has_brought_about() -> None:
    assert check(flights.flight(WaitsForTheEnd), effort=QUICK).verdict == "holds"


class Closes(Flight):
    hangs: ClassVar[str] = ""

    async def do_close(self) -> None:
        turns = self.mine.turns
        if self.hangs == "in every callback":
            while True:
                await asyncio.sleep(0)
        while turns or self.hangs == "for ever":
            await asyncio.wait(list(turns.values())) if turns else await asyncio.Event().wait()


@pytest.mark.parametrize("hangs", ["for ever", "in every callback"])
def test_who_never_closes_does_not_hold(hangs: str) -> None:
    few = Effort(programs=20, examples=0, mid_flight=0)
    result = check(type("NeverCloses", (Closes,), {"hangs": hangs}), effort=few)
    assert result.failed is not None
    assert result.failed.what.startswith("at close: ")
    assert result.verdict == "unknown"
    assert result.played > 0, "the rest is judged nevertheless"


def test_who_waits_for_turns_in_flight_before_it_closes_does_not_hang() -> None:
    assert check(Closes, effort=QUICK).verdict == "holds"


class Blocks(Steps):
    """A cancel waits for a thread that will never come."""

    async def cancel(self, session: str) -> None:
        threading.Event().wait()


class BlocksInARace(Steps):
    """A lock of a thread is held across an await: nothing shows that until two prompts come at once."""

    def __init__(self, run: Any) -> None:
        super().__init__(run)
        self.lock = threading.Lock()

    async def submit(self, session: str, prompt: str) -> flights.Answer:
        with self.lock:
            await asyncio.sleep(0)
            return await super().submit(session, prompt)


class Loops(Steps):
    """A cancel loops without an await, and lets nothing stop it."""

    async def cancel(self, session: str) -> None:
        while True:
            with contextlib.suppress(Exception):
                threading.Event().wait()


@pytest.mark.parametrize("kind", [Blocks, BlocksInARace, Loops])
def test_a_dispatcher_that_blocks_its_thread_is_reported(
    kind: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "TICK", 0.02)
    result = check(flights.flight(kind), effort=QUICK)
    assert result.failed is not None
    assert "it hangs: a callback blocks the thread" in result.failed.what
    assert result.verdict == "unknown"
    assert signal.getsignal(signal.SIGURG) is signal.SIG_DFL


def test_the_watchdog_stays_away_from_signals_of_others_and_from_other_threads() -> None:
    dog, seen = Watchdog(), []

    def watch() -> None:
        with dog.watching():
            seen.append(dog.is_watching)

    previous = signal.signal(signal.SIGURG, lambda *_: None)
    try:
        watch()
    finally:
        signal.signal(signal.SIGURG, previous)
    thread = threading.Thread(target=watch)
    thread.start()
    thread.join()
    watch()
    assert seen == [False, False, True]


BLOCKS = """
import threading
from turngate_verify.conform import AsyncioSubject, watchdog

watchdog.TICK = 0.02

class Blocks(AsyncioSubject):
    async def do_accept(self, session, run):
        threading.Event().wait()
"""
LEAVES_A_THREAD = """
import threading
from turngate_verify.conform import RealtimeSubject, Timing

class LeavesAThread(RealtimeSubject):
    timing = Timing(answers=0.1)

    async def do_accept(self, session, run):
        thread = threading.Thread(target=threading.Event().wait)
        thread.start()
        thread.join()
"""


@pytest.mark.parametrize(
    ("name", "text"),
    [("Blocks", BLOCKS), ("LeavesAThread", LEAVES_A_THREAD)],
    ids=["Blocks", "LeavesAThread"],
)
def test_the_command_ends_although_a_thread_of_the_subject_does_not(
    name: str, text: str, tmp_path: Path
) -> None:
    (tmp_path / "subject.py").write_text(text)
    command = [sys.executable, "-m", "turngate", "conform", f"subject.py:{name}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "at accept a: it hangs" in done.stdout
