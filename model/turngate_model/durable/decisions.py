"""What a step does to a ledger: a pure function of the ledger that was loaded.

Each decision takes the steps of the mechanism and adds only what a ledger adds: who was given the
turn, under which fence, at which attempt, and who holds what is accepted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, TypeAlias

from turngate_model.durable.records import NOBODY, Ledger, Operation, Worker
from turngate_model.durable.sessions import NAMES, Path, Sessions
from turngate_model.history import FinishReason
from turngate_model.mechanism import Action, Mechanism, ModelSession
from turngate_model.properties import Violation

OnDeath: TypeAlias = Literal["fail", "retry"]
CANCEL = Action("caller", "cancel")


@dataclass(frozen=True)
class DurableBounds:
    """How much can happen: processes, prompts, and how often each thing that is not of every day."""

    processes: int = 2
    prompts: int = 2
    cancels: int = 1
    crashes: int = 1
    """Processes that die; that all die at once counts as one."""
    expiries: int = 1
    """Processes that are given up for dead while they live."""
    losses: int = 1
    """Answers of the ledger that are lost."""
    loads: int = 1
    """Loads after which others come first."""
    on_death: OnDeath = "fail"
    attempts: int = 2
    """How often a turn is begun at most, where a turn whose process died is begun again."""

    def __post_init__(self) -> None:
        for name, least, most in (("processes", 1, 4), ("prompts", 1, len(NAMES)), ("attempts", 1, 8)):
            if not least <= getattr(self, name) <= most:
                raise ValueError(f"{name} must be from {least} to {most}, not {getattr(self, name)}")
        for name in BUDGETS:
            if not 0 <= getattr(self, name) <= 16:
                raise ValueError(f"{name} must be from 0 to 16, not {getattr(self, name)}")
        if self.on_death not in ("fail", "retry"):
            raise ValueError(f"on_death must be fail or retry, not {self.on_death}")


BUDGETS = ("cancels", "crashes", "expiries", "losses", "loads")
"""The bounds on how often something happens: what is used up of them is no part of a state."""


class Decision(NamedTuple):
    """What is to be saved, and what is to be done after that."""

    ledger: Ledger
    starts: str
    """The lead of the turn that the process is given by this step, if it is."""
    trail: tuple[tuple[int, Action], ...] = ()
    violations: tuple[Violation, ...] = ()


class Decisions:
    """The decisions. None stands for: there is nothing to save."""

    session: ClassVar[type[Mechanism]] = Mechanism
    refines: ClassVar[bool] = True
    """A design need not map to the abstract session; what it breaks for its users is what counts."""

    def __init__(self, bounds: DurableBounds) -> None:
        self.bounds = bounds
        self.sessions = Sessions(self.session, refine=self.refines)
        self._decided: dict[tuple[Ledger, Worker, Operation], Decision | None] = {}

    def decide(self, ledger: Ledger, me: Worker, operation: Operation) -> Decision | None:
        """Decide on what was loaded, under a name. What was decided once is remembered."""
        about = (ledger, me, operation)
        if about not in self._decided:
            self._decided[about] = getattr(self, operation.name)(ledger, me, operation)
        return self._decided[about]

    # What clients ask for.

    def accept(self, ledger: Ledger, me: Worker, operation: Operation) -> Decision | None:
        """Take a prompt in, and hold it until it enters. A known run is found, and nothing is saved."""
        if operation.run in self.sessions.known(ledger.session):
            return None
        path = Path(self.sessions, ledger.session)
        path.take(Action("caller", "accept", operation.run, operation.how))
        return self.saved(ledger._replace(holders=(*ledger.holders, (operation.run, me))), me, path)

    def submit(self, ledger: Ledger, me: Worker, operation: Operation) -> Decision | None:
        """Accept and enter in one save."""
        if operation.run in self.sessions.known(ledger.session):
            return None
        path = Path(self.sessions, ledger.session)
        path.take(Action("caller", "accept", operation.run, operation.how))
        path.take(Action("caller", "enter", operation.run))
        return self.saved(ledger, me, path)

    def enter(self, ledger: Ledger, me: Worker, operation: Operation) -> Decision | None:
        """Decide on an accepted run; if it is cancelled on entry, settle it in the same save."""
        if all(run.name != operation.run for run in self.how(ledger).accepted):
            return None
        path = Path(self.sessions, ledger.session)
        path.take(Action("caller", "enter", operation.run))
        if any(run.name == operation.run for run in path.session.entering):
            path.take(Action("store", "settle", operation.run, "ok"))
        return self.saved(ledger, me, path)

    def cancel(self, ledger: Ledger, me: Worker, operation: Operation) -> Decision | None:
        """Cover all that is in flight."""
        path = Path(self.sessions, ledger.session)
        path.take(CANCEL)
        return self.saved(ledger, me, path)

    # What a call of the runner asks for.

    def fold(self, ledger: Ledger, me: Worker, operation: Operation) -> Decision | None:
        """Take follow-ups into the turn, if it is still this call's."""
        session = self.how(ledger)
        if not self.is_turn_of(ledger, me, operation) or not session.queue:
            return None
        path = Path(self.sessions, ledger.session)
        path.take(Action("runner", "fold", session.active))
        return self.saved(ledger, me, path)

    def finish(self, ledger: Ledger, me: Worker, operation: Operation) -> Decision | None:
        """End the turn if it is still this call's: messages, RunCompletes and handoff are one save."""
        if not self.is_turn_of(ledger, me, operation):
            return None
        return self.settled(ledger, me, operation, "end_turn")

    def is_turn_of(self, ledger: Ledger, me: Worker, operation: Operation) -> bool:
        """Tell whether the session's turn is that of the call: the fence alone decides, not the owner."""
        return bool(self.how(ledger).active) and operation.fence == ledger.fence

    # What whoever notices does for the dead.

    def reap(self, ledger: Ledger, me: Worker, operation: Operation) -> Decision | None:
        """Take over a turn whose owner is dead: begin it again if so wanted, else complete it as lost."""
        session = self.how(ledger)
        if not session.active:
            return None
        turn = session.turn_of(session.active)
        again = self.bounds.on_death == "retry" and ledger.attempts < self.bounds.attempts
        if again and not (turn and turn.cancelled):
            return Decision(self.given(ledger, me, ledger.attempts + 1), session.active)
        return self.settled(ledger, me, operation, "error")

    # What the decisions are made of.

    def how(self, ledger: Ledger) -> ModelSession:
        """Return the session that a ledger holds."""
        return self.sessions.how(ledger.session)

    def settled(
        self, ledger: Ledger, me: Worker, operation: Operation, outcome: FinishReason
    ) -> Decision | None:
        """End the turn, write its messages, complete its runs and hand off, in one save; a cancel counts."""
        session = self.how(ledger)
        turn = session.turn_of(session.active)
        assert turn is not None
        path = Path(self.sessions, ledger.session)
        path.take(Action("runner", "end", session.active, "canceled" if turn.cancelled else outcome))
        path.take(Action("store", "written", session.active, "ok"))
        return self.saved(ledger, me, path)

    def saved(self, ledger: Ledger, me: Worker, path: Path) -> Decision:
        """Return what a path comes to: whoever saves it is given the turn that it has made active."""
        before, after = self.how(ledger).active, path.session
        accepted = {run.name for run in after.accepted}
        holders = tuple(held for held in ledger.holders if held[0] in accepted)
        ledger = ledger._replace(session=path.node, holders=holders)
        starts = after.active if after.active != before else ""
        if starts:
            ledger = self.given(ledger, me, 1)
        elif not after.active:
            ledger = ledger._replace(owner=NOBODY, attempts=0)
        return Decision(ledger, starts, tuple(path.trail), tuple(path.violations))

    def given(self, ledger: Ledger, me: Worker, attempts: int) -> Ledger:
        """Give the turn to a worker, under a fence that nobody had before."""
        return ledger._replace(owner=me, fence=ledger.fence + 1, attempts=attempts)
