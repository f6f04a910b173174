"""The abstract session: what must hold, said without any mechanism.

An abstract session knows sets and history only: which runs are accepted, queued, active or complete, in which
order they wait, which of them a cancel covers and which are held. It has no sequence, no rank, no mark and no
lock; those belong to the mechanism (``mechanism.py``). A judge that shared them would prove nothing.

``observe`` takes one event of a history and returns the properties that the event breaks. It never refuses an
event, because the event has already happened. It goes on from there and judges the next one.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import assert_never

from turngate_model.history import (
    Accept,
    Called,
    Cancel,
    Clear,
    Complete,
    Edit,
    Ended,
    Enter,
    Event,
    FinishReason,
    Fold,
    Handoff,
    Hold,
    Move,
    Resume,
    Wrote,
)
from turngate_model.lifecycle import WAITING, DeclaredState, Guard, Successor, Trigger, successor
from turngate_model.properties import Property, Violation

_COMPLETING = {
    DeclaredState.ACCEPTED: Trigger.RELEASE,
    DeclaredState.QUEUED: Trigger.DROP,
    DeclaredState.CANCEL_ON_ENTRY: Trigger.SETTLE,
    DeclaredState.ACTIVE: Trigger.FINISH,
}
"""The trigger by which a RunComplete moves a run, by the state that the run was in."""

_SAYS_CANCELED = ("canceled", "unwritten")
"""What the messages of a cancelled run may say. A store that failed to write them is excused."""

# The guards as plain integers: enum flags are slow to combine.
(
    _COVERED,
    _OCCUPIED,
    _FIRST,
    _VACATED,
    _JOINABLE,
    _FOLDABLE,
    _CLEARED,
    _SETTLED,
    _HELD,
    _BOUND,
) = map(int, Guard)


class AbstractSession:
    """One session, as its users see it.

    ``limited`` says that the number of runner calls is limited. Then a turn that becomes active waits, and
    the event ``Called`` says that its runner is called. Otherwise the runner of an active turn counts as
    called at once.
    """

    def __init__(self, declared: Successor = successor, *, limited: bool = False) -> None:
        self._declared = declared
        self._limited = limited
        self.states: dict[str, DeclaredState] = {}
        """The state of every run that the session ever had, in the order of acceptance."""
        self.line: list[str] = []
        """The runs that wait, accepted or queued, in the order of acceptance, except where one was moved.

        The order in which they entered does not matter.
        """
        self.held: set[str] = set()
        """The runs that wait and were held, and have not been resumed since."""
        self.bound: dict[str, str] = {}
        """The runs that wait and are for one turn alone, each with the lead of that turn."""
        self.covered: set[str] = set()
        """The runs in flight that a cancel covers."""
        self.foldable: set[str] = set()
        """The runs that may join an active turn."""
        self.cleared: set[str] = set()
        """The runs that were in the queue when it was cleared."""
        self.record: dict[str, FinishReason] = {}
        """For each run whose messages the store has written, or failed to write: what they say."""
        self.turn: list[str] = []
        """The runs of the active turn that are not complete: the lead, then the runs folded in."""
        self.lead = ""
        """The lead of the active turn; empty if no turn is active."""
        self.running = False
        """Whether the runner has been called for the active turn and has not returned."""
        self._nth: dict[str, int] = {}
        """How many accepts there were up to that of the run."""
        self._accepts = 0

    # Questions about a session.

    def in_state(self, state: DeclaredState) -> list[str]:
        """Return the runs that are in a state, in the order of acceptance."""
        return [run for run, at in self.states.items() if at is state]

    @property
    def queue(self) -> list[str]:
        """The queued runs, in line."""
        return [run for run in self.line if self.states[run] is DeclaredState.QUEUED]

    @property
    def first(self) -> str:
        """The first queued run that is not held: the one that goes next. Empty if there is none."""
        queued = DeclaredState.QUEUED
        return next((run for run in self.line if self.states[run] is queued and run not in self.held), "")

    @property
    def in_flight(self) -> list[str]:
        """The runs that are not complete."""
        return [run for run, at in self.states.items() if at is not DeclaredState.COMPLETE]

    @property
    def quiet(self) -> bool:
        """Whether every run of the session is complete."""
        return all(at is DeclaredState.COMPLETE for at in self.states.values())

    @property
    def joinable(self) -> bool:
        """Whether a turn runs that no cancel covers."""
        return self.running and not self.covered.intersection(self.turn)

    def covered_by_cancel(self, run: str | None = None) -> list[str]:
        """Return the runs that a cancel of the session, or of one run, covers, in the order of acceptance.

        A cancel of the session covers every run in flight. A cancel of one run covers the whole turn if the
        run is part of the active turn, otherwise that run alone. A run that is complete or unknown is not
        covered, and neither is any other.
        """
        if run is None:
            return self.in_flight
        if run in self.turn:
            return sorted(self.turn, key=self._nth.__getitem__)
        return [run] if run in self.in_flight else []

    def facts(self, run: str) -> int:
        """Return the guards of the lifecycle that are true for a run at this moment."""
        facts = 0
        if run in self.covered:
            facts |= _COVERED
        first = self.first
        if self.turn or first:
            facts |= _OCCUPIED
        if first == run:
            facts |= _FIRST
        if not self.turn:
            facts |= _VACATED
        if self.joinable:
            facts |= _JOINABLE
        if run in self.foldable:
            facts |= _FOLDABLE
        if run in self.cleared:
            facts |= _CLEARED
        if run in self.record:
            facts |= _SETTLED
        if run in self.held:
            facts |= _HELD
        if run in self.bound:
            facts |= _BOUND
        return facts

    def owed(self) -> list[Violation]:
        """Return what is broken if nothing more happens by itself.

        Every run that has entered must then be complete, or wait in the queue because it is held. A run that
        is for one turn alone must be complete when that turn is.
        """
        gone = self.covered | self.cleared | {run for run, lead in self.bound.items() if lead != self.lead}
        queue = [run for run in self.queue if run not in gone]
        waiting = [run for run in queue if run not in self.held]
        if waiting and not self.turn:
            strands = f"{_listed(waiting)} waits in the queue of a session with no turn: it should run next"
            return [Violation(Property.NO_STRAND, strands)]
        may_wait = {run for run in queue if run in self.held}
        may_wait |= {run for run in self.in_state(DeclaredState.ACCEPTED) if run not in self.bound}
        return [
            Violation(Property.EXACTLY_ONE_COMPLETE, f"{run} has ended without a RunComplete")
            for run in self.in_flight
            if run not in may_wait
        ]

    # Events.

    def observe(self, event: Event) -> list[Violation]:
        """Take one event, and return what it breaks."""
        match event:
            case Accept(run, foldable, into):
                self.states[run] = DeclaredState.ACCEPTED
                self._nth[run] = self._accepts = self._accepts + 1
                self.line.append(run)
                if foldable:
                    self.foldable.add(run)
                return list(self._bind(run, into)) if into else []
            case Cancel(runs):
                # A cancel covers exactly the runs that were accepted before it and are not complete.
                self.covered.update(self.covered_by_cancel() if runs is None else runs)
                return []
            case Clear(runs):
                self.cleared.update(self.queue if runs is None else runs.intersection(self.queue))
                return []
            case Hold(runs):
                # A hold holds exactly the runs that wait at that moment.
                self.held.update(self.line if runs is None else runs.intersection(self.line))
                return []
            case Resume(runs, unbinds):
                self.held -= self.held.copy() if runs is None else runs
                for run in runs or () if unbinds else ():
                    self.bound.pop(run, None)
                return []
            case Move(run, before):
                return list(self._reorder(run, before))
            case Edit(run, foldable):
                return list(self._edit(run, foldable))
            case Called(run):
                if run == self.lead:
                    self.running = True
                return []
            case Ended(run):
                if run == self.lead:
                    self.running = False
                return []
            case Wrote(run, reason):
                return list(self._wrote(run, reason))
            case Enter(run, state):
                return self._move(run, Trigger.ENTER, state, self._entered(run, state))
            case Handoff(run):
                return self._move(run, Trigger.HANDOFF, DeclaredState.ACTIVE, self._started(run))
            case Fold(run, into):
                return self._move(run, Trigger.FOLD, DeclaredState.ACTIVE, self._folded(run, into))
            case Complete(run, cancelled, _):
                trigger = _COMPLETING.get(self.states[run], Trigger.FINISH)
                return self._move(run, trigger, DeclaredState.COMPLETE, self._completed(run, cancelled))
            case _:
                assert_never(event)

    def _move(
        self, run: str, trigger: Trigger, target: DeclaredState, broken: Iterator[Violation]
    ) -> list[Violation]:
        """Move a run to another state and return what is wrong with the move.

        ``broken`` says what the kind of event breaks. If it is empty, the lifecycle must declare the move.
        """
        source = self.states[run]
        expected = self._declared(source, trigger, self.facts(run))
        violations = list(broken)
        if source is DeclaredState.COMPLETE and target is not DeclaredState.COMPLETE:
            final = f"{run} is complete, and must not {trigger} again"
            violations.append(Violation(Property.TERMINAL_IS_FINAL, final))
        elif expected is not target and not violations:
            undeclared = f"the machine declares no {trigger} of {run} from {source} to {target} here"
            violations.append(Violation(Property.DECLARED_MOVE, undeclared))
        self.states[run] = target
        if target is not DeclaredState.QUEUED:
            if source in WAITING:
                self.line.remove(run)
            self.foldable.discard(run)
            self.held.discard(run)
            self.bound.pop(run, None)
        elif source not in WAITING:
            self.line.append(run)
        if target is DeclaredState.ACTIVE and trigger is not Trigger.FOLD:
            self.turn, self.lead, self.running = [run], run, not self._limited
        elif target is DeclaredState.ACTIVE:
            self.turn.append(run)
        elif target is DeclaredState.COMPLETE:
            self._forget(run)
        return violations

    def _forget(self, run: str) -> None:
        """Forget everything about a complete run except that it is complete, and when it was accepted."""
        for known in (self.covered, self.foldable, self.cleared):
            known.discard(run)
        self.record.pop(run, None)
        if run in self.turn:
            self.turn.remove(run)
        if not self.turn:
            self.lead, self.running = "", False

    # For each kind of event, the properties that it can break.

    def _entered(self, run: str, state: DeclaredState) -> Iterator[Violation]:
        if state is DeclaredState.CANCEL_ON_ENTRY and run not in self.covered:
            yield _poisoned(run)
        if state is not DeclaredState.CANCEL_ON_ENTRY and run in self.covered:
            yield _uncovered(run, f"it should be cancelled on entry, not {state}")
        if state is DeclaredState.ACTIVE:
            yield from self._turn_begins(run)
        elif run not in self.covered and self.bound.get(run, self.lead) != self.lead:
            yield _misdirected(run, self.bound[run], "that turn has ended: it should be complete")

    def _started(self, run: str) -> Iterator[Violation]:
        if run in self.covered:
            yield _uncovered(run, "it must not become active by handoff")
        yield from self._turn_begins(run)

    def _turn_begins(self, run: str) -> Iterator[Violation]:
        yield from self._overtakes(run)
        if self.turn and self.running:
            yield Violation(
                Property.ONE_TURN,
                f"{run} becomes active while the turn of {self.lead} still runs: it should wait",
            )
        elif self.turn:
            yield Violation(
                Property.LAST_WORD,
                f"{run} becomes active before the RunComplete of {_listed(self.turn)}: it should come first",
            )

    def _folded(self, run: str, into: str) -> Iterator[Violation]:
        if into != self.lead:
            yield Violation(
                Property.DECLARED_MOVE, f"{run} is folded into {into}, which leads no active turn"
            )
        elif self.bound.get(run, into) != into:
            yield _misdirected(run, self.bound[run], f"it must not join that of {into}")
        if run in self.covered:
            yield _uncovered(run, "it must not become active by fold")
        yield from self._overtakes(run)

    def _overtakes(self, run: str) -> Iterator[Violation]:
        first = self.first
        if run in self.held:
            yield Violation(Property.HELD, f"{run} is held: it must not become active before it is resumed")
        elif first and first != run:
            yield Violation(Property.FIFO, f"{run} becomes active ahead of {first}, which should go first")

    def _bind(self, run: str, into: str) -> Iterator[Violation]:
        if into not in self.turn or not self.joinable:
            refused = f"{run} is for the turn of {into}, which does not run: it should be refused"
            yield Violation(Property.DECLARED_MOVE, refused)
        self.bound[run] = self.lead if into in self.turn else into

    def _reorder(self, run: str, before: str) -> Iterator[Violation]:
        for each in (run, before) if before else (run,):
            if self.states.get(each) not in WAITING:
                late = f"{run} is moved, but {each} does not wait: it should be refused"
                yield Violation(Property.DECLARED_MOVE, late)
                return
        if run != before:
            self.line.remove(run)
            self.line.insert(self.line.index(before) if before else len(self.line), run)

    def _edit(self, run: str, foldable: bool | None) -> Iterator[Violation]:
        if self.states[run] not in WAITING:
            late = (
                f"the edit of {run} is acknowledged, but its runner has the old prompt: it should be refused"
            )
            yield Violation(Property.AS_EDITED, late)
        elif foldable is not None:
            self.bound.pop(run, None)
            (self.foldable.add if foldable else self.foldable.discard)(run)

    def _wrote(self, run: str, reason: FinishReason) -> Iterator[Violation]:
        state = self.states[run]
        if state is DeclaredState.COMPLETE:
            yield Violation(
                Property.LAST_WORD,
                f"the messages of {run} are written after its RunComplete: they should come first",
            )
            return
        if state is DeclaredState.QUEUED:
            yield Violation(Property.ON_RECORD, f"{run} is queued, and should leave no message")
        self.record[run] = reason

    def _completed(self, run: str, cancelled: bool) -> Iterator[Violation]:
        state = self.states[run]
        if state is DeclaredState.COMPLETE:
            yield Violation(Property.EXACTLY_ONE_COMPLETE, f"{run} gets a second RunComplete")
            return
        if cancelled and run not in self.covered and run not in self.cleared:
            yield _poisoned(run)
        if run in self.covered and not cancelled:
            yield _uncovered(run, "its RunComplete should say cancelled=True")
        if state in (DeclaredState.ACTIVE, DeclaredState.CANCEL_ON_ENTRY):
            said = self.record.get(run)
            if said is None:
                yield Violation(
                    Property.LAST_WORD,
                    f"the RunComplete of {run} comes before its messages: they should be first",
                )
            elif cancelled and said not in _SAYS_CANCELED:
                yield Violation(
                    Property.ON_RECORD,
                    f"{run} is cancelled, but its record says {said}: it should say canceled",
                )

    def forget(self, run: str) -> None:
        """Forget a complete run altogether, so that a long history takes little memory."""
        del self.states[run], self._nth[run]

    def key(self) -> Hashable:
        """Return a value that is equal for two sessions exactly if they judge every later event alike.

        No step asks again whether a covered run is foldable, or which reason other than canceled its messages
        give. So the value leaves both out.
        """
        return (
            tuple(self.states.items()),
            frozenset(self.covered),
            frozenset(self.foldable - self.covered),
            frozenset(self.cleared),
            tuple(self.line),
            frozenset(self.held),
            frozenset(self.bound.items()),
            frozenset((run, said in _SAYS_CANCELED) for run, said in self.record.items()),
            tuple(self.turn),
            self.lead,
            self.running,
        )

    def copy(self) -> AbstractSession:
        """Return a copy. What happens to the one changes nothing in the other."""
        twin = AbstractSession(self._declared, limited=self._limited)
        twin.states = dict(self.states)
        twin.covered = set(self.covered)
        twin.foldable = set(self.foldable)
        twin.cleared = set(self.cleared)
        twin.record = dict(self.record)
        twin.turn = list(self.turn)
        twin.lead = self.lead
        twin.running = self.running
        twin.line = list(self.line)
        twin.held = set(self.held)
        twin.bound = dict(self.bound)
        twin._nth = dict(self._nth)
        twin._accepts = self._accepts
        return twin


def _poisoned(run: str) -> Violation:
    return Violation(
        Property.NEVER_POISONED, f"no cancel has come since {run} was accepted: nothing should cancel it"
    )


def _uncovered(run: str, should: str) -> Violation:
    return Violation(Property.FULL_COVERAGE, f"{run} was accepted before the cancel: {should}")


def _misdirected(run: str, lead: str, should: str) -> Violation:
    return Violation(Property.DECLARED_MOVE, f"{run} is for the turn of {lead} alone: {should}")


def _listed(runs: list[str]) -> str:
    return " and ".join(runs[:3]) + (f" and {len(runs) - 3} more" if len(runs) > 3 else "")
