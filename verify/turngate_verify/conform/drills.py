"""Drills: a few long programs with a plain pattern, for what shows only after many turns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from turngate_verify.conform.port import Features
from turngate_verify.conform.programs import ABOUT_ALL, RUNS, TAKING_IN, Name, Op, Program

Part: TypeAlias = tuple[Name, int]
"""An operation of a round, and which run of the round it is about."""

ROUNDS = 5
"""How often a round is repeated: so often that the judge can see whether what is held grows."""
TURNS = 12
"""How many turns there are in a row."""
QUEUED = 7
"""How many runs wait in a long queue."""


def drills(features: Features) -> list[Program]:
    """Return the drills that a subject with these features can do, the short ones first."""
    patterns = [_in_a_row(features), _long_queue(features, "finish"), _long_queue(features, "fail")]
    for parts in _ROUNDS:
        if all(_can(features, name) for name, _ in parts):
            patterns += [_rounds(features, parts, spread=spread) for spread in (False, True)]
    return sorted(patterns, key=len)


_ROUNDS: tuple[Sequence[Part], ...] = (
    (("accept", 0), ("finish", 0)),
    (("accept", 0), ("fail", 0)),
    (("accept", 0), ("accept", 1), ("finish", 0), ("finish", 1)),
    (("accept", 0), ("accept", 1), ("cancel", 0)),
    (("accept", 0), ("finish", 0), ("cancel", 0)),
    (("accept", 0), ("accept", 1), ("clear", 0), ("finish", 0)),
    (("accept", 0), ("accept", 1), ("fold", 0), ("finish", 0)),
    (("accept", 0), ("accept", 1), ("accept", 2), ("cancel_run", 1), ("cancel_run", 0), ("finish", 2)),
    (("accept", 0), ("interrupt", 1), ("finish", 1)),
    (("reject", 0), ("reject", 1), ("finish", 0)),
    (("accept", 0), ("accept", 1), ("wait", 0), ("finish", 0), ("finish", 1), ("wait", 0)),
    (("accept", 0), ("accept", 1), ("crash", 0), ("finish", 0), ("finish", 1)),
)


def _can(features: Features, name: Name) -> bool:
    needs = {"accept": "", "finish": "", "fail": "", "fold": "folds"}.get(name, name)
    return not needs or needs in features.names


def _in_a_row(features: Features) -> Program:
    """One turn after the other, in one session."""
    return tuple(
        op for run in RUNS[:TURNS] for op in (*_taken_in(features, "accept", run, 0), Op("finish", run))
    )


def _long_queue(features: Features, name: Name) -> Program:
    """One turn runs, many runs wait, and each gets its turn."""
    runs = RUNS[: QUEUED + 1]
    waiting = tuple(op for run in runs for op in _taken_in(features, "accept", run, 0))
    return waiting + tuple(Op(name, run) for run in runs)


def _rounds(features: Features, parts: Sequence[Part], *, spread: bool) -> Program:
    """Repeat a round, quiet at the end of each, in one session or spread over one for each round."""
    runs = iter(RUNS)
    program: Program = (Op("residue"),) if features.residue else ()
    for nth in range(ROUNDS):
        place = nth if spread else 0
        named = {part: next(runs) for part in sorted({part for name, part in parts if name in TAKING_IN})}
        for name, part in parts:
            if name == "reject" and part:
                program += (Op(name, named[part], place),)  # it is refused, and so never enters
            elif name in TAKING_IN:
                program += _taken_in(features, name, named[part], place)
            elif name in ABOUT_ALL:
                program += (Op(name),)
            else:
                program += (Op(name, "" if name in ("cancel", "clear") else named[part], place),)
        if features.residue:
            program += (Op("residue"),)
    return program


def _taken_in(features: Features, name: Name, run: str, place: int) -> Program:
    enters = (Op("enter", run, place),) if features.two_phase else ()
    return (Op(name, run, place), *enters)
