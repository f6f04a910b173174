"""Records a peer of the gallery over HTTP from three processes, behind a proxy that delays, and judges it.

Usage: python tools/gallery_history.py

The peer is langgraph-api. One process serves it and records its runner; two send prompts and cancels to the
same sessions and record their calls. Then the proxy swallows every cancel, which must be found. The verdicts
go into the folder of the peers and into GALLERY.md.
"""

from __future__ import annotations

import contextlib
import json
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from delaying_proxy import DelayingProxy
from gallery_agents import GALLERY, whole_page
from gallery_page import told_of_history
from gallery_peers import FOLDER, HISTORY, HISTORY_OF, ROOT, pinned
from turngate_verify.intervals import JudgedHistory, judge_files
from turngate_verify.recording import IntervalLog

ROUNDS = 12
"""In each, both callers send prompts to two new sessions."""
PROMPTS = 6
"""The prompts of one caller in one round."""
CANCEL = "/runs/cancel"

# What a caller does.


def ask(url: str, method: str, path: str, body: Any = None) -> Any:
    """Send one request, and return what the answer says."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url + path, data, headers, method=method)
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.loads(answer.read() or b"null")


class Caller:
    """Sends prompts and cancels, and records them."""

    def __init__(self, url: str, file: str, number: str) -> None:
        self.url, self.number = url, number
        self.log = IntervalLog(open(file, "w", encoding="utf-8"))  # noqa: SIM115 - until the process ends
        self.waiting: list[threading.Thread] = []

    def play(self) -> None:
        """Go through all rounds, as if two people had the same two sessions open."""
        chance = random.Random(int(self.number))
        for nth in range(ROUNDS):
            for prompt in range(PROMPTS):
                thread, run = chance.choice(threads(nth)), f"{self.number}.{nth}.{prompt}"
                self.submit(thread, run, chance.choice([0.01, 0.05, 0.2]))
                if chance.random() < 0.25:
                    self.cancel(chance.choice(threads(nth)))
            for each in self.waiting:
                each.join()

    def submit(self, thread: str, run: str, seconds: float) -> None:
        """Send a prompt, and wait for its end in a thread."""
        asked = {"assistant_id": "agent", "input": {"run": run, "seconds": seconds}}
        with self.log.call("accept", session=thread, run=run):
            made = ask(
                self.url, "POST", f"/threads/{thread}/runs", {**asked, "multitask_strategy": "enqueue"}
            )
        self.waiting.append(threading.Thread(target=self.wait, args=(thread, run, made["run_id"])))
        self.waiting[-1].start()

    def cancel(self, thread: str) -> None:
        """Cancel what is pending or running in a thread."""
        with self.log.call("cancel", session=thread):
            runs = [
                run["run_id"]
                for status in ("pending", "running")
                for run in ask(self.url, "GET", f"/threads/{thread}/runs?status={status}")
            ]
            if runs:
                try:
                    ask(self.url, "POST", CANCEL, {"thread_id": thread, "run_ids": runs})
                except urllib.error.HTTPError as error:
                    if error.code != 404:  # all of them have ended meanwhile
                        raise

    def wait(self, thread: str, run: str, run_id: str) -> None:
        """Ask for the state of a run until it is over."""
        open_at = None
        while True:
            asked_at = time.time()
            status = ask(self.url, "GET", f"/threads/{thread}/runs/{run_id}")["status"]
            if status not in ("pending", "running"):
                break
            open_at = asked_at
            time.sleep(0.02)
        error = None if status in ("success", "interrupted") else str(status)
        self.log.complete(run, cancelled=status == "interrupted", error=error, unknown_at=open_at)


def threads(nth: int) -> list[str]:
    """Return the two sessions of a round."""
    return [str(uuid.UUID(int=nth * 2 + which + 1)) for which in range(2)]


# What is recorded and judged.


@contextlib.contextmanager
def served(file: Path) -> Iterator[str]:
    """Serve the peer in a process of its own; yield its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, str(ROOT / FOLDER / "langgraph_recorded.py"), str(port), str(file)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        url = f"http://127.0.0.1:{port}"
        try:
            while process.poll() is None:
                with contextlib.suppress(OSError):
                    ask(url, "GET", "/ok")
                    break
                time.sleep(0.2)
            else:
                raise SystemExit(f"{HISTORY_OF} did not start; install it with: make .venv-gallery/.ready")
            yield url
        finally:
            process.kill()


def recorded(folder: Path, swallow: str = "") -> list[Path]:
    """Record the peer; return the files of the three processes."""
    files = [folder / f"{name}.jsonl" for name in ("runner", "one", "two")]
    with served(files[0]) as url, DelayingProxy(url, 5, swallow).up() as slow:
        for nth in range(ROUNDS):
            for thread in threads(nth):
                ask(url, "POST", "/threads", {"thread_id": thread})
        callers = [
            subprocess.Popen([sys.executable, __file__, "call", slow, str(file), str(number)])
            for number, file in enumerate(files[1:], 1)
        ]
        ended = [caller.wait() for caller in callers]
        if any(ended):
            raise SystemExit("a caller has failed")
    return files


def judged(files: Sequence[Path]) -> JudgedHistory:
    """Judge what all processes have recorded, as one whole history."""
    texts = [(file.name, file.read_text(encoding="utf-8").splitlines()) for file in files]
    return judge_files([*texts, ("end", ['{"event": "end"}'])])


def kept(files: Sequence[Path]) -> dict[str, Any]:
    """Return what the page says of a recording."""
    result = judged(files)
    lines = "".join(file.read_text(encoding="utf-8") for file in files).splitlines()
    kinds = [json.loads(line) for line in lines]
    return {
        "verdict": result.verdict,
        "events": result.events,
        "runs": result.runs,
        "sessions": ROUNDS * 2,
        "cancels": sum(each["event"] == "cancel" for each in kinds),
        "cancelled": sum(bool(each.get("cancelled")) for each in kinds),
        "undecided": len(result.undecided),
        "breaches": Counter(str(each.broken) for each in result.breaches),
        "cannot_show": len(result.cannot_show),
    }


def main() -> int:
    """Record, judge, and write the page."""
    if sys.argv[1:2] == ["call"]:
        Caller(*sys.argv[2:]).play()
        return 0
    results: dict[str, Any] = {"version": pinned()[HISTORY_OF]}
    for name, swallow in {"recorded": "", "swallowed": CANCEL}.items():
        with tempfile.TemporaryDirectory() as temporary:
            results[name] = kept(recorded(Path(temporary), swallow))
        print(told_of_history(results[name]), flush=True)
    HISTORY.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    GALLERY.write_text(whole_page(), encoding="utf-8")
    print(f"wrote {GALLERY.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
