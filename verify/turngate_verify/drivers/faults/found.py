"""The result of the injections, and the first one after which something is wrong."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from turngate import Dispatcher
from turngate_model import Property
from turngate_verify.world.world import Make, dispatcher_option


class FaultFound(NamedTuple):
    """An injection after which something is wrong."""

    kind: str
    """One of KINDS; "none" when the scenario fails without any injection."""
    scenario: str
    number: int
    """The number of the injection in its scenario; 0 if nothing was injected."""
    where: str
    """What was spoiled, in domain words."""
    broken: Property | None
    """The property that does not hold; None when something else is wrong, such as a warning."""
    what: str
    make: Make = Dispatcher

    @property
    def replay(self) -> str:
        """The command that makes the injection again."""
        command = f"turngate faults --scenario {self.scenario} --replay {self.number}"
        return command + dispatcher_option(self.make)

    def told(self) -> list[str]:
        """Return what was wrong, what was spoiled, and how to repeat it."""
        name = f"{self.broken}: " if self.broken else ""
        return [
            f"{name}{self.what}",
            f"in the scenario {self.scenario!r}, with {self.where}",
            f"again: {self.replay}",
        ]


@dataclass
class Faults:
    """The result of all injections."""

    injections: Counter[str] = field(default_factory=Counter)
    """How many injections there were, by kind."""
    timed_out: int = 0
    """In how many injections a write took too long, and the dispatcher gave it up."""
    awaits: int = 0
    """How many different awaits the tasks reached; each was cancelled there."""
    failure: FaultFound | None = None
