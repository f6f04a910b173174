"""WHAT, for any number of runs: the abstract session as obligations.

Method for method as in ``abstract_session.py``. There, an event is observed and
answered with the properties that it breaks. Here, an event obliges its path:
for every way to break a property there is one obligation that says it is not
taken. Then the event changes the abstract session as it does there.

Some events come for a set of runs: a cancel completes the whole queue. They
come one by one there; here each run of the set is judged at its own moment.
Of all guards only FIRST looks at runs that may have gone by then, so a fold
says in which order it takes them.

What DECLARED_MOVE asks is made from the declared table itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from turngate_model.lifecycle import TABLE, DeclaredState, Guard, Row, Trigger
from turngate_model.proof.paths import Path
from turngate_model.proof.terms import (
    Formula,
    Individual,
    Record,
    Sort,
    State,
    Value,
    all_of,
    any_of,
    choice,
    differ,
    equal,
    implies,
    is_one_of,
    less,
    not_,
    plus,
)
from turngate_model.properties import Property

COMPLETING = {
    DeclaredState.ACCEPTED: Trigger.RELEASE,
    DeclaredState.QUEUED: Trigger.DROP,
    DeclaredState.CANCEL_ON_ENTRY: Trigger.SETTLE,
    DeclaredState.ACTIVE: Trigger.FINISH,
}
_OF_THE_RUN_ALONE = {Guard.COVERED, Guard.FOLDABLE, Guard.CLEARED, Guard.SETTLED}


@dataclass(frozen=True)
class Runs:
    """A set of runs, by what is true of its members; or one run alone."""

    has: Callable[[Individual], Formula]
    alone: Individual | None = None


def only(run: Individual) -> Runs:
    """Return the set that has one run."""
    return Runs(lambda other: equal(other, run), run)


def nobody(_run: Individual, _other: Individual) -> Formula:
    """Say of no run that it has gone before another."""
    return False


class Judge:
    """The abstract session that watches a path."""

    mistakes: dict[str, bool] = {}  # noqa: RUF012 - replaced as a whole, by the teeth
    """Obligations to be made wrongly, by key: a check of the checks."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.reading = path.reading

    def oblige(self, broken: Property, key: str, holds: Formula) -> None:
        """Oblige the path, unless a mistake is to be made here."""
        self.path.oblige(broken, key, self.mistakes.get(key, holds))

    def at(self, session: Individual, run: Individual) -> Formula:
        """Say that the run belongs to the session."""
        return equal(self.reading.session_of(run), session)

    def each(self, runs: Runs, says: Callable[[Individual], Formula]) -> Formula:
        """Say something of each run of the set."""
        if runs.alone is not None:
            return says(runs.alone)
        return self.reading.for_all(lambda run: implies(runs.has(run), says(run)))

    def some(self, session: Individual, says: Callable[[Individual], Formula]) -> Formula:
        """Say something of a run of the session."""
        return self.reading.exists(lambda run: all_of(self.at(session, run), says(run)))

    # The guards of the machine, and what it declares.

    def fact(
        self,
        guard: Guard,
        session: Individual,
        run: Individual,
        gone: Callable[[Individual, Individual], Formula] = nobody,
    ) -> Formula:
        """Say that a guard is true of a run, when those that are gone before it have left the queue."""
        now = self.path.world
        state, in_turn, covered = now["state"], now["in_turn"], now["covered"]
        every = self.reading.for_all
        match guard:
            case Guard.COVERED:
                return covered(run)  # type: ignore[no-any-return]  # a symbol answers with what it is asked for
            case Guard.OCCUPIED:
                return self.some(session, lambda x: any_of(in_turn(x), equal(state(x), State.QUEUED)))
            case Guard.FIRST:  # that the run is queued itself, every row with this guard asks for anyway
                return every(
                    lambda x: implies(
                        all_of(self._waits(session, x), differ(x, run), not_(gone(x, run))),
                        now["older"](run, x),
                    )
                )
            case Guard.VACATED:
                return not_(self.some(session, in_turn))
            case Guard.JOINABLE:
                return all_of(
                    now["running"](session),
                    every(lambda x: implies(all_of(self.at(session, x), in_turn(x)), not_(covered(x)))),
                )
            case Guard.FOLDABLE:
                return now["may_fold"](run)  # type: ignore[no-any-return]
            case Guard.CLEARED:
                return now["cleared"](run)  # type: ignore[no-any-return]
            case _:
                assert guard is Guard.SETTLED
                return differ(now["record"](run), Record.NOTHING)

    def _declared(
        self,
        event: str,
        session: Individual,
        runs: Runs,
        row_of: tuple[Trigger, DeclaredState, DeclaredState],
        gone: Callable[[Individual, Individual], Formula] = nobody,
    ) -> None:
        """Oblige the path to what the table asks for a move: guard by guard where one row declares it."""
        trigger, source, target = row_of
        state = self.path["state"]
        rows = [row for row in TABLE if (row.trigger, row.source, row.target) == row_of]
        assert rows, row_of
        if trigger not in COMPLETING.values():
            self.oblige(
                Property.DECLARED_MOVE,
                f"{event}: from {source}",
                self.each(runs, lambda run: equal(state(run), State(source))),
            )
        moves = self._those_in(runs, source) if trigger in COMPLETING.values() else runs
        if len(rows) > 1:
            self.oblige(
                Property.DECLARED_MOVE,
                f"{event} to {target}: {trigger}",
                self.each(moves, lambda run: self._some_row(rows, session, run, gone)),
            )
            return

        def is_met(guard: Guard, wanted: bool) -> Callable[[Individual], Formula]:
            return lambda run: equal(self.fact(guard, session, run, gone), wanted)

        for guard, wanted in _guards(rows[0]):
            key = f"{event} to {target}: {trigger} if {'' if wanted else 'not '}{guard.label}"
            self.oblige(Property.DECLARED_MOVE, key, self.each(moves, is_met(guard, wanted)))

    def _some_row(
        self,
        rows: list[Row],
        session: Individual,
        run: Individual,
        gone: Callable[[Individual, Individual], Formula],
    ) -> Formula:
        return any_of(
            *(
                all_of(
                    *(equal(self.fact(guard, session, run, gone), wanted) for guard, wanted in _guards(row))
                )
                for row in rows
            )
        )

    def _those_in(self, runs: Runs, source: DeclaredState) -> Runs:
        state = self.path["state"]
        return Runs(lambda run: all_of(runs.has(run), equal(state(run), State(source))))

    def _waits(self, session: Individual, run: Individual) -> Formula:
        return all_of(self.at(session, run), equal(self.path["state"](run), State.QUEUED))

    # The events.

    def accept(self, session: Individual, run: Individual, foldable: bool) -> None:
        """Take a run in: every run of the session that has ever been accepted is older."""
        path, state = self.path, self.path["state"]
        path.give(
            "older",
            lambda old, a, b: any_of(
                old(a, b),
                all_of(equal(b, run), differ(a, run), self.at(session, a), differ(state(a), State.UNBORN)),
            ),
        )
        path.give("state", lambda old, x: choice(equal(x, run), State.ACCEPTED, old(x)))
        path.give("may_fold", lambda old, x: choice(equal(x, run), foldable, old(x)))

    def cancel(self, session: Individual, runs: Runs | None = None) -> None:
        """Cover the runs named, or else exactly those accepted before that are not complete."""
        state = self.path["state"]

        def in_flight(run: Individual) -> Formula:
            return all_of(self.at(session, run), not_(is_one_of(state(run), State.UNBORN, State.COMPLETE)))

        has = runs.has if runs else in_flight
        self.path.give("covered", lambda old, x: any_of(old(x), has(x)))
        in_turn, covered = self.path["in_turn"], self.path["covered"]
        over = self.some(session, lambda x: all_of(in_turn(x), covered(x)))
        self.path.give("waiting", lambda old, t: all_of(old(t), not_(all_of(equal(t, session), over))))

    def clear(self, session: Individual) -> None:
        """Note which runs are in the queue that is cleared."""
        self.path.give("cleared", lambda old, x: any_of(old(x), self._waits(session, x)))

    def called(self, session: Individual, lead: Individual) -> None:
        """Begin the runner's call of a turn that waited for a place, if that turn is active.

        The abstract places let a turn be called if there is a place for it and for all that wait ahead of it.
        To oblige it to be the first is to ask for more.
        """
        now = dict(self.path.world)
        waiting, earlier, called = now["waiting"], now["earlier"], now["called"](session)
        first = self.reading.for_all(
            lambda t: implies(all_of(waiting(t), differ(t, session)), earlier(session, t)), Sort.SESSION
        )
        limited, free = now["limited"](), less(now["calls"](), now["limit"]())
        self.oblige(Property.REFINES, "called: it waits", implies(limited, waiting(session)))
        self.oblige(Property.REFINES, "called: nobody waits longer", implies(limited, first))
        self.oblige(Property.REFINES, "called: a place is free", implies(limited, free))
        leads = now["lead"](lead)
        self.path.give("running", lambda old, t: any_of(old(t), all_of(equal(t, session), leads)))
        self.path.give("waiting", lambda old, t: all_of(old(t), differ(t, session)))
        self.path.give("calls", lambda old: plus(old(), choice(all_of(limited, not_(called)), 1, 0)))
        self.path.give("called", lambda old, t: any_of(old(t), all_of(limited, equal(t, session))))

    def ended(self, session: Individual, lead: Individual) -> None:
        """End the runner's call, if it is that of the turn that is active."""
        leads, called = self.path["lead"](lead), self.path["called"](session)
        self.path.give("running", lambda old, t: all_of(old(t), not_(all_of(equal(t, session), leads))))
        self.path.give("waiting", lambda old, t: all_of(old(t), differ(t, session)))
        self.path.give("calls", lambda old: plus(old(), choice(called, -1, 0)))
        self.path.give("called", lambda old, t: all_of(old(t), differ(t, session)))

    def wrote(self, runs: Runs, reason: Value) -> None:
        """Put the messages of the runs on record."""
        state = self.path["state"]
        self.oblige(
            Property.LAST_WORD,
            "wrote: before RunComplete",
            self.each(runs, lambda run: differ(state(run), State.COMPLETE)),
        )
        self.oblige(
            Property.ON_RECORD,
            "wrote: not of a queued run",
            self.each(runs, lambda run: differ(state(run), State.QUEUED)),
        )
        self.path.give(
            "record",
            lambda old, x: choice(all_of(runs.has(x), differ(state(x), State.COMPLETE)), reason, old(x)),
        )

    def enter(self, session: Individual, run: Individual, target: DeclaredState) -> None:
        """Decide an accepted run."""
        path, covered = self.path, self.path["covered"](run)
        if target is DeclaredState.CANCEL_ON_ENTRY:
            self.oblige(Property.NEVER_POISONED, "enter: cancelled if covered", covered)
        else:
            self.oblige(Property.FULL_COVERAGE, f"enter: {target} if not covered", not_(covered))
        if target is DeclaredState.ACTIVE:
            self._turn_begins("enter", session, run)
        self._not_complete("enter", only(run))
        self._declared("enter", session, only(run), (Trigger.ENTER, DeclaredState.ACCEPTED, target))
        if target is DeclaredState.ACTIVE:
            self._activate(session, run)
            return
        path.give("state", lambda old, x: choice(equal(x, run), State(target), old(x)))
        if target is not DeclaredState.QUEUED:
            path.give("may_fold", lambda old, x: all_of(old(x), differ(x, run)))

    def handoff(self, session: Individual, run: Individual) -> None:
        """Make a queued run the next turn."""
        self.oblige(Property.FULL_COVERAGE, "handoff: not covered", not_(self.path["covered"](run)))
        self._turn_begins("handoff", session, run)
        self._not_complete("handoff", only(run))
        self._declared(
            "handoff",
            session,
            only(run),
            (Trigger.HANDOFF, DeclaredState.QUEUED, DeclaredState.ACTIVE),
        )
        self._activate(session, run)

    def fold(
        self,
        session: Individual,
        runs: Runs,
        into: Individual,
        before: Callable[[Individual, Individual], Formula],
    ) -> None:
        """Fold runs into a turn, in the order that is given."""
        path, now = self.path, dict(self.path.world)
        state, older, covered = now["state"], now["older"], now["covered"]

        def gone(other: Individual, run: Individual) -> Formula:
            return all_of(runs.has(other), before(other, run))

        leads = now["lead"](into)
        self.oblige(Property.DECLARED_MOVE, "fold: into the lead", self.each(runs, lambda _run: leads))
        self.oblige(
            Property.FULL_COVERAGE, "fold: not covered", self.each(runs, lambda run: not_(covered(run)))
        )
        overtakes = self.reading.for_all(
            lambda run, x: implies(
                all_of(runs.has(run), self._waits(session, x), differ(x, run), not_(gone(x, run))),
                all_of(equal(state(run), State.QUEUED), older(run, x)),
            ),
            Sort.RUN,
            Sort.RUN,
        )
        self.oblige(Property.FIFO, "fold: overtakes nobody", overtakes)
        self._not_complete("fold", runs)
        self._declared(
            "fold", session, runs, (Trigger.FOLD, DeclaredState.QUEUED, DeclaredState.ACTIVE), gone
        )
        path.give("state", lambda old, x: choice(runs.has(x), State.ACTIVE, old(x)))
        path.give("may_fold", lambda old, x: all_of(old(x), not_(runs.has(x))))
        path.give("in_turn", lambda old, x: any_of(old(x), runs.has(x)))

    def complete(self, session: Individual, runs: Runs, cancelled: Callable[[Individual], Formula]) -> None:
        """Publish the RunComplete of each of the runs."""
        now = dict(self.path.world)
        state, covered, record = now["state"], now["covered"], now["record"]
        fresh = Runs(lambda run: all_of(runs.has(run), differ(state(run), State.COMPLETE)))
        ran = Runs(
            lambda run: all_of(runs.has(run), is_one_of(state(run), State.ACTIVE, State.CANCEL_ON_ENTRY))
        )
        self.oblige(
            Property.EXACTLY_ONE_COMPLETE,
            "complete: the first",
            self.each(runs, lambda run: differ(state(run), State.COMPLETE)),
        )
        self.oblige(
            Property.NEVER_POISONED,
            "complete: cancelled if covered or cleared",
            self.each(fresh, lambda run: implies(cancelled(run), any_of(covered(run), now["cleared"](run)))),
        )
        self.oblige(
            Property.FULL_COVERAGE,
            "complete: cancelled, if covered",
            self.each(fresh, lambda run: implies(covered(run), cancelled(run))),
        )
        self.oblige(
            Property.LAST_WORD,
            "complete: after the messages",
            self.each(ran, lambda run: differ(record(run), Record.NOTHING)),
        )
        says = (Record.NOTHING, Record.CANCELED, Record.UNWRITTEN)
        self.oblige(
            Property.ON_RECORD,
            "complete: cancelled on record",
            self.each(ran, lambda run: implies(cancelled(run), is_one_of(record(run), *says))),
        )
        for source, trigger in COMPLETING.items():
            rows = [row for row in TABLE if row.trigger is trigger]
            assert all({*row.conditions, *row.unless} <= _OF_THE_RUN_ALONE for row in rows), trigger
            self._declared("complete", session, runs, (trigger, source, DeclaredState.COMPLETE))
        self._completed(session, runs, cancelled)

    # What the events are made of.

    def _completed(self, session: Individual, runs: Runs, cancelled: Callable[[Individual], Formula]) -> None:
        """Keep of complete runs that they are complete, and how often they were told so."""
        path = self.path
        said = cancelled
        path.give("state", lambda old, x: choice(runs.has(x), State.COMPLETE, old(x)))
        path.give("completes", lambda old, x: choice(runs.has(x), plus(old(x), 1), old(x)))
        path.give("outcome", lambda old, x: choice(runs.has(x), said(x), old(x)))
        path.give("record", lambda old, x: choice(runs.has(x), Record.NOTHING, old(x)))
        for name in ("covered", "may_fold", "cleared", "in_turn"):
            path.give(name, lambda old, x: all_of(old(x), not_(runs.has(x))))
        in_turn = path["in_turn"]
        happens = self.reading.exists(runs.has) if runs.alone is None else True
        over = all_of(happens, not_(self.some(session, in_turn)))
        path.give("lead", lambda old, x: all_of(old(x), not_(all_of(self.at(session, x), over))))
        path.give("running", lambda old, t: all_of(old(t), not_(all_of(equal(t, session), over))))
        path.give("waiting", lambda old, t: all_of(old(t), not_(all_of(equal(t, session), over))))

    def _turn_begins(self, event: str, session: Individual, run: Individual) -> None:
        now = self.path.world
        turn, running = self.some(session, now["in_turn"]), now["running"](session)
        overtakes = self.reading.for_all(
            lambda x: implies(
                all_of(self._waits(session, x), differ(x, run)),
                all_of(equal(now["state"](run), State.QUEUED), now["older"](run, x)),
            )
        )
        self.oblige(Property.FIFO, f"{event}: overtakes nobody", overtakes)
        self.oblige(Property.ONE_TURN, f"{event}: no turn runs", not_(all_of(turn, running)))
        self.oblige(Property.LAST_WORD, f"{event}: after the RunCompletes", not_(all_of(turn, not_(running))))

    def _not_complete(self, event: str, runs: Runs) -> None:
        state = self.path["state"]
        self.oblige(
            Property.TERMINAL_IS_FINAL,
            f"{event}: not of a complete run",
            self.each(runs, lambda run: differ(state(run), State.COMPLETE)),
        )

    def _activate(self, session: Individual, run: Individual) -> None:
        """Begin a turn of which the run is the lead."""
        path = self.path
        path.give("state", lambda old, x: choice(equal(x, run), State.ACTIVE, old(x)))
        path.give("may_fold", lambda old, x: all_of(old(x), differ(x, run)))
        for name in ("in_turn", "lead"):
            path.give(name, lambda old, x: choice(self.at(session, x), equal(x, run), old(x)))
        limited, waiting = path["limited"](), path["waiting"]
        path.give("running", lambda old, t: choice(equal(t, session), not_(limited), old(t)))

        def after(old: Callable[..., Formula], one: Individual, other: Individual) -> Formula:
            last = choice(
                equal(one, session), False, choice(equal(other, session), waiting(one), old(one, other))
            )
            formula: Formula = choice(limited, last, old(one, other))
            return formula

        path.give("earlier", after)
        waits = all_of(limited, not_(path["covered"](run)))
        path.give("waiting", lambda old, t: choice(equal(t, session), waits, old(t)))


def _guards(row: Row) -> list[tuple[Guard, bool]]:
    return [(guard, True) for guard in row.conditions] + [(guard, False) for guard in row.unless]
