"""What a server asks of a dispatcher beside the contract: what is in flight, which cursor is older."""

from __future__ import annotations

import pytest

from dispatching import Agent, in_loop
from turngate import CursorExpired, Dispatcher


@in_loop
async def test_sessions_are_counted_while_something_is_in_flight() -> None:
    async with Dispatcher(Agent()) as d:
        assert d.session_count() == 0
        for session in "aab":
            await d.accept(session, "x")
        assert d.session_count() == len(d.sessions()) == 2
        await d.aclose()
        assert d.session_count() == 0


@in_loop
async def test_cursors_sort_in_the_order_of_the_completions() -> None:
    async with Dispatcher(lambda turn: quick()) as d:
        begin = d.end_cursor()
        for number in range(12):
            await d.ask("s", str(number))
        cursors = [begin, *[cursor async for cursor, _ in d.completions(until=d.end_cursor())]]
        assert sorted({*cursors}, key=d.cursor_order) == cursors
        assert d.cursor_order(cursors[-1]) == d.cursor_order(d.end_cursor())
        for wrong in ("", "x", "lost.1", f"{begin}.1"):
            with pytest.raises(CursorExpired):
                d.cursor_order(wrong)


async def quick() -> str:
    return "done"
