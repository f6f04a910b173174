"""The calls of the server: what each answers, and what it refuses."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Sequence
from typing import Any

import httpx2
import pytest

from dispatching import Agent, in_loop
from serving import Ear, served, small
from turngate import Dispatcher, Message, Turn
from turngate.durable import OutcomeUnknown


async def quick(turn: Turn) -> str:
    await turn.fold()
    return " / ".join(run.prompt for run in turn.runs)


def problem(response: httpx2.Response) -> tuple[int, str]:
    assert response.headers["content-type"] == "application/problem+json", response.text
    said = response.json()
    assert said.keys() == {"type", "title", "status", "detail"}
    assert said["status"] == response.status_code
    return response.status_code, said["type"].rpartition(":")[2]


@in_loop
async def test_a_prompt_is_accepted_run_and_complete() -> None:
    async with served(quick) as (_, http):
        accepted = await http.post("/v1/sessions/s/runs", json={"prompt": "tea", "run_id": "r 1/ü"})
        assert accepted.status_code == 202
        assert accepted.headers["location"] == "/v1/runs/r%201%2F%C3%BC"
        run = accepted.json()
        assert (run["run_id"], run["session_id"], run["seq"], run["complete"]) == ("r 1/ü", "s", 1, None)
        done = (await http.get(accepted.headers["location"], params={"wait": 60})).json()
        assert done["state"] == "complete"
        assert done["complete"] == {
            "session_id": "s",
            "run_id": "r 1/ü",
            "seq": 1,
            "text": "tea",
            "error": None,
            "cancelled": False,
            "message_id": done["complete"]["message_id"],
            "folded_into": None,
            "outcome": "finished",
        }
        # After the fact it is the same, without waiting.
        again = (await http.get("/v1/runs/r%201%2F%C3%BC?wait=60")).json()
        assert (again["complete"], again["prompt"]) == (done["complete"], "tea")


@in_loop
async def test_a_known_run_id_is_the_same_run_or_a_conflict() -> None:
    async with served(quick) as (_, http):
        sent = {"prompt": "tea", "run_id": "r"}
        assert (await http.post("/v1/sessions/s/runs", json=sent)).status_code == 202
        await http.get("/v1/runs/r?wait=60")
        again = await http.post("/v1/sessions/s/runs", json=sent)
        assert again.status_code == 200
        assert again.json()["complete"]["text"] == "tea"
        key = {"Idempotency-Key": '"r"'}
        assert (
            await http.post("/v1/sessions/s/runs", json={"prompt": "tea"}, headers=key)
        ).status_code == 200
        other = await http.post("/v1/sessions/s/runs", json={"prompt": "soup", "run_id": "r"})
        assert problem(other) == (409, "run-conflict")
        differs = await http.post("/v1/sessions/s/runs", json={"prompt": "tea", "run_id": "q"}, headers=key)
        assert problem(differs) == (400, "malformed")


JSON = "application/json"
REFUSED: list[tuple[dict[str, Any], int, str]] = [
    ({"content": b"{"}, 400, "malformed"),
    ({"content": b'{"prompt": NaN}'}, 400, "malformed"),
    ({"content": b"[" * 100_000}, 400, "malformed"),
    ({"content": b"\xff"}, 400, "malformed"),
    ({"json": []}, 400, "malformed"),
    ({"json": {}}, 400, "malformed"),
    ({"json": {"prompt": 3}}, 400, "malformed"),
    ({"json": {"prompt": "tea", "colour": "red"}}, 400, "malformed"),
    ({"json": {"prompt": "tea", "run_id": 5}}, 400, "malformed"),
    ({"json": {"prompt": "tea", "attachments": "x"}}, 400, "malformed"),
    ({"json": {"prompt": "tea", "attachments": [{"name": "a", "mime_type": "t"}]}}, 400, "malformed"),
    ({"json": {"prompt": "tea", "attachments": [{"name": "a", "text": "t"}]}}, 400, "malformed"),
    ({"json": {"prompt": " "}}, 422, "empty-prompt"),
    ({"content": b'{"prompt": "\\ud800"}'}, 422, "invalid"),
    ({"json": {"prompt": "tea", "run_id": ""}}, 422, "invalid"),
    ({"json": {"prompt": "tea", "run_id": ".."}}, 422, "invalid"),
    ({"json": {"prompt": "tea", "run_id": "r" * 257}}, 422, "invalid"),
    ({"json": {"prompt": "tea", "when_busy": "later"}}, 422, "invalid"),
    (
        {"json": {"prompt": "t", "attachments": [{"name": "a", "mime_type": "b", "base64": "!"}]}},
        422,
        "invalid",
    ),
    ({"json": {"prompt": "tea", "attachments": [{}] * 65}}, 422, "invalid"),
    ({"json": {"prompt": "x" * 2_000}}, 413, "too-large"),
]


@in_loop
async def test_what_is_no_prompt_is_refused_and_leaves_no_trace() -> None:
    async with served(quick, limits=small(body_limit=1_500)) as (_, http):
        headers = {"content-type": JSON}
        for sent, status, name in REFUSED:
            if len(sent.get("content", b"")) > 1_500:
                continue
            answer = await http.post("/v1/sessions/s/runs", headers=headers, **sent)
            assert problem(answer) == (status, name), (sent, answer.text)
        for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
            answer = await http.post(
                "/v1/sessions/s/runs", content=b'{"prompt":"t"}', headers={"content-type": kind}
            )
            assert problem(answer) == (415, "unsupported-media-type")
        assert (await http.get("/v1/sessions")).json()["sessions"] == []
        assert (await http.get("/v1/sessions/s/messages")).json() == {"messages": [], "next": None}
    async with served(quick) as (_, http):
        deep = await http.post("/v1/sessions/s/runs", headers=headers, content=b"[" * 100_000)
        assert problem(deep) == (400, "malformed")


async def chunks(size: int, count: int) -> Any:
    for _ in range(count):
        yield b" " * size


@in_loop
async def test_a_body_of_unknown_length_is_cut_off_too() -> None:
    async with served(quick, limits=small(body_limit=1_000)) as (_, http):
        headers = {"content-type": JSON}
        answer = await http.post("/v1/sessions/s/runs", content=chunks(400, 4), headers=headers)
        assert problem(answer) == (413, "too-large")


@in_loop
async def test_addresses_that_mean_nothing() -> None:
    async with served(quick, limits=small(id_limit=20)) as (_, http):
        for path in (
            "/v1",
            "/v1/sessions/",
            "/v1/sessions//runs",
            "/v2/sessions",
            "/v1/sessions/a/b/c",
            "/x.js",
        ):
            assert problem(await http.get(path)) == (404, "not-found"), path
        for method, path, allowed in (
            ("GET", "/v1/sessions/s/runs", "POST"),
            ("DELETE", "/v1/sessions", "GET"),
            ("PUT", "/v1/runs/r", "GET, PATCH"),
            ("POST", "/", "GET"),
            ("OPTIONS", "/v1/sessions", "GET"),
            ("HEAD", "/v1/events", "GET"),
        ):
            answer = await http.request(method, path)
            assert answer.status_code == 405
            assert answer.headers["allow"] == allowed
        assert problem(await http.get("/v1/runs/nobody")) == (404, "unknown-run")
        assert problem(await http.post("/v1/runs/nobody/cancel")) == (404, "unknown-run")
        assert problem(await http.get("/v1/sessions/%FF")) == (400, "malformed")
        assert problem(await http.get(f"/v1/sessions/{'s' * 21}")) == (422, "invalid")
        for wrong in ("soon", "-1", "nan"):
            assert problem(await http.get(f"/v1/runs/r?wait={wrong}")) == (422, "invalid")
        for wrong in ("0", "1001", "x", "-1"):
            assert problem(await http.get(f"/v1/sessions/s/messages?limit={wrong}")) == (422, "invalid")
        assert problem(await http.get("/v1/sessions/s/messages?after=m")) == (422, "invalid")
        assert problem(await http.post("/v1/runs/r/cancel?waiting_only=perhaps")) == (422, "invalid")
        assert (await http.head("/healthz")).status_code == 200


@in_loop
async def test_cancels_and_clears_say_what_they_covered() -> None:
    agent = Agent()
    d = Dispatcher(agent)
    async with d, served(d) as (_, http):

        async def submit(run_id: str) -> None:
            sent = {"prompt": run_id, "run_id": run_id, "when_busy": "queue"}
            assert (await http.post("/v1/sessions/s/runs", json=sent)).status_code == 202

        assert (await http.post("/v1/sessions/s/cancel")).json() == {"covered": []}
        for each in "abcd":
            await submit(each)
        view = (await http.get("/v1/sessions/s")).json()
        assert view["active"]["run_id"] == "a"
        assert [run["run_id"] for run in view["queued"]] == ["b", "c", "d"]
        assert view["queued"][0]["prompt"] == "b"
        assert (await http.post("/v1/runs/a/cancel?waiting_only=true")).json() == {"covered": []}
        assert (await http.post("/v1/runs/b/cancel?waiting_only=true")).json() == {"covered": ["b"]}
        assert (await http.post("/v1/runs/b/cancel")).json() == {"covered": []}
        assert (await http.delete("/v1/sessions/s/queue")).json() == {"dropped": ["c", "d"]}
        assert (await http.post("/v1/sessions/s/cancel")).json() == {"covered": ["a"]}
        outcomes = [
            (await http.get(f"/v1/runs/{each}?wait=60")).json()["complete"]["outcome"] for each in "abcd"
        ]
        assert outcomes == ["cancelled", "cancelled", "cleared", "cleared"]
        sent = {"prompt": "e", "run_id": "e"}
        await http.post("/v1/sessions/s/runs", json=sent)
        busy = await http.post("/v1/sessions/s/runs", json={"prompt": "f", "when_busy": "reject"})
        assert problem(busy) == (409, "session-busy")


@in_loop
async def test_limits_on_what_waits() -> None:
    agent = Agent()
    d = Dispatcher(agent, queue_limit=1)
    async with d, served(d, limits=small(sessions_limit=2)) as (_, http):
        sent = {"prompt": "x", "when_busy": "queue"}
        assert (await http.post("/v1/sessions/s/runs", json=sent)).status_code == 202
        await http.get("/v1/sessions")
        assert (await http.post("/v1/sessions/s/runs", json=sent)).status_code == 202
        full = await http.post("/v1/sessions/s/runs", json=sent)
        assert problem(full) == (429, "queue-full")
        assert full.headers["retry-after"] == "1"
        assert (await http.post("/v1/sessions/t/runs", json=sent)).status_code == 202
        await http.get("/v1/sessions")
        assert problem(await http.post("/v1/sessions/u/runs", json=sent)) == (429, "queue-full")


@in_loop
async def test_waiting_is_limited_and_a_client_that_leaves_cancels_nothing() -> None:
    agent = Agent()
    d = Dispatcher(agent)
    async with d, served(d, limits=small(wait_limit=0.01)) as (url, http):
        await http.post("/v1/sessions/s/runs", json={"prompt": "x", "run_id": "r"})
        assert (await http.get("/v1/runs/r?wait=1e9")).json()["complete"] is None
    d = Dispatcher(agent)
    async with d, served(d) as (url, http):
        await http.post("/v1/sessions/s/runs", json={"prompt": "x", "run_id": "r"})
        ear = await Ear.open(url, "/v1/sessions/s/events")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await http.get("/v1/runs/r?wait=60")
        ear.close()
        assert (await http.get("/v1/runs/r")).json()["state"] == "active"
        run = d.find("r")
        assert run is not None
        agent.finish(run)
        assert (await http.get("/v1/runs/r?wait=60")).json()["complete"]["text"] == "done"


@in_loop
async def test_messages_come_in_pages_from_any_store() -> None:
    class Plain:
        """A user's own store: the two methods that it needs."""

        def __init__(self) -> None:
            self.kept: dict[str, Message] = {}

        async def put(self, messages: Sequence[Message]) -> None:
            self.kept |= {message.id: message for message in messages}

        async def list(self, session_id: str) -> list[Message]:
            return [message for message in self.kept.values() if message.session_id == session_id]

    for d in (Dispatcher(quick), Dispatcher(quick, messages=Plain())):
        async with d, served(d) as (_, http):
            for number in range(3):
                await d.ask("s/t", f"prompt {number}")
            path, texts, after = "/v1/sessions/s%2Ft/messages", [], ""
            while after is not None:
                page = (await http.get(path, params={"limit": 2, "after": after})).json()
                texts += [(message["role"], message["text"]) for message in page["messages"]]
                after = page["next"]
            assert texts == [(role, f"prompt {n}") for n in range(3) for role in ("user", "assistant")]
            assert problem(await http.get(f"{path}?after=nobody")) == (422, "invalid")


@in_loop
async def test_attachments_reach_the_runner() -> None:
    seen: list[object] = []

    async def runner(turn: Turn) -> str:
        seen.extend(turn.run.attachments)
        return ""

    async with served(runner) as (_, http):
        attachments = [
            {"name": "a.txt", "mime_type": "text/plain", "text": "héllo"},
            {
                "name": "b",
                "mime_type": "application/octet-stream",
                "base64": base64.b64encode(b"\0\xff").decode(),
            },
        ]
        sent = {"prompt": "", "run_id": "r", "attachments": attachments}
        assert (await http.post("/v1/sessions/s/runs", json=sent)).status_code == 202
        await http.get("/v1/runs/r?wait=60")
    assert seen == [("a.txt", "text/plain", "héllo"), ("b", "application/octet-stream", b"\0\xff")]


@in_loop
async def test_the_server_says_how_it_is() -> None:
    async with served(quick) as (_, http):
        await http.post("/v1/sessions/s/runs", json={"prompt": "x", "run_id": "r"})
        await http.get("/v1/runs/r?wait=60")
        assert (await http.get("/healthz")).json() == {"status": "alive"}
        assert (await http.get("/readyz")).json() == {"status": "ready"}
        figures = (await http.get("/metrics")).text
        assert "turngate_runs_accepted_total 1\n" in figures
        assert 'turngate_runs_completed_total{outcome="finished"} 1\n' in figures
        assert json.loads((await http.get("/openapi.json")).content)["openapi"] == "3.1.0"


@in_loop
async def test_what_goes_wrong_in_the_server_is_a_problem_too(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Dispatcher):
        def session(self, session_id: str) -> Any:
            raise RuntimeError("no luck")

        async def cancel(self, session_id: str, *, key: str | None = None) -> Any:
            raise OutcomeUnknown("postgresql://user:secret@host is gone")

    d = Broken(quick)
    async with d, served(d) as (_, http):
        assert problem(await http.get("/v1/sessions/s")) == (500, "internal-error")
        refused = await http.post("/v1/sessions/s/cancel")
        assert problem(refused) == (503, "outcome-unknown")
        assert "retry-after" not in refused.headers
        assert "secret" not in refused.text
    assert "no luck" in caplog.text
