"""The line over HTTP and through the client: hold, resume, stop, move, edit, send now, `into` and `data`."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import Any

import pytest

from dispatching import Agent, in_loop
from serving import served
from turngate import Attachment, Dispatcher, NotRunning, NotWaiting, Runner, State, Turn, UnknownRun
from turngate.client import Client
from turngate.durable import DurableDispatcher, SqliteLedger


def made(kind: str, folder: Path, agent: Runner) -> Any:
    """Return a dispatcher in memory, or on a ledger."""
    if kind == "memory":
        return Dispatcher(agent)
    return DurableDispatcher(agent, SqliteLedger(folder / "ledger.db"), poll=0.05)


async def quick(turn: Turn) -> str:
    return "done"


async def is_held(d: Any, run_id: str) -> bool:
    """Return whether something holds the handle of a complete run."""
    found = d.find(run_id)
    run = await found if asyncio.iscoroutine(found) else found
    return bool(run.prompt)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_complete_run_shows_the_data_that_its_turn_was_given(kind: str, tmp_path: Path) -> None:
    """Nothing holds the handle of a complete run; then its prompt and data are those of its user message."""

    @in_loop
    async def check() -> None:
        d = made(kind, tmp_path, quick)
        async with served(d) as (url, http), Client(url) as client:
            await client.ask("s", "tea", run_id="r", data={"user": 1})
            await client.ask("s", "", run_id="empty", data=0, attachments=["notes"])
            await client.ask("s", "soup", run_id="none")
            while await is_held(d, "r"):
                gc.collect()
                await asyncio.sleep(0.01)
            shown = [(await http.get(f"/v1/runs/{name}")).json() for name in ("r", "empty", "none")]
            assert [(each["prompt"], each["data"]) for each in shown] == [
                ("tea", {"user": 1}), ("", 0), ("soup", None),
            ]  # fmt: skip

    check()


async def started(agent: Agent, count: int) -> None:
    """Wait until the runner has been called this many times."""
    while len(agent.turns) < count:
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_the_line_through_the_client(kind: str, tmp_path: Path) -> None:
    @in_loop
    async def check() -> None:
        agent = Agent()
        async with served(made(kind, tmp_path, agent)) as (url, _), Client(url) as client:
            lead = await client.submit("s", "lead", run_id="lead")
            await started(agent, 1)
            await client.submit("s", "b", run_id="b", data={"user": 1}, attachments=["x"])
            await client.submit("s", "c", run_id="c")
            assert await client.hold("s") == ["b", "c"]
            assert await client.hold("s") == []
            assert await client.resume_run("b") == ["b"]
            assert await client.hold_run("b", key="k") == await client.hold_run("b", key="k") == ["b"]
            assert (await client.move("c", before="b")).held
            view = await client.session("s")
            assert [run.run_id for run in view.queued] == ["c", "b"]
            assert view.waiting == ("c", "b")
            await client.move("c", to="last")
            edited = await client.edit(
                "b", prompt="new", data=None, attachments=[Attachment("n", "text/plain", "y")]
            )
            assert (edited.prompt, edited.data, edited.held) == ("new", None, True)
            bound = await client.submit("s", "bound", into="lead")
            with pytest.raises(NotRunning):
                await client.submit("s", "bound", into="b")
            for call in (client.hold_run, client.resume_run, client.send_now, client.edit):
                with pytest.raises(NotWaiting) as refused:
                    await call(lead.run_id)
                assert refused.value.state is State.ACTIVE
                with pytest.raises(UnknownRun):
                    await call("unknown")
            assert (await client.stop("s", turn="b")).covered == []
            stopped = await client.stop("s", turn="lead")
            assert (stopped.covered, stopped.held) == (["lead"], [bound.run_id])
            assert stopped.waiting == ["b", "c", bound.run_id]
            assert (await client.wait("lead")).cancelled
            assert (await client.wait(bound.run_id)).outcome == "cleared"
            sent = await client.send_now("c")
            assert (sent.covered, sent.waiting) == ([], ["b"])
            await started(agent, 2)
            agent.finish(agent.turns[1].run)
            await client.wait("c")
            assert await client.resume("s") == ["b"]
            await started(agent, 3)
            given = agent.turns[2].run
            assert (given.prompt, given.attachments) == ("new", (Attachment("n", "text/plain", "y"),))
            agent.finish(given)
            assert (await client.wait("b")).outcome == "finished"

    check()


@in_loop
async def test_what_the_calls_of_the_line_answer_and_refuse() -> None:
    agent = Agent()
    async with served(agent) as (_, http):
        await http.post("/v1/sessions/s/runs", json={"prompt": "p", "run_id": "lead"})
        await started(agent, 1)
        for name in ("b", "c"):
            body = {"prompt": name, "run_id": name, "data": [name]}
            assert (await http.post("/v1/sessions/s/runs", json=body)).json()["data"] == [name]
        assert (await http.post("/v1/sessions/s/hold")).json() == {"runs": ["b", "c"]}
        assert (await http.post("/v1/runs/b/resume")).json() == {"runs": ["b"]}
        assert (await http.post("/v1/runs/b/hold")).json() == {"runs": ["b"]}
        run = (await http.patch("/v1/runs/b", json={"prompt": "new", "data": None})).json()
        assert (run["prompt"], run["data"], run["held"]) == ("new", None, True)
        assert (await http.post("/v1/runs/c/move", json={"to": "first"})).json()["run_id"] == "c"
        assert [each["run_id"] for each in (await http.get("/v1/sessions/s")).json()["queued"]] == ["c", "b"]
        refusals = [
            ("POST", "/v1/runs/lead/hold", None, 409, "not-waiting"),
            ("POST", "/v1/runs/unknown/hold", None, 404, "unknown-run"),
            ("POST", "/v1/runs/b/move", {}, 422, "invalid"),
            ("POST", "/v1/runs/b/move", {"to": "middle"}, 422, "invalid"),
            ("POST", "/v1/runs/b/move", {"to": 7}, 400, "malformed"),
            ("POST", "/v1/runs/b/move", {"before": "lead"}, 409, "not-waiting"),
            ("PATCH", "/v1/runs/b", {"prompt": None}, 422, "empty-prompt"),
            ("PATCH", "/v1/runs/b", {"prompt": 7}, 400, "malformed"),
            ("PATCH", "/v1/runs/b", {"when_busy": "interrupt"}, 422, "invalid"),
            ("PATCH", "/v1/runs/b", {"else": 1}, 400, "malformed"),
            ("PATCH", "/v1/runs/lead", {"prompt": "late"}, 409, "not-waiting"),
            ("POST", "/v1/sessions/s/runs", {"prompt": "p", "into": "b"}, 409, "not-running"),
            (
                "POST",
                "/v1/sessions/s/runs",
                {"prompt": "p", "into": "lead", "when_busy": "queue"},
                422,
                "invalid",
            ),
            ("POST", "/v1/sessions/s/stop", {"turn": 7}, 400, "malformed"),
        ]
        for method, path, sent_body, status, name in refusals:
            response = await http.request(method, path, json=sent_body)
            assert (response.status_code, response.json()["type"].rpartition(":")[2]) == (status, name), path
            if name == "not-waiting":
                assert response.json()["state"] == "active"
        sent = (await http.post("/v1/runs/b/send-now", headers={"Idempotency-Key": "k"})).json()
        assert sent == {"covered": ["lead"], "held": [], "waiting": ["b", "c"]}
        again = await http.post("/v1/runs/b/send-now", headers={"Idempotency-Key": "k"})
        assert again.json() == sent
        conflict = await http.post("/v1/sessions/s/resume", headers={"Idempotency-Key": "k"})
        assert conflict.json()["type"].endswith("key-conflict")
        stopped = (await http.post("/v1/sessions/s/stop")).json()
        assert set(stopped) == {"covered", "held", "waiting"}
        assert (await http.post("/v1/sessions/s/resume")).status_code == 200
