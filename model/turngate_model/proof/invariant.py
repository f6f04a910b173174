"""The invariant: what is true between any two steps, however many runs and sessions there are.

It holds at first, every step keeps it, and every property follows from it. Each
clause has a name and a sentence; dropped alone, something can no longer be
proved. In four groups:

1. **Gluing.** The mechanism and the abstract session speak of the same runs.
2. **The turn.** A session has one turn at most, and a queue only behind one.
3. **Coverage.** For every run, where the mechanism keeps that a cancel covers it.
4. **Order.** Sequences, the mark and the queue are in the order of acceptance.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from turngate_model.proof.readings import Reading
from turngate_model.proof.terms import (
    Formula,
    Individual,
    Phase,
    Record,
    Sort,
    State,
    all_of,
    any_of,
    at_most,
    choice,
    differ,
    equal,
    implies,
    is_one_of,
    less,
    not_,
)
from turngate_model.proof.vocabulary import World

_RUN, _SESSION = Sort.RUN, Sort.SESSION


class Clause(NamedTuple):
    """One part of the invariant."""

    name: str
    sentence: str
    says: Callable[[Reading, World], Formula]
    finds: bool = False
    """Whether it says of everything that something else exists, which is hard on a solver."""


def _same_session(reading: Reading, one: Individual, other: Individual) -> Formula:
    return equal(reading.session_of(one), reading.session_of(other))


def _born(world: World, run: Individual) -> Formula:
    return differ(world["state"](run), State.UNBORN)


# 1. Gluing.


def _members(name: str, state: State) -> Callable[[Reading, World], Formula]:
    return lambda reading, world: reading.for_all(
        lambda run: equal(world[name](run), equal(world["state"](run), state))
    )


def _foldable(reading: Reading, world: World) -> Formula:
    waits = (State.ACCEPTED, State.QUEUED)
    return reading.for_all(
        lambda run: all_of(
            equal(world["foldable"](run), world["may_fold"](run)),
            implies(world["foldable"](run), is_one_of(world["state"](run), *waits)),
        )
    )


def _singled_out(reading: Reading, world: World) -> Formula:
    return reading.for_all(
        lambda run: implies(world["singled_out"](run), equal(world["state"](run), State.ACCEPTED))
    )


def _completes(reading: Reading, world: World) -> Formula:
    complete = State.COMPLETE
    return reading.for_all(
        lambda run: equal(world["completes"](run), choice(equal(world["state"](run), complete), 1, 0))
    )


def _record(reading: Reading, world: World) -> Formula:
    return reading.for_all(
        lambda run: any_of(
            equal(world["record"](run), Record.NOTHING), equal(world["state"](run), State.ACTIVE)
        )
    )


# 2. The turn.


def _lead(reading: Reading, world: World) -> Formula:
    active = world["active"]
    return reading.for_all(
        lambda run: all_of(
            equal(differ(world["phase"](run), Phase.NONE), active(run)),
            equal(active(run), world["lead"](run)),
            implies(active(run), world["in_turn"](run)),
        )
    )


def _one_lead(reading: Reading, world: World) -> Formula:
    active = world["active"]
    return reading.for_all(
        lambda one, other: implies(
            all_of(active(one), active(other), _same_session(reading, one, other)), equal(one, other)
        ),
        _RUN,
        _RUN,
    )


def _folded(reading: Reading, world: World) -> Formula:
    return reading.for_all(
        lambda run, lead: implies(
            world["folded"](run, lead),
            all_of(
                world["active"](lead),
                world["in_turn"](run),
                _same_session(reading, run, lead),
                differ(run, lead),
            ),
        ),
        _RUN,
        _RUN,
    )


def _whole_turn(reading: Reading, world: World) -> Formula:
    return reading.for_all(
        lambda run, lead: implies(
            all_of(world["in_turn"](run), world["active"](lead), _same_session(reading, run, lead)),
            any_of(equal(run, lead), world["folded"](run, lead)),
        ),
        _RUN,
        _RUN,
    )


def _busy(reading: Reading, world: World) -> Formula:
    return reading.for_all(
        lambda run: implies(
            any_of(world["in_turn"](run), world["queue"](run)), world["busy"](reading.session_of(run))
        )
    )


def _manned(reading: Reading, world: World) -> Formula:
    return reading.for_all(
        lambda session: implies(
            world["busy"](session),
            reading.exists(lambda run: all_of(world["active"](run), equal(reading.session_of(run), session))),
        ),
        _SESSION,
    )


def _running(reading: Reading, world: World) -> Formula:
    running, session_of = world["running"], reading.session_of
    return all_of(
        reading.for_all(
            lambda lead: implies(
                world["active"](lead),
                equal(running(session_of(lead)), equal(world["phase"](lead), Phase.RUNNING)),
            )
        ),
        reading.for_all(lambda session: implies(running(session), world["busy"](session)), _SESSION),
    )


# 3. Coverage.


def _covered_accepted(reading: Reading, world: World) -> Formula:
    return reading.for_all(
        lambda run: implies(
            equal(world["state"](run), State.ACCEPTED),
            equal(
                world["covered"](run),
                any_of(
                    at_most(world["seq"](run), world["mark"](reading.session_of(run))),
                    world["singled_out"](run),
                ),
            ),
        )
    )


def _covered_turn(reading: Reading, world: World) -> Formula:
    covered, interrupted = world["covered"], world["interrupted"]
    return all_of(
        reading.for_all(lambda lead: implies(world["active"](lead), equal(covered(lead), interrupted(lead)))),
        reading.for_all(
            lambda run, lead: implies(world["folded"](run, lead), equal(covered(run), interrupted(lead))),
            _RUN,
            _RUN,
        ),
    )


def _covered_entering(reading: Reading, world: World) -> Formula:
    return reading.for_all(
        lambda run: implies(equal(world["state"](run), State.CANCEL_ON_ENTRY), world["covered"](run))
    )


def _covered_others(reading: Reading, world: World) -> Formula:
    others = (State.UNBORN, State.QUEUED, State.COMPLETE)
    return reading.for_all(
        lambda run: implies(is_one_of(world["state"](run), *others), not_(world["covered"](run)))
    )


# 4. Order.


def _sequences(reading: Reading, world: World) -> Formula:
    seq, session_of = world["seq"], reading.session_of
    return reading.for_all(
        lambda run: implies(
            _born(world, run), all_of(at_most(1, seq(run)), less(seq(run), world["next"](session_of(run))))
        )
    )


def _acceptance(reading: Reading, world: World) -> Formula:
    seq = world["seq"]
    return reading.for_all(
        lambda one, other: equal(
            world["older"](one, other),
            all_of(
                _same_session(reading, one, other),
                _born(world, one),
                _born(world, other),
                less(seq(one), seq(other)),
            ),
        ),
        _RUN,
        _RUN,
    )


def _unique(reading: Reading, world: World) -> Formula:
    seq = world["seq"]
    return reading.for_all(
        lambda one, other: implies(
            all_of(
                _same_session(reading, one, other),
                _born(world, one),
                _born(world, other),
                equal(seq(one), seq(other)),
            ),
            equal(one, other),
        ),
        _RUN,
        _RUN,
    )


def _mark(reading: Reading, world: World) -> Formula:
    mark = world["mark"]
    return reading.for_all(
        lambda session: all_of(at_most(0, mark(session)), less(mark(session), world["next"](session))),
        _SESSION,
    )


def _needed_mark(reading: Reading, world: World) -> Formula:
    mark = world["mark"]
    return reading.for_all(
        lambda session: any_of(
            equal(mark(session), 0),
            reading.exists(
                lambda run: all_of(
                    world["accepted"](run),
                    equal(reading.session_of(run), session),
                    at_most(world["seq"](run), mark(session)),
                )
            ),
        ),
        _SESSION,
    )


def _queue_order(reading: Reading, world: World) -> Formula:
    queue, seq = world["queue"], world["seq"]
    return reading.for_all(
        lambda one, other: implies(
            all_of(queue(one), queue(other), _same_session(reading, one, other)),
            equal(world["ahead"](one, other), less(seq(one), seq(other))),
        ),
        _RUN,
        _RUN,
    )


INVARIANT = (
    Clause(
        "accepted",
        "The mechanism holds exactly the accepted runs as accepted.",
        _members("accepted", State.ACCEPTED),
    ),
    Clause(
        "entering",
        "The mechanism holds exactly the runs cancelled on entry as entering.",
        _members("entering", State.CANCEL_ON_ENTRY),
    ),
    Clause("queue", "The queue holds exactly the queued runs.", _members("queue", State.QUEUED)),
    Clause("turn", "The abstract turn holds exactly the active runs.", _members("in_turn", State.ACTIVE)),
    Clause(
        "foldable", "Both sides hold the same runs as foldable, all of them accepted or queued.", _foldable
    ),
    Clause("singled-out", "Only accepted runs are singled out.", _singled_out),
    Clause("completes", "A complete run has had one RunComplete, every other run none.", _completes),
    Clause("record", "Between steps only active runs have messages on record.", _record),
    Clause(
        "lead",
        "The lead of a turn is what its session holds to be active, and leads the abstract turn.",
        _lead,
    ),
    Clause("one-lead", "A session has one lead at most.", _one_lead),
    Clause("folded", "A folded run is part of the turn of an active lead of its own session.", _folded),
    Clause("whole-turn", "Every run of a turn is its lead or folded into it.", _whole_turn),
    Clause("busy", "A session with an active or queued run is busy.", _busy),
    Clause("manned", "A busy session has a lead.", _manned, finds=True),
    Clause("running", "The abstract turn runs exactly while the runner's call goes on.", _running),
    Clause(
        "covered-accepted",
        "An accepted run is covered exactly if its sequence is at most the mark, or it is singled out.",
        _covered_accepted,
    ),
    Clause("covered-entering", "A run cancelled on entry is covered.", _covered_entering),
    Clause("covered-turn", "A run of a turn is covered exactly if the turn is cancelled.", _covered_turn),
    Clause(
        "covered-others",
        "No queued run is covered, none that is complete, and none before its accept.",
        _covered_others,
    ),
    Clause("sequences", "Sequences are from 1 and below the next.", _sequences),
    Clause("unique", "No two runs of a session have the same sequence.", _unique),
    Clause(
        "acceptance",
        "Of two runs of a session, the one accepted earlier has the lower sequence.",
        _acceptance,
    ),
    Clause("mark", "The mark is below the next sequence.", _mark),
    Clause(
        "needed-mark", "The mark is 0 unless an accepted run is at or below it.", _needed_mark, finds=True
    ),
    Clause("queue-order", "The queue is in sequence order.", _queue_order),
)
"""All of it, in the order of the groups."""
