"""Progress: why every run that has entered completes, if runners end and stores answer.

Of liveness the solver proves three things: as long as a run is queued or
active, its session has a turn that can go on; every end and every write makes
the rank of every such run smaller; and nothing else makes it larger. The rank
of a run is a pair: the runs of its session that were accepted earlier and are
still accepted or queued, and the phase of the turn. That such a rank cannot
fall for ever, and that a turn which can go on does, is said in prose.
"""

from __future__ import annotations

from collections.abc import Iterator

from turngate_model.proof.consequences import Consequence, Sight
from turngate_model.proof.readings import Reading
from turngate_model.proof.relation import WRITING
from turngate_model.proof.steps import Step
from turngate_model.proof.terms import (
    Formula,
    Individual,
    Number,
    Phase,
    Sort,
    State,
    all_of,
    any_of,
    at_most,
    choice,
    equal,
    implies,
    is_one_of,
    less,
    not_,
)
from turngate_model.proof.vocabulary import World

LIVENESS = "R-LIV-1"
_RUN = Sort.RUN


def of_waiting(reading: Reading, world: World, session: Individual) -> Iterator[Consequence]:
    """Yield that every run which has entered and is not complete waits for something that can happen."""
    at = Sight(reading, world, session)
    yield Consequence(
        LIVENESS,
        "a queued or active run has a turn that can go on",
        at.every(
            lambda run: implies(
                at.is_in(run, State.QUEUED, State.ACTIVE),
                at.some(lambda lead: is_one_of(world["phase"](lead), Phase.RUNNING, *WRITING)),
            )
        ),
    )
    yield Consequence(
        LIVENESS,
        "a run cancelled on entry can settle",
        at.every(lambda run: implies(at.is_in(run, State.CANCEL_ON_ENTRY), world["entering"](run))),
    )


def of_progress(
    reading: Reading, before: World, after: World, session: Individual, step: Step
) -> Iterator[Consequence]:
    """Yield that the rank of every queued or active run falls with every end and write, and never rises."""
    was, is_ = Sight(reading, before, session), Sight(reading, after, session)
    falls = less if step.name in ("end", "written") else at_most

    def waits(run: Individual) -> Formula:
        return all_of(was.at(run), before["queue"](run), after["queue"](run))

    def goes_on(lead: Individual) -> Formula:
        return all_of(after["active"](lead), falls(_rank(after, lead), _rank(before, lead)))

    def overtaken(run: Individual) -> Formula:
        return reading.exists(
            lambda other: all_of(_is_ahead(was, other, run), not_(_is_ahead(is_, other, run)))
        )

    yield Consequence(
        LIVENESS,
        "nobody gets ahead of a run that waits",
        reading.for_all(
            lambda other, run: implies(
                all_of(waits(run), _is_ahead(is_, other, run)), _is_ahead(was, other, run)
            ),
            _RUN,
            _RUN,
        ),
    )
    yield Consequence(
        LIVENESS,
        "for a run that waits, the turn gets on or fewer are ahead",
        reading.for_all(
            lambda run, lead: implies(
                all_of(waits(run), was.at(lead), before["active"](lead)),
                any_of(goes_on(lead), overtaken(run)),
            ),
            _RUN,
            _RUN,
        ),
    )
    yield Consequence(
        LIVENESS,
        "for an active run, the turn gets on or the run completes",
        reading.for_all(
            lambda run, lead: implies(
                all_of(was.at(run), was.is_in(run, State.ACTIVE), was.at(lead), before["active"](lead)),
                any_of(all_of(is_.is_in(run, State.ACTIVE), goes_on(lead)), is_.is_in(run, State.COMPLETE)),
            ),
            _RUN,
            _RUN,
        ),
    )
    yield from _of_moves(was, is_, step)


def _of_moves(was: Sight, is_: Sight, step: Step) -> Iterator[Consequence]:
    """Yield that a run which has entered goes on towards complete, and never back."""
    if step.name == "settle":
        yield Consequence(
            LIVENESS,
            "to settle completes a run cancelled on entry",
            was.some(
                lambda run: all_of(was.is_in(run, State.CANCEL_ON_ENTRY), is_.is_in(run, State.COMPLETE))
            ),
        )
    for source, targets in (
        (State.CANCEL_ON_ENTRY, (State.CANCEL_ON_ENTRY, State.COMPLETE)),
        (State.QUEUED, (State.QUEUED, State.ACTIVE, State.COMPLETE)),
    ):
        yield Consequence(
            LIVENESS,
            f"from {source} a run goes to {' or '.join(targets[1:])}",
            was.reading.for_all(
                lambda run, s=source, t=targets: implies(was.is_in(run, s), is_.is_in(run, *t))
            ),
        )


def _is_ahead(at: Sight, other: Individual, run: Individual) -> Formula:
    world = at.world
    return all_of(
        equal(at.reading.session_of(other), at.reading.session_of(run)),
        any_of(world["accepted"](other), world["queue"](other)),
        less(world["seq"](other), world["seq"](run)),
    )


def _rank(world: World, lead: Individual) -> Number:
    phase = world["phase"](lead)
    rank: Number = choice(equal(phase, Phase.CANCELED), 1, 0)
    rank = choice(is_one_of(phase, Phase.END_TURN, Phase.ERROR), 2, rank)
    highest: Number = choice(equal(phase, Phase.RUNNING), 3, rank)
    return highest
