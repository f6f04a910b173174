"""A process that sends prompts and cancels over HTTP, and records them: URL, file, seed, sessions."""

from __future__ import annotations

import json
import random
import sys
import threading
import urllib.request
from typing import Any

from turngate_verify.recording import IntervalLog

URL, FILE, SEED, *SESSIONS = sys.argv[1:]
LOG = IntervalLog(open(FILE, "w", encoding="utf-8"))  # noqa: SIM115 - until the process ends


def ask(method: str, path: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        f"{URL}/v1/{path}", data, {"Content-Type": "application/json"}, method=method
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)


@LOG.records("accept", session="session", run="run")
def accept(session: str, run: str, prompt: str = "x") -> None:
    ask("POST", f"sessions/{session}/runs", {"prompt": prompt, "run_id": run, "when_busy": "queue"})


@LOG.records("cancel", session="session")
def cancel(session: str) -> None:
    ask("POST", f"sessions/{session}/cancel")


def wait(run: str) -> None:
    complete = None
    while complete is None:
        complete = ask("GET", f"runs/{run}?wait=30")["complete"]
    LOG.complete(run, cancelled=complete["cancelled"], error=complete["error"])


def main() -> None:
    chance = random.Random(int(SEED))
    waiting = []
    for nth in range(8):
        session, run = chance.choice(SESSIONS), f"{SEED}.{nth}"
        accept(session, run)
        waiting.append(threading.Thread(target=wait, args=(run,)))
        waiting[-1].start()
        if chance.random() < 0.3:
            cancel(chance.choice(SESSIONS))
    for each in waiting:
        each.join()


main()
