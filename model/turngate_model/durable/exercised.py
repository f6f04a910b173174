"""What must have happened at least once among the processes, so that a check which saw nothing fails."""

from __future__ import annotations

from turngate_model.durable.decisions import DurableBounds
from turngate_model.durable.mechanism import DurableStep
from turngate_model.durable.records import World
from turngate_model.durable.sessions import Sessions
from turngate_model.properties import AnyProperty, DurableProperty, Property

JUDGED: tuple[AnyProperty, ...] = (
    *(each for each in Property if each is not Property.ISOLATION),
    *DurableProperty,
)
"""What the durable model judges. It has one session, so of ISOLATION it knows nothing."""

_OVERTAKEN = "a load that others overtook"
_RUNS_ON = "a turn given up while its runner runs"
_NEEDS: dict[str, dict[str, int]] = {
    "accept saved": {},
    "submit saved": {},
    "enter saved": {},
    "cancel saved": {"cancels": 1},
    "finish saved": {},
    "call made": {},
    "fold saved": {"prompts": 2},
    "a handoff in the save that finishes a turn": {"prompts": 2},
    "enter saved by another than the holder": {"processes": 2},
    "enter for the dead saved": {"crashes": 1},
    "a turn of the dead completed as lost": {"crashes": 1},
    "a turn of the dead handed off to a queued run": {"crashes": 1, "prompts": 2},
    "a covered turn of the dead completed as cancelled": {"crashes": 1, "cancels": 1},
    _OVERTAKEN: {"loads": 1, "processes": 2},
    "finish saved late": {"loads": 1},
    "a step in hand refused for want of a lease": {"loads": 1, "expiries": 1},
    "an answer lost, and the step learned of": {"losses": 1},
    "an answer lost, and a new name taken": {"losses": 1},
    "a call not made for want of the name": {"losses": 1, "expiries": 1},
    "a finish refused by the fence": {"expiries": 1},
    _RUNS_ON: {"expiries": 1},
    "a process that comes back": {"crashes": 1},
    "everything complete after a blackout": {"crashes": 1},
    "everything complete after a death": {"crashes": 1, "processes": 2},
}
_WITH_RETRY: dict[str, dict[str, int]] = {
    "a turn of the dead begun again": {"crashes": 1},
    "a turn with a folded run begun again": {"crashes": 1, "prompts": 2},
}


def required(bounds: DurableBounds) -> frozenset[str]:
    """Return what must have happened at least once within these bounds."""
    needs = {**_NEEDS, **(_WITH_RETRY if bounds.on_death == "retry" and bounds.attempts > 1 else {})}
    if bounds.on_death == "retry":
        # A turn is lost only after its last attempt, and each attempt but the last takes a death of its own.
        for lost in ("a turn of the dead completed as lost", "a turn of the dead handed off to a queued run"):
            needs[lost] = {**needs[lost], "deaths": bounds.attempts}
    return frozenset(
        what
        for what, least in needs.items()
        if all(_amount(bounds, name) >= amount for name, amount in least.items())
    )


def _amount(bounds: DurableBounds, name: str) -> int:
    if name == "deaths":
        return bounds.crashes + bounds.expiries
    amount: int = getattr(bounds, name)
    return amount


class DurableWitness:
    """Notes what happened at least once, and which of DURABLE, FENCED and ADOPTED was put to the test."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self.seen: set[str] = set()
        self._known: set[tuple[object, ...]] = set()

    @property
    def exercised(self) -> frozenset[AnyProperty]:
        """The properties that were put to the test."""
        tested: set[AnyProperty] = set(self._sessions.witness.exercised)
        if "everything complete after a blackout" in self.seen:
            tested.add(DurableProperty.DURABLE)
        if "everything complete after a death" in self.seen:
            tested.add(DurableProperty.ADOPTED)
        if "a finish refused by the fence" in self.seen:
            tested |= {DurableProperty.FENCED, Property.TERMINAL_IS_FINAL}
        return frozenset(tested)

    def quiescent(self, world: World) -> None:
        """Note a world in which nothing more happens of itself."""
        what = self._sessions.what(world.ledger.session)
        if what.states and what.quiet and world.up:
            if world.blackout:
                self.seen.add("everything complete after a blackout")
            elif not all(process.up for process in world.processes):
                self.seen.add("everything complete after a death")

    def step(self, world: World, step: DurableStep) -> None:
        """Note a step."""
        if _OVERTAKEN not in self.seen and step.what.startswith("saves"):
            others = (process for me, process in enumerate(world.processes, 1) if me != step.who)
            self.seen.update(_OVERTAKEN for process in others if process.loaded)
        if _RUNS_ON not in self.seen and step.what == "is given up":
            calls = world.processes[step.who - 1].calls
            self.seen.update(_RUNS_ON for call in calls if call.phase == "running")
        shape = (step.what, step.operation, step.trail, step.world.ledger.session)
        if shape not in self._known:
            self._known.add(shape)
            self.seen.update(self._notes(world, step))

    def _notes(self, world: World, step: DurableStep) -> list[str]:
        name, how = (step.operation.name, step.operation.how) if step.operation else ("", "")
        if step.what.startswith("saves"):
            after = self._sessions.how(step.world.ledger.session)
            if name == "reap":
                return self._reaped(step, after.active)
            handed = (
                ["a handoff in the save that finishes a turn"] if name == "finish" and after.active else []
            )
            late = ["finish saved late"] if name == "finish" and step.what.startswith("saves late") else []
            by = {"dead": "enter for the dead saved", "late": "enter saved by another than the holder"}
            return [by.get(how, f"{name} saved"), *handed, *late]
        found = {
            "is refused": "a finish refused by the fence" if name == "finish" else "",
            "has no lease": "a step in hand refused for want of a lease",
            "learns": "an answer lost, and the step learned of",
            "cannot learn": "an answer lost, and a new name taken",
            "too late": "a call not made for want of the name",
            "calls": "call made",
            "comes back": "a process that comes back",
        }.get(step.what, "")
        return [found] if found else []

    def _reaped(self, step: DurableStep, after: str) -> list[str]:
        if not step.trail:
            turn = self._sessions.how(step.world.ledger.session).turn_of(after)
            folded = ["a turn with a folded run begun again"] if turn and turn.folded else []
            return ["a turn of the dead begun again", *folded]
        if any(action.how == "canceled" for _, action in step.trail):
            return ["a covered turn of the dead completed as cancelled"]
        handed = ["a turn of the dead handed off to a queued run"] if after else []
        return ["a turn of the dead completed as lost", *handed]
