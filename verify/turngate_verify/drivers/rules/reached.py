"""What a run of the rules has reached, so that one which exercised nothing does not pass for a check."""

from __future__ import annotations

from dataclasses import dataclass, field

from turngate._core import CLEARED, RELEASED
from turngate_model import TABLE, Row, Successor
from turngate_model.history import Complete, Enter, Fold, Handoff
from turngate_model.lifecycle import State, Trigger
from turngate_verify.drivers.rules.program import Program
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
    """Examples begun, rules taken, names of what was reached; and what the first failing example did."""

    examples: int = 0
    steps: int = 0
    reached: set[str] = field(default_factory=set)
    raised: Exception | None = None
    found_in: int = 0
    program: Program = ()

    def note(self, raised: Exception, program: Program) -> None:
        """Keep the first failure: the others are the same again."""
        if self.raised is None:
            self.raised, self.program, self.found_in = raised, program, self.examples


def name_of(row: Row) -> str:
    """Return a declared move as it is called among what was reached."""
    return f"move: {row.trigger} {row.source} -> {row.target}, {row.when}"


class Noting(Successor):
    """The declared moves, noting by which of them a run has moved."""

    def __init__(self, reached: set[str]) -> None:
        super().__init__(TABLE)
        self._reached = reached

    def __call__(self, state: State, trigger: Trigger, facts: int) -> State | None:
        """Return the state after the trigger, or None if no row allows it."""
        target = super().__call__(state, trigger, facts)
        for row, need, forbid in _MASKS.get((state, trigger), ()):
            if facts & need == need and not facts & forbid:
                self._reached.add(name_of(row))
        return target


_MASKS: dict[tuple[State, Trigger], list[tuple[Row, int, int]]] = {}
for _row in TABLE:
    _MASKS.setdefault((_row.source, _row.trigger), []).append(
        (_row, sum(map(int, _row.conditions)), sum(map(int, _row.unless)))
    )


def ways_to_end(world: World) -> set[str]:
    """Return in which ways the runs of a world have ended."""
    at: dict[str, str] = {}
    ways = set()
    for _, event in world.history:
        match event:
            case Enter(run, state):
                at[run] = state
            case Fold(run, _):
                at[run] = "folded"
            case Handoff(run):
                at[run] = State.ACTIVE
            case Complete(run, cancelled, error):
                ways.add(f"end: {_way(at.pop(run, 'accepted'), cancelled, error or '')}")
            case _:
                pass
    return ways


def _way(at: str, cancelled: bool, error: str) -> str:
    if error == RELEASED:
        return "released when covered" if cancelled else "released"
    if error == CLEARED:
        return "cleared"
    if error.startswith("writing the messages took longer"):
        return "too slow to write"
    if error.startswith("writing the messages failed"):
        return "unwritten"
    if at == State.CANCEL_ON_ENTRY:
        return "cancelled on entry"
    if at == State.QUEUED and cancelled:
        return "cancelled in the queue"
    if error.startswith("the runner returned"):
        return "nonsense returned"
    if error.startswith("the turn was cancelled from outside"):
        return "struck from outside"
    outcome = "cancelled" if cancelled else "failed" if error else "finished"
    if at == "folded":
        return f"folded and {outcome}"
    return "cancelled while active" if cancelled else outcome
