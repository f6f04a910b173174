"""What the examples have reached: which rules, moves, refusals and ways for a run to end.

A check that exercised nothing proves nothing, so a run of the rules demands
that they reach all of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from turngate._core import CLEARED, RELEASED
from turngate_model import TABLE, Row, Successor
from turngate_model.history import Complete, Enter, Fold, Handoff
from turngate_model.lifecycle import DeclaredState, Trigger
from turngate_verify.drivers.rules.program import RulesProgram
from turngate_verify.world.world import World

WAYS_TO_END = (
    "cancelled in the queue",
    "cancelled on entry",
    "cancelled while active",
    "cleared",
    "failed",
    "finished",
    "folded and cancelled",
    "folded and failed",
    "folded and finished",
    "nonsense returned",
    "released",
    "released when covered",
    "struck from outside",
    "too slow to write",
    "unwritten",
)


@dataclass
class Tally:
    """What all examples together have done and reached, and the first failure among them."""

    examples: int = 0
    """How many examples have begun."""
    steps: int = 0
    """How many rules they have called."""
    reached: set[str] = field(default_factory=set)
    raised: Exception | None = None
    """What the first failing example raised."""
    found_in: int = 0
    """Which example that was, counted from 1."""
    program: RulesProgram = ()
    """The calls that it made."""

    def note(self, raised: Exception, program: RulesProgram) -> None:
        """Keep a failure if it is the first. Hypothesis runs a failing example again, so others follow."""
        if self.raised is None:
            self.raised, self.program, self.found_in = raised, program, self.examples


def name_of(row: Row) -> str:
    """Return the name that a declared move has among what was reached."""
    return f"move: {row.trigger} {row.source} -> {row.target}, {row.when}"


class DeclaredMovesNoted(Successor):
    """The table of declared moves; it notes every row by which a run moves."""

    def __init__(self, reached: set[str]) -> None:
        super().__init__(TABLE)
        self._reached = reached

    def __call__(self, state: DeclaredState, trigger: Trigger, facts: int) -> DeclaredState | None:
        """Return the state after the trigger, or None if no row allows the move."""
        target = super().__call__(state, trigger, facts)
        for row, needed, forbidden in _ROWS.get((state, trigger), ()):
            if facts & needed == needed and not facts & forbidden:
                self._reached.add(name_of(row))
        return target


_ROWS: dict[tuple[DeclaredState, Trigger], list[tuple[Row, int, int]]] = {}
"""The rows by state and trigger, each with the facts that it needs and those that it forbids, as bits."""
for _row in TABLE:
    _ROWS.setdefault((_row.source, _row.trigger), []).append(
        (_row, sum(map(int, _row.conditions)), sum(map(int, _row.unless)))
    )


def ways_to_end(world: World) -> set[str]:
    """Return the ways in which the runs of a world have ended."""
    at: dict[str, str] = {}
    ways = set()
    for _, event in world.monitor.history:
        match event:
            case Enter(run, state):
                at[run] = state
            case Fold(run, _):
                at[run] = "folded"
            case Handoff(run):
                at[run] = DeclaredState.ACTIVE
            case Complete(run, cancelled, error):
                ways.add(f"end: {_way(at.pop(run, 'accepted'), cancelled, error or '')}")
            case _:
                pass
    return ways


def _way(at: str, cancelled: bool, error: str) -> str:
    """Name the way in which a run ended: where it was, whether it was cancelled, and its error."""
    if error == RELEASED:
        return "released when covered" if cancelled else "released"
    if error == CLEARED:
        return "cleared"
    if error.startswith("writing the messages took longer"):
        return "too slow to write"
    if error.startswith("writing the messages failed"):
        return "unwritten"
    if at == DeclaredState.CANCEL_ON_ENTRY:
        return "cancelled on entry"
    if at == DeclaredState.QUEUED and cancelled:
        return "cancelled in the queue"
    if error.startswith("the runner returned"):
        return "nonsense returned"
    if error.startswith("the turn was cancelled from outside"):
        return "struck from outside"
    outcome = "cancelled" if cancelled else "failed" if error else "finished"
    if at == "folded":
        return f"folded and {outcome}"
    return "cancelled while active" if cancelled else outcome
