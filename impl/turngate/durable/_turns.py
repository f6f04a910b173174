"""The turns of this process, from the step that made each of them its own to the step that finishes it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from turngate._core import QUEUED, RUNNING, SETTLING, TurnRecord
from turngate._errors import TurnEnded
from turngate._handles import Run, Turn, TurnOutput
from turngate._log import log_error
from turngate._places import Places
from turngate._turn import TurnRunner
from turngate.durable._ledger import LedgerGone, NotStorable
from turngate.durable._records import ALL, Ask
from turngate.durable._step import Fenced

if TYPE_CHECKING:
    from turngate._handles import Home
    from turngate._runner import Called
    from turngate.durable._runs import KnownRuns
    from turngate.durable._step import Step
    from turngate.durable._stepper import Stepper
    from turngate.durable.feed import Feed

REFUSED_BY_LEDGER: Final = "the ledger refuses to store what the turn came to"
"""The error of a run whose text or data the ledger does not take."""


@dataclass(eq=False, slots=True)
class OwnedTurn:
    """A turn of this process, and what is known here of the queue behind it."""

    turn: Turn
    queue: dict[int, Run] = field(default_factory=dict)
    is_asked: bool = False
    """Whether the runner has asked who waits, so that it has to be looked at."""
    checkpoint: tuple[int, str | None] = (0, None)
    """How much of the text, and which data beside it, the ledger has."""

    def is_over(self) -> bool:
        """Say whether the runner is over, or will not be called."""
        return self.turn.record.phase is SETTLING or self.turn.given_up


class LedgerTurns:
    """Begins, covers, gives up and finishes the turns of this process; see `TurnHost`."""

    def __init__(self, home: Home, stepper: Stepper, runs: KnownRuns, feed: Feed, runner: Called) -> None:
        self.owned: dict[int, OwnedTurn] = {}
        """The turns of this process by their fences."""
        self.covered_early: set[int] = set()
        """Fences of turns that a cancel has covered before the step that starts them was answered."""
        limit = stepper.settings.turns_limit
        self.runner = TurnRunner(runner, stepper.loop, None if limit is None else Places(limit))
        self._home = home
        self._stepper = stepper
        self._runs = runs
        self._feed = feed
        self._poll = stepper.settings.poll
        self._has_places = limit is not None

    def turn_of(self, fence: int) -> Turn | None:
        """Return the turn of this process that has the fence."""
        owned = self.owned.get(fence)
        return None if owned is None else owned.turn

    # What steps and looks at the ledger bring about.

    def start(self, step: Step, position: int) -> None:
        """Run the turn that the step has started here."""
        assert step.started is not None
        members = [self._runs.seen(run, step.rows[run.run_id]) for run in step.started.runs]
        lead = members[0]
        output = TurnOutput(lead.session_id, lead.run_id, self._stepper.loop, self._feed.stream, members)
        record = TurnRecord(lead.record, covered=step.fence in self.covered_early)
        self.covered_early.discard(step.fence)
        turn = Turn(self._home, record, members, output, step.fence, step.attempts)
        owned = self.owned[turn.fence] = OwnedTurn(turn)
        for run in members:
            run.record.state = step.runs[run.run_id].state
            run.turn = turn
            run.listeners.wake()
        for waiting in step.core.queue.in_order():
            owned.queue[waiting.seq] = self._runs.seen(waiting, step.rows[waiting.run_id])
        self._feed.begin_turn(lead.run_id, position)
        self.runner.start(turn)

    def see(self, step: Step, turn: Turn) -> None:
        """Learn what a step has done to a turn of this process, and to the queue behind it."""
        core = step.core
        if core.turn is None or step.fence != turn.fence:
            self.let_go(turn)
            return
        owned = self.owned[turn.fence]
        for run_id, run in step.runs.items():
            if run.state is QUEUED:
                owned.queue[run.seq] = self._runs.seen(run, step.rows[run_id])
            else:
                owned.queue.pop(run.seq, None)
        joined = [self._runs.seen(run, step.rows[run.run_id]) for run in core.turn.runs]
        turn.join(joined[len(turn.members) :])

    def cover(self, fence: int, owner: int | None) -> None:
        """Interrupt the turn if it runs here; it may be that its start has not been answered yet."""
        turn = self.turn_of(fence)
        if turn is None:
            if owner == self._stepper.name:
                self.covered_early.add(fence)
        elif not turn.covered:
            turn.record.covered = True
            if turn.record.phase is RUNNING:
                self.runner.interrupt(turn)

    def give_up_all(self) -> None:
        """Stop the runners of all turns: they are no longer this process's."""
        for owned in [*self.owned.values()]:
            self.give_up(owned.turn)

    def give_up(self, turn: Turn) -> None:
        """Stop the runner of a turn that is no longer this process's."""
        turn.given_up = True
        self.let_go(turn)
        if turn.record.phase is RUNNING:
            self.runner.interrupt(turn)

    def let_go(self, turn: Turn) -> None:
        """Forget a turn that is over, or that another process has now."""
        self.owned.pop(turn.fence, None)
        for run in turn.members:
            run.turn = None
        self.runner.leave_line(turn)
        self._stepper.idle.wake()

    # What turns tell.

    async def begin(self, turn: Turn) -> bool:
        """Say whether the runner may be called; with places, note on record that it is about to be."""
        if self._has_places and not turn.covered:
            await self._begin_on_record(turn)
        if turn.covered or turn.given_up:
            return False
        turn.record.phase = RUNNING
        return True

    async def _begin_on_record(self, turn: Turn) -> None:
        """Note that the run does not wait for a place any more."""
        session_id, fence = turn.run.session_id, turn.fence
        while not turn.given_up and not turn.covered:
            try:
                begun = await self._stepper.step(session_id, lambda step: step.begin(fence), owner=True)
                turn.record.covered = turn.covered or not begun
            except (Fenced, LedgerGone):  # a cancel was first, and has settled it; or nothing can be done
                self.give_up(turn)
            except Exception as exc:  # the ledger cannot be reached, or is broken: both may pass
                if self._stepper.is_closed:
                    raise
                log_error(exc, "the turn of run %s cannot begin yet", turn.run.run_id)
                await asyncio.sleep(self._poll)
            else:
                return

    def end(self, turn: Turn, text: str | None, error: str | None) -> None:
        """Take what came of the runner."""
        record = turn.record
        record.phase = SETTLING
        record.text = "".join(turn.output.parts) if text is None else text
        record.error, record.kept = error, turn.output.kept

    async def settle(self, turn: Turn, *, wait: bool) -> None:
        """Have the outcome put on record, in a task that is never cancelled."""
        finishing = self._stepper.tasks.spawn(self._finish(turn))
        while wait and not finishing.done():
            try:
                await asyncio.shield(finishing)
            except asyncio.CancelledError:
                if finishing.cancelled():
                    raise

    def settle_at_once(self, turn: Turn) -> None:
        """Have the outcome put on record if the loop goes on; otherwise another process finds the turn."""
        if self._stepper.loop.is_running_here():
            self._stepper.tasks.spawn(self._finish(turn))

    async def _finish(self, turn: Turn) -> None:
        """Put the outcome on record: tried again as long as the turn is this process's."""
        record, run_id = turn.record, turn.run.run_id
        await self._feed.end_turn(run_id)
        ask = Ask(turn.run.session_id, 0, "", head=1)
        unwritten: str | None = None

        def finish(step: Step) -> None:
            step.finish(turn.fence, record.text, record.error, record.kept, unwritten)

        while not turn.given_up:
            try:
                await self._stepper.send(ask, finish, owner=True)
            except (Fenced, LedgerGone):
                break
            except NotStorable as exc:
                log_error(exc, "the outcome of run %s cannot be put on record as it is", run_id)
                if unwritten is not None:  # whatever it refuses, it is not what this turn came to
                    await asyncio.sleep(self._poll)
                elif record.error == REFUSED_BY_LEDGER:
                    unwritten = REFUSED_BY_LEDGER
                record.text, record.kept, record.error = "", None, REFUSED_BY_LEDGER
            except Exception as exc:
                log_error(exc, "the outcome of run %s is not on record yet", run_id)
                if not turn.given_up:
                    await asyncio.sleep(self._poll)
            else:
                return
        log_error(None, "the turn of run %s was given up: what it came to is thrown away", run_id)
        self.let_go(turn)

    # What runners ask for.

    async def fold(self, turn: Turn) -> list[Run]:
        """Take the follow-ups into the turn that may join it."""
        self._stepper.loop.check_loop()
        turn.output.check_open("fold into")
        session_id, fence = turn.run.session_id, turn.fence
        try:
            taken = await self._stepper.step(session_id, lambda step: step.fold(fence), head=ALL, owner=True)
        except Fenced:
            raise TurnEnded(f"fold into the turn of run {turn.run.run_id}, which was given up") from None
        joined = {run.run_id for run in taken}
        return [run for run in turn.members if run.run_id in joined]

    def foldable(self, turn: Turn) -> list[Run]:
        """Return what a fold would take into the turn, as far as this process knows."""
        self._stepper.loop.check_loop()
        turn.output.check_open("fold into")
        waiting: list[Run] = []
        owned = self.owned.get(turn.fence)
        if owned is not None and not turn.covered:
            owned.is_asked = True
            for _, run in sorted(owned.queue.items()):
                if run.when_busy != "fold":
                    break
                waiting.append(run)
        return waiting
