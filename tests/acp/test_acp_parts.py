"""The parts of the agent server by themselves, where a conversation would have to be lucky to lead them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any

import pytest

import turngate.acp._outbox as outbox_module
import turngate.acp._server as server_module
import turngate.acp._wire as wire_module
from acp_agent import agent
from acp_client import connected
from dispatching import in_loop
from surroundings import ROOT
from turngate import Delta, Dispatcher, DispatcherClosed, Moved, QueueFull, RunComplete, State
from turngate.acp import PeerError
from turngate.acp._content import CHUNK
from turngate.acp._outbox import Outbox
from turngate.acp._peer import Prompt, Questions
from turngate.acp._server import AcpServer, as_error
from turngate.acp._wire import Code, Wire


class Lines:
    """Stands in for the wire, and keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)

    async def drain(self) -> None:
        await asyncio.sleep(0)


class Elsewhere:
    """Stands in for the handle of a run whose turn is in another process."""

    turn = None
    complete = None


def finished(text: str) -> RunComplete:
    return RunComplete("s", "r", 1, text, None, False, None, None, "finished")


async def shown(prompt: Prompt, *events: Any) -> list[dict[str, Any]]:
    """Return what the client is sent of these events."""

    async def come() -> AsyncIterator[Any]:
        for event in events:
            yield event

    wire = Lines()
    outbox = Outbox(wire)  # type: ignore[arg-type]  # a stand-in
    outbox.prompts["r"] = prompt
    prompt.is_known.set()
    await outbox.take_all(come())  # type: ignore[arg-type]  # a stand-in
    await outbox.send_all()
    return wire.sent


@pytest.mark.parametrize("handle", [Elsewhere(), None])
@in_loop
async def test_the_text_of_a_turn_in_another_process_comes_with_its_outcome(handle: Any) -> None:
    prompt = Prompt(7, "s")
    prompt.run = handle
    sent = await shown(
        prompt, Moved("s", "enter", "r", 1, State.ACTIVE), Delta("s", "r", "one ", 0), finished("one two")
    )
    assert [message["params"]["update"]["content"]["text"] for message in sent[:-1]] == ["one two"]
    assert (sent[-1]["id"], sent[-1]["result"]["stopReason"]) == (7, "end_turn")


@in_loop
async def test_prompts_with_an_unknown_outcome_are_answered_at_the_end() -> None:
    (sent,) = await shown(Prompt(7, "s"))
    assert (sent["id"], sent["error"]["code"], sent["error"]["data"]) == (
        7, Code.INTERNAL_ERROR, {"runId": "r"},
    )  # fmt: skip


class Turn:
    covered = False


class Here:
    """Stands in for the handle of a run whose turn runs."""

    def __init__(self) -> None:
        self.turn = Turn()


@in_loop
async def test_questions_end_with_the_client() -> None:
    asked: list[dict[str, Any]] = []
    questions = Questions(asked.append)
    prompt = Prompt(1, "s")
    prompt.run = Here()  # type: ignore[assignment]  # a stand-in
    prompt.has_begun.set()
    asking = [
        asyncio.ensure_future(questions.ask(prompt, method, {}))
        for method in ("session/request_permission", "fs/read_text_file")
    ]
    while len(asked) < 2:
        await asyncio.sleep(0)
    questions.end()
    assert all(map(questions.is_open, asked))  # their turn goes on until it is cancelled
    prompt.run.turn.covered = True  # type: ignore[union-attr,misc]  # a stand-in
    questions.resolve_covered()
    questions.resolve_covered()
    assert not any(map(questions.is_open, asked))
    questions.take({"id": 1, "result": {}})  # too late
    assert await asking[0] == {"outcome": {"outcome": "cancelled"}}
    with pytest.raises(PeerError, match="client"):
        await asking[1]
    with pytest.raises(PeerError, match="client"):
        await questions.ask(prompt, "fs/read_text_file", {})
    assert len(asked) == 2


@in_loop
async def test_when_a_turn_is_covered_only_permissions_are_resolved_without_the_client() -> None:
    asked: list[dict[str, Any]] = []
    questions = Questions(asked.append)
    prompt = Prompt(1, "s")
    prompt.run = Here()  # type: ignore[assignment]  # a stand-in
    prompt.has_begun.set()
    asking = asyncio.ensure_future(questions.ask(prompt, "fs/read_text_file", {}))
    while not asked:
        await asyncio.sleep(0)
    prompt.run.turn.covered = True  # type: ignore[union-attr,misc]  # a stand-in
    questions.resolve_covered()
    assert questions.is_open(asked[0])
    questions.take({"id": 1, "result": {"content": "text"}})
    assert await asking == {"content": "text"}


@in_loop
async def test_a_question_that_is_resolved_before_it_is_sent_is_not_sent() -> None:
    wire = Lines()
    outbox = Outbox(wire)  # type: ignore[arg-type]  # a stand-in
    prompt = Prompt(1, "s")
    prompt.run = Here()  # type: ignore[assignment]  # a stand-in
    prompt.has_begun.set()
    asking = asyncio.ensure_future(outbox.questions.ask(prompt, "session/request_permission", {}))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    prompt.run.turn.covered = True  # type: ignore[union-attr,misc]  # a stand-in
    outbox.questions.resolve_covered()
    assert await asking == {"outcome": {"outcome": "cancelled"}}

    async def none() -> AsyncIterator[Any]:
        return
        yield

    await outbox.take_all(none())  # type: ignore[arg-type]  # a stand-in
    await outbox.send_all()
    assert wire.sent == []


def test_what_a_request_is_refused_for_has_a_code() -> None:
    for wrong, code, message in (
        (DispatcherClosed("closed"), Code.REQUEST_CANCELLED, "closed"),
        (QueueFull("full"), Code.INTERNAL_ERROR, "full"),
        (KeyError("secret"), Code.INTERNAL_ERROR, "internal error"),
        (TypeError("secret"), Code.INVALID_PARAMS, "internal error"),
        (ValueError("wrong"), Code.INVALID_PARAMS, "wrong"),
    ):
        told = as_error(wrong)
        assert told == {"code": code, "message": message, "data": {"type": type(wrong).__name__}}


# The dispatcher fails.


@in_loop
async def test_a_cancel_that_fails_is_logged_and_the_conversation_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    d = Dispatcher(agent)
    cancel = d.cancel

    async def fail(session_id: str) -> Any:
        d.cancel = cancel  # type: ignore[method-assign]  # once is enough
        raise QueueFull("the ledger is away")

    async with connected(d) as (client, _):
        session = await client.new_session()
        prompt = client.prompt(session, "a hold")
        await client.until(lambda said: client.text(session) == "a ")
        d.cancel = fail  # type: ignore[method-assign,assignment]  # to be away
        client.cancel(session)
        await client.call("nothing")
        assert "session/cancel failed" in caplog.text
        client.cancel(session)
        assert await client.outcome(prompt) == "cancelled"


@in_loop
async def test_a_prompt_whose_answer_is_lost_is_answered_by_its_outcome() -> None:
    d = Dispatcher(agent)
    submit = d.submit

    async def lose(*arguments: Any, **options: Any) -> Any:
        await (await submit(*arguments, **options)).wait()
        for _ in range(20):
            await asyncio.sleep(0)  # its events are taken
        raise QueueFull("the answer is lost")

    d.submit = lose  # type: ignore[method-assign]  # to lose an answer
    async with connected(d) as (client, _):
        session = await client.new_session()
        prompt = client.prompt(session, "a")
        assert await client.outcome(prompt) == "end_turn"
        assert client.responses(prompt) == 1


# Clients that do not read.


@in_loop
async def test_a_client_that_reads_nothing_keeps_the_server_from_reading(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wire_module, "UNSENT_LIMIT", 1024)
    d = Dispatcher(agent)
    async with connected(d) as (client, serving):
        source: Any = client.reader._transport  # type: ignore[attr-defined]
        source.pause_reading()
        numbers = [client.ask("nothing", filler="x" * 100) for _ in range(3_000)]
        await asyncio.sleep(0.2)
        assert not serving.done()
        source.resume_reading()
        assert {await client.outcome(number) for number in numbers} == {-32601}


# Ends.


@in_loop
async def test_what_is_wrong_with_the_server_is_raised_when_it_has_ended() -> None:
    source, target = os.pipe(), os.pipe()
    server = AcpServer(Dispatcher(agent), await Wire.connect(source[0], target[1]), "fold")

    async def fail() -> None:
        raise RuntimeError("broken")

    server._read = fail  # type: ignore[method-assign]  # to be broken
    with pytest.raises(RuntimeError, match="broken"):
        await server.run()
    os.close(source[1])
    os.close(target[0])


@in_loop
async def test_what_a_client_does_not_read_is_given_up_in_the_end() -> None:
    source, target = os.pipe(), os.pipe()
    wire = await Wire.connect(source[0], target[1])
    wire.send({"method": "x", "params": {"filler": "x" * 1_000_000}})
    await wire.close(0)
    await wire.until_lost()
    os.close(source[1])
    os.close(target[0])


def test_the_limits_are_those_of_the_specification() -> None:
    said = (ROOT / "docs" / "spec" / "acp.md").read_text(encoding="utf-8")
    limits = (wire_module.LINE_LIMIT, wire_module.UNSENT_LIMIT, server_module.PROMPTS_LIMIT)
    for limit in (*limits, outbox_module.UPDATES_LIMIT, CHUNK):
        assert f" {limit:,} " in " ".join(said.split())
