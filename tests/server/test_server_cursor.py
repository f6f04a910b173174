"""Places in the event stream, and a ledger whose RunCompletes come in another order, or late."""

from __future__ import annotations

import asyncio
import math
import random
import re
import string
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import quote, unquote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dispatching import in_loop
from serving import Ear, completes, served, serving
from turngate import CursorExpired, Delta, Dispatcher, Event, Moved, RunComplete, SessionView, Turn
from turngate.durable import DurableDispatcher, SqliteLedger
from turngate.server import Limits
from turngate.server._app import App
from turngate.server._cursor import Cursor, mark, parsed
from turngate.server._event_log import EventLog, LogReader
from turngate.server._ledger_backend import LedgerBackend
from turngate.server._memory_backend import MemoryBackend
from turngate.server._security import for_address

texts = st.text(max_size=20)


completions_cursors = st.from_regex(
    r"([A-Za-z0-9_-]{1,12}(\.[0-9]{1,18}){0,4}|lost\.[0-9]{1,5})", fullmatch=True
)


def marked(run_id: str) -> str:
    return mark(RunComplete("s", run_id, 1, "", None, False, None, None, "finished"))


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.builds(
        Cursor,
        st.sampled_from(["a1", "-"]),
        st.integers(0, 10**17),
        completions_cursors.filter(str.isascii),
        st.frozensets(texts.map(marked)),
    )
)
def test_a_place_is_its_text(place: Cursor) -> None:
    assert parsed(str(place)) == place
    assert str(place).isascii()
    assert str(place).isprintable()


@settings(deadline=None)
@given(st.text())
def test_other_texts_are_no_places_or_the_same(text: str) -> None:
    place = parsed(text)
    assert place is None or set(str(place)) <= set(string.ascii_letters + string.digits + ":.,_~%-")


CRAFTED = (
    "-:0:{0}:a\nevent: run.complete\ndata: {{}}\n\nid: x",
    "{1}:0:{0}:a\rdata: forged",
    "-:0:{0}:\xe9",
    "-:0:{0}:\u2028\U0001f600",
    "-:0:x%0Adata%3A%20forged.1.0",
    "-:0:{0}%00",
    "\u0661\u0662:1:{0}",
    "-:\u0661:{0}",
    "-:0:" + "9" * 19 + ".1",
    "{2}.9999999999999999999.0",
    "-:0:{0}:" + ",".join(["A" * 11] * 5_000),
    "-:0:" + "%41" * 3_000,
    "x" * 20_000,
    # Well formed, and made up.
    "forged:5:{0}",
    "forged:5:forged.1.0",
    "-:0:forged",
    "-:0:forged.1.2.3.4",
    "-:0:{0}:forgedforge",
    "-:0:lost%207",
)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_crafted_place_is_a_reset_and_nothing_of_it_comes_back(kind: str, tmp_path: Path) -> None:
    in_loop(send_crafted)(kind, tmp_path)


async def send_crafted(kind: str, folder: Path) -> None:
    d: Any = Dispatcher(nothing)
    if kind == "sqlite":
        d = DurableDispatcher(nothing, SqliteLedger(folder / "l.db"), poll=0.05)
    async with served(d) as (url, http):
        ear = await Ear.open(url)
        known = str((await anext(ear)).id)
        ear.close()
        await d.ask("s", "x")
        epoch, _, completions = known.split(":")
        for number, crafted in enumerate(CRAFTED):
            pre = unquote(completions).partition(".")[0]
            after = crafted.format(unquote(completions), epoch, pre)
            heads: list[dict[str, str]] = [{"path": f"/v1/events?after={quote(after, safe='')}"}]
            if after.isprintable() and after.isascii():
                heads.append({"path": "/v1/events", "Last-Event-ID": after})
            for head in heads:
                ear = await Ear.open(url, **head)
                if len(after) > 10_000:  # too large a request is refused as that
                    assert ear.status in (200, 400, 413, 414, 431)
                    if ear.status != 200:
                        ear.close()
                        continue
                came = await ear.until(lambda each: each.event == "snapshot")
                assert "forged" not in str(came)
                if not after.startswith("forged:5:" + pre):  # else it may be the log of another process
                    assert {each.event for each in came} <= {"gap", "snapshot"}
                    assert came[-1].data["reset"], after
                run = f"r{number}-{len(head)}"
                await http.post("/v1/sessions/s/runs", json={"prompt": "x", "run_id": run})
                heard = await ear.complete(run)
                assert {"forged", "\n"}.isdisjoint(str(each.id) for each in heard)
                assert "forged" not in str(heard)
                ear.close()


async def nothing(turn: Turn) -> None: ...


@pytest.mark.parametrize("seed", range(20))
@in_loop
async def test_a_reader_has_every_event_of_its_own_or_knows_that_it_is_behind(seed: int) -> None:
    """And no reader of a session is behind for what others have said, however small the ring is."""
    chance = random.Random(seed)
    log = EventLog(MemoryBackend(Dispatcher(nothing)), Limits(ring_events=4))
    unread: dict[LogReader, list[int]] = {LogReader(log, about): [] for about in ("a", "b", None)}
    for reader in unread:
        log.add(reader)
    for number in range(1, 500):
        session = chance.choice("aabbcccccc")
        log.append(Delta(session, "r", f"<{number}>", 0), None)
        for reader, numbers in unread.items():
            if reader.session_id in (None, session):
                numbers.append(number)
        if chance.random() < 0.3:
            await asyncio.sleep(0)  # those who wait are woken
        for reader, numbers in unread.items():
            if chance.random() < 0.7:
                continue
            assert reader.is_behind == bool(numbers and numbers[0] <= log.ring.floor)
            if reader.is_behind:
                assert reader.take() == b""
                reader.place = log.place
            else:
                assert [int(each) for each in re.findall(rb"<(\d+)>", reader.take())] == numbers
            numbers.clear()


class Ledger:
    """A dispatcher on a ledger, as far as the server needs it: snapshots are awaited, orders may differ.

    `tell` is what the relay brings to this process, `commit` what becomes a completion, in ledger order.
    """

    messages: Any = type("Store", (), {"list": lambda session_id, after=None, limit=None: None})

    def __init__(self, done: list[RunComplete] | None = None) -> None:
        self.done = [] if done is None else done
        self.changed = asyncio.Event()
        self.told: asyncio.Queue[Event | None] = asyncio.Queue()
        self.dropped = 0
        self.unbrought: set[int] = set()
        """The completions, counted from 1, that were committed before the subscription and seen later."""
        self.begun: int | None = None
        """How many completions there were when the subscription began; all, if it is not given."""

    def tell(self, event: Event) -> None:
        self.told.put_nowait(event)

    def commit(self, *completes: RunComplete) -> None:
        self.done += completes
        self.changed.set()

    async def __aenter__(self) -> None: ...

    async def __aexit__(self, *_: object) -> None: ...

    async def aclose(self, *, finish: float = 0) -> None:
        self.told.put_nowait(None)

    async def sessions(self) -> list[SessionView]:
        await asyncio.sleep(0)
        return []

    async def session(self, session_id: str) -> SessionView:
        return SessionView(session_id)

    async def find(self, run_id: str) -> None:
        return None

    async def submit(self, *_: object, **__: object) -> Any: ...

    async def cancel(self, *_: object, **__: object) -> Any: ...

    async def cancel_run(self, *_: object, **__: object) -> Any: ...

    async def cancel_all(self, **_: object) -> Any: ...

    async def clear_queue(self, *_: object, **__: object) -> Any: ...

    async def key_life(self) -> str:
        return "life"

    async def continues_life(self, life: str) -> bool:
        return life == "life"

    async def knows_key(self, key: str) -> bool:
        return False

    async def completions(
        self, after: str | None = None, *, until: str | None = None
    ) -> AsyncIterator[tuple[str, RunComplete]]:
        number = 0 if after is None else int(after.removeprefix("c.")) if after.startswith("c.") else -1
        last = math.inf if until is None else int(until.removeprefix("c."))
        if not 0 <= number <= len(self.done):
            raise CursorExpired(str(after))
        while number < last:
            while number < min(len(self.done), last):
                number += 1
                yield f"c.{number}", self.done[number - 1]
                await asyncio.sleep(0)
            if number < last:
                self.changed.clear()
                await self.changed.wait()

    async def settled_cursor(self) -> str:
        return f"c.{len(self.done)}"

    def cursor_order(self, cursor: str) -> tuple[int, ...]:
        return (int(cursor.removeprefix("c.")),)

    def call_before_close(self, call: object) -> None: ...

    async def beginning(self, _: object) -> Any:
        begun = len(self.done) if self.begun is None else self.begun
        return SimpleNamespace(
            cursor=f"c.{begun}",
            brings=lambda cursor, session_id: int(cursor.removeprefix("c.")) not in self.unbrought,
        )

    def subscribe(self, session_id: str | None = None, *, moves: bool = False) -> Any:
        return self

    def __aiter__(self) -> Ledger:
        return self

    async def __anext__(self) -> Event:
        if (event := await self.told.get()) is None:
            raise StopAsyncIteration
        return event

    def close(self) -> None: ...


def complete(run: str, session: str = "s") -> RunComplete:
    return RunComplete(session, run, 1, "", None, False, None, None, "finished")


def app(ledger: Ledger, ring: int = 8_192) -> App:
    security = for_address("127.0.0.1", token=None, names=frozenset(), origins=frozenset())
    backend = LedgerBackend(cast("Any", ledger))
    return App(backend, security, Limits(ring_events=ring), owns=True, finish=0)


@in_loop
async def test_runs_that_complete_in_another_order_come_once_from_any_place() -> None:
    ledger = Ledger([complete("old")])
    async with serving(app(ledger, ring=3)) as url:
        ear = await Ear.open(url)
        places = [(await anext(ear)).id]
        # This process hears of them in one order, and the ledger has another.
        for run in ("a", "b", "c"):
            ledger.tell(complete(run, session=run))
        heard = await ear.complete("a", "b", "c")
        places += [each.id for each in heard]
        ledger.commit(complete("c", "c"), complete("x", "x"), complete("a", "a"), complete("b", "b"))
        ledger.tell(complete("x", "x"))
        heard += await ear.complete("x")
        places.append(heard[-1].id)
        for number in range(4):
            ledger.tell(Moved("s", "clear"))
            ledger.tell(Delta("s", "r", "text", number))
        ledger.tell(Delta("s", "r", "last", 9))
        heard += await ear.until(lambda each: each.data.get("text") == "last" or each.event == "snapshot")
        assert completes(heard) == ["a", "b", "c", "x"]
        ear.close()
        for index, place in enumerate(places):
            again = await Ear.open(url, after=place)
            rest = await again.until(lambda each: each.event == "snapshot")
            assert rest[0].event == "gap"
            assert sorted(completes(rest)) == sorted(["a", "b", "c", "x"][index:]), place
            for at, each in enumerate(rest[1:-1], 2):
                cut = await Ear.open(url, after=each.id)
                left = await cut.until(lambda each: each.event == "snapshot")
                assert completes(left) == completes(rest[at:])
                cut.close()
            again.close()


@in_loop
async def test_after_a_restart_on_the_same_ledger_one_goes_on_exactly() -> None:
    first = Ledger([complete("old")])
    async with serving(app(first)) as url:
        ear = await Ear.open(url)
        await anext(ear)
        for run in ("a", "b"):
            first.tell(complete(run))
        (heard, *_) = await ear.complete("a")  # b is told, and not received
        first.commit(complete("a"), complete("b"))
        ear.close()
    second = Ledger([*first.done, complete("c")])
    async with serving(app(second)) as url:
        ear = await Ear.open(url, after=heard.id)
        rest = await ear.until(lambda each: each.event == "snapshot")
        assert [each.event for each in rest] == ["gap", "run.complete", "run.complete", "snapshot"]
        assert completes(rest) == ["b", "c"]
        assert rest[-1].data["reset"] is False
        ear.close()


@in_loop
async def test_a_completion_from_before_the_subscription_is_delivered_when_it_is_seen() -> None:
    ledger = Ledger()
    ledger.unbrought = {1, 3}
    async with serving(app(ledger)) as url:
        ear = await Ear.open(url)
        await anext(ear)
        ledger.commit(complete("stale"), complete("fresh"), complete("stale too"))
        heard = await ear.complete("stale")
        ledger.tell(complete("fresh"))
        heard += await ear.complete("fresh", "stale too")
        assert completes(heard) == ["stale", "fresh", "stale too"]
        ear.close()


@in_loop
async def test_the_log_mentions_no_run_that_was_complete_before_it_began() -> None:
    """A reader that comes back to this process may have received its RunComplete from another one."""
    ledger = Ledger([complete("old"), complete("a")])
    ledger.begun = 1
    async with serving(app(ledger)) as url:
        ear = await Ear.open(url)
        for event in (Moved("s", "handoff", "a"), Delta("s", "a", "text", 0), complete("a")):
            ledger.tell(event)
        ledger.tell(Moved("s", "handoff", "b"))
        heard = await ear.until(lambda each: each.event == "run.handoff")
        assert [each.data.get("run_id") for each in heard] == [None, "b"]
        ear.close()


@in_loop
async def test_ids_stay_short_however_many_are_ahead() -> None:
    ledger = Ledger()
    async with serving(app(ledger)) as url:
        ear = await Ear.open(url)
        await anext(ear)
        runs = [f"r{number}" for number in range(60)]
        for run in runs:
            ledger.tell(complete(run))
        await asyncio.sleep(0.05)
        ledger.commit(*map(complete, runs))
        heard = await ear.complete(*runs)
        assert completes(heard) == runs
        assert max(len(each.id or "") for each in heard) < 300
        ear.close()
