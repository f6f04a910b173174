"""The server on real ledgers: several of them on one, restarts, and readers that go from one to another."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import pytest

import turngate.server._ledger_backend as backend_module
from dispatching import in_loop
from ledgers import MakeLedger, end_transaction, ledgers, on_each, open_transaction, still
from serving import Ear, Line, completes, follow, names, recorded, served, serving, small
from turngate import Run, RunComplete, Turn
from turngate.client import Client
from turngate.durable import DurableDispatcher, LedgerUnavailable
from turngate.server import asgi_app
from turngate_verify.trace import check


async def talkative(turn: Turn) -> None:
    """Say three words, and take in what waits."""
    for number in range(3):
        turn.write(f"{number} ")
        await asyncio.sleep(0)
    await turn.fold()


def dispatcher(make: MakeLedger, **options: Any) -> DurableDispatcher:
    return DurableDispatcher(talkative, make(), **{"poll": 0.05, **options})


async def post(http: httpx2.AsyncClient, session: str, run: str, **more: str) -> None:
    sent = {"prompt": f"about {run}", "run_id": run, **more}
    answer = await http.post(f"/v1/sessions/{session}/runs", json=sent)
    assert answer.status_code == 202, answer.text


@on_each
async def test_everything_comes_in_order_with_its_prompt(make: MakeLedger) -> None:
    async with dispatcher(make) as d, served(d) as (url, http):
        ear = await Ear.open(url)
        assert (await anext(ear)).data["reset"] is False
        await post(http, "s", "a")
        heard = await ear.complete("a")
        assert names(heard) == ["run.accept", "run.enter", "delta", "delta", "delta", "run.complete"]
        assert heard[0].data == {
            "session_id": "s",
            "run_id": "a",
            "seq": 1,
            "prompt": "about a",
            "into": None,
        }
        assert heard[4].data == {"session_id": "s", "run_id": "a", "text": "2 ", "offset": 4}
        again = await http.post("/v1/sessions/s/runs", json={"prompt": "about a", "run_id": "a"})
        assert (again.status_code, again.json()["complete"]["text"]) == (200, "0 1 2 ")
        assert [each["text"] for each in (await http.get("/v1/sessions/s/messages")).json()["messages"]] == [
            "about a",
            "0 1 2 ",
        ]
        assert "turngate_runs_in_flight 0\n" in (await http.get("/metrics")).text
        ear.close()


@on_each
async def test_any_text_goes_through(make: MakeLedger) -> None:
    async with dispatcher(make) as d, served(d) as (url, http):
        ear = await Ear.open(url)
        await anext(ear)
        for number, text in enumerate(("\x00", "a\x00b\x7f\u2028", "\U0001f600 ☃", "\\u0000 %00 'x' $1 ?")):
            run, session = f"{number}{text}", f"s {text}"
            answer = await http.post(
                f"/v1/sessions/{quote(session, safe='')}/runs", json={"prompt": f"p {text}", "run_id": run}
            )
            assert (answer.status_code, answer.json()["run_id"]) == (202, run)
            heard = await ear.complete(run)
            assert (heard[0].data["prompt"], heard[0].data["session_id"]) == (f"p {text}", session)
            found = await http.get(answer.headers["location"])
            assert found.json()["complete"]["run_id"] == run
        ear.close()


@on_each
async def test_a_prompt_to_one_server_is_heard_of_and_cancelled_at_another(make: MakeLedger) -> None:
    async def endless(turn: Turn) -> None:
        turn.write("begun")
        await asyncio.sleep(3_600)

    one, two = DurableDispatcher(endless, make(), poll=0.05), dispatcher(make)
    async with one, two, served(one) as (_, at_one), served(two) as (url, at_two):
        ear = await Ear.open(url, "/v1/sessions/s/events")
        await anext(ear)
        await post(at_one, "s", "a")
        await post(at_one, "s", "b", when_busy="queue")
        heard = await ear.until(lambda each: each.event == "run.enter" and each.data["run_id"] == "b")
        moves = [each.event for each in heard if each.event != "delta"]
        assert moves == ["run.accept", "run.enter", "run.accept", "run.enter"]
        if "delta" not in names(heard):
            heard += await ear.until(lambda each: each.event == "delta")
        (delta,) = [each.data for each in heard if each.event == "delta"]  # what a turn says is relayed
        assert (delta["run_id"], delta["text"], delta["offset"]) == ("a", "begun", 0)
        assert heard[0].data["prompt"] == "about a"
        view = (await at_two.get("/v1/sessions/s")).json()
        assert (view["active"]["run_id"], [run["run_id"] for run in view["queued"]]) == ("a", ["b"])
        assert "turngate_runs_in_flight 2\n" in (await at_two.get("/metrics")).text
        waiting = asyncio.create_task(at_two.get("/v1/runs/a?wait=60"))
        assert (await at_two.post("/v1/sessions/s/cancel")).json() == {"covered": ["a", "b"]}
        assert (await waiting).json()["complete"]["outcome"] == "cancelled"
        assert sorted(completes(await ear.complete("a", "b"))) == ["a", "b"]
        ear.close()


@on_each
async def test_a_history_recorded_from_the_stream_of_one_server_holds_for_all(make: MakeLedger) -> None:
    one, two = dispatcher(make), dispatcher(make)
    async with one, two, served(one) as (_, at_one), served(two) as (url, at_two):
        ear = await Ear.open(url)
        await anext(ear)
        runs = [f"r{number}" for number in range(24)]
        for number, run in enumerate(runs):
            http = at_one if number % 2 else at_two
            await post(http, f"s{number % 3}", run, when_busy=("fold", "queue", "interrupt")[number % 7 % 3])
            if number % 5 == 0:
                await http.post(f"/v1/sessions/s{number % 3}/cancel")
        heard = await ear.complete(*runs)
        ear.close()
    checked = check(recorded(heard))
    assert (checked.verdict, checked.offence, checked.runs) == ("holds", None, 24)


@on_each
async def test_after_a_restart_one_goes_on_exactly_even_if_nothing_had_completed_before(
    make: MakeLedger,
) -> None:
    async with dispatcher(make) as d, served(d) as (url, _):
        ear = await Ear.open(url)
        first = (await anext(ear)).id
        ear.close()
        await d.ask("s", "x", run_id="a")
    async with dispatcher(make) as d:
        await d.ask("s", "x", run_id="b")
        async with served(d) as (url, _):
            for after, rest in ((first, ["a", "b"]), (None, [])):
                ear = await Ear.open(url, after=after)
                heard = await ear.until(lambda each: each.event == "snapshot")
                assert (completes(heard), heard[-1].data["reset"]) == (rest, False)
                ear.close()
            ear = await Ear.open(url, after=heard[-1].id)
            done = await d.ask("s", "x", run_id="c")
            assert (await ear.complete("c"))[-1].data == done._asdict()
            ear.close()


@pytest.mark.parametrize("kind", ["sqlite", "memory"])
@pytest.mark.parametrize("ring", [3, 8_192])
def test_readers_that_go_from_server_to_server_over_bad_lines(kind: str, ring: int, tmp_path: Path) -> None:
    with ledgers(kind, tmp_path) as make:
        in_loop(wander)(make, ring, runs=60)


@pytest.mark.deep
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
@pytest.mark.parametrize("ring", [3, 8_192])
def test_readers_that_go_from_server_to_server_for_long(kind: str, ring: int, tmp_path: Path) -> None:
    with ledgers(kind, tmp_path) as make:
        in_loop(wander)(make, ring, runs=400)


async def wander(make: MakeLedger, ring: int, runs: int) -> None:
    """Three servers on one ledger; readers connect to any of them, with the cursor of any other."""
    chance = random.Random(ring)
    one, two, three = dispatcher(make), dispatcher(make), dispatcher(make)
    limits = small(ring_events=ring)
    async with (
        one, two, three,
        served(one, limits=limits) as (first, at_one),
        served(two, limits=limits) as (second, at_two),
        served(three, limits=limits) as (third, _),
        Line(first, (300, 3_000), 1).up() as near_first,
        Line(second, (300, 3_000), 2).up() as near_second,
    ):  # fmt: skip
        urls = [near_first, near_second, third]
        expected = {f"r{number}": f"s{number % 4}" for number in range(runs)}
        begun = [asyncio.Event() for _ in range(6)]
        readers = [
            asyncio.create_task(
                follow(
                    lambda: chance.choice(urls),
                    session,
                    expected,
                    begun=event.set,
                    most=lambda: chance.randint(1, 60),
                )
            )
            for session, event in zip((None, None, None, "s0", "s1", "s2"), begun, strict=True)
        ]
        for event in begun:
            await event.wait()
        for number, (run, session) in enumerate(expected.items()):
            http = (at_one, at_two)[number % 2]
            await post(http, session, run, when_busy=chance.choice(("fold", "queue", "interrupt")))
            if number % 9 == 0:
                await http.post(f"/v1/sessions/{session}/cancel")
        for reader in readers:
            await reader


@on_each
async def test_a_reader_from_a_server_that_knew_more_gets_nothing_twice(make: MakeLedger) -> None:
    one, two = dispatcher(make), dispatcher(make)
    async with one, two, served(one) as (first, _), served(two) as (second, _):
        ear, other = await Ear.open(first), await Ear.open(second)
        await anext(ear)
        await anext(other)
        may_read = hold_up(two)
        await one.ask("s", "x", run_id="a")
        cursor = (await ear.complete("a"))[-1].id
        ear.close()
        coming = asyncio.create_task(Ear.open(second, after=cursor))
        await still(one)
        assert not coming.done()  # it has not come to there yet
        may_read.set()
        ear = await coming
        await two.ask("s", "x", run_id="b")
        assert completes(await ear.complete("b")) == ["b"]
        assert completes(await other.complete("b")) == ["a", "b"]
        ear.close()
        other.close()


def hold_up(d: DurableDispatcher) -> asyncio.Event:
    """Have a dispatcher not hear of what happens on the ledger, until it may."""
    may_read, ledger = asyncio.Event(), d._ledger
    for name in ("history_after", "completions_after"):
        read = getattr(ledger, name)

        async def late(*about: Any, read: Any = read) -> Any:
            await may_read.wait()
            return await read(*about)

        setattr(ledger, name, late)
    return may_read


@on_each
async def test_a_place_beyond_the_ledger_is_a_reset(make: MakeLedger) -> None:
    async with dispatcher(make) as d, served(d) as (url, _):
        await d.ask("s", "x")
        ear = await Ear.open(url)
        name = str((await anext(ear)).id).split(":")[2].split(".")[0]
        ear.close()
        for place in (f"{name}.999999999.0", f"{name}.1.0:nobody-told", "another.1.0", "x", ""):
            ear = await Ear.open(url, after=f"ffffffff:1:{place}")
            heard = await ear.until(lambda each: each.event == "snapshot")
            assert names(heard) in (["gap", "snapshot"], ["snapshot"]), place
            assert heard[-1].data["reset"] is True, place
            ear.close()


@on_each
async def test_a_log_that_is_cut_off_begins_anew_and_misses_no_completion(make: MakeLedger) -> None:
    one, two = dispatcher(make), dispatcher(make, complete_limit=20)
    async with one, two, served(two, limits=small(heartbeat=3_600)) as (url, _):
        ear = await Ear.open(url)
        await anext(ear)
        may_read = hold_up(two)
        runs = [(await one.ask(f"s{number}", "x", run_id=f"r{number}")).run_id for number in range(30)]
        may_read.set()
        heard = await ear.until(lambda each: each.event == "snapshot")
        await one.ask("s", "x", run_id="last")
        heard += await ear.complete(*({*runs, "last"} - set(completes(heard))))
        assert "gap" in names(heard)
        assert sorted(completes(heard)) == sorted([*runs, "last"])
        ear.close()


@on_each
async def test_a_ledger_that_is_away_is_503_and_the_client_waits_for_it(make: MakeLedger) -> None:
    async with dispatcher(make) as d, served(d) as (url, http):
        find, away = d._ledger.find, True

        async def find_if_there(run_ids: Any) -> Any:
            if away:
                raise LedgerUnavailable("gone")
            return await find(run_ids)

        done = await d.ask("s", "x", run_id="r")
        d._ledger.find = find_if_there  # type: ignore[method-assign]  # to be away
        answer = await http.get("/v1/runs/r")
        while answer.status_code == 200:  # its handle is still there, or again: the feed may come to it late
            d._runs.handles.clear()
            answer = await http.get("/v1/runs/r")
        assert (answer.status_code, answer.json()["type"]) == (503, "urn:turngate:problem:ledger-unavailable")
        assert answer.headers["retry-after"]
        async with Client(url) as client:
            waiting = asyncio.create_task(client.wait("r"))
            await asyncio.sleep(0.2)
            away = False
            assert await waiting == done


@on_each
async def test_at_the_end_of_one_server_its_readers_have_heard_everything(make: MakeLedger) -> None:
    """More runs than ids can say are ahead; the runs that are queued stay for the next."""

    async def brief(turn: Turn) -> None:
        turn.write("brief")
        await asyncio.sleep(0.05)

    app = asgi_app(DurableDispatcher(brief, make(), poll=0.05), finish=60)
    runs = [f"r{number}" for number in range(40)]
    async with serving(app) as url, httpx2.AsyncClient(base_url=url, timeout=60) as http:
        ear = await Ear.open(url)
        await anext(ear)
        for run in runs:
            await post(http, f"s-{run}", run)
        app.begin_end()
        heard = [each async for each in ear]
        assert ear.ended
        ear.close()
    assert sorted(completes(heard)) == sorted(runs)
    async with DurableDispatcher(brief, make()) as d:
        assert await d.sessions() == []
        assert isinstance(await d.wait("r0"), RunComplete)


@on_each
async def test_what_completed_behind_an_open_transaction_does_not_hold_up_the_stream(
    make: MakeLedger,
) -> None:
    """The transaction is open while runs complete and while the log begins; then it ends."""
    async with dispatcher(make) as one, dispatcher(make) as d, open_transaction(one._ledger):
        for number in range(5):
            await one.ask("s", "p", run_id=f"before{number}")
        async with served(d) as (url, _):
            ear = await Ear.open(url)
            await anext(ear)
            await end_transaction(one._ledger)
            after = [f"after{number}" for number in range(20)]
            for run in after:
                await d.ask("t", "p", run_id=run)
            heard = completes(await ear.complete(*after))
            assert [run for run in heard if run in after] == after
            assert len(heard) == len({*heard})
            ear.close()


@on_each
async def test_prompts_are_shown_however_many_were_sent_again(
    make: MakeLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend_module, "_EXPECTED_LIMIT", 3)
    async with dispatcher(make) as d, served(d) as (url, http):
        for _ in range(2):
            for run in range(6):
                sent = {"prompt": f"about {run}", "run_id": str(run)}
                assert (await http.post("/v1/sessions/s/runs", json=sent)).status_code in (200, 202)
                await d.wait(str(run))
        ear = await Ear.open(url)
        await anext(ear)
        runs = [f"r{number}" for number in range(6)]
        await asyncio.gather(*(post(http, run, run) for run in runs))
        heard = await ear.complete(*runs)
        prompts = {each.data["run_id"]: each.data["prompt"] for each in heard if each.event == "run.accept"}
        assert prompts == {run: f"about {run}" for run in runs}
        ear.close()


@on_each
async def test_a_busy_ledger_does_not_cut_the_streams_of_a_server_that_ends(make: MakeLedger) -> None:
    """Its own runs are delivered, the stream ends cleanly, and the rest is delivered elsewhere, each once."""
    gate = asyncio.Event()

    async def gated(turn: Turn) -> None:
        await gate.wait()

    other = dispatcher(make)
    app = asgi_app(DurableDispatcher(gated, make(), poll=0.05), finish=600)
    own, theirs = {f"own{number}" for number in range(20)}, set[str]()
    async with other, served(other) as (elsewhere, _):

        async def client(number: int) -> None:
            while not gate.is_set() or len(theirs) < 100:
                theirs.add((await other.ask(f"s{number}", "x")).run_id)

        async with serving(app) as url:
            ear = await Ear.open(url)
            await anext(ear)
            for run in own:
                await app.dispatcher.submit(f"session of {run}", "x", run_id=run)
            async with asyncio.TaskGroup() as clients:
                for number in range(20):
                    clients.create_task(client(number))
                app.begin_end()
                while not theirs:
                    await asyncio.sleep(0.01)
                gate.set()
                heard = [each async for each in ear]
                assert ear.ended
                ear.close()
        seen = completes(heard)
        assert own <= set(seen)
        again = await Ear.open(elsewhere, after=next(each.id for each in reversed(heard) if each.id))
        while theirs - set(seen):
            each = await anext(again)
            assert not (each.event == "snapshot" and each.data["reset"])
            seen += completes([each])
        assert len(seen) == len(set(seen))
        again.close()


@on_each
async def test_the_prompt_of_a_run_is_shown_by_other_servers_or_null(make: MakeLedger) -> None:
    gate = asyncio.Event()

    async def gated(turn: Turn) -> None:
        await gate.wait()

    one, two = DurableDispatcher(gated, make(), poll=0.05), dispatcher(make)
    async with one, two, served(one) as (_, at_one), served(two) as (_, at_two):
        await post(at_one, "s", "a")
        await post(at_one, "s", "queued", when_busy="queue")
        assert (await at_two.get("/v1/runs/a")).json()["prompt"] == "about a"
        assert (await at_two.delete("/v1/sessions/s/queue")).json()["dropped"] == ["queued"]
        gate.set()
        assert (await at_one.get("/v1/runs/a?wait=60")).json()["prompt"] == "about a"
        for http in (at_one, at_two):
            assert (await http.get("/v1/runs/a?wait=60")).json()["prompt"] == "about a"
            assert (await http.get("/v1/runs/queued?wait=60")).json()["prompt"] in ("about queued", None)
    async with dispatcher(make) as d, served(d) as (_, http):
        assert (await http.get("/v1/runs/a")).json()["prompt"] == "about a"
        assert (await http.get("/v1/runs/queued")).json()["prompt"] is None  # it never had a turn


@on_each
async def test_one_failed_question_to_the_ledger_does_not_end_the_stream(make: MakeLedger) -> None:
    """Whatever question fails, and however: every RunComplete comes, each once."""
    async with dispatcher(make) as d, served(d) as (url, _):
        ear = await Ear.open(url)
        await anext(ear)
        number = 0
        for name in ("completions_after", "history_after", "read_point", "find"):
            for wrong in (LedgerUnavailable("away"), RuntimeError("broken")):
                fail_once(d, name, wrong)
                for _ in range(20):  # more than the log lets go ahead of the completions
                    number += 1
                    run = await submitted(d, f"r{number}")
                await run
        heard = await ear.complete(f"r{number}")
        assert sorted(completes(heard)) == sorted(f"r{each + 1}" for each in range(number))
        ear.close()


async def submitted(d: DurableDispatcher, run_id: str) -> Run:
    """Submit until it is not refused: the question that failed may have been that of a new subscription."""
    while True:
        try:
            return await d.submit("s", "x", run_id=run_id, when_busy="queue")
        except LedgerUnavailable:
            await asyncio.sleep(0.01)


def fail_once(d: DurableDispatcher, name: str, wrong: Exception) -> None:
    """Have the next call of this method of the ledger fail."""
    call = getattr(d._ledger, name)

    async def fails(*about: Any, **more: Any) -> Any:
        setattr(d._ledger, name, call)
        raise wrong

    setattr(d._ledger, name, fails)
