"""The known-bad designs as mechanisms: each does one thing differently, as ``designs`` says of it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from turngate_model.designs import DESIGNS, LINE_DESIGNS, built_in
from turngate_model.history import Clear, Complete, Edit, Enter, FinishReason, Hold, Move, Resume
from turngate_model.lifecycle import DeclaredState
from turngate_model.mechanism import Action, Mechanism
from turngate_model.model_session import Half, Mode, ModelRun, ModelSession, ModelTurn


class NoAcceptTracking(Mechanism):
    def raise_mark(self, s: ModelSession) -> None:
        """Ignore accepted runs."""


class PendingFlag(Mechanism):
    pending_is = "flag"

    def raise_mark(self, s: ModelSession) -> None:
        s.pending = int(bool(s.accepted))

    def is_covered(self, s: ModelSession, run: ModelRun) -> bool:
        flag, s.pending = s.pending, 0
        return bool(flag) or run.name in s.singled_out


class PendingCount(Mechanism):
    pending_is = "count"

    def raise_mark(self, s: ModelSession) -> None:
        s.pending = len(s.accepted)

    def is_covered(self, s: ModelSession, run: ModelRun) -> bool:
        unit = min(s.pending, 1)
        s.pending -= unit
        return bool(unit) or run.name in s.singled_out


class HastyClear(Mechanism):
    def lower_mark(self, s: ModelSession) -> None:
        s.mark = 0

    def hand_off(self, s: ModelSession, turn: ModelTurn) -> None:
        s.mark = 0
        super().hand_off(s, turn)


class SilentEntry(Mechanism):
    def settle(self, s: ModelSession, run: ModelRun, ok: bool) -> None:
        self.record([run], "canceled", ok)
        s.entering.remove(run)


class UnlockedDrain(Mechanism):
    def fold(self, s: ModelSession, turn: ModelTurn) -> None:
        taken = tuple(itertools.takewhile(lambda run: run.name in s.foldable, s.queue))
        del s.queue[: len(taken)]
        s.unfinished.append(Half("now look at the mark, and fold", taken))
        turn.writing = "paused"

    def second_half(self, s: ModelSession, half: Half) -> None:
        turn = s.turns[0]
        turn.writing = ""
        for run in half.runs:
            if not self.is_covered(s, run):
                self.join(s, turn, run)


class SilentDrop(Mechanism):
    def drop(self, s: ModelSession, runs: list[ModelRun], *, cancelled: bool) -> None:
        if cancelled:
            s.queue = [run for run in s.queue if run not in runs]
        else:
            super().drop(s, runs, cancelled=cancelled)


class SilentFold(Mechanism):
    def complete_turn(self, s: ModelSession, turn: ModelTurn, error: str | None) -> None:
        super().complete_turn(s, ModelTurn(turn.lead, [], turn.cancelled, turn.writing), error)


class SwallowedOuter(Mechanism):
    def complete_turn(self, s: ModelSession, turn: ModelTurn, error: str | None) -> None:
        if not s.queue:
            super().complete_turn(s, turn, error)


class StrandedQueue(Mechanism):
    def hand_off(self, s: ModelSession, turn: ModelTurn) -> None:
        if turn.writing == "end_turn":
            super().hand_off(s, turn)
        else:
            s.turns.remove(turn)
            s.active = ""


class IdleGap(Mechanism):
    def is_occupied(self, s: ModelSession) -> bool:
        return bool(s.active)

    def hand_off(self, s: ModelSession, turn: ModelTurn) -> None:
        s.turns.remove(turn)
        s.active = ""
        if s.queue:
            s.unfinished.append(Half("choose the successor"))

    def second_half(self, s: ModelSession, half: Half) -> None:
        self.start_next(s)


class UnserializedEntry(Mechanism):
    def enter(self, s: ModelSession, run: ModelRun) -> None:
        if self.is_covered(s, run) or self.is_occupied(s):
            super().enter(s, run)
        else:
            self.leave_accepted(s, run)
            s.unfinished.append(Half("having seen an idle session, start", (run,)))

    def second_half(self, s: ModelSession, half: Half) -> None:
        self.start(s, half.runs[0])
        self.see(Enter(half.runs[0].name, DeclaredState.ACTIVE))


class BlindRelease(Mechanism):
    def hand_off(self, s: ModelSession, turn: ModelTurn) -> None:
        super().hand_off(s, turn)
        if s.active:
            s.unfinished.append(Half("remove the active entry of the session"))

    def second_half(self, s: ModelSession, half: Half) -> None:
        s.active = ""


class UnlockedClear(Mechanism):
    def clear(self, s: ModelSession) -> None:
        self.see(Clear())
        s.unfinished.append(Half("delete the queue that was read:", tuple(s.queue)))

    def second_half(self, s: ModelSession, half: Half) -> None:
        s.queue.clear()
        for run in half.runs:
            self.see(Complete(run.name, False, "cleared from the queue"))

    def actions(self, s: ModelSession, complete: list[str]) -> Iterator[Action]:
        """Leave out a second clear while the first is unfinished: one is enough to break the design."""
        return (each for each in super().actions(s, complete) if each.name != "clear" or not s.unfinished)


class Untracked(Mechanism):
    modes: tuple[Mode, ...] = (*Mechanism.modes, "in-process")

    def accept(self, s: ModelSession, run: ModelRun, mode: Mode) -> None:
        super().accept(s, ModelRun(run.name, 0) if mode == "in-process" else run, mode)

    def is_covered(self, s: ModelSession, run: ModelRun) -> bool:
        return run.name in s.singled_out or (s.mark > 0 and run.seq <= s.mark)

    def enqueue(self, s: ModelSession, run: ModelRun) -> None:
        s.queue.append(run)


class LateMark(Untracked):
    def raise_mark(self, s: ModelSession) -> None:
        if s.accepted and not s.unfinished:
            s.unfinished.append(Half("set the mark, having seen an accepted run", mark=s.in_flight[-1].seq))

    def second_half(self, s: ModelSession, half: Half) -> None:
        s.mark = max(s.mark, half.mark)


class LateOwnComplete(Mechanism):
    def complete_turn(self, s: ModelSession, turn: ModelTurn, error: str | None) -> None:
        if s.queue:
            s.unfinished.append(
                Half("publish the RunComplete held back:", tuple(turn.runs), int(turn.cancelled))
            )
        else:
            super().complete_turn(s, turn, error)

    def can_do_second_half(self, s: ModelSession, half: Half) -> bool:
        return not s.active

    def second_half(self, s: ModelSession, half: Half) -> None:
        for run in half.runs:
            self.see(Complete(run.name, bool(half.mark)))


class PublishFirst(Mechanism):
    def end(self, s: ModelSession, turn: ModelTurn, outcome: FinishReason) -> None:
        super().end(s, turn, outcome)
        self.complete_turn(s, turn, None)

    def written(self, s: ModelSession, turn: ModelTurn, ok: bool) -> None:
        self.record(turn.runs, turn.writing, ok)
        self.hand_off(s, turn)


class ReusedId(Mechanism):
    def again(self, s: ModelSession, run: ModelRun) -> None:
        if s.accepted.count(run) == 1:
            s.accepted.append(run)


class LeakySession(Mechanism):
    def lower_mark(self, s: ModelSession) -> None:
        """Do not raise the mark."""


# Holding, moving and editing what waits.


class HoldFlagConsumed(Mechanism):
    pending_is = "flag"

    def hold(self, s: ModelSession) -> None:
        self.see(Hold())
        s.pending = int(bool(self.line(s)))

    def is_occupied(self, s: ModelSession) -> bool:
        flag = 0 if s.active else s.pending
        s.pending -= flag
        return bool(s.active or flag)

    def start_next(self, s: ModelSession) -> None:
        if not s.pending:
            super().start_next(s)
        s.pending = 0


class HoldPoisonsNew(Mechanism):
    pending_is = "flag"

    def hold(self, s: ModelSession) -> None:
        self.see(Hold())
        s.pending = int(bool(s.in_flight))

    def is_held(self, s: ModelSession, run: ModelRun) -> bool:
        return bool(s.pending) or super().is_held(s, run)

    def resume(self, s: ModelSession) -> None:
        s.pending = 0
        super().resume(s)


class HoldForgetsAccepted(Mechanism):
    def hold(self, s: ModelSession) -> None:
        self.see(Hold())
        s.held.update(run.name for run in s.queue)


class HeldEscapesCancel(Mechanism):
    def drop(self, s: ModelSession, runs: list[ModelRun], *, cancelled: bool) -> None:
        super().drop(s, [run for run in runs if not self.is_held(s, run)], cancelled=cancelled)


class FoldTakesHeld(Mechanism):
    def fold(self, s: ModelSession, turn: ModelTurn) -> None:
        while s.queue and s.queue[0].name in s.foldable and not turn.cancelled:
            self.join(s, turn, s.queue.pop(0))


class StopInTwo(Mechanism):
    def stop(self, s: ModelSession) -> None:
        self.cover_active(s)
        self.see(Hold())
        if line := self.line(s):
            s.unfinished.append(Half("now hold", tuple(line)))

    def second_half(self, s: ModelSession, half: Half) -> None:
        s.held.update(run.name for run in half.runs if run in self.line(s))


class ResumeStartsTwo(Mechanism):
    def resume(self, s: ModelSession) -> None:
        self.see(Resume())
        s.held.clear()
        self.start_next(s)


class ResumeLost(Mechanism):
    """Whether all that is queued is held is looked at when the runner returns, not when the turn ends."""

    def end(self, s: ModelSession, turn: ModelTurn, outcome: FinishReason) -> None:
        super().end(s, turn, outcome)
        s.pending = int(bool(s.queue) and not self.first(s))

    def hand_off(self, s: ModelSession, turn: ModelTurn) -> None:
        forgets, s.pending = bool(s.pending), 0
        if forgets:
            s.turns.remove(turn)
            s.active = ""
        else:
            super().hand_off(s, turn)


class EditAfterStart(Mechanism):
    def edit(self, s: ModelSession, run: ModelRun, foldable: bool | None = None) -> None:
        s.unfinished.append(Half("having seen it wait, write the new prompt of", (run,)))

    def second_half(self, s: ModelSession, half: Half) -> None:
        self.see(Edit(half.runs[0].name))


class RequeueEdit(Mechanism):
    def edit(self, s: ModelSession, run: ModelRun, foldable: bool | None = None) -> None:
        if run in s.queue:
            s.unfinished.append(Half("put back into the queue, edited:", (run,)))

    def second_half(self, s: ModelSession, half: Half) -> None:
        s.queue = [run for run in s.queue if run not in half.runs] + list(half.runs)
        self.start_if_idle(s)


class MoveDuplicates(Mechanism):
    def move(self, s: ModelSession, run: ModelRun, before: ModelRun | None) -> None:
        if run in s.queue:
            self.see(Move(run.name, before.name if before else ""))
            place = s.queue.index(before) if before is not None and before in s.queue else len(s.queue)
            s.queue.insert(place, run)
            s.unfinished.append(Half("take it out of its old position:", (run,)))
        else:
            super().move(s, run, before)

    def second_half(self, s: ModelSession, half: Half) -> None:
        if half.runs[0] in s.queue:
            s.queue.remove(half.runs[0])


class CancelByPlace(Mechanism):
    def is_covered(self, s: ModelSession, run: ModelRun) -> bool:
        return self.rank(s, run) <= s.mark or run.name in s.singled_out

    def lower_mark(self, s: ModelSession) -> None:
        if not any(self.rank(s, run) <= s.mark for run in s.accepted):
            s.mark = 0


class MadeUpRank(Mechanism):
    def move(self, s: ModelSession, run: ModelRun, before: ModelRun | None) -> None:
        if before is None:
            self.see(Move(run.name))
            s.ranks[run.name] = max(self.rank(s, each) for each in self.line(s)) + 1
            s.queue.sort(key=lambda queued: self.rank(s, queued))
        else:
            super().move(s, run, before)


class LateSteer(Mechanism):
    def drop_bound(self, s: ModelSession) -> None:
        s.bound.clear()


# Turns beside the lane.


class SecondLane(Mechanism):
    modes: tuple[Mode, ...] = (*Mechanism.modes, "in-process")

    def accept(self, s: ModelSession, run: ModelRun, mode: Mode) -> None:
        super().accept(s, run, mode)
        if mode == "in-process":
            self.leave_accepted(s, run)
            s.turns.append(ModelTurn(run))
            self.see(Enter(run.name, DeclaredState.ACTIVE))


class NestedTurn(Mechanism):
    """The runner waits for what it has put into its own queue, and so never returns."""

    def turn_actions(self, s: ModelSession, turn: ModelTurn) -> Iterator[Action]:
        waits = any(run.seq > turn.lead.seq for run in s.queue) and not turn.cancelled
        return (each for each in super().turn_actions(s, turn) if not waits or each.name != "end")


class BorrowedMarker(Mechanism):
    pending_is = "flag"

    def release(self, s: ModelSession, run: ModelRun) -> None:
        super().release(s, run)
        s.pending = int(bool(s.active))

    def drop(self, s: ModelSession, runs: list[ModelRun], *, cancelled: bool) -> None:
        s.pending = int(bool(s.active and (runs or s.pending)))
        super().drop(s, runs, cancelled=cancelled)

    def complete_turn(self, s: ModelSession, turn: ModelTurn, error: str | None) -> None:
        if not s.pending:
            super().complete_turn(s, turn, error)
        s.pending = 0


class BorrowedContext(Mechanism):
    def hand_off(self, s: ModelSession, turn: ModelTurn) -> None:
        super().hand_off(s, turn)
        if s.turns:
            s.turns[0].cancelled = turn.cancelled


class LastWriteWins(Mechanism):
    def cover(self, turn: ModelTurn) -> None:
        if turn.writing and not turn.cancelled:
            for run in turn.runs:
                self.see(Complete(run.name, True))
        super().cover(turn)


MECHANISMS = built_in(DESIGNS, Mechanism, globals())
"""The flawed mechanism of each design of a dispatcher in memory."""
LINE_MECHANISMS = built_in(LINE_DESIGNS, Mechanism, globals())
"""The flawed mechanism of each design of holding, moving and editing, and of turns beside the lane."""
EVERY_MECHANISM = MECHANISMS | LINE_MECHANISMS
