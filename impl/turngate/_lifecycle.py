"""The life of a run and of a turn: the states, the phases, and every move there is.

A run is accepted, then enters: cancelled on entry, queued or active. `complete` is terminal. A move that is
not in `MOVES` is never made: asking for it raises UndeclaredMove and changes nothing.

A turn is starting until its runner is called, running while it is, settling while its messages are written.
Where the number of runner calls is limited, it may be waiting for a place before that. Only a running turn is
interrupted: a cancel that comes earlier keeps the runner from being called, one that comes later changes what
is put on record.
"""

from __future__ import annotations

from enum import Enum, StrEnum
from typing import Final


class State(StrEnum):
    """Where a run is in its life."""

    ACCEPTED = "accepted"
    CANCEL_ON_ENTRY = "cancel_on_entry"
    QUEUED = "queued"
    ACTIVE = "active"
    COMPLETE = "complete"


ACCEPTED, CANCEL_ON_ENTRY, QUEUED, ACTIVE, COMPLETE = State

#: Every move that a run can make: for each trigger the state it leads from, and the states it may lead to.
MOVES: Final = {
    "enter": (ACCEPTED, (CANCEL_ON_ENTRY, QUEUED, ACTIVE)),
    "release": (ACCEPTED, (COMPLETE,)),
    "handoff": (QUEUED, (ACTIVE,)),
    "fold": (QUEUED, (ACTIVE,)),
    "drop": (QUEUED, (COMPLETE,)),
    "settle": (CANCEL_ON_ENTRY, (COMPLETE,)),
    "finish": (ACTIVE, (COMPLETE,)),
}


class Phase(Enum):
    """How far a turn has come."""

    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"
    SETTLING = "settling"


WAITING, STARTING, RUNNING, SETTLING = Phase
