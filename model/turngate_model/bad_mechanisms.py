"""The known-bad designs as mechanisms: each does one thing differently, as ``designs`` says of it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from turngate_model.designs import DESIGNS, built_in
from turngate_model.history import Clear, Complete, Enter, FinishReason
from turngate_model.lifecycle import DeclaredState
from turngate_model.mechanism import Action, Mechanism
from turngate_model.model_session import Half, Mode, ModelRun, ModelSession, ModelTurn


class NoAcceptTracking(Mechanism):
    def raise_mark(self, s: ModelSession) -> None:
        """Know nothing of accepted runs."""


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
        """Leave the mark where it is."""


MECHANISMS = built_in(DESIGNS, Mechanism, globals())
"""The flawed mechanism of each design of a dispatcher in memory."""
