"""The lifecycle of a run, declared once as a table.

Laws
====

1. A run is in exactly one of five states: accepted, cancel_on_entry, queued,
   active, complete. It begins accepted.
2. ``complete`` is terminal: no row leaves it.
3. Every move is a row of the table. A trigger that no row allows raises
   ``UndeclaredMove`` and changes nothing.
4. For a state, a trigger and the facts of the moment at most one row applies:
   the rows of one trigger from one state exclude each other by their guards.
5. A row applies by the guards that the table names for it, and by nothing
   else. A guard is a fact about a run in its session.

Theory of operation
===================

A caller's accept creates a run. Its enter decides, once, what happens to the
run: cancel_on_entry, queued or active. After that others move it:

* A turn that ends moves its own runs to complete (finish), and the first
  queued run that is not held to active (handoff).
* A caller who resumes held runs moves the first of the queue to active, if no
  turn is active (handoff).
* A runner that asks for follow-ups moves queued runs into its turn (fold).
* A cancel, or a caller who clears the queue, moves queued runs to complete
  (drop).
* A store that has written the messages of a run cancelled on entry, or has
  failed to, moves the run to complete (settle).

A run waits while it is accepted or queued. To hold, resume, move or edit a
run that waits is no move of the table: the run keeps its state, and only the
facts about it change.

A run is active as soon as it is its turn. Where the number of runner calls is
limited, the runner may be called later: the run is active while it waits.

``Lifecycle`` hands the table to the ``transitions`` package, which executes
it. ``successor`` is a faster form of the same table, for the checkers. A test
compares the two.

This is the only module that imports ``transitions``.
"""

from __future__ import annotations

from enum import IntFlag, StrEnum, auto
from typing import NamedTuple

from transitions import Machine, MachineError


class DeclaredState(StrEnum):
    """The states of a run."""

    ACCEPTED = "accepted"
    CANCEL_ON_ENTRY = "cancel_on_entry"
    QUEUED = "queued"
    ACTIVE = "active"
    COMPLETE = "complete"


INITIAL = DeclaredState.ACCEPTED
TERMINAL = DeclaredState.COMPLETE
WAITING = (DeclaredState.ACCEPTED, DeclaredState.QUEUED)
"""The states of a run that waits. Only such a run can be held, moved and edited."""


class Trigger(StrEnum):
    """The triggers: what moves a run from one state to another."""

    ENTER = "enter"
    RELEASE = "release"
    HANDOFF = "handoff"
    FOLD = "fold"
    DROP = "drop"
    SETTLE = "settle"
    FINISH = "finish"


class Guard(IntFlag):
    """A fact about a run in its session. The guards of a row decide whether the row applies."""

    COVERED = auto()
    OCCUPIED = auto()
    FIRST = auto()
    VACATED = auto()
    JOINABLE = auto()
    FOLDABLE = auto()
    CLEARED = auto()
    SETTLED = auto()
    HELD = auto()
    BOUND = auto()

    @property
    def label(self) -> str:
        """The name of the guard, as the table has it."""
        return str(self.name).lower()


GUARD_MEANINGS = {
    Guard.COVERED: "a cancel applies to the run: it came after the accept and before the RunComplete",
    Guard.OCCUPIED: "a turn of the session is active, or a run that is not held is queued",
    Guard.FIRST: "every queued run that is ahead of it is held",
    Guard.VACATED: "no turn is active: the turn before it has ended, and its runs are complete",
    Guard.JOINABLE: "the session has a running turn that no cancel covers",
    Guard.FOLDABLE: "the run may join a turn that is already active",
    Guard.CLEARED: "the queue was cleared while the run was in it, or the one turn that it is for has ended",
    Guard.SETTLED: "the messages of the run are written, or writing them has failed",
    Guard.HELD: "a hold came while the run waited, and the run has not been resumed since",
    Guard.BOUND: "the run is for one turn alone, and may not have a turn of its own",
}


class Row(NamedTuple):
    """One declared move: it applies if every guard of ``conditions`` is true and none of ``unless``."""

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
        (Guard.COVERED, Guard.HELD),
        "neither covered nor held, and the session is busy",
    ),
    Row(
        Trigger.ENTER,
        DeclaredState.ACCEPTED,
        DeclaredState.QUEUED,
        (Guard.HELD,),
        (Guard.COVERED,),
        "held and not covered, whether or not the session is busy",
    ),
    Row(
        Trigger.ENTER,
        DeclaredState.ACCEPTED,
        DeclaredState.ACTIVE,
        (),
        (Guard.COVERED, Guard.OCCUPIED, Guard.HELD, Guard.BOUND),
        "neither covered nor held, and the session is idle",
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
        (Guard.COVERED, Guard.HELD, Guard.BOUND),
        "the turn before it ended (any outcome), or it was resumed; first of the queue, ignoring held runs",
    ),
    Row(
        Trigger.FOLD,
        DeclaredState.QUEUED,
        DeclaredState.ACTIVE,
        (Guard.FIRST, Guard.JOINABLE, Guard.FOLDABLE),
        (Guard.COVERED, Guard.HELD),
        "the runner asks for follow-ups; one after another from the head of the queue, skipping held runs",
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
    """Raised for a trigger that no row allows in this state with these facts. The run has not moved."""


class _Model:
    """The object that the package moves: it has a state, and the package asks it for guards by name."""

    state: str

    def __init__(self) -> None:
        self.facts = Guard(0)

    def __getattr__(self, name: str) -> bool:
        guard = Guard.__members__.get(name.upper())
        if guard is None:
            raise AttributeError(name)
        return guard in self.facts


class Lifecycle:
    """The life of one run. The ``transitions`` package executes it from the table.

    Set ``facts`` to the guards that are true at the moment, then call a trigger. The triggers are written
    out as methods, so that type checkers see them; the package would add them only at run time.
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
        """The state of the run."""
        return DeclaredState(self._model.state)

    def fire(self, trigger: Trigger) -> DeclaredState:
        """Move the run. If no row allows that, raise UndeclaredMove and change nothing."""
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
        """Move an accepted run to cancel_on_entry, queued or active."""
        return self.fire(Trigger.ENTER)

    def release(self) -> DeclaredState:
        """Complete an accepted run that its caller gives up."""
        return self.fire(Trigger.RELEASE)

    def handoff(self) -> DeclaredState:
        """Make a queued run the lead of the next turn."""
        return self.fire(Trigger.HANDOFF)

    def fold(self) -> DeclaredState:
        """Make a queued run part of the active turn."""
        return self.fire(Trigger.FOLD)

    def drop(self) -> DeclaredState:
        """Complete a queued run that never had a turn."""
        return self.fire(Trigger.DROP)

    def settle(self) -> DeclaredState:
        """Complete a run that was cancelled on entry."""
        return self.fire(Trigger.SETTLE)

    def finish(self) -> DeclaredState:
        """Complete an active run, because its turn has ended."""
        return self.fire(Trigger.FINISH)


class Successor:
    """The table in a form that is fast to ask: which state a trigger leads to, given the facts."""

    def __init__(self, table: tuple[Row, ...]) -> None:
        self._rows: dict[tuple[DeclaredState, Trigger], list[tuple[int, int, DeclaredState]]] = {}
        for row in table:
            need = sum(int(guard) for guard in row.conditions)
            forbid = sum(int(guard) for guard in row.unless)
            self._rows.setdefault((row.source, row.trigger), []).append((need, forbid, row.target))

    def __call__(self, state: DeclaredState, trigger: Trigger, facts: int) -> DeclaredState | None:
        """Return the state that a trigger leads to, or None if no row allows it."""
        for need, forbid, target in self._rows.get((state, trigger), ()):
            if facts & need == need and not facts & forbid:
                return target
        return None


successor = Successor(TABLE)
