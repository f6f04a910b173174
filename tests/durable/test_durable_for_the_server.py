"""What a server asks of a dispatcher on a ledger beside the contract."""

from __future__ import annotations

import pytest

from ledgers import MakeLedger, on_each
from turngate import CursorExpired, Turn
from turngate.durable import DurableDispatcher


async def quick(turn: Turn) -> str:
    return "done"


@on_each
async def test_cursors_sort_in_the_order_of_the_completions(make: MakeLedger) -> None:
    async with DurableDispatcher(quick, make(), poll=0.05) as d:
        begin = await d.settled_cursor()
        for number in range(12):
            await d.ask("s", str(number))
        end = await d.settled_cursor()
        cursors = [begin, *[cursor async for cursor, _ in d.completions(begin, until=end)]]
        assert len(cursors) == 13
        assert sorted({*cursors}, key=d.cursor_order) == cursors
        assert d.cursor_order(end) >= d.cursor_order(cursors[-1])
        for wrong in ("", "x", "lost.1", "x.1.y"):
            with pytest.raises(CursorExpired):
                d.cursor_order(wrong)


@on_each
async def test_what_is_to_be_called_before_the_close_can_read_the_ledger(make: MakeLedger) -> None:
    read: list[str] = []
    async with DurableDispatcher(quick, make(), poll=0.05) as d, d.subscribe():
        await d.ask("s", "x", run_id="r")

        async def look() -> None:
            read.extend(complete.run_id for _, complete in [each async for each in d.completions(until=end)])

        end = await d.end_cursor()
        d.call_before_close(look)
        await d.aclose()
    assert read == ["r"]
