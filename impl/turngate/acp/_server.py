"""An agent of the Agent Client Protocol (version 1), on top of either dispatcher.

Messages are taken one after the other, each when the dispatcher has decided about the one before. So the
order of the lines is the order of the decisions: a cancel covers the prompts before it and none behind it.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from typing import TYPE_CHECKING, Any, Final, NamedTuple, get_args

import turngate
from turngate._errors import DispatcherClosed, EmptyPrompt, QueueFull, SessionBusy, TurngateError
from turngate._log import log_error
from turngate._messages import MemoryMessages
from turngate._prompt import WhenBusy
from turngate.acp._content import as_prompt
from turngate.acp._outbox import Outbox
from turngate.acp._peer import Peer, Prompt, accepting_for
from turngate.acp._wire import Code, RpcError, Wire, is_id, parse, take_stdio

if TYPE_CHECKING:
    from turngate._dispatcher import Dispatcher
    from turngate.durable import DurableDispatcher

VERSION: Final = 1
"""The version of the protocol."""
METHODS: Final = (
    "initialize",
    "session/new",
    "session/load",
    "session/prompt",
    "session/cancel",
    "$/cancel_request",
)
PROMPTS_LIMIT: Final = 4_096
"""Prompts of one client that may wait for their answers."""
PATIENCE: Final = 5.0
"""Seconds that a client may take, when the server ends, to read what is left."""


async def serve(
    dispatcher: Dispatcher | DurableDispatcher,
    *,
    when_busy: WhenBusy = "fold",
    streams: tuple[int, int] | None = None,
) -> None:
    """Be an agent for the client on the standard streams until it is gone; then close the dispatcher.

    Returns when standard input ends, or when nothing reads standard output any more. Cancel it to end sooner,
    say after SIGTERM. However it ends, runs in flight are cancelled and answered; on a ledger, runs without a
    turn in this process are left to other processes or to the next start.

    when_busy  what a prompt does behind a busy session
    streams    file descriptors to read from and to write to, which are closed in the end; by default the
               standard streams, which are taken away from the rest of the process: what it prints goes to
               standard error
    """
    if when_busy not in get_args(WhenBusy):
        raise ValueError(f"when_busy must be one of {', '.join(get_args(WhenBusy))}, not {when_busy!r}")
    if isinstance(dispatcher, type) or not hasattr(dispatcher, "subscribe"):  # before the streams are taken
        given = (
            f"the class {dispatcher.__name__}" if isinstance(dispatcher, type) else type(dispatcher).__name__
        )
        raise TypeError(f"serve takes a Dispatcher or a DurableDispatcher, not {given}")
    wire = await Wire.connect(*(take_stdio() if streams is None else streams))
    try:
        async with dispatcher:
            await AcpServer(dispatcher, wire, when_busy).run()
    finally:
        await wire.close(0)


class _Session(NamedTuple):
    cwd: str
    mcp_servers: list[Any]


class AcpServer:
    """Serves one client."""

    def __init__(self, dispatcher: Dispatcher | DurableDispatcher, wire: Wire, when_busy: WhenBusy) -> None:
        self._dispatcher = dispatcher
        self._wire = wire
        self._when_busy: WhenBusy = when_busy
        self._outbox = Outbox(wire)
        self._sessions: dict[str, _Session] = {}
        self._capabilities: dict[str, Any] = {}

    async def run(self) -> None:
        """Serve until the client has disconnected, and close the dispatcher."""
        create = asyncio.get_running_loop().create_task
        events = self._dispatcher.subscribe(moves=True)
        taking = create(self._outbox.take_all(events), name="turngate acp events")
        sending = create(self._outbox.send_all(), name="turngate acp output")
        reading = create(self._read(), name="turngate acp input")
        lost = create(self._wire.until_lost(), name="turngate acp connection")
        tasks = taking, sending, reading, lost
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            try:
                reading.cancel()
                await asyncio.wait([reading])
                self._outbox.questions.end()
                await self._dispatcher.aclose()
                await asyncio.wait([taking])
                sent, _ = await asyncio.wait([sending, lost], timeout=PATIENCE, return_when="FIRST_COMPLETED")
                await self._wire.close(PATIENCE if sent else 0)
            finally:
                for task in tasks:
                    task.cancel()
        for task in (taking, sending, reading):
            wrong = None if not task.done() or task.cancelled() else task.exception()
            if wrong is not None and not isinstance(wrong, ConnectionError):
                raise wrong

    # What comes in.

    async def _read(self) -> None:
        async for line in self._wire.lines():
            await self._take(line)
            await self._wire.drain_if_flooded()
            await asyncio.sleep(0)  # a client that sends faster than this reads must not keep the loop

    async def _take(self, line: bytes) -> None:
        try:
            message = parse(line)
        except RpcError as wrong:
            self._wire.send({"id": wrong.number, "error": wrong.error})
            return
        if "method" not in message:
            self._outbox.questions.take(message)
        elif "id" in message:
            await self._answer(message)
        elif isinstance(params := message.get("params"), dict):
            await self._notice(message["method"], params)

    async def _notice(self, method: object, params: dict[str, Any]) -> None:
        """Take a notification; one that is unknown or wrong is ignored, for it cannot be answered."""
        try:
            if method == "session/cancel" and isinstance(session_id := params.get("sessionId"), str):
                if session_id in self._sessions:
                    await self._dispatcher.cancel(session_id)
            elif method == "$/cancel_request" and "requestId" in params:
                number = params["requestId"]
                prompts = self._outbox.prompts.items()
                for run_id in [each for each, prompt in prompts if _is_same(prompt.number, number)]:
                    await self._dispatcher.cancel_run(run_id)
        except TurngateError as wrong:
            log_error(wrong, "%s failed", method)
        self._outbox.questions.resolve_covered()

    async def _answer(self, message: dict[str, Any]) -> None:
        """Answer a request; a prompt is answered later, unless it is refused."""
        try:
            result = await self._handle(message)
        except RpcError as wrong:
            answer: dict[str, Any] = {"error": wrong.error}
        except Exception as wrong:
            if not isinstance(wrong, TurngateError | ValueError):
                log_error(wrong, "%s failed", message["method"])
            answer = {"error": as_error(wrong)}
        else:
            if result is None:
                return
            answer = {"result": result}
        self._wire.send({"id": message["id"], **answer})

    async def _handle(self, message: dict[str, Any]) -> dict[str, Any] | None:
        method, params = message["method"], message.get("params")
        if method not in METHODS:
            raise RpcError(Code.METHOD_NOT_FOUND, "there is no such method", method=method)
        params = {} if params is None else params
        if not isinstance(params, dict):
            raise RpcError(Code.INVALID_PARAMS, "params must be an object")
        match method:
            case "initialize":
                return self._initialize(params)
            case "session/new":
                session_id = uuid.uuid4().hex
                self._sessions[session_id] = _session(params)
                return {"sessionId": session_id}
            case "session/load":
                await self._load(message["id"], params)
                return None
            case "session/prompt":
                await self._prompt(message["id"], params)
                return None
            case _:  # a notification that came as a request
                if method == "session/cancel":
                    _session_id(params)
                elif "requestId" not in params or not is_id(params["requestId"]):
                    raise RpcError(Code.INVALID_PARAMS, "requestId must be a string or an integer")
                await self._notice(method, params)
                return {}

    def _initialize(self, params: dict[str, Any]) -> dict[str, Any]:
        version, capabilities = params.get("protocolVersion", VERSION), params.get("clientCapabilities")
        if isinstance(version, bool) or not isinstance(version, int):
            raise RpcError(Code.INVALID_PARAMS, "protocolVersion must be an integer")
        if not isinstance(capabilities, dict | None):
            raise RpcError(Code.INVALID_PARAMS, "clientCapabilities must be an object")
        self._capabilities = capabilities or {}
        keeps_messages = not isinstance(self._dispatcher.messages, MemoryMessages)
        return {
            "protocolVersion": VERSION,
            "agentCapabilities": {
                "loadSession": keeps_messages,
                "promptCapabilities": {"image": True, "audio": True, "embeddedContext": True},
            },
            "agentInfo": {"name": "turngate", "title": "Turngate", "version": turngate.__version__},
            "authMethods": [],
        }

    async def _load(self, number: str | int | None, params: dict[str, Any]) -> None:
        """Replay the messages of a session, which goes on from there, after what is shown of it already."""
        session_id, session = _session_id(params), _session(params)
        messages = await self._dispatcher.messages.list(session_id)
        if not messages and session_id not in self._sessions:
            raise RpcError(Code.NOT_FOUND, "there is no such session", sessionId=session_id)
        self._sessions[session_id] = session
        self._outbox.replay(number, session_id, messages)

    async def _prompt(self, number: str | int | None, params: dict[str, Any]) -> None:
        """Submit a prompt under a run id of our own, so that its events are recognised from the first on."""
        session_id, outbox = _session_id(params), self._outbox
        session = self._sessions.get(session_id)
        if session is None:
            raise RpcError(Code.NOT_FOUND, "there is no such session", sessionId=session_id)
        text, attachments = as_prompt(params.get("prompt"))
        if outbox.unanswered >= PROMPTS_LIMIT:
            raise QueueFull(f"{outbox.unanswered} prompts are not answered yet")
        run_id, prompt = f"acp-{uuid.uuid4().hex}", Prompt(number, session_id)
        outbox.prompts[run_id] = prompt
        outbox.unanswered += 1
        client = Peer(outbox.questions, prompt, session.cwd, session.mcp_servers, self._capabilities)
        try:
            with accepting_for(client):
                prompt.run = await self._dispatcher.submit(
                    session_id, text, run_id=run_id, attachments=attachments, when_busy=self._when_busy
                )
        except Exception:
            if outbox.prompts.pop(run_id, None) is not None:  # otherwise its RunComplete answers it
                outbox.unanswered -= 1
                raise
        finally:
            prompt.is_known.set()


def _is_same(one: object, other: object) -> bool:
    """Return whether two request ids are the same: 1 is neither "1" nor 1.0 nor true."""
    return type(one) is type(other) and one == other


def _session_id(params: dict[str, Any]) -> str:
    session_id = params.get("sessionId")
    if not isinstance(session_id, str):
        raise RpcError(Code.INVALID_PARAMS, "sessionId must be a string")
    return session_id


def _session(params: dict[str, Any]) -> _Session:
    cwd, servers = params.get("cwd"), params.get("mcpServers", [])
    if not isinstance(cwd, str) or not os.path.isabs(cwd):
        raise RpcError(Code.INVALID_PARAMS, "cwd must be an absolute path")
    if not isinstance(servers, list) or not all(isinstance(each, dict) for each in servers):
        raise RpcError(Code.INVALID_PARAMS, "mcpServers must be a list of objects")
    return _Session(cwd, servers)


def as_error(wrong: Exception) -> dict[str, Any]:
    """Return what a request that was refused is answered with."""
    match wrong:
        case EmptyPrompt() | ValueError() | TypeError():
            code = Code.INVALID_PARAMS
        case SessionBusy():
            code = Code.INVALID_REQUEST
        case DispatcherClosed():
            code = Code.REQUEST_CANCELLED
        case _:
            code = Code.INTERNAL_ERROR
    message = str(wrong) if isinstance(wrong, TurngateError | ValueError) else "internal error"
    return {"code": code, "message": message, "data": {"type": type(wrong).__name__}}
