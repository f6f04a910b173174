"""Plays vectors on a subject, as teams do who cannot run the conformance kit."""

from __future__ import annotations

from typing import NamedTuple

from turngate_model.history import Wrote
from turngate_verify.conform.port import Features, Given, Observed, Refused, Subject, SubjectFactory
from turngate_verify.conform.programs import TAKING_IN, Op
from turngate_verify.vectors.vector import Shown, Vector, as_record, is_seen


class Difference(NamedTuple):
    """Where a subject shows what may not be seen."""

    vector: Vector
    nth: int
    shown: Shown

    def __str__(self) -> str:
        step = self.vector.steps[self.nth]
        told = ", ".join(str(op) for op in self.vector.program[: self.nth + 1])
        may = " or ".join(str([as_record(event) for event in events]) for events in step.may)
        return f"{told}: may be seen: {may}; is seen: {[as_record(event) for event in self.shown]}"


def can_play(features: Features, vector: Vector) -> bool:
    """Return whether a subject has the features that a vector needs."""
    return set(vector.needs) <= set(features.names)


def play_vector(make: SubjectFactory, vector: Vector) -> Difference | None:
    """Play a vector on a fresh subject. Return where it differs, or None."""
    subject = make()
    try:
        for nth, step in enumerate(vector.steps):
            shown = tuple(
                event
                for event in _performed(subject, step.op, vector)
                if not isinstance(event, Given)
                and ("messages" in vector.needs or not isinstance(event, Wrote))
            )
            if not any(is_seen(should, shown) for should in step.may):
                return Difference(vector, nth, shown)
    finally:
        subject.close()
    return None


def _performed(subject: Subject, op: Op, vector: Vector) -> list[Observed]:
    """Perform an operation; and enter what it brings, if the vector does not know of two phases."""
    getattr(subject, op.name)(*op.arguments.values())
    shown = [*subject.observe()]
    refused = any(isinstance(event, Refused) for event in shown)
    if (
        op.name in TAKING_IN
        and subject.features.two_phase
        and not refused
        and "two_phase" not in vector.needs
    ):
        subject.enter(op.run)
        shown += subject.observe()
    return shown
