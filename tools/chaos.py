"""Real processes on one ledger, under load, killed and stopped at random; then everything is judged.

    python tools/chaos.py [--seconds 60] [--ledger sqlite|postgres] [--seed 1] [--on-death fail|retry]

Three processes work on a ledger: they run turns, serve HTTP, and make every kind of call themselves. Others
call over HTTP, lose answers and send again, and others read event streams, go away and come back with their
cursors. Of the notifications a third is lost, a third doubled and a third late; purges go on beside all this.

Meanwhile processes are killed with -9 (one, or all at once) and stopped, strangers hold transactions, the
disk is full, and the ledger is restored from a backup; with PostgreSQL connections are terminated, and the
server is restarted. At the end those that live see to what is left, and every life of the ledger is judged
(`tools/chaos_judge.py`).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import multiprocessing
import os
import pickle
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / each) for each in ("impl", "model", "verify", "tests/support", "tools")]

from chaos_calls import SESSIONS, Log, told  # noqa: E402 - found only now
from chaos_clients import ABOUT, Callers, client, look_on  # noqa: E402 - found only now
from chaos_judge import (  # noqa: E402 - found only now
    Line,
    Order,
    Window,
    calls_in,
    judge_life,
    judge_onlooker,
    judge_runners,
    overlaps,
    parts_of,
    read,
)
from chaos_ledger import Life, PostgresStore, SqliteStore, hold, ledger_at  # noqa: E402 - found only now
from chaos_sabotage import SABOTAGES  # noqa: E402 - found only now
from chaos_worker import LEASE, Worker  # noqa: E402 - found only now
from turngate import TurngateError  # noqa: E402 - found only now
from verification_report import here  # noqa: E402 - found only now

WORKERS = 3
PATIENCE = 180.0
"""Seconds after which what should come by itself counts as missing, on however busy a machine."""
LATE = 10.0
"""Seconds for which a server may still have a prompt of a caller that was killed."""
DECK = (
    *["kill"] * 8, "kill all", *["stop"] * 3, *["hold a transaction"] * 2, "back up", "restore",
    "stop a client", "kill a client",
)  # fmt: skip
"""What is done, each once before all is shuffled again."""
POSTGRES_DECK = ("terminate connections", "terminate connections", "fill the disk", "restart the server")


class Chaos:
    """Starts the processes, does things to them, and judges what is left."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options = options
        self.folder = folder
        self.random = random.Random(options.seed)
        self.quiet = folder / "quiet"
        self.store = PostgresStore(folder) if options.ledger == "postgres" else SqliteStore(folder)
        for name in ("servers", "sending"):
            (folder / name).mkdir()
        (folder / "log").touch()
        self.fork = multiprocessing.get_context("fork")
        self.workers: list[Any] = []
        self.clients: dict[str, Any] = {}
        self.holders: list[Any] = []
        self.started = 0
        self.done: Counter[str] = Counter()
        self.ended_at: dict[int, int] = {}
        self.frozen: set[int] = set()
        self.lives: list[Life] = []
        self.windows: list[Window] = []
        self.pids: list[set[int]] = [set()]
        """The processes of each life."""
        self.backup: tuple[float, float] | None = None
        self.deck: list[str] = []
        self.gone: list[tuple[float, int]] = []
        """Until when prompts of a caller that was killed may be on their way, and its process."""
        self.wrong: list[str] = []

    # Processes.

    def spawn(self, target: Callable[..., object], *arguments: Any) -> Any:
        """Run a function in a process of its own: a copy of this one, so that it begins at once."""
        self.started += 1
        process = self.fork.Process(
            target=_in_process, args=(self.folder, self.options.sabotage, target, *arguments)
        )
        process.start()
        return process

    def replace_the_dead(self) -> None:
        """Start what is not running."""
        while self.gone and self.gone[0][0] < time.monotonic():
            (self.folder / "sending" / str(self.gone.pop(0)[1])).unlink(missing_ok=True)
        for process in [*self.workers]:
            if not process.is_alive():
                self.done["deaths by themselves"] += 1
                self.buried(process)
        while len(self.workers) < WORKERS:
            seed = self.options.seed * 1_000_000 + self.started
            self.workers.append(self.spawn(_work, self.folder, self.store.spec, seed, self.options.on_death))
            self.pids[-1].add(self.workers[-1].pid)
        for name, what in (("callers", _call), ("onlookers", _look_on)):
            if name not in self.clients or not self.clients[name].is_alive():
                if self.quiet.exists() and name in self.clients:
                    continue  # they have come to their end
                self.clients[name] = self.spawn(what, self.folder, self.started)

    def kill(self, process: Any) -> None:
        """Kill a process that works on the ledger."""
        # What is seen to by others right after the kill may come before we are told that it has ended.
        self.ended_at[process.pid] = time.monotonic_ns()
        process.kill()
        process.join()
        self.buried(process)

    def buried(self, process: Any) -> None:
        """Forget a process that is dead."""
        self.ended_at.setdefault(process.pid, time.monotonic_ns())
        self.workers.remove(process)
        for folder in ("servers", "sending"):
            (self.folder / folder / str(process.pid)).unlink(missing_ok=True)

    def kill_all(self) -> None:
        """Kill every process that works on the ledger."""
        for process in [*self.workers]:
            self.kill(process)

    def end_holders(self, *, at_once: bool = False) -> None:
        """Wait for strangers that hold transactions; or kill them."""
        for process in self.holders:
            if at_once:
                process.kill()
            process.join()
        self.holders = []

    # Harm.

    def harm(self) -> None:
        """Do the next thing to them."""
        if not self.deck:
            self.deck = [*DECK, *(POSTGRES_DECK if isinstance(self.store, PostgresStore) else ())]
            self.random.shuffle(self.deck)
            first, second = sorted(
                number for number, each in enumerate(self.deck) if each in ("back up", "restore")
            )
            self.deck[first], self.deck[second] = "restore", "back up"  # it is drawn from the end
        what = self.deck.pop()
        if what == "restore" and self.backup is None:
            return
        self.done[what] += 1
        match what:
            case "kill":
                self.kill(self.random.choice(self.workers))
            case "kill all":
                self.kill_all()
            case "stop":
                victim = self.random.choice(self.workers)
                self.frozen.add(victim.pid)
                self.stop(victim)
            case "stop a client":
                self.stop(self.random.choice([*self.clients.values()]))
            case "kill a client":
                name = self.random.choice([*self.clients])
                self.clients[name].kill()
                self.clients[name].join()
                self.gone.append((time.monotonic() + LATE, self.clients[name].pid))
            case "hold a transaction":
                kind = self.random.choice(self.store.KINDS)
                self.holders.append(
                    self.fork.Process(target=hold, args=(self.store, kind, 0.5 + self.random.random() * 3))
                )
                self.holders[-1].start()
            case "back up":
                began = time.monotonic_ns()
                self.store.back_up()
                self.backup = began, time.monotonic_ns()
            case "restore":
                self.restore()
            case _:
                self.harm_server(what)

    def stop(self, victim: Any) -> None:
        """Stop a process for some time."""
        os.kill(victim.pid, signal.SIGSTOP)
        time.sleep(LEASE * (0.3 + 1.2 * self.random.random()))
        os.kill(victim.pid, signal.SIGCONT)

    def harm_server(self, what: str) -> None:
        """Do something to a PostgreSQL server."""
        assert isinstance(self.store, PostgresStore)
        match what:
            case "terminate connections":
                self.done["connections terminated"] += self.store.terminate()
            case "fill the disk":
                self.end_holders()
                self.store.fill_disk(self.random.random() * 2)
            case "restart the server":
                self.end_holders(at_once=True)
                self.store.restart()

    def restore(self) -> None:
        """Stop every process, put the backup in place, and start them again."""
        assert self.backup is not None
        self.end_holders(at_once=True)
        self.replace_the_dead()
        (self.folder / "restoring").touch()
        self.kill_all()
        self.store.settle()
        self.wait_for(
            lambda: all((self.folder / f"away-{each}").exists() for each in range(len(ABOUT))), "onlookers"
        )
        self.end_life()
        self.store.restore()
        self.begin_life()
        (self.folder / "restoring").unlink()
        self.wait_for(lambda: not any(self.folder.glob("away-*")), "onlookers")
        self.backup = None

    def wait_for(self, condition: Callable[[], bool], what: str) -> bool:
        """Wait until it is so; note that it does not come, after a long time."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > deadline:
                self.wrong.append(f"waited {PATIENCE:g} s in vain: {what}")
                for process in self.workers:
                    if process.is_alive():
                        os.kill(process.pid, signal.SIGUSR1)  # print where they wait
                time.sleep(1)
                return False
            self.replace_clients()
            time.sleep(0.05)
        return True

    def replace_clients(self) -> None:
        """Start clients that died."""
        if not self.quiet.exists() and not self.clients["onlookers"].is_alive():
            self.clients["onlookers"] = self.spawn(_look_on, self.folder, self.started)

    def begin_life(self) -> None:
        """Begin with the ledger as it is now."""
        self.windows.append(Window(time.monotonic_ns()))
        if len(self.windows) > 1:
            self.pids.append(set())
        self.replace_the_dead()

    def end_life(self) -> None:
        """Keep all that the ledger knows; every process is dead, or has nothing more to do."""
        self.lives.append(self.store.life())
        backup = self.backup or (0.0, 0.0)
        self.windows[-1] = Window(self.windows[-1].began, time.monotonic_ns(), *backup)

    # The run.

    def run(self) -> bool:
        """Do it all; return whether it was good."""
        try:
            self.open_ledger()
            self.begin_life()
            until = time.monotonic() + self.options.seconds
            time.sleep(1)
            while time.monotonic() < until:
                time.sleep(self.random.random() * 0.8)
                self.replace_the_dead()
                self.harm()
            self.come_to_rest()
        finally:
            self.end_holders(at_once=True)
            for process in [*self.workers, *self.clients.values()]:
                process.kill()
                process.join()
        if self.options.keep:
            (self.folder / "lives").write_bytes(pickle.dumps((self.lives, self.windows, self.pids)))
        asyncio.run(self.judge())
        return not self.wrong

    def open_ledger(self) -> None:
        """Make the ledger, and what keeps what is purged."""

        async def open_it() -> None:
            ledger = ledger_at(self.store.spec)
            await ledger.open()
            await ledger.close()

        asyncio.run(open_it())
        self.store.keep_what_is_purged()

    def come_to_rest(self) -> None:
        """Have callers stop, resume what is held, and wait until everything has come to its end."""
        self.end_holders()
        self.replace_the_dead()
        self.quiet.touch()
        self.clients["callers"].join(PATIENCE)
        asyncio.run(self.resume_all())
        (self.folder / "settled").touch()
        said = self.folder / "log"
        if self.wait_for(lambda: not self.clients["onlookers"].is_alive(), "onlookers at their end"):
            living = [process.pid for process in self.workers]

            def nothing_left() -> bool:
                told = read(said)
                return set(living) <= {line["pid"] for line in told if line["event"] == "nothing left"}

            if not self.wait_for(nothing_left, "nothing left in memory (NO_RESIDUE)"):
                self.wrong += [file.read_text() for file in self.folder.glob("left-*")]
        now = time.monotonic_ns()
        self.ended_at |= {process.pid: now for process in self.workers}
        self.end_life()

    async def resume_all(self) -> None:
        """Resume until nothing is in flight; then send last prompts, which every onlooker waits for."""
        deadline = time.monotonic() + PATIENCE
        log = Log(self.folder / "log")
        async with client(self.folder, self.random) as http:
            number = 0
            while time.monotonic() < deadline:
                self.replace_the_dead()
                with contextlib.suppress(TurngateError):
                    found = await http.sessions()
                    if not found:
                        break
                    for view in found:
                        with log.call("resume", about=view.session_id) as answer:
                            answer.update(told(await http.resume(view.session_id)))
                await asyncio.sleep(0.3)
            while self.clients["onlookers"].is_alive() and time.monotonic() < deadline:
                number += 1
                for session in range(SESSIONS):
                    with contextlib.suppress(TurngateError):
                        await http.ask(f"s{session}", "last", run_id=f"last-{number}-s{session}")
                self.replace_the_dead()
                await asyncio.sleep(1)

    # The judgement.

    async def judge(self) -> None:
        """Judge every life, and what was seen of it."""
        log = read(self.folder / "log")
        calls = calls_in(log)
        orders = [Order(life) for life in self.lives]
        for number, (life, parts) in enumerate(zip(self.lives, parts_of(calls, self.windows), strict=True)):
            is_last = number + 1 == len(self.lives)
            found = await judge_life(life, parts, is_last=is_last)
            found += judge_runners(life, log, frozenset(self.pids[number]))
            self.wrong += [f"life {number + 1} of {len(self.lives)}: {each}" for each in found]
        frozen = self.frozen if isinstance(self.store, PostgresStore) else set[int]()  # a lock has no lease
        turns, found = overlaps(log, self.ended_at, frozenset(frozen))
        self.wrong += found
        seen: Counter[str] = Counter()
        for number, about in enumerate(ABOUT):
            path = self.folder / f"onlooker-{number}"
            judged = judge_onlooker(read(path) if path.exists() else [], about, orders)
            self.wrong += [f"onlooker {number} of {about or 'all sessions'}: {each}" for each in judged.wrong]
            seen += judged.counts
        self.count(log, turns, seen)
        if not self.done["runs"] or not seen["RunCompletes heard"]:
            self.wrong.append("nothing has happened: the machine is too busy")

    def count(self, log: list[Line], turns: int, seen: Counter[str]) -> None:
        """Count what has happened."""
        done = self.done
        done["lives of the ledger"] = len(self.lives)
        done["turns"] = turns
        done.update({f"onlookers: {name}": number for name, number in seen.items()})
        last = self.lives[-1]
        done["runs"] = len({run for life in self.lives for run in life.runs})
        done["runs purged"] = sum(each.purged_at is not None for each in last.completed)
        done.update(f"runs {each.complete.outcome}" for each in last.completed)
        for line in log:
            match line["event"]:
                case "call":
                    done[f"calls: {line['op']}"] += 1
                case "answered" | "refused" | "unknown":
                    done[f"calls {line['event']}"] += 1
                case "full":
                    done["times that the disk was full"] += 1
                case "purged" if line["runs"]:
                    done["purges"] += 1
                case "nothing left":
                    done["survivors with nothing left in memory"] += 1


def _in_process(folder: Path, sabotage: str | None, target: Callable[..., object], *arguments: Any) -> None:
    """Begin in a process of its own."""
    with (folder / "errors").open("ab") as errors:
        os.dup2(errors.fileno(), 2)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.disable(logging.ERROR)
    if sabotage is not None:
        SABOTAGES[sabotage].apply()
    target(*arguments)


def _work(folder: Path, spec: str, seed: int, on_death: str) -> None:
    async def work() -> None:
        await Worker(folder, spec, seed, on_death).main()

    asyncio.run(work())


def _call(folder: Path, seed: int) -> None:
    asyncio.run(Callers(folder, seed).main())


def _look_on(folder: Path, seed: int) -> None:
    asyncio.run(look_on(folder, seed))


def main() -> int:
    """Run it, print what has happened, and return 1 if something is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--ledger", choices=["sqlite", "postgres"], default="postgres")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--on-death", choices=["fail", "retry"], default="fail")
    parser.add_argument(
        "--sabotage", choices=sorted(SABOTAGES), help="put something wrong in that must be found"
    )
    parser.add_argument("--json", type=Path, help="write the figures to this file, too")
    parser.add_argument("--keep", action="store_true", help="keep the folder with the logs")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    folder = Path(tempfile.mkdtemp(prefix="turngate-chaos-"))
    begun = {} if options.json is None else here()
    try:
        chaos = Chaos(options, folder)
        good = chaos.run()
        errors = folder / "errors"
        if errors.exists() and (said := errors.read_text(encoding="utf-8", errors="replace")):
            print(said[-3000:], file=sys.stderr)
    finally:
        if options.keep:
            print(f"the logs are in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    for name, number in sorted(chaos.done.items()):
        print(f"{number:7,} {name}")
    print("GOOD" if good else f"BAD: {len(chaos.wrong)} problems")
    for problem in chaos.wrong[:10]:
        print(f"  {problem}")
    if options.json is not None:
        figures = {
            **begun,
            "ledger": options.ledger,
            "seconds": options.seconds,
            "wrong": chaos.wrong,
            "done": chaos.done,
        }
        options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
