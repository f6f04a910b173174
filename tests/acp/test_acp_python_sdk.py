"""The unmodified Python SDK of the protocol (`agent-client-protocol`) as the client."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from acp_client import AGENT
from dispatching import in_loop, steps
from surroundings import insist_on_package

pytestmark = pytest.mark.needs


@pytest.fixture(autouse=True)
def _sdk() -> None:
    insist_on_package("acp")


class Editor:
    """What the SDK calls; after a cancel, open questions are answered `cancelled`, as the protocol asks."""

    def __init__(self) -> None:
        self.log: list[tuple[str, ...]] = []
        self.changed = asyncio.Event()
        self.questions: list[asyncio.Future[str | None]] = []
        self.answers = True

    def on_connect(self, _: object) -> None: ...

    def note(self, *entry: str) -> None:
        self.log.append(entry)
        self.changed.set()

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        text = getattr(getattr(update, "content", None), "text", None)
        self.note("update", session_id, update.session_update, text or getattr(update, "status", None) or "")

    async def request_permission(self, session_id: str, tool_call: Any, options: Any, **_: Any) -> Any:
        question: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self.questions.append(question)
        self.note("ask", session_id, tool_call.tool_call_id)
        if self.answers:
            question.set_result("allow")
        chosen = await question
        outcome = {"outcome": "selected", "optionId": chosen} if chosen else {"outcome": "cancelled"}
        return {"outcome": outcome}

    def text(self, session_id: str) -> str:
        return "".join(
            entry[3] for entry in self.log if entry[:3] == ("update", session_id, "agent_message_chunk")
        )

    async def until(self, count: int) -> None:
        while len(self.log) < count:
            self.changed.clear()
            await self.changed.wait()


class Driven:
    """A connection of the SDK to the agent in a process of its own."""

    def __init__(self, connection: Any, editor: Editor, process: asyncio.subprocess.Process) -> None:
        self.connection = connection
        self.editor = editor
        self.process = process

    async def new_session(self) -> str:
        session: str = (await self.connection.new_session(cwd="/", mcp_servers=[])).session_id
        return session

    def prompt(self, session: str, text: str) -> asyncio.Task[str]:
        import acp  # noqa: PLC0415 - it may be missing

        async def ask() -> str:
            try:
                answer = await self.connection.prompt(session_id=session, prompt=[acp.text_block(text)])
                outcome = str(answer.stop_reason)
            except acp.RequestError as refused:
                outcome = str(refused.code)
            self.editor.note("answer", session, text, outcome)
            return outcome

        return asyncio.ensure_future(ask())

    async def cancel(self, session: str) -> None:
        await self.connection.cancel(session_id=session)
        for question in self.editor.questions:
            if not question.done():
                question.set_result(None)


@contextlib.asynccontextmanager
async def driven(*arguments: str) -> AsyncIterator[Driven]:
    import acp  # noqa: PLC0415 - it may be missing
    from acp.schema import ClientCapabilities  # noqa: PLC0415

    editor: Any = Editor()
    command = (sys.executable, "-m", "turngate", "serve", "--acp", f"{AGENT}:agent", *arguments)
    async with acp.spawn_agent_process(editor, *command, transport_kwargs={"stderr": -3}) as (
        connection,
        process,
    ):
        await connection.initialize(protocol_version=1, client_capabilities=ClientCapabilities())
        yield Driven(connection, editor, process)
    assert process.returncode == 0


@pytest.mark.parametrize("text", ["a b c hold", "a tool:t hold", "stubborn", "a open:t until:1 fold hold"])
@in_loop
async def test_cancelled_at_every_step_once_and_twice(text: str) -> None:
    async with driven() as client:
        editor = client.editor
        for step, twice in ((step, twice) for step in range(6) for twice in (False, True)):
            session = await client.new_session()
            editor.answers = step % 2 == 0
            editor.log.clear()
            editor.questions.clear()
            first, second = client.prompt(session, text), client.prompt(session, "b")
            await steps(10)  # both are on their way, or the cancel would come first
            with contextlib.suppress(TimeoutError):  # when it waits for more, it says no more
                async with asyncio.timeout(0.05):
                    await editor.until(step)
            for _ in range(2 if twice else 1):
                await client.cancel(session)
            later = client.prompt(session, "later")
            assert [await first, await second, await later] == ["cancelled", "cancelled", "end_turn"], (
                editor.log
            )
            assert editor.log[-1][0] == "answer"
            assert editor.text(session).endswith("later ")


@in_loop
async def test_errors_limits_and_two_sessions() -> None:
    async with driven() as client:
        one, two = await client.new_session(), await client.new_session()
        first, second = client.prompt(one, "a hold"), client.prompt(two, "b wait:0.1 c")
        await client.editor.until(2)
        await client.cancel(one)
        assert (await first, await second) == ("cancelled", "end_turn")
        assert client.editor.text(two) == "b c "
        assert await client.prompt(one, "fail") == "-32603"
        assert await client.prompt(one, " ") == "-32602"
        assert await client.prompt("unknown", "a") == "-32002"
        assert await client.prompt(one, "stop:refusal") == "refusal"
        assert await client.prompt(one, "plan:x") == "end_turn"
        stdin = client.process.stdin
        assert stdin is not None
        stdin.write(
            b'{"broken\n[]\n\n{"jsonrpc":"2.0","id":77,"method":"nope"}\n{"jsonrpc":"2.0","method":"nope"}\n'
        )
        assert await client.prompt(one, "still here") == "end_turn"
        client.editor.log.clear()
        assert await client.prompt(one, "big:200000") == "end_turn"  # in lines that its reader takes
        assert len(client.editor.text(one)) == 200_000
        assert await client.prompt(one, "y" * 3_000_000) == "end_turn"


@in_loop
async def test_sessions_are_loaded(tmp_path: Path) -> None:
    kept = ("--messages", str(tmp_path / "messages.db"))
    async with driven(*kept) as client:
        session = await client.new_session()
        assert await client.prompt(session, "one") == "end_turn"
    async with driven(*kept) as client:
        await client.connection.load_session(session_id=session, cwd="/", mcp_servers=[])
        assert await client.prompt(session, "two") == "end_turn"
        assert [entry[2:] for entry in client.editor.log] == [
            ("user_message_chunk", "one"),
            ("agent_message_chunk", "one "),
            ("agent_message_chunk", "two "),
            ("two", "end_turn"),
        ]
