"""``turngate serve`` in a process of its own."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any


class Process:
    """A server in a process of its own."""

    def __init__(self, *arguments: str, port: int = 0) -> None:
        command = [sys.executable, "-m", "turngate", "serve", "--port", str(port), *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.said = self.process.stdout.readline()
        found = re.search(r"on (http://\S+)/ ", self.said)
        assert found, self.said + (self.process.stderr.read() if self.process.stderr else "")
        self.url = found[1]
        self.port = int(self.url.rpartition(":")[2])

    def call(self, path: str, body: Any = None, method: str | None = None) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.url + path, data, {"Content-Type": "application/json"}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as refused:
            return refused.code, json.load(refused)

    def end(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        self.process.send_signal(number)
        _, said = self.process.communicate(timeout=60)
        return self.process.returncode, said


@contextlib.contextmanager
def process(*arguments: str, port: int = 0) -> Iterator[Process]:
    started = Process(*arguments, port=port)
    try:
        yield started
    finally:
        started.process.kill()
        started.process.communicate()
