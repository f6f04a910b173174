"""Would the checks of the durable model tell? Break one thing at a time, and see the right id reported."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from turngate_model.checker import DurableBounds, Explorer, OnDeath
from turngate_model.durable import DurableMechanism, DurableModel
from turngate_model.durable.bad_mechanisms import AnswerLostRetried
from turngate_model.durable.decisions import LedgerDecision
from turngate_model.durable.mechanism import DurableStep
from turngate_model.durable.records import (
    GONE,
    Call,
    ModelLedger,
    ModelProcess,
    ModelWorld,
    Operation,
    WorkerName,
)
from turngate_model.history import Handoff
from turngate_model.mechanism import Mechanism
from turngate_model.model_session import ModelSession
from turngate_model.properties import AnyProperty, DurableProperty, Property

QUICK = {"cancels": 0, "losses": 0, "loads": 0}


class FenceStays(DurableMechanism):
    """A turn that begins again keeps its fence."""

    def given(self, ledger: ModelLedger, me: WorkerName, attempts: int) -> ModelLedger:
        given = super().given(ledger, me, attempts)
        return given if attempts == 1 else given._replace(fence=ledger.fence)


class AsksForTheOwner(DurableMechanism):
    """The owner of the turn may finish it under any fence, even if it has become the owner again since."""

    def is_turn_of(self, ledger: ModelLedger, me: WorkerName, operation: Operation) -> bool:
        return ledger.owner == me


class FoldsUnfenced(DurableMechanism):
    """A finish is fenced, a fold is not."""

    def fold(self, ledger: ModelLedger, me: WorkerName, operation: Operation) -> LedgerDecision | None:
        return super().fold(ledger, me, operation._replace(fence=ledger.fence))


class UnknownIsAlive(DurableMechanism):
    """A worker that is in no table counts as alive."""

    def is_dead(self, world: ModelWorld, worker: WorkerName) -> bool:
        return worker > 0 and super().is_dead(world, worker)


class LeavesItToThoseWhoSawIt(DurableMechanism):
    """A process that comes back after all have died does not look for earlier dead ones."""

    def is_dead(self, world: ModelWorld, worker: WorkerName) -> bool:
        return not world.blackout and super().is_dead(world, worker)


class NobodyHoldsIt(DurableMechanism):
    """An accept notes no holder."""

    def accept(self, ledger: ModelLedger, me: WorkerName, operation: Operation) -> LedgerDecision | None:
        decision = super().accept(ledger, me, operation)
        return decision and decision._replace(ledger=decision.ledger._replace(holders=ledger.holders))


class AdoptsItsOwnTurn(DurableMechanism):
    """A process that owns a turn and runs none is given it anew, instead of learning what it missed."""

    def operations(self, world: ModelWorld, me: WorkerName) -> Iterator[tuple[Operation, bool]]:
        yield from super().operations(world, me)
        if world.ledger.owner == me and not world.processes[me - 1].calls:
            yield Operation("adopt"), True

    def adopt(self, ledger: ModelLedger, me: WorkerName, operation: Operation) -> LedgerDecision | None:
        return LedgerDecision(self.given(ledger, me, ledger.attempts), self.how(ledger).active)


class CallsUnderAnyName(DurableMechanism):
    """A call that is due is made, though the process has taken a new name since."""

    def may_call(self, call: Call) -> bool:
        return True


class BeginsCoveredTurnsAgain(DurableMechanism):
    """A turn whose process died begins again, cancelled or not."""

    def reap(self, ledger: ModelLedger, me: WorkerName, operation: Operation) -> LedgerDecision | None:
        return LedgerDecision(self.given(ledger, me, ledger.attempts + 1), self.how(ledger).active)


class OwnerStays(DurableMechanism):
    """The owner of the last turn stays on the ledger."""

    def finish(self, ledger: ModelLedger, me: WorkerName, operation: Operation) -> LedgerDecision | None:
        decision = super().finish(ledger, me, operation)
        return decision and decision._replace(ledger=decision.ledger._replace(owner=me))


class TriesForEver(DurableMechanism):
    """A finish that is refused is tried again."""

    def performed(self, process: ModelProcess, operation: Operation, start: Call | None) -> ModelProcess:
        done = super().performed(process, operation, start)
        stale = tuple(call for call in process.calls if not call.entitled and not call.own)
        return done._replace(calls=stale) if stale and operation.name == "finish" else done


class FinishIsTwoSaves(DurableMechanism):
    """The turn is ended in one save; its messages and the handoff are left to the next."""

    refines = False

    def finish(self, ledger: ModelLedger, me: WorkerName, operation: Operation) -> LedgerDecision | None:
        decision = super().finish(ledger, me, operation)
        return decision and decision._replace(ledger=ledger._replace(session=decision.trail[-1][0]))


class CannotTellTheDead(DurableMechanism):
    """No process is ever given up, so none takes over."""

    def expired(self, world: ModelWorld, name: WorkerName) -> ModelWorld:
        return world

    def steps(self, world: ModelWorld, left: frozenset[str]) -> Iterator[DurableStep]:
        return (step for step in super().steps(world, left) if step.what != "expires")


class HandsOffWhatIsHeld(Mechanism):
    def start_next(self, s: ModelSession) -> None:
        if s.queue:
            run = s.queue.pop(0)
            self.start(s, run)
            self.see(Handoff(run.name))


class DoesNotLoadTheHold(DurableMechanism):
    """The step that ends a turn does not look whether the next run is held."""

    session = HandsOffWhatIsHeld


class ResumesForNobody(DurableMechanism):
    """A resume that starts a turn gives it to no process."""

    def in_line(self, ledger: ModelLedger, me: WorkerName, operation: Operation) -> LedgerDecision | None:
        decision = super().in_line(ledger, me, operation)
        if decision is None or not decision.starts:
            return decision
        return decision._replace(starts="", ledger=decision.ledger._replace(owner=me))


HOLDS = {"cancels": 0, "losses": 0, "loads": 0, "expiries": 0, "holds": 1}
RETRY: OnDeath = "retry"
TEETH: dict[type[DurableMechanism], tuple[AnyProperty, dict[str, int], OnDeath]] = {
    FenceStays: (DurableProperty.FENCED, QUICK, "retry"),
    AsksForTheOwner: (DurableProperty.FENCED, QUICK, "retry"),
    FoldsUnfenced: (DurableProperty.FENCED, QUICK, "retry"),
    UnknownIsAlive: (DurableProperty.ADOPTED, QUICK, "fail"),
    CannotTellTheDead: (DurableProperty.ADOPTED, QUICK, "fail"),
    LeavesItToThoseWhoSawIt: (DurableProperty.DURABLE, QUICK, "fail"),
    NobodyHoldsIt: (DurableProperty.ADOPTED, QUICK, "fail"),
    AdoptsItsOwnTurn: (Property.ONE_TURN, {"cancels": 0, "loads": 0}, "fail"),
    CallsUnderAnyName: (Property.ONE_TURN, {"cancels": 0, "loads": 0}, "fail"),
    BeginsCoveredTurnsAgain: (Property.FULL_COVERAGE, {"losses": 0, "loads": 0}, "retry"),
    OwnerStays: (Property.NO_RESIDUE, QUICK, "fail"),
    TriesForEver: (Property.EXACTLY_ONE_COMPLETE, QUICK, "fail"),
    FinishIsTwoSaves: (DurableProperty.ADOPTED, QUICK, "fail"),
    DoesNotLoadTheHold: (Property.HELD, HOLDS, "fail"),
    ResumesForNobody: (DurableProperty.ADOPTED, HOLDS, "fail"),
    AnswerLostRetried: (Property.NEVER_POISONED, {"loads": 0, "expiries": 0, "crashes": 0}, "fail"),
}


@pytest.mark.requirement("DURABLE", "FENCED", "ADOPTED")
@pytest.mark.parametrize("mechanism", TEETH)
def test_what_is_broken_is_reported_under_its_id(mechanism: type[DurableMechanism]) -> None:
    broken, bounds, on_death = TEETH[mechanism]
    result = Explorer(
        DurableModel(DurableBounds(on_death=on_death, **bounds), mechanism), claimed=(broken,)
    ).run()
    assert result.verdict == "violated"
    assert result.counterexample is not None
    assert result.counterexample.property is broken
    assert 1 <= len(result.counterexample.steps) <= 10


def test_without_what_breaks_it_nothing_is_broken() -> None:
    for on_death in ("fail", RETRY):
        for bounds in (QUICK, {"cancels": 0, "loads": 0}, {"losses": 0, "loads": 0}):
            assert (
                not Explorer(DurableModel(DurableBounds(on_death=on_death, prompts=1, **bounds)))
                .run()
                .counterexamples
            )


# What the model says about the mechanism.


class WithoutLease(DurableMechanism):
    """A process that was given up for dead can still save; a step keeps the name it was sent under."""

    def may_save(self, process: ModelProcess, own: bool = True) -> bool:
        return True


@pytest.mark.parametrize(
    "bounds",
    [
        DurableBounds(prompts=1),
        DurableBounds(losses=0, loads=0),
        pytest.param(DurableBounds(), marks=pytest.mark.deep),
        pytest.param(DurableBounds(on_death="retry"), marks=pytest.mark.deep),
    ],
)
def test_the_lease_is_hygiene(bounds: DurableBounds) -> None:
    result = Explorer(DurableModel(bounds, WithoutLease)).run()
    assert result.counterexamples == {}


def test_without_a_lease_the_unknown_must_count_as_dead() -> None:
    class Arrives(WithoutLease, UnknownIsAlive):
        """A step arrives after its worker was given up, and its worker is not checked."""

    result = Explorer(DurableModel(DurableBounds(cancels=0), Arrives)).run()
    assert DurableProperty.ADOPTED in result.counterexamples


UNLISTED = 9


class ListsOrphansAtTheExpiry(WithoutLease):
    """What is under a dead name is listed when the name is given up; what arrives later is on no list."""

    def given(self, ledger: ModelLedger, me: WorkerName, attempts: int) -> ModelLedger:
        return super().given(ledger, UNLISTED if me == GONE else me, attempts)

    def is_dead(self, world: ModelWorld, worker: WorkerName) -> bool:
        return worker != UNLISTED and super().is_dead(world, worker)


def test_debts_are_found_by_state_and_not_at_the_burial() -> None:
    result = Explorer(
        DurableModel(DurableBounds(cancels=0, losses=0, prompts=1), ListsOrphansAtTheExpiry)
    ).run()
    example = result.counterexamples[DurableProperty.ADOPTED]
    assert example.told() == [
        "P1 saves: accept a",
        "P1 loads the session to enter a, and others come first",
        "P1 is given up for dead, and lives",
        "P1 notices that it was given up, and takes a new name",
        "P1 saves what it had loaded for: enter a; a is active",
        "P1 does not call the runner for a: it has another name by now",
    ]


def test_the_fence_alone_decides_whose_turn_it_is() -> None:
    """To ask for the owner as well refuses nothing more: the same worlds are reached."""

    class AsksForBoth(DurableMechanism):
        def is_turn_of(self, ledger: ModelLedger, me: WorkerName, operation: Operation) -> bool:
            return super().is_turn_of(ledger, me, operation) and ledger.owner in (me, GONE)

    bounds = DurableBounds(prompts=1, on_death="retry")
    alone, both = (
        Explorer(DurableModel(bounds, mechanism)).run() for mechanism in (DurableMechanism, AsksForBoth)
    )
    assert alone.counterexamples == both.counterexamples == {}
    assert (alone.states, alone.transitions) == (both.states, both.transitions)
