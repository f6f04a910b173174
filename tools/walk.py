"""The way of one prompt as data: which functions and files of impl/turngate an `ask` passes through.

    python tools/walk.py [memory] [sqlite] [--list] [--json]

The dispatcher is open and has answered one prompt already, so that nothing is counted that happens once. All
threads are traced. The runner writes a piece of text and returns another. Comprehensions, generator
expressions and lambdas are part of the function that they are written in, on every Python.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
IMPL = ROOT / "impl"
sys.path.insert(0, str(IMPL))

from turngate import Dispatcher, Turn  # noqa: E402 - found only now
from turngate.durable import DurableDispatcher, SqliteLedger  # noqa: E402 - found only now

SETTLE = 0.2
"""Seconds after the answer in which the dispatcher tidies up, traced too."""


class Walk:
    """Counts the calls of functions of the package while it is on."""

    def __init__(self) -> None:
        self._calls: Counter[CodeType] = Counter()
        self._is_on = False
        threading.setprofile(self._hear)  # threads begin before the prompt does
        sys.setprofile(self._hear)

    def _hear(self, frame: FrameType, event: str, _: Any) -> None:
        if self._is_on and event == "call":
            self._calls[frame.f_code] += 1

    def begin(self) -> None:
        self._is_on = True

    def end(self) -> Counter[tuple[str, str]]:
        """Return how often each function was called, by file and name."""
        self._is_on = False
        sys.setprofile(None)
        threading.setprofile(None)
        package = str(IMPL / "turngate") + "/"
        found: Counter[tuple[str, str]] = Counter()
        for code, calls in self._calls.items():
            if code.co_filename.startswith(package) and not code.co_qualname.endswith(">"):
                found[code.co_filename.removeprefix(package), code.co_qualname] += calls
        return found


async def echo(turn: Turn) -> str:
    turn.write("some ")
    return "answer"


async def in_memory() -> Counter[tuple[str, str]]:
    walk = Walk()
    async with Dispatcher(echo) as d:
        await d.ask("session", "the first prompt")
        walk.begin()
        await d.ask("session", "prompt")
        await asyncio.sleep(SETTLE)
        return walk.end()


async def on_sqlite() -> Counter[tuple[str, str]]:
    walk = Walk()
    with tempfile.TemporaryDirectory() as folder:
        async with DurableDispatcher(echo, SqliteLedger(Path(folder) / "ledger.db"), poll=600.0) as d:
            await d.ask("session", "the first prompt")
            await asyncio.sleep(SETTLE)
            walk.begin()
            await d.ask("session", "prompt")
            await asyncio.sleep(SETTLE)
            return walk.end()


WAYS = {"memory": in_memory, "sqlite": on_sqlite}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("ways", nargs="*", choices=[[], *WAYS], help="both, if none is named")
    parser.add_argument("--list", action="store_true", help="name every function, with its calls")
    parser.add_argument("--json", action="store_true", help="print one object")
    options = parser.parse_args()
    walks = {way: asyncio.run(WAYS[way]()) for way in options.ways or WAYS}
    if options.json:
        print(json.dumps({way: as_data(walk) for way, walk in walks.items()}, indent=2))
        return
    for way, walk in walks.items():
        files = Counter(file for file, _ in walk)
        print(f"{way}: {len(walk)} functions in {len(files)} files, {walk.total()} calls")
        if options.list:
            for file, count in files.most_common():
                print(f"  {file}: {count}")
                for function in sorted(name for where, name in walk if where == file):
                    print(f"    {walk[file, function]:4} {function}")
        else:
            for line in wrapped(f"{file} {count}" for file, count in files.most_common()):
                print(f"  {line}")


def as_data(walk: Counter[tuple[str, str]]) -> dict[str, Any]:
    return {
        "functions": len(walk),
        "files": len({file for file, _ in walk}),
        "calls": {f"{file}:{name}": calls for (file, name), calls in sorted(walk.items())},
    }


def wrapped(parts: Iterable[str]) -> list[str]:
    """Put as many parts on a line as have room there."""
    lines = [""]
    for part in parts:
        if len(lines[-1]) + len(part) > 130:
            lines.append("")
        lines[-1] += ", " * bool(lines[-1]) + part
    return lines


if __name__ == "__main__":
    main()
