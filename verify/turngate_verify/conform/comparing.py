"""Plays a program again without a part that should make no difference, and compares the two.

It compares what happens to each run in each step. The order in which two
runs are reported may differ, and so may the words of an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from turngate_model.checker.counterexample import consequences
from turngate_model.history import Complete, Event, with_names
from turngate_model.properties import AnyProperty, AnyViolation, Property, Violation
from turngate_verify.conform.programs import ABOUT_ALL, Program, part_of, renamed
from turngate_verify.conform.result import Played

Play = Callable[[Program], Played]


def compared(program: Program, played: Played, play: Play) -> tuple[list[AnyViolation], set[AnyProperty]]:
    """Return what breaks ISOLATION and IDLE_CANCEL, and which of them the program puts to the test."""
    places = sorted({op.place for op in program if op.name not in ABOUT_ALL})
    exercised: set[AnyProperty] = set()
    if len(places) > 1:
        exercised.add(Property.ISOLATION)
        for place in places:
            own = [nth for nth, op in enumerate(program) if op.place == place or op.name in ABOUT_ALL]
            if differs := _difference(program, played, own, play):
                return [Violation(Property.ISOLATION, f"without the other session, {differs}")], exercised
    if played.idle_cancels:
        exercised.add(Property.IDLE_CANCEL)
        rest = [nth for nth in range(len(program)) if nth not in played.idle_cancels]
        if differs := _difference(program, played, rest, play):
            return [Violation(Property.IDLE_CANCEL, f"without the idle cancel, {differs}")], exercised
    return [], exercised


def _difference(program: Program, played: Played, kept: Sequence[int], play: Play) -> str:
    """Say where a part of a program has different consequences when it is played alone; empty if nowhere."""
    part = part_of(program, kept)
    short = renamed(part)
    alone = play(short)
    if alone.violations:
        # The part breaks something when played alone. It is a counterexample itself, and a shorter one.
        return ""
    names = {new.run: old.run for new, old in zip(short, part, strict=True) if new.run}
    for nth, step in zip(kept, alone.steps, strict=True):
        seen = [event for event in played.steps[nth].events if _run_of(event) in names.values()]
        should = [with_names(event, names.__getitem__) for event in step.events if _run_of(event)]
        if _by_run(seen) != _by_run(should):
            shown, expected = consequences(tuple(seen)), consequences(tuple(should))
            return f"{program[nth]} gives: {expected or 'nothing'}; with it: {shown or 'nothing'}"
    return ""


def _by_run(events: Sequence[Event]) -> dict[str, list[Event]]:
    told: dict[str, list[Event]] = {}
    for event in events:
        told.setdefault(_run_of(event), []).append(_in_no_words(event))
    return told


def _in_no_words(event: Event) -> Event:
    if isinstance(event, Complete) and event.error is not None:
        return event._replace(error="")
    return event


def _run_of(event: Event) -> str:
    return getattr(event, "run", "")
