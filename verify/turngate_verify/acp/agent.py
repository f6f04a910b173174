"""The process of an agent, and a client of it that keeps to the letter of version 1 of the protocol.

Every line is seen as it comes: which response belongs to which request, whether
one is answered twice, and what comes after the last response of a session.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import tempfile
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from turngate_verify.conform.port import SubjectFailed

_LONGEST = 1 << 26
_NOISE = 1_000
"""After this many lines that are no messages, before any message, a program is taken for no agent."""
_LINES = 40
_ENDS = 0.5
_LOOKS = 1.0
_TICKS = 3
"""Hundredths of a second: less than that a program computes that waits for something."""
_GOES_ON = (b"R", b"D", b"T")
"""What a process does that is only slow: it runs, reads from a disk, or was stopped and may go on."""
OF_A_TURN = ("agent_message_chunk", "agent_thought_chunk", "tool_call", "tool_call_update", "plan")
"""The updates that are part of a turn."""
CLIENT = {"name": "turngate conform", "version": "1"}


def _work_of(leader: int) -> tuple[int, bool]:
    """Return the ticks that the processes of a session have computed, and whether one is only slow.

    Only Linux tells.
    """
    ticks, is_running = 0, False
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_bytes().rpartition(b")")[2].split()
        except OSError:  # it has ended
            continue
        if int(fields[3]) == leader:
            ticks += int(fields[11]) + int(fields[12])
            is_running |= fields[0] in _GOES_ON
    return ticks, is_running


class _Pipes(asyncio.subprocess.SubprocessStreamProtocol):
    """The streams of a process, and its end, which a process that it has left behind does not put off."""

    def __init__(self) -> None:
        super().__init__(limit=_LONGEST, loop=asyncio.get_running_loop())
        self.has_ended = asyncio.Event()

    def process_exited(self) -> None:
        """Note the end of the process: others may hold its standard output open."""
        super().process_exited()
        self.has_ended.set()


class Request:
    """A request, and every response to it: there should be one."""

    def __init__(self, method: str) -> None:
        self.method = method
        self.answers: list[dict[str, Any]] = []
        self.is_answered = asyncio.Event()
        self.on_answer: Callable[[dict[str, Any]], None] | None = None
        """Hears of every response, the second one too."""

    @property
    def outcome(self) -> str:
        """The stop reason of a prompt, or what its error says; empty if there is no response."""
        if not self.answers:
            return ""
        return outcome_of(self.answers[0])


class Permission:
    """A question of the agent whether it may use a tool."""

    def __init__(self, number: object, session: str, options: list[dict[str, Any]]) -> None:
        self.number = number
        self.session = session
        self.options = options


class AgentGone(SubjectFailed):
    """The agent has died, or closed its output, or never was one."""


def outcome_of(answer: Mapping[str, Any]) -> str:
    """Return the stop reason that a response gives, or its error in words."""
    result = answer.get("result")
    if isinstance(result, dict) and isinstance(result.get("stopReason"), str):
        return str(result["stopReason"])
    error = answer.get("error")
    if isinstance(error, dict):
        data = error.get("data")
        detail = data.get("details") if isinstance(data, dict) else data
        more = f" ({detail[:200]})" if isinstance(detail, str) else ""
        return f"error {error.get('code')}: {str(error.get('message'))[:200]}{more}"
    return f"a response without stopReason: {json.dumps(answer)[:200]}"


class Agent:
    """An agent on its standard streams. All of it lives on one loop."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], folder: Path) -> None:
        self.command = tuple(command)
        self.folder = folder
        """The working folder of its sessions. That of the process is ours, for paths in the command."""
        self.noise = 0
        self.first_noise = ""
        self.conversation: deque[str] = deque(maxlen=_LINES)
        self.stray: list[str] = []
        """Responses to what was never asked."""
        self.updated: Callable[[str, dict[str, Any]], None] = lambda session, update: None
        self.asked: Callable[[Permission], bool] = lambda permission: False
        """Asked about a permission; if it returns True, it will be answered later."""
        self._environment = environment
        self._requests: dict[int, Request] = {}
        self._process: asyncio.SubprocessTransport | None = None
        self._pipes: _Pipes | None = None
        self._complaints: BinaryIO | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._has_spoken = False
        self._is_gone = asyncio.Event()
        self._why = ""

    async def start(self, seconds: float) -> dict[str, Any]:
        """Start the process and initialize it; return what it can do. Raises OSError or AgentGone."""
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 - closed by stop
        self._process, self._pipes = await asyncio.get_running_loop().subprocess_exec(
            _Pipes,
            *self.command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=self._complaints,
            env=dict(self._environment),
            start_new_session=True,
        )
        self._tasks = [asyncio.ensure_future(each) for each in (self._read(), self._watch())]
        about = {"protocolVersion": 1, "clientCapabilities": {}, "clientInfo": CLIENT}
        answer = await self.request("initialize", about, seconds)
        version = answer.get("protocolVersion")
        if version != 1:
            raise self.failed(f"it does not speak version 1 of ACP: protocolVersion is {version!r}")
        return answer

    async def stop(self) -> None:
        """Close its input, wait for a moment, and kill its whole process group."""
        process, self._process = self._process, None
        for each in self._tasks:
            each.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if process is not None:
            assert self._pipes is not None
            assert self._pipes.stdin is not None
            self._pipes.stdin.close()
            await self._has_ended(_ENDS)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.get_pid(), signal.SIGKILL)
            await self._pipes.has_ended.wait()
            process.close()
        if self._complaints is not None:
            self._complaints.close()
            self._complaints = None

    # Saying.

    def send(self, **message: Any) -> None:
        """Send one message."""
        line = json.dumps({"jsonrpc": "2.0", **message})
        self.conversation.append(f"> {line[:400]}")
        if self._process is None or self._is_gone.is_set():
            raise self.failed(self._why or "it is gone")
        assert self._pipes is not None
        assert self._pipes.stdin is not None
        self._pipes.stdin.write(line.encode() + b"\n")

    def ask(self, method: str, params: dict[str, Any]) -> Request:
        """Send a request."""
        number = len(self._requests) + 1
        request = self._requests[number] = Request(method)
        self.send(id=number, method=method, params=params)
        return request

    async def request(self, method: str, params: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Send a request and return its result; raise AgentGone if there is none."""
        request = self.ask(method, params)
        await self.wait(request.is_answered, seconds)
        if not request.answers:
            if not self._has_spoken and self.noise:
                raise self.failed(self._does_not_speak())
            raise self.failed(f"it hangs: no answer to {method} within {seconds:g} s")
        answer = request.answers[0]
        result = answer.get("result")
        if not isinstance(result, dict):
            got = outcome_of(answer) if "error" in answer else json.dumps(result)[:200]
            raise self.failed(f"it answers {method} with {got}")
        return result

    async def open_session(self, seconds: float) -> str:
        """Open a session and return its id."""
        about = {"cwd": str(self.folder), "mcpServers": []}
        session = (await self.request("session/new", about, seconds)).get("sessionId")
        if not isinstance(session, str):
            raise self.failed("it answers session/new without a sessionId")
        return session

    def prompt(self, session: str, text: str) -> Request:
        """Send a prompt."""
        about = {"sessionId": session, "prompt": [{"type": "text", "text": text}]}
        return self.ask("session/prompt", about)

    def cancel(self, session: str) -> None:
        """Cancel a session."""
        self.send(method="session/cancel", params={"sessionId": session})

    def permit(self, permission: Permission, *, cancelled: bool = False) -> None:
        """Answer a question: allowed if there is such an option, or cancelled."""
        allowing = [each for each in permission.options if str(each.get("kind")).startswith("allow_once")]
        outcome: dict[str, Any] = {"outcome": "cancelled"}
        if allowing and not cancelled:
            outcome = {"outcome": "selected", "optionId": allowing[0].get("optionId")}
        self.send(id=permission.number, result={"outcome": outcome})

    # Hearing.

    async def wait(self, event: asyncio.Event, seconds: float) -> bool:
        """Wait for an event; return whether it came in time. Raises AgentGone if the agent goes meanwhile."""
        waiting = [asyncio.ensure_future(event.wait()), asyncio.ensure_future(self._is_gone.wait())]
        try:
            await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waiting:
                each.cancel()
        if event.is_set():
            return True
        if self._is_gone.is_set():
            raise self.failed(self._why)
        return False

    async def _read(self) -> None:
        assert self._pipes is not None
        assert self._pipes.stdout is not None
        try:
            while line := await self._pipes.stdout.readline():
                self._hear(line)
                if self.noise >= _NOISE and not self._has_spoken:
                    self._gone(self._does_not_speak())
                    return
        except ValueError:
            self._gone("it printed a line of more than 64 MiB")
            return
        self._gone(await self._how_it_ended())

    async def _watch(self) -> None:
        """Note the end of a process that has left its output open to another one."""
        assert self._pipes is not None
        await self._pipes.has_ended.wait()
        await asyncio.sleep(_ENDS)
        if not self._is_gone.is_set():
            self._gone(await self._how_it_ended())

    async def _has_ended(self, seconds: float) -> bool:
        assert self._pipes is not None
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._pipes.has_ended.wait(), seconds)
        return self._pipes.has_ended.is_set()

    def _gone(self, why: str) -> None:
        self._why = why
        self._is_gone.set()

    async def _how_it_ended(self) -> str:
        assert self._process is not None
        if not self._has_spoken and self.noise:
            return self._does_not_speak()
        await self._has_ended(_ENDS)
        if (code := self._process.get_returncode()) is None:
            return "it closed its standard output"
        return f"it died of signal {-code}" if code < 0 else f"it died, with exit code {code}"

    def _does_not_speak(self) -> str:
        return f"it does not speak ACP: it printed {self.first_noise!r}"

    def _hear(self, line: bytes) -> None:
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict) or not message.keys() & {"id", "method"}:
            if line.strip():
                self._note_noise(line)
            return
        self.conversation.append(f"< {line.decode(errors='replace').rstrip()[:400]}")
        if "method" not in message:
            self._answered(message)
        elif "id" in message:
            self._question(message)
        elif message["method"] == "session/update":
            self._update(message.get("params"))

    def _note_noise(self, line: bytes) -> None:
        self.noise += 1
        self.first_noise = self.first_noise or line.decode(errors="replace").strip()[:80]

    def _answered(self, message: dict[str, Any]) -> None:
        self._has_spoken = True
        number = message["id"]
        request = self._requests.get(number) if isinstance(number, int) else None
        if request is None:
            self.stray.append(json.dumps(message)[:200])
            return
        request.answers.append(message)
        if request.on_answer is not None:
            request.on_answer(message)
        request.is_answered.set()

    def _question(self, message: dict[str, Any]) -> None:
        params = message.get("params")
        if message["method"] == "session/request_permission" and isinstance(params, dict):
            options = params.get("options")
            offered = (
                [each for each in options if isinstance(each, dict)] if isinstance(options, list) else []
            )
            permission = Permission(message["id"], str(params.get("sessionId")), offered)
            if not self.asked(permission):
                self.permit(permission)
        elif not self._is_echo(message):
            self.send(id=message["id"], error={"code": -32601, "message": "the client cannot do that"})

    def _is_echo(self, message: dict[str, Any]) -> bool:
        """Tell whether this is our own request, which comes back from a program that is no agent."""
        if message["method"] not in ("initialize", "session/new", "session/prompt"):
            return False
        self._note_noise(json.dumps(message).encode())
        self._gone(self._does_not_speak())
        return True

    async def is_computing(self) -> bool:
        """Look for a second whether its processes compute or read; False where that cannot be seen."""
        if self._process is None:
            return False
        before, _ = _work_of(self._process.get_pid())
        await asyncio.sleep(_LOOKS)
        after, is_running = _work_of(self._process.get_pid())
        return is_running or after - before >= _TICKS

    def check(self) -> None:
        """Raise AgentGone if it is gone."""
        if self._is_gone.is_set():
            raise self.failed(self._why)

    def _update(self, params: object) -> None:
        if not isinstance(params, dict) or not isinstance(update := params.get("update"), dict):
            return
        self.updated(str(params.get("sessionId")), update)

    def failed(self, what: str) -> AgentGone:
        """Return a failure with the last lines of the conversation and of standard error."""
        return AgentGone(what, [*self.conversation, *(f"! {line}" for line in self.complaints())])

    def complaints(self) -> list[str]:
        """Return the last lines of what the process wrote to standard error."""
        if self._complaints is None:
            return []
        size = os.fstat(self._complaints.fileno()).st_size
        said = os.pread(self._complaints.fileno(), 1 << 14, max(0, size - (1 << 14)))
        return said.decode(errors="replace").splitlines()[-_LINES:]
