"""Performs in this process what a step that was saved has decided. From here on nothing waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from turngate.durable._ledger import Ledger
    from turngate.durable._records import Decision
    from turngate.durable._runs import KnownRuns
    from turngate.durable._step import Step
    from turngate.durable._stepper import Stepper
    from turngate.durable._turns import LedgerTurns
    from turngate.durable.feed import Feed


class StepEffects:
    """Brings handles and turns up to date, in this order: RunCompletes, interrupts, the start of a turn."""

    def __init__(
        self, ledger: Ledger, stepper: Stepper, runs: KnownRuns, turns: LedgerTurns, feed: Feed
    ) -> None:
        self._ledger = ledger
        self._stepper = stepper
        self._runs = runs
        self._turns = turns
        self._feed = feed

    def perform(self, step: Step, decision: Decision) -> None:
        """Perform what the step has decided, which was saved at the decision's position."""
        assert decision.changes is not None
        turn = self._turns.turn_of(step.row.fence)
        self._runs.accept(step)
        self._runs.see(step, decision.changes.after.version)
        for run in step.published:
            assert run.complete is not None
            self._runs.complete(run.complete, decision.position, turn)
        if turn is not None:
            self._turns.see(step, turn)
        if step.interrupted:
            self._turns.cover(step.row.fence, step.row.owner)
        if step.started is not None and step.owner == self._stepper.name:
            self._turns.start(step, decision.position)
        self._tell_others(step)

    def _tell_others(self, step: Step) -> None:
        """Give the processes that the step concerns a hint to look soon."""
        self._feed.wake()
        others = {step.rows[run.run_id].holder for run in step.published}
        if step.interrupted and step.row.owner is not None:
            others.add(step.row.owner)
        others.discard(self._stepper.name)
        is_unowned = step.core.turn is not None and step.owner is None
        if others or is_unowned:
            self._ledger.hint(set() if is_unowned else others)
