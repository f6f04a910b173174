"""Random programs, longer than those that the suite enumerates."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from turngate_verify.conform.judge import Judge, ProgramLimits
from turngate_verify.conform.players import finish, outcome
from turngate_verify.conform.programs import Program, gaps
from turngate_verify.conform.result import Played

if TYPE_CHECKING:
    from turngate_verify.conform.suites import Suite

LIMITS = ProgramLimits(prompts=8, cancels=4, sessions=2, extras=6, line=10)
"""How much a random program may do."""
_WEIGHTS = (0, 1, 1, 4)
"""Each program does some operations often and some never: such a mix goes further than equal shares."""
_BURST = 0.25
_GAPS = (0, 0, 1, 2, 3, 4, 6)
"""After how many callbacks the second of two operations is called."""


def walk(suite: Suite, nth: int) -> tuple[Program, Played] | None:
    """Play the random program of this number; return None if time has run out."""
    if suite.over:
        return None
    chance = random.Random(f"{suite.effort.seed}/{nth}")  # noqa: S311 - it chooses programs, and no secrets
    weights: dict[str, int] = {}
    with suite.players.judge() as judge:
        races = suite.races_with(judge)
        while len(judge.program) < suite.effort.steps and not judge.over:
            chosen = _chosen(judge, chance, weights, races=races)
            if not chosen or suite.out_of_time:
                break
            for op in chosen:
                judge.take(op)
        program = judge.program
        if gaps(program) and not judge.over:
            finish(judge)
        return program, outcome(judge, LIMITS)


def _chosen(judge: Judge, chance: random.Random, weights: dict[str, int], *, races: bool) -> Program:
    """Choose what to do next: a kind of operation, then one of that kind."""
    if races and chance.random() < _BURST and (pairs := judge.bursts(LIMITS)):
        first, second = chance.choice(pairs)
        return first._replace(gap=chance.choice(_GAPS) if judge.stepped else 0), second
    able = judge.enabled(LIMITS)
    names = sorted({op.name for op in able})
    for name in names:
        weights.setdefault(name, max(chance.choice(_WEIGHTS), name in ("accept", "enter", "finish")))
    if not any(weights[name] for name in names):
        return ()
    name = chance.choices(names, [weights[name] for name in names])[0]
    return (chance.choice([op for op in able if op.name == name]),)
