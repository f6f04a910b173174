"""Every order in which the events after an operation may be seen.

The mechanism shows the events of an operation in some order. A dispatcher that is built differently may show
them in another: two runs that one cancel covers complete in either order. No property fixes that. So the
judge of the conformance kit decides which orders may be seen, and the vectors accept all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from turngate_model.history import Complete, Wrote
from turngate_verify.conform.judge import Judge
from turngate_verify.conform.port import Features, Subject
from turngate_verify.conform.programs import Name, Op
from turngate_verify.vectors.at_rest import ModelSubject
from turngate_verify.vectors.vector import Shown


class Scripted(ModelSubject):
    """A subject that shows scripted events, whatever the operation is."""

    def __init__(self, script: Sequence[Shown], features: Features) -> None:
        super().__init__()
        self.features = features
        self._script = iter(script)

    def _perform(self, name: Name, run: str = "", session: str = "") -> None:
        self._seen += next(self._script)


def judged(program: Sequence[Op], script: Sequence[Shown], features: Features) -> Judge:
    """Return the judge of a program after which this was seen, operation by operation."""
    subject: Subject = Scripted(script, features)
    judge = Judge(subject)
    for op in program:
        judge.take(op)
    return judge


def allowed(program: Sequence[Op], script: Sequence[Shown], features: Features) -> bool:
    """Return whether the judge has nothing against what was seen."""
    judge = judged(program, script, features)
    return not judge.violations and not judge.late


def orders(
    program: Sequence[Op], before: Sequence[Shown], events: Shown, features: Features
) -> Iterator[Shown]:
    """Yield the orders in which these events may be seen after the last operation of a program."""
    for order in _shuffled(events):
        if order == events or allowed(program, (*before, order), features):
            yield order


def _shuffled(events: Shown) -> Iterator[Shown]:
    """Yield the events in every order that keeps the events of each run in theirs."""
    if not events:
        yield ()
    first_of: dict[str, int] = {}
    for nth, event in enumerate(events):
        first_of.setdefault(event.run, nth)
    for nth in first_of.values():
        for rest in _shuffled((*events[:nth], *events[nth + 1 :])):
            yield (events[nth], *rest)


def visible(events: Shown, *, messages: bool) -> Shown:
    """Return the events of a vector: without what is free, and what is written only where messages count."""
    shown = (event for event in events if messages or not isinstance(event, Wrote))
    return tuple(event._replace(error=None) if isinstance(event, Complete) else event for event in shown)
