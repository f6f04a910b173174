"""Play the same programs on an old and a new Turngate, and compare everything that can be seen of them.

    python tools/differential.py --make-old COMMIT             make the old one: a wheel, and an environment
    python tools/differential.py [KIND ...] [--programs 100] [--seed 1] [--wording]
    python tools/differential.py --replay FILE                 one program that made a difference

Compared are the answers of every operation, events, recorded histories, RunCompletes, messages, turns as
their runners see them, views after every step, answers and event streams of the server, and what a SQLite
ledger holds in the end. The kinds:

memory   the dispatcher in memory
sqlite   one dispatcher, or two, on a ledger
http     the server over a dispatcher in memory, called as an ASGI application
served   the server over a ledger
carried  a ledger that the old one has left behind, as if killed, on which both go on

Each side is an interpreter of its own: the old one of --old (or $TURNGATE_OLD), the new one this, with impl/
of this checkout or of --new. Where threads decide about an order, a program may end in more than one way: it
is played again, and makes a difference only if the two sides have no transcript in common. Such a program is
made smaller, and left in build/differential. The wording of exceptions and problems is not compared without
--wording. Exit code 1 if there was a difference.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "differential"
PLAYER = Path(__file__).with_name("differential_play.py")
AGAIN = 5
"""How often a program is played again on both sides before it counts as a difference."""
Op = dict[str, Any]
KINDS = {
    "memory": ("api", "memory", 2.0),
    "sqlite": ("api", "sqlite", 0.6),
    "http": ("http", "memory", 1.0),
    "served": ("http", "sqlite", 0.4),
    "carried": ("api", "sqlite", 0.3),
}
"""By which way, on what, and how many of the programs asked for."""


# Programs.

COMMANDS = {"finish", "fail", "write", "fold", "emit", "keep", "history", "stubborn", "tidy"}
"""The commands for a runner."""
OF_RUNS = {"enter", "close", "wait", "stream", "callback", "find", "lead", "cancel_run", "cancel_handle"}


class Author:
    """Writes a program by dice."""

    def __init__(self, kind: str, seed: str) -> None:
        self.dice = random.Random(seed)
        self.by, self.on, _ = KINDS[kind]
        self.kind = kind
        self.sessions = ["a", "b", "c d/é"][: self.dice.choice([1, 1, 2, 3])]
        self.runs: list[Op] = []
        self.to_enter: list[Op] = []
        self.in_flight: Counter[str] = Counter()
        """About how many runs each session has: commands to runners go where there are some."""
        self.keys = 0

    def program(self) -> Op:
        options: Op = {}
        if self.dice.random() < 0.2:
            options["turns_limit"] = self.dice.choice([1, 2])
        if self.dice.random() < 0.2:
            options["queue_limit"] = self.dice.choice([1, 2, 3])
        if self.kind == "carried":
            options["on_death"] = self.dice.choice(["fail", "retry"])
        program: Op = {"by": self.by, "on": self.on, "options": options, "sessions": self.sessions}
        if self.kind == "sqlite":
            program["dispatchers"] = self.dice.choice([1, 1, 2])
        if self.dice.random() < 0.15:
            program["finish"] = 0.05
        program["steps"] = [self.step() for _ in range(self.dice.randrange(5, 15))]
        return program

    def step(self) -> list[Op]:
        return [self.op() for _ in range(self.dice.choice([1, 1, 1, 2, 3, 5]))]

    def op(self) -> Op:
        choices = Counter(
            submit=30, accept=8, enter=8, ask=4, close=2, wait=3, stream=6, callback=2, find=3, lead=2,
            subscribe=2, completions=2, cancel=4, cancel_run=6, cancel_handle=1, cancel_all=1, clear_queue=3,
            finish=14, fail=3, write=10, fold=14, emit=2, keep=2, history=3, stubborn=1, tidy=2,
        )  # fmt: skip
        if self.by == "http":
            choices += Counter(get=10, pages=3, events=6)
        what = self.dice.choices([*choices], [*choices.values()])[0]
        session = self.dice.choice(self.sessions)
        if what in COMMANDS and not self.in_flight[session] and self.dice.random() < 0.9:
            what = "submit"
        if what in OF_RUNS and not self.runs:
            what = "submit"
        if what in {"finish", "fail"}:
            self.in_flight[session] -= 1
        elif what in {"cancel", "cancel_all"}:
            self.in_flight[session] = 0
        op: Op = {"do": what, "at": self.dice.randrange(2), "session": session}
        more = getattr(self, what, self.text if what in COMMANDS else self.of_run)
        return op | more()

    def text(self) -> Op:
        return {"text": self.dice.choice(["some text", "", "ünïcode", "x" * 300])}

    def finish(self) -> Op:
        return {"text": self.dice.choice([None, None, "an answer", ""])}

    def fail(self) -> Op:
        return {"text": "it went wrong"}

    def of_run(self) -> Op:
        run = self.dice.choice(self.runs[-6:])
        return {"run": run["run"]}

    def submit(self) -> Op:
        if self.runs and self.dice.random() < 0.08:  # the same again, or something else under the same id
            known = self.dice.choice(self.runs)
            return known | ({"prompt": "another"} if self.dice.random() < 0.3 else {})
        number = len(self.runs)
        new: Op = {
            "run": f"r{number}",
            "run_id": f"id-{number}" if self.kind == "carried" or self.dice.random() < 0.5 else None,
            "prompt": self.dice.choices([f"prompt {number}", " ", f"{number} is long " * 50], [90, 4, 6])[0],
            "when_busy": self.dice.choices(["fold", "queue", "interrupt", "reject"], [8, 4, 1, 1])[0],
            "attached": self.dice.choices([None, "text", "bytes"], [8, 1, 1])[0],
            "hook": self.dice.random() < 0.1,
            "session": self.dice.choice(self.sessions),
        }
        self.runs.append(new)
        self.in_flight[new["session"]] += 1
        return new

    def accept(self) -> Op:
        new = self.submit()
        self.to_enter.append(new)
        return new

    def enter(self) -> Op:
        if self.to_enter and self.dice.random() < 0.9:
            return {"run": self.to_enter.pop(self.dice.randrange(len(self.to_enter)))["run"]}
        return self.of_run()

    def ask(self) -> Op:
        new = self.submit()
        return new | {"run_id": new["run_id"] or f"asked-{new['run']}"}

    def key(self) -> Op:
        """Return a key now and then, at times one that was used before."""
        if self.dice.random() < 0.6:
            return {}
        self.keys += self.dice.random() < 0.6
        return {"key": f"key-{self.keys}"}

    cancel = clear_queue = cancel_all = key

    def cancel_run(self) -> Op:
        known = {"run": "none"} if self.dice.random() < 0.05 else self.of_run()
        return known | {"waiting_only": self.dice.random() < 0.3} | self.key()

    def stream(self) -> Op:
        return self.of_run() | {"start": self.dice.choice([0, 0, 3, 400])}

    def subscribe(self) -> Op:
        return {
            "session": self.dice.choice([None, *self.sessions]),
            "moves": self.dice.random() < 0.5,
        }

    def completions(self) -> Op:
        return {"after": self.dice.randrange(10)}

    def pages(self) -> Op:
        return {"limit": self.dice.choice([1, 2, 100])}

    def events(self) -> Op:
        return {
            "session": self.dice.choice([None, *self.sessions]),
            "after": self.dice.choice([None, None, "bogus", 0, 1, 2, 3]),
        }

    def get(self) -> Op:
        return dict(self.dice.choice(REQUESTS))


def body(data: Any, **headers: str) -> Op:
    text = data if isinstance(data, str) else json.dumps(data)
    return {
        "method": "POST",
        "path": "/v1/sessions/a/runs",
        "more": {"body": text, "headers": {"content-type": "application/json", **headers}},
    }


REQUESTS: list[Op] = [
    {"path": "/v1/sessions"},
    {"path": "/v1/sessions/a"},
    {"path": "/v1/sessions/b"},
    {"path": "/v1/sessions/never"},
    {"path": "/v1/sessions/a/messages"},
    {"path": "/v1/sessions/a/messages?limit=0"},
    {"path": "/v1/sessions/a/messages?limit=x"},
    {"path": "/v1/sessions/a/messages?after=nothing"},
    {"path": "/v1/runs/nothing"},
    {"path": "/v1/runs/id-0?wait=0"},
    {"path": "/v1/runs/id-0?wait=x"},
    {"path": "/v1/runs/id-0?wait=-1"},
    {"path": "/healthz"},
    {"path": "/readyz"},
    {"path": "/metrics"},
    {"path": "/openapi.json"},
    {"path": "/"},
    {"path": "/nowhere"},
    {"path": "/v1/sessions/%ff"},
    {"path": f"/v1/sessions/{'x' * 300}"},
    {"path": "/v1/sessions/.."},
    {"method": "HEAD", "path": "/v1/sessions"},
    {"method": "PUT", "path": "/v1/sessions"},
    {"method": "GET", "path": "/v1/sessions/a/cancel"},
    {"method": "POST", "path": "/v1/runs/nothing/cancel"},
    {"method": "POST", "path": "/v1/runs/id-0/cancel?waiting_only=perhaps"},
    {"method": "POST", "path": "/v1/sessions/a/cancel", "more": {"headers": {"idempotency-key": "k" * 300}}},
    {"method": "DELETE", "path": "/v1/sessions/a/queue", "more": {"headers": {"origin": "http://evil.org"}}},
    {"method": "POST", "path": "/v1/sessions/a/runs", "more": {"body": '{"prompt": "p"}'}},
    body("{"),
    body("[]"),
    body("NaN"),
    body({}),
    body({"prompt": 5}),
    body({"prompt": None}),
    body({"prompt": ""}),
    body({"prompt": "p", "other": 1}),
    body({"prompt": "p", "run_id": 5}),
    body({"prompt": "p", "run_id": ""}),
    body({"prompt": "p", "run_id": "x" * 300}),
    body({"prompt": "p", "when_busy": "never"}),
    body({"prompt": "p", "when_busy": 1}),
    body({"prompt": "p", "attachments": {}}),
    body({"prompt": "p", "attachments": [{}]}),
    body({"prompt": "p", "attachments": [{"name": "a", "mime_type": "b", "base64": "?"}]}),
    body({"prompt": "p", "attachments": [{"name": "a", "mime_type": "b", "text": "t", "base64": "AA=="}]}),
    body({"prompt": "\ud800"}),
    body({"prompt": "p", "run_id": "one"}, **{"idempotency-key": "another"}),
    body({"prompt": "x" * 1_100_000}),
    body({"prompt": "p", "run_id": "kept", "when_busy": "reject"}),
    body({"prompt": "p", "attachments": [{"name": "a", "mime_type": "b", "text": "t"}] * 65}),
]
"""Calls beside the usual ones; most are refused."""


# The two sides.


class Side(NamedTuple):
    """An interpreter, and where it finds the package; None: where it is installed."""

    name: str
    python: str
    impl: Path | None

    def play(self, programs: list[Op]) -> list[Any]:
        """Return the transcripts of programs."""
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        environment.pop("PYTHONPATH", None)
        if self.impl is not None:
            environment["PYTHONPATH"] = str(self.impl)
        lines = "".join(json.dumps([number, each]) + "\n" for number, each in enumerate(programs))
        done = subprocess.run(
            [self.python, "-P", PLAYER],
            input=lines,
            capture_output=True,
            text=True,
            env=environment,
            check=False,
        )
        if done.returncode:
            sys.exit(f"the {self.name} side ended with {done.returncode}:\n{done.stderr[-2000:]}")
        _, *transcripts = map(json.loads, done.stdout.splitlines())
        return [transcript for _, transcript in sorted(transcripts, key=lambda each: int(each[0]))]

    def whereabouts(self) -> str:
        environment = {**os.environ, "PYTHONPATH": str(self.impl or "")}
        told = [self.python, "-P", "-c", "import turngate; print(turngate.__file__)"]
        return subprocess.run(
            told, capture_output=True, text=True, env=environment, check=True
        ).stdout.strip()


class Pair:
    """Both sides, which play at the same time."""

    def __init__(self, old: Side, new: Side, *, wording: bool) -> None:
        self.old, self.new, self.wording = old, new, wording
        self.varied = self.unplayed = 0
        """Programs that were played again, and transcripts that were not whole."""

    def play(self, programs: list[Op]) -> tuple[list[str], list[str]]:
        with ThreadPoolExecutor(2) as pool:
            both = [pool.submit(side.play, programs) for side in (self.old, self.new)]
            old, new = ([self.told(each) for each in side.result()] for side in both)
        return old, new

    def told(self, transcript: Any) -> str:
        return json.dumps(
            transcript if self.wording else without_wording(transcript), indent=1, sort_keys=True
        )

    def differing(self, programs: list[Op], again: int = AGAIN) -> dict[int, tuple[str, str]]:
        """Return what each of these programs ends in, if the two sides have nothing in common."""
        old, new = self.play(programs)
        suspects = {number: ({a}, {b}) for number, (a, b) in enumerate(zip(old, new, strict=True)) if a != b}
        self.varied = len(suspects)
        self.unplayed = sum('"failed": "' in each or "come to rest" in each for each in [*old, *new])
        for _ in range(again):
            if not suspects:
                break
            played = self.play([programs[each] for each in suspects])
            for number, a, b in zip([*suspects], *played, strict=True):
                suspects[number][0].add(a)
                suspects[number][1].add(b)
            suspects = {number: (a, b) for number, (a, b) in suspects.items() if not a & b}
        return {number: (min(a), min(b)) for number, (a, b) in suspects.items()}

    def smaller(self, program: Op) -> Op:
        """Leave out what the difference does not need."""
        for _ in range(20):
            candidates = [*without_one(program)]
            found = self.differing(candidates, again=1) if candidates else {}
            if not found:
                break
            program = candidates[min(found)]
        return program


def without_wording(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_wording(each) for key, each in value.items() if key != "wording"}
    return [without_wording(each) for each in value] if isinstance(value, list) else value


def without_one(program: Op) -> Any:
    """Yield the program without each of its steps, and without each of its operations."""
    steps = program["steps"]
    for number in range(len(steps)):
        yield program | {"steps": steps[:number] + steps[number + 1 :]}
    for number, step in enumerate(steps):
        if len(step) > 1:
            for position in range(len(step)):
                less = step[:position] + step[position + 1 :]
                yield program | {"steps": [*steps[:number], less, *steps[number + 1 :]]}


def carry(pair: Pair, programs: list[Op], folder: Path) -> list[Op]:
    """Have the old side play the first halves; return the second halves, on what it left behind."""
    first, second = [], []
    for number, program in enumerate(programs):
        middle = len(program["steps"]) // 2 + 1
        left = str(folder / f"{number}.db")
        first.append(program | {"steps": program["steps"][:middle], "leave": left})
        known = {op["run"]: op["run_id"] for step in first[-1]["steps"] for op in step if op.get("run_id")}
        second.append(program | {"steps": program["steps"][middle:], "ledger": left, "known": known})
    pair.old.play(first)
    return second


# What is told.


def difference(old: str, new: str) -> str:
    """Return where two transcripts part."""

    def walk(a: Any, b: Any, path: str) -> str:
        if isinstance(a, dict) and isinstance(b, dict):
            for key in sorted(a.keys() | b.keys()):
                if a.get(key) != b.get(key):
                    return walk(a.get(key), b.get(key), f"{path} / {key}")
        if isinstance(a, list) and isinstance(b, list):
            for number, (x, y) in enumerate(zip(a, b, strict=False)):
                if x != y:
                    return walk(x, y, f"{path} / {number}")
            shorter = min(len(a), len(b))
            return f"{path} / {shorter}:\n    old {short(a[shorter:])}\n    new {short(b[shorter:])}"
        return f"{path}:\n    old {short(a)}\n    new {short(b)}"

    return walk(json.loads(old), json.loads(new), "at")


def short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) < 600 else f"{text[:600]}…"


def make_old(commit: str, folder: Path) -> None:
    """Build the wheel of a commit, and an environment that has it."""
    with tempfile.TemporaryDirectory() as parent:
        tree = Path(parent) / "tree"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", tree, commit], cwd=ROOT, check=True)
        try:
            pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
            subprocess.run([*pip, "--wheel-dir", folder, tree], check=True)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=ROOT, check=True)
    (wheel,) = folder.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    pip = [str(folder / "venv" / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, f"{wheel}[server,client,postgres]"], check=True)


def compare(pair: Pair, options: argparse.Namespace) -> int:
    print(f"old: {pair.old.whereabouts()}\nnew: {pair.new.whereabouts()}", flush=True)
    wrong = 0
    for kind in options.kinds or KINDS:
        began = time.monotonic()
        count = max(1, round(options.programs * KINDS[kind][2]))
        programs = [Author(kind, f"{options.seed} {kind} {number}").program() for number in range(count)]
        if options.wording:
            programs = [each | {"wording": True} for each in programs]
        with tempfile.TemporaryDirectory() as folder:
            if kind == "carried":
                programs = carry(pair, programs, Path(folder))
            found = pair.differing(programs)
            took = time.monotonic() - began
            print(
                f"{kind:8} {count:4} programs, {len(found)} with a difference ({pair.varied} played again, "
                f"{pair.unplayed} not to the end), {took:.0f} s",
                flush=True,
            )
            for number, (old, new) in [*found.items()][: options.show]:
                tell(pair, kind, number, programs[number], old, new)
        wrong += len(found)
    return 1 if wrong else 0


def tell(pair: Pair, kind: str, number: int, program: Op, old: str, new: str) -> None:
    """Make a program that makes a difference smaller, leave it, and say what the difference is."""
    if kind != "carried":  # its ledger is gone when it is replayed
        program = pair.smaller(program)
        BUILD.mkdir(parents=True, exist_ok=True)
        left = BUILD / f"{kind}-{number}.json"
        left.write_text(json.dumps(program, indent=1), encoding="utf-8")
        again = pair.differing([program])
        old, new = again.get(0, (old, new))
        print(f"  {left.relative_to(ROOT)}")
    for step in program["steps"]:
        print("  " + "; ".join(" ".join(f"{each}" for each in op.values()) for op in step))
    print(f"  {difference(old, new)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = os.environ.get("TURNGATE_OLD", str(BUILD / "old" / "venv" / "bin" / "python"))
    parser.add_argument("kinds", nargs="*", choices=[[], *KINDS], help="all, if none is named")
    parser.add_argument("--programs", type=int, default=100, help="how many, about (default 100)")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--show", type=int, default=3, help="how many differences to show of a kind")
    parser.add_argument("--old", default=known, help="the interpreter of the old one")
    parser.add_argument("--new", type=Path, default=ROOT / "impl", help="where the new package is")
    parser.add_argument("--wording", action="store_true", help="compare what exceptions and problems say")
    parser.add_argument("--replay", type=Path, help="a program to play again")
    parser.add_argument("--make-old", metavar="COMMIT", help="make the old one, and end")
    options = parser.parse_args()
    if options.make_old:
        make_old(options.make_old, BUILD / "old")
        return
    if not Path(options.old).exists():
        sys.exit(f"{options.old} is not there; make it with --make-old COMMIT, or name it with --old")
    pair = Pair(
        Side("old", options.old, None),
        Side("new", sys.executable, options.new.resolve()),
        wording=options.wording,
    )
    if options.replay:
        found = pair.differing([json.loads(options.replay.read_text(encoding="utf-8"))])
        sys.exit(difference(*found[0]) if found else 0)
    sys.exit(compare(pair, options))


if __name__ == "__main__":
    main()
