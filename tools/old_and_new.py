"""What a run costs with an old and a new Turngate, measured in turns, as ratios.

    python tools/old_and_new.py [KIND ...] [--rounds 21] [--old PYTHON] [--new FOLDER] [--postgres DSN]

Each side is a process of its own with its dispatchers open; they take small slices in turns, so that both see
the same machine. A ratio is the median of the ratios of the slices, new by old: below 1, the new one is
cheaper. CPU is that of the process with all its threads; time is what passes, which on a ledger is mostly the
disk. On a machine that others use too, go by the CPU. PostgreSQL is a private cluster that is made for the
occasion, unless there is a DSN. The old one is made by `python tools/differential.py --make-old COMMIT`;
$TURNGATE_OLD names another interpreter.

waves     in memory, 200 sessions with one prompt each at a time
flood     in memory, 20 sessions with 100 prompts each at once
sqlite    on a file, one client; sqlite16: sixteen
postgres  on a server, one client; postgres16: sixteen
http      a POST and a GET that waits, on the ASGI application, in memory
imports   of `turngate`, `turngate.durable`, `turngate.server` and `turngate.client`, the least of the rounds
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
OLD = ROOT / "build" / "differential" / "old" / "venv" / "bin" / "python"
SLICES = {
    "waves": 2_000,
    "flood": 2_000,
    "http": 300,
    "sqlite": 50,
    "sqlite16": 320,
    "postgres": 50,
    "postgres16": 320,
}
"""The runs of one slice."""
MODULES = ("turngate", "turngate.durable", "turngate.server", "turngate.client")


# One side.


class Costs:
    """The dispatchers of one side, opened when they are first needed."""

    def __init__(self, folder: Path, dsn: str) -> None:
        self._folder, self._dsn = folder, dsn
        self._open: dict[str, Any] = {}

    async def _dispatcher(self, kind: str) -> Any:
        if kind not in self._open:
            from turngate import Dispatcher  # noqa: PLC0415 - of this side
            from turngate.durable import DurableDispatcher, PostgresLedger, SqliteLedger  # noqa: PLC0415 - too

            async def echo(turn: Any) -> str:
                await asyncio.sleep(0)
                return "done"

            if kind in {"waves", "flood", "http"}:
                self._open[kind] = Dispatcher(echo)
            else:
                ledger: Any = SqliteLedger(self._folder / f"{kind}.db")
                if kind.startswith("postgres"):
                    ledger = PostgresLedger(self._dsn, schema=f"{kind}_{os.getpid()}")
                self._open[kind] = DurableDispatcher(echo, ledger, poll=600.0)
            await self._open[kind].__aenter__()
        return self._open[kind]

    async def measure(self, kind: str, runs: int) -> tuple[float, float]:
        """Return the microseconds of CPU and of time that a run takes."""
        d = await self._dispatcher(kind)
        call = {"waves": waves, "flood": flood, "http": self._http}.get(kind)
        gc.collect()
        cpu, began = time.process_time(), time.perf_counter()
        if call is not None:
            await call(d, runs)
        else:
            await clients(d, runs, 16 if kind.endswith("16") else 1)
        return (time.process_time() - cpu) / runs * 1e6, (time.perf_counter() - began) / runs * 1e6

    async def _http(self, d: Any, runs: int) -> None:
        from differential_play import request  # noqa: PLC0415 - it imports the turngate of this side
        from turngate.server import asgi_app  # noqa: PLC0415 - of this side

        app = self._open.setdefault("app", asgi_app(d, owns=False))
        for number in range(runs):
            _, _, body = await request(app, "POST", f"/v1/sessions/s{number % 20}/runs", json={"prompt": "p"})
            await request(app, "GET", f"/v1/runs/{json.loads(body)['run_id']}?wait=60")


async def waves(d: Any, runs: int) -> None:
    for _ in range(runs // 200):
        accepted = [await d.accept(f"s{number}", "prompt") for number in range(200)]
        for run in accepted:
            await d.enter(run)
        for run in accepted:
            await run.wait()


async def flood(d: Any, runs: int) -> None:
    accepted = [await d.accept(f"s{number % 20}", "prompt") for number in range(runs)]
    for run in accepted:
        await d.enter(run)
    for run in accepted:
        await run.wait()


async def clients(d: Any, runs: int, count: int) -> None:
    async def client(number: int) -> None:
        for _ in range(runs // count):
            await d.ask(f"s{number}", "prompt")

    await asyncio.gather(*map(client, range(count)))


async def serve(dsn: str) -> None:
    """Measure what the other end asks for, until it is gone."""
    logging.disable()
    with tempfile.TemporaryDirectory() as folder:
        costs = Costs(Path(folder), dsn)
        loop = asyncio.get_running_loop()
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            kind, runs = line.split()
            print(json.dumps(await costs.measure(kind, int(runs))), flush=True)
        os._exit(0)  # nothing needs an orderly close


# Both.


class Side:
    """One of the two, in a process that waits to be asked."""

    def __init__(self, python: str, impl: Path | None, dsn: str) -> None:
        self._python = python
        theirs = {"PYTHONPATH", "PYTHONDONTWRITEBYTECODE"}  # an installed package has its bytecode
        self._environment = {name: value for name, value in os.environ.items() if name not in theirs}
        if impl is not None:
            self._environment["PYTHONPATH"] = str(impl)
        self._process = subprocess.Popen(
            [python, __file__, "--serve", "--postgres", dsn],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=self._environment,
        )

    def measure(self, kind: str, runs: int) -> tuple[float, float]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{kind} {runs}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            sys.exit(f"{self._python} could not measure {kind}")
        cpu, took = json.loads(answer)
        return cpu, took

    def import_time(self, module: str) -> tuple[float, float]:
        """Return the milliseconds of CPU and of time that an import takes in a new process."""
        said = (
            "import time; c, t = time.process_time(), time.perf_counter(); "
            f"import {module}; print(time.process_time() - c, time.perf_counter() - t)"
        )
        command = [self._python, "-P", "-c", said]
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True, check=True)
        cpu, took = done.stdout.split()
        return float(cpu) * 1000, float(took) * 1000

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def ratio(old: list[float], new: list[float]) -> float:
    return statistics.median(b / a for a, b in zip(old, new, strict=True))


Pairs = list[tuple[float, float]]


def in_turns(rounds: int, sides: tuple[Side, Side], method: str, *about: Any) -> tuple[Pairs, Pairs]:
    """Call a method of both sides as often as there are rounds, each side first every other time."""
    found: tuple[Pairs, Pairs] = ([], [])
    for number in range(rounds + 1):
        for which in (0, 1) if number % 2 else (1, 0):
            found[which].append(getattr(sides[which], method)(*about))
    return found[0][1:], found[1][1:]  # the first round warms up


def compare(options: argparse.Namespace) -> None:
    dsn = options.postgres or cluster(options.kinds)
    kinds = [each for each in options.kinds or SLICES if dsn or not each.startswith("postgres")]
    sides = Side(options.old, None, dsn), Side(sys.executable, options.new.resolve(), dsn)
    print(f"{'':24} {'CPU old':>10} {'new':>10} {'ratio':>7} {'time old':>10} {'new':>10} {'ratio':>7}")
    for kind in (each for each in kinds if each in SLICES):
        line = f"{kind:24}"
        old, new = in_turns(options.rounds, sides, "measure", kind, SLICES[kind])
        for which in (0, 1):
            a, b = [each[which] for each in old], [each[which] for each in new]
            line += f" {statistics.median(a):7.0f} µs {statistics.median(b):7.0f} µs {ratio(a, b):7.2f}"
        print(line, flush=True)
    for module in MODULES if not options.kinds or "imports" in options.kinds else ():
        line = f"{f'import {module}':24}"
        old, new = in_turns(options.rounds, sides, "import_time", module)
        for which in (0, 1):
            x, y = min(each[which] for each in old), min(each[which] for each in new)
            line += f" {x:7.1f} ms {y:7.1f} ms {y / x:7.2f}"
        print(line, flush=True)
    for side in sides:
        side.end()


def cluster(kinds: list[str]) -> str:
    """Return the dsn of a PostgreSQL of our own, "" if none is needed or there can be none."""
    if kinds and not any(each.startswith("postgres") for each in kinds):
        return ""
    sys.path.insert(0, str(ROOT / "tests" / "support"))
    try:
        from postgres import Cluster, programs  # noqa: PLC0415 - the tests' own
    except ImportError:
        return ""
    found = programs()
    return "" if found is None else Cluster(found, fsync=True).dsn


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kinds", nargs="*", choices=[[], *SLICES, "imports"], help="all, if none is named")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--old", default=os.environ.get("TURNGATE_OLD", str(OLD)), help="its interpreter")
    parser.add_argument("--new", type=Path, default=ROOT / "impl", help="where the new package is")
    parser.add_argument("--postgres", default="", help="a server to use")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve(options.postgres))
    elif not Path(options.old).exists():
        sys.exit(f"{options.old} is not there; make it with tools/differential.py --make-old COMMIT")
    else:
        compare(options)


if __name__ == "__main__":
    main()
