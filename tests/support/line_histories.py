"""Recordings of Turngate whose callers hold, resume, move, edit and send what waits: lines with moments."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any

from turngate import Dispatcher, Turn, TurngateError
from turngate_verify.world.virtual_loop import VirtualLoop
from wide_histories import Lines


def recorded(seed: int, *, prompts: int = 6) -> Lines:
    """Record one session in virtual time; each line has its moment as ``at``, and entries are left out."""
    chance = random.Random(seed)
    entries: list[dict[str, Any]] = []

    async def agent(turn: Turn) -> str:
        await asyncio.sleep(chance.expovariate(0.15))
        if chance.random() < 0.3:
            await turn.fold()
            await asyncio.sleep(chance.expovariate(1))
        entries.append({"event": "ended", "run": turn.run.run_id})
        return "text"

    async def change(d: Dispatcher, known: list[str]) -> None:
        run, other = chance.choice(known[-3:]), chance.choice(known[-3:])
        match chance.randrange(9):
            case 0 | 1:
                await d.hold("s")
            case 2 | 3:
                await d.resume("s")
            case 4:
                await (d.move(run, before=other) if run != other else d.move(run, to="last"))
            case 5:
                await d.edit(run, prompt="other")
            case 6:
                await (d.hold_run(run) if chance.random() < 0.5 else d.resume_run(run))
            case 7:
                await (d.stop("s") if chance.random() < 0.5 else d.send_now(run))
            case _:
                await d.cancel("s")

    async def main() -> None:
        known: list[str] = []
        async with Dispatcher(agent, record=lambda entry: entries.append(dict(entry))) as d:
            while len(known) < prompts or d.is_busy("s"):
                await asyncio.sleep(chance.expovariate(1))
                with contextlib.suppress(TurngateError):
                    if len(known) < prompts and chance.random() < 0.6:
                        run = f"r{len(known)}"
                        into = chance.choice(known) if known and chance.random() < 0.15 else None
                        await d.submit("s", "p", run_id=run, into=into)
                        known.append(run)
                    elif known and len(known) < prompts:
                        await change(d, known)
                    else:
                        await d.resume("s")

    loop = VirtualLoop()
    task = loop.create_task(main())
    while not task.done():
        loop.settle(10**6)
        if (due := loop.next_timer()) is not None:
            loop.advance(due - loop.time())
    task.result()
    lines: Lines = []
    for at, entry in enumerate(entries):
        line = {key: value for key, value in entry.items() if key not in ("at", "state")}
        if entry["event"] == "end" or (entry["event"] == "enter" and entry["state"] != "active"):
            continue
        if entry["event"] in ("enter", "handoff"):
            line["event"] = "start"
        lines.append({"session": "s", **line, "at": float(at)})
    return lines


# Ways to be wrong: each takes the exact history, and returns a wrong one, or None if there is no place.


def _begins(lines: Lines) -> dict[str, int]:
    return {line["run"]: nth for nth, line in enumerate(lines) if line["event"] == "start"}


def not_held(lines: Lines, chance: random.Random) -> Lines | None:
    """Nothing is ever resumed, and runs that were held start nevertheless."""
    kept = [line for line in lines if line["event"] != "resume"]
    return kept if len(kept) < len(lines) else None


def edited_too_late(lines: Lines, chance: random.Random) -> Lines | None:
    """An edit is acknowledged after its run has started."""
    begins = _begins(lines)
    places = [nth for nth, line in enumerate(lines) if line["event"] == "edit" and line["run"] in begins]
    if not places:
        return None
    at = chance.choice(places)
    late = {**lines[at], "at": lines[begins[lines[at]["run"]]]["at"] + 0.5}
    return sorted([*lines[:at], late, *lines[at + 1 :]], key=lambda line: float(line["at"]))


def not_moved(lines: Lines, chance: random.Random) -> Lines | None:
    """Moves are forgotten, and the runs start in the order of the moves nevertheless."""
    kept = [line for line in lines if line["event"] != "move"]
    return kept if len(kept) < len(lines) else None


WRONG = {"not held": not_held, "edited too late": edited_too_late, "not moved": not_moved}
