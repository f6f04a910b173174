"""What happens to prompts, one scenario after the other, to be lived in any stack."""

from __future__ import annotations

import asyncio
from typing import Any

from dispatching import Agent, SlowMessages, Stubborn, echo, on_record, outcome
from stacking import Life, Scenario, until
from stacks import request_id
from turngate import Run, State, Turn


async def waiting(turn: Turn) -> str:
    """Wait until cancelled, and then take some steps to clean up."""
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        for _ in range(5):
            await asyncio.sleep(0)
    return "unreachable"


async def finishing(life: Life) -> None:
    async def streaming(turn: Turn) -> None:
        for word in turn.run.prompt.split():
            turn.write(word)
            await asyncio.sleep(0)

    d = life.open(streaming)
    assert outcome(await d.ask("s", "tea and cake")) == ("teaandcake", None, False)
    run = await d.accept("s", "soup")
    assert await d.enter(run) is State.ACTIVE
    assert outcome(await run) == ("soup", None, False)
    assert not d.is_busy()


async def folding(life: Life) -> None:
    agent = Agent()
    d = life.open(agent)
    lead = await life.begun(await d.submit("s", "tea"))
    follow_up = await d.submit("s", "cake")
    alone = await d.submit("s", "soup", when_busy="queue")
    late = await d.submit("s", "salad")
    await until(lambda: len(d.queued("s")) == 3)
    assert await agent.turns[0].fold() == [follow_up]
    agent.finish(lead, "served")
    assert outcome(await lead) == outcome(await follow_up) == ("served", None, False)
    assert (await follow_up).folded_into == lead.run_id
    agent.finish(await life.begun(alone))
    agent.finish(await life.begun(late))
    assert outcome(await late) == outcome(await alone) == ("done", None, False)


async def queueing(life: Life) -> None:
    d = life.open(echo)
    runs = [await d.submit("s", f"prompt {n}", when_busy="queue") for n in range(5)]
    others = [await d.submit(f"s{n}", "aside") for n in range(5)]
    for run in runs + others:
        assert outcome(await run) == (run.prompt, None, False)
    assert [prompt for prompt in life.prompts if prompt != "aside"] == [run.prompt for run in runs]


async def cancelling_what_is_active(life: Life) -> None:
    d = life.open(waiting)
    run = await life.begun(await d.submit("s", "tea"))
    follow_up = await d.submit("s", "cake")
    elsewhere = await life.begun(await d.submit("another", "soup"))
    assert (await d.cancel("s")).runs == [run, follow_up]
    after = await d.submit("s", "salad")
    assert outcome(await run) == outcome(await follow_up) == ("", None, True)
    await life.begun(after)
    assert after.complete is None
    assert elsewhere.complete is None
    assert (await d.cancel_run(after.run_id)).runs == [after]
    assert (await after).cancelled
    assert "cake" not in life.prompts


async def cancelling_before_the_first_step(life: Life) -> None:
    agent = Agent()
    d = life.open(agent)
    run = await d.accept("s", "tea")
    assert await d.enter(run) is State.ACTIVE
    assert (await d.cancel("s")).runs == [run]
    after = await d.submit("s", "cake")
    assert outcome(await run) == ("", None, True)
    assert await on_record(d, "s") == [("user", "tea", None), ("assistant", "", "canceled")]
    agent.finish(await life.begun(after))
    assert outcome(await after) == ("done", None, False)


async def cancelling_a_successor_before_its_first_step(life: Life) -> None:
    """The cancel follows the RunComplete of the run before, with which the successor becomes active."""
    agent = Agent()
    d = life.open(agent)

    async def escape() -> list[Run]:
        await first
        return (await d.cancel("s")).runs

    first = await life.begun(await d.submit("s", "tea"))
    second = await d.submit("s", "cake", when_busy="queue")
    escaping = asyncio.create_task(escape())
    await until(lambda: bool(d.queued("s")))
    agent.finish(first)
    assert await escaping == [second]
    assert outcome(await first) == ("done", None, False)
    assert outcome(await second) == ("", None, True)


async def cancelling_what_is_queued(life: Life) -> None:
    agent = Agent()
    d = life.open(agent)
    lead = await life.begun(await d.submit("s", "tea"))
    dropped = await d.submit("s", "cake", when_busy="queue")
    cleared = await d.submit("s", "soup", when_busy="queue")
    await until(lambda: len(d.queued("s")) == 2)
    assert (await d.cancel_run(dropped.run_id)).runs == [dropped]
    assert (await dropped).cancelled
    assert await d.clear_queue("s") == [cleared]
    assert outcome(await cleared) == ("", "cleared from the queue", False)
    kept = await d.submit("s", "salad", when_busy="queue")
    agent.finish(lead)
    agent.finish(await life.begun(kept))
    assert outcome(await lead) == outcome(await kept) == ("done", None, False)
    assert life.prompts == ["tea", "salad"]


async def cancelling_what_is_accepted(life: Life) -> None:
    d = life.open(echo)
    covered, released = await d.accept("s", "tea"), await d.accept("s", "cake")
    assert (await d.cancel("s")).runs == [covered, released]
    after = await d.accept("s", "soup")
    await released.close()
    assert await d.enter(covered) is State.CANCEL_ON_ENTRY
    assert await d.enter(after) is State.ACTIVE
    assert outcome(await covered) == ("", None, True)
    assert (await released).cancelled
    assert outcome(await after) == ("soup", None, False)
    assert life.prompts == ["soup"]


async def cancelling_what_is_settling(life: Life) -> None:
    store = SlowMessages()
    d = life.open(echo, store)
    run = await d.submit("s", "tea")
    await until(lambda: bool(store.gates))
    assert run.complete is None
    assert (await d.cancel("s")).runs == [run]
    after = await d.submit("s", "cake")
    while after.complete is None:
        for gate in store.gates:
            if not gate.done():
                gate.set_result(None)
        await asyncio.sleep(0)
    assert outcome(await run) == ("tea", None, True)
    assert outcome(await after) == ("cake", None, False)
    assert await on_record(d, "s") == [
        ("user", "tea", None),
        ("assistant", "tea", "canceled"),
        ("user", "cake", None),
        ("assistant", "cake", "end_turn"),
    ]


async def cancelling_one_of_a_turn(life: Life) -> None:
    agent = Agent()
    d = life.open(agent)
    lead = await life.begun(await d.submit("s", "tea"))
    folded = await d.submit("s", "cake")
    await until(lambda: bool(d.queued("s")))
    assert await agent.turns[0].fold() == [folded]
    after = await d.submit("s", "soup", when_busy="queue")
    assert (await d.cancel_run(folded.run_id)).runs == [lead, folded]
    assert outcome(await lead) == outcome(await folded) == ("", None, True)
    agent.finish(await life.begun(after))
    assert outcome(await after) == ("done", None, False)


async def interrupting(life: Life) -> None:
    agent = Agent()
    d = life.open(agent)
    run = await life.begun(await d.submit("s", "tea"))
    urgent = await d.submit("s", "fire", when_busy="interrupt")
    agent.finish(await life.begun(urgent))
    assert (await run).cancelled
    assert outcome(await urgent) == ("done", None, False)


async def failing(life: Life) -> None:
    async def fails(turn: Turn) -> str:
        turn.write("part")
        if turn.run.prompt == "at once":
            raise KeyError("user")
        if turn.run.prompt == "later":
            await asyncio.sleep(0)
            raise RuntimeError
        return turn.run.prompt

    d = life.open(fails)
    at_once, later, after = [
        await d.submit("s", prompt, when_busy="queue") for prompt in ("at once", "later", "tea")
    ]
    assert outcome(await at_once) == ("part", "KeyError: 'user'", False)
    assert outcome(await later) == ("part", "RuntimeError", False)
    assert outcome(await after) == ("tea", None, False)


async def swallowing_cancels(life: Life) -> None:
    stubborn = Stubborn(2)
    d = life.open(stubborn)
    run = await life.begun(await d.submit("s", "tea"))
    assert (await d.cancel("s")).runs == [run]
    await until(lambda: stubborn.interrupts == 1)
    assert run.complete is None
    assert (await d.cancel("s")).runs == [run]
    await until(lambda: stubborn.interrupts == 2)
    after = await d.submit("s", "cake")
    assert outcome(await run) == ("as if nothing had happened", None, True)
    assert outcome(await after) == ("as if nothing had happened", None, False)


async def cancelled_from_outside(life: Life) -> None:
    async def cancels_itself(turn: Turn) -> str:
        if turn.run.prompt == "tea":
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)
        return turn.run.prompt

    d = life.open(cancels_itself)
    run, after = await d.submit("s", "tea"), await d.submit("s", "cake", when_busy="queue")
    complete = await run
    assert complete.error
    assert not complete.cancelled
    assert outcome(await after) == ("cake", None, False)


async def timing_out_inside(life: Life) -> None:
    """What the runner does with its own task works as anywhere: timeouts, task groups."""

    async def careful(turn: Turn) -> str:
        try:
            async with asyncio.timeout(0):
                await asyncio.get_running_loop().create_future()
        except TimeoutError:
            turn.write("too late")
        async with asyncio.TaskGroup() as group:
            tea = group.create_task(asyncio.sleep(0, "tea"))
        return tea.result()

    d = life.open(careful)
    assert outcome(await d.ask("s", "tea")) == ("tea", None, False)


async def closing_with_runs_in_flight(life: Life) -> None:
    store = SlowMessages()

    async def runner(turn: Turn) -> str:
        return await (echo if turn.run.session_id == "settling" else waiting)(turn)

    d = life.open(runner, store)
    settling = await d.submit("settling", "tea")
    active = await life.begun(await d.submit("s", "tea"))
    queued = [await d.submit("s", "cake") for _ in range(3)]
    covered = await d.accept("accepted", "soup")
    await d.cancel("accepted")
    accepted = await d.accept("accepted", "salad")
    await until(lambda: len(d.queued("s")) == 3 and bool(store.gates))
    not_begun = await d.accept("new", "tea")
    await d.enter(not_begun)
    closing = asyncio.create_task(d.aclose())
    await until(lambda: queued[0].complete is not None)
    while not closing.done():
        for gate in store.gates:
            if not gate.done():
                gate.set_result(None)
        await asyncio.sleep(0)
    await closing
    for run in (settling, active, *queued, covered, not_begun):
        assert (await run).cancelled, run
    assert (await accepted).error == "released before entry"
    assert not d.is_busy()


async def being_many(life: Life) -> None:
    async def hops(turn: Turn) -> str:
        for _ in range(turn.run.seq % 4):
            await asyncio.sleep(0)
            await turn.fold()
        if turn.run.seq % 5 == 0:
            raise ValueError(turn.run.seq)
        return turn.run.prompt

    d = life.open(hops)
    runs = []
    for n in range(60):
        runs.append(await d.submit(f"s{n % 7}", f"prompt {n}", when_busy="fold" if n % 3 else "queue"))
        if n % 11 == 0:
            await asyncio.sleep(0)
            covered = await d.cancel(f"s{n % 7}")
            assert runs[-1] in covered.runs or runs[-1].complete is not None
    for run in runs:
        complete = await run
        assert complete.cancelled or complete.error is None or complete.error.startswith("ValueError: ")


async def carrying_contexts(life: Life) -> None:
    """The context of the accepting task reaches the runner, on entry and handoff, and not the reverse."""
    seen: dict[str, Any] = {}

    async def sees(turn: Turn) -> None:
        seen[turn.run.prompt] = request_id.get("none")
        request_id.set(f"set by {turn.run.prompt}")
        await asyncio.sleep(0)
        assert request_id.get() == f"set by {turn.run.prompt}"

    token = request_id.set("whoever made the dispatcher")
    d = life.open(sees)
    runs = []
    for prompt in ("tea", "cake", "soup"):
        request_id.set(f"who asks for {prompt}")
        runs.append(await d.submit("s", prompt, when_busy="queue"))
    request_id.set("whoever came later")
    for run in runs:
        await run
    assert seen == {prompt: f"who asks for {prompt}" for prompt in ("tea", "cake", "soup")}
    assert request_id.get() == "whoever came later"
    request_id.reset(token)


SCENARIOS: dict[str, Scenario] = {
    scenario.__name__: scenario
    for scenario in (
        finishing,
        folding,
        queueing,
        cancelling_what_is_active,
        cancelling_before_the_first_step,
        cancelling_a_successor_before_its_first_step,
        cancelling_what_is_queued,
        cancelling_what_is_accepted,
        cancelling_what_is_settling,
        cancelling_one_of_a_turn,
        interrupting,
        failing,
        swallowing_cancels,
        cancelled_from_outside,
        timing_out_inside,
        closing_with_runs_in_flight,
        being_many,
        carrying_contexts,
    )
}
