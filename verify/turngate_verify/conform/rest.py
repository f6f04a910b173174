"""Waiting for a subject to come to rest: at once, if it does so itself; otherwise until nothing is owed."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from turngate_model.history import Enter
from turngate_model.lifecycle import DeclaredState
from turngate_verify.conform.port import Observed, Refused, SubjectFailed
from turngate_verify.conform.sessions import Sessions
from turngate_verify.conform.timing import Timing
from turngate_verify.conform.windows import owing

if TYPE_CHECKING:
    from turngate_verify.conform.judge import Judge
    from turngate_verify.conform.programs import Op


PATIENCE = 3
"""The kit waits this many times longer for a subject that is known to be at work."""


_NAP = 2.0
_DOUBTED = 0.5
"""Seconds to look for what may explain a window, when a finding without it counts for nothing."""


class Awake:
    """A clock that stands still while this process does: its own sleep is not the silence of a subject."""

    def __init__(self) -> None:
        self._read = time.monotonic()
        self._now = 0.0

    def now(self) -> float:
        """Return the seconds since it was made, counting 2 at most between two looks."""
        read = time.monotonic()
        self._now += min(read - self._read, _NAP)
        self._read = read
        return self._now


def told_of(shown: Sequence[Observed]) -> set[str]:
    """Return the runs whose fate is shown; a refused move says nothing about it."""
    return {event.run for event in shown if not (isinstance(event, Refused) and event.operation)}


def at_work(subject: Any) -> Collection[str] | None:
    """Return the lead runs whose runner is at work, or None if the subject does not say."""
    working = getattr(subject, "working", None)
    runs = None if working is None else working()
    return None if runs is None else list(runs)  # a copy: a subject may go on changing what it returns


def waited_for(subject: Any) -> str:
    """Return how long the kit waits for what a subject owes, in words that end a sentence."""
    if subject.features.real_time:
        timing: Timing = getattr(subject, "timing", Timing())
        return f" within {timing.grace:g} s"
    grace = getattr(subject, "grace", None)
    return " before the subject came to rest" if grace is None else f" within {grace:g} virtual seconds"


def settled(judge: Judge, operations: Sequence[Op]) -> list[Observed]:
    """Return what a subject shows after its operations, once it is at rest."""
    shown = judge.shown()
    if not judge.features.real_time:
        return _lingered(judge, operations, shown)
    timing: Timing = getattr(judge.subject, "timing", Timing())
    clock = Awake()
    began = heard = clock.now()
    if len(operations) > 1 or len(judge.states) > 1 or judge.features.unordered:
        return _settled_window(judge, operations, shown, timing)
    after = _after(judge, operations, shown)
    while True:
        now = clock.now()
        sessions = after.copy()
        sessions.work(at_work(judge.subject))
        owes, more = sessions.owe(), []
        if now - heard >= (timing.grace if owes else timing.quiet):
            if owes and goes_on(judge.subject, now - began, timing):
                heard = now
                continue
            more = judge.shown()
            if not more:
                return [*shown, *_queued(sessions)]
        if now - began > timing.longest:
            raise SubjectFailed(f"at {operations[-1]}: it does not come to rest within {timing.longest:g} s")
        time.sleep(0.0 if more else timing.poll)
        if more := more or judge.shown():
            shown += more
            heard = clock.now()
            if any(isinstance(event, Refused) for event in more):
                after = _after(judge, operations, shown)
            else:
                _hear(judge, after, more)


def _settled_window(
    judge: Judge, operations: Sequence[Op], shown: list[Observed], timing: Timing
) -> list[Observed]:
    """Look until some order explains what is shown and owes nothing, or nothing more comes."""
    clock = Awake()
    began = heard = clock.now()
    while True:
        about = told_of(shown)
        waiting = [
            Enter(run, DeclaredState.QUEUED) for run in judge.not_heard_of(operations) if run not in about
        ]
        so_far = [*shown, *waiting]
        found, more = judge.judged(judge.window(operations, so_far)), []
        owes, grace = owing(found), timing.grace
        if not found.states and hasattr(judge.subject, "doubt") and judge.subject.doubt():
            grace = min(_DOUBTED, grace)  # whatever comes, nothing will be said to be broken
        now = clock.now()
        if now - heard >= (grace if owes else timing.quiet):
            if owes and grace == timing.grace and goes_on(judge.subject, now - began, timing):
                heard = now
                continue
            more = judge.shown()
            if not more:
                return so_far
        if now - began > timing.longest:
            raise SubjectFailed(f"at {operations[-1]}: it does not come to rest within {timing.longest:g} s")
        time.sleep(0.0 if more else timing.poll)
        if more := more or judge.shown():
            shown += more
            heard = clock.now()


def goes_on(subject: Any, waited: float, timing: Timing) -> bool:
    """Tell whether a subject that owes something is seen to be at work: it is slow, and does not hang."""
    is_computing = getattr(subject, "is_computing", None)
    most = min(PATIENCE * timing.grace, timing.longest - timing.grace)
    return is_computing is not None and waited < most and bool(is_computing())


def _lingered(judge: Judge, operations: Sequence[Op], shown: list[Observed]) -> list[Observed]:
    """Let a subject in virtual time wait for its timers as long as something is owed."""
    linger = getattr(judge.subject, "linger", None)
    if linger is None:
        return shown
    if len(operations) > 1 or len(judge.states) > 1:
        while owing(judge.judged(judge.window(operations, shown))) and _next_shown(judge, linger, shown):
            pass
        return shown
    while _after(judge, operations, shown).owe() and linger():
        shown += judge.shown()
    return shown


def _next_shown(judge: Judge, linger: Callable[[], bool], shown: list[Observed]) -> bool:
    """Let time pass until something new has happened; return False if nothing has."""
    before = len(judge.subject.window())
    while linger():
        shown += judge.shown()
        if len(judge.subject.window()) > before:
            return True
    return False


def _after(judge: Judge, operations: Sequence[Op], shown: Sequence[Observed]) -> Sessions:
    """Return the sessions as they are if nothing more is shown."""
    sessions = judge.sessions.copy()
    refused = {event for event in shown if isinstance(event, Refused)}
    for op in operations:
        sessions.take(op, refused)
    _hear(judge, sessions, shown)
    return sessions


def _hear(judge: Judge, sessions: Sessions, shown: Sequence[Observed]) -> None:
    sessions.work(at_work(judge.subject))
    for event in shown:
        if not isinstance(event, Refused):
            place = judge.place_of[event.run]
            if (normal := sessions.normal(place, event)) is not None:
                sessions.judge(place, normal)


def _queued(sessions: Sessions) -> list[Observed]:
    """Show as queued the runs that were asked to enter and have neither started nor ended."""
    return [
        Enter(run, DeclaredState.QUEUED)
        for session in sessions.each
        for run in session.in_state(DeclaredState.ACCEPTED)
        if run in sessions.asked_to_enter
    ]
