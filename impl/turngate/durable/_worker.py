"""The inside of a dispatcher on a ledger: its parts, and what they need from each other.

`Stepper`      the process on the ledger, which takes steps under a name
`KnownRuns`    the handles of runs
`LedgerTurns`  the turns that run here
`Recovery`     finds out what hints have missed, and recovers what dead processes have left
`Feed`         reads the ledger for subscribers and readers of completions
`LedgerClose`  the close
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from turngate._core import ACCEPTED, CANCEL_ON_ENTRY, COMPLETE
from turngate._deadlock import DeadlockCheck
from turngate._errors import DispatcherClosed, counted
from turngate._handles import Covered
from turngate._log import guard, log_error
from turngate.durable._close import LedgerClose
from turngate.durable._ledger import LedgerGone
from turngate.durable._recovery import Recovery
from turngate.durable._stepper import Stepper
from turngate.durable._turns import KnownRuns, LedgerTurns
from turngate.durable.feed import Feed

if TYPE_CHECKING:
    from turngate._core import RunRecord
    from turngate._events import TurnStream
    from turngate._handles import Run, Turn
    from turngate._messages import ListOfMessages
    from turngate._runner import Called
    from turngate._turn import TurnHost
    from turngate.durable._ledger import Ledger
    from turngate.durable._records import Decision
    from turngate.durable._step import Step
    from turngate.durable._stepper import Settings


class Worker:
    """One process on a ledger: the `Home` of handles and the `StepHost` of the stepper."""

    def __init__(self, runner: Called, ledger: Ledger, settings: Settings) -> None:
        self.ledger = ledger
        self.stepper = Stepper(ledger, self, settings)
        self.runs = KnownRuns(self, self._leave_to_hook)
        self.feed = Feed(self.stepper, self.runs.has_hook)
        self.turns = LedgerTurns(self, self.stepper, self.runs, self.feed, runner)
        self.recovery = Recovery(self.stepper, self.runs, self.turns)
        self.close = LedgerClose(self.stepper, self.runs, self.turns, self.feed, self.recovery)
        self.deadlocks = DeadlockCheck(self)
        self.loop = self.stepper.loop
        self.events: TurnStream = self.feed
        self.turn_host: TurnHost = self.turns

    # What handles need; see `Home`.

    def expect_end(self, run: Run) -> None:
        """Look for the completion of the run until it is found; raise if this process cannot learn of it."""
        if self.stepper.is_closed:
            raise DispatcherClosed(f"the dispatcher is closed; run {run.run_id} goes on without it")
        self.runs.watch(run)
        if self.stepper.gone is not None:
            raise LedgerGone(str(self.stepper.gone))

    def find(self, run_id: str) -> Run | None:
        """Return the handle that this process has of a run."""
        return self.runs.handles.get(run_id)

    async def cancel(self, run: Run) -> Covered:
        """Cover the run, or the whole turn that it is part of."""
        if run.state is COMPLETE:  # another run may have its run_id now
            return Covered([])
        run_id = run.run_id

        def cover(step: Step) -> tuple[Step, list[RunRecord]]:
            return step, step.cancel_run(run_id)

        step, covered = await self.stepper.step(run.session_id, cover, head=1, run_id=run_id)
        return Covered(self.runs.all_seen(step, covered))

    async def release(self, run: Run) -> None:
        """Complete the run if it has not entered."""
        if run.state is not COMPLETE and not self.stepper.is_closed:
            run_id = run.run_id
            await self.stepper.step(run.session_id, lambda step: step.release(run_id), run_id=run_id)

    async def fold(self, turn: Turn) -> list[Run]:
        """Fold the follow-ups that may join the turn."""
        return await self.turns.fold(turn)

    def foldable(self, turn: Turn) -> list[Run]:
        """Return what a fold would take into the turn, as far as this process knows."""
        return self.turns.foldable(turn)

    async def list_messages(self, session_id: str) -> ListOfMessages:
        """Return what the ledger holds of the session."""
        await self.stepper.ready()
        return await self.ledger.messages(session_id, None, None)

    # What the stepper needs; see `StepHost`.

    def opened(self) -> None:
        """Begin the background work."""
        self.recovery.start()
        guard("listening to the ledger", self.ledger.listen, self._wake)  # a failure costs only hints

    async def until_joined(self) -> None:
        """Wait until a step may be sent that must not overtake a subscription."""
        await self.feed.until_joined()

    def perform(self, step: Step, decision: Decision) -> None:
        """Perform what a saved step has decided: RunCompletes, interrupts, the start of a turn."""
        assert decision.changes is not None
        turn = self.turns.turn_of(step.row.fence)
        self.runs.accept(step)
        self.runs.see(step, decision.changes.after.version)
        for run in step.published:
            assert run.complete is not None
            self.runs.complete(run.complete, decision.position, turn)
        if turn is not None:
            self.turns.see(step, turn)
        if step.interrupted:
            self.turns.cover(step.row.fence, step.row.owner)
        if step.started is not None and step.owner == self.stepper.name:
            self.turns.start(step, decision.position)
        self._tell_others(step)

    def _tell_others(self, step: Step) -> None:
        """Hint to the processes that the step concerns that they should look soon."""
        self.feed.wake()
        others = {step.rows[run.run_id].holder for run in step.published}
        if step.interrupted and step.row.owner is not None:
            others.add(step.row.owner)
        others.discard(self.stepper.name)
        is_unowned = step.core.turn is not None and step.owner is None
        if others or is_unowned:
            self.ledger.hint(set() if is_unowned else others)

    def lost_name(self, name: int) -> None:
        """Give up everything that was held under the name."""
        lost = counted(len(self.turns.owned), "turn")
        log_error(None, "worker %d has lost its lease and gives up %s", name, lost)
        self.turns.give_up_all()

    def lost_ledger(self, why: LedgerGone) -> None:
        """Give up every turn, because outcomes cannot be put on record, and fail the waits for runs."""
        log_error(None, "%s (turns given up here: %d)", why, len(self.turns.owned))
        self.turns.give_up_all()
        self.runs.wake_all()

    def _wake(self) -> None:
        """Look soon: another process may have done something."""
        self.recovery.wake()
        self.feed.wake()

    def _leave_to_hook(self, run_id: str, position: int) -> None:
        self.feed.leave_to_hook(run_id, position)

    # Waits of a runner for its own session.

    async def blocks(self, run: Run) -> bool:
        """Ask the ledger whether the run waits for the active turn; what is known here may be out of date."""
        (loaded,) = await self.ledger.view(run.session_id)
        for row in loaded.runs:
            if row.run_id == run.run_id:
                if row.state is ACCEPTED:
                    return not row.covered and (loaded.session is None or row.seq > loaded.session.mark)
                return row.state is not CANCEL_ON_ENTRY
        return False

    async def knows(self, run_id: str) -> bool:
        """Ask the ledger whether there is a run of this id."""
        return bool(await self.ledger.find([run_id]))
