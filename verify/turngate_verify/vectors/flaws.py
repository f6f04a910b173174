"""What the vectors must refute: the known-bad designs that the port can show, and a flaw for other promises.

The known-bad designs break some promises only in a race within one operation, and others not at all. So the
catalogue has small flaws as well, such that each promise that the port can show is broken by one of them.
"""

from __future__ import annotations

from typing import Any

from turngate_model.bad_mechanisms import MECHANISMS
from turngate_model.designs import SMALL_FLAWS, built_in
from turngate_model.history import Handoff
from turngate_model.mechanism import Mechanism
from turngate_model.model_session import Mode, ModelRun, ModelSession, ModelTurn

_APART = "but the operations of a vector come one by one"
UNSHOWN = {
    "unlocked-drain": f"a cancel would have to come in the middle of a fold, {_APART}",
    "idle-gap": f"a run would have to enter in the middle of a handoff, {_APART}",
    "unserialized-entry": f"a run would have to enter while another does, {_APART}",
    "unlocked-clear": f"a run would have to enter in the middle of a clear, {_APART}",
    "late-mark": f"a handle would have to close in the middle of a cancel, {_APART}",
    "untracked": "the port has one way to accept a prompt, and the design needs one more, without a sequence",
    "reused-id": "the port accepts every run once",
    "leaky-session": "a program shows what happens, not what is held in memory; but see stays-busy",
}
"""The known-bad designs that no program at the port can show, and why."""


class LastInFirstOut(Mechanism):
    def start_next(self, s: ModelSession) -> None:
        s.queue.reverse()
        super().start_next(s)
        s.queue.reverse()


class FoldsTheLast(Mechanism):
    def fold(self, s: ModelSession, turn: ModelTurn) -> None:
        if s.queue:
            self.join(s, turn, s.queue.pop())


class IdlePoison(Mechanism):
    def raise_mark(self, s: ModelSession) -> None:
        super().raise_mark(s)
        if not s.in_flight:
            s.pending = 1

    def is_covered(self, s: ModelSession, run: ModelRun) -> bool:
        flag, s.pending = s.pending, 0
        return bool(flag) or super().is_covered(s, run)


class KeepsTheQueue(Mechanism):
    def drop(self, s: ModelSession, runs: list[ModelRun], *, cancelled: bool) -> None:
        if not cancelled:
            super().drop(s, runs, cancelled=cancelled)


class LetsTheTurnRun(Mechanism):
    def interrupt(self, s: ModelSession) -> None:
        """Let it run."""


class OneLane(Mechanism):
    def is_occupied(self, s: ModelSession) -> bool:
        return super().is_occupied(s) or self.common not in (0, self.session + 1)

    def start(self, s: ModelSession, run: ModelRun) -> None:
        super().start(s, run)
        self.common = self.session + 1

    def hand_off(self, s: ModelSession, turn: ModelTurn) -> None:
        self.common = 0
        super().hand_off(s, turn)


class SharedMark(Mechanism):
    def raise_mark(self, s: ModelSession) -> None:
        super().raise_mark(s)
        self.common = max(self.common, s.mark)

    def is_covered(self, s: ModelSession, run: ModelRun) -> bool:
        return super().is_covered(s, run) or run.seq <= self.common


class SilentClear(Mechanism):
    def drop(self, s: ModelSession, runs: list[ModelRun], *, cancelled: bool) -> None:
        if cancelled:
            super().drop(s, runs, cancelled=cancelled)
        else:
            s.queue.clear()


class ClearIsCancel(Mechanism):
    def clear(self, s: ModelSession) -> None:
        super().clear(s)
        self.interrupt(s)


class CompletesTwice(Mechanism):
    def complete_turn(self, s: ModelSession, turn: ModelTurn, error: str | None) -> None:
        super().complete_turn(s, turn, error)
        if turn.writing == "error":
            super().complete_turn(s, turn, error)


class LateRetry(Mechanism):
    def hand_off(self, s: ModelSession, turn: ModelTurn) -> None:
        super().hand_off(s, turn)
        if turn.writing == "error" and not s.active:
            self.start(s, turn.lead)
            self.see(Handoff(turn.lead.name))


class WrongRecord(Mechanism):
    def record(self, runs: list[ModelRun], reason: Any, ok: bool) -> None:
        super().record(runs, "end_turn" if reason == "canceled" else reason, ok)


class DroppedOnRecord(Mechanism):
    def drop(self, s: ModelSession, runs: list[ModelRun], *, cancelled: bool) -> None:
        if cancelled:
            self.record(runs, "canceled", ok=True)
        super().drop(s, runs, cancelled=cancelled)


class CancelsTheSession(Mechanism):
    def cancel_run(self, s: ModelSession, run: ModelRun) -> None:
        self.cancel(s)


class KeepsTheQueued(Mechanism):
    def cancel_run(self, s: ModelSession, run: ModelRun) -> None:
        if run not in s.queue:
            super().cancel_run(s, run)


class InterruptsItself(Mechanism):
    def accept(self, s: ModelSession, run: ModelRun, mode: Mode) -> None:
        super().accept(s, run, mode)
        if mode == "interrupt":
            s.mark = run.seq


class NeverRejects(Mechanism):
    @staticmethod
    def is_busy(_: ModelSession) -> bool:
        return False


class StaysBusy(Mechanism):
    def accept(self, s: ModelSession, run: ModelRun, mode: Mode) -> None:
        super().accept(s, run, mode)
        s.pending = 1

    @staticmethod
    def is_busy(s: ModelSession) -> bool:
        return bool(s.pending)


FLAWS = built_in(SMALL_FLAWS, Mechanism, globals())
"""The flaws beside the known-bad designs, by name."""

REFUTABLE: dict[str, type[Mechanism]] = {
    name: mechanism for name, mechanism in MECHANISMS.items() if name not in UNSHOWN
} | FLAWS
"""Everything that the vectors refute, by name."""
