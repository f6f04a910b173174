"""Histories with intervals: right ones, widened around their true moments, and wrong ones."""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Callable
from typing import Any

Lines = list[dict[str, Any]]


def played(
    chance: random.Random,
    prompts: int,
    *,
    cancels: float = 0.15,
    clears: float = 0.05,
    folds: float = 0.2,
    session: str = "s",
) -> Lines:
    """Play one session of a right dispatcher: each line has its true moment as ``at``."""
    lines: Lines = []
    now = 0.0
    queue: deque[str] = deque()
    turn: list[str] = []
    left = [f"{session}.{nth}" for nth in range(prompts)]

    def note(event: str, **more: Any) -> None:
        nonlocal now
        now += 1
        lines.append({"event": event, "session": session, "at": now, **more})

    def begin() -> None:
        if queue:
            turn.append(queue.popleft())
            note("start", run=turn[0])

    def end(*, cancelled: bool, error: str | None = None) -> None:
        note("ended", run=turn[0])
        order = list(turn)
        chance.shuffle(order)
        for run in order:
            note("complete", run=run, cancelled=cancelled, **({} if error is None else {"error": error}))
        turn.clear()
        begin()

    while left or turn or queue:
        what = chance.random()
        if what < cancels and (turn or chance.random() < 0.3):
            note("cancel")
            while queue:
                note("complete", run=queue.popleft(), cancelled=True)
            if turn:
                end(cancelled=True)
        elif what < cancels + clears:
            note("clear")
            while queue:
                note("complete", run=queue.popleft(), cancelled=False, error="cleared from the queue")
        elif turn and what < cancels + clears + folds:
            taken = [queue.popleft() for _ in range(chance.randint(0, len(queue)))]
            for run in taken:
                note("fold", run=run, into=turn[0])
                turn.append(run)
        elif left and (not turn or chance.random() < 0.6):
            run = left.pop(0)
            note("accept", run=run)
            queue.append(run)
            if not turn:
                begin()
        elif turn:
            end(cancelled=False, error="no luck" if chance.random() < 0.2 else None)
    return lines


def widened(lines: Lines, width: float, chance: random.Random) -> Lines:
    """Make an interval of every moment, which reaches back and on by up to ``width`` lines."""
    wide: Lines = []
    for line in lines:
        each = {key: value for key, value in line.items() if key != "at"}
        at = line["at"]
        if line["event"] == "start":
            each["at"] = at + chance.random() * width
        elif line["event"] == "ended":
            each["at"] = at - chance.random() * width
        else:
            each |= {"call": at - chance.random() * width, "return": at + chance.random() * width}
        wide.append(each)
    chance.shuffle(wide)
    return wide


# Ways to be wrong: each takes the exact history, and returns a wrong one, or None if there is no place.


def _changed(lines: Lines, chance: random.Random, places: list[int], **to: Any) -> Lines | None:
    if not places:
        return None
    at = chance.choice(places)
    return [*lines[:at], {**lines[at], **to}, *lines[at + 1 :]]


def uncovered(lines: Lines, chance: random.Random) -> Lines | None:
    """A run that a cancel covers completes as if nothing had been."""
    places = [nth for nth, line in enumerate(lines) if line["event"] == "complete" and line["cancelled"]]
    return _changed(lines, chance, places, cancelled=False)


def poisoned(lines: Lines, chance: random.Random) -> Lines | None:
    """A run is cancelled that no cancel covers."""
    ends = [nth for nth, line in enumerate(lines) if line["event"] == "complete"]
    places = [nth for nth in ends if not lines[nth]["cancelled"]]
    return _changed(lines, chance, places, cancelled=True)


def dropped(lines: Lines, chance: random.Random) -> Lines | None:
    """A RunComplete is missing."""
    places = [nth for nth, line in enumerate(lines) if line["event"] == "complete"]
    at = chance.choice(places)
    return [*lines[:at], *lines[at + 1 :]]


def doubled(lines: Lines, chance: random.Random) -> Lines | None:
    """A RunComplete comes twice."""
    at = chance.choice([nth for nth, line in enumerate(lines) if line["event"] == "complete"])
    return [*lines[: at + 1], {**lines[at], "at": lines[at]["at"] + 0.5}, *lines[at + 1 :]]


def overlapping(lines: Lines, chance: random.Random) -> Lines | None:
    """A turn begins some lines early, while the one before it still runs."""
    accepted = {line["run"]: line["at"] for line in lines if line["event"] == "accept"}
    places = []
    for nth, line in enumerate(lines):
        if line["event"] == "start":
            ended = [each["at"] for each in lines[:nth] if each["event"] == "ended"]
            if ended and accepted[line["run"]] < ended[-1] - 3:
                places.append((nth, ended[-1] - 3))
    if not places:
        return None
    at, early = chance.choice(places)
    return [*lines[:at], {**lines[at], "at": early}, *lines[at + 1 :]]


def overtaking(lines: Lines, chance: random.Random) -> Lines | None:
    """Two runs that wait become active in the wrong order: all about them is exchanged but their accepts."""
    begun = [line["run"] for line in lines if line["event"] == "start"]
    accepted = {line["run"]: line["at"] for line in lines if line["event"] == "accept"}
    start = {line["run"]: line["at"] for line in lines if line["event"] == "start"}
    ends = {line["run"]: line for line in lines if line["event"] == "complete"}
    pairs = [
        (one, other)
        for one, other in itertools.pairwise(begun)
        if accepted[other] < start[one] - 1 and not ends[one]["cancelled"] and not ends[other]["cancelled"]
    ]
    if not pairs:
        return None
    one, other = chance.choice(pairs)
    names = {one: other, other: one}
    return [
        line
        if line["event"] == "accept"
        else {
            **line,
            **{key: names.get(line[key], line[key]) for key in ("run", "into") if key in line},
        }
        for line in lines
    ]


WRONG: dict[str, Callable[[Lines, random.Random], Lines | None]] = {
    each.__name__: each for each in (uncovered, poisoned, dropped, doubled, overlapping, overtaking)
}
