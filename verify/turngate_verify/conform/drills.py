"""Drills: a few long programs with a plain pattern, for faults that show only after many turns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from turngate_verify.conform.port import Features
from turngate_verify.conform.programs import ABOUT_ALL, RUNS, TAKING_IN, Name, Op, Program, parsed

Part: TypeAlias = tuple[Name, int]
"""An operation of a round, and which run of the round it is about."""

ROUNDS = 5
"""How often a round is repeated: often enough for the judge to see whether memory grows."""
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
    return sorted([*patterns, *_in_line(features)], key=len)


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

_LINES: tuple[tuple[str, str], ...] = (
    # Held, overtaken by later runs, and resumed while a turn runs and in an idle session.
    ("accept a, accept b, hold, accept c, finish a, finish c, resume, finish b", "hold"),
    ("accept a, accept b, accept c, hold, finish a, resume_run c, finish c, accept d, resume, cancel",
     "hold"),
    ("accept a, accept b, accept c, hold, resume, finish a, finish b, finish c", "hold"),
    ("accept a, accept b, hold, finish a, accept c, hold_run b, resume, finish c, finish b", "hold"),
    ("accept a, accept b, hold, cancel, accept c, finish c", "hold cancel"),
    ("accept a, accept b, hold, clear, finish a, accept c, finish c", "hold clear"),
    ("accept a, accept b, accept c, hold_run b, fold a, finish a, resume, finish b", "hold folds"),
    ("accept a, accept b, stop, accept c, finish c, resume, finish b", "hold stop"),
    ("accept a, accept b, accept c, stop, accept d, send_now b, finish b, finish d", "stop send_now"),
    # Only a position changes.
    ("accept a, accept b, accept c, accept d, move d b, move b, accept e, finish a, finish d, finish c, "
     "finish b, finish e", "move"),
    ("accept a, accept b, accept c, move c b, cancel, accept d, accept e, move e d, finish d, finish e",
     "move cancel"),
    ("accept a, cancel, accept b, move b a, enter b, enter a, finish b", "move cancel two_phase"),
    ("accept a, accept b, hold, accept c, enter b, enter c, enter a, finish c, resume, finish a",
     "hold two_phase"),
    ("accept a, accept b, accept c, move c b, cancel_run c, finish a, finish b", "move cancel_run"),
    ("accept a, accept b, accept c, move b, accept d, move d c, finish a, finish d, finish c, finish b",
     "move"),
    ("accept a, accept b, accept c, move b, move c, accept d, finish a, finish b, finish c", "move"),
    ("accept a, accept b, accept c, accept d, send_now d, finish d, finish b, finish c", "send_now"),
    ("accept a, edit a, accept b, edit b, edit b, accept c, finish a, edit b, finish b, finish c", "edit"),
    ("accept a, accept b, accept c, edit b, finish a, finish b, finish c", "edit"),
    ("accept a, into b a, accept c, finish a, finish c", "into"),
    ("accept a, accept b, into c a, fold a, finish a", "into folds"),
    ("accept a, into b a, into c a, cancel, accept d, finish d", "into cancel"),
)  # fmt: skip
"""Programs about waiting runs, each with the features that it needs."""


def _in_line(features: Features) -> list[Program]:
    return [
        tuple(each for op in parsed(text) for each in _in_phases(features, op, text))
        for text, needs in _LINES
        if set(needs.split()) <= set(features.names)
    ]


def _in_phases(features: Features, op: Op, text: str) -> Program:
    enters = features.two_phase and op.name in TAKING_IN and "enter" not in text
    return (op, Op("enter", op.run)) if enters else (op,)


def _can(features: Features, name: Name) -> bool:
    needs = {"accept": "", "finish": "", "fail": "", "fold": "folds"}.get(name, name)
    return not needs or needs in features.names


def _in_a_row(features: Features) -> Program:
    """One turn after the other, in one session."""
    return tuple(
        op for run in RUNS[:TURNS] for op in (*_taken_in(features, "accept", run, 0), Op("finish", run))
    )


def _long_queue(features: Features, name: Name) -> Program:
    """One turn runs, many runs wait, and each has its turn in the end."""
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
