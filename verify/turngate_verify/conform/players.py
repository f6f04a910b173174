"""Playing programs on fresh subjects: one after the other, or on several instances at the same time."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from turngate_model.lifecycle import DeclaredState
from turngate_verify.conform.flawed import Doubted
from turngate_verify.conform.judge import Judge, ProgramLimits
from turngate_verify.conform.lines import Command
from turngate_verify.conform.port import Features, Subject, SubjectFactory, SubjectFailed
from turngate_verify.conform.programs import LINE, RUNS, TAKING_IN, Op, Program, gaps
from turngate_verify.conform.rest import at_work
from turngate_verify.conform.result import Played
from turngate_verify.conform.stepping import Moment

T = TypeVar("T")
A = TypeVar("A")


class Players:
    """Makes fresh subjects, one at a time per worker. Each has a process of its own."""

    def __init__(self, make: SubjectFactory, workers: int) -> None:
        self._all: list[SubjectFactory] = [make]
        self._all += [
            make.twin() if isinstance(make, Command | Doubted) else make for _ in range(workers - 1)
        ]
        self._idle: queue.SimpleQueue[SubjectFactory] = queue.SimpleQueue()
        for each in self._all:
            self._idle.put(each)
        self._threads = ThreadPoolExecutor(workers) if workers > 1 else None
        self.stopped: SubjectFailed | None = None
        self.hangs_in_close: SubjectFailed | None = None
        """The first subject that did not close, although nothing was in flight."""

    def map(self, work: Callable[[A], T], over: Iterable[A]) -> Iterator[T]:
        """Call the function for each, in order; with several workers, some at the same time."""
        return map(work, over) if self._threads is None else self._threads.map(work, over)

    def close(self) -> None:
        """Stop the threads, and every process."""
        if self._threads:
            self._threads.shutdown(cancel_futures=True)
        for each in self._all:
            if isinstance(each, Command | Doubted):
                each.stop()

    @contextmanager
    def judge(self) -> Iterator[Judge]:
        """Lend a judge with a fresh subject. Once a subject has failed, raise that failure again."""
        if self.stopped:
            raise self.stopped
        make = self._idle.get()
        try:
            judge = Judge(_made(make))
            try:
                yield judge
            finally:
                judge.close()
                self.hangs_in_close = self.hangs_in_close or judge.hangs_in_close
        except SubjectFailed as failed:
            self.stopped = self.stopped or failed
            raise
        finally:
            self._idle.put(make)

    def play(self, program: Program, limits: ProgramLimits, *, patient: bool = False) -> Played:
        """Play a program on a fresh subject, up to the first offence.

        With ``patient``, a subject in virtual time lets all its timers run out
        before a run counts as queued.
        """
        with self.judge() as judge:
            if patient:
                judge.subject.patient = True
            return performed(judge, program, limits)


def _made(make: SubjectFactory) -> Subject:
    try:
        subject: Any = make()
    except SubjectFailed:
        raise
    except (Exception, SystemExit) as wrong:
        if isinstance(getattr(make, "make", make), Command):
            raise
        raise SubjectFailed(f"it cannot be made: {wrong!r}") from wrong
    if not isinstance(getattr(subject, "features", None), Features):
        raise SubjectFailed(f"it makes no subject, for {subject!r} has no features")
    made: Subject = subject
    return made


def performed(judge: Judge, program: Program, limits: ProgramLimits) -> Played:
    """Have a judge perform a program, up to the first offence.

    After a program in which operations were called before the subject was at
    rest, every turn is finished, and one more prompt must run: whatever was
    lost on the way is then owed.
    """
    for op in program:
        judge.take(op)
        if judge.over:
            break
    played = outcome(judge, limits)
    if gaps(program) and not judge.over:
        finish(judge)
        after = outcome(judge, limits)
        if judge.over:
            return after
        # Which operations may come next is decided after the program itself.
        return played._replace(
            steps=after.steps,
            late=after.late,
            exercised=after.exercised,
            hasty=after.hasty,
            hears_late=after.hears_late,
        )
    return played


def _moments(judge: Judge) -> tuple[Moment, ...]:
    """Return the moments after the last operation at which another could be called, and rest as the last."""
    if not judge.stepped:
        return ()
    moments: list[Moment] = judge.subject.moments
    before = moments if judge.subject.moments_cut else moments[:-1]  # after the last callback it is at rest
    return (*before, judge.subject.moment())


def finish(judge: Judge) -> None:
    """Finish every turn, one after the other, and have one more prompt run in every session."""
    performed_so_far = judge.program
    entered = {op.run for op in performed_so_far if op.name == "enter"}
    waiting = [
        op
        for op in performed_so_far
        if judge.features.two_phase and op.name in TAKING_IN and op.run not in entered
    ]
    for op in waiting:
        accepted = judge.sessions.at(op.place).states.get(op.run) is DeclaredState.ACCEPTED
        if not judge.over and accepted and not judge.is_refused(op.run):
            judge.take(Op("enter", op.run, op.place))
    for place in sorted({op.place for op in performed_so_far}):
        if judge.features.hold and not judge.over and any(op.name in LINE for op in performed_so_far):
            judge.take(Op("resume", "", place))
        _finish_turns(judge)
        if judge.over or len(judge.place_of) >= len(RUNS):
            return
        run = next(run for run in RUNS if run not in judge.place_of)
        judge.take(Op("accept", run, place))
        if judge.features.two_phase and not judge.over:
            judge.take(Op("enter", run, place))
    _finish_turns(judge)


def _finish_turns(judge: Judge) -> None:
    for _ in range(2 * len(judge.place_of)):
        working = _working(judge)
        if judge.over or not working:
            return
        judge.take(Op("finish", working[0], judge.place_of[working[0]]))


def _working(judge: Judge) -> list[str]:
    """Return the lead runs whose runner can finish."""
    if (runs := at_work(judge.subject)) is not None:
        return [run for run in runs if run in judge.place_of]
    return [session.lead for session in judge.sessions.each if session.turn and session.running]


def outcome(judge: Judge, limits: ProgramLimits) -> Played:
    """Return the result of the program that a judge has performed."""
    over = judge.over
    return Played(
        judge.steps,
        tuple(judge.violations),
        tuple(judge.late),
        frozenset(judge.exercised),
        frozenset(judge.idle_cancels),
        () if over else tuple(judge.enabled(limits)),
        () if over else tuple(judge.bursts(limits)),
        (
            tuple(sorted(judge.program)),
            tuple(session.key() for session in judge.sessions.each if session.states),
        ),
        hasty=getattr(judge.subject, "hasty", False),
        disturbed=getattr(judge.subject, "disturbed", False),
        raced=gaps(judge.program) > 0,
        moments=_moments(judge),
        moments_cut=getattr(judge.subject, "moments_cut", 0),
        undecided=judge.undecided,
        hears_late=judge.hears_late,
        doubt=judge.doubt or (judge.subject.doubt() if hasattr(judge.subject, "doubt") else ""),
    )


def play(make: SubjectFactory, program: Program, limits: ProgramLimits) -> Played:
    """Play a program on a fresh subject, up to the first offence."""
    judge = Judge(make())
    try:
        return performed(judge, program, limits)
    finally:
        judge.close()
