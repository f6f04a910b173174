"""Moves while callers do anything at all: the stream is a history that holds, from any point on."""

from __future__ import annotations

import asyncio
import gc
import io
import json
import random
from typing import Any

import pytest

from dispatching import in_loop, steps
from told import check_order
from turngate import Dispatcher, Event, Moved, Run, RunComplete, Subscription, Turn
from turngate_verify.trace import check

pytestmark = pytest.mark.requirement("R-LOK-2")


def line(event: Event) -> str | None:
    """An event of the stream as recorded histories spell it."""
    if isinstance(event, RunComplete):
        entry: dict[str, Any] = {"event": "complete", "run": event.run_id, "cancelled": event.cancelled}
        if event.error is not None:
            entry["error"] = event.error
        return json.dumps(entry)
    if isinstance(event, Moved):
        entry = {"event": event.event, "session": event.session_id, "run": event.run_id}
        entry |= {"state": event.state, "into": event.into, "runs": event.runs}
        return json.dumps({key: value for key, value in entry.items() if value is not None})
    return None


class Chatty:
    """A runner that writes, notes and folds at random, and ends as it likes."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance

    async def __call__(self, turn: Turn) -> str | None:
        for _ in range(self.chance.randrange(6)):
            match self.chance.randrange(5):
                case 0:
                    turn.write(self.chance.choice(["", "x", "some text"]))
                case 1:
                    turn.emit("note", self.chance.random())
                case 2:
                    waiting = turn.waiting()
                    assert await turn.fold() == waiting
                case _:
                    await steps(self.chance.randrange(4))
        if self.chance.random() < 0.2:
            raise asyncio.CancelledError  # logged less loudly than others, and as good
        return None if self.chance.random() < 0.5 else "returned"


async def anything(d: Dispatcher, chance: random.Random, known: list[Run]) -> None:
    """Do one of the things that a caller can do."""
    session = chance.choice("stu")
    match chance.randrange(12):
        case 0:
            await d.cancel(session)
        case 1 if known:
            await d.cancel_run(chance.choice(known).run_id, waiting_only=chance.random() < 0.5)
        case 2:
            await d.clear_queue(session)
        case 3 if known:
            await chance.choice(known).close()
        case 4 if known:
            await chance.choice(known).cancel()
        case 5:
            await steps(chance.randrange(10))
        case 6:
            for view in d.sessions():
                for run in view.accepted:
                    await d.enter(run)
        case 7:
            known.append(await d.accept(session, "p"))
        case _:
            busy: Any = chance.choice(["fold", "queue", "interrupt"])
            hook = (lambda _: None) if chance.random() < 0.2 else None
            known.append(await d.submit(session, "p", when_busy=busy, on_complete=hook))
    await steps(chance.randrange(3))


@pytest.mark.parametrize("limit", [None, 1, 2])
@pytest.mark.parametrize("seed", range(20))
@in_loop
async def test_the_stream_of_moves_is_a_history_that_holds(
    seed: int, limit: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("CRITICAL", "turngate")
    chance = random.Random(seed)
    recording = io.StringIO()
    record = recording if seed % 2 else None
    d = Dispatcher(Chatty(chance), turns_limit=limit, record=record)
    events = d.subscribe(moves=True)
    of_sessions = {session: d.subscribe(session, moves=True) for session in "stu"}
    known: list[Run] = []
    for _ in range(60):
        await anything(d, chance, known)
    d.begin_close(finish=chance.choice([0, 0.001, 1e9]))
    for _ in range(10):
        for view in d.sessions():
            for run in view.accepted[:1]:
                await d.enter(run)
        await steps(chance.randrange(5))
    await d.aclose()
    told = [event async for event in events]
    check_order(told)
    lines = [each for each in map(line, told) if each is not None]
    checked = check([*lines, '{"event": "end"}'])
    assert checked.offence is None
    assert checked.whole
    assert checked.runs == len(known)
    if record is not None:
        recorded = [json.loads(each) for each in recording.getvalue().splitlines()]
        assert [entry["event"] for entry in recorded[:-1]] == [json.loads(each)["event"] for each in lines]
    for session, of_session in of_sessions.items():
        assert [event async for event in of_session] == [e for e in told if e.session_id == session]


@in_loop
async def test_joining_at_any_point_is_to_be_told_the_rest() -> None:
    chance = random.Random(7)
    d = Dispatcher(Chatty(chance), delta_limit=10**6)
    whole = d.subscribe(moves=True)
    late: list[tuple[int, Subscription]] = []
    known: list[Run] = []
    for _ in range(80):
        late.append((len(whole._unread), d.subscribe(moves=True)))
        await anything(d, chance, known)
    await d.aclose()
    told = [event async for event in whole]
    for start, events in late:
        assert [event async for event in events] == told[start:]
    late.clear()
    gc.collect()
