"""A small ACP agent that asks a model, with one flaw if its name is given: python flawed_agent.py FLAW.

It is apart from the project: standard library alone, and none of our modules. BUSY
says what it does with a prompt behind a busy session: queue (the default),
interrupt, refuse, fold, or join: fold, and have the model answer once more, to all that has joined.
Of several, with commas, each such prompt of a session meets the next; late-refuse and late-interrupt take
their time.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import sys
import uuid
from typing import Any
from urllib.parse import urlsplit

FLAW = sys.argv[1] if len(sys.argv) > 1 else ""
BUSY = os.environ.get("BUSY", "queue").split(",")
LATE = 0.2
TOOL = {
    "type": "function",
    "function": {
        "name": "run_command",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string"}, "why": {"type": "string"}},
            "required": ["command", "why"],
        },
    },
}
Said = dict[str, Any]


class Refused(Exception):
    """The model has refused, or broken off."""


def send(**message: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def update(session: str, kind: str, **data: Any) -> None:
    about = {"sessionId": session, "update": {"sessionUpdate": kind, **data}}
    send(method="session/update", params=about)


def show(session: str, text: str) -> None:
    update(session, "agent_message_chunk", content={"type": "text", "text": text})


class Turn:
    def __init__(self, number: int, session: Session, text: str) -> None:
        self.number = number
        self.session = session
        self.text = text
        self.task: asyncio.Task[None] | None = None
        self.is_cancelled = False
        self.folded: list[Turn] = []
        self.joined: list[Turn] = []
        """Those of the folded ones that the model is asked about."""


class Session:
    def __init__(self, name: str) -> None:
        self.name = name
        self.active: Turn | None = None
        self.queue: list[Turn] = []
        self.history: list[Said] = []
        self.behind = 0
        """How many prompts came while it was busy."""
        self.is_poisoned = False
        self.has_failed = False


sessions: dict[str, Session] = {}
questions: dict[str, asyncio.Future[bool]] = {}
left_open: list[Any] = []
"""Connections that stay open, or the turn that was answered wrongly, once."""


async def model(messages: list[Said], show_text: Any, tool: Said = TOOL) -> Said:
    """Ask the model; return its message."""
    url = urlsplit(os.environ["OPENAI_BASE_URL"])
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    try:
        body = json.dumps({"messages": messages, "tools": [tool], "stream": True}).encode()
        head = f"POST {url.path}/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        status = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in status:
            raise Refused("the model refused")  # noqa: TRY301
        text, calls = "", []
        while line := await reader.readline():
            if not line.startswith(b"data: {"):
                continue
            delta = json.loads(line[6:])["choices"][0]["delta"]
            calls += delta.get("tool_calls", [])
            if piece := delta.get("content"):
                text += piece
                show_text(piece)
        return {"role": "assistant", "content": text} | ({"tool_calls": calls} if calls else {})
    except BaseException:
        if FLAW == "leaves-model-calls-open":
            left_open.append(writer)
        raise
    finally:
        if FLAW != "leaves-model-calls-open":
            writer.close()


async def aside(messages: list[Said]) -> None:
    """Ask the model something that is no part of the turn, with a tool that is none of the turn's."""
    other = {"type": "function", "function": {"name": "decide", "parameters": {}}}
    await model(messages, lambda _: None, other)


async def use_tool(turn: Turn, call: Said, messages: list[Said]) -> str:
    arguments = json.loads(call["function"]["arguments"])
    number = uuid.uuid4().hex
    update(turn.session.name, "tool_call", toolCallId=number, title="run it", status="pending")
    question = questions[number] = asyncio.get_running_loop().create_future()
    if FLAW == "asks-aside":
        await aside([*messages, {"role": "user", "content": "Is that safe?"}])
    options = [{"optionId": "yes", "name": "Yes", "kind": "allow_once"}]
    about = {"sessionId": turn.session.name, "toolCall": {"toolCallId": number}, "options": options}
    send(id=number, method="session/request_permission", params=about)
    try:
        if not await question:
            return "not permitted"
        process = await asyncio.create_subprocess_shell(arguments["command"])
        await process.wait()
        return f"it ended with {process.returncode}"
    finally:
        questions.pop(number, None)
        status = "failed" if turn.is_cancelled else "completed"
        update(turn.session.name, "tool_call_update", toolCallId=number, status=status)


async def work(turn: Turn) -> None:
    session = turn.session
    messages = [*session.history, {"role": "user", "content": turn.text}]
    joined = 0
    while True:
        shown_in = session.name
        if FLAW == "shows-in-another-session" and list(sessions)[1:] and list(sessions)[-1] == shown_in:
            shown_in = list(sessions)[-2]
        said = await model(messages, functools.partial(show, shown_in))
        messages.append(said)
        if not said.get("tool_calls"):
            if joining := turn.joined[joined:]:
                joining = joining if joined else joining[:2]  # all of them, but not at once
                messages += [{"role": "user", "content": each.text} for each in joining]
                joined += len(joining)
                continue
            session.history = messages
            return
        (call,) = said["tool_calls"]
        used = await use_tool(turn, call, messages)
        messages.append({"role": "tool", "tool_call_id": "call_1", "content": used})


async def run(turn: Turn) -> None:
    session = turn.session
    answer: Said = {"result": {"stopReason": "end_turn"}}
    try:
        if session.is_poisoned:
            session.is_poisoned = False
            raise asyncio.CancelledError  # noqa: TRY301
        if FLAW == "stuck-after-failure" and session.has_failed:
            await asyncio.sleep(3600)
        if FLAW == "takes-time-to-begin":
            await asyncio.sleep(0.03)
        await work(turn)
    except asyncio.CancelledError:
        answer = {"result": {"stopReason": "cancelled"}}
    except Exception as error:
        session.has_failed = True
        answer = {"error": {"code": -32603, "message": str(error)}}
    for each in (turn, *turn.folded):
        conclude(each, answer)
    session.active = None
    if session.queue:
        begin(session.queue.pop(0))


def conclude(turn: Turn, answer: Said) -> None:
    was_cancelled = turn.is_cancelled or answer == {"result": {"stopReason": "cancelled"}}
    if was_cancelled and turn.is_cancelled:
        match FLAW:
            case "end-turn-to-a-cancel":
                answer = {"result": {"stopReason": "end_turn"}}
            case "end-turn-to-the-first-cancel" if not left_open:
                left_open.append(turn)
                answer = {"result": {"stopReason": "end_turn"}}
            case "error-to-a-cancel":
                answer = {"error": {"code": -32603, "message": "the operation was aborted"}}
            case "never-answers-a-cancel":
                return
            case "poisons-the-next-prompt":
                turn.session.is_poisoned = True
            case _:
                pass
    if FLAW == "slow" and was_cancelled:
        asyncio.get_running_loop().call_later(0.5, functools.partial(send, id=turn.number, **answer))
        return
    send(id=turn.number, **answer)
    if FLAW == "asks-aside":
        said = [{"role": "user", "content": turn.text}, {"role": "user", "content": "What is to be kept?"}]
        left_open.append(asyncio.get_running_loop().create_task(aside(said)))
    if FLAW == "answers-twice" and was_cancelled:
        send(id=turn.number, **answer)
    if FLAW == "update-after-response":
        show(turn.session.name, "one thing more")
    if FLAW == "fails-its-session-when-cancelled" and was_cancelled:
        turn.session.queue.append(turn)
        turn.session.has_failed = True


def begin(turn: Turn) -> None:
    turn.session.active = turn
    turn.task = asyncio.get_running_loop().create_task(run(turn))


def prompt(number: int, session: Session, text: str) -> None:
    turn = Turn(number, session, text)
    if session.active is None:
        begin(turn)
        return
    if FLAW == "loses-what-waits":
        return
    does = BUSY[session.behind % len(BUSY)]
    session.behind += 1
    later = asyncio.get_running_loop().call_later
    if does in ("refuse", "late-refuse"):
        refused = {"error": {"code": -32600, "message": "the session is busy"}}
        later(LATE * does.startswith("late"), functools.partial(send, id=number, **refused))
    elif does in ("fold", "join"):
        session.active.folded.append(turn)
        if does == "join":
            session.active.joined.append(turn)
    elif FLAW == "newest-first":
        session.queue.insert(0, turn)
    else:
        session.queue.append(turn)
        if does == "interrupt":
            cancel_turn(session.active)
        elif does == "late-interrupt":
            later(LATE, functools.partial(cancel_turn, session.active))


def cancel_turn(turn: Turn) -> None:
    turn.is_cancelled = True
    assert turn.task is not None
    turn.task.cancel()


def cancel(session: Session) -> None:
    if session.active is None:
        session.is_poisoned = FLAW == "remembers-an-idle-cancel"
        return
    if FLAW == "ignores-cancels":
        return
    queue, session.queue = session.queue, []
    for turn in queue:
        turn.is_cancelled = True
    for turn in session.active.folded:
        turn.is_cancelled = True
    if FLAW == "cancel-leaves-the-queue":
        for turn in queue:
            turn.is_cancelled = False
        session.queue = queue
    else:
        for turn in queue:
            conclude(turn, {"result": {"stopReason": "cancelled"}})
    cancel_turn(session.active)
    if FLAW == "cancels-other-sessions":
        for other in sessions.values():
            if other is not session and other.active is not None:
                cancel_turn(other.active)


async def main() -> None:
    reader = asyncio.StreamReader(limit=1 << 24)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    if FLAW == "prints-noise":
        print("hello, I am an agent")  # noqa: T201
    while line := await reader.readline():
        message = json.loads(line)
        params: Said = message.get("params", {})
        match message.get("method"):
            case "initialize":
                send(id=message["id"], result={"protocolVersion": 1, "agentCapabilities": {}})
            case "session/new":
                name = uuid.uuid4().hex
                sessions[name] = Session(name)
                send(id=message["id"], result={"sessionId": name})
            case "session/prompt":
                if FLAW == "dies-at-a-prompt":
                    sys.exit("no more")
                prompt(message["id"], sessions[params["sessionId"]], params["prompt"][0]["text"])
                # Only what waits in the same moment is heard before the turn begins.
                await asyncio.sleep(0)
            case "session/cancel":
                cancel(sessions[params["sessionId"]])
            case None:
                permitted = message["result"]["outcome"]["outcome"] == "selected"
                if (question := questions.get(message["id"])) is not None and not question.done():
                    question.set_result(permitted)
            case _:
                send(id=message["id"], error={"code": -32601, "message": "unknown"})


if __name__ == "__main__":
    asyncio.run(main())
