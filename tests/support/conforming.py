"""A plain subject that keeps every promise, and a flaw for each promise that it can be made to break."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from turngate_model import Property
from turngate_model.history import FinishReason
from turngate_model.properties import AnyProperty, DurableProperty
from turngate_verify.conform import (
    Complete,
    DeclaredState,
    Enter,
    Features,
    Fold,
    Handoff,
    Observed,
    Op,
    Refused,
    Subject,
    Wrote,
)


class Lane:
    """One session."""

    def __init__(self) -> None:
        self.queue: list[str] = []
        self.turn: list[str] = []


class Plain:
    """A dispatcher without tasks: what happens, happens in the operation."""

    __test__ = False  # what it is tested for is said by the tests
    features = Features(two_phase=True, folds=True, clear=True, messages=True)

    def __init__(self, flaw: str = "") -> None:
        self.flaw = flaw
        if flaw == "last in, first out":
            # Its shortest program is long, so what it does not need is left out.
            self.features = Features(two_phase=True, cancel=False)
        self.lanes: dict[str, Lane] = {}
        self.session_of: dict[str, str] = {}
        self.covered: set[str] = set()
        self.accepted: list[str] = []
        self.flag: set[str] = set()
        self.held_back: list[str] = []
        self.seen: list[Observed] = []

    def lane(self, session: str) -> Lane:
        return self.lanes.setdefault("all" if self.flaw == "one lane for all" else session, Lane())

    def accept(self, session: str, run: str) -> None:
        self.session_of[run] = session
        self.accepted.append(run)

    def enter(self, run: str) -> None:
        session = self.session_of[run]
        lane = self.lane(session)
        self.accepted.remove(run)
        poisoned = session in self.flag
        self.flag.discard(session)
        if (run in self.covered and self.flaw != "covered runs enter") or poisoned:
            self.seen.append(Enter(run, DeclaredState.CANCEL_ON_ENTRY))
            self.settle(run, cancelled=True)
        elif (lane.turn or lane.queue) and self.flaw != "never waits":
            self.seen.append(Enter(run, DeclaredState.QUEUED))
            order = list(self.session_of).index
            lane.queue = sorted([*lane.queue, run], key=order, reverse=self.flaw == "last in, first out")
        elif self.flaw == "says queued":
            self.seen += [Enter(run, DeclaredState.QUEUED), Handoff(run)]
            lane.turn = [run]
        else:
            self.seen.append(Enter(run, DeclaredState.ACTIVE))
            lane.turn = [run]

    def cancel(self, session: str) -> None:
        lane = self.lane(session)
        mine = [run for run in self.accepted if self.session_of[run] == session]
        self.covered |= {*mine, *lane.queue, *lane.turn}
        if self.flaw == "leaves a flag" and not (mine or lane.queue or lane.turn):
            self.flag.add(session)
        dropped, lane.queue = lane.queue, []
        for run in dropped:
            self.seen.append(Complete(run, cancelled=True))
        if lane.turn:
            self.end(lane, cancelled=True)

    def clear(self, session: str) -> None:
        lane = self.lane(session)
        dropped, lane.queue = lane.queue, []
        for run in dropped:
            if self.flaw == "silent clear":
                continue
            self.seen.append(Complete(run, cancelled=False, error="cleared"))

    def fold(self, run: str) -> None:
        lane = self.lane(self.session_of[run])
        self.seen += [Fold(queued, run) for queued in lane.queue]
        lane.turn, lane.queue = lane.turn + lane.queue, []

    def finish(self, run: str) -> None:
        self.end(self.lane(self.session_of[run]))

    def fail(self, run: str) -> None:
        lane = self.lane(self.session_of[run])
        self.end(lane, error="no luck", hand_off=self.flaw != "strands")

    def end(
        self, lane: Lane, *, cancelled: bool = False, error: str | None = None, hand_off: bool = True
    ) -> None:
        ended, lane.turn = lane.turn, []
        late = self.flaw == "completes late" and lane.queue
        for run in ended:
            if not late:
                self.settle(run, cancelled=cancelled, error=error)
        if hand_off and lane.queue:
            successor = lane.queue.pop(0)
            lane.turn = [successor]
            self.seen.append(Handoff(successor))
            if self.flaw == "starts again":
                self.seen.append(Handoff(ended[0]))
        if late:
            for run in ended:
                self.settle(run, cancelled=cancelled, error=error)

    def settle(self, run: str, *, cancelled: bool, error: str | None = None) -> None:
        off_record = self.flaw == "off the record"
        reason: FinishReason = (
            "canceled" if cancelled and not off_record else "error" if error else "end_turn"
        )
        self.seen += [Wrote(run, reason), Complete(run, cancelled, error)]
        if self.flaw == "completes twice":
            self.seen.append(Complete(run, cancelled, error))

    def observe(self) -> Sequence[Observed]:
        seen, self.seen = self.seen, []
        return seen

    def close(self) -> None:
        pass


class Able(Plain):
    """The same with every operation of the port that needs no process of its own."""

    features = Plain.features._replace(
        cancel_run=True, interrupt=True, reject=True, wait=True, residue=True, bursts=True
    )

    def cancel_run(self, run: str) -> None:
        lane = self.lane(self.session_of[run])
        self.covered.add(run)
        if run in lane.turn:
            if self.flaw == "cancels more than one run":
                self.cancel(self.session_of[run])
                return
            self.covered.update(lane.turn)
            self.end(lane, cancelled=True, hand_off=self.flaw != "strands behind one run")
        elif run in lane.queue:
            lane.queue.remove(run)
            self.seen.append(Complete(run, cancelled=True))

    def interrupt(self, session: str, run: str) -> None:
        if self.flaw != "interrupts nobody":
            self.cancel(session)
        self.accept(session, run)
        if self.flaw == "interrupts itself":
            self.covered.add(run)

    def reject(self, session: str, run: str) -> None:
        lane = self.lane(session)
        mine = [each for each in self.accepted if self.session_of[each] == session]
        busy = bool(lane.turn or lane.queue or (mine and self.flaw != "forgets the accepted"))
        if busy and self.flaw != "rejects nobody":
            self.seen.append(Refused(run))
        else:
            self.accept(session, run)

    def wait(self) -> None:
        for lane in self.lanes.values():
            if self.flaw == "forgets the queue in time":
                lane.queue.clear()

    def residue(self) -> int:
        if self.flaw == "keeps every lane":
            return len(self.lanes)
        return len(self.session_of) if self.flaw == "keeps every run" else 0

    def burst(self, operations: Sequence[Op]) -> None:
        for op in operations:
            getattr(self, op.name)(*op.arguments.values())

    def working(self) -> list[str]:
        return [lane.turn[0] for lane in self.lanes.values() if lane.turn]


class Reopens(Able):
    """The same on something that outlives its process. A turn that dies is lost, or runs again."""

    features = Features(crash=True, two_phase=True, folds=True, clear=True)
    retries = False

    def crash(self) -> None:
        for lane in self.lanes.values():
            if self.flaw == "loses the queue":
                lane.queue.clear()
            if not lane.turn:
                continue
            if self.flaw == "forgets the turn":
                lane.turn.clear()
            elif self.retries:
                self.seen.append(Handoff(lane.turn[0]))
            else:
                self.end(lane, error="lost", hand_off=self.flaw != "reopens without a turn")


class Retries(Reopens):
    """Runs a turn again whose process has died."""

    retries = True


NEWER_FLAWS: dict[str, tuple[type[Able], AnyProperty, str]] = {
    "interrupts nobody": (Able, Property.FULL_COVERAGE, "accept a, enter a, interrupt b, finish a"),
    "interrupts itself": (Able, Property.NEVER_POISONED, "accept a, interrupt b, enter b"),
    "rejects nobody": (Able, Property.DECLARED_MOVE, "accept a, reject b"),
    "forgets the accepted": (Able, Property.DECLARED_MOVE, "accept a, reject b"),
    "cancels more than one run": (
        Able,
        Property.NEVER_POISONED,
        "accept a, accept b, enter a, enter b, cancel_run a",
    ),
    "strands behind one run": (
        Able,
        Property.NO_STRAND,
        "accept a, accept b, enter a, enter b, cancel_run a",
    ),
    "forgets the queue in time": (
        Able,
        Property.NO_STRAND,
        "accept a, accept b, enter a, enter b, wait, finish a",
    ),
    "keeps every lane": (Able, Property.NO_RESIDUE, ""),
    "keeps every run": (Able, Property.NO_RESIDUE, ""),
    "loses the queue": (Reopens, DurableProperty.DURABLE, "accept a, accept b, enter a, enter b, crash"),
    "forgets the turn": (Reopens, DurableProperty.DURABLE, "accept a, enter a, crash"),
    "reopens without a turn": (
        Reopens,
        DurableProperty.DURABLE,
        "accept a, accept b, enter a, enter b, crash",
    ),
}
"""The same for the operations that not every subject has."""

FLAWS: dict[str, tuple[Property, str]] = {
    "leaves a flag": (Property.NEVER_POISONED, "cancel, accept a, enter a"),
    "covered runs enter": (Property.FULL_COVERAGE, "accept a, cancel, enter a"),
    "completes twice": (Property.EXACTLY_ONE_COMPLETE, "accept a, enter a, finish a"),
    "silent clear": (Property.EXACTLY_ONE_COMPLETE, "accept a, accept b, enter a, enter b, clear, finish a"),
    "never waits": (Property.ONE_TURN, "accept a, accept b, enter a, enter b"),
    "strands": (Property.NO_STRAND, "accept a, accept b, enter a, enter b, fail a"),
    "last in, first out": (
        Property.FIFO,
        "accept a, accept b, accept c, enter a, enter b, enter c, finish a",
    ),
    "completes late": (Property.LAST_WORD, "accept a, accept b, enter a, enter b, finish a"),
    "off the record": (Property.ON_RECORD, "accept a, cancel, enter a"),
    "one lane for all": (Property.ISOLATION, "accept a, accept b @2, enter a, enter b @2"),
    "starts again": (Property.TERMINAL_IS_FINAL, "accept a, accept b, enter a, enter b, finish a"),
    "says queued": (Property.DECLARED_MOVE, "accept a, enter a"),
}
"""For each flaw, the property it breaks and a shortest program that shows it."""


def flawed(flaw: str) -> Callable[[], Subject]:
    def make() -> Subject:
        return Plain(flaw)

    return make
