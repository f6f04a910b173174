"""Shortens a long program that breaks something."""

from __future__ import annotations

from typing import TYPE_CHECKING

from turngate_model.checker.counterexample import PlayedStep
from turngate_model.properties import AnyProperty, AnyViolation
from turngate_verify.conform.programs import TAKING_IN, Program, part_of, renamed

if TYPE_CHECKING:
    from turngate_verify.conform.suites import Suite

_TRIES = 400
"""The most shorter programs to try."""


def keep_short(
    suite: Suite, violation: AnyViolation, program: Program, steps: tuple[PlayedStep, ...]
) -> None:
    """Keep what a program breaks, then the shortest counterexample found by leaving operations out."""
    if not suite.keep(violation, program, steps):
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
            violation, program, steps = shorter
        else:
            size //= 2
    suite.keep(violation, program, steps)


def _breaking(
    suite: Suite, each: AnyProperty, program: Program
) -> tuple[AnyViolation, Program, tuple[PlayedStep, ...]] | None:
    """Play a program, and return it up to where it breaks the property, if it does."""
    if not program:
        return None
    examined = suite.examine(program)
    if each not in examined.broken:
        return None
    violation, length = examined.broken[each]
    return violation, program[:length], examined.steps(length)


def without(program: Program, start: int, end: int) -> Program:
    """Return a program without some operations, and without those about a run that it no longer has."""
    gone = {op.run for op in program[start:end] if op.name in TAKING_IN}
    gone |= {op.run for op in program if op.name == "into" and op.other in gone}
    kept = [
        nth
        for nth, op in enumerate(program)
        if not start <= nth < end and op.run not in gone and (op.other not in gone or op.name == "edit")
    ]
    return renamed(part_of(program, kept))
