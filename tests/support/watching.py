"""Recordings for the monitor: right ones that the real dispatcher makes, and wrong ones made of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from turngate import Dispatcher, Turn, TurngateError, WhenBusy
from turngate_verify.monitor import Accusation, Monitor

RECORDINGS = Path(__file__).parents[1] / "verify" / "recordings"
Record = dict[str, Any]


def accused(lines: Sequence[str], since: int = 0, **options: Any) -> list[Accusation]:
    """Return what a monitor says that begins at one of the lines."""
    monitor = Monitor(**options)
    found = [each for nth, line in enumerate(lines[since:], since + 1) for each in monitor.judge(line, nth)]
    return [each for each in found if isinstance(each, Accusation)]


def right_recording(seed: int, steps: int = 60, sessions: int = 2, *, bare: bool = False) -> list[str]:
    """Return what the dispatcher records while random things are done to it.

    With ``bare``, a line names its session only where it must, as the lines of other dispatchers may.
    """
    told = asyncio.run(_random_life(random.Random(seed), steps, sessions))
    return [json.dumps(without_session(each) if bare else each) for each in told]


def without_session(record: Record) -> Record:
    """Return a line without what it need not say."""
    needed = record["event"] in ("accept", "cancel", "clear", "hold", "resume")
    return record if needed else {key: value for key, value in record.items() if key != "session"}


async def _random_life(chance: random.Random, steps: int, sessions: int) -> list[Record]:
    told: list[Record] = []
    turns: list[tuple[Turn, asyncio.Event]] = []

    async def agent(turn: Turn) -> str:
        over = asyncio.Event()
        turns.append((turn, over))
        try:
            await over.wait()
        finally:
            turns.remove((turn, over))
        if chance.random() < 0.2:
            raise ValueError("it failed")
        return "done"

    dispatcher = Dispatcher(agent, record=told.append)
    accepted: list[Any] = []
    waiting: list[str] = []
    names = iter(range(1_000_000))

    async def step() -> None:
        session = f"s{chance.randrange(sessions)}"
        what = chance.choice(
            [*["accept"] * 12, *["enter"] * 14, *["finish"] * 10, *["fold"] * 5, "close", "edit", "send_now"]
            + (["move"] * 4 + ["hold", "hold_run", "resume", "resume", "resume_run", "resume_run"])
            + chance.choices(["cancel", "cancel_run", "clear", "stop", "accept"], k=1)
        )
        run = chance.choice(waiting) if waiting else "none"
        match what:
            case "accept":
                into = None
                if turns and chance.random() < 0.2:
                    turn = chance.choice(turns)[0]
                    session, into = turn.run.session_id, chance.choice(turn.runs).run_id
                busy: WhenBusy = (
                    chance.choice(["fold", "fold", "fold", "queue", "queue", "interrupt"])
                    if into is None
                    else "fold"
                )
                made = await dispatcher.accept(
                    session, "x", run_id=f"r{next(names)}", when_busy=busy, into=into
                )
                accepted.append(made)
                waiting.append(made.run_id)
            case "enter" if accepted:
                await dispatcher.enter(accepted.pop(chance.randrange(len(accepted))))
            case "close" if accepted:
                await accepted.pop(chance.randrange(len(accepted))).close()
            case "finish" if turns:
                chance.choice(turns)[1].set()
            case "fold" if turns:
                await chance.choice(turns)[0].fold()
            case "cancel":
                await dispatcher.cancel(session)
            case "cancel_run":
                await dispatcher.cancel_run(run)
            case "clear":
                await dispatcher.clear_queue(session)
            case "hold":
                await dispatcher.hold(session)
            case "hold_run":
                await dispatcher.hold_run(run)
            case "resume":
                await dispatcher.resume(session)
            case "resume_run":
                await dispatcher.resume_run(run)
            case "stop":
                await dispatcher.stop(session)
            case "move" if chance.random() < 0.5:
                await dispatcher.move(run, to=chance.choice(["first", "last"]))
            case "move" if waiting:
                await dispatcher.move(run, before=chance.choice(waiting))
            case "edit":
                await dispatcher.edit(run, prompt="y", when_busy=chance.choice(["fold", "queue"]))
            case "send_now":
                await dispatcher.send_now(run)
            case _:
                pass

    async with dispatcher:
        for _ in range(steps):
            with contextlib.suppress(TurngateError, ValueError):  # what is refused changes nothing
                await step()
            for _ in range(chance.choice([0, 0, 1, 3, 10])):
                await asyncio.sleep(0)
            waiting[:] = [
                each
                for each in waiting
                if (known := dispatcher.find(each)) and known.state in ("accepted", "queued")
            ]
    return told


def spoiled(lines: Sequence[str], chance: random.Random) -> Iterator[tuple[int, list[str]]]:
    """Yield recordings that a wrong dispatcher might have made, each with the place of what is wrong."""
    records = [json.loads(line) for line in lines]
    for nth, record in enumerate(records):
        if record["event"] == "complete":
            again = [*lines[: nth + 1], *lines[nth:]]
            yield nth + 1, again
            flipped = json.dumps({**record, "cancelled": not record["cancelled"]})
            yield nth, [*lines[:nth], flipped, *lines[nth + 1 :]]
