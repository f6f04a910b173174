"""A subject in another language: the port as JSON lines over standard input and output.

One process serves every program; ``reset`` makes a fresh dispatcher in it. The
kit asks, the subject answers, one line each. If anything goes wrong, the kit
says so within a bounded time, with the conversation so far. At the end it kills
the whole process group.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shlex
import signal
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from typing import IO, Any

from turngate_verify.conform.port import Features, Observed, SubjectFailed, observed

PORT = 1
"""The version of the port that the kit speaks."""

_STARTS = 10.0
"""Seconds that the first answer may take at the least, for starting takes longer than answering."""
_LONGEST = 1 << 20
_GRACE = 0.5
_REMEMBERED = 24


class Command:
    """Makes subjects that live in a process of their own. It starts the process for the first of them."""

    def __init__(self, *command: str, timeout: float = 10.0) -> None:
        self.command = command
        self.timeout = timeout
        self.features = Features()
        self.conversation: deque[str] = deque(maxlen=_REMEMBERED)
        self._process: subprocess.Popen[bytes] | None = None
        self._complaints: IO[bytes] | None = None
        self._unread = b""
        self._asked = 0

    def __str__(self) -> str:
        return shlex.join(self.command)

    def __call__(self) -> LinesSubject:
        """Return a fresh subject. The one before it must not be used again."""
        if self._process is None:
            self._start()
        self.ask("reset")
        return LinesSubject(self)

    def _start(self) -> None:
        complaints = tempfile.TemporaryFile()  # noqa: SIM115 - closed by stop
        try:
            self._process = subprocess.Popen(  # noqa: S603 - whoever checks a command means to run it
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=complaints,
                start_new_session=True,
            )
        except OSError:
            complaints.close()
            raise
        self._complaints = complaints
        self._asked = 0
        answer = self._answer("hello", port=PORT)
        names = answer.get("features")
        if not isinstance(names, list) or not set(map(str, names)) <= set(Features._fields):
            raise self._failed(f"it says hello without features out of {', '.join(Features._fields)}")
        self.features = Features(**{name: name in names for name in Features._fields})

    def ask(self, op: str, **about: str) -> list[Observed]:
        """Have the subject do something, and return what it shows."""
        answer = self._answer(op, **about)
        events = answer.get("events")
        if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
            raise self._failed("it answered without events, a list of objects")
        try:
            return [observed(event) for event in events]
        except ValueError as wrong:
            raise self._failed(str(wrong)) from None

    def _answer(self, op: str, **about: Any) -> dict[str, Any]:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        self._asked += 1
        asked = json.dumps({"id": self._asked, "op": op, **about})
        self.conversation.append(f"> {asked}")
        try:
            process.stdin.write(asked.encode() + b"\n")
            process.stdin.flush()
        except OSError:
            raise self._failed(self._how_it_ended()) from None
        line = self._line()
        try:
            answer = json.loads(line)
        except (ValueError, RecursionError):
            raise self._failed(f"it answered what is not JSON: {line[:200]!r}") from None
        if not isinstance(answer, dict):
            raise self._failed("it answered JSON that is not an object")
        if answer.get("id") != self._asked:
            raise self._failed(f"it spoke out of turn: the answer should have the id {self._asked}")
        return answer

    def _line(self) -> str:
        """Return the next line, within the time that an answer may take."""
        assert self._process is not None
        assert self._process.stdout is not None
        timeout = max(self.timeout, _STARTS) if self._asked == 1 else self.timeout
        until = time.monotonic() + timeout
        while b"\n" not in self._unread:
            if len(self._unread) > _LONGEST:
                raise self._failed(f"it answered a line of more than {_LONGEST:,} bytes")
            if not self._readable(until - time.monotonic()):
                raise self._failed(f"it hangs: no answer within {timeout:g} s")
            part = os.read(self._process.stdout.fileno(), 1 << 16)
            if not part:
                raise self._failed(self._how_it_ended())
            self._unread += part
        line, _, self._unread = self._unread.partition(b"\n")
        text = line.decode(errors="replace")
        self.conversation.append(f"< {text[:400]}")
        return text

    def _readable(self, seconds: float) -> bool:
        assert self._process is not None
        assert self._process.stdout is not None
        return bool(select.select([self._process.stdout], [], [], max(seconds, 0))[0])

    def _how_it_ended(self) -> str:
        assert self._process is not None
        try:
            code = self._process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            return "it closed its standard output"
        return f"it died of signal {-code}" if code < 0 else f"it died, with exit code {code}"

    def _failed(self, what: str) -> SubjectFailed:
        return SubjectFailed(what if len(what) < 400 else f"{what[:400]} ...", self.said())

    def said(self) -> list[str]:
        """Return the last lines of the conversation, and of what the process wrote to standard error."""
        complaints = []
        if self._complaints:
            size = self._complaints.seek(0, os.SEEK_END)
            self._complaints.seek(max(0, size - 2000))
            complaints = self._complaints.read().decode(errors="replace").splitlines()[-8:]
        return [*self.conversation, *(f"! {line}" for line in complaints)]

    def stop(self) -> None:
        """Close the input of the process, wait for a moment, and kill its whole process group."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        until = time.monotonic() + _GRACE
        try:
            # Until the process is waited for, no other process group can get its number.
            while select.select([process.stdout], [], [], max(0.0, until - time.monotonic()))[0]:
                if not os.read(process.stdout.fileno(), 1 << 16) or time.monotonic() > until:
                    break
        finally:  # also if somebody presses Ctrl-C a second time
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        if self._complaints:
            self._complaints.close()
        self._unread = b""


class LinesSubject:
    """One dispatcher in the process of a command."""

    def __init__(self, command: Command) -> None:
        self.features = command.features
        self._command = command
        self._seen: list[Observed] = []

    @property
    def conversation(self) -> list[str]:
        """The last lines of what the kit and the subject said to each other."""
        return self._command.said()

    def accept(self, session: str, run: str) -> None:
        """Take a prompt in."""
        self._seen += self._command.ask("accept", session=session, run=run)

    def enter(self, run: str) -> None:
        """Enter an accepted run."""
        self._seen += self._command.ask("enter", run=run)

    def cancel(self, session: str) -> None:
        """Cancel a session."""
        self._seen += self._command.ask("cancel", session=session)

    def clear(self, session: str) -> None:
        """Clear the queue of a session."""
        self._seen += self._command.ask("clear", session=session)

    def fold(self, run: str) -> None:
        """Have the runner ask for follow-ups."""
        self._seen += self._command.ask("fold", run=run)

    def finish(self, run: str) -> None:
        """Have the runner return."""
        self._seen += self._command.ask("finish", run=run)

    def fail(self, run: str) -> None:
        """Have the runner fail."""
        self._seen += self._command.ask("fail", run=run)

    def observe(self) -> Sequence[Observed]:
        """Return what was shown since the last call."""
        seen, self._seen = self._seen, []
        return seen

    def close(self) -> None:
        """Do nothing: the next ``reset`` drops the dispatcher."""
