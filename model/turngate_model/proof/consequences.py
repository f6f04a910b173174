"""What follows: the properties, as formulas about one state or about one step.

The judge says of every event what it must not break. Here is the rest: what
follows from the invariant alone (``of_state``), and what a step as a whole must
keep (``of_step``). What makes every entered run complete is in ``progress.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from turngate_model.proof.readings import Reading
from turngate_model.proof.steps import Step
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
    differ,
    equal,
    implies,
    is_one_of,
    not_,
)
from turngate_model.proof.vocabulary import MECHANISM, SIGNATURE, Symbol, World
from turngate_model.properties import Property

_RUN = Sort.RUN
_IN_FLIGHT = (State.ACCEPTED, State.CANCEL_ON_ENTRY, State.QUEUED, State.ACTIVE)


class Consequence(NamedTuple):
    """Something that must hold, and which property it is part of."""

    property: str
    says: str
    holds: Formula


class Sight(NamedTuple):
    """A session, seen in a world: what the formulas about it have in common."""

    reading: Reading
    world: World
    session: Individual

    def at(self, run: Individual) -> Formula:
        """Say that the run belongs to the session."""
        return equal(self.reading.session_of(run), self.session)

    def every(self, says: Callable[[Individual], Formula]) -> Formula:
        """Say something of every run of the session."""
        return self.reading.for_all(lambda run: implies(self.at(run), says(run)))

    def some(self, says: Callable[[Individual], Formula]) -> Formula:
        """Say something of a run of the session."""
        return self.reading.exists(lambda run: all_of(self.at(run), says(run)))

    def is_in(self, run: Individual, *states: State) -> Formula:
        """Say in which states the run may be."""
        return is_one_of(self.world["state"](run), *states)

    @property
    def quiet(self) -> Formula:
        """Nothing of the session is in flight."""
        return self.every(lambda run: not_(self.is_in(run, *_IN_FLIGHT)))


# Of a state.


def of_state(
    reading: Reading, world: World, session: Individual, can_go_on: Formula, symbols: dict[str, Symbol]
) -> Iterator[Consequence]:
    """Yield what must hold of a session between steps, in the words of the abstract session and the explorer.

    ``can_go_on`` says that a step of the session's own can be taken: if none can, nothing may be owed.
    """
    at = Sight(reading, world, session)
    waiting = at.some(
        lambda run: all_of(
            at.is_in(run, State.QUEUED), not_(world["covered"](run)), not_(world["cleared"](run))
        )
    )
    stranded = all_of(waiting, not_(at.some(world["in_turn"])))
    owes_nothing = at.every(lambda run: at.is_in(run, State.UNBORN, State.ACCEPTED, State.COMPLETE))
    yield Consequence(
        Property.NO_STRAND,
        "nobody waits in the queue of a session at rest",
        any_of(can_go_on, not_(stranded)),
    )
    yield Consequence(
        Property.EXACTLY_ONE_COMPLETE,
        "a session at rest owes no RunComplete",
        any_of(can_go_on, stranded, owes_nothing),
    )
    yield Consequence(
        Property.NO_RESIDUE,
        "a quiet session holds nothing",
        implies(all_of(at.quiet, not_(can_go_on)), _holds_nothing(at, symbols)),
    )


def _holds_nothing(at: Sight, symbols: dict[str, Symbol]) -> Formula:
    world = at.world
    held = ("accepted", "foldable", "singled_out", "entering", "queue", "active")
    kept = [name for name in ("mark", "pending", "halves") if name in symbols]
    halves = (
        at.every(lambda run: at.every(lambda other: not_(world["half"](other, run))))
        if "half" in symbols
        else True
    )
    return all_of(
        *(equal(world[name](at.session), 0) for name in kept),
        not_(world["busy"](at.session)),
        at.every(lambda run: not_(any_of(*(world[name](run) for name in held)))),
        at.every(lambda run: equal(world["phase"](run), Phase.NONE)),
        halves,
    )


def of_sound_state(reading: Reading, world: World, session: Individual) -> Iterator[Consequence]:
    """Yield what must hold of a session besides, which no known-bad design is asked for."""
    at = Sight(reading, world, session)
    yield Consequence(
        Property.EXACTLY_ONE_COMPLETE,
        "no run has two RunCompletes",
        reading.for_all(lambda run: at_most(world["completes"](run), 1)),
    )
    yield Consequence(
        Property.NO_STRAND,
        "a session without a turn has no queue",
        implies(
            at.every(lambda run: not_(world["in_turn"](run))),
            at.every(lambda run: not_(at.is_in(run, State.QUEUED))),
        ),
    )
    yield Consequence(Property.ONE_TURN, "a session has one turn at most", _one_turn(at))
    yield Consequence(
        Property.FULL_COVERAGE,
        "no covered run waits in the queue",
        at.every(lambda run: not_(all_of(world["queue"](run), world["covered"](run)))),
    )
    yield Consequence(
        Property.ON_RECORD,
        "a queued run has no message on record",
        at.every(
            lambda run: implies(at.is_in(run, State.QUEUED), equal(world["record"](run), Record.NOTHING))
        ),
    )
    for says, holds in _refines(at):
        yield Consequence(Property.REFINES, says, holds)


def _one_turn(at: Sight) -> Formula:
    phase = at.world["phase"]
    return at.reading.for_all(
        lambda one, other: implies(
            all_of(
                at.at(one), at.at(other), differ(phase(one), Phase.NONE), differ(phase(other), Phase.NONE)
            ),
            equal(one, other),
        ),
        _RUN,
        _RUN,
    )


def _refines(at: Sight) -> Iterator[tuple[str, Formula]]:
    """Yield that what the mechanism holds is what the abstract session has, as the explorer compares it."""
    world, reading = at.world, at.reading
    for held, state in (
        ("accepted", State.ACCEPTED),
        ("entering", State.CANCEL_ON_ENTRY),
        ("queue", State.QUEUED),
    ):
        yield held, at.every(_exactly(at, held, state))
    yield "foldable", at.every(lambda run: equal(world["foldable"](run), world["may_fold"](run)))

    phase = world["phase"]
    yield (
        "an active run has a turn",
        at.every(
            lambda run: implies(world["in_turn"](run), at.some(lambda lead: differ(phase(lead), Phase.NONE)))
        ),
    )
    yield (
        "the turn",
        reading.for_all(
            lambda run, lead: implies(
                all_of(at.at(run), at.at(lead), differ(phase(lead), Phase.NONE)),
                equal(world["in_turn"](run), any_of(equal(run, lead), world["folded"](run, lead))),
            ),
            _RUN,
            _RUN,
        ),
    )
    yield (
        "running",
        equal(world["running"](at.session), at.some(lambda x: equal(world["phase"](x), Phase.RUNNING))),
    )
    yield "coverage", at.every(lambda run: equal(world["covered"](run), _is_kept_as_covered(at, run)))
    yield (
        "the order of the queue",
        reading.for_all(
            lambda one, other: implies(
                all_of(at.at(one), at.at(other), world["queue"](one), world["queue"](other)),
                equal(world["ahead"](one, other), world["older"](one, other)),
            ),
            _RUN,
            _RUN,
        ),
    )


def _exactly(at: Sight, held: str, state: State) -> Callable[[Individual], Formula]:
    return lambda run: equal(at.world[held](run), at.is_in(run, state))


def _is_kept_as_covered(at: Sight, run: Individual) -> Formula:
    world = at.world
    marked = any_of(at_most(world["seq"](run), world["mark"](at.session)), world["singled_out"](run))
    leads = all_of(differ(world["phase"](run), Phase.NONE), world["interrupted"](run))
    joined = at.reading.exists(lambda lead: all_of(world["folded"](run, lead), world["interrupted"](lead)))
    return any_of(all_of(world["accepted"](run), marked), world["entering"](run), leads, joined)


# Of a step.


def of_step(
    reading: Reading, before: World, after: World, session: Individual, step: Step
) -> Iterator[Consequence]:
    """Yield what a step of a session must keep, besides what its events are obliged to."""
    was, is_ = Sight(reading, before, session), Sight(reading, after, session)

    def completes(run: Individual) -> Formula:
        return all_of(not_(was.is_in(run, State.COMPLETE)), is_.is_in(run, State.COMPLETE))

    yield Consequence(
        Property.TERMINAL_IS_FINAL,
        "state, outcome and number of RunCompletes of a complete run stay",
        reading.for_all(
            lambda run: implies(
                was.is_in(run, State.COMPLETE),
                all_of(*(equal(before[n](run), after[n](run)) for n in ("state", "outcome", "completes"))),
            )
        ),
    )
    by_this_cancel = _IN_FLIGHT if step.cancels else ()
    yield Consequence(
        Property.NEVER_POISONED,
        "who completes as cancelled was accepted before a cancel, this one or an earlier one",
        reading.for_all(
            lambda run: implies(
                all_of(completes(run), after["outcome"](run)),
                any_of(before["covered"](run), was.is_in(run, *by_this_cancel)),
            )
        ),
    )
    yield Consequence(
        Property.FULL_COVERAGE,
        "a covered run stays covered, or completes as cancelled; it does not become active",
        reading.for_all(
            lambda run: implies(
                before["covered"](run),
                all_of(
                    any_of(after["covered"](run), all_of(completes(run), after["outcome"](run))),
                    implies(is_.is_in(run, State.ACTIVE), was.is_in(run, State.ACTIVE)),
                ),
            )
        ),
    )
    yield Consequence(Property.ISOLATION, "every other session stays as it is", _elsewhere(was, is_))


def of_cancel(reading: Reading, before: World, after: World, session: Individual) -> Iterator[Consequence]:
    """Yield what a cancel of a session must do: cover everything, and leave a quiet session alone."""
    was, is_ = Sight(reading, before, session), Sight(reading, after, session)
    yield of_idle_cancel(reading, before, after, session, MECHANISM)
    yield Consequence(
        Property.FULL_COVERAGE,
        "a cancel covers every run in flight, or completes it as cancelled",
        was.every(
            lambda run: implies(
                was.is_in(run, *_IN_FLIGHT),
                any_of(after["covered"](run), all_of(is_.is_in(run, State.COMPLETE), after["outcome"](run))),
            )
        ),
    )


def of_idle_cancel(
    reading: Reading, before: World, after: World, session: Individual, symbols: dict[str, Symbol]
) -> Consequence:
    """Return what a cancel of a quiet session must keep: all that the mechanism holds."""
    quiet = Sight(reading, before, session).quiet
    return Consequence(
        Property.IDLE_CANCEL,
        "a cancel of a quiet session changes nothing",
        implies(quiet, _unchanged(reading, before, after, symbols)),
    )


def _unchanged(reading: Reading, before: World, after: World, symbols: dict[str, Symbol]) -> Formula:
    return all_of(
        *(
            reading.for_all(
                lambda *arguments, n=name: equal(before[n](*arguments), after[n](*arguments)),
                *symbol.arguments,
            )
            for name, symbol in symbols.items()
        )
    )


def _elsewhere(was: Sight, is_: Sight) -> Formula:
    """Say that nothing changes of another session; of two runs, if neither is of this one."""
    parts = []
    for name, symbol in SIGNATURE.items():

        def stays(*arguments: Individual, name: str = name, symbol: Symbol = symbol) -> Formula:
            here = (
                equal(each, was.session) if sort is Sort.SESSION else was.at(each)
                for each, sort in zip(arguments, symbol.arguments, strict=True)
            )
            return any_of(*here, equal(was.world[name](*arguments), is_.world[name](*arguments)))

        parts.append(was.reading.for_all(stays, *symbol.arguments))
    return all_of(*parts)
