"""One test vector: a program, and what may be seen after each of its operations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from turngate_model.history import Complete, Enter, Fold, Handoff, Wrote
from turngate_model.properties import Property
from turngate_verify.conform.port import Given, Observed, Refused
from turngate_verify.conform.programs import Op, Program

FEATURES = ("cancel", "clear", "folds", "two_phase", "cancel_run", "interrupt", "reject", "messages")
"""The features by which vectors are sorted, from those that most dispatchers have to those that few have."""
BASIC = "basic"
"""The feature of vectors that need none."""

Shown = tuple[Observed, ...]
"""What is seen after one operation, in order."""


class VectorStep(NamedTuple):
    """An operation, and everything that may be seen after it: one of these sequences of events."""

    op: Op
    may: tuple[Shown, ...]


class Vector(NamedTuple):
    """A program with what may be seen, what it guards and whom it refutes."""

    needs: tuple[str, ...]
    steps: tuple[VectorStep, ...]
    guards: tuple[Property, ...]
    """The properties that the program puts to the test."""
    refutes: Mapping[str, Property]
    """The designs and flaws that show something else, each with the property that it breaks first."""

    @property
    def program(self) -> Program:
        """The operations alone."""
        return tuple(step.op for step in self.steps)

    @property
    def feature(self) -> str:
        """The feature under which the vector is sorted: of those that it needs, the one that fewest have."""
        return self.needs[-1] if self.needs else BASIC


def needs_of(program: Program, *, two_phase: bool, messages: bool) -> tuple[str, ...]:
    """Return the features that a program takes."""
    asked = {"fold": "folds"}
    wanted = {asked.get(op.name, op.name) for op in program}
    wanted |= {name for name, has in (("two_phase", two_phase), ("messages", messages)) if has}
    return tuple(name for name in FEATURES if name in wanted)


def as_record(event: Observed) -> dict[str, Any]:
    """Return an event as the JSON object that a vector has for it. What is not in it is free."""
    match event:
        case Enter(run, state):
            return {"event": "enter", "run": run, "state": str(state)}
        case Handoff(run):
            return {"event": "handoff", "run": run}
        case Fold(run, into):
            return {"event": "fold", "run": run, "into": into}
        case Refused(run, operation):
            return {"event": "refused", "run": run} | ({"op": operation} if operation else {})
        case Given(run, prompt):
            return {"event": "given", "run": run, "prompt": prompt}
        case Complete(run, cancelled, _):
            return {"event": "complete", "run": run, "cancelled": cancelled}
        case Wrote(run, reason):
            # Only the messages of a cancelled run must say how it ended.
            return {"event": "wrote", "run": run} | ({"reason": reason} if reason == "canceled" else {})


def asked(op: Op) -> dict[str, str | None]:
    """Return an operation as the question of the port."""
    return {"op": op.name, **op.arguments}


def is_seen(should: Shown, shown: Shown) -> bool:
    """Return whether these are the events that should be seen, in this order; free keys do not count."""
    return len(should) == len(shown) and all(
        as_record(expected).items() <= (as_record(event) | _reason(event)).items()
        for expected, event in zip(should, shown, strict=True)
    )


def _reason(event: Observed) -> dict[str, str]:
    return {"reason": event.reason} if isinstance(event, Wrote) else {}
