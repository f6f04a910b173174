"""What the vectors must refute: the known-bad designs that the port can show, and a flaw for other promises.

The known-bad designs break some promises only in a race within one operation, and others not at all. So there
are more flaws here, small ones, such that each promise that the port can show has somebody who breaks it.
"""

from __future__ import annotations

from typing import Any

from turngate_model.designs import DESIGNS
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
    """The newest queued run goes first."""

    def start_next(self, s: ModelSession) -> None:
        s.queue.reverse()
        super().start_next(s)
        s.queue.reverse()


class FoldsTheLast(Mechanism):
    """A fold takes the newest queued run only."""

    def fold(self, s: ModelSession, turn: ModelTurn) -> None:
        if s.queue:
            self.join(s, turn, s.queue.pop())


class IdlePoison(Mechanism):
    """A cancel of an idle session is remembered, and cancels the next run that enters."""

    def raise_mark(self, s: ModelSession) -> None:
        super().raise_mark(s)
        if not s.in_flight:
            s.pending = 1

    def is_covered(self, s: ModelSession, run: ModelRun) -> bool:
        flag, s.pending = s.pending, 0
        return bool(flag) or super().is_covered(s, run)


class KeepsTheQueue(Mechanism):
    """A cancel ends the active turn, and the queue goes on."""

    def drop(self, s: ModelSession, runs: list[ModelRun], *, cancelled: bool) -> None:
        if not cancelled:
            super().drop(s, runs, cancelled=cancelled)


class LetsTheTurnRun(Mechanism):
    """A cancel drops the queue, and the active turn goes on."""

    def interrupt(self, s: ModelSession) -> None:
        """Let it run."""


class OneLane(Mechanism):
    """All sessions share one lane: a run waits while another session has a turn."""

    def is_occupied(self, s: ModelSession) -> bool:
        return super().is_occupied(s) or self.common not in (0, self.session + 1)

    def start(self, s: ModelSession, run: ModelRun) -> None:
        super().start(s, run)
        self.common = self.session + 1

    def hand_off(self, s: ModelSession, turn: ModelTurn) -> None:
        self.common = 0
        super().hand_off(s, turn)


class SharedMark(Mechanism):
    """One cancel mark for all sessions: a cancel covers what others have accepted."""

    def raise_mark(self, s: ModelSession) -> None:
        super().raise_mark(s)
        self.common = max(self.common, s.mark)

    def is_covered(self, s: ModelSession, run: ModelRun) -> bool:
        return super().is_covered(s, run) or run.seq <= self.common


class SilentClear(Mechanism):
    """Queued runs removed by a clear get no RunComplete."""

    def drop(self, s: ModelSession, runs: list[ModelRun], *, cancelled: bool) -> None:
        if cancelled:
            super().drop(s, runs, cancelled=cancelled)
        else:
            s.queue.clear()


class ClearIsCancel(Mechanism):
    """A clear ends the active turn as well."""

    def clear(self, s: ModelSession) -> None:
        super().clear(s)
        self.interrupt(s)


class CompletesTwice(Mechanism):
    """A turn that fails gets a RunComplete for the failure, and another for the end."""

    def complete_turn(self, s: ModelSession, turn: ModelTurn, error: str | None) -> None:
        super().complete_turn(s, turn, error)
        if turn.writing == "error":
            super().complete_turn(s, turn, error)


class LateRetry(Mechanism):
    """A turn that fails is started again after its RunComplete."""

    def hand_off(self, s: ModelSession, turn: ModelTurn) -> None:
        super().hand_off(s, turn)
        if turn.writing == "error" and not s.active:
            self.start(s, turn.lead)
            self.see(Handoff(turn.lead.name))


class WrongRecord(Mechanism):
    """The messages of a cancelled turn say that it ended well."""

    def record(self, runs: list[ModelRun], reason: Any, ok: bool) -> None:
        super().record(runs, "end_turn" if reason == "canceled" else reason, ok)


class DroppedOnRecord(Mechanism):
    """A run dropped from the queue by a cancel leaves messages."""

    def drop(self, s: ModelSession, runs: list[ModelRun], *, cancelled: bool) -> None:
        if cancelled:
            self.record(runs, "canceled", ok=True)
        super().drop(s, runs, cancelled=cancelled)


class CancelsTheSession(Mechanism):
    """A cancel of one run cancels its whole session."""

    def cancel_run(self, s: ModelSession, run: ModelRun) -> None:
        self.cancel(s)


class KeepsTheQueued(Mechanism):
    """A cancel of one run is forgotten if the run is queued."""

    def cancel_run(self, s: ModelSession, run: ModelRun) -> None:
        if run not in s.queue:
            super().cancel_run(s, run)


class InterruptsItself(Mechanism):
    """A prompt that interrupts is cancelled by its own cancel."""

    def accept(self, s: ModelSession, run: ModelRun, mode: Mode) -> None:
        super().accept(s, run, mode)
        if mode == "interrupt":
            s.mark = run.seq


class NeverRejects(Mechanism):
    """A prompt that is to be refused when its session is busy is queued."""

    @staticmethod
    def is_busy(_: ModelSession) -> bool:
        return False


class StaysBusy(Mechanism):
    """A session that had a run once is taken for a busy one ever after."""

    def accept(self, s: ModelSession, run: ModelRun, mode: Mode) -> None:
        super().accept(s, run, mode)
        s.pending = 1

    @staticmethod
    def is_busy(s: ModelSession) -> bool:
        return bool(s.pending)


FLAWS: dict[str, type[Mechanism]] = {
    "last-in-first-out": LastInFirstOut,
    "folds-the-last": FoldsTheLast,
    "idle-poison": IdlePoison,
    "keeps-the-queue": KeepsTheQueue,
    "lets-the-turn-run": LetsTheTurnRun,
    "one-lane": OneLane,
    "shared-mark": SharedMark,
    "silent-clear": SilentClear,
    "clear-is-cancel": ClearIsCancel,
    "completes-twice": CompletesTwice,
    "late-retry": LateRetry,
    "cancels-the-session": CancelsTheSession,
    "keeps-the-queued": KeepsTheQueued,
    "interrupts-itself": InterruptsItself,
    "never-rejects": NeverRejects,
    "stays-busy": StaysBusy,
    "wrong-record": WrongRecord,
    "dropped-on-record": DroppedOnRecord,
}
"""The flaws beside the known-bad designs, by name."""

REFUTABLE: dict[str, type[Mechanism]] = {
    name: design.mechanism for name, design in DESIGNS.items() if name not in UNSHOWN
} | FLAWS
"""Everything that the vectors refute, by name."""


def sentence(name: str) -> str:
    """Return what is wrong with a design or a flaw, in one sentence."""
    made = DESIGNS[name].mechanism if name in DESIGNS else FLAWS[name]
    return str(made.__doc__).splitlines()[0]
