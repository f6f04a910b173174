"""Subjects that take real time: how long the kit waits for them, several at once, and processes that die."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Sequence
from typing import ClassVar

import durable_itself
import pytest

from conforming import Able, Plain
from turngate_model import Property
from turngate_model.properties import DurableProperty
from turngate_verify.conform import (
    Complete,
    Effort,
    Features,
    Observed,
    ProgramLimits,
    RealtimeSubject,
    RunnerFailed,
    SubjectFailed,
    Timing,
    check,
    parsed,
    play,
    rest,
)

pytestmark = pytest.mark.usefixtures("standing_clock")

PATIENT = Timing(quiet=0.01, poll=0.002, grace=600.0, longest=1200.0, answers=600.0)
"""For what works: it is waited for only as long as it takes, on any machine."""


class CountedTime:
    """A clock that advances during sleeps only, so that nothing depends on the machine."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> CountedTime:
    time = CountedTime()
    monkeypatch.setattr(rest, "time", time)
    return time


class Late(Plain):
    """Does everything at once, and shows it only after a number of questions."""

    features = Features(two_phase=True, real_time=True)
    timing = Timing(quiet=0.05, grace=3.0, poll=0.01, longest=30.0)
    delay = 0

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def observe(self) -> Sequence[Observed]:
        self.asked += 1
        if not self.seen or self.asked < self.delay:
            return ()
        self.asked = 0
        return super().observe()


def test_what_comes_late_is_waited_for_and_nothing_else_is(counted: CountedTime) -> None:
    class Slow(Late):
        delay = 250

    program = parsed("accept a, enter a, accept b, enter b, finish a, finish b")
    assert play(Slow, program, ProgramLimits()).violations == ()
    slow, counted.now = counted.now, 0.0
    assert play(Late, program, ProgramLimits()).violations == ()
    # Each operation is followed by a moment of silence; only the slow one owes something for a long time.
    assert counted.now < 6 * (Late.timing.quiet + 3 * Late.timing.poll)
    assert slow > 2 * 250 * Late.timing.poll


def test_what_never_comes_is_owed_when_the_grace_is_over(counted: CountedTime) -> None:
    class Strands(Late):
        def fail(self, run: str) -> None:
            self.end(self.lane(self.session_of[run]), error="no luck", hand_off=False)

    program = parsed("accept a, enter a, accept b, enter b, fail a")
    played = play(Strands, program, ProgramLimits())
    assert [each.property for each in played.violations] == [Property.NO_STRAND]
    assert Late.timing.grace <= counted.now < Late.timing.grace + 1.0


def test_a_runner_that_ends_late_is_no_zombie_and_one_that_does_not_is(counted: CountedTime) -> None:
    class Unwinding(Late):
        lingers = 100

        def __init__(self) -> None:
            super().__init__()
            self.looked = 0

        def working(self) -> list[str]:
            self.looked += 1
            lead = self.lane("s1").turn[:1]
            return [*lead, "a"] if lead == ["b"] and self.looked % 1000 < self.lingers else lead

    program = parsed("accept a, enter a, accept b, enter b, finish a")
    assert play(Unwinding, program, ProgramLimits()).violations == ()
    Unwinding.lingers = 1000
    played = play(Unwinding, program, ProgramLimits())
    assert [each.what for each in played.violations] == [
        "the runner of a works on beside the turn of b: it should have ended first"
    ]


def test_a_subject_that_never_falls_silent_is_reported(counted: CountedTime) -> None:
    class Chatters(Late):
        timing = Late.timing._replace(poll=1.0, quiet=2.0)

        def observe(self) -> Sequence[Observed]:
            return [*super().observe(), *([Complete("a", cancelled=False)] if self.accepted else [])]

    with pytest.raises(SubjectFailed, match=r"it does not come to rest within 30 s"):
        play(Chatters, parsed("accept a"), ProgramLimits())


class Workers:
    """A dispatcher with one thread for each session, which nothing can interrupt."""

    def __init__(self, subject: ThreadsSubject) -> None:
        self.subject = subject
        self.queues: dict[str, queue.SimpleQueue[str | None]] = {}

    def submit(self, session: str, run: str) -> None:
        if session not in self.queues:
            self.queues[session] = queue.SimpleQueue()
            threading.Thread(target=self.work, args=(self.queues[session],), daemon=True).start()
        self.queues[session].put(run)

    def work(self, runs: queue.SimpleQueue[str | None]) -> None:
        while (run := runs.get()) is not None:
            try:
                self.subject.work_in_thread(run)
            except RunnerFailed as error:
                self.subject.completed(run, error=str(error))
            else:
                self.subject.completed(run)

    def stop(self) -> None:
        for runs in self.queues.values():
            runs.put(None)


class ThreadsSubject(RealtimeSubject):
    __test__ = False
    features = Features(cancel=False)
    timing = PATIENT
    set_ups: ClassVar[list[int]] = []

    async def set_up(self) -> None:
        self.set_ups.append(self.number)

    async def start(self) -> None:
        self.workers = Workers(self)

    async def do_accept(self, session: str, run: str) -> None:
        self.workers.submit(session, run)

    async def end(self) -> None:
        self.workers.stop()


@pytest.mark.parametrize("workers", [1, 3])
def test_threads_hold_and_are_set_up_once(workers: int) -> None:
    ThreadsSubject.set_ups.clear()
    kind = type("Kind", (ThreadsSubject,), {})
    result = check(kind, effort=Effort(programs=40, depth=4, examples=3, steps=10, workers=workers))
    assert (result.failed, result.replays, result.flaky, result.gave_up) == (None, {}, {}, "")
    assert len(ThreadsSubject.set_ups) == 1
    assert result.verdict_of(Property.FIFO) == "holds"


def test_a_runner_that_is_called_after_the_end_returns_so_that_its_thread_ends() -> None:
    subject = ThreadsSubject()
    subject.close()
    late = threading.Thread(target=subject.work_in_thread, args=("z",), daemon=True)
    late.start()
    late.join(60)
    assert not late.is_alive()


class TasksSubject(RealtimeSubject):
    """A lock for each session, on a real loop; a cancel cancels every task of the session."""

    __test__ = False
    timing = PATIENT

    async def start(self) -> None:
        self.locks: dict[str, asyncio.Lock] = {}
        self.tasks: dict[str, list[asyncio.Task[str]]] = {}

    async def do_accept(self, session: str, run: str) -> None:
        task = asyncio.ensure_future(self.turn(session, run))
        self.tasks.setdefault(session, []).append(task)
        self.watch(run, task)

    async def turn(self, session: str, run: str) -> str:
        async with self.locks.setdefault(session, asyncio.Lock()):
            return await self.runner(run)

    async def do_cancel(self, session: str) -> None:
        for task in reversed(self.tasks.get(session, [])):  # the newest first, so that none is let in
            task.cancel()


def test_tasks_on_a_real_loop_are_judged_by_all_that_they_show() -> None:
    result = check(TasksSubject, effort=Effort(programs=30, depth=4, examples=3, steps=10, workers=2))
    assert (result.failed, result.flaky) == (None, {})
    assert result.verdict_of(Property.FULL_COVERAGE) == "holds"
    program = parsed("accept a, accept b, cancel")
    assert play(TasksSubject, program, ProgramLimits()).violations == ()


def test_a_call_that_does_not_return_is_reported() -> None:
    class Hangs(TasksSubject):
        timing = PATIENT._replace(answers=0.1)

        async def do_cancel(self, session: str) -> None:
            await asyncio.get_running_loop().create_future()

        async def do_clear(self, session: str) -> None:
            raise LookupError(session)

    with pytest.raises(SubjectFailed, match=r"at cancel: it hangs: a call does not return within 0.1 s"):
        play(Hangs, parsed("cancel"), ProgramLimits())
    with pytest.raises(SubjectFailed, match=r"at clear: it raised LookupError"):
        play(Hangs, parsed("clear"), ProgramLimits())


def test_several_instances_play_at_the_same_time_and_say_the_same() -> None:
    together = threading.Barrier(3, timeout=600)
    waited: list[int] = []

    class Meeting(Able):
        def __init__(self) -> None:
            super().__init__("strands")
            if threading.current_thread() is not threading.main_thread() and len(waited) < 3:
                waited.append(1)
                together.wait()  # for two others that play beside it

    effort = Effort(programs=400, examples=5, workers=3)
    several = check(Meeting, effort=effort)
    alone = check(lambda: Able("strands"), effort=effort._replace(workers=1))
    assert several.replays == alone.replays
    assert (several.depths, several.programs, several.drills) == (alone.depths, alone.programs, alone.drills)


# Processes that die.

CRASHES = {
    "a turn": "accept a, enter a, crash, accept b, enter b, finish b",
    "a queue": "accept a, enter a, accept b, enter b, accept c, enter c, crash, finish a, finish b, finish c",
    "what is accepted": "accept a, accept b, crash, enter a, enter b, finish a, finish b",
    "what is cancelled": "accept a, enter a, accept b, cancel, crash, enter b",
    "a fold": "accept a, enter a, accept b, enter b, fold a, crash, finish a, accept c, enter c, crash",
}


@pytest.mark.parametrize("kind", [durable_itself.DurableSubject, durable_itself.RetryingSubject])
@pytest.mark.parametrize("what", CRASHES)
def test_what_is_on_a_ledger_survives_kill_9(what: str, kind: type[durable_itself.DurableSubject]) -> None:
    patient = type("Patient", (kind,), {"timing": PATIENT})
    played = play(patient, parsed(CRASHES[what]), ProgramLimits())
    assert (played.violations, played.late) == ((), ())
    assert DurableProperty.DURABLE in played.exercised
    assert any("crash" in str(step) for step in played.steps)


@pytest.mark.deep
@pytest.mark.parametrize("kind", [durable_itself.DurableSubject, durable_itself.RetryingSubject])
def test_every_short_program_with_a_crash_holds_on_a_ledger(
    kind: type[durable_itself.DurableSubject],
) -> None:
    result = check(
        type("Patient", (kind,), {"timing": PATIENT}), effort=Effort(programs=200, examples=6, workers=2)
    )
    assert (result.failed, result.replays, result.flaky, result.gave_up) == (None, {}, {}, "")
    assert result.verdict_of(DurableProperty.DURABLE) == "holds"
