"""The event streams: what comes first, what comes again, what never does."""

from __future__ import annotations

import asyncio
import socket
from functools import partial

import pytest

from dispatching import Agent, echo, in_loop, steps
from serving import Ear, Heard, Line, completes, follow, names, recorded, served, small
from turngate import Dispatcher, Turn
from turngate.server import Limits
from turngate.server._event_log import LogReader
from turngate_verify.trace import check


async def talkative(turn: Turn) -> None:
    """Say five words, and take in what waits."""
    for number in range(5):
        turn.write(f"{number} ")
        await asyncio.sleep(0)
    turn.emit("said", {"words": 5})
    await turn.fold()


@in_loop
async def test_everything_comes_in_order_with_an_id_each() -> None:
    d = Dispatcher(talkative)
    async with d, served(d) as (url, _):
        ear = await Ear.open(url)
        assert ear.status == 200
        assert "content-type: text/event-stream; charset=utf-8\r\n" in ear.headers
        first = await anext(ear)
        assert (first.event, first.data["sessions"], first.data["reset"]) == ("snapshot", [], False)
        assert first.data["cursor"] == first.id
        await d.submit("s", "tea", run_id="a")
        await d.submit("s", "soup", run_id="b")
        heard = await ear.complete("a", "b")
        assert names(heard) == [
            *("run.accept", "run.accept", "run.enter", "run.enter"),
            *("delta",) * 5,
            *("note", "run.fold", "run.complete", "run.complete"),
        ]
        assert all(each.id for each in heard)
        assert len({each.id for each in heard}) == len(heard)
        assert heard[0].data == {"session_id": "s", "run_id": "a", "seq": 1, "prompt": "tea", "into": None}
        assert heard[3].data == {"session_id": "s", "run_id": "b", "seq": 2, "state": "queued"}
        assert heard[5].data == {"session_id": "s", "run_id": "a", "text": "1 ", "offset": 2}
        assert heard[9].data == {"session_id": "s", "run_id": "a", "kind": "said", "data": {"words": 5}}
        assert heard[10].data == {"session_id": "s", "run_id": "b", "seq": 2, "into": "a"}
        assert heard[12].data["folded_into"] == "a"
        await d.cancel("s")
        ear.close()


@in_loop
async def test_one_session_is_heard_alone() -> None:
    d = Dispatcher(talkative)
    async with d, served(d) as (url, _):
        ear = await Ear.open(url, "/v1/sessions/s%2Ft/events")
        assert [view["session_id"] for view in (await anext(ear)).data["sessions"]] == ["s/t"]
        for number in range(3):
            await d.submit("other", "x", run_id=f"o{number}")
            await d.submit("s/t", "x", run_id=f"m{number}")
        heard = await ear.complete("m0", "m1", "m2")
        assert {each.data["session_id"] for each in heard} == {"s/t"}
        ear.close()


def is_about(run_id: str, heard: Heard) -> bool:
    return bool(heard.data.get("run_id") == run_id)


@in_loop
async def test_a_snapshot_and_its_place_belong_together() -> None:
    """However much is told and not read yet: what a snapshot shows is not told again; nothing is skipped."""
    agent = Agent()
    d = Dispatcher(agent)
    async with d, served(d) as (url, http):
        for number in range(20):
            await d.accept("s", "x", run_id=f"r{number}")  # told to the log, which has not been woken yet
            if number % 5 == 0:
                view = (await http.get("/v1/sessions/s")).json()
                seen = [run["run_id"] for run in view["accepted"]]
                ear = await Ear.open(url, after=view["cursor"])
                await d.accept("s", "x", run_id=f"n{number}")
                after = await ear.until(partial(is_about, f"n{number}"))
                assert len(after) == 1, (seen, after)
                ear.close()
        ear = await Ear.open(url)
        snapshot = await anext(ear)
        (view,) = snapshot.data["sessions"]
        assert len(view["accepted"]) == 24
        ear.close()


@in_loop
async def test_a_reader_goes_on_where_it_was() -> None:
    d = Dispatcher(talkative)
    async with d, served(d) as (url, _):
        ear = await Ear.open(url)
        await anext(ear)
        await d.ask("s", "x", run_id="a")
        whole = await ear.complete("a")
        await d.ask("s", "x", run_id="b")
        whole += await ear.complete("b")
        ear.close()
        for index, each in enumerate(whole[:-1]):
            by_header = index % 2 == 0
            again = await Ear.open(
                url,
                "/v1/events" if by_header else f"/v1/events?after={each.id}",
                each.id if by_header else None,
            )
            assert await again.complete("b") == whole[index + 1 :]
            again.close()


@in_loop
async def test_behind_the_ring_there_is_a_gap_and_every_completion() -> None:
    d = Dispatcher(talkative)
    async with d, served(d, limits=small(ring_events=4)) as (url, http):
        ear = await Ear.open(url)
        before = (await anext(ear)).id
        ear.close()
        expected = [(await d.ask("s" if n % 2 else "t", "x", run_id=f"r{n}")).run_id for n in range(9)]
        assert before is not None
        for path, mine in (("/v1/events", expected), ("/v1/sessions/s/events", expected[1::2])):
            ear = await Ear.open(url, path, before)
            heard = await ear.until(lambda each: each.event == "snapshot")
            assert names(heard) == ["gap", *["run.complete"] * len(mine), "snapshot"]
            assert heard[0].id is None
            assert completes(heard) == mine
            assert heard[-1].data["reset"] is False
            ear.close()
            # Cut off anywhere in between, one goes on with what was not received.
            for index, each in enumerate(heard[1:-1], 1):
                again = await Ear.open(url, path, each.id)
                rest = await again.until(lambda each: each.event == "snapshot")
                assert completes(rest) == mine[index:]
                again.close()
        assert "turngate_streams_gaps_total 15" in (await http.get("/metrics")).text


@in_loop
async def test_a_place_that_is_not_known_is_a_reset() -> None:
    d = Dispatcher(talkative)
    async with d, served(d) as (url, _):
        await d.ask("s", "x")
        for after in ("nonsense", "::", "a:b:c", "00000000:1:", "00000000:1:gone.4", "x" * 500, "1:1:1:1:1"):
            ear = await Ear.open(url, after=after)
            first = await anext(ear)
            assert (first.event, first.data["reset"]) == ("snapshot", True), after
            ear.close()
        ear = await Ear.open(url)
        known = (await anext(ear)).id
        ear.close()
        assert known is not None
        epoch, _, completions = known.split(":")
        ear = await Ear.open(url, after=f"{epoch}:999999:{completions}")
        assert (await anext(ear)).data["reset"] is True
        ear.close()


@in_loop
async def test_completions_that_are_no_longer_kept_are_a_reset_and_never_silence() -> None:
    for kept in (0, 2):
        d = Dispatcher(talkative, completions_kept=kept)
        async with d, served(d, limits=small(ring_events=3)) as (url, _):
            ear = await Ear.open(url)
            first = await anext(ear)
            ear.close()
            for number in range(5):
                await d.ask("s", "x", run_id=f"r{number}")
            ear = await Ear.open(url, after=first.id)
            heard = await ear.until(lambda each: each.event == "snapshot")
            assert heard[-1].data["reset"] is True
            ear.close()


@in_loop
async def test_a_quiet_session_does_not_fall_behind_and_hears_that_the_line_is_alive() -> None:
    d = Dispatcher(talkative)
    async with d, served(d, limits=small(ring_events=4, heartbeat=0.05)) as (url, http):
        ear = await Ear.open(url, "/v1/sessions/quiet/events")
        await anext(ear)
        for number in range(10):
            await d.ask("loud", "x", run_id=f"l{number}")
        await d.submit("quiet", "x", run_id="q")
        heard = [await anext(ear)]
        assert names(heard) == ["run.accept"]  # no gap, though the ring has turned over many times
        heard += await ear.until(lambda each: each.event in ("run.complete", "gap"))

        async def until_alive() -> None:
            async for _ in ear:
                pass

        waiting = asyncio.ensure_future(until_alive())
        while "alive" not in ear.comments:
            await asyncio.sleep(0.01)
        place = ear.last_id
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        ear.close()
        # The heartbeat has brought its place along.
        assert place == (await http.get("/v1/sessions/quiet")).json()["cursor"]


@in_loop
async def test_a_reader_that_blocks_is_dropped_and_the_others_go_on() -> None:
    async def flood(turn: Turn) -> None:
        for _ in range(400):
            turn.write("x" * 16_384)
            await asyncio.sleep(0)

    d = Dispatcher(flood)
    limits = small(write_timeout=1.0, ring_bytes=2_000_000)
    async with d, served(d, limits=limits) as (url, http):
        blocked = socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])))
        blocked.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        blocked.sendall(b"GET /v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        ear = await Ear.open(url)
        await anext(ear)
        await d.submit("s", "x", run_id="r")
        heard = await ear.complete("r")
        assert completes(heard) == ["r"]
        while "turngate_streams_dropped_total 1\n" not in (await http.get("/metrics")).text:
            await asyncio.sleep(0.05)
        while "turngate_streams 1\n" not in (await http.get("/metrics")).text:
            await asyncio.sleep(0.01)
        blocked.close()
        ear.close()


@in_loop
async def test_the_number_of_streams_is_limited() -> None:
    async with served(talkative, limits=small(streams_limit=2)) as (url, _):
        ears = [await Ear.open(url) for _ in range(2)]
        refused = await Ear.open(url)
        assert refused.status == 503
        assert "retry-after" in refused.headers
        ears[0].close()
        refused.close()
        while (again := await Ear.open(url)).status == 503:
            again.close()
            await asyncio.sleep(0.01)
        again.close()
        ears[1].close()


@in_loop
async def test_a_log_that_is_cut_off_begins_anew_and_misses_no_completion() -> None:
    d = Dispatcher(talkative, complete_limit=30)
    async with d, served(d, limits=small(heartbeat=3_600)) as (url, _):
        ear = await Ear.open(url)
        await anext(ear)
        # Without a step of the loop in between, so that the log cannot keep up.
        runs = [await d.accept(f"s{number}", "x", run_id=f"r{number}") for number in range(40)]
        for run in runs:
            await d.enter(run)
        heard = await ear.complete(*(run.run_id for run in runs))
        assert "gap" in names(heard)
        assert sorted(completes(heard)) == sorted(run.run_id for run in runs)
        ear.close()


@in_loop
async def test_a_hole_in_the_text_is_seen_by_the_offsets() -> None:
    async def breathless(turn: Turn) -> None:
        for number in range(3_000):
            turn.write(f"{number} ")

    d = Dispatcher(breathless)
    async with d, served(d) as (url, http):
        ear = await Ear.open(url)
        await anext(ear)
        done = await d.ask("s", "x", run_id="r")
        heard = await ear.complete("r")
        deltas = [each.data for each in heard if each.event == "delta"]
        assert len(deltas) == 1_024
        for each in deltas:
            assert done.text[each["offset"] :].startswith(each["text"])
        assert "turngate_events_dropped_total 1976\n" in (await http.get("/metrics")).text
        ear.close()


@in_loop
async def test_cut_at_random_bytes_nothing_is_missing_and_nothing_comes_twice() -> None:
    """One reader per session and two of all, over lines that are cut after every few hundred bytes."""
    for ring in (4, 8_192):
        d = Dispatcher(talkative)
        async with d, served(d, limits=Limits(ring_events=ring)) as (url, _):
            line = Line(url, cuts=(300, 3_000), seed=ring)
            expected = {f"r{number}": f"s{number % 4}" for number in range(120)}
            async with line.up() as near:
                readers = [
                    asyncio.create_task(follow(lambda: near, session, expected))
                    for session in (None, None, "s0", "s1", "s2", "s3")
                ]
                await steps(100)
                for run, session in expected.items():
                    await d.submit(session, "x", run_id=run)
                    await asyncio.sleep(0.001)
                for reader in readers:
                    await reader
            assert line.connections > 20


@in_loop
async def test_a_history_recorded_from_the_stream_holds() -> None:
    d = Dispatcher(talkative)
    async with d, served(d) as (url, http):
        ear = await Ear.open(url)
        await anext(ear)
        runs = []
        for number in range(60):
            session, busy = f"s{number % 3}", ("fold", "queue", "interrupt")[number % 7 % 3]
            sent = {"prompt": "x", "run_id": f"r{number}", "when_busy": busy}
            assert (await http.post(f"/v1/sessions/{session}/runs", json=sent)).status_code == 202
            runs.append(f"r{number}")
            if number % 11 == 0:
                await http.post(f"/v1/sessions/{session}/cancel")
            if number % 13 == 0:
                await http.delete(f"/v1/sessions/{session}/queue")
        heard = await ear.complete(*runs)
        ear.close()
    checked = check(recorded(heard))
    assert (checked.verdict, checked.offence, checked.runs) == ("holds", None, 60)


def test_a_heartbeat_does_not_pass_events_that_come_at_the_same_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client whose connection breaks between the two would go on behind events that it never had."""
    wait = LogReader.wait

    @in_loop
    async def check() -> None:
        d = Dispatcher(echo)
        late = [d]

        async def time_is_up(self: LogReader) -> None:
            if not late:
                return await wait(self)
            await late.pop().ask("s", "p", run_id="a")
            while not self._log.counts["run.complete"]:
                await asyncio.sleep(0)
            raise TimeoutError

        monkeypatch.setattr(LogReader, "wait", time_is_up)
        async with d, served(d) as (url, _):
            ear = await Ear.open(url)
            ids: list[int] = []
            understand = ear._heard

            def heard(frame: bytes) -> Heard | None:
                found = understand(frame)
                ids.extend([int(ear.last_id.split(":")[1])] if ear.last_id else [])
                return found

            monkeypatch.setattr(ear, "_heard", heard)
            await ear.complete("a")
            assert ids == sorted(ids)
            ear.close()

    check()


def test_a_heartbeat_comes_also_while_other_sessions_are_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log moves on with every event of another session, which a reader of a quiet one does not take."""
    wait = LogReader.wait

    @in_loop
    async def check() -> None:
        d = Dispatcher(echo)

        async def time_is_up(self: LogReader) -> None:
            busy = self._log.counts["run.complete"]
            if busy == 20:
                await d.submit("quiet", "q", run_id="q")
            if busy >= 20:
                return await wait(self)
            await d.ask("busy", "p")
            while self._log.counts["run.complete"] == busy:
                await asyncio.sleep(0)
            raise TimeoutError

        monkeypatch.setattr(LogReader, "wait", time_is_up)
        async with d, served(d) as (url, _):
            ear = await Ear.open(url, "/v1/sessions/quiet/events")
            await ear.complete("q")
            assert "alive" in ear.comments
            ear.close()

    check()
