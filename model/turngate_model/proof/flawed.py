"""The known-bad designs, for any number of runs: each an override here as it is in ``designs.py``.

One of the twenty cannot be said here; ``NOT_SAID`` has the reason.
"""

from __future__ import annotations

from typing import ClassVar

from turngate_model.lifecycle import DeclaredState
from turngate_model.mechanism import Mechanism
from turngate_model.proof.judge import Runs, only
from turngate_model.proof.relation import WRITING, Relation
from turngate_model.proof.terms import (
    Formula,
    Individual,
    Number,
    Phase,
    Sort,
    Value,
    all_of,
    any_of,
    at_most,
    choice,
    differ,
    equal,
    is_one_of,
    less,
    not_,
    plus,
)
from turngate_model.proof.vocabulary import EVERYTHING, Symbol, World

_RUN = Sort.RUN


class Flawed(Relation):
    """A relation that may keep more than the mechanism does: pending cancels, and halves still to be done."""

    symbols: ClassVar[dict[str, Symbol]] = EVERYTHING
    by_lead: ClassVar[bool] = False
    """Whether the runs of a second half belong together, and are named after the first of them."""

    def put_off(self, s: Individual, runs: Runs | None = None, lead: Individual | None = None) -> None:
        """Leave a second half to be done later."""
        self.set_of("halves", s, plus(self.path["halves"](s), 1))
        if runs:
            self.path.give(
                "half",
                lambda old, x, name: any_of(
                    old(x, name), all_of(runs.has(x), equal(name, x if lead is None else lead))
                ),
            )

    def take_up(self, s: Individual, lead: Individual | None = None) -> Runs:
        """Begin a second half, and return the runs that it is about."""
        self.needs(less(0, self.path["halves"](s)))
        self.set_of("halves", s, plus(self.path["halves"](s), -1))
        half = self.path["half"]
        if lead is None:
            runs = Runs(lambda x: all_of(self.at(s, x), half(x, x)))
        else:
            self.needs(self.at(s, lead), half(lead, lead))
            runs = Runs(lambda x: half(x, lead))
        self.path.give(
            "half",
            lambda old, x, name: all_of(
                old(x, name),
                not_(all_of(runs.has(x), equal(name, x if lead is None else lead))),
            ),
        )
        return runs

    def can_go_on(self, s: Individual) -> Formula:
        return any_of(super().can_go_on(s), self.can_resume(s))

    def can_resume(self, s: Individual) -> Formula:
        """Say that a second half can be done."""
        return less(0, self.path["halves"](s))


class NoAcceptTracking(Flawed):
    def raise_mark(self, s: Individual) -> None:
        pass


class PendingFlag(Flawed):
    def raise_mark(self, s: Individual) -> None:
        self.set_of("pending", s, choice(self.is_any(self.of(s, "accepted")), 1, 0))

    def is_covered(self, s: Individual, run: Individual, now: World | None = None) -> Formula:
        flag = self.path["pending"](s)
        self.set_of("pending", s, 0)
        return any_of(less(0, flag), self.path["singled_out"](run))


class PendingCount(Flawed):
    def raise_mark(self, s: Individual) -> None:
        accepted = self.of(s, "accepted")
        count: Number = 0
        for run in self.reading.candidates("one", accepted.has):  # a count can be said of so many runs only
            count = choice(accepted.has(run), plus(count, 1), count)
        self.set_of("pending", s, count)

    def is_covered(self, s: Individual, run: Individual, now: World | None = None) -> Formula:
        pending = self.path["pending"](s)
        some = less(0, pending)
        self.set_of("pending", s, choice(some, plus(pending, -1), pending))
        return any_of(some, self.path["singled_out"](run))


class HastyClear(Flawed):
    def lower_mark(self, s: Individual) -> None:
        self.set_of("mark", s, 0)

    def hand_off(self, s: Individual, lead: Individual) -> None:
        self.set_of("mark", s, 0)
        super().hand_off(s, lead)


class SilentEntry(Flawed):
    def settle(self, s: Individual, run: Individual, ok: Formula) -> None:
        self.needs(self.at(s, run), self.path["entering"](run))
        self.record(only(run), Phase.CANCELED, ok)
        self.take_out("entering", only(run))


class UnlockedDrain(Flawed):
    resumes = ()

    def fold(self, s: Individual, lead: Individual) -> None:
        now = dict(self.path.world)
        queued = self.of(s, "queue")
        self.needs(self.at(s, lead), equal(now["phase"](lead), Phase.RUNNING), self.is_any(queued))
        self.needs(self.is_not_paused(s))
        own = Runs(lambda run: all_of(queued.has(run), not_(now["foldable"](run))))
        taken = queued
        if self.path.branch(self.is_any(own), "one wants its own"):
            first = self.first_of(own, "first")
            taken = Runs(lambda run: all_of(queued.has(run), now["ahead"](run, first)))
        self.take_out("queue", taken)
        self.put_off(s, taken)

    def is_not_paused(self, s: Individual) -> Formula:
        return equal(self.path["halves"](s), 0)

    def end(self, s: Individual, lead: Individual, outcome: Phase) -> None:
        self.needs(self.is_not_paused(s))
        super().end(s, lead, outcome)

    def resume(self, s: Individual, *about: Individual) -> None:
        taken = self.take_up(s)
        now = dict(self.path.world)
        lead = self.path.choose(
            "lead",
            lambda run: all_of(self.at(s, run), differ(now["phase"](run), Phase.NONE)),
            "the turn that is paused",
        )
        self.join(
            s, lead, Runs(lambda run: all_of(taken.has(run), not_(super(UnlockedDrain, self).is_covered(s, run, now))))
        )


class SilentDrop(Flawed):
    def drop(self, s: Individual, runs: Runs, *, cancelled: bool) -> None:
        if cancelled:
            self.take_out("queue", runs)
        else:
            super().drop(s, runs, cancelled=cancelled)


class SilentFold(Flawed):
    def complete_turn(self, s: Individual, lead: Individual) -> None:
        interrupted = self.path["interrupted"](lead)
        self.see.complete(s, only(lead), lambda _run: interrupted)


class SwallowedOuter(Flawed):
    def complete_turn(self, s: Individual, lead: Individual) -> None:
        if not self.path.branch(self.is_any(self.of(s, "queue")), "one is queued"):
            super().complete_turn(s, lead)


class StrandedQueue(Flawed):
    def hand_off(self, s: Individual, lead: Individual) -> None:
        if self.path.branch(equal(self.path["phase"](lead), Phase.END_TURN), "ended well"):
            super().hand_off(s, lead)
        else:
            self.forget_turn(s, lead)


class IdleGap(Flawed):
    resumes = ()

    def is_occupied(self, s: Individual) -> Formula:
        busy: Formula = self.path["busy"](s)
        return busy

    def hand_off(self, s: Individual, lead: Individual) -> None:
        self.forget_turn(s, lead)
        if self.path.branch(self.is_any(self.of(s, "queue")), "one is queued"):
            self.put_off(s)

    def resume(self, s: Individual, *about: Individual) -> None:
        self.take_up(s)
        self.start_next(s)


class UnserializedEntry(Flawed):
    resumes = (_RUN,)
    by_lead = True

    def enter(self, s: Individual, run: Individual) -> None:
        if self.path.branch(any_of(self.is_covered(s, run), self.is_occupied(s)), "not idle"):
            super().enter(s, run)
            return
        self.needs(self.at(s, run), self.path["accepted"](run))
        self.leave_accepted(s, only(run))
        self.put_off(s, only(run), run)

    def resume(self, s: Individual, *about: Individual) -> None:
        self.take_up(s, about[0])
        self.start(s, about[0])
        self.see.enter(s, about[0], DeclaredState.ACTIVE)


class BlindRelease(Flawed):
    resumes = ()

    def hand_off(self, s: Individual, lead: Individual) -> None:
        super().hand_off(s, lead)
        if self.path.branch(self.path["busy"](s), "a successor"):
            self.put_off(s)

    def resume(self, s: Individual, *about: Individual) -> None:
        self.take_up(s)
        self.vacate(s)


class UnlockedClear(Flawed):
    resumes = ()

    def clear(self, s: Individual) -> None:
        queued = self.of(s, "queue")
        self.needs(any_of(self.path["busy"](s), self.is_any(queued)), equal(self.path["halves"](s), 0))
        self.see.clear(s)
        self.put_off(s, queued)

    def resume(self, s: Individual, *about: Individual) -> None:
        read = self.take_up(s)
        self.take_out("queue", self.of(s, "queue"))
        self.see.complete(s, read, lambda _run: False)


class Untracked(Flawed):
    modes = (*Mechanism.modes, "in-process")

    def stamp(self, run: Individual, number: Number, mode: str) -> None:
        super().stamp(run, 0 if mode == "in-process" else number, mode)

    def is_covered(self, s: Individual, run: Individual, now: World | None = None) -> Formula:
        seq, mark = self.path["seq"](run), self.path["mark"](s)
        return any_of(self.path["singled_out"](run), all_of(less(0, mark), at_most(seq, mark)))

    def enqueue(self, s: Individual, run: Individual) -> None:
        self.put_in("queue", only(run))
        self.path.give(
            "ahead",
            lambda old, a, b: choice(
                any_of(equal(a, run), equal(b, run)), all_of(equal(b, run), differ(a, run)), old(a, b)
            ),
        )


class LateMark(Untracked):
    resumes = ()

    def raise_mark(self, s: Individual) -> None:
        idle = equal(self.path["halves"](s), 0)
        if self.path.branch(all_of(self.is_any(self.of(s, "accepted")), idle), "some are accepted"):
            self.set_of("pending", s, self.highest(s))
            self.put_off(s)

    def resume(self, s: Individual, *about: Individual) -> None:
        self.take_up(s)
        mark, pending = self.path["mark"](s), self.path["pending"](s)
        self.set_of("mark", s, choice(at_most(mark, pending), pending, mark))
        self.set_of("pending", s, 0)


class LateOwnComplete(Flawed):
    resumes = (_RUN,)
    by_lead = True

    def complete_turn(self, s: Individual, lead: Individual) -> None:
        if self.path.branch(self.is_any(self.of(s, "queue")), "one is queued"):
            interrupted = self.path["interrupted"](lead)
            self.path.give("half_says", lambda old, x: choice(equal(x, lead), interrupted, old(x)))
            self.put_off(s, self.runs_of(lead), lead)
        else:
            super().complete_turn(s, lead)

    def can_resume(self, s: Individual) -> Formula:
        return all_of(super().can_resume(s), not_(self.path["busy"](s)))

    def resume(self, s: Individual, *about: Individual) -> None:
        self.needs(not_(self.path["busy"](s)))
        says = self.path["half_says"](about[0])
        self.see.complete(s, self.take_up(s, about[0]), lambda _run: says)


class PublishFirst(Flawed):
    def end(self, s: Individual, lead: Individual, outcome: Phase) -> None:
        super().end(s, lead, outcome)
        self.complete_turn(s, lead)

    def written(self, s: Individual, lead: Individual, ok: Formula) -> None:
        phase: Value = self.path["phase"](lead)
        self.needs(self.at(s, lead), is_one_of(phase, *WRITING))
        self.record(self.runs_of(lead), phase, ok)
        self.hand_off(s, lead)


class LeakySession(Flawed):
    def lower_mark(self, s: Individual) -> None:
        pass


FLAWED: dict[str, type[Flawed]] = {
    "no-accept-tracking": NoAcceptTracking,
    "pending-flag": PendingFlag,
    "pending-count": PendingCount,
    "hasty-clear": HastyClear,
    "silent-entry": SilentEntry,
    "unlocked-drain": UnlockedDrain,
    "silent-drop": SilentDrop,
    "silent-fold": SilentFold,
    "swallowed-outer": SwallowedOuter,
    "stranded-queue": StrandedQueue,
    "idle-gap": IdleGap,
    "unserialized-entry": UnserializedEntry,
    "blind-release": BlindRelease,
    "unlocked-clear": UnlockedClear,
    "late-mark": LateMark,
    "untracked": Untracked,
    "late-own-complete": LateOwnComplete,
    "publish-first": PublishFirst,
    "leaky-session": LeakySession,
}
NOT_SAID = {
    "reused-id": "it holds one run twice, in the accepted runs and then in the queue; a set holds it once",
}
"""Known-bad designs that the relation cannot express, and why."""
