"""How a connection ends, and clients that do not read: nothing accepted is forgotten, no text is lost."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from pathlib import Path

import pytest

import turngate.acp._outbox as outbox_module
import turngate.acp._server as server_module
import turngate.acp._wire as wire_module
from acp_agent import agent
from acp_client import AcpClient, connected
from dispatching import in_loop
from turngate import Dispatcher, Message, RunComplete, SubscriberCutOff
from turngate.acp import serve
from turngate.durable import DurableDispatcher, SqliteLedger


def ledger(folder: Path) -> SqliteLedger:
    return SqliteLedger(folder / "ledger.db", synchronous="NORMAL")


async def until_shown(client: AcpClient, session: str, text: str) -> None:
    await client.until(lambda said: client.text(session) == text)


def stop_reading(client: AcpClient) -> asyncio.ReadTransport:
    source = client.reader._transport  # type: ignore[attr-defined]
    assert isinstance(source, asyncio.ReadTransport)
    source.pause_reading()
    return source


# The end of the connection.


@pytest.mark.parametrize("last", [b"", b'{"half a line'])
@in_loop
async def test_the_end_of_input_cancels_and_answers(last: bytes) -> None:
    d = Dispatcher(agent)
    async with connected(d, "queue") as (client, serving):
        session = await client.new_session()
        numbers = [client.prompt(session, text) for text in ("a hold", "b")]
        await until_shown(client, session, "a ")
        refused = client.prompt(session, " ")
        assert await client.outcome(refused) == -32602
        client.writer.write(last)
        client.writer.close()
        assert [await client.outcome(number) for number in numbers] == ["cancelled", "cancelled"]
        assert await client.hear() == {}
        assert client.responses(refused) == 1
        await serving
    assert d.session_count() == 0


@pytest.mark.parametrize("hangs_up", [False, True])
@in_loop
async def test_both_streams_may_be_one_socket(hangs_up: bool) -> None:
    """As socat and inetd start a program. What the client sends on it is no sign that the client is gone."""
    ours, theirs = socket.socketpair()
    d = Dispatcher(agent)
    streams = os.dup(theirs.fileno()), theirs.detach()
    serving = asyncio.create_task(serve(d, streams=streams))
    client = AcpClient(*await asyncio.open_connection(sock=ours))
    session = await client.new_session()
    assert await client.outcome(client.prompt(session, "a b")) == "end_turn"
    number = client.prompt(session, "c hold")
    await until_shown(client, session, "a b c ")
    if hangs_up:
        client.writer.close()
    else:
        client.writer.write_eof()
        assert await client.outcome(number) == "cancelled"
        assert await client.hear() == {}
        client.writer.close()
    await serving
    assert d.session_count() == 0


@in_loop
async def test_a_client_that_reads_no_more_is_gone() -> None:
    d = Dispatcher(agent)
    completes: list[RunComplete] = []
    async with connected(d) as (client, serving):
        session = await client.new_session()
        client.prompt(session, "a hold")
        await until_shown(client, session, "a ")
        events = d.subscribe()
        client.reader._transport.close()  # type: ignore[attr-defined]
        await serving
        completes += [event async for event in events if isinstance(event, RunComplete)]
    assert [each.outcome for each in completes] == ["cancelled"]


@in_loop
async def test_serving_can_be_cancelled() -> None:
    async with connected(Dispatcher(agent)) as (client, serving):
        session = await client.new_session()
        number = client.prompt(session, "a hold")
        await until_shown(client, session, "a ")
        serving.cancel()
        assert await client.outcome(number) == "cancelled"
        assert await client.hear() == {}
        await asyncio.wait([serving])
        assert serving.cancelled()


@pytest.mark.parametrize("kind", ["memory", "ledger"])
@in_loop
async def test_questions_end_with_the_connection(kind: str, tmp_path: Path) -> None:
    d = Dispatcher(agent) if kind == "memory" else DurableDispatcher(agent, ledger(tmp_path), poll=0.05)
    async with connected(d) as (client, _):
        sessions = [await client.new_session() for _ in range(3)]
        texts = ("tool:t", "shielded:t", "read:/a")
        numbers = [client.prompt(session, text) for session, text in zip(sessions, texts, strict=True)]
        for method in ("session/request_permission", "session/request_permission", "fs/read_text_file"):
            asked = [said for said in client.heard if said.get("method") == method]
            await client.until(lambda said, m=method, a=asked: said.get("method") == m and said not in a)  # type: ignore[misc]
        client.writer.close()
        assert [await client.outcome(number) for number in numbers] == ["cancelled"] * 3
        assert client.text(sessions[1]) == "t=None again=None "


@in_loop
async def test_an_oversize_line_ends_the_connection(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(wire_module, "LINE_LIMIT", 10_000)
    async with connected(Dispatcher(agent)) as (client, serving):
        session = await client.new_session()
        held = client.prompt(session, "a hold")
        await until_shown(client, session, "a ")
        client.prompt(session, "x" * 3_000_000)
        await client.writer.drain()  # the rest of the line is read, though it is of no use
        assert await client.outcome(held) == "cancelled"
        refused = await client.until(lambda said: "id" in said and said["id"] is None)
        assert refused["error"]["code"] == -32600
        assert await client.hear() == {}
        await serving
    assert "10000" in capfd.readouterr().err


@in_loop
async def test_an_oversize_line_that_does_not_end_ends_the_connection_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wire_module, "LINE_LIMIT", 10_000)
    monkeypatch.setattr(wire_module, "REST", 0.05)
    async with connected(Dispatcher(agent)) as (client, serving):
        session = await client.new_session()
        held = client.prompt(session, "a hold")
        await until_shown(client, session, "a ")
        client.writer.write(b"x" * 30_000)
        assert await client.outcome(held) == "cancelled"
        await serving


@in_loop
async def test_what_waits_on_a_ledger_is_left_to_the_next_start(tmp_path: Path) -> None:
    marked = tmp_path / "ran"
    async with connected(DurableDispatcher(agent, ledger(tmp_path)), "queue") as (client, serving):
        session = await client.new_session()
        first, second = client.prompt(session, "a hold"), client.prompt(session, f"touch:{marked} b")
        await until_shown(client, session, "a ")
        await client.call("nothing")
        client.writer.close()
        assert await client.outcome(first) == "cancelled"
        left = (await client.answer(second))["error"]
        assert left["code"] == -32603
        assert left["message"]
        await serving
    assert not marked.exists()
    async with connected(DurableDispatcher(agent, ledger(tmp_path), poll=0.05)) as (client, _):
        while not marked.exists():
            await asyncio.sleep(0.01)
        assert await client.outcome(await reload(client, session)) == "end_turn"
        assert client.text(session, "user_message_chunk").startswith("a hold")


async def reload(client: AcpClient, session: str) -> int:
    answer = await client.call("session/load", sessionId=session, cwd="/", mcpServers=[])
    assert answer["result"] == {}
    return client.prompt(session, "c")


@in_loop
async def test_a_store_that_fails_is_said_and_not_fatal() -> None:
    class Broken:
        async def put(self, messages: object) -> None:
            raise OSError("the disk is full")

        async def list(self, session_id: str) -> list[Message]:
            raise OSError("the disk is broken")

    async with connected(Dispatcher(agent, messages=Broken())) as (client, _):
        session = await client.new_session()
        answer = await client.answer(client.prompt(session, "a"))
        assert "the disk is full" in answer["error"]["message"]
        answer = await client.call("session/load", sessionId=session, cwd="/", mcpServers=[])
        assert (answer["error"]["code"], answer["error"]["message"]) == (-32603, "internal error")


@in_loop
async def test_a_subscription_that_is_cut_off_leaves_no_prompt_unanswered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    d = Dispatcher(agent)
    async with connected(d) as (client, serving):
        session = await client.new_session()
        number = client.prompt(session, "a hold")
        await until_shown(client, session, "a ")
        (events,) = d._subscribers.to_moves
        events.cut_off("for a test")
        answer = await client.answer(number)
        assert answer["error"]["code"] == -32603
        await serving
    with pytest.raises(SubscriberCutOff):
        await anext(events)


# Clients that do not read.


async def flood(deltas: int) -> None:
    async with connected(Dispatcher(agent)) as (client, _):
        session = await client.new_session()
        source = stop_reading(client)
        number, held = client.prompt(session, f"flood:{deltas}"), client.prompt(session, "hold")
        await asyncio.sleep(0.2)
        client.cancel(session)
        later = client.prompt(session, f"flood:{deltas} answer:x")
        await asyncio.sleep(0.2)
        source.resume_reading()
        whole = "".join(f"{each:07d} " for each in range(deltas))
        first = await client.outcome(number)
        text = client.text(session)
        assert first in ("end_turn", "cancelled")
        assert whole.startswith(text) if first == "cancelled" else text == whole
        assert await client.outcome(held) == "cancelled"
        client.heard.clear()
        assert await client.outcome(later) == "end_turn"
        assert client.text(session) == whole


@in_loop
async def test_a_reader_that_stops_loses_no_text() -> None:
    await flood(20_000)


@pytest.mark.deep
@in_loop
async def test_a_reader_that_stops_loses_no_text_of_200_000_deltas() -> None:
    await flood(200_000)


@in_loop
async def test_a_cancel_is_heard_from_a_client_that_does_not_read() -> None:
    d = Dispatcher(agent)
    async with connected(d) as (client, _):
        session = await client.new_session()
        source = stop_reading(client)
        client.prompt(session, "flood:50000 hold")
        while not d.is_busy(session):
            await asyncio.sleep(0)
        client.cancel(session)
        while d.is_busy(session):
            await asyncio.sleep(0)
        source.resume_reading()


@in_loop
async def test_updates_that_no_one_reads_are_dropped_but_not_how_tool_calls_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outbox_module, "UPDATES_LIMIT", 50)
    d = Dispatcher(agent)
    async with connected(d) as (client, _):
        session = await client.new_session()
        source = stop_reading(client)
        number = client.prompt(session, "notes:5000")
        while not d.is_busy(session):
            await asyncio.sleep(0)
        while d.is_busy(session):
            await asyncio.sleep(0)
        source.resume_reading()
        assert await client.outcome(number) == "end_turn"
        updates = client.updates(session)
        assert 50 < len(updates) < 5000
        assert updates[0]["toolCallId"] == "t"
        assert (updates[-1]["toolCallId"], updates[-1]["status"]) == ("t", "failed")


@in_loop
async def test_a_client_that_floods_and_does_not_read_is_not_read_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wire_module, "LINE_LIMIT", 10_000)
    line = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize"}).encode() + b"\n"
    async with connected(Dispatcher(agent)) as (client, _):
        source = stop_reading(client)
        writer = client.writer
        for _ in range(2_000):
            writer.write(line * 100)
            try:
                async with asyncio.timeout(0.5):
                    await writer.drain()
            except TimeoutError:
                break
        else:
            pytest.fail("200,000 requests were read whose answers are not")
        source.resume_reading()


@in_loop
async def test_prompts_beyond_a_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "PROMPTS_LIMIT", 2)
    async with connected(Dispatcher(agent)) as (client, _):
        session = await client.new_session()
        numbers = [client.prompt(session, "hold") for _ in range(3)]
        refused = (await client.answer(numbers[2]))["error"]
        assert (refused["code"], refused["data"]) == (-32603, {"type": "QueueFull"})
        client.cancel(session)
        assert [await client.outcome(number) for number in numbers[:2]] == ["cancelled", "cancelled"]
        assert await client.outcome(client.prompt(session, "a")) == "end_turn"


@in_loop
async def test_a_client_that_never_reads_does_not_keep_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "PATIENCE", 0.05)
    async with connected(Dispatcher(agent)) as (client, serving):
        session = await client.new_session()
        source = stop_reading(client)
        client.prompt(session, "flood:50000 hold")
        await asyncio.sleep(0.1)
        client.writer.close()
        await serving
        source.resume_reading()
