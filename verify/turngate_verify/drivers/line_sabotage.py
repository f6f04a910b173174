"""Sabotage of the line: the known-bad designs of holds, moves and edits, built into the real dispatcher."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

from turngate import Message, Run, Turn
from turngate._core import (
    ACCEPTED,
    ACTIVE,
    QUEUED,
    SETTLING,
    Decided,
    Edit,
    Effect,
    Publish,
    RunRecord,
    SessionCore,
    TurnRecord,
)
from turngate._events import Outcome
from turngate_model import LINE_DESIGNS
from turngate_verify.drivers.sabotage import Core, PublishesAgain, Sabotage, Sabotaged, sabotages


class HoldFlagConsumed(Sabotaged):
    """A hold is a flag that the first run which would start consumes."""

    class core(Core):
        flag = False

        def hold(self, run: RunRecord | None = None) -> tuple[list[RunRecord], Decided]:
            if run is not None:
                return super().hold(run)
            self._note("hold")
            self.flag = bool(self.line())
            return [run for run in self.line() if not run.held], self._decided([])

        def _start_next(self) -> list[Effect]:
            flag, self.flag = self.flag, False
            return [] if flag else super()._start_next()


class HoldPoisonsNew(Sabotaged):
    """A hold is a flag of the session: a prompt accepted later is held too."""

    class core(Core):
        flag = False

        def accept(self, run: RunRecord, queue_limit: int, into: str | None = None) -> Decided:
            decided = super().accept(run, queue_limit, into)
            run.held = self.flag
            return decided

        def hold(self, run: RunRecord | None = None) -> tuple[list[RunRecord], Decided]:
            self.flag = self.flag or not self.is_quiet()
            return super().hold(run)

        def resume(self, run: RunRecord | None = None) -> tuple[list[RunRecord], Decided]:
            self.flag = False
            return super().resume(run)


class HoldForgetsAccepted(Sabotaged):
    """A hold takes the queue and forgets what is accepted and has not entered."""

    class core(Core):
        def hold(self, run: RunRecord | None = None) -> tuple[list[RunRecord], Decided]:
            if run is not None:
                return super().hold(run)
            self._note("hold")
            said = [run for run in self.line() if not run.held]
            self._set_held(self.queue.in_order(), held=True)
            return said, self._decided([])


class HeldEscapesCancel(Sabotaged):
    """A cancel drops what can run and leaves what is held."""

    class core(Core):
        def _drop_queue(self, outcome: Outcome, error: str | None = None) -> list[Effect]:
            held = [run for run in self.queue.in_order() if run.held]
            for run in held:
                self.queue.take(run)
            effects = super()._drop_queue(outcome, error)
            self.queue.refill(held)
            return effects


class FoldTakesHeld(Sabotaged):
    """A fold takes from the head of the queue, held or not."""

    class core(Core):
        def fold(self, turn: TurnRecord) -> tuple[list[RunRecord], Decided]:
            if not turn.covered:
                self._set_held(self.queue.in_order(), held=False)
            return super().fold(turn)


class StopInTwo(Sabotaged):
    """Stop is a cancel of the turn and then a hold."""

    race = True

    class core(Core):
        def stop(self, turn: str | None = None) -> tuple[list[RunRecord], list[RunRecord], Decided]:
            covered, held, decided = super().stop(turn)
            self._set_held(held, held=False)
            self.later(lambda: self.hold_what_still_waits(held))
            return covered, held, decided

        def hold_what_still_waits(self, held: list[RunRecord]) -> Decided:
            self._set_held([run for run in held if run.state in (ACCEPTED, QUEUED)], held=True)
            return self._decided([])


class ResumeStartsTwo(Sabotaged):
    """Resume starts a run without asking whether a turn is active."""

    class core(Core):
        def resume(self, run: RunRecord | None = None) -> tuple[list[RunRecord], Decided]:
            turn, self.turn = self.turn, None
            resumed, decided = super().resume(run)
            self.turn = self.turn or turn
            return resumed, decided


class ResumeLost(Sabotaged):
    """A resume while a turn settles is forgotten."""

    class core(Core):
        nothing_free = False

        def end(self, turn: TurnRecord, text: str, error: str | None, kept: str | None) -> None:
            super().end(turn, text, error, kept)
            if turn is self.turn:
                self.nothing_free = bool(self.queue) and not self.queue.free

        def written(
            self, turn: TurnRecord, messages: tuple[Message, ...], failure: str | None
        ) -> Decided | None:
            if turn is self.turn and self.nothing_free:
                return self.end_without_handoff(turn, messages, failure)
            return super().written(turn, messages, failure)


class EditAfterStart(Sabotaged):
    """An edit is accepted although the runner has been called."""

    class core(Core):
        def edit(self, run: RunRecord, changes: Edit) -> Decided:
            state, run.state = run.state, QUEUED
            decided = super().edit(run, changes)
            run.state = state
            return decided


class RequeueEdit(Sabotaged):
    """An edit takes the run back and submits it again."""

    race = True

    class core(Core):
        def edit(self, run: RunRecord, changes: Edit) -> Decided:
            was_queued = run.state is QUEUED
            decided = super().edit(run, changes)
            if was_queued:
                self.later(lambda: self.submit_again(run))
            return decided

        def submit_again(self, run: RunRecord) -> Decided:
            if run.state is not QUEUED:
                run.state = QUEUED
                self.queue.add(run)
            return self._decided([] if self.turn is not None else self._start_next())


class MoveDuplicates(Sabotaged):
    """A move inserts before it removes."""

    race = True

    class core(Core):
        def _move_in_line(self, run: RunRecord, before: RunRecord | Literal["first", "last"]) -> None:
            if run.state is QUEUED and not run.held:
                was = run.rank
                self.queue.free[was + 1_000_000] = run
                self.queue._heap.append(was + 1_000_000)
                self.later(lambda: self.remove(was))
            super()._move_in_line(run, before)

        def remove(self, rank: int) -> Decided:
            self.queue.free.pop(rank + 1_000_000, None)
            return self._decided([])


class CancelByPlace(Sabotaged):
    """The mark is compared with the position instead of the sequence."""

    class core(Core):
        def covers(self, run: RunRecord) -> bool:
            return run.covered or run.rank <= self.mark

        def _leave_accepted(self, run: RunRecord) -> None:
            del self.accepted[run.seq]
            if not any(each.rank <= self.mark for each in self.accepted.values()):
                self.mark = 0


class MadeUpRank(Sabotaged):
    """A move to the end takes the highest rank plus one."""

    class core(Core):
        def _move_in_line(self, run: RunRecord, before: RunRecord | Literal["first", "last"]) -> None:
            super()._move_in_line(run, before)
            if before == "last":
                # One more than that, so that no two runs have the same rank at first.
                run.rank = max(each.rank for each in self.line()) + 2
                self.queue.refill([each for each in self.line() if each.state is QUEUED])


class LateSteer(Sabotaged):
    """A prompt for one turn is folded into the next."""

    class core(Core):
        def _drop_bound(self, turn: TurnRecord) -> list[Effect]:
            for run in self.line():
                run.into = None
            return []


class SecondLane(Sabotaged):
    """Maintenance (compaction) runs beside the lane, without its lock."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.maintenance: set[RunRecord] = set()

    class core(Core):
        maintenance: set[RunRecord]

        def enter(self, run: RunRecord) -> Decided:
            if run.state is not ACCEPTED or run not in self.maintenance or self.covers(run):
                return super().enter(run)
            self._move(run, "enter", ACTIVE)
            self._leave_accepted(run)
            self.turn = TurnRecord(run)
            return self._decided([("start", self.turn)])

    def _new_core(self, session_id: str, message_prefix: str) -> SessionCore:
        core = super()._new_core(session_id, message_prefix)
        assert isinstance(core, SecondLane.core)
        core.maintenance = self.maintenance
        return core

    async def submit(self, *args: Any, **options: Any) -> Run:
        """Submit a prompt that takes no part in the lane."""
        run = await super().submit(*args, **options)
        self.maintenance.add(run.record)
        return run


class NestedTurn(Sabotaged):
    """A turn runs a queued one inside itself before it completes."""

    class effects_class(PublishesAgain):
        async def settle(self, turn: Turn, *, wait: bool) -> None:
            """Wait for the queued run, which waits for this turn."""
            core = self._sessions.cores[turn.run.session_id]
            if turn.record is core.turn and core.queue.free and not turn.covered:
                await asyncio.get_running_loop().create_future()
            await super().settle(turn, wait=wait)


class BorrowedMarker(Sabotaged):
    """A "published" marker of another run suppresses the fallback completion."""

    class core(Core):
        marker = False

        def _complete(
            self, run: RunRecord, trigger: str, outcome: Outcome, *args: Any, **options: Any
        ) -> Publish:
            self.marker = self.turn is not None and trigger in ("release", "drop")
            return super()._complete(run, trigger, outcome, *args, **options)

        def written(
            self, turn: TurnRecord, messages: tuple[Message, ...], failure: str | None
        ) -> Decided | None:
            if turn is self.turn and self.marker:
                turn.runs.clear()
            return super().written(turn, messages, failure)


class BorrowedContext(Sabotaged):
    """Queued runs live in the first caller's context, whose cancellation kills them."""

    class core(Core):
        def written(
            self, turn: TurnRecord, messages: tuple[Message, ...], failure: str | None
        ) -> Decided | None:
            mine = turn is self.turn
            decided = super().written(turn, messages, failure)
            if decided is not None and mine and self.turn is not None:
                self.turn.covered = turn.covered
            return decided


class LastWriteWins(Sabotaged):
    """A second completion overwrites the first."""

    class core(Core):
        def _cover_turn(self) -> list[Effect]:
            turn = self.turn
            if turn is None or turn.covered or turn.phase is not SETTLING:
                return super()._cover_turn()
            effects: list[Effect] = [self._complete(run, "finish", "cancelled") for run in turn.runs]
            for run in turn.runs:
                run.state = ACTIVE  # so that it is completed once more when it is written
            return effects + super()._cover_turn()


LINE_SABOTAGES: dict[str, Sabotage] = sabotages(LINE_DESIGNS, globals())
"""The designs of the line, by their names."""
