"""The judge, held to the abstract session on sessions that no mechanism would ever reach.

The proof rests on the obligations of ``judge.py``: one that asks for too little
would prove too much. So sessions are drawn at random, possible or not, and
every event is shown to both. The abstract session must object exactly where an
obligation fails, and both must be in the same state afterwards.

And a mistake must be found: each obligation is broken on purpose, once to ask
for nothing and once to ask for what cannot be, and the two must then differ.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from turngate_model.abstract_session import AbstractSession
from turngate_model.checker.bounds import NAMES
from turngate_model.history import (
    Accept,
    Called,
    Cancel,
    Clear,
    Complete,
    Ended,
    Enter,
    Event,
    FinishReason,
    Fold,
    Handoff,
    Wrote,
)
from turngate_model.lifecycle import DeclaredState, Trigger, successor
from turngate_model.proof.comparison import Came, Tables, differences, lifted_abstract
from turngate_model.proof.judge import COMPLETING, Judge, nobody, only
from turngate_model.proof.judging_of_places import OF_PLACES, Sharing
from turngate_model.proof.paths import walk
from turngate_model.proof.readings import Finite
from turngate_model.proof.terms import Record, Value
from turngate_model.proof.vocabulary import ABSTRACT, GIVEN
from turngate_model.properties import Property

RUNS = 3
SESSIONS = 400
_READING = Finite((0,) * RUNS, ABSTRACT | GIVEN)
_REASONS: tuple[FinishReason, ...] = ("end_turn", "error", "canceled", "unwritten")


class Shown(NamedTuple):
    """An event, the state that it came in, and what the abstract session made of it."""

    event: Event
    before: Tables
    made: Came
    declared: bool | None
    """Whether the machine declares the move, if the event is one."""
    session: int = 0
    reading: Finite = _READING


class Judged(NamedTuple):
    """What the comparison came to."""

    events: int
    difference: str
    """Where the judge and the abstract session differ: nothing, if they agree."""
    mistakes: dict[str, bool]
    """For each obligation, whether both ways to break it were found."""


def compare_judges() -> Judged:
    """Show every drawn event to both, then break one obligation after another."""
    shown = _drawn()
    keys: set[str] = set()
    for each in shown:
        difference, asked = _compare(each)
        if difference:
            return Judged(len(shown), difference, {})
        keys |= asked
    return Judged(len(shown), "", {key: _is_found(key) for key in sorted(keys)})


def _is_found(key: str) -> bool:
    """Make each mistake about an obligation and tell whether both are found."""
    kind = key.split(":", maxsplit=1)[0].split(maxsplit=1)[0]
    of_its_kind = [each for each in _drawn() if type(each.event).__name__.lower() == kind]
    try:
        for mistake in (True, False):
            Judge.mistakes = {key: mistake}
            if not any(_compare(each)[0] for each in of_its_kind):
                return False
    finally:
        Judge.mistakes = {}
    return True


def _compare(shown: Shown) -> tuple[str, set[str]]:
    """Show the judge what the abstract session was shown; say how they differ, and what was asked."""
    reading = shown.reading
    world = reading.world_of(shown.before)
    (path,) = walk(reading, world, lambda path: _see(Judge(path), shown.session, shown.event))
    broken = frozenset(each.property for each in path.obligations if not each.holds)
    difference = differences(shown.made, Came(_facts(reading.tables(path.world)), broken))
    declared = all(
        each.holds
        for each in path.obligations
        if each.property is Property.DECLARED_MOVE and each.key != "fold: into the lead"
    )
    if shown.declared not in (None, declared):
        difference = difference or f"only one of them finds that the machine declares it, not {declared}"
    return difference and f"{shown.event}: {difference}", {each.key for each in path.obligations}


def _see(judge: Judge, session: int, event: Event) -> None:
    """Show an event of a session to the judge."""
    at = NAMES.index
    match event:
        case Accept(run, foldable):
            judge.accept(session, at(run), foldable)
        case Cancel(None):
            judge.cancel(session)
        case Cancel(runs):
            assert runs is not None
            judge.cancel(session, only(*map(at, runs)))
        case Clear():
            judge.clear(session)
        case Called(run):
            judge.called(session, at(run))
        case Ended(run):
            judge.ended(session, at(run))
        case Wrote(run, reason):
            judge.wrote(only(at(run)), Record(reason))
        case Enter(run, state):
            judge.enter(session, at(run), state)
        case Handoff(run):
            judge.handoff(session, at(run))
        case Fold(run, into):
            judge.fold(session, only(at(run)), at(into), nobody)
        case Complete(run, cancelled, _):
            judge.complete(session, only(at(run)), lambda _run: cancelled)


@cache
def _drawn() -> list[Shown]:
    """Draw sessions, always the same, and show every event to the abstract session."""
    chance = random.Random(16)  # noqa: S311 - to draw examples, not secrets
    shown = []
    for _ in range(SESSIONS):
        what = _session(chance)
        before = _tables(what)
        for event in _events(what):
            after = what.copy()
            broken = frozenset(each.property for each in after.observe(event))
            made = _tables(after)
            for name in ("completes", "outcome"):
                made[name] = dict(before[name])
            if isinstance(event, Complete):
                at = (NAMES.index(event.run),)
                made["completes"][at] = int(made["completes"][at]) + 1  # type: ignore[arg-type]  # a number
                made["outcome"][at] = event.cancelled
            shown.append(Shown(event, before, Came(_facts(made), broken), _declares(what, event)))
    return [*shown, *_drawn_with_places(chance)]


def _drawn_with_places(chance: random.Random) -> Iterator[Shown]:
    """Draw sessions that share a place, and show every event about it to the abstract places too."""
    for _ in range(SESSIONS):
        sharing = Sharing.drawn(chance)
        before = sharing.tables()
        for session, event in sharing.events():
            after, broken = sharing.after(session, event)
            made = after.tables()
            for name in ("completes", "outcome"):
                made[name] = dict(before[name])
            if isinstance(event, Complete):
                made["completes"][session,] = int(made["completes"][session,]) + 1  # type: ignore[arg-type]
                made["outcome"][session,] = event.cancelled
            declared = _declares(sharing.sessions[session], event)
            yield Shown(event, before, Came(_facts(made), broken), declared, session, OF_PLACES)


def _declares(what: AbstractSession, event: Event) -> bool | None:
    """Ask the machine itself: the abstract session asks it only of a move that nothing else is wrong with."""
    match event:
        case Enter(run, target):
            trigger = Trigger.ENTER
        case Handoff(run):
            trigger, target = Trigger.HANDOFF, DeclaredState.ACTIVE
        case Fold(run, _):
            trigger, target = Trigger.FOLD, DeclaredState.ACTIVE
        case Complete(run) if what.states[run] is not DeclaredState.COMPLETE:
            trigger, target = COMPLETING[what.states[run]], DeclaredState.COMPLETE
        case _:
            return None
    return successor(what.states[run], trigger, what.facts(run)) is target


def _session(chance: random.Random) -> AbstractSession:
    """Draw a session: any states, any sets, any lead."""

    def some(names: list[str]) -> list[str]:
        return [name for name in names if chance.random() < 0.35]

    what = AbstractSession()
    for name in NAMES[: chance.choice((1, 2, RUNS, RUNS, RUNS))]:
        what.observe(Accept(name, False))
    names = [*what.states]
    for name in names:
        what.states[name] = chance.choice([*DeclaredState])
    what.queue = what.in_state(DeclaredState.QUEUED)
    what.covered, what.cleared, what.foldable = set(some(names)), set(some(names)), set(some(names))
    what.record = {name: chance.choice(_REASONS) for name in some(names)}
    what.turn = some(names)
    what.lead = chance.choice(["", *names])
    what.running = chance.random() < 0.7
    return what


def _events(what: AbstractSession) -> Iterator[Event]:
    """Yield every event that could come next, sensible or not."""
    if len(what.states) < RUNS:
        yield from (Accept(NAMES[len(what.states)], foldable) for foldable in (True, False))
    yield from (Cancel(), Clear())
    for run in what.states:
        yield Cancel(frozenset({run}))
        yield Called(run)
        yield Ended(run)
        yield Handoff(run)
        yield from (Wrote(run, reason) for reason in _REASONS)
        yield from (Complete(run, cancelled) for cancelled in (True, False))
        yield from (
            Enter(run, state)
            for state in (DeclaredState.CANCEL_ON_ENTRY, DeclaredState.QUEUED, DeclaredState.ACTIVE)
        )
        yield from (Fold(run, into) for into in what.states)


def _tables(what: AbstractSession) -> Tables:
    return lifted_abstract(what, RUNS)


def _facts(tables: Tables) -> dict[tuple[str, tuple[int, ...]], Value]:
    waiting = tables["waiting"]
    return {
        (name, at): value
        for name, table in tables.items()
        for at, value in table.items()
        if name != "earlier" or all(waiting[each,] for each in at)
    }
