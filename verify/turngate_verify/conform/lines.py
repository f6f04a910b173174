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
from collections.abc import Collection, Sequence
from typing import IO, Any

from turngate_verify.conform.port import Features, Observed, SubjectFailed, observed
from turngate_verify.conform.programs import Name, Op
from turngate_verify.conform.timing import Timing
from turngate_verify.words import counted

PORT = 1
"""The version of the port that the kit speaks."""

_LONGEST = 1 << 20
_REMEMBERED = 24
_COMPLAINTS = 1 << 16
"""At most this many bytes of standard error are reported, the last ones."""


class Command:
    """Makes subjects that live in a process of their own. It starts the process for the first of them."""

    def __init__(self, *command: str, timeout: float | None = None, timing: Timing | None = None) -> None:
        self.command = command
        self.timing = timing or Timing()
        self.timeout = self.timing.answers if timeout is None else timeout
        self.features = Features()
        self.at_work: list[str] | None = None
        """The lead runs whose runner is at work, according to the last answer; None if it did not say."""
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

    def twin(self) -> Command:
        """Return another command of the same kind, for a process of its own."""
        return Command(*self.command, timeout=self.timeout, timing=self.timing)

    def _start(self) -> None:
        complaints = tempfile.TemporaryFile()  # noqa: SIM115 - closed by stop
        try:
            self._process = subprocess.Popen(  # noqa: S603 - the user asked to run this command
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

    def ask(self, op: str, **about: Any) -> list[Observed]:
        """Have the subject do something, and return what it shows."""
        return self._events(self._answer(op, **about))

    def count(self) -> int:
        """Return how many things the subject says it holds."""
        held = self._answer("residue").get("residue")
        if not isinstance(held, int) or isinstance(held, bool):
            raise self._failed("it answered residue without residue, a number")
        return held

    def _events(self, answer: dict[str, Any]) -> list[Observed]:
        at_work = answer.get("at_work")
        if at_work is not None and (not isinstance(at_work, list) or {*map(type, at_work)} - {str}):
            raise self._failed("it answered with at_work, which is not a list of runs")
        self.at_work = at_work
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
        timeout = max(self.timeout, self.timing.starts) if self._asked == 1 else self.timeout
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
            code = self._process.wait(self.timing.ends)
        except subprocess.TimeoutExpired:
            return "it closed its standard output"
        return f"it died of signal {-code}" if code < 0 else f"it died, with exit code {code}"

    def _failed(self, what: str) -> SubjectFailed:
        return SubjectFailed(what if len(what) < 400 else f"{what[:400]} ...", self.said())

    def said(self) -> list[str]:
        """Return the last lines of the conversation, and all that the process wrote to standard error.

        If it wrote more than 64 KiB, only the last are returned, with the number of bytes left out.
        """
        complaints: list[str] = []
        if self._complaints:
            left_out = max(0, self._complaints.seek(0, os.SEEK_END) - _COMPLAINTS)
            self._complaints.seek(left_out)
            complaints = [f"({counted(left_out, 'byte')} of it left out)"] if left_out else []
            complaints += self._complaints.read().decode(errors="replace").splitlines()
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
        until = time.monotonic() + self.timing.ends
        try:
            # Until the process is waited for, no other process group can get its number.
            while select.select([process.stdout], [], [], max(0.0, until - time.monotonic()))[0]:
                if not os.read(process.stdout.fileno(), 1 << 16) or time.monotonic() > until:
                    break
        finally:  # also after a second Ctrl-C
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

    @property
    def timing(self) -> Timing:
        """How long the kit waits for it."""
        return self._command.timing

    def _ask(self, name: Name, run: str = "", session: str = "", **more: str | None) -> None:
        about = {key: said for key, said in (("session", session), ("run", run)) if said} | more
        self._seen += self._command.ask(name, **about)

    def accept(self, session: str, run: str) -> None:
        """Take a prompt in."""
        self._ask("accept", run, session)

    def interrupt(self, session: str, run: str) -> None:
        """Take a prompt in that cancels what came before it."""
        self._ask("interrupt", run, session)

    def reject(self, session: str, run: str) -> None:
        """Take a prompt in unless its session is busy."""
        self._ask("reject", run, session)

    def enter(self, run: str) -> None:
        """Enter an accepted run."""
        self._ask("enter", run)

    def cancel(self, session: str) -> None:
        """Cancel a session."""
        self._ask("cancel", session=session)

    def cancel_run(self, run: str) -> None:
        """Cancel one run."""
        self._ask("cancel_run", run)

    def clear(self, session: str) -> None:
        """Clear the queue of a session."""
        self._ask("clear", session=session)

    def fold(self, run: str) -> None:
        """Have the runner ask for follow-ups."""
        self._ask("fold", run)

    def finish(self, run: str) -> None:
        """Have the runner return."""
        self._ask("finish", run)

    def fail(self, run: str) -> None:
        """Have the runner fail."""
        self._ask("fail", run)

    def hold(self, session: str) -> None:
        """Hold the waiting runs of a session."""
        self._ask("hold", session=session)

    def resume(self, session: str) -> None:
        """Resume the held runs of a session."""
        self._ask("resume", session=session)

    def hold_run(self, run: str) -> None:
        """Hold one run."""
        self._ask("hold_run", run)

    def resume_run(self, run: str) -> None:
        """Resume one run."""
        self._ask("resume_run", run)

    def stop(self, session: str) -> None:
        """Cover the active turn alone, and hold the waiting runs."""
        self._ask("stop", session=session)

    def move(self, run: str, before: str | None) -> None:
        """Change the position of a waiting run."""
        self._ask("move", run, before=before)

    def edit(self, run: str, prompt: str) -> None:
        """Give a run another prompt."""
        self._ask("edit", run, prompt=prompt)

    def send_now(self, run: str) -> None:
        """Make a queued run the next one now."""
        self._ask("send_now", run)

    def into(self, session: str, run: str, into: str) -> None:
        """Take a prompt in for one turn alone."""
        self._ask("into", run, session, into=into)

    def wait(self) -> None:
        """Let time pass."""
        self._ask("wait")

    def crash(self) -> None:
        """Have the adapter kill what it drives, and open it again."""
        self._ask("crash")

    def residue(self) -> int:
        """Return how many things it says it holds."""
        return self._command.count()

    def burst(self, operations: Sequence[Op]) -> None:
        """Have it call several operations in the same moment, or with short delays in between."""
        ops: list[dict[str, Any]] = [{"op": op.name, **op.arguments} for op in operations]
        for asked, before in zip(ops[1:], operations, strict=False):
            if before.gap > 0:
                asked["after"] = before.gap  # milliseconds
        self._seen += self._command.ask("burst", ops=ops)

    def working(self) -> Collection[str] | None:
        """Return the runs whose runner is at work; None if it does not say."""
        return self._command.at_work

    def observe(self) -> Sequence[Observed]:
        """Return what was shown since the last call; a real-time subject is asked again."""
        if self.features.real_time:
            self._seen += self._command.ask("look")
        seen, self._seen = self._seen, []
        return seen

    def close(self) -> None:
        """Do nothing: the next ``reset`` drops the dispatcher."""
