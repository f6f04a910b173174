"""Real processes on one ledger, under load, killed and stopped at random; then everything is judged.

    python tools/chaos.py [--seconds 60] [--ledger sqlite|postgres] [--seed 1] [--on-death fail|retry]

Several processes accept, submit, cancel and clear; some calls are cancelled, one after each turn of the loop.
Of the notifications that they receive a third is lost, a third doubled and a third late. Meanwhile they are
killed with -9 (one, or all at once), and the disk is full now and then; with PostgreSQL they are also stopped
beyond their lease, their connections are terminated and the server is restarted. At the end those that live
see to what is left, and the ledger is judged.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PATHS = [str(ROOT / each) for each in ("impl", "model", "verify", "tests/support")]
sys.path[:0] = PATHS

from turngate import Turn, TurngateError, WhenBusy  # noqa: E402 - found only now
from turngate.durable import DurableDispatcher, PostgresLedger, SqliteLedger  # noqa: E402 - found only now
from turngate_verify.ledger_judge import completions, problems  # noqa: E402 - found only now

PROCESSES = 3
SESSIONS = 16
LEASE = 2.0
Line = dict[str, Any]

FULL = """
    CREATE OR REPLACE FUNCTION turngate.disk_full() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN RAISE EXCEPTION USING ERRCODE = 'disk_full', MESSAGE = 'No space left on device'; END $$
"""
"""The server says that its disk is full, whenever a session is written."""


def ledger_of(spec: str) -> Any:
    if spec.startswith("postgresql:"):
        return PostgresLedger(spec, connections=3)
    return SqliteLedger(spec)


def unreliable(ledger: Any, dice: random.Random) -> Any:
    """Have notifications be lost, doubled and late."""
    listen = ledger.listen

    def listen_badly(wake: Any) -> None:
        def maybe() -> None:
            kind = dice.randrange(3)
            if kind == 1:
                wake()
                wake()
            elif kind == 2:
                asyncio.get_running_loop().call_later(dice.random() * 2, wake)

        listen(maybe)

    ledger.listen = listen_badly
    return ledger


# One of the processes.


class Caller:
    """Acts as a caller, and writes down every answer with its time."""

    def __init__(self, spec: str, seed: int, log: Path, quiet: Path, on_death: Any) -> None:
        self.random = random.Random(seed)
        self.log = log.open("a", buffering=1, encoding="utf-8")
        self.quiet = quiet
        self.parent = os.getppid()
        self.name = f"{os.getpid()}-{seed}"
        self.d = DurableDispatcher(
            self.agent,
            unreliable(ledger_of(spec), self.random),
            lease=LEASE,
            poll=0.2,
            checkpoint=0.3,
            enter_timeout=2.0,
            on_death=on_death,
        )

    def say(self, **line: Any) -> None:
        self.log.write(json.dumps({"at": time.monotonic_ns(), "pid": os.getpid(), **line}) + "\n")

    async def agent(self, turn: Turn) -> str | None:
        about = {"session": turn.run.session_id, "fence": turn.fence}
        self.say(event="start", **about)
        try:
            for _ in range(self.random.randint(0, 4)):
                turn.write("x")
                await asyncio.sleep(self.random.random() * 0.05)
                if self.random.random() < 0.3:
                    await turn.fold()
            if self.random.random() < 0.1:
                raise RuntimeError("no luck")
            if self.random.random() < 0.003:
                self.say(event="dies")
                os.kill(os.getpid(), signal.SIGKILL)
            return None
        finally:
            self.say(event="stop", **about)

    async def main(self) -> None:
        while True:
            try:
                await self.d._stepper.ready()
                break
            except TurngateError:  # the server is being restarted
                await asyncio.sleep(0.2)
        async with self.d:
            await asyncio.gather(*(self.call(number) for number in range(4)), self.fill_disk())
            while os.getppid() == self.parent:  # noqa: ASYNC110 - a parent's end is not announced
                await asyncio.sleep(1)  # see to what others have left, until killed
            os._exit(1)

    async def fill_disk(self) -> None:
        """Let an SQLite file have no page more, for a moment, now and then."""
        ledger: Any = self.d._ledger
        while isinstance(ledger, SqliteLedger) and not self.quiet.exists():
            await asyncio.sleep(self.random.random() * 8)
            for pages in (1, 2**30):
                try:
                    await ledger._working().do(
                        lambda connection: connection.execute(f"PRAGMA max_page_count = {pages}").fetchall()  # noqa: B023 - awaited here
                    )
                except TurngateError:
                    continue
                if pages == 1:
                    self.say(event="full")
                    await asyncio.sleep(self.random.random())

    async def cancelled(self, session: str, run_id: str) -> None:
        """Call, and be cancelled after this many turns of the loop: at each await there is."""
        calls: list[Callable[[], Any]] = [
            lambda: self.d.submit(session, "p", run_id=run_id, when_busy="queue"),
            lambda: self.d.ask(session, "p", run_id=run_id),
            lambda: self.d.cancel(session),
            lambda: self.d.clear_queue(session),
        ]
        call: asyncio.Task[Any] = asyncio.ensure_future(self.random.choice(calls)())
        for _ in range(self.random.randrange(60)):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait({call})
        self.say(event="call cancelled" if call.cancelled() else "call faster than its cancel")

    async def call(self, number: int) -> None:
        count = 0
        while not self.quiet.exists():
            if os.getppid() != self.parent:
                os._exit(1)  # the judge is gone
            count += 1
            try:
                await self.one_call(f"s{self.random.randrange(SESSIONS)}", f"{self.name}-{number}-{count}")
            except TurngateError as refused:
                self.say(event="refused", why=type(refused).__name__)
            await asyncio.sleep(self.random.random() * 0.08)

    async def one_call(self, session: str, run_id: str) -> None:
        d, dice = self.d, self.random.random()
        way: WhenBusy = self.random.choice(["fold", "fold", "queue", "queue", "queue", "interrupt"])
        if dice < 0.05:
            await self.cancelled(session, run_id)
        elif dice < 0.1:  # a client that hangs up
            with_in = self.random.random() * 0.02
            try:
                async with asyncio.timeout(with_in):
                    await d.submit(session, "p", run_id=run_id, when_busy="queue")
                self.say(event="accepted", run=run_id)
            except TimeoutError:
                pass
        elif dice < 0.55:
            await d.submit(session, "p", run_id=run_id, when_busy=way)
            self.say(event="accepted", run=run_id)
        elif dice < 0.7:
            run = await d.accept(session, "p", run_id=run_id, when_busy=way)
            self.say(event="accepted", run=run_id)
            await asyncio.sleep(self.random.random() * 0.05)
            await d.enter(run)
        elif dice < 0.85:
            covered = await d.cancel(session)
            self.say(event="cancelled", covered=[run.run_id for run in covered.runs])
        elif dice < 0.9:
            await d.clear_queue(session)
        else:
            async with asyncio.timeout(30):
                complete = await d.ask(session, "p", run_id=run_id, when_busy="queue")
            self.say(event="asked", run=run_id, outcome=complete.outcome, text=complete.text)


# The killer.


class _Span(NamedTuple):
    """When a runner ran, in which process, under which fence, and what ended it."""

    start: int
    end: int
    pid: int
    fence: int
    ended: str


class Chaos:
    """Starts the processes, does things to them, and judges what is left."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options = options
        self.folder = folder
        self.random = random.Random(options.seed)
        self.quiet = folder / "quiet"
        self.cluster: Any = None
        self.spec = str(folder / "ledger.db")
        if options.ledger == "postgres":
            from postgres import cluster  # noqa: PLC0415 - only where it is wanted

            self.cluster = cluster()
            self.spec = self.cluster.dsn
        self.processes: list[subprocess.Popen[bytes]] = []
        self.started = 0
        self.done: Counter[str] = Counter()
        self.ended_at: dict[int, int] = {}
        self.frozen: set[int] = set()

    def start(self) -> None:
        self.started += 1
        command = [
            sys.executable,
            __file__,
            "--process",
            str(self.started),
            "--log",
            str(self.folder / "log"),
        ]
        command += ["--quiet", str(self.quiet), "--spec", self.spec, "--on-death", self.options.on_death]
        errors = (self.folder / "errors").open("ab")
        self.processes.append(subprocess.Popen(command, stderr=errors))
        errors.close()

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        # Other processes may act right after the kill, before we learn that it has ended.
        self.ended_at[process.pid] = time.monotonic_ns()
        process.kill()
        process.wait()
        self.processes.remove(process)

    def replace_the_dead(self) -> None:
        for process in [*self.processes]:
            if process.poll() is not None:
                self.done["deaths in a turn"] += 1
                self.ended_at[process.pid] = time.monotonic_ns()
                self.processes.remove(process)
        while len(self.processes) < PROCESSES:
            self.start()

    def harm(self) -> None:
        dice = self.random.random()
        victim = self.random.choice(self.processes)
        if self.cluster is not None and dice < 0.15:
            self.done["stops"] += 1
            self.frozen.add(victim.pid)
            victim.send_signal(signal.SIGSTOP)
            time.sleep(LEASE * (0.3 + 1.2 * self.random.random()))
            victim.send_signal(signal.SIGCONT)
        elif self.cluster is not None and dice < 0.4:
            self.done["connections terminated"] += asyncio.run(self.terminate())
        elif self.cluster is not None and dice < 0.45:
            self.done["times that the disk was full"] += 1
            asyncio.run(self.fill_disk())
        elif self.cluster is not None and dice < 0.48:
            self.done["restarts of the server"] += 1
            self.cluster.stop()
            self.cluster.start()
        elif dice > 0.93:
            self.done["kills of all"] += 1
            for process in [*self.processes]:
                self.kill(process)
        else:
            self.done["kills"] += 1
            self.kill(victim)

    async def terminate(self) -> int:
        ledger = ledger_of(self.spec)
        await ledger.open()
        rows = await ledger._working().fetch(
            "SELECT pg_terminate_backend(pid) FROM (SELECT pid FROM pg_stat_activity "
            "WHERE application_name = 'turngate' AND pid <> pg_backend_pid() "
            "ORDER BY random() LIMIT 3) victims"
        )
        await ledger.close()
        return len(rows)

    async def fill_disk(self) -> None:
        """Have the server refuse to write for a moment."""
        ledger = ledger_of(self.spec)
        await ledger.open()
        await ledger._working().fetch(FULL)
        await ledger._working().fetch(
            "CREATE OR REPLACE TRIGGER disk_full BEFORE INSERT OR UPDATE ON turngate.session "
            "EXECUTE FUNCTION turngate.disk_full()"
        )
        await asyncio.sleep(self.random.random() * 2)
        await ledger._working().fetch("DROP TRIGGER disk_full ON turngate.session")
        await ledger.close()

    def run(self) -> bool:
        try:
            return self.run_on()
        finally:
            for process in [*self.processes]:
                self.kill(process)

    def run_on(self) -> bool:
        until = time.monotonic() + self.options.seconds
        self.replace_the_dead()
        time.sleep(1)
        while time.monotonic() < until:
            time.sleep(self.random.random() * 1.2)
            self.replace_the_dead()
            self.harm()
        self.quiet.touch()
        self.replace_the_dead()
        wrong = asyncio.run(self.judge())
        for process in [*self.processes]:
            self.kill(process)
        told = [json.loads(line) for line in (self.folder / "log").read_text(encoding="utf-8").splitlines()]
        wrong += self.overlaps(told)
        for line in sorted(self.done.items()):
            print(f"{line[1]:7} {line[0]}")
        print("GOOD" if not wrong else f"BAD: {len(wrong)} problems")
        for problem in wrong[:10]:
            print(f"  {problem}")
        return not wrong

    async def judge(self) -> list[str]:
        ledger = ledger_of(self.spec)
        await ledger.open()
        deadline = time.monotonic() + 60
        while await ledger.view(None) and time.monotonic() < deadline:
            await asyncio.sleep(0.3)
            self.replace_the_dead()
        told = [json.loads(line) for line in (self.folder / "log").read_text(encoding="utf-8").splitlines()]
        acknowledged = {line["run"] for line in told if line["event"] in ("accepted", "asked")}
        wrong = await problems(ledger, acknowledged)
        ended = {each.run_id: each for each in await completions(ledger)}
        for line in told:
            if line["event"] == "asked":
                complete = ended[line["run"]]
                if (complete.outcome, complete.text) != (line["outcome"], line["text"]):
                    wrong.append(f"{line['run']} was told {line}, and is {complete}")
            for run_id in line.get("covered", ()):
                if not ended[run_id].cancelled:
                    wrong.append(f"{run_id} was covered, and is not cancelled")
        self.done["runs"] = len(ended)
        self.done["runs acknowledged"] = len(acknowledged)
        self.done.update(f"runs {each.outcome}" for each in ended.values())
        self.done.update(f"calls refused: {line['why']}" for line in told if line["event"] == "refused")
        self.done.update(line["event"].replace("call", "calls") for line in told if "call" in line["event"])
        if full := sum(line["event"] == "full" for line in told):
            self.done["times that the disk was full"] = full
        await ledger.close()
        return wrong

    def overlaps(self, told: list[Line]) -> list[str]:
        """Return the turns that ran at the same time, but for those of processes that were stopped."""
        # One that killed itself was found dead only later.
        self.ended_at |= {line["pid"]: line["at"] for line in told if line["event"] == "dies"}
        began: dict[tuple[int, str, int], int] = {}
        turns: dict[str, list[_Span]] = defaultdict(list)
        for line in told:
            if line["event"] in ("start", "stop"):
                key = line["pid"], line["session"], line["fence"]
                if line["event"] == "start":
                    began[key] = line["at"]
                else:
                    turns[line["session"]].append(
                        _Span(began.pop(key), line["at"], key[0], key[2], "stopped")
                    )
        for (pid, session, fence), at in began.items():
            turns[session].append(_Span(at, self.ended_at[pid], pid, fence, "died"))
        wrong = []
        for session, spans in turns.items():
            lived = sorted(span for span in spans if span.pid not in self.frozen)
            for one, other in pairwise(lived):
                if other.start < one.end:
                    by = (one.end - other.start) / 1e6
                    wrong.append(f"turns of {session} overlap by {by:.1f} ms: {one} and {other}")
        self.done["turns"] = sum(map(len, turns.values()))
        return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--ledger", choices=["sqlite", "postgres"], default="postgres")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--on-death", choices=["fail", "retry"], default="fail")
    parser.add_argument("--process", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--spec", help=argparse.SUPPRESS)
    parser.add_argument("--log", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--quiet", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.process is not None:
        logging.disable(logging.ERROR)
        asyncio.run(
            Caller(options.spec, options.process, options.log, options.quiet, options.on_death).main()
        )
        return 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory(prefix="turngate-chaos-") as folder:
        good = Chaos(options, Path(folder)).run()
        errors = (Path(folder) / "errors").read_text(encoding="utf-8", errors="replace")
        if errors:
            print(errors[-3000:], file=sys.stderr)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
