"""Histories to measure the judge of intervals with: recordings of Turngate, right ones and wrong ones.

The dispatcher plays in virtual time, so a seed always gives the same history. Either each recorded line is
widened to an interval around its true moment, or callers over a network log what they can know.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

from turngate import Dispatcher, Turn
from turngate_verify.world.virtual_loop import VirtualLoop

Lines = list[dict[str, Any]]
Spoil = Callable[[Lines, random.Random], Lines | None]


def _play(main: Coroutine[Any, Any, None], loop: VirtualLoop) -> None:
    task = loop.create_task(main)
    while not task.done():
        loop.settle(10**9)
        if (due := loop.next_timer()) is not None:
            loop.advance(due - loop.time())
    task.result()


def recorded(seed: int, *, callers: int, prompts: int, cancels: float = 0.1, folds: float = 0.3) -> Lines:
    """Record callers that submit, wait, and sometimes cancel; the time of a line is its number."""
    chance = random.Random(seed)
    lines: Lines = []

    async def agent(turn: Turn) -> str:
        await asyncio.sleep(chance.expovariate(1))
        if chance.random() < folds:
            await turn.fold()
            await asyncio.sleep(chance.expovariate(1))
        lines.append({"event": "ended", "run": turn.run.run_id})
        return "text"

    async def caller(d: Dispatcher, who: int) -> None:
        for nth in range(prompts):
            await asyncio.sleep(chance.expovariate(1 / callers))
            if chance.random() < cancels:
                await d.cancel("s")
            await (await d.submit("s", "p", run_id=f"{who}.{nth}"))

    async def main() -> None:
        async with Dispatcher(agent, record=lambda entry: lines.append(dict(entry))) as d:
            await asyncio.gather(*(caller(d, who) for who in range(callers)))

    _play(main(), VirtualLoop())
    return [
        line if line["event"] == "end" else {"session": "s", **line, "at": float(at)}
        for at, line in enumerate(lines)
    ]


def outside(lines: Lines) -> Lines:
    """Return what can be logged without the lock: no entries; an accept lasts until its run has entered."""
    entered = {line["run"]: line["at"] for line in lines if line["event"] == "enter"}
    seen: Lines = []
    for line in lines:
        match line["event"]:
            case "enter":
                if line["state"] == "active":
                    seen.append({**line, "event": "start"})
            case "handoff":
                seen.append({**line, "event": "start"})
            case "accept":
                seen.append({**line, "call": line["at"], "return": entered.get(line["run"], line["at"])})
            case _:
                seen.append(line)
    return seen


def widened(lines: Lines, width: float, seed: int) -> Lines:
    """Make an interval of every moment, which reaches back and on by up to ``width`` events."""
    chance = random.Random(seed)
    points = [line["at"] for line in lines if line["event"] != "end"]
    by = width * (points[-1] - points[0]) / max(1, len(points) - 1)
    wide: Lines = []
    for line in lines:
        if line["event"] == "end":
            wide.append(line)
            continue
        each = {key: value for key, value in line.items() if key != "at"}
        each["call"] = line.get("call", line["at"]) - chance.random() * by
        each["return"] = line.get("return", line["at"]) + chance.random() * by
        wide.append(each)
    return wide


def remote(seed: int, *, callers: int, prompts: int, latency: float) -> Lines:
    """Record callers over a network: a turn takes about 1, a message one way ``latency`` on average."""
    chance = random.Random(seed)
    lines: Lines = []
    loop = VirtualLoop()

    async def network() -> None:
        await asyncio.sleep(chance.expovariate(1 / latency))

    async def agent(turn: Turn) -> str:
        run = turn.run.run_id
        lines.append({"event": "start", "run": run, "return": loop.time()})
        try:
            await asyncio.sleep(chance.expovariate(1))
            if chance.random() < 0.2:
                began = loop.time()
                for each in await turn.fold():
                    times = {"call": began, "return": loop.time()}
                    lines.append({"event": "fold", "run": each.run_id, "into": run, **times})
                await asyncio.sleep(chance.expovariate(1))
            return "text"
        finally:
            lines.append({"event": "ended", "run": run, "call": loop.time()})

    async def called(line: dict[str, Any], call: Callable[[], Awaitable[Any]]) -> Any:
        line |= {"session": "s", "call": loop.time()}
        lines.append(line)
        await network()
        answer = await call()
        await network()
        line["return"] = loop.time()
        return answer

    async def caller(d: Dispatcher, who: int) -> None:
        for nth in range(prompts):
            await asyncio.sleep(chance.expovariate(1 / callers))
            if chance.random() < 0.1:
                await called({"event": "cancel"}, lambda: d.cancel("s"))
            run = f"{who}.{nth}"
            submit = partial(d.submit, "s", "p", run_id=run)
            handle = await called({"event": "accept", "run": run}, submit)
            done = await handle
            await network()
            lines.append(
                {"event": "complete", "run": run, "cancelled": done.cancelled, "return": loop.time()}
            )

    async def main() -> None:
        async with Dispatcher(agent) as d:
            await asyncio.gather(*(caller(d, who) for who in range(callers)))

    _play(main(), loop)
    return [*lines, {"event": "end"}]


# Ways to be wrong: each takes a right history, and returns a wrong one, or None if there is no place.


def _said(lines: Lines, chance: random.Random, places: list[int], *, cancelled: bool) -> Lines | None:
    if not places:
        return None
    at = chance.choice(places)
    return [*lines[:at], {**lines[at], "cancelled": cancelled}, *lines[at + 1 :]]


def _ends(lines: Lines, *, cancelled: bool) -> list[int]:
    return [nth for nth, x in enumerate(lines) if x["event"] == "complete" and x["cancelled"] is cancelled]


def uncovered(lines: Lines, chance: random.Random) -> Lines | None:
    """A run that a cancel covers finishes."""
    return _said(lines, chance, _ends(lines, cancelled=True), cancelled=False)


def poisoned(lines: Lines, chance: random.Random) -> Lines | None:
    """The first run accepted after a cancel is cancelled."""
    places = []
    for nth, x in enumerate(lines):
        if x["event"] == "cancel":
            later = next((y["run"] for y in lines[nth:] if y["event"] == "accept"), None)
            places += [end for end in _ends(lines, cancelled=False) if lines[end]["run"] == later]
    return _said(lines, chance, places, cancelled=True)


def poisoned_later(lines: Lines, chance: random.Random) -> Lines | None:
    """The first run whose accept was called after a cancel had returned is cancelled."""
    places = []
    for x in lines:
        if x["event"] == "cancel":
            later = [y for y in lines if y["event"] == "accept" and y["call"] > x["return"]]
            first = min(later, key=lambda y: float(y["call"]), default={"run": None})["run"]
            places += [end for end in _ends(lines, cancelled=False) if lines[end]["run"] == first]
    return _said(lines, chance, places, cancelled=True)


def poisoned_anywhere(lines: Lines, chance: random.Random) -> Lines | None:
    """A run is cancelled that no cancel covers."""
    return _said(lines, chance, _ends(lines, cancelled=False), cancelled=True)


def dropped(lines: Lines, chance: random.Random) -> Lines | None:
    """A RunComplete is missing."""
    at = chance.choice([nth for nth, x in enumerate(lines) if x["event"] == "complete"])
    return [*lines[:at], *lines[at + 1 :]]


def doubled(lines: Lines, chance: random.Random) -> Lines | None:
    """A RunComplete comes twice."""
    at = chance.choice([nth for nth, x in enumerate(lines) if x["event"] == "complete"])
    return [*lines[: at + 1], {**lines[at]}, *lines[at + 1 :]]


def overlapping(lines: Lines, chance: random.Random) -> Lines | None:
    """A turn starts four events early, while the one before it runs."""
    accepted = {x["run"]: nth for nth, x in enumerate(lines) if x["event"] == "accept"}
    places = []
    for nth, x in enumerate(lines):
        own = range(max(0, nth - 4), nth)
        ended = any(lines[each]["event"] == "ended" for each in own)
        if x["event"] == "handoff" and nth >= 4 and ended and accepted[x["run"]] < own[0]:
            places.append(nth)
    if not places:
        return None
    at = chance.choice(places)
    early = {**lines[at], "at": lines[at - 4]["at"] - 0.5}
    return sorted([*lines[:at], early, *lines[at + 1 : -1]], key=lambda x: float(x["at"])) + lines[-1:]


def overlapping_runners(lines: Lines, chance: random.Random) -> Lines | None:
    """A runner is called 0.3 before the one ahead has returned."""
    ends = sorted(x["call"] for x in lines if x["event"] == "ended")
    since = {x["run"]: x["call"] for x in lines if x["event"] == "accept"}
    places = []
    for nth, x in enumerate(lines):
        before = [end - 0.3 for end in ends if x["event"] == "start" and end <= x["return"]]
        if before and since[x["run"]] < before[-1]:
            places.append((nth, before[-1]))
    if not places:
        return None
    at, early = chance.choice(places)
    return [*lines[:at], {**lines[at], "return": early}, *lines[at + 1 :]]


def overtaking(lines: Lines, chance: random.Random) -> Lines | None:
    """Two runs that wait become active in the wrong order: all but their accepts is exchanged."""
    begun = [x["run"] for x in lines if x["event"] == "handoff"]
    accepted = {x["run"]: nth for nth, x in enumerate(lines) if x["event"] == "accept"}
    start = {x["run"]: nth for nth, x in enumerate(lines) if x["event"] == "handoff"}
    covered = {lines[nth]["run"] for nth in _ends(lines, cancelled=True)}
    pairs = [
        (one, other)
        for one, other in itertools.pairwise(begun)
        if accepted[other] < start[one] and not {one, other} & covered
    ]
    if not pairs:
        return None
    one, other = chance.choice(pairs)
    names = {one: other, other: one}
    return [
        x
        if x["event"] in ("accept", "enter")
        else {**x, **{key: names.get(x[key], x[key]) for key in ("run", "into") if key in x}}
        for x in lines
    ]


WRONG: tuple[Spoil, ...] = (
    uncovered,
    poisoned,
    poisoned_anywhere,
    dropped,
    doubled,
    overlapping,
    overtaking,
)
WRONG_REMOTELY: tuple[Spoil, ...] = (
    uncovered,
    poisoned_later,
    poisoned_anywhere,
    dropped,
    doubled,
    overlapping_runners,
)
