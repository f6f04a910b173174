"""What a process sends others of what its turns stream, and takes from them: by itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from sys import getsizeof
from typing import Any

import pytest

import turngate.durable.feed._relay as relay_module
from dispatching import in_loop, steps
from turngate import Delta, Note
from turngate.durable import LedgerUnavailable
from turngate.durable.feed._relay import StreamRelay, pack


class Told:
    """Stands in for the stepper, the ledger and the delivery."""

    longest_message = 1_000

    def __init__(self) -> None:
        self.ledger = self.loop = self.tasks = self.supervisor = self
        self.listened = True
        self.relayed: list[Any] = []
        self.wrong: list[BaseException] = []
        self.heard: list[Callable[[str], None] | None] = []
        self.complete_runs: set[str] = set()
        self.delivered: list[tuple[Any, int, int]] = []
        self.may_send = asyncio.Event()
        self.may_send.set()

    def check_loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    def start(self, name: str, call: Any) -> Any:
        return asyncio.ensure_future(call())

    def has_listeners(self) -> bool:
        return self.listened

    async def relay(self, messages: list[str]) -> None:
        await self.may_send.wait()
        if self.wrong:
            raise self.wrong.pop(0)
        self.relayed.append([json.loads(message) for message in messages])

    def on_relay(self, heard: Callable[[str], None] | None) -> None:
        if self.wrong:
            raise self.wrong.pop(0)
        self.heard.append(heard)

    def stream_remote(self, event: Any, size: int, missing: int) -> None:
        self.delivered.append((event, size, missing))


def relay_of(told: Any) -> StreamRelay:
    return StreamRelay(told, told)


def delta(text: str, offset: int = 0, run: str = "r", session: str = "s") -> Delta:
    return Delta(session, run, text, offset)


# Sending.


@in_loop
async def test_pieces_that_follow_each_other_are_sent_as_one() -> None:
    told = Told()
    relay = relay_of(told)
    for event in (
        delta("ab"), delta("c", 2), delta("e", 4), delta("", 5),
        delta("x", 5, run="q"), delta("w", 6, run="q"), delta("y", 6, run="q", session="other"),
        Note("s", "q", "k", {"n": 1}), delta("z", 6, run="q"),
        Note("s", "q", "k", 2), Note("s", "r", "k", 3),
    ):  # fmt: skip
        relay.send(event)
    await relay.flush()
    assert told.relayed == [[[
        ["s", "r", 0, "abc"], ["s", "r", 4, "e"], ["s", "q", 5, "xw"], ["other", "q", 6, "y"],
        ["s", "q", 0, "k", {"n": 1}], ["s", "q", 6, "z"], ["s", "q", 1, "k", 2], ["s", "r", 0, "k", 3],
    ]]]  # fmt: skip
    await relay.flush()
    assert len(told.relayed) == 1  # there was nothing


@in_loop
async def test_collected_text_is_limited_and_nothing_is_collected_without_listeners(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(relay_module, "_COLLECTED", 10)
    told = Told()
    relay = relay_of(told)
    told.listened = False
    relay.send(delta("nobody"))
    relay.send(Note("s", "r", "k", 0))
    told.listened = True
    relay.send(delta("01234"))
    relay.send(Note("s", "r", "abc", 12))  # five characters: three of the kind, two of the data
    relay.send(delta("5", 5))
    relay.send(Note("s", "r", "", 1))
    await relay.flush()
    assert told.relayed == [[[["s", "r", 0, "01234"], ["s", "r", 1, "abc", 12]]]]  # and one note is missing
    relay.send(delta("0123456789", 6))
    await relay.flush()
    assert len(told.relayed) == 2  # there is room again


@in_loop
async def test_it_is_sent_after_a_moment_and_at_the_end_of_the_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_module, "_EVERY", 0.01)
    told = Told()
    relay = relay_of(told)
    relay.send(delta("a"))
    relay.send(delta("b", 1))
    while not told.relayed:
        await asyncio.sleep(0.001)
    assert told.relayed == [[[["s", "r", 0, "ab"]]]]
    relay.send(Note("s", "r", "k", 0))
    await relay.end_turn("r")
    relay.send(Note("s", "r", "k", 0))  # of another turn: it is counted anew
    await relay.end_turn("r")
    assert [sent[0][0][2] for sent in told.relayed[1:]] == [0, 0]
    await relay.end_turn("r")
    assert len(told.relayed) == 3
    told.may_send.clear()
    relay.send(delta("c", 2))
    await relay.end_turn("r")  # it is not waited for long
    assert len(told.relayed) == 3
    told.may_send.set()
    while len(told.relayed) < 4:
        await steps()


@in_loop
async def test_items_that_cannot_be_sent_are_dropped_and_logged_unless_the_ledger_is_away(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told = Told()
    relay = relay_of(told)
    told.wrong = [LedgerUnavailable("away")]
    relay.send(delta("a"))
    await relay.flush()
    assert not caplog.text
    told.wrong = [RuntimeError("broken")]
    relay.send(delta("b"))
    await relay.flush()
    assert "broken" in caplog.text
    assert (told.relayed, relay.outbox) == ([], [])


def test_messages_use_the_allowed_length_and_no_more() -> None:
    item: list[Any] = ["s", "r", 0, "0123456789"]
    text = json.dumps(item)
    assert pack([], 99) == []
    assert pack([item, item], 2 * len(text) + 3) == [f"[{text},{text}]"]
    assert pack([item, item], 2 * len(text) + 2) == [f"[{text}]"] * 2
    short: list[Any] = ["s", "r", 0, ""]
    ends = json.dumps(short)
    assert pack([item, short, short], len(text) + 2) == [f"[{text}]", *[f"[{ends}]"] * 2]
    assert pack([item, short, short], 2 * len(ends) + 3) == [f"[{text}]", f"[{ends},{ends}]"]
    assert pack([item], len(text) + 2) == [f"[{text}]"]
    halves = [json.loads(message) for message in pack([item], len(text) + 1)]
    assert halves == [[["s", "r", 0, "01234"]], [["s", "r", 5, "56789"]]]
    assert pack([["s", "r", 0, "kind", "data"]], 10) == []
    assert pack([["s", "r", 0, "x"]], 10) == []
    assert len(pack([["s", "r", 7, "ab"]], 20)) == 2


# Receiving.


@in_loop
async def test_it_listens_once_and_stops_once(caplog: pytest.LogCaptureFixture) -> None:
    told = Told()
    relay = relay_of(told)
    relay.stop_listening()
    relay.listen()
    relay.listen()
    relay.stop_listening()
    relay.stop_listening()
    assert told.heard == [relay.on_message, None]
    told.wrong = [RuntimeError("broken")]
    relay.listen()
    assert "broken" in caplog.text


@in_loop
async def test_missing_items_of_a_turn_elsewhere_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_module, "_TURNS", 2)
    told = Told()
    relay = relay_of(told)

    def hear(*items: list[Any]) -> list[tuple[Any, int]]:
        told.delivered.clear()
        relay.on_message(json.dumps(items))
        for event, size, _ in told.delivered:
            assert isinstance(event, Note) or size == getsizeof(event.text)
        return [(event, missing) for event, _, missing in told.delivered]

    assert hear(["s", "r", 3, "abc"], ["s", "r", 6, "d"]) == [(delta("abc", 3), 0), (delta("d", 6), 0)]
    assert hear(["s", "r", 9, "e"], ["s", "r", 4, "x"]) == [(delta("e", 9), 1), (delta("x", 4), 0)]
    assert hear(["s", "r", 3, "k", {"a": 1}]) == [(Note("s", "r", "k", {"a": 1}), 0)]
    assert told.delivered[0][1] == 9
    assert hear(["s", "r", 6, "k", 0]) == [(Note("s", "r", "k", 0), 2)]
    assert hear(["s", "r", 5, "y"]) == [(delta("y", 5), 0)]
    told.complete_runs = {"r"}
    assert hear(["s", "r", 6, "late"]) == []
    told.complete_runs = set()
    for run in ("p", "q", "r"):
        hear(["s", run, 0, "ab"])
    assert hear(["s", "p", 9, "z"]) == [(delta("z", 9, run="p"), 0)]  # it was forgotten
    assert hear(["s", "r", 9, "z"]) == [(delta("z", 9), 1)]
    relay.listen()
    relay.stop_listening()
    assert hear(["s", "r", 99, "z"]) == [(delta("z", 99), 0)]


@in_loop
async def test_items_streamed_before_it_listened_are_not_missing() -> None:
    told = Told()
    relay = relay_of(told)
    for items in (
        (["s", "p", 9, "text"], ["s", "p", 5, "k", 0], ["s", "p", 7, "k", 0], ["s", "p", 14, "x"]),
        (["s", "q", 5, "k", 0], ["s", "q", 9, "text"], ["s", "q", 14, "x"], ["s", "q", 7, "k", 0]),
        (["s", "r", 5, "k", 0], ["s", "r", 7, "k", 0]),
    ):
        relay.on_message(json.dumps(items))
    assert [missing for _, _, missing in told.delivered] == [0, 0, 1, 1, 0, 0, 1, 1, 0, 1]


@in_loop
async def test_an_invalid_message_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    relay = relay_of(Told())
    for message in ("", "[1]", '[["s"]]', '{"a": 1}'):
        caplog.clear()
        relay.on_message(message)
        assert caplog.records
