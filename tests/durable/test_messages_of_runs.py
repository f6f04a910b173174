"""The messages of a run on a ledger, however the run has ended, and what a purge leaves of them."""

from __future__ import annotations

import time

from dispatching import Agent
from ledgers import MakeLedger, on_each, still
from turngate._messages import of_turn
from turngate.durable import DurableDispatcher
from turngate_verify.world.memory_ledger import MemoryLedger


@on_each
async def test_the_messages_of_a_run_are_those_of_its_turn_however_it_ended(make: MakeLedger) -> None:
    agent = Agent()
    async with DurableDispatcher(agent, make()) as d:
        on_entry = await d.accept("s", "on entry", run_id="cancelled on entry")
        await d.cancel("s")
        await d.enter(on_entry)
        lead = await d.submit("s", "lead", run_id="lead")
        await still(d)
        for name in ("folded", "also folded"):
            await d.submit("s", name, run_id=name)
        await d.submit("s", "behind", run_id="behind", when_busy="queue")
        assert len(await agent.turns[-1].fold()) == 2
        agent.turns[-1].keep({"n": 1})
        agent.finish(lead)
        await lead
        await still(d)
        cleared = await d.submit("s", "cleared", run_id="cleared", when_busy="queue")
        assert await d.clear_queue("s") == [cleared]
        await (await d.accept("s", "released", run_id="released")).close()
        await d.cancel("s")
        await d.wait("behind")
        everything = await d.messages.list("s")
        written = {"cancelled on entry": 2, "lead": 4, "folded": 4, "also folded": 4, "behind": 2}
        for name in (*written, "cleared", "released", "unknown"):
            messages = await d.messages.of_run(name)
            assert messages == of_turn(everything, name), name
            assert len(messages) == written.get(name, 0), name
        assert (await d.messages.of_run("folded"))[-1].data == {"n": 1}
        if not isinstance(d._ledger, MemoryLedger):  # which forgets nothing
            assert await d.purge(before=time.time() + 60) == 7
            assert await d.messages.list("s") == []
            assert [await d.messages.of_run(name) for name in written] == [[]] * len(written)
