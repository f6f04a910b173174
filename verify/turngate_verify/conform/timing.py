"""How long the kit waits for a subject: every time-out of the kit is here."""

from __future__ import annotations

from typing import NamedTuple


class Timing(NamedTuple):
    """Seconds of real time. A subject that runs in virtual time needs none of them.

    A real-time subject has come to rest when nothing is owed and it has been
    silent for ``quiet``, or when something is owed and ``grace`` has passed. So
    only something that should happen and does not takes a long wait.
    """

    starts: float = 60.0
    """The longest time to set a subject up."""
    answers: float = 10.0
    """The longest time for an operation to be taken in."""
    quiet: float = 0.05
    """How long a silence counts as rest, if nothing is owed."""
    grace: float = 3.0
    """How long the kit waits for something that is owed."""
    longest: float = 30.0
    """A subject that is still busy after this time counts as one that never comes to rest."""
    poll: float = 0.01
    """The interval between two looks."""
    passes: float = 1.0
    """How much time ``wait`` lets pass."""
    ends: float = 0.5
    """How long a process may take to end by itself before it is killed."""
