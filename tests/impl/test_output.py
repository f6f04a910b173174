"""What a turn produces: its text, its notes and what it keeps, and where all of that ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dispatching import Agent, active, in_loop, queued
from turngate import Dispatcher, TurnEnded
from turngate._core import RunRecord, TurnRecord
from turngate._events import Delta, Note
from turngate._handles import Run, Turn
from turngate._loop import HomeLoop


class Heard:
    """A turn, and the events that it has delivered."""

    def __init__(self) -> None:
        self.events: list[tuple[Delta | Note, int]] = []
        self.loop = HomeLoop()
        self.loop.check_loop()
        home: Any = SimpleNamespace(loop=self.loop, events=self)
        record = RunRecord("s", "r", 1, "p")
        self.turn = Turn(home, TurnRecord(record), Run(home, record), fence=1)

    def stream(self, event: Delta | Note, size: int) -> None:
        self.events.append((event, size))


@in_loop
async def test_text_is_kept_in_its_pieces_and_delivered_with_its_offset() -> None:
    heard = Heard()
    for text in ("par", "", "tial"):
        heard.turn.write(text)
    assert [event for event, _ in heard.events] == [
        Delta("s", "r", "par", 0),
        Delta("s", "r", "", 3),
        Delta("s", "r", "tial", 3),
    ]
    assert heard.turn.parts == ["par", "tial"]
    assert heard.turn.so_far() == (7, "partial", None)


@in_loop
async def test_a_turn_that_is_over_takes_nothing() -> None:
    heard = Heard()
    heard.turn.keep({"n": 1})
    heard.turn.end_output()
    with pytest.raises(TurnEnded, match="write"):
        heard.turn.write("late")
    with pytest.raises(TurnEnded, match="emit"):
        heard.turn.emit("kind", None)
    with pytest.raises(TurnEnded, match="keep"):
        heard.turn.keep({"n": 2})
    assert heard.events == []
    assert heard.turn.so_far() == (0, "", '{"n": 1}')


@in_loop
async def test_no_run_joins_a_turn_that_is_over() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        run = await active(d, "s", "p", run_id="a")
        agent.finish(run)
        await run
        await active(d, "s", "q")
        waits = await queued(d, "s", "r")
        with pytest.raises(TurnEnded, match="fold"):
            await agent.turns[0].fold()
        with pytest.raises(TurnEnded, match="fold"):
            agent.turns[0].waiting()
        assert d.queued("s") == [waits]


@pytest.mark.parametrize(("text", "expected"), [(None, "partial"), ("", ""), ("else", "else")])
@in_loop
async def test_what_was_written_is_the_text_unless_the_runner_returns_one(
    text: str | None, expected: str
) -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        run = await active(d, "s", "p")
        agent.turns[0].write("par")
        agent.turns[0].write("tial")
        agent.finish(run, text)
        assert (await run).text == expected


@in_loop
async def test_a_run_that_is_queued_loses_its_hook() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        first = await active(d, "s", "p", on_complete=print)
        behind = await queued(d, "s", "q", on_complete=print)
        assert first.on_complete is print
        assert behind.on_complete is None
        first.on_complete = None


def test_a_handle_shows_what_is_on_record() -> None:
    record = RunRecord("s", "r", 7, "p", "queue")
    run = Run(None, record)  # type: ignore[arg-type]  # its home is never asked
    assert (run.session_id, run.run_id, run.seq, run.prompt, run.when_busy) == ("s", "r", 7, "p", "queue")
    assert not run.covered
    record.covered = True
    assert run.covered
    assert repr(record) == "<run r, seq 7, accepted>"
