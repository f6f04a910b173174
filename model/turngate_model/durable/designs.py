"""Known-bad designs of sessions that processes share: how it is got wrong once a ledger is there.

Each is the durable mechanism with one thing done otherwise. Each was met in a system of this kind,
or in a prototype of this one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from turngate_model.checker import SearchLimits
from turngate_model.durable.decisions import CANCEL, Decision, DurableBounds, OnDeath
from turngate_model.durable.explorer import DurableExploration, DurableExplorer
from turngate_model.durable.mechanism import DurableMechanism, DurableStep
from turngate_model.durable.records import (
    GONE,
    Call,
    Ledger,
    Operation,
    Process,
    Unanswered,
    Worker,
    World,
    in_one_form,
    names_on,
    replaced,
)
from turngate_model.durable.sessions import Path
from turngate_model.history import Complete, FinishReason
from turngate_model.mechanism import Action, Mechanism
from turngate_model.model_session import ModelRun, ModelSession, ModelTurn
from turngate_model.properties import AnyProperty, DurableProperty, Property


class NoVersion(DurableMechanism):
    """A step is saved whatever happened to the session since it was loaded."""

    refines = looks_at_the_version = False


class _CompletesByName(Mechanism):
    """A call that has ended completes its lead, whoever has the turn."""

    def complete_by_name(self, s: ModelSession, run: ModelRun) -> None:
        self.record([run], "end_turn", ok=True)
        self.see(Complete(run.name, cancelled=False))


class NoFence(DurableMechanism):
    """A turn given up for dead may still finish: whoever holds the session's turn now is not asked for."""

    session, refines = _CompletesByName, False

    def is_turn_of(self, ledger: Ledger, me: Worker, operation: Operation) -> bool:
        return self.how(ledger).active == operation.run

    def finish(self, ledger: Ledger, me: Worker, operation: Operation) -> Decision | None:
        if self.is_turn_of(ledger, me, operation):
            return super().finish(ledger, me, operation)
        path = Path(self.sessions, ledger.session)
        path.take(Action("runner", "complete_by_name", operation.run))
        return self.saved(ledger, me, path)


class StartBeforeCommit(DurableMechanism):
    """The runner is called before the step that made its run active is saved."""

    def after_load(self, world: World, me: Worker, operation: Operation) -> World:
        after = super().after_load(world, me, operation)
        decision = self.decide(world.ledger, me, operation)
        if decision is None or not decision.starts:
            return after
        process, early = after.processes[me - 1], Call(decision.starts, decision.ledger.fence, entitled=False)
        return after.with_process(me, process._replace(calls=(*process.calls, early)))

    def performed(self, process: Process, operation: Operation, start: Call | None) -> Process:
        early = next((call for call in process.calls if start and call.lead == start.lead), None)
        if start and early:
            process = process._replace(calls=tuple(call for call in process.calls if call is not early))
            start = start._replace(phase=early.phase)
        return super().performed(process, operation, start)


class ReusedWorker(DurableMechanism):
    """A process that comes back under its old name takes what it held for its own."""

    takes_new_names = False

    def new_name(self, world: World, me: Worker) -> World:
        return world.with_process(me, world.processes[me - 1]._replace(given_up=False))

    def come_back(self, world: World, me: Worker) -> World:
        for name in names_on(world.ledger):
            if name < GONE:
                world = replaced(world, name, me)
        return world.with_process(me, Process())


class _TakesInAgain(Mechanism):
    """A prompt that is taken in again is one more run."""

    def again(self, s: ModelSession, run: ModelRun) -> None:
        s.accepted.append(run)


class AnswerLostRetried(DurableMechanism):
    """The answer of the database is lost, the step was saved, and it is done again."""

    session = _TakesInAgain
    refines = remembers_steps = False

    def unanswered(
        self, world: World, me: Worker, unanswered: Unanswered, left: frozenset[str]
    ) -> Iterator[DurableStep]:
        operation = unanswered.operation
        assert operation is not None
        world = world.with_process(me, world.processes[me - 1]._replace(unanswered=None))
        if operation.name not in ("accept", "submit", "cancel"):
            yield from self.save(world, me, operation, world.ledger, left, internal=True, what="saves late")
            return
        path, ledger = Path(self.sessions, world.ledger.session), world.ledger
        path.repeat(CANCEL if operation.name == "cancel" else Action("caller", "accept", operation.run))
        if operation.name == "submit":
            path.take(Action("caller", "enter", operation.run))
        elif operation.name == "accept" and operation.run not in dict(ledger.holders):
            ledger = ledger._replace(holders=(*ledger.holders, (operation.run, me)))
        decision = self.saved(ledger, me, path)
        process = world.processes[me - 1]
        start = Call(decision.starts, decision.ledger.fence) if decision.starts else None
        after = world._replace(ledger=decision.ledger)
        after = in_one_form(after.with_process(me, self.performed(process, operation, start)))
        step = DurableStep(me, "does it again", after, operation, decision.trail, decision.violations)
        yield step._replace(internal=True)


class _Unmarked(Mechanism):
    """A cancel leaves no mark on the turn: how the turn is ended decides whether it was cancelled."""

    def interrupt(self, s: ModelSession) -> None:
        pass

    def end(self, s: ModelSession, turn: ModelTurn, outcome: FinishReason) -> None:
        turn.cancelled = outcome == "canceled"
        super().end(s, turn, outcome)


class NotifyOnlyCancel(DurableMechanism):
    """A cancel reaches the process that runs the turn by a notification alone; the finish does not look."""

    session, refines = _Unmarked, False

    def in_hand(self, world: World, me: Worker, left: frozenset[str]) -> Iterator[DurableStep]:
        yield from super().in_hand(world, me, left)
        process, covered = world.processes[me - 1], self.sessions.abstract(world.ledger.session).covered
        for call in process.calls:
            if call.lead in covered and not call.notified:
                calls = tuple(
                    each._replace(notified=True) if each is call else each for each in process.calls
                )
                after = world.with_process(me, process._replace(calls=calls))
                yield DurableStep(me, "is notified", in_one_form(after), internal=True)

    def operations(self, world: World, me: Worker) -> Iterator[tuple[Operation, bool]]:
        """Have a call that was notified finish as cancelled."""
        notified = {call.lead for call in world.processes[me - 1].calls if call.notified}
        for operation, internal in super().operations(world, me):
            cancelled = operation.name == "finish" and operation.run in notified
            yield operation._replace(how="canceled") if cancelled else operation, internal

    def settled(
        self, ledger: Ledger, me: Worker, operation: Operation, outcome: FinishReason
    ) -> Decision | None:
        return super().settled(ledger, me, operation, "canceled" if operation.how else outcome)


class OrphanedAccept(DurableMechanism):
    """What a dead process had accepted and not entered waits for it."""

    def takes_over(self, ledger: Ledger, run: str) -> bool:
        return False


class _ParksWhatItReaps(Mechanism):
    """A turn that a dead process left is completed, and nothing comes after it."""

    def written(self, s: ModelSession, turn: ModelTurn, ok: bool) -> None:
        if turn.writing != "error":
            super().written(s, turn, ok)
            return
        self.record(turn.runs, turn.writing, ok)
        self.complete_turn(s, turn, None)
        s.turns.remove(turn)
        s.active = ""


class ReapWithoutHandoff(DurableMechanism):
    """The turn of a dead process is completed, its queue stays."""

    session, refines = _ParksWhatItReaps, False


class DurableDesign(NamedTuple):
    """A known-bad design: the flawed mechanism, and what it is said to break."""

    name: str
    mechanism: type[DurableMechanism]
    breaks: tuple[AnyProperty, ...]

    @property
    def flaw(self) -> str:
        """What the design does, in one sentence."""
        return str(self.mechanism.__doc__).splitlines()[0]


def refute_durable(
    design: DurableDesign,
    on_death: OnDeath = "fail",
    bounds: DurableBounds | None = None,
    limits: SearchLimits | None = None,
) -> DurableExploration:
    """Explore a known-bad design until what it is said to break is broken."""
    bounds = bounds or DurableBounds(on_death=on_death)
    return DurableExplorer(
        bounds, design.mechanism, name=design.name, claimed=design.breaks, limits=limits
    ).run()


_P, _D = Property, DurableProperty
DURABLE_DESIGNS = {
    design.name: design
    for design in (
        DurableDesign("no-version", NoVersion, (_P.EXACTLY_ONE_COMPLETE, _P.ONE_TURN, _P.FULL_COVERAGE)),
        DurableDesign("no-fence", NoFence, (_D.FENCED, _P.EXACTLY_ONE_COMPLETE)),
        DurableDesign("start-before-commit", StartBeforeCommit, (_P.ONE_TURN, _P.FULL_COVERAGE)),
        DurableDesign("reused-worker", ReusedWorker, (_D.ADOPTED, _P.ONE_TURN)),
        DurableDesign("answer-lost-retried", AnswerLostRetried, (_P.EXACTLY_ONE_COMPLETE,)),
        DurableDesign("notify-only-cancel", NotifyOnlyCancel, (_P.FULL_COVERAGE,)),
        DurableDesign("orphaned-accept", OrphanedAccept, (_D.ADOPTED, _D.DURABLE)),
        DurableDesign("reap-without-handoff", ReapWithoutHandoff, (_P.NO_STRAND, _D.ADOPTED)),
    )
}
