"""How long the kit waits for a subject: every time-out of the kit is here."""

from __future__ import annotations

from typing import NamedTuple


class Timing(NamedTuple):
    """Seconds of real time. A subject that runs in virtual time needs none of them.

    A real-time subject has come to rest when nothing is owed and it has been
    silent for ``quiet``, or when something is owed and ``grace`` has passed. So
    the long waits are for what should happen and does not.
    """

    starts: float = 60.0
    """Setting a subject up may take so long."""
    answers: float = 10.0
    """One operation may take so long to be taken in."""
    quiet: float = 0.05
    """So much silence is rest, if nothing is owed."""
    grace: float = 3.0
    """What is owed may take so long."""
    longest: float = 30.0
    """After so long without rest a subject counts as one that never comes to rest."""
    poll: float = 0.01
    """The kit looks so often."""
    passes: float = 1.0
    """``wait`` lets so much time pass."""
    ends: float = 0.5
    """A process may take so long to end by itself before it is killed."""
