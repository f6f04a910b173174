"""The lifecycle of a run, declared once as an explicit state machine.

Laws
====

1. A run is in exactly one of five states: accepted, cancel_on_entry, queued,
   active, complete. It begins accepted.
2. ``complete`` is terminal: no row leaves it.
3. Every move is a row of the table. A trigger that no row allows raises
   ``UndeclaredMove`` and changes nothing.
4. For a state, a trigger and the facts of the moment at most one row applies:
   the rows of one trigger from one state exclude each other by their guards.
5. A guard is a fact about a run in its session, named in the table. The
   machine never looks anywhere else.

Theory of operation
===================

Accepting a prompt creates a run; entering it decides, once, what becomes of
it: cancelled on entry, queued, or active. From there on other things move it.
A turn that ends moves its own runs to complete and the next queued run to
active (handoff); a runner that asks for follow-ups moves queued runs into its
own turn (fold); a cancel or a cleared queue moves queued runs to complete
(drop). Settling is what lies between the end of a turn, or a cancel on entry,
and complete: the messages are written, or writing them has failed.

The table is data. ``Lifecycle`` hands it to the ``transitions`` package, which
executes it; ``successor`` is compiled from the same rows and is what the
checkers call, many times a second. A test holds the two together.

This is the only module that imports ``transitions``.
"""

from __future__ import annotations

from enum import IntFlag, StrEnum, auto
from typing import NamedTuple

from transitions import Machine, MachineError


class DeclaredState(StrEnum):
    """Where a run is in its life."""

    ACCEPTED = "accepted"
    CANCEL_ON_ENTRY = "cancel_on_entry"
    QUEUED = "queued"
    ACTIVE = "active"
    COMPLETE = "complete"


INITIAL = DeclaredState.ACCEPTED
TERMINAL = DeclaredState.COMPLETE


class Trigger(StrEnum):
    """What moves a run."""

    ENTER = "enter"
    RELEASE = "release"
    HANDOFF = "handoff"
    FOLD = "fold"
    DROP = "drop"
    SETTLE = "settle"
    FINISH = "finish"


class Guard(IntFlag):
    """A fact about a run in its session that decides whether a row applies."""

    COVERED = auto()
    OCCUPIED = auto()
    FIRST = auto()
    VACATED = auto()
    JOINABLE = auto()
    FOLDABLE = auto()
    CLEARED = auto()
    SETTLED = auto()

    @property
    def label(self) -> str:
        """The guard's name as it stands in the table."""
        return str(self.name).lower()


GUARD_MEANINGS = {
    Guard.COVERED: "a cancel applies to the run: it came after the accept and before the RunComplete",
    Guard.OCCUPIED: "a turn of the session is active, or runs are queued",
    Guard.FIRST: "no other run queued in the session was accepted earlier",
    Guard.VACATED: "the turn before it has ended and its runs are complete",
    Guard.JOINABLE: "a turn of the session is running that no cancel covers",
    Guard.FOLDABLE: "the run may join a turn that is already active",
    Guard.CLEARED: "the queue was cleared while the run was in it",
    Guard.SETTLED: "the messages of the run are written, or writing them has failed",
}


class Row(NamedTuple):
    """One declared move."""

    trigger: Trigger
    source: DeclaredState
    target: DeclaredState
    conditions: tuple[Guard, ...]
    unless: tuple[Guard, ...]
    when: str


TABLE = (
    Row(
        Trigger.ENTER, DeclaredState.ACCEPTED, DeclaredState.CANCEL_ON_ENTRY, (Guard.COVERED,), (), "covered"
    ),
    Row(
        Trigger.ENTER,
        DeclaredState.ACCEPTED,
        DeclaredState.QUEUED,
        (Guard.OCCUPIED,),
        (Guard.COVERED,),
        "not covered, and the session is busy or has a queue",
    ),
    Row(
        Trigger.ENTER,
        DeclaredState.ACCEPTED,
        DeclaredState.ACTIVE,
        (),
        (Guard.COVERED, Guard.OCCUPIED),
        "not covered, session idle, queue empty",
    ),
    Row(
        Trigger.RELEASE,
        DeclaredState.ACCEPTED,
        DeclaredState.COMPLETE,
        (),
        (),
        "the holder gives the handle up before entry, or the dispatcher shuts down",
    ),
    Row(
        Trigger.HANDOFF,
        DeclaredState.QUEUED,
        DeclaredState.ACTIVE,
        (Guard.FIRST, Guard.VACATED),
        (Guard.COVERED,),
        "the turn before it ended, whatever its outcome; first of the queue",
    ),
    Row(
        Trigger.FOLD,
        DeclaredState.QUEUED,
        DeclaredState.ACTIVE,
        (Guard.FIRST, Guard.JOINABLE, Guard.FOLDABLE),
        (Guard.COVERED,),
        "the runner asks for follow-ups; one after another from the head of the queue",
    ),
    Row(
        Trigger.DROP, DeclaredState.QUEUED, DeclaredState.COMPLETE, (Guard.COVERED,), (), "a cancel covers it"
    ),
    Row(
        Trigger.DROP,
        DeclaredState.QUEUED,
        DeclaredState.COMPLETE,
        (Guard.CLEARED,),
        (Guard.COVERED,),
        "the queue is cleared",
    ),
    Row(
        Trigger.SETTLE,
        DeclaredState.CANCEL_ON_ENTRY,
        DeclaredState.COMPLETE,
        (Guard.SETTLED,),
        (),
        "the canceled turn is written, or writing it failed",
    ),
    Row(
        Trigger.FINISH,
        DeclaredState.ACTIVE,
        DeclaredState.COMPLETE,
        (Guard.SETTLED,),
        (),
        "the turn ended: finished, failed or cancelled",
    ),
)


class UndeclaredMove(Exception):
    """A trigger that no row allows in this state with these facts. Nothing has changed."""


class _Model:
    """What the package moves: its ``state``, and the guards it asks for by name."""

    state: str

    def __init__(self) -> None:
        self.facts = Guard(0)

    def __getattr__(self, name: str) -> bool:
        guard = Guard.__members__.get(name.upper())
        if guard is None:
            raise AttributeError(name)
        return guard in self.facts


class Lifecycle:
    """One run's life, executed by the ``transitions`` package from the table.

    Set ``facts`` to what is true at the moment, then call a trigger. The
    triggers are methods here, so that type checkers see what the package
    would only add at run time.
    """

    def __init__(self, initial: DeclaredState = INITIAL, table: tuple[Row, ...] = TABLE) -> None:
        self.facts = Guard(0)
        self._model = _Model()
        self._machine = Machine(
            model=self._model,
            states=[{"name": state.value, "final": state is TERMINAL} for state in DeclaredState],
            transitions=[
                {
                    "trigger": row.trigger.value,
                    "source": row.source.value,
                    "dest": row.target.value,
                    "conditions": [guard.label for guard in row.conditions],
                    "unless": [guard.label for guard in row.unless],
                }
                for row in table
            ],
            initial=initial.value,
            auto_transitions=False,
        )

    @property
    def state(self) -> DeclaredState:
        """Where the run is now."""
        return DeclaredState(self._model.state)

    def fire(self, trigger: Trigger) -> DeclaredState:
        """Move the run; raise UndeclaredMove, and change nothing, if no row allows it."""
        self._model.facts = self.facts
        event = self._machine.events.get(trigger.value)
        try:
            moved = event is not None and event.trigger(self._model)
        except MachineError:
            moved = False
        if not moved:
            facts = ", ".join(guard.label for guard in Guard if guard in self.facts) or "no facts"
            raise UndeclaredMove(f"{trigger} from {self.state} with {facts}")
        return self.state

    def enter(self) -> DeclaredState:
        """Decide: cancel_on_entry, queued or active."""
        return self.fire(Trigger.ENTER)

    def release(self) -> DeclaredState:
        """Give the handle up before entry."""
        return self.fire(Trigger.RELEASE)

    def handoff(self) -> DeclaredState:
        """Become the next turn."""
        return self.fire(Trigger.HANDOFF)

    def fold(self) -> DeclaredState:
        """Join the turn that is active."""
        return self.fire(Trigger.FOLD)

    def drop(self) -> DeclaredState:
        """Leave the queue without a turn."""
        return self.fire(Trigger.DROP)

    def settle(self) -> DeclaredState:
        """End what was cancelled on entry."""
        return self.fire(Trigger.SETTLE)

    def finish(self) -> DeclaredState:
        """End with the turn."""
        return self.fire(Trigger.FINISH)


class Successor:
    """The table, compiled: what a trigger makes of a state, given the facts."""

    def __init__(self, table: tuple[Row, ...]) -> None:
        self._rows: dict[tuple[DeclaredState, Trigger], list[tuple[int, int, DeclaredState]]] = {}
        for row in table:
            need = sum(int(guard) for guard in row.conditions)
            forbid = sum(int(guard) for guard in row.unless)
            self._rows.setdefault((row.source, row.trigger), []).append((need, forbid, row.target))

    def __call__(self, state: DeclaredState, trigger: Trigger, facts: int) -> DeclaredState | None:
        """Return the state after the trigger, or None if no row allows it."""
        for need, forbid, target in self._rows.get((state, trigger), ()):
            if facts & need == need and not facts & forbid:
                return target
        return None


successor = Successor(TABLE)
