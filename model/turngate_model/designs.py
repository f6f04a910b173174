"""The known-bad designs: mechanisms that looked right to good engineers, and are not.

Each design is a subclass of the mechanism that does one thing differently. The first line of its docstring
says what. A checker must refute every one of them, or its verdict on the mechanism is worth nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from turngate_model.history import Clear, Complete, Enter, FinishReason
from turngate_model.lifecycle import DeclaredState
from turngate_model.mechanism import Action, Mechanism
from turngate_model.model_session import Half, Mode, ModelRun, ModelSession, ModelTurn
from turngate_model.properties import Property


class NoAcceptTracking(Mechanism):
    """Cancel looks at the active run only; a prompt accepted but not yet active escapes."""

    def raise_mark(self, s: ModelSession) -> None:
        """Know nothing of accepted runs."""


class PendingFlag(Mechanism):
    """One boolean "pending cancel" per session, consumed by the first run that enters."""

    pending_is = "flag"

    def raise_mark(self, s: ModelSession) -> None:
        s.pending = int(bool(s.accepted))

    def is_covered(self, s: ModelSession, run: ModelRun) -> bool:
        flag, s.pending = s.pending, 0
        return bool(flag) or run.name in s.singled_out


class PendingCount(Mechanism):
    """Cancel reserves one unit per accepted run, each entry consumes one."""

    pending_is = "count"

    def raise_mark(self, s: ModelSession) -> None:
        s.pending = len(s.accepted)

    def is_covered(self, s: ModelSession, run: ModelRun) -> bool:
        unit = min(s.pending, 1)
        s.pending -= unit
        return bool(unit) or run.name in s.singled_out


class HastyClear(Mechanism):
    """The mark is removed when any covered run has entered, or any turn ends."""

    def lower_mark(self, s: ModelSession) -> None:
        s.mark = 0

    def hand_off(self, s: ModelSession, turn: ModelTurn) -> None:
        s.mark = 0
        super().hand_off(s, turn)


class SilentEntry(Mechanism):
    """Cancel-on-entry returns without a RunComplete."""

    def settle(self, s: ModelSession, run: ModelRun, ok: bool) -> None:
        self.record([run], "canceled", ok)
        s.entering.remove(run)


class UnlockedDrain(Mechanism):
    """The queue is taken under the lock, the mark is looked at after it is released."""

    def fold(self, s: ModelSession, turn: ModelTurn) -> None:
        taken = tuple(itertools.takewhile(lambda run: run.name in s.foldable, s.queue))
        del s.queue[: len(taken)]
        s.unfinished.append(Half("now look at the mark, and fold", taken))
        turn.writing = "paused"

    def resume(self, s: ModelSession, half: Half) -> None:
        turn = s.turns[0]
        turn.writing = ""
        for run in half.runs:
            if not self.is_covered(s, run):
                self.join(s, turn, run)


class SilentDrop(Mechanism):
    """Queued runs removed by a cancel get no RunComplete."""

    def drop(self, s: ModelSession, runs: list[ModelRun], *, cancelled: bool) -> None:
        if cancelled:
            s.queue = [run for run in s.queue if run not in runs]
        else:
            super().drop(s, runs, cancelled=cancelled)


class SilentFold(Mechanism):
    """Folded runs get no RunComplete."""

    def complete_turn(self, s: ModelSession, turn: ModelTurn, error: str | None) -> None:
        super().complete_turn(s, ModelTurn(turn.lead, [], turn.cancelled, turn.writing), error)


class SwallowedOuter(Mechanism):
    """A finished run that hands off leaves its RunComplete to its successor."""

    def complete_turn(self, s: ModelSession, turn: ModelTurn, error: str | None) -> None:
        if not s.queue:
            super().complete_turn(s, turn, error)


class StrandedQueue(Mechanism):
    """Only a turn that ends well hands off; after an error or a cancel the queue just stays."""

    def hand_off(self, s: ModelSession, turn: ModelTurn) -> None:
        if turn.writing == "end_turn":
            super().hand_off(s, turn)
        else:
            s.turns.remove(turn)
            s.active = ""


class IdleGap(Mechanism):
    """The active entry is removed first, the successor chosen later."""

    def is_occupied(self, s: ModelSession) -> bool:
        return bool(s.active)

    def hand_off(self, s: ModelSession, turn: ModelTurn) -> None:
        s.turns.remove(turn)
        s.active = ""
        if s.queue:
            s.unfinished.append(Half("choose the successor"))

    def resume(self, s: ModelSession, half: Half) -> None:
        self.start_next(s)


class UnserializedEntry(Mechanism):
    """To ask whether the session is busy and to become active are two steps."""

    def enter(self, s: ModelSession, run: ModelRun) -> None:
        if self.is_covered(s, run) or self.is_occupied(s):
            super().enter(s, run)
        else:
            self.leave_accepted(s, run)
            s.unfinished.append(Half("having seen an idle session, start", (run,)))

    def resume(self, s: ModelSession, half: Half) -> None:
        self.start(s, half.runs[0])
        self.see(Enter(half.runs[0].name, DeclaredState.ACTIVE))


class BlindRelease(Mechanism):
    """A turn that ends removes whatever active entry it finds, its successor's too."""

    def hand_off(self, s: ModelSession, turn: ModelTurn) -> None:
        super().hand_off(s, turn)
        if s.active:
            s.unfinished.append(Half("remove the active entry of the session"))

    def resume(self, s: ModelSession, half: Half) -> None:
        s.active = ""


class UnlockedClear(Mechanism):
    """Clearing the queue reads it and deletes it in two steps."""

    def clear(self, s: ModelSession) -> None:
        self.see(Clear())
        s.unfinished.append(Half("delete the queue that was read:", tuple(s.queue)))

    def resume(self, s: ModelSession, half: Half) -> None:
        s.queue.clear()
        for run in half.runs:
            self.see(Complete(run.name, False, "cleared from the queue"))

    def actions(self, s: ModelSession, complete: list[str]) -> Iterator[Action]:
        """Leave out a second clear while the first is unfinished: one is enough to break the design."""
        return (each for each in super().actions(s, complete) if each.name != "clear" or not s.unfinished)


class Untracked(Mechanism):
    """In-process prompts carry sequence 0 and are covered by any mark present."""

    modes: tuple[Mode, ...] = (*Mechanism.modes, "in-process")

    def accept(self, s: ModelSession, run: ModelRun, mode: Mode) -> None:
        super().accept(s, ModelRun(run.name, 0) if mode == "in-process" else run, mode)

    def is_covered(self, s: ModelSession, run: ModelRun) -> bool:
        return run.name in s.singled_out or (s.mark > 0 and run.seq <= s.mark)

    def enqueue(self, s: ModelSession, run: ModelRun) -> None:
        s.queue.append(run)


class LateMark(Untracked):
    """Cancel reads "something is accepted", the handle closes, cancel then sets the mark."""

    def raise_mark(self, s: ModelSession) -> None:
        if s.accepted and not s.unfinished:
            s.unfinished.append(Half("set the mark, having seen an accepted run", mark=s.in_flight[-1].seq))

    def resume(self, s: ModelSession, half: Half) -> None:
        s.mark = max(s.mark, half.mark)


class LateOwnComplete(Mechanism):
    """A run's RunComplete is held back until the runs queued behind it are done."""

    def complete_turn(self, s: ModelSession, turn: ModelTurn, error: str | None) -> None:
        if s.queue:
            s.unfinished.append(
                Half("publish the RunComplete held back:", tuple(turn.runs), int(turn.cancelled))
            )
        else:
            super().complete_turn(s, turn, error)

    def resumable(self, s: ModelSession, half: Half) -> bool:
        return not s.active

    def resume(self, s: ModelSession, half: Half) -> None:
        for run in half.runs:
            self.see(Complete(run.name, bool(half.mark)))


class PublishFirst(Mechanism):
    """RunComplete is published before the messages are written."""

    def end(self, s: ModelSession, turn: ModelTurn, outcome: FinishReason) -> None:
        super().end(s, turn, outcome)
        self.complete_turn(s, turn, None)

    def written(self, s: ModelSession, turn: ModelTurn, ok: bool) -> None:
        self.record(turn.runs, turn.writing, ok)
        self.hand_off(s, turn)


class ReusedId(Mechanism):
    """A second prompt under a known run_id runs as well."""

    def again(self, s: ModelSession, run: ModelRun) -> None:
        if s.accepted.count(run) == 1:
            s.accepted.append(run)


class LeakySession(Mechanism):
    """The per-session lock or mark stays when the session is quiet."""

    def lower_mark(self, s: ModelSession) -> None:
        """Leave the mark where it is."""


NOT_IN_DESIGNS = frozenset({"cancel_run", "interrupt", "close"})
"""The operations that the designs never had. The explorer leaves them out when it explores a design."""


class Design(NamedTuple):
    """A known-bad design: its mechanism, and the properties that it is known to break."""

    name: str
    mechanism: type[Mechanism]
    breaks: tuple[Property, ...]

    @property
    def flaw(self) -> str:
        """What is wrong with the design, in one sentence."""
        return str(self.mechanism.__doc__).splitlines()[0]


_P = Property
DESIGNS = {
    design.name: design
    for design in (
        Design("no-accept-tracking", NoAcceptTracking, (_P.FULL_COVERAGE,)),
        Design("pending-flag", PendingFlag, (_P.FULL_COVERAGE, _P.NEVER_POISONED)),
        Design("pending-count", PendingCount, (_P.NEVER_POISONED, _P.FULL_COVERAGE)),
        Design("hasty-clear", HastyClear, (_P.FULL_COVERAGE,)),
        Design("silent-entry", SilentEntry, (_P.EXACTLY_ONE_COMPLETE,)),
        Design("unlocked-drain", UnlockedDrain, (_P.FULL_COVERAGE, _P.EXACTLY_ONE_COMPLETE)),
        Design("silent-drop", SilentDrop, (_P.EXACTLY_ONE_COMPLETE,)),
        Design("silent-fold", SilentFold, (_P.EXACTLY_ONE_COMPLETE,)),
        Design("swallowed-outer", SwallowedOuter, (_P.EXACTLY_ONE_COMPLETE,)),
        Design("stranded-queue", StrandedQueue, (_P.NO_STRAND,)),
        Design("idle-gap", IdleGap, (_P.FIFO, _P.ONE_TURN)),
        Design("unserialized-entry", UnserializedEntry, (_P.ONE_TURN,)),
        Design("blind-release", BlindRelease, (_P.ONE_TURN, _P.FULL_COVERAGE)),
        Design("unlocked-clear", UnlockedClear, (_P.EXACTLY_ONE_COMPLETE,)),
        Design("late-mark", LateMark, (_P.NEVER_POISONED,)),
        Design("untracked", Untracked, (_P.NEVER_POISONED,)),
        Design("late-own-complete", LateOwnComplete, (_P.LAST_WORD,)),
        Design("publish-first", PublishFirst, (_P.LAST_WORD,)),
        Design("reused-id", ReusedId, (_P.EXACTLY_ONE_COMPLETE,)),
        Design("leaky-session", LeakySession, (_P.NO_RESIDUE,)),
    )
}
