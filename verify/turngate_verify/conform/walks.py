"""Random programs, longer than those that the suite enumerates, and making what they find short."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from turngate_model.properties import AnyProperty, AnyViolation
from turngate_verify.conform.judge import Judge, ProgramLimits
from turngate_verify.conform.players import outcome
from turngate_verify.conform.programs import TAKING_IN, Program, part_of, renamed
from turngate_verify.conform.result import Played

if TYPE_CHECKING:
    from turngate_verify.conform.suites import Suite

LIMITS = ProgramLimits(prompts=8, cancels=4, sessions=2, extras=6)
"""How much a random program may do."""
_WEIGHTS = (0, 1, 1, 4)
"""Each program does some operations often and some never: together they go further than all alike."""
_BURST = 0.25
_TRIES = 400
"""How many shorter programs are tried at the most."""


def walk(suite: Suite) -> None:
    """Play random programs, and keep what they break, made as short as can be."""
    for walked in suite.players.map(lambda nth: _walked(suite, nth), range(suite.effort.examples)):
        if walked is None:
            return
        program, played = walked
        examined = suite.examined(program, played, suite.play)
        for each in examined.exercised:
            suite.result.examples[each] = suite.result.examples.get(each, 0) + 1
        for violation, length in examined.broken.values():
            if violation.property not in suite.result.counterexamples:
                _keep_short(suite, violation, program[:length], played)


def _walked(suite: Suite, nth: int) -> tuple[Program, Played] | None:
    """Play one random program."""
    if suite.out_of_time:
        return None
    chance = random.Random(f"{suite.effort.seed}/{nth}")  # noqa: S311 - it chooses programs, and no secrets
    weights: dict[str, int] = {}
    with suite.players.judge() as judge:
        while len(judge.program) < suite.effort.steps and not judge.violations:
            chosen = _chosen(judge, chance, weights)
            if not chosen or suite.out_of_time:
                break
            for op in chosen:
                judge.take(op)
        return judge.program, outcome(judge, LIMITS)


def _chosen(judge: Judge, chance: random.Random, weights: dict[str, int]) -> Program:
    """Choose what to do next: which kind of operation, and then which one of them."""
    if chance.random() < _BURST and (pairs := judge.bursts(LIMITS)):
        return chance.choice(pairs)
    able = judge.enabled(LIMITS)
    names = sorted({op.name for op in able})
    for name in names:
        weights.setdefault(name, max(chance.choice(_WEIGHTS), name in ("accept", "enter", "finish")))
    if not any(weights[name] for name in names):
        return ()
    name = chance.choices(names, [weights[name] for name in names])[0]
    return (chance.choice([op for op in able if op.name == name]),)


def _keep_short(suite: Suite, violation: AnyViolation, program: Program, played: Played) -> None:
    """Keep what a random program breaks; then the shortest that can be made of it."""
    if not suite.keep(violation, program, played.steps[: len(program)]):
        return
    tries, size = 0, len(program) // 2
    while size and tries < _TRIES and not suite.out_of_time:
        shorter = None
        for start in range(0, len(program), size):
            tries += 1
            shorter = _breaking(suite, violation.property, without(program, start, start + size))
            if shorter or suite.out_of_time or tries >= _TRIES:
                break
        if shorter:
            violation, program, played = shorter
        else:
            size //= 2
    suite.keep(violation, program, played.steps[: len(program)])


def _breaking(
    suite: Suite, each: AnyProperty, program: Program
) -> tuple[AnyViolation, Program, Played] | None:
    """Play a program, and return it up to where it breaks the property, if it does."""
    if not program:
        return None
    examined = suite.examine(program)
    if each not in examined.broken:
        return None
    violation, length = examined.broken[each]
    return violation, program[:length], examined.played


def without(program: Program, start: int, end: int) -> Program:
    """Return a program without some operations, and without what is about a run that it no longer brings."""
    gone = {op.run for op in program[start:end] if op.name in TAKING_IN}
    kept = [nth for nth, op in enumerate(program) if not start <= nth < end and op.run not in gone]
    return renamed(part_of(program, kept))
