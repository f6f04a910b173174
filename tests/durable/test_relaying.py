"""What turns stream reaches the subscribers of other processes, in chunks, and what is lost is counted."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dispatching import in_loop
from ledgers import MakeLedger, on_each
from turngate import Delta, Note, RunComplete, Turn
from turngate.durable import DurableDispatcher, SqliteLedger
from turngate.durable._records import Ask, Decide, Decision
from turngate.durable.feed._relay import pack
from turngate_verify.world.memory_ledger import MemoryLedger, Tables


class Writer:
    """A runner that writes on command."""

    def __init__(self) -> None:
        self.orders: asyncio.Queue[tuple[str, Any] | None] = asyncio.Queue()

    async def __call__(self, turn: Turn) -> None:
        while (order := await self.orders.get()) is not None:
            what, about = order
            if what == "thread":
                await asyncio.to_thread(turn.write, about)
            elif what == "write":
                turn.write(about)
            else:
                turn.emit(what, about)


async def overheard(d: DurableDispatcher) -> None:
    while not d._ledger.has_listeners():
        await asyncio.sleep(0.01)


def joined(events: list[Any]) -> list[Any]:
    """Return the events with text that follows on text made one."""
    found: list[Any] = []
    for event in events:
        last = found[-1] if found else None
        if (
            isinstance(event, Delta)
            and isinstance(last, Delta)
            and last.offset + len(last.text) == event.offset
        ):
            found[-1] = last._replace(text=last.text + event.text)
        else:
            found.append(event)
    return found


@on_each
async def test_a_subscriber_in_another_process_gets_what_a_turn_streams(make: MakeLedger) -> None:
    write = Writer()
    async with DurableDispatcher(write, make()) as one, DurableDispatcher(write, make(), poll=0.02) as two:
        mine, other = two.subscribe("s"), two.subscribe("t")
        moves = two.subscribe(moves=True)
        await two.session("s")
        await overheard(one)
        run = await one.submit("s", "p")
        for order in (
            ("write", "h\ud800"),
            ("thread", "i\0"),
            ("tool", {"n": 1}),
            ("write", "ü" * 9_000),
            None,
        ):
            write.orders.put_nowait(order)
        complete = await run
        wanted = [
            Delta("s", run.run_id, "h\ud800i\0", 0), Note("s", run.run_id, "tool", {"n": 1}),
            Delta("s", run.run_id, "ü" * 9_000, 4), complete,
        ]  # fmt: skip
        for events in (mine, moves):
            told: list[Any] = []
            while complete not in told:
                told.append(await anext(events))
            assert (
                joined([event for event in told if isinstance(event, Delta | Note | RunComplete)]) == wanted
            )
        assert [each.dropped for each in (mine, moves, other)] == [0, 0, 0]
        await one.cancel("t")
        other.close()
        assert [event async for event in other] == []


@on_each
async def test_nothing_is_relayed_without_listeners(make: MakeLedger) -> None:
    write = Writer()
    async with (
        DurableDispatcher(write, make()) as one,
        DurableDispatcher(write, make()),
        one.subscribe() as events,
    ):
        await one.session("s")
        run = await one.submit("s", "p")
        for order in (("write", "text"), ("note", 1)):
            write.orders.put_nowait(order)
        assert [await anext(events), await anext(events)] == [
            Delta("s", run.run_id, "text", 0),
            Note("s", run.run_id, "note", 1),
        ]
        assert not one._feed.relay.outbox
        write.orders.put_nowait(None)
        await run


@in_loop
async def test_lost_items_are_counted() -> None:
    tables = Tables()
    ledgers = MemoryLedger(tables), MemoryLedger(tables)
    loses = False

    async def relay(messages: Sequence[str]) -> None:
        if not loses:
            await MemoryLedger.relay(ledgers[0], messages)

    ledgers[0].relay = relay  # type: ignore[method-assign]  # to lose messages
    write = Writer()
    async with (
        DurableDispatcher(write, ledgers[0]) as one,
        DurableDispatcher(write, ledgers[1], poll=0.01) as two,
    ):
        events, other = two.subscribe("s"), two.subscribe("t")
        await two.session("s")
        run = await one.submit("s", "p")

        async def say(*orders: tuple[str, Any]) -> None:
            for order in orders:
                write.orders.put_nowait(order)
            while not write.orders.empty():
                await asyncio.sleep(0)
            await asyncio.sleep(0)
            await one._feed.flush()

        await say(("write", "a"), ("note", 1))
        loses = True
        await say(("write", "b"), ("note", 2), ("note", 3))
        loses = False
        await say(("write", "c"), ("note", 4))
        assert [await anext(events) for _ in range(4)] == [
            Delta("s", run.run_id, "a", 0), Note("s", run.run_id, "note", 1),
            Delta("s", run.run_id, "c", 2), Note("s", run.run_id, "note", 4),
        ]  # fmt: skip
        assert events.dropped == 3  # a piece of text, and two notes
        assert other.dropped == 0
        two._feed.relay.on_message("nonsense")
        two._feed.relay.on_message('[["s"]]')
        write.orders.put_nowait(None)
        complete = await run
        assert await anext(events) == complete
        two._feed.relay.on_message(json.dumps([["s", run.run_id, 3, "too late"]]))
        events.close()
        assert [event async for event in events] == []


def test_messages_are_short_and_lose_no_text() -> None:
    said: list[list[Any]] = [
        ["s", "r", 0, "x" * 500],
        ["s", "r", 0, "kind", "y" * 500],
        ["s", "r", 500, "\U0001f600" * 90],
    ]
    messages = pack(said, 120)
    assert max(map(len, messages)) <= 120
    heard = [each for message in messages for each in json.loads(message)]
    assert "".join(each[3] for each in heard) == "x" * 500 + "\U0001f600" * 90
    offset = 0
    for each in heard:
        assert each[2] == offset
        offset += len(each[3])
    assert len(pack(said[:1] * 3, 10_000)) == 1


def leave_dead_socket(folder: Path, name: str) -> None:
    """Leave a socket as a process does that is killed while it listens."""
    handle = os.open(folder, os.O_RDONLY)  # the address of a socket has little room
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as dead:
        dead.bind(f"/proc/self/fd/{handle}/{name}")
    os.close(handle)


@pytest.mark.parametrize("folder", ["short", "long" * 40])
def test_the_sockets_of_a_ledger_in_a_file_come_and_go(folder: str, tmp_path: Path) -> None:
    home = tmp_path / folder
    home.mkdir()

    @in_loop
    async def coming_and_going() -> None:
        write = Writer()
        one, two = (DurableDispatcher(write, SqliteLedger(home / "ledger.db")) for _ in range(2))
        async with one, two:
            foreign = home / f"ledger.db-relay-{'0' * 16}"
            foreign.touch()  # looks like a socket of ours, and is a file
            leave_dead_socket(home, f"ledger.db-relay-{'1' * 16}")
            events = two.subscribe()
            await two.session("s")
            await overheard(one)
            run = await one.submit("s", "p")
            for order in (("write", "text"), None):
                write.orders.put_nowait(order)
            assert await anext(events) == Delta("s", run.run_id, "text", 0)
        assert [name for name in os.listdir(home) if "relay" in name] == [foreign.name]

    coming_and_going()


class Told(SqliteLedger):
    """Is always listened to, notes what is done in which order, and says things only when it may."""

    def __init__(self, path: Path, *, may_speak: bool) -> None:
        super().__init__(path)
        self.done: list[str] = []
        self._may_speak = may_speak

    def has_listeners(self) -> bool:
        return True

    async def relay(self, messages: Sequence[str]) -> None:
        for _ in range(20):
            await asyncio.sleep(0)
        while not self._may_speak:
            await asyncio.sleep(0.01)
        self.done.append("relay")

    async def step(self, ask: Ask, decide: Decide) -> Decision:
        self.done.append("step")
        return await super().step(ask, decide)


@pytest.mark.parametrize("may_speak", [True, False])
def test_the_outcome_waits_for_the_last_text_but_not_forever(may_speak: bool, tmp_path: Path) -> None:
    async def writes(turn: Turn) -> None:
        turn.write("text")

    @in_loop
    async def finishing() -> None:
        ledger = Told(tmp_path / "ledger.db", may_speak=may_speak)
        async with DurableDispatcher(writes, ledger) as d:
            assert (await d.ask("s", "p")).text == "text"
            assert ledger.done == (["step", "relay", "step"] if may_speak else ["step", "step"])
            ledger._may_speak = True

    finishing()
