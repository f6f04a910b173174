"""Idempotency-Key over HTTP, lives of servers, and what the client makes of them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx2
import pytest

from dispatching import Agent, in_loop, steps
from faulty_proxy import FaultyProxy
from ledgers import ledgers
from serving import served, serving
from turngate import Dispatcher, KeyConflict, UnknownRun
from turngate.client import Client, OutcomeUnknown, Refused, Unreachable
from turngate.durable import DurableDispatcher
from turngate.server import asgi_app

LIFE = "turngate-key-life"


def problem(response: httpx2.Response) -> tuple[int, str]:
    return response.status_code, response.json()["type"].rpartition(":")[2]


def on_both(test: Any) -> Any:
    """Run a test on a dispatcher in memory and on one on a ledger."""

    @pytest.mark.parametrize("kind", ["in memory", "sqlite"])
    def wrapper(kind: str, tmp_path: Path) -> None:
        if kind == "in memory":
            in_loop(test)(Dispatcher)
        else:
            with ledgers(kind, tmp_path) as make:
                in_loop(test)(lambda runner: DurableDispatcher(runner, make()))

    wrapper.__name__ = test.__name__
    return wrapper


async def begun(agent: Agent, turns: int) -> None:
    while len(agent.turns) < turns:
        await steps(1)
        await asyncio.sleep(0.001)


@on_both
async def test_a_repetition_answers_what_the_first_call_did(make: Any) -> None:
    agent = Agent()
    d = make(agent)
    async with d, served(d) as (_, http):
        for run in ("r1", "r2"):
            await http.post("/v1/sessions/s/runs", json={"prompt": "p", "run_id": run, "when_busy": "queue"})
        await begun(agent, 1)
        calls = {
            "clear": ("DELETE", "/v1/sessions/s/queue"),
            "run": ("POST", "/v1/runs/r1/cancel"),
            "session": ("POST", "/v1/sessions/s/cancel"),
            "nobody": ("POST", "/v1/runs/nobody/cancel"),
        }
        first = {
            key: await http.request(*call, headers={"Idempotency-Key": key}) for key, call in calls.items()
        }
        assert first["clear"].json() == {"dropped": ["r2"]}
        assert first["run"].json() == {"covered": ["r1"]}
        assert problem(first["nobody"]) == (404, "unknown-run")
        await http.get("/v1/runs/r1", params={"wait": 60})
        for run in ("r3", "nobody"):
            await http.post("/v1/sessions/s/runs", json={"prompt": "p", "run_id": run, "when_busy": "queue"})
        await begun(agent, 2)
        for key, call in calls.items():
            again = await http.request(*call, headers={"Idempotency-Key": f'"{key}"'})
            assert (again.status_code, again.content) == (first[key].status_code, first[key].content)
            conflict = await http.delete("/v1/sessions/other/queue", headers={"Idempotency-Key": key})
            assert problem(conflict) == (409, "key-conflict")
        await d.cancel_run("nobody")
        agent.finish(agent.turns[1].run)
        assert (await http.get("/v1/runs/r3", params={"wait": 60})).json()["complete"][
            "outcome"
        ] == "finished"


@on_both
async def test_what_cannot_be_a_key_is_refused(make: Any) -> None:
    d = make(Agent())
    async with d, served(d) as (_, http):
        for path in ("/v1/sessions/s/cancel", "/v1/runs/r/cancel"):
            for key in ("", "x" * 257):
                assert problem(await http.post(path, headers={"Idempotency-Key": key})) == (422, "invalid")
        two = [("Idempotency-Key", "a"), ("Idempotency-Key", "b")]
        assert problem(await http.post("/v1/sessions/s/cancel", headers=two)) == (400, "malformed")


@pytest.mark.requirement("R-KEY-7")
@on_both
async def test_a_repetition_that_was_meant_for_another_life_is_not_carried_out(make: Any) -> None:
    agent = Agent()
    d = make(agent)
    async with d, served(d) as (_, http):
        accepted = await http.post("/v1/sessions/s/runs", json={"prompt": "p", "run_id": "r"})
        await begun(agent, 1)
        life = accepted.headers[LIFE]
        assert (await http.get("/v1/sessions")).headers[LIFE] == life
        another = {"Idempotency-Key": "k", LIFE: "another"}
        for method, path in (
            ("POST", "/v1/sessions/s/cancel"),
            ("POST", "/v1/runs/r/cancel"),
            ("DELETE", "/v1/sessions/s/queue"),
        ):
            refused = await http.request(method, path, headers=another)
            assert problem(refused) == (503, "outcome-unknown")
            assert "retry-after" not in refused.headers
            assert refused.headers[LIFE] == life
        body = {"prompt": "p", "run_id": "new", "when_busy": "interrupt"}
        refused = await http.post("/v1/sessions/s/runs", json=body, headers={LIFE: "another"})
        assert problem(refused) == (503, "outcome-unknown")
        assert (await http.get("/v1/runs/r")).json()["state"] == "active"
        done = await http.post("/v1/sessions/s/cancel", headers={"Idempotency-Key": "k", LIFE: life})
        assert done.json() == {"covered": ["r"]}
        # A key that is known is answered in any life.
        assert (await http.post("/v1/sessions/s/cancel", headers=another)).json() == {"covered": ["r"]}


@in_loop
async def test_a_client_never_cancels_in_a_second_life() -> None:
    """The server acts, its answer is lost, it is restarted, and accepts a prompt of another caller."""
    for call in ("cancel", "interrupt"):
        agent = Agent()
        async with serving(asgi_app(agent, finish=0)) as url, Client(url) as other:
            port = int(url.rpartition(":")[2])
            proxy = FaultyProxy(url)
            await other.submit("s", "p", run_id="old")
            stopped, restarted = asyncio.Event(), asyncio.Event()

            async def restart(stopped: asyncio.Event = stopped, done: asyncio.Event = restarted) -> None:
                stopped.set()
                await done.wait()

            near = proxy.up()
            client = Client(await near.__aenter__())
            await client.session("s")
            proxy.arm("answer lost", 0, restart)
            calling = asyncio.create_task(
                client.cancel("s")
                if call == "cancel"
                else client.ask("s", "p", run_id="mine", when_busy="interrupt")
            )
            await stopped.wait()
        async with serving(asgi_app(agent, finish=0), port=port), Client(url) as other:
            turns = len(agent.turns)
            await other.submit("s", "p", run_id="new")
            await begun(agent, turns + 1)
            restarted.set()
            with pytest.raises(OutcomeUnknown):
                await calling
            agent.finish(agent.turns[-1].run)
            assert (await other.wait("new")).outcome == "finished"
            # The next call is another one.
            assert await client.cancel("s") == []
            await client.aclose()
            await near.__aexit__(None, None, None)


@pytest.mark.parametrize("first", ["answered", "given up", "answered without a life before"])
@in_loop
async def test_a_key_that_a_caller_uses_again_is_not_carried_out_in_a_second_life(first: str) -> None:
    """The caller repeats its cancel itself, when the client knows the restarted server already."""
    agent = Agent()
    async with serving(asgi_app(agent, finish=0)) as url, Client(url) as other:
        port = int(url.rpartition(":")[2])
        proxy = FaultyProxy(url)
        await other.submit("s", "p", run_id="old")
        near = proxy.up()
        client = Client(await near.__aenter__())
        if first == "given up":
            await client.session("s")
            acted = asyncio.Event()

            async def never() -> None:
                acted.set()
                await asyncio.get_running_loop().create_future()

            proxy.arm("answer lost", 0, never)
            calling = asyncio.create_task(client.cancel("s", key="k"))
            await acted.wait()
            calling.cancel()
            await asyncio.wait([calling])
        else:
            if first == "answered":
                await client.session("s")
            assert await client.cancel("s", key="k") == ["old"]
        assert (await other.wait("old")).cancelled
    async with serving(asgi_app(agent, finish=0), port=port), Client(url) as other:
        turns = len(agent.turns)
        await other.submit("s", "p", run_id="new")
        await begun(agent, turns + 1)
        await client.session("s")
        for _ in range(2):
            with pytest.raises(OutcomeUnknown):
                await client.cancel("s", key="k")
        agent.finish(agent.turns[-1].run)
        assert (await other.wait("new")).outcome == "finished"
        assert await client.cancel("s", key="another") == []
        await client.aclose()
        await near.__aexit__(None, None, None)


def test_a_restarted_server_goes_on_with_its_ledger_and_not_with_an_older_copy(tmp_path: Path) -> None:
    with ledgers("sqlite", tmp_path) as make:

        @in_loop
        async def try_it() -> None:
            agent = Agent()
            for again in ("goes on", "older copy"):
                copies = copies_of(tmp_path)
                async with DurableDispatcher(agent, make()) as d, served(d) as (_, http):
                    life = (await http.get("/v1/sessions")).headers[LIFE]
                if again == "older copy":
                    put_back(tmp_path, copies)
                async with DurableDispatcher(agent, make()) as d, served(d) as (_, http):
                    keyed = {"Idempotency-Key": again, LIFE: life}
                    answer = await http.post("/v1/sessions/s/cancel", headers=keyed)
                    assert answer.status_code == (200 if again == "goes on" else 503)

        try_it()


def copies_of(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def put_back(folder: Path, copies: dict[Path, bytes]) -> None:
    for path in folder.iterdir():
        path.unlink()
    for path, content in copies.items():
        path.write_bytes(content)


@in_loop
async def test_a_client_that_nothing_was_lost_for_goes_on_with_a_server_that_was_restarted() -> None:
    agent = Agent()
    async with serving(asgi_app(agent, finish=0)) as url:
        port = int(url.rpartition(":")[2])
        client = Client(url)
        await client.session("s")
    cancelling = asyncio.create_task(client.cancel("s", key="k"))  # the server is not there yet
    await asyncio.sleep(0.05)
    async with serving(asgi_app(agent, finish=0), port=port):
        assert await cancelling == []
        with pytest.raises(KeyConflict):
            await client.clear_queue("s", key="k")
        with pytest.raises(UnknownRun):
            await client.cancel_run("nobody")
        for key in ("ü", " k", '"k"', "a\nb"):
            with pytest.raises(ValueError, match="printable ASCII"):
                await client.cancel("s", key=key)
        await client.aclose()


class Answers:
    """A server that answers every request with the same words, and counts them."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = [*answers]
        self.requests: list[bytes] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self.requests.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])
            await writer.drain()
        finally:
            writer.close()


def said(status: str, body: str, kind: str = "application/json", *more: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", f"Content-Length: {len(body)}", *more]
    return "\r\n".join([*lines, "Connection: close", "", body]).encode()


WITH_LIFE = said("200 OK", '{"covered": []}', "application/json", f"{LIFE}: one")
BAD_GATEWAY = said("502 Bad", "<html>", "text/html")
UNKNOWN = said("503 No", '{"type": "urn:turngate:problem:outcome-unknown"}', "application/problem+json")
OF_A_GATEWAY = [
    said("503 No", '{"type": "about:blank"}', "application/problem+json"),
    said("503 No", '{"type": "urn:gateway:ledger-unavailable"}', "application/problem+json"),
    said("503 No", '{"type": "urn:gatew', "application/problem+json"),
]
UNREADABLE = said("200 OK", "abcd", "application/json", "Content-Encoding: gzip")


@pytest.mark.parametrize(
    ("answers", "raised", "requests"),
    [
        ([UNKNOWN], OutcomeUnknown, 1),
        ([BAD_GATEWAY], OutcomeUnknown, 1),
        ([said("200 OK", '{"cov', "application/json")], OutcomeUnknown, 1),
        ([WITH_LIFE, BAD_GATEWAY, UNKNOWN], OutcomeUnknown, 3),
        ([WITH_LIFE, BAD_GATEWAY, said("401 No", "", "text/plain")], OutcomeUnknown, 3),
        ([said("401 No", "", "text/plain")], Refused, 1),
        ([said("404 No", '{"type": "about:blank"}', "application/problem+json")], Refused, 1),
        *[([said(status, "", "text/plain")], OutcomeUnknown, 1) for status in ("500 No", "520 No", "408 No")],
        *[([answer], OutcomeUnknown, 1) for answer in (*OF_A_GATEWAY, UNREADABLE)],
        *[([WITH_LIFE, answer, UNKNOWN], OutcomeUnknown, 3) for answer in (*OF_A_GATEWAY, UNREADABLE)],
    ],
)  # fmt: skip
@in_loop
async def test_what_the_client_sends_again_and_what_not(
    answers: list[bytes], raised: type[Exception], requests: int
) -> None:
    server = Answers(*answers)
    async with await asyncio.start_server(server, "127.0.0.1", 0) as listener:
        url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        async with Client(url, patience=20.0) as client:
            if answers[0] is WITH_LIFE:
                assert await client.cancel("other") == []
            with pytest.raises(raised):
                await client.cancel("s")
    assert len(server.requests) == requests
    keys = [line for each in server.requests for line in each.split(b"\r\n") if b"dempotency" in line]
    assert len(keys) == requests
    assert len({*keys[1:]}) == min(1, len(keys) - 1)


@in_loop
async def test_when_patience_is_over_a_call_that_may_have_been_carried_out_is_unknown() -> None:
    server = Answers(WITH_LIFE, said("504 Late", "", "text/plain"))
    async with await asyncio.start_server(server, "127.0.0.1", 0) as listener:
        url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        async with Client(url, patience=0.5) as client:
            await client.cancel("s")
            for call in (client.cancel("s"), client.submit("s", "p")):
                with pytest.raises(OutcomeUnknown):
                    await call
            with pytest.raises(Refused, match="504"):
                await client.session("s")
    async with Client(url, patience=0.05) as client:
        with pytest.raises(Unreachable):
            await client.cancel("s")
