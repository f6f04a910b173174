"""The Agent Client Protocol, line by line, on both dispatchers."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from acp_agent import agent
from acp_client import ALLOW, REJECT, AcpClient, connected
from dispatching import in_loop
from ledgers import ledgers
from turngate import Attachment, Dispatcher, MemoryMessages, SqliteMessages, Turn, WrongLoop, __version__
from turngate._prompt import WhenBusy
from turngate.acp import peer, serve
from turngate.durable import DurableDispatcher, SqliteLedger

on_both = pytest.mark.parametrize("kind", ["memory", "ledger"])


def dispatcher_of(kind: str, folder: Path) -> Dispatcher | DurableDispatcher:
    if kind == "memory":
        return Dispatcher(agent)
    return DurableDispatcher(agent, SqliteLedger(folder / "ledger.db", synchronous="NORMAL"), poll=0.05)


@contextlib.asynccontextmanager
async def client_of(
    kind: str, folder: Path, when_busy: WhenBusy = "fold"
) -> AsyncIterator[tuple[AcpClient, str]]:
    """Have a client and a session of it."""
    async with connected(dispatcher_of(kind, folder), when_busy) as (client, _):
        await client.initialize()
        yield client, await client.new_session()


def kinds(client: AcpClient, session: str) -> list[str]:
    return [each["sessionUpdate"] for each in client.updates(session)]


def error_of(answer: dict[str, Any]) -> tuple[int, Any]:
    return answer["error"]["code"], answer["error"].get("data")


# The handshake.


@in_loop
async def test_the_version_is_1_whatever_the_client_speaks() -> None:
    async with connected(Dispatcher(agent)) as (client, _):
        for version in (1, 2, 99):
            answer = await client.call("initialize", protocolVersion=version)
            assert answer["result"]["protocolVersion"] == 1
        assert answer["result"]["agentInfo"] == {
            "name": "turngate",
            "title": "Turngate",
            "version": __version__,
        }
        assert answer["result"]["authMethods"] == []


@in_loop
async def test_sessions_can_be_loaded_where_messages_are_kept(tmp_path: Path) -> None:
    async with SqliteMessages(tmp_path / "messages.db") as kept:
        for messages, loads in ((MemoryMessages(), False), (kept, True)):
            async with connected(Dispatcher(agent, messages=messages)) as (client, _):
                assert (await client.initialize())["agentCapabilities"]["loadSession"] is loads
    async with connected(dispatcher_of("ledger", tmp_path)) as (client, _):
        assert (await client.initialize())["agentCapabilities"]["loadSession"] is True


@in_loop
async def test_when_busy_is_checked() -> None:
    with pytest.raises(ValueError, match=r"fold, queue, interrupt, reject.*'wait'"):
        await serve(Dispatcher(agent), when_busy="wait")  # type: ignore[arg-type]


@in_loop
async def test_only_a_dispatcher_can_be_served() -> None:
    for given, said in ((agent, "not function"), (Dispatcher, "not the class"), (None, "not NoneType")):
        with pytest.raises(TypeError, match=said):
            await serve(given)  # type: ignore[arg-type]


# Prompts.


@on_both
@in_loop
async def test_text_then_the_response(kind: str, tmp_path: Path) -> None:
    async with client_of(kind, tmp_path) as (client, session):
        number = client.prompt(session, "one two")
        answer = await client.answer(number)
        assert answer["result"]["stopReason"] == "end_turn"
        assert answer["result"]["_meta"]["turngate"]["runId"].startswith("acp-")
        assert client.text(session) == "one two "
        client.heard.clear()
        assert await client.outcome(client.prompt(session, "answer:returned")) == "end_turn"
        assert client.text(session) == "returned"


@on_both
@in_loop
async def test_what_a_runner_notes_becomes_updates_in_order(kind: str, tmp_path: Path) -> None:
    async with client_of(kind, tmp_path) as (client, session):
        number = client.prompt(session, "a plan:b c open:t")
        assert await client.outcome(number) == "end_turn"
        assert kinds(client, session) == [
            "agent_message_chunk",
            "plan",
            "agent_message_chunk",
            "tool_call",
            "tool_call_update",
        ]
        assert client.updates(session)[1]["entries"][0]["content"] == "b"
        assert client.updates(session)[-1] == {
            "sessionUpdate": "tool_call_update",
            "toolCallId": "t",
            "status": "completed",
        }


@pytest.mark.parametrize("end", ["cancel", "fail"])
@in_loop
async def test_a_tool_call_that_is_left_open_has_failed_with_its_turn(end: str, tmp_path: Path) -> None:
    async with client_of("memory", tmp_path) as (client, session):
        number = client.prompt(session, f"open:t {'hold' if end == 'cancel' else 'fail'}")
        await client.until(lambda said: said.get("method") == "session/update")
        client.cancel(session)
        await client.answer(number)
        assert client.updates(session)[-1]["status"] == "failed"


@in_loop
async def test_the_runner_says_why_it_stops(tmp_path: Path) -> None:
    async with client_of("memory", tmp_path) as (client, session):
        for said, stop in (
            ("refusal", "refusal"),
            ("max_tokens", "max_tokens"),
            ("max_turn_requests", "max_turn_requests"),
            ("cancelled", "end_turn"),
            ("nonsense", "end_turn"),
        ):
            assert await client.outcome(client.prompt(session, f"stop:{said}")) == stop
        number = client.prompt(session, "stop:refusal a hold")
        await client.until(lambda said: said.get("method") == "session/update")
        client.cancel(session)
        assert await client.outcome(number) == "cancelled"


@in_loop
async def test_content_of_every_kind(tmp_path: Path) -> None:
    data = base64.b64encode(b"pixels").decode()
    blocks = [
        {"type": "text", "text": "attached"},
        {"type": "resource_link", "name": "a", "uri": "file:///a"},
        {"type": "image", "mimeType": "image/png", "data": data},
        {"type": "audio", "mimeType": "audio/wav", "data": data},
        {"type": "resource", "resource": {"uri": "file:///b", "text": "words"}},
        {"type": "resource", "resource": {"uri": "file:///c", "mimeType": "x/y", "blob": data}},
    ]
    async with client_of("memory", tmp_path) as (client, session):
        number = client.ask("session/prompt", sessionId=session, prompt=blocks)
        assert await client.outcome(number) == "end_turn"
        attached = [
            Attachment("image", "image/png", b"pixels"),
            Attachment("audio", "audio/wav", b"pixels"),
            Attachment("file:///b", "text/plain", "words"),
            Attachment("file:///c", "x/y", b"pixels"),
        ]
        words = ["[a](file ", "[file ", "[file "]  # the runner takes each word apart at its first colon
        assert client.text(session) == repr(attached) + "".join(words)


@in_loop
async def test_text_is_sent_in_lines_that_every_client_can_read(tmp_path: Path) -> None:
    async with client_of("memory", tmp_path) as (client, session):
        number = client.prompt(session, "big:50000")
        longest = 0
        while not client.responses(number):
            line = await client.reader.readline()
            longest = max(longest, len(line))
            client.reader._buffer[:0] = line  # type: ignore[attr-defined]  # put it back
            await client.hear()
        assert client.text(session) == "\N{GRINNING FACE}" * 50_000
        assert longest < 1 << 16


@on_both
@in_loop
async def test_folded_prompts_are_answered_behind_the_text_of_their_turn(kind: str, tmp_path: Path) -> None:
    async with client_of(kind, tmp_path) as (client, session):
        first = client.prompt(session, "a until:2 fold stop:refusal z")
        others = [client.prompt(session, word) for word in ("b", "c")]
        for number in (first, *others):
            assert await client.outcome(number) == "refusal"
        assert client.text(session) == "a z b c "
        runs = [(await client.answer(number))["result"]["_meta"]["turngate"] for number in (first, *others)]
        assert [each.get("foldedInto") for each in runs] == [None, runs[0]["runId"], runs[0]["runId"]]
        assert all("id" in said for said in client.heard[-3:])


@pytest.mark.parametrize(
    ("when_busy", "first_ends", "second_ends"),
    [
        ("queue", "end_turn", "end_turn"),
        ("interrupt", "cancelled", "end_turn"),
        ("reject", "end_turn", -32600),
    ],
)
@in_loop
async def test_a_prompt_behind_a_busy_session(
    when_busy: WhenBusy, first_ends: str, second_ends: str | int, tmp_path: Path
) -> None:
    async with client_of("memory", tmp_path, when_busy) as (client, session):
        first = client.prompt(session, f"a {'hold' if when_busy == 'interrupt' else 'wait:0.05'} b")
        await client.until(lambda said: said.get("method") == "session/update")
        second = client.prompt(session, "c")
        assert await client.outcome(first) == first_ends
        assert await client.outcome(second) == second_ends


@on_both
@in_loop
async def test_no_update_leaves_its_turn(kind: str, tmp_path: Path) -> None:
    """On the wire, too, what a turn shows comes before its response and after that of the turn before it."""
    async with client_of(kind, tmp_path, "queue") as (client, session):
        for _ in range(20):
            client.heard.clear()
            numbers = [client.prompt(session, " ".join([f"{at}"] * 5)) for at in range(3)]
            for number in numbers:
                assert await client.outcome(number) == "end_turn"
            answered, shown = 0, [""] * 3
            for said in client.heard:
                if "id" in said:
                    answered += 1
                else:
                    shown[answered] += said["params"]["update"]["content"]["text"]
            assert shown == ["0 " * 5, "1 " * 5, "2 " * 5]


@in_loop
async def test_two_sessions_do_not_touch_each_other(tmp_path: Path) -> None:
    async with client_of("memory", tmp_path) as (client, one):
        two = await client.new_session()
        first, second = client.prompt(one, "a hold"), client.prompt(two, "b tool:t c")
        question = await client.question()
        await client.until(lambda said: client.text(one) == "a ")
        client.cancel(one)
        assert await client.outcome(first) == "cancelled"
        client.send(id=question["id"], result=ALLOW)
        assert await client.outcome(second) == "end_turn"
        assert (client.text(one), client.text(two)) == ("a ", "b t=allow c ")


# Cancels.

PROMPTS = ("a b c hold", "a tool:t b hold", "a shielded:t b hold", "stubborn", "a open:t until:1 fold hold")


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("text", PROMPTS)
@on_both
@in_loop
async def test_a_cancel_at_every_step(kind: str, text: str, twice: bool, tmp_path: Path) -> None:
    """None of these prompts ends by itself, so whenever the cancel comes, it decides."""
    async with client_of(kind, tmp_path) as (client, _):
        for step in range(7):
            session = await client.new_session()
            client.heard.clear()
            first, second = client.prompt(session, text), client.prompt(session, "b")
            for _ in range(step):
                with contextlib.suppress(TimeoutError):  # when it waits for more, it says no more
                    async with asyncio.timeout(0.02):
                        await client.hear()
            client.cancel(session)
            if twice:
                client.cancel(session)
            later = client.prompt(session, "later")
            for question in [
                said for said in client.heard if said.get("method") == "session/request_permission"
            ]:
                client.send(id=question["id"], result={"outcome": {"outcome": "cancelled"}})
            outcomes = [await client.outcome(number) for number in (first, second, later)]
            assert outcomes == ["cancelled", "cancelled", "end_turn"], (step, client.heard)
            assert client.text(session).endswith("later ")
            await client.call("nothing")  # whatever is late has come by then
            ends = [client.heard.index(await client.answer(number)) for number in (first, second, later)]
            updates = [at for at, said in enumerate(client.heard) if said.get("method") == "session/update"]
            before_later = client.heard[max(ends[:2]) + 1 : ends[2]]
            assert "later " in "".join(str(said) for said in before_later)
            assert max(updates) < ends[2]
            assert [client.responses(number) for number in (first, second, later)] == [1, 1, 1]


@in_loop
async def test_a_cancel_of_a_quiet_session_poisons_nothing(tmp_path: Path) -> None:
    async with client_of("memory", tmp_path) as (client, session):
        client.cancel(session)
        client.cancel("unknown")
        client.send(method="session/cancel", params={})
        client.send(method="session/cancel")
        assert await client.outcome(client.prompt(session, "a")) == "end_turn"


@on_both
@in_loop
async def test_a_request_is_cancelled_by_its_id_and_no_other(kind: str, tmp_path: Path) -> None:
    async with client_of(kind, tmp_path, "queue") as (client, session):
        blocks = {"sessionId": session, "prompt": [{"type": "text", "text": "a hold"}]}
        client.send(id=1, method="session/prompt", params=blocks)
        await client.until(lambda said: said.get("method") == "session/update")
        for number in ("1", 1.0, True, None, [1]):
            client.send(method="$/cancel_request", params={"requestId": number})
        queued = client.prompt(session, "b")
        client.send(method="$/cancel_request", params={"requestId": queued})
        assert await client.outcome(queued) == "cancelled"
        assert not client.responses(1)
        client.send(method="$/cancel_request", params={"requestId": 1})
        assert await client.outcome(1) == "cancelled"


# Questions to the client.


@on_both
@in_loop
async def test_permissions(kind: str, tmp_path: Path) -> None:
    async with client_of(kind, tmp_path) as (client, session):
        for answer, text in (
            (ALLOW, "t=allow "),
            (REJECT, "t=reject "),
            ({"outcome": {"outcome": "cancelled"}}, "t=None "),
            ({"outcome": {"outcome": "selected", "optionId": "everything"}}, "t=None "),
            ({"outcome": "nonsense"}, "t=None "),
            ("nonsense", "t=None "),
            (None, "t=None "),
        ):
            client.heard.clear()
            number = client.prompt(session, "before tool:t")
            question = await client.question()
            assert question["method"] == "session/request_permission"
            assert question["params"]["sessionId"] == session
            assert question["params"]["toolCall"] == {"toolCallId": "t"}
            assert kinds(client, session) == ["agent_message_chunk", "tool_call"]
            client.send(id=question["id"], result=answer)
            client.send(id=question["id"], result=ALLOW)  # a second answer is one too many
            assert await client.outcome(number) == "end_turn"
            assert client.text(session) == f"before {text}"


@in_loop
async def test_a_permission_is_resolved_once_although_a_cancel_comes(tmp_path: Path) -> None:
    async with client_of("memory", tmp_path) as (client, session):
        for answers_first in (False, True):
            client.heard.clear()
            number = client.prompt(session, "shielded:t hold")
            question = await client.question()
            if answers_first:
                client.send(id=question["id"], result=ALLOW)
            client.cancel(session)
            client.send(id=question["id"], result=REJECT)
            assert await client.outcome(number) == "cancelled"
            text = client.text(session)
            assert text == (
                "" if answers_first and not text else f"t={'allow' if answers_first else None} again=None "
            )
            assert sum("method" in said and "id" in said for said in client.heard) == 1


@on_both
@in_loop
async def test_a_permission_is_not_granted_after_a_cancel_from_elsewhere(kind: str, tmp_path: Path) -> None:
    dispatcher = dispatcher_of(kind, tmp_path)
    async with connected(dispatcher) as (client, _):
        session = await client.new_session()
        number = client.prompt(session, "shielded:t hold")
        await client.question()
        await dispatcher.cancel(session)
        assert await client.outcome(number) == "cancelled"
        assert client.text(session) == "t=None again=None "


@in_loop
async def test_a_permission_that_outlives_its_turn_is_not_granted() -> None:
    asking: list[asyncio.Task[str | None]] = []

    async def hasty(turn: Turn) -> None:
        asking.append(asyncio.ensure_future(peer().permission({"toolCallId": "t"})))
        while not turn.waiting():
            await asyncio.sleep(0)

    async with connected(Dispatcher(hasty)) as (client, _):
        session = await client.new_session()
        first = client.prompt(session, "a")
        await client.question()
        client.prompt(session, "b")
        assert await client.outcome(first) == "end_turn"
        assert await asking[0] is None


@in_loop
async def test_requests_of_a_runner(tmp_path: Path) -> None:
    async with client_of("memory", tmp_path) as (client, session):
        number = client.prompt(session, "read:/a read:/b")
        question = await client.question()
        assert question["method"] == "fs/read_text_file"
        assert question["params"] == {"sessionId": session, "path": "/a"}
        client.send(id=question["id"], result={"content": "words"})
        client.heard.clear()
        question = await client.question()
        client.send(id=question["id"], error={"code": -32601, "message": "cannot read"})
        assert await client.outcome(number) == "end_turn"
        said = "the client has answered fs/read_text_file with an error: cannot read"
        assert client.text(session) == f"{{'content': 'words'}}-32601: {said}"


@in_loop
async def test_what_json_cannot_say_is_refused_where_it_is_asked() -> None:
    """It is the runner's mistake, and nothing of it reaches the connection."""

    async def careless(turn: Turn) -> str:
        wrong: dict[str, Any] = {"path": Path("/a"), "nan": float("nan"), "set": {1}}
        try:
            await peer().request("x/y", value=wrong[turn.run.prompt])
        except TypeError as error:
            return str(error)
        return "asked"

    async with connected(Dispatcher(careless)) as (client, _):
        session = await client.new_session()
        for prompt in ("path", "nan", "set"):
            client.heard.clear()
            assert await client.outcome(client.prompt(session, prompt)) == "end_turn"
            assert "JSON" in client.text(session)


@in_loop
async def test_any_parameter_can_be_named() -> None:
    async def asks(_: Turn) -> str:
        return str(await peer().request("x/y", method="z", sessionId="another"))

    async with connected(Dispatcher(asks)) as (client, _):
        session = await client.new_session()
        number = client.prompt(session, "a")
        question = await client.question()
        assert question["params"] == {"method": "z", "sessionId": "another"}
        client.send(id=question["id"], result=1)
        assert await client.outcome(number) == "end_turn"


@in_loop
async def test_the_client_is_asked_on_the_loop_of_the_server_only() -> None:
    """An answer could not wake what waits on another loop."""

    async def threaded(_: Turn) -> str:
        client = peer()
        try:
            return str(await asyncio.to_thread(lambda: asyncio.run(client.permission({"toolCallId": "t"}))))
        except WrongLoop as wrong:
            return str(wrong)

    async with connected(Dispatcher(threaded)) as (client, _):
        session = await client.new_session()
        assert await client.outcome(client.prompt(session, "a")) == "end_turn"
        assert "run_coroutine_threadsafe" in client.text(session)


@in_loop
async def test_what_a_runner_knows_of_its_client(tmp_path: Path) -> None:
    async with connected(Dispatcher(agent)) as (client, _):
        await client.call("initialize", protocolVersion=1, clientCapabilities={"fs": {}})
        session = (await client.call("session/new", cwd="/tmp", mcpServers=[{"name": "m"}]))["result"][
            "sessionId"
        ]
        await client.answer(client.prompt(session, "where"))
        assert client.text(session) == "/tmp [{'name': 'm'}] {'fs': {}}"


@in_loop
async def test_there_is_no_client_where_none_has_asked() -> None:
    async def curious(_: Turn) -> str:
        return peer().cwd

    async with Dispatcher(curious) as d:
        complete = await d.ask("s", "x")
        assert complete.error is not None
        assert "LookupError" in complete.error


# What is refused.


@in_loop
async def test_lines_that_are_no_messages(tmp_path: Path) -> None:
    async with client_of("memory", tmp_path) as (client, session):
        for line, code in (
            (b'{"broken', -32700),
            (b"\xff\xfe", -32700),
            (b'{"id": NaN}', -32700),
            (b"[" * 100_000, -32700),
            (b"[]", -32600),
            (b"1", -32600),
            (b'{"id": true, "method": "initialize"}', -32600),
            (b'{"id": 1.5, "method": "initialize"}', -32600),
            (b'{"id": {}, "method": "initialize"}', -32600),
            (b"{}", -32600),
            (b'{"jsonrpc": "2.0", "params": {}}', -32600),
            (b'[{"id": 1, "method": "initialize"}]', -32600),
        ):
            client.heard.clear()
            client.line(line)
            answer = await client.hear()
            assert (answer["id"], answer["error"]["code"]) == (None, code), line
        for line in (b'{"id": 1}', b'{"id": 1, "method": 2}', b'{"id": 1, "method": null}'):
            client.heard.clear()
            client.line(line)
            answer = await client.hear()  # the runner that waits for this id learns of it
            assert (answer["id"], answer["error"]["code"]) == (1, -32600), line
        client.line(b"")
        client.line(b"   ")
        assert await client.outcome(client.prompt(session, "a")) == "end_turn"


@in_loop
async def test_requests_that_cannot_be_met(tmp_path: Path) -> None:
    text = [{"type": "text", "text": "a"}]
    async with client_of("memory", tmp_path) as (client, session):

        async def refused(method: str, **params: Any) -> tuple[int, Any]:
            return error_of(await client.call(method, **params))

        assert await refused("no/such") == (-32601, {"method": "no/such"})
        assert await refused("session/prompt", sessionId="x", prompt=text) == (-32002, {"sessionId": "x"})
        no_ids: tuple[Any, ...] = (None, 5, True, [], {"a": 1})
        for wrong_id in no_ids:
            assert (await refused("session/prompt", sessionId=wrong_id, prompt=text))[0] == -32602
            assert (await refused("session/cancel", sessionId=wrong_id))[0] == -32602
        assert (await refused("session/prompt", prompt=text))[0] == -32602
        assert (await refused("session/cancel"))[0] == -32602
        assert (await refused("$/cancel_request"))[0] == -32602
        for wrong_id in (True, [], 1.5):
            assert (await refused("$/cancel_request", requestId=wrong_id))[0] == -32602
        assert await refused("session/load", sessionId="x", cwd="/", mcpServers=[]) == (
            -32002,
            {"sessionId": "x"},
        )
        assert (await refused("session/load", cwd="/", mcpServers=[]))[0] == -32602
        for cwd in ("relative", 1, None):
            assert (await refused("session/new", cwd=cwd, mcpServers=[]))[0] == -32602
        no_servers: tuple[Any, ...] = ({}, [1], None)
        for servers in no_servers:
            assert (await refused("session/new", cwd="/", mcpServers=servers))[0] == -32602
        wrong: tuple[Any, ...] = (
            None,
            "text",
            [1],
            [{"type": "text"}],
            [{"type": "text", "text": 1}],
            [{"type": "image", "mimeType": "image/png", "data": "?"}],
            [{"type": "resource", "resource": 1}],
            [{"type": "video"}],
            [{}],
        )
        for blocks in wrong:
            assert (await refused("session/prompt", sessionId=session, prompt=blocks))[0] == -32602, blocks
        assert await refused("session/prompt", sessionId=session, prompt=[]) == (
            -32602,
            {"type": "EmptyPrompt"},
        )
        client.send(id=1, method="session/new", params=[])
        assert error_of(await client.answer(1))[0] == -32602
        client.send(id=2, method="no/such", params=[])
        assert error_of(await client.answer(2))[0] == -32601
        client.send(id=3, method="initialize", params=None)
        assert "result" in await client.answer(3)


@in_loop
async def test_a_cancel_that_is_sent_as_a_request_is_carried_out_and_answered(tmp_path: Path) -> None:
    async with client_of("memory", tmp_path) as (client, session):
        first = client.prompt(session, "a hold")
        await client.until(lambda said: client.text(session) == "a ")
        assert (await client.call("session/cancel", sessionId=session))["result"] == {}
        assert await client.outcome(first) == "cancelled"
        second = client.prompt(session, "b hold")
        assert (await client.call("$/cancel_request", requestId=second))["result"] == {}
        assert await client.outcome(second) == "cancelled"


@in_loop
async def test_notifications_are_never_answered(tmp_path: Path) -> None:
    async with client_of("memory", tmp_path) as (client, session):
        client.heard.clear()
        for method in ("no/such", "initialize", "session/new", "session/load", "session/prompt"):
            client.send(method=method, params={"sessionId": session})
        client.send(id=12345, result="not asked")
        client.send(id="12345", error=None)
        await client.call("no/such")
        assert len(client.heard) == 1


@in_loop
async def test_a_runner_that_fails(tmp_path: Path) -> None:
    async with client_of("memory", tmp_path) as (client, session):
        answer = await client.answer(client.prompt(session, "a fail"))
        assert answer["error"]["code"] == -32603
        assert answer["error"]["message"] == "RuntimeError: no luck"
        assert answer["error"]["data"]["outcome"] == "failed"
        assert await client.outcome(client.prompt(session, "b")) == "end_turn"


@in_loop
async def test_a_queue_that_is_cleared(tmp_path: Path) -> None:
    d = Dispatcher(agent)
    async with connected(d, "queue") as (client, _):
        session = await client.new_session()
        first = client.prompt(session, "a hold")
        await client.until(lambda said: said.get("method") == "session/update")
        second = client.prompt(session, "b")
        while not d.queued(session):
            await asyncio.sleep(0)
        await d.clear_queue(session)
        answer = await client.answer(second)
        assert (answer["error"]["code"], answer["error"]["data"]["outcome"]) == (-32800, "cleared")
        client.cancel(session)
        assert await client.outcome(first) == "cancelled"


@in_loop
async def test_what_comes_from_elsewhere_is_not_shown(tmp_path: Path) -> None:
    """Others may use the same session; but a client is shown the turns that it is part of, and no others."""
    d = Dispatcher(agent)
    async with connected(d) as (client, _):
        session = await client.new_session()
        await d.ask(session, "other")
        assert await client.outcome(client.prompt(session, "a")) == "end_turn"
        assert client.text(session) == "a "
        leading = await d.submit(session, "x until:1 fold")
        assert await client.outcome(client.prompt(session, "b")) == "end_turn"
        assert client.text(session) == "a x b "  # it is part of that turn
        await leading


# Sessions that are loaded.


@on_both
@in_loop
async def test_a_loaded_session_is_replayed_and_goes_on(kind: str, tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as opened:

        async def make() -> Dispatcher | DurableDispatcher:
            if kind == "ledger":
                return dispatcher_of(kind, tmp_path)
            messages = await opened.enter_async_context(SqliteMessages(tmp_path / "messages.db"))
            return Dispatcher(agent, messages=messages)

        async with connected(await make()) as (client, _):
            session = await client.new_session()
            assert await client.outcome(client.prompt(session, "one two")) == "end_turn"
            assert await client.outcome(client.prompt(session, "big:5000")) == "end_turn"
        async with connected(await make()) as (client, _):
            assert error_of(await client.call("session/prompt", sessionId=session, prompt=[]))[0] == -32002
            answer = await client.call("session/load", sessionId=session, cwd="/", mcpServers=[])
            assert answer["result"] == {}
            assert client.heard[-1] is answer
            assert client.text(session, "user_message_chunk") == "one twobig:5000"
            assert client.text(session) == "one two " + "\N{GRINNING FACE}" * 5000
            assert kinds(client, session)[:3] == [
                "user_message_chunk",
                "agent_message_chunk",
                "user_message_chunk",
            ]
            client.heard.clear()
            assert await client.outcome(client.prompt(session, "three")) == "end_turn"
            assert client.text(session) == "three "


@in_loop
async def test_a_session_that_is_loaded_again_shows_nothing_of_a_turn_after_its_replay(
    tmp_path: Path,
) -> None:
    """What was shown live comes before the replay, however slowly the client reads, and nothing behind it."""
    async with (
        SqliteMessages(tmp_path / "messages.db") as kept,
        connected(Dispatcher(agent, messages=kept)) as (client, _),
    ):
        session = await client.new_session()
        source = client.reader._transport  # type: ignore[attr-defined]
        source.pause_reading()
        number = client.prompt(session, "flood:20000")
        while len(await kept.list(session)) < 2:
            await asyncio.sleep(0.01)
        loading = client.ask("session/load", sessionId=session, cwd="/", mcpServers=[])
        later = client.prompt(session, "later")
        await asyncio.sleep(0.05)
        source.resume_reading()
        assert (await client.answer(loading))["result"] == {}
        assert client.responses(number) == 1
        whole = "".join(f"{each:07d} " for each in range(20_000))
        assert client.text(session) == whole * 2
        client.heard.clear()
        assert await client.outcome(later) == "end_turn"
        assert client.text(session) == "later "


@in_loop
async def test_a_new_session_can_be_loaded_before_its_first_prompt(tmp_path: Path) -> None:
    async with client_of("memory", tmp_path) as (client, session):
        assert (await client.call("session/load", sessionId=session, cwd="/tmp", mcpServers=[]))[
            "result"
        ] == {}
        await client.answer(client.prompt(session, "where"))
        assert client.text(session).startswith("/tmp ")


@pytest.mark.parametrize("ledger", ["memory", "postgres"])
@in_loop
async def test_other_ledgers(ledger: str, tmp_path: Path) -> None:
    with ledgers(ledger, tmp_path) as make:
        async with connected(DurableDispatcher(agent, make(), poll=0.05)) as (client, _):
            session = await client.new_session()
            number = client.prompt(session, "a tool:t b")
            client.send(id=(await client.question())["id"], result=ALLOW)
            assert await client.outcome(number) == "end_turn"
            assert client.text(session) == "a t=allow b "
            number = client.prompt(session, "c hold")
            await client.until(lambda said: client.text(session).endswith("c "))
            client.cancel(session)
            assert await client.outcome(number) == "cancelled"
