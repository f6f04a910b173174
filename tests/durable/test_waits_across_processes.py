"""A runner that waits for its own session is told so, although another process holds what it waits for."""

from __future__ import annotations

import asyncio
import logging

import pytest

from ledgers import MakeLedger, on_each
from turngate import Turn, WouldDeadlock
from turngate.durable import DurableDispatcher


@on_each
async def test_a_run_of_another_process_is_looked_up(make: MakeLedger) -> None:
    refused: list[str] = []
    released: list[str] = []

    async def agent(turn: Turn) -> str:
        if turn.run.prompt == "first":
            behind = await other.accept("s", "second")  # the process of this turn has not seen it
            with pytest.raises(WouldDeadlock) as wrong:
                await here.wait(behind.run_id)
            refused.append(str(wrong.value))
            handle = await here.find(behind.run_id)
            assert handle is not None
            await behind.close()  # the handle here is not told at once
            released.append((await handle).outcome)
        return turn.run.prompt

    logging.disable()
    try:
        async with DurableDispatcher(agent, make()) as here, DurableDispatcher(agent, make()) as other:
            async with asyncio.timeout(60):
                assert (await here.ask("s", "first")).text == "first"
                assert (await other.ask("elsewhere", "second")).text == "second"
    finally:
        logging.disable(logging.NOTSET)
    assert len(refused) == 1
    assert "of session 's' cannot complete before the turn of run" in refused[0]
    assert released == ["released"]
