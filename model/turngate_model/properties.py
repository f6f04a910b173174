"""The properties: what always holds, each by its id and with one sentence.

The first fourteen are promises to users: an observer of a dispatcher can see whether it keeps them. The last
two are about the model: DECLARED_MOVE ties what runs do to the lifecycle, and REFINES ties the mechanism to
the abstract session and the abstract places. Beside them stand the promises of a dispatcher whose sessions
are on a ledger that processes share.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple, TypeAlias


class Property(StrEnum):
    """The id of a property."""

    NEVER_POISONED = "NEVER_POISONED"
    FULL_COVERAGE = "FULL_COVERAGE"
    EXACTLY_ONE_COMPLETE = "EXACTLY_ONE_COMPLETE"
    ONE_TURN = "ONE_TURN"
    NO_STRAND = "NO_STRAND"
    FIFO = "FIFO"
    IDLE_CANCEL = "IDLE_CANCEL"
    LAST_WORD = "LAST_WORD"
    ON_RECORD = "ON_RECORD"
    ISOLATION = "ISOLATION"
    NO_RESIDUE = "NO_RESIDUE"
    TERMINAL_IS_FINAL = "TERMINAL_IS_FINAL"
    HELD = "HELD"
    AS_EDITED = "AS_EDITED"
    DECLARED_MOVE = "DECLARED_MOVE"
    REFINES = "REFINES"

    @property
    def sentence(self) -> str:
        """What the property says, in one sentence."""
        return _SENTENCES[self]


_SENTENCES = {
    Property.NEVER_POISONED: "A run accepted after a cancel is never cancelled by it, in any session.",
    Property.FULL_COVERAGE: (
        "A cancel covers every run of its session that was accepted before it and has not published its "
        "RunComplete; none of them becomes active after the cancel, and each completes with cancelled=True."
    ),
    Property.EXACTLY_ONE_COMPLETE: (
        "Every accepted run gets exactly one RunComplete, whichever way it ends; never two, and none is "
        "owed when the dispatcher is quiet."
    ),
    Property.ONE_TURN: "At most one turn runs per session at any instant.",
    Property.NO_STRAND: (
        "When no turn is active, every queued run is held: a turn that fails or is cancelled hands off like "
        "one that finishes."
    ),
    Property.FIFO: (
        "Queued runs become active in sequence order, except where a caller moved one; no run overtakes a "
        "queued run that is not held."
    ),
    Property.IDLE_CANCEL: ("A cancel, a stop or a hold of a session with nothing in flight changes nothing."),
    Property.LAST_WORD: (
        "RunComplete is the last event of its run, comes after the run's messages are written, and before "
        "the next turn of the session starts."
    ),
    Property.ON_RECORD: (
        "A run cancelled on entry or while active leaves its user message and an assistant message with "
        "finish reason canceled; a run dropped from the queue leaves no message."
    ),
    Property.ISOLATION: "What happens in one session changes nothing in another.",
    Property.NO_RESIDUE: "A quiet session holds no memory in the dispatcher.",
    Property.TERMINAL_IS_FINAL: "The outcome of a complete run never changes, and stays queryable.",
    Property.HELD: (
        "A hold keeps every run that waits at that moment, accepted or queued, from becoming active until "
        "the run is resumed; it does not keep a run that is accepted later."
    ),
    Property.AS_EDITED: (
        "The runner is given what the last acknowledged edit says; once the run is active, "
        "an edit is refused."
    ),
    Property.DECLARED_MOVE: "Every state change of a run is one that the machine declares.",
    Property.REFINES: "Every state of the mechanism maps to the state of the abstract session beside it.",
}


class Violation(NamedTuple):
    """A property that was broken, and what should have happened instead."""

    property: Property
    what: str


class DurableProperty(StrEnum):
    """The id of something that holds beside the others where processes share a ledger, and die."""

    DURABLE = "DURABLE"
    FENCED = "FENCED"
    ADOPTED = "ADOPTED"

    @property
    def sentence(self) -> str:
        """What the property says, in one sentence."""
        return _DURABLE_SENTENCES[self]


_DURABLE_SENTENCES = {
    DurableProperty.DURABLE: (
        "A run whose accept has returned survives the death of every process: it gets exactly one "
        "RunComplete as soon as a process runs again."
    ),
    DurableProperty.FENCED: (
        "A turn that was given up for dead changes nothing any more: no fold, no message, no completion."
    ),
    DurableProperty.ADOPTED: (
        "While one process lives, what a dead one held (accepted, queued, active) goes on within lease and "
        "poll."
    ),
}

AnyProperty: TypeAlias = Property | DurableProperty


class DurableViolation(NamedTuple):
    """A property that did not hold on a ledger, and what should have happened instead."""

    property: AnyProperty
    what: str


AnyViolation: TypeAlias = Violation | DurableViolation
