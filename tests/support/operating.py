"""Processes of their own on an SQLite ledger, which follow commands, one per line: for tests of operations.

A test starts a `Child` and gives it commands; each is answered with one line of JSON. Every turn waits until
it is told to finish, and notes its beginning and its end in a journal that all children share, so that a test
can say whether two turns of one session were ever at work at the same time.
"""

from __future__ import annotations

import asyncio
import concurrent.futures.thread
import contextlib
import encodings.ascii
import encodings.latin_1
import json
import linecache
import logging
import os
import queue
import resource
import signal
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any, Self

from turngate import Turn
from turngate.durable import DurableDispatcher, DurableTurn, SqliteLedger

ROOT = Path(__file__).resolve().parents[2]
PYTHONPATH = os.pathsep.join(str(ROOT / each) for each in ("impl", "model", "verify", "tests/support"))
NOBODY = 65534
HANG = 120.0
NEEDED_LATER = (concurrent.futures.thread, encodings.ascii, encodings.latin_1, linecache, traceback)
"""Modules that Python imports when it first needs them, from files that another user may not read."""


class Child:
    """A process with a dispatcher on the ledger at `path`, which need not be spelled as others spell it.

    cwd     the folder that it starts in
    user    the id of the user that it becomes before it opens the ledger
    sizes   how many bytes a file that it writes may have
    first_on_path  a folder with modules for it, before all others
    """

    def __init__(
        self,
        path: str | Path,
        journal: Path,
        *,
        cwd: Path | None = None,
        user: int | None = None,
        sizes: int | None = None,
        first_on_path: Path | None = None,
        **options: Any,
    ) -> None:
        told = {"path": str(path), "journal": str(journal), "user": user, "sizes": sizes, "options": options}
        self.process = subprocess.Popen(
            [sys.executable, __file__, json.dumps(told)],
            env={**os.environ, "PYTHONPATH": f"{first_on_path or ROOT}{os.pathsep}{PYTHONPATH}"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=cwd,
        )
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._read_answers, daemon=True),
            threading.Thread(target=self._read_log, daemon=True),
        ]
        self.log: list[str] = []
        for thread in self._threads:
            thread.start()

    def _read_answers(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._answers.put(line)
        self._answers.put("")

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        self.log += self.process.stderr

    def tell(self, *command: Any) -> None:
        """Give a command without waiting for its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        """Return the next answer; an error comes as "Type: text"."""
        try:
            line = self._answers.get(timeout=HANG)
        except queue.Empty:
            raise AssertionError(f"no answer within {HANG} s: {self.log}") from None
        assert line, f"the process has ended: {''.join(self.log)}"
        return json.loads(line)

    def ask(self, *command: Any) -> Any:
        """Give a command and return its answer."""
        self.tell(*command)
        return self.answer()

    def opened(self) -> Self:
        """Wait until the ledger is open."""
        answer = self.answer()
        assert answer == "open", answer
        return self

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """End the process as `kill -9` does."""
        self.process.kill()
        self.process.wait(HANG)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        for thread in self._threads:
            thread.join()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()


def turns(journal: Path) -> list[tuple[str, str, str, int]]:
    """Return what the turns have noted, in order: began or ended, session, run, attempt."""
    return [
        tuple(json.loads(line)[1:]) for line in sorted(_lines(journal), key=lambda line: json.loads(line)[0])
    ]


def _lines(journal: Path) -> list[str]:
    return journal.read_text().splitlines() if journal.exists() else []


def overlaps(journal: Path) -> list[str]:
    """Return the runs whose turn began while another one of the same session was at work."""
    found: list[str] = []
    at_work: dict[str, str] = {}
    for what, session, run, _ in turns(journal):
        if what == "began" and session in at_work:
            found.append(run)
        if what == "began":
            at_work[session] = run
        else:
            at_work.pop(session, None)
    return found


def dies(journal: Path, session: str, run: str) -> None:
    """Note that the process in which this turn is at work is about to be killed."""
    _note(journal, "died", session, run, 0)


def _note(journal: Path, *what: Any) -> None:
    with open(journal, "a", encoding="ascii") as out:
        out.write(json.dumps([time.monotonic(), *what]) + "\n")


def until(holds: Any, what: str) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + HANG
    while not holds():
        assert time.monotonic() < deadline, f"{what} has not come within {HANG} s"
        time.sleep(0.01)


# In the process.


class _Told:
    def __init__(self, journal: Path) -> None:
        self.journal = journal
        self.finish = asyncio.Event()
        self.text = f"text of {os.getpid()}"

    async def runner(self, turn: Turn) -> str:
        assert isinstance(turn, DurableTurn)
        about = turn.run.session_id, turn.run.run_id, turn.attempt
        _note(self.journal, "began", *about)
        try:
            await self.finish.wait()
            self.finish.clear()
        finally:
            _note(self.journal, "ended", *about)
        return self.text


async def _do(told: _Told, d: DurableDispatcher, what: str, *about: Any) -> Any:
    match what:
        case "submit":
            session, run_id = about
            return (await d.submit(session, "prompt", run_id=run_id, when_busy="queue")).run_id
        case "accept":
            session, run_id = about
            return (await d.accept(session, "prompt", run_id=run_id, when_busy="queue")).run_id
        case "finish":
            told.finish.set()
            return "told"
        case "wait":
            return (await d.wait(*about))._asdict()
        case "find":
            found = await d.find(*about)
            return None if found is None else found.state.value
        case "chdir":
            os.chdir(*about)
            return "moved"
        case "close":
            await d.aclose(**dict(*about))
            return "closed"
    raise AssertionError(what)


async def _obey(told: _Told, d: DurableDispatcher) -> None:
    loop = asyncio.get_running_loop()
    try:
        await d.__aenter__()
    except Exception as exc:
        _say(f"{type(exc).__name__}: {exc}")
        return
    _say("open")
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        try:
            _say(await _do(told, d, *json.loads(line)))
        except Exception as exc:
            _say(f"{type(exc).__name__}: {exc}")


def _say(answer: Any) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def _main(path: str, journal: str, user: int | None, sizes: int | None, options: dict[str, Any]) -> None:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    if user is not None:
        os.setgid(user)
        os.setuid(user)
    if sizes is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (sizes, sizes))
    told = _Told(Path(journal))
    ledger = SqliteLedger(path, lock_timeout=60.0, synchronous="NORMAL")
    options = {"poll": 0.05, "on_death": "retry", **options}
    asyncio.run(_obey(told, DurableDispatcher(told.runner, ledger, **options)))


if __name__ == "__main__":
    _main(**json.loads(sys.argv[1]))
