"""The text of a run that is complete: who finds its handle later reads the same, while it is kept."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest

from dispatching import Agent, active, in_loop, queued
from reading import TEXT, read, writes
from turngate import Dispatcher, Turn

pytestmark = pytest.mark.requirement("R-LOK-1")


def one_piece(turn: Turn) -> str | None:
    turn.write("one")
    return None


def same_again(turn: Turn) -> str | None:
    turn.write("one")
    turn.write(" two")
    return "one two"


def first_piece_is_the_answer(turn: Turn) -> str | None:
    answer = "an answer"
    turn.write(answer)
    turn.write(", and second thoughts")
    return answer


def something_else(turn: Turn) -> str | None:
    turn.write("one")
    return "two"


def nothing_in_the_end(turn: Turn) -> str | None:
    turn.write("one")
    return ""


def silent(turn: Turn) -> str | None:
    return "one"


@pytest.mark.parametrize("named", [True, False], ids=["named", "unnamed"])
@pytest.mark.parametrize(
    "script",
    [one_piece, same_again, first_piece_is_the_answer, something_else, nothing_in_the_end, silent],
    ids=lambda script: script.__name__,
)
@in_loop
async def test_a_handle_that_is_found_later_has_the_same_stream(
    script: Callable[[Turn], str | None], named: bool
) -> None:
    async def runner(turn: Turn) -> str | None:
        return script(turn)

    async with Dispatcher(runner) as d:
        run = await d.submit("s", "p", run_id="r" if named else None)
        await run
        text, run_id = await read(run), run.run_id
        assert text
        del run
        gc.collect()
        for start in range(len(text) + 2):
            found = d.find(run_id)
            assert found is not None
            assert found.lead is found
            assert await read(found, start) == text[start:]
        again = await d.accept("s", "p", run_id=run_id)
        assert await read(again) == text


@in_loop
async def test_a_handle_keeps_its_stream_though_the_completion_is_forgotten() -> None:
    async with Dispatcher(writes, completions_kept=1) as d:
        run = await d.submit("s", "p", run_id="r")
        half_way = run.stream()
        assert await anext(half_way) == "Hel"
        await run
        await d.ask("s", "q")
        assert d.find("r") is None
        assert await read(run) == TEXT
        assert "".join([piece async for piece in half_way]) == TEXT[3:]
        assert run.lead is run


@in_loop
async def test_the_lead_is_none_once_it_is_no_longer_known() -> None:
    agent = Agent()
    async with Dispatcher(agent, completions_kept=2) as d:
        lead = await active(d, "s", "p", run_id="lead")
        await queued(d, "s", "q", run_id="folded")
        await agent.turns[0].fold()
        agent.finish(lead)
        await lead
        agent.turns.clear()
        del lead
        gc.collect()
        folded = d.find("folded")
        assert folded is not None
        assert folded.lead is not None
        assert folded.lead.run_id == "lead"
        other = await active(d, "t", "other")
        agent.finish(other)
        await other
        assert d.find("lead") is None
        folded = d.find("folded")
        assert folded is not None
        assert folded.lead is None
