"""Places while callers, runners, stores and factories do anything at all: none is lost or taken twice."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from dispatching import free, in_loop, made_for, places
from turngate import Dispatcher, MemoryMessages, Message, Run, State, Turn
from turngate_verify.world.virtual_loop import VirtualLoop


class Counted:
    """A runner that takes a while, ends as it likes, and counts how many of its calls there are at once."""

    def __init__(self, chance: random.Random, limit: int) -> None:
        self.chance = chance
        self.limit = limit
        self.now = 0
        self.most = 0
        self.sessions: Counter[str] = Counter()
        self.called: list[Run] = []

    async def __call__(self, turn: Turn) -> str:
        self.called.append(turn.run)
        self.now += 1
        self.sessions[turn.run.session_id] += 1
        self.most = max(self.most, self.now)
        assert self.now <= self.limit
        assert self.sessions[turn.run.session_id] == 1
        try:
            for _ in range(self.chance.randrange(5)):
                await asyncio.sleep(self.chance.choice([0, 0, 1]))
            if self.chance.random() < 0.2:
                await turn.fold()
            if self.chance.random() < 0.1:
                await _cancelled()
        except asyncio.CancelledError:
            if self.chance.random() < 0.3:
                await turn.clean_up(asyncio.sleep(1))
            raise
        finally:
            self.now -= 1
            self.sessions[turn.run.session_id] -= 1
        return "done"


async def _cancelled() -> None:
    raise asyncio.CancelledError


class Whimsical(MemoryMessages):
    """A store that takes a step, or a while, or fails."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self.chance = chance

    async def put(self, messages: Sequence[Message]) -> None:
        match self.chance.randrange(5):
            case 0:
                await asyncio.sleep(0)
            case 1:
                await asyncio.sleep(1)
            case 2 if self.chance.random() < 0.2:
                raise OSError("disk full")
        await super().put(messages)


class Factory:
    """A task factory that refuses, wraps, or does as it should."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance

    def __call__(self, loop: asyncio.AbstractEventLoop, coro: Any, **more: Any) -> Any:
        whim = self.chance.random() if coro.__name__ == "_conduct" else 1.0
        if whim < 0.05:
            raise RuntimeError("no tasks today")
        if whim < 0.1:
            made = asyncio.Task(coro, loop=loop)
            made.cancel()
            return made
        if whim < 0.3:

            async def wrapped() -> Any:
                await asyncio.sleep(0)
                return await coro

            return asyncio.Task(wrapped(), loop=loop)
        return asyncio.Task(coro, loop=loop)


def anything(loop: VirtualLoop, d: Dispatcher, chance: random.Random, runs: list[Run]) -> None:
    session = f"s{chance.randrange(6)}"
    match chance.randrange(14):
        case 0:
            loop.call(d.cancel(session))
        case 1 if runs:
            loop.call(d.cancel_run(chance.choice(runs[-10:]).run_id, waiting_only=chance.random() < 0.5))
        case 2 if runs:
            loop.call(chance.choice(runs[-10:]).close())
        case 3:
            loop.call(d.clear_queue(session))
        case 4:
            runs.append(loop.call(d.accept(session, "p")))
        case 5:
            for view in d.sessions():
                for run in view.accepted:
                    loop.call(d.enter(run))
        case 6 | 7:
            loop.advance(1)
        case 8 if chance.random() < 0.3:
            turns = [turn for turn in d._sessions.turns.values() if made_for(turn)]
            turns = [turn for turn in turns if turn.run.turn is turn]
            if turns:
                made = made_for(chance.choice(turns))
                assert made is not None
                made.cancel()  # from outside
        case _:
            busy: Any = chance.choice(["fold", "queue", "interrupt"])
            runs.append(loop.call(d.accept(session, "p", when_busy=busy)))
            if chance.random() < 0.9:
                loop.call(d.enter(runs[-1]))
    for _ in range(chance.randrange(6)):
        loop.step()


@pytest.mark.parametrize("factory", [False, True], ids=["plain", "odd factory"])
@pytest.mark.parametrize("limit", [1, 2, 3])
@pytest.mark.parametrize("seed", range(8))
def test_no_place_is_lost_or_taken_twice(
    seed: int, limit: int, factory: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("CRITICAL", "turngate")
    chance = random.Random(f"{seed} {limit} {factory}")
    loop = VirtualLoop()
    if factory:
        loop.set_task_factory(Factory(chance))
    runner = Counted(chance, limit)
    d = Dispatcher(runner, turns_limit=limit, messages=Whimsical(chance))
    runs: list[Run] = []
    completed: Counter[str] = Counter()
    for _ in range(400):
        known = len(runs)
        anything(loop, d, chance, runs)
        with loop:
            for run in runs[known:]:
                run.add_done_callback(lambda complete: completed.update([complete.run_id]))
        waiting = [view for view in d.sessions() if view.phase == "waiting"]
        assert not waiting or free(d) == 0
    for view in d.sessions():
        for run in view.accepted:
            loop.call(d.enter(run))
    for _ in range(3_000):
        loop.settle()
        if not d.sessions():
            break
        loop.advance(1)
    assert d.sessions() == []
    assert free(d) == limit
    assert not places(d).line
    assert runner.now == 0
    assert runner.most == limit
    assert {*completed.values()} == {1}
    assert len(completed) == len(runs)
    again = [loop.call(d.submit(f"again {number}", "p")) for number in range(3 * limit)]
    for _ in range(30):
        loop.settle()
        loop.advance(1)
    assert all(run.state is State.COMPLETE for run in again)
    loop.begin(d.aclose(), "close")
    loop.settle()
    assert [problem for problem in loop.problems if "never retrieved" not in problem["message"]] == []


@in_loop
async def test_many_sessions_and_few_places() -> None:
    now = most = 0

    async def runner(turn: Turn) -> str:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0)
        now -= 1
        return turn.run.session_id

    async with Dispatcher(runner, turns_limit=7) as d:
        runs = [await d.submit(f"s{number}", "p") for number in range(5_000)]
        for run in runs:
            assert (await run).text == run.session_id
        assert most == 7
        assert free(d) == 7
