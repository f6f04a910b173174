"""Schedules: a scenario in every order there is, on the real dispatcher.

At each point of a scenario one or more things could happen next: its options. A
schedule is the list of the options chosen. To choose the first option each time
is plain order; any other choice is a deviation.

The explorer executes each schedule from the beginning. It executes those with
few deviations first, and among these the ones that deviate late. So no failing
schedule has fewer deviations than the first one that it finds.

With ``reduce``, it stops an execution at a moment that it has met before,
because it executes what lies ahead of that moment only once. It still counts all
schedules, by counting the ways from each moment to the next.
"""

from __future__ import annotations

import gc
import multiprocessing
import signal
import time
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from turngate import Dispatcher
from turngate_model import Property
from turngate_verify.drivers.fingerprint import fingerprint
from turngate_verify.world.expecting import Broken, expect
from turngate_verify.world.scenarios import SCENARIOS, Scenario
from turngate_verify.world.stage import MODES, LoopMode, Option, Stage
from turngate_verify.world.world import Make, dispatcher_option, without_log

__all__ = [
    "MODES",
    "SCENARIOS",
    "Failure",
    "Scenario",
    "Schedules",
    "explore_in_turn",
    "explore_schedules",
    "replay_schedule",
]

MAX_STEPS = 2_000
"""More steps than any scenario takes. A schedule that takes more never ends, and fails."""

Choices = tuple[int, ...]


class ScheduledStep(NamedTuple):
    """One step of a schedule, in words."""

    what: str
    """What happened."""
    instead_of: str | None
    """What plain order would have done instead; None if the step is in plain order."""
    seen: str
    """What followed from it."""

    def said(self) -> str:
        """Say what happened and what followed from it."""
        return f"{self.what}: {self.seen}" if self.seen else self.what


@dataclass(frozen=True)
class Failure:
    """A schedule in which something does not hold."""

    broken: Property | None
    """The property that is broken; None when something else is wrong, such as a task left behind."""
    what: str
    scenario: str
    mode: LoopMode
    choices: Choices
    """Which option was chosen at each point. At all later points it is the first."""
    steps: tuple[ScheduledStep, ...]
    make: Make = Dispatcher

    @property
    def deviations(self) -> list[str]:
        """Say where the schedule deviates from plain order."""
        return [f"{step.what}, before {step.instead_of}" for step in self.steps if step.instead_of]

    @property
    def replay(self) -> str:
        """The command that executes the schedule again."""
        choices = ",".join(map(str, self.choices)) or "0"
        command = f"turngate schedules --scenario {self.scenario} --mode {self.mode} --replay {choices}"
        return command + dispatcher_option(self.make)

    def told(self) -> list[str]:
        """Say what broke, where the schedule deviates from plain order, and every step."""
        name = f"{self.broken}: " if self.broken else ""
        found = self.deviations
        return [
            f"{name}{self.what}",
            "in plain order" if not found else "in plain order, except that",
            *[f"  {deviation}" for deviation in found],
            "step by step:",
            *[
                f"  {number:2} {'*' if step.instead_of else ' '} {step.said()}"
                for number, step in enumerate(self.steps, 1)
            ],
            f"again: {self.replay}",
        ]


@dataclass
class Schedules:
    """The result of exploring one scenario in one mode."""

    scenario: str
    mode: LoopMode
    schedules: int = 0
    """How many schedules there are, as far as the explorer came."""
    executed: int = 0
    """How many executions it took. There are fewer than schedules when some stopped at known moments."""
    moments: int = 0
    """How many different moments it met; 0 without ``reduce``."""
    steps: int = 0
    """How many steps it took and checked."""
    complete: bool = False
    """Whether the explorer came to every schedule."""
    outcomes: set[Hashable] = field(default_factory=set)
    """What the schedules ended with: RunCompletes and messages, or a failure."""
    failure: Failure | None = None
    seconds: float = 0.0
    """How long it took."""


class _Pending(NamedTuple):
    """The beginning of a schedule that is still to be executed. It ends with a deviation."""

    options: tuple[Option, ...]
    """The options to take."""
    choices: Choices
    """Their numbers."""
    parent: int
    """The number of the moment at which the last option is taken; -1 before the first moment."""


def explore_schedules(
    scenario: str | Scenario,
    mode: LoopMode,
    *,
    make: Make = Dispatcher,
    reduce: bool = True,
    limit: int | None = None,
    stop: bool = True,
) -> Schedules:
    """Execute a scenario in every order; stop at the first schedule in which something does not hold.

    ``make`` is the class of the dispatcher. After ``limit`` executions, give up: the result is then not
    complete. Without ``stop``, go on after a failure, and keep the first.
    """
    began = time.monotonic()
    # The explorer goes before the garbage collector comes back, which would look at all of its moments.
    with without_log(), _no_garbage_collection():
        found = _Explorer(scenario, mode, make, reduce, stop).run(limit)
    found.seconds = time.monotonic() - began
    return found


def explore_in_turn(
    asked: Sequence[tuple[str, LoopMode]],
    *,
    workers: int | None = None,
    make: Make = Dispatcher,
    reduce: bool = True,
    limit: int | None = None,
) -> Iterator[Schedules]:
    """Explore scenarios in their modes, and yield the results in the order asked.

    ``workers`` is the number of processes that share the work; by default there is one for each processor.
    Their number makes no difference to the results.
    """
    explore = partial(_explore_asked, make=make, reduce=reduce, limit=limit)
    if workers == 1:
        yield from map(explore, asked)
        return
    before = multiprocessing.active_children()
    # A forked process would inherit locks that the other threads of this process hold, forever.
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        try:
            with _interrupts_blocked():
                results = [pool.submit(explore, each) for each in asked]
            for result in results:
                yield result.result()
        except BaseException:
            for worker in multiprocessing.active_children():
                if worker not in before:
                    worker.terminate()  # the remaining results are not needed
            raise


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Block Ctrl-C in this process for now, and for good in the processes that it starts meanwhile."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _explore_asked(asked: tuple[str, LoopMode], *, make: Make, reduce: bool, limit: int | None) -> Schedules:
    return explore_schedules(*asked, make=make, reduce=reduce, limit=limit)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Switch the garbage collector off, to save time: an abandoned world leaves hardly any garbage."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


class _Explorer:
    """Executes the schedules of one scenario in one mode, each once."""

    def __init__(
        self, scenario: str | Scenario, mode: LoopMode, make: Make, reduce: bool, stop: bool
    ) -> None:
        name, self._scenario = _named(scenario)
        self._mode: LoopMode = mode
        self._make, self._reduce, self._stop = make, reduce, stop
        self._found = Schedules(name, mode)
        self._numbers: dict[Hashable, int] = {}
        """The number of each moment, by its fingerprint."""
        self._next: list[list[int]] = []
        """By the number of a moment: the moments that can come next."""
        self._pending: deque[list[_Pending]] = deque([[_Pending((), (), -1)]])
        """What is still to be executed: first what has the fewest deviations, then what has one more."""

    def run(self, limit: int | None) -> Schedules:
        """Execute every schedule, or as many as the limit allows."""
        found = self._found
        while self._pending:
            fewest = self._pending[0]
            if not fewest:
                self._pending.popleft()
                if self._pending:
                    self._pending[0].sort(key=lambda each: each.choices, reverse=True)
                continue
            if found.executed == limit or (found.failure and self._stop):
                break
            found.executed += 1
            self._execute(fewest.pop())
            if found.executed % 2_000 == 0:
                gc.collect(1)
        found.complete = not any(self._pending)
        found.moments = len(self._numbers)
        found.schedules = self._count() if self._reduce else found.executed
        return found

    def _execute(self, pending: _Pending) -> None:
        """Execute a schedule in plain order after its beginning; keep the deviations on the way for later."""
        stage = Stage(self._scenario, self._mode, self._make)
        taken, way = [*pending.choices], [*pending.options]
        here = pending.parent
        passed: set[int] = set()
        try:
            # All options but the last were taken and checked in an earlier execution.
            for option in way[:-1]:
                stage.take(option)
            for option in way[-1:]:
                self._take(stage, option)
            while True:
                if self._reduce:
                    known, here = self._arrive(stage, here)
                    if known:
                        expect(here not in passed, "it comes back to a moment it has passed, and never ends")
                        return
                    passed.add(here)
                options = stage.options()
                if not options:
                    stage.finish()
                    self._found.outcomes.add(outcome(stage))
                    return
                if len(options) > 1:
                    self._branch(way, taken, options, here)
                expect(len(taken) < MAX_STEPS, f"it goes on for more than {MAX_STEPS} steps")
                taken.append(0)
                way.append(options[0])
                self._take(stage, options[0])
        except Exception as wrong:
            self._fail(wrong, taken, here)
        finally:
            stage.abandon()

    def _take(self, stage: Stage, option: Option) -> None:
        stage.take(option)
        self._found.steps += 1
        stage.world.check()

    def _branch(self, way: list[Option], taken: list[int], options: list[Option], here: int) -> None:
        """Keep the options after the first for later."""
        if len(self._pending) == 1:
            self._pending.append([])
        self._pending[1] += [
            _Pending((*way, options[choice]), (*taken, choice), here) for choice in range(1, len(options))
        ]

    def _arrive(self, stage: Stage, parent: int) -> tuple[bool, int]:
        """Return whether the explorer has met this moment before, and return its number."""
        numbers = self._numbers
        fresh = len(numbers)
        number = numbers.setdefault(fingerprint(stage), fresh)
        if number == fresh:
            self._next.append([])
        if parent >= 0:
            self._next[parent].append(number)
        return number != fresh, number

    def _fail(self, wrong: Exception, taken: list[int], here: int) -> None:
        """Keep a failure if it is the first. It is counted as a schedule that ends here."""
        failure = _failure(wrong, self._found.scenario, self._scenario, self._mode, self._make, taken)
        self._found.outcomes.add((failure.broken, failure.what))
        self._found.failure = self._found.failure or failure
        if self._reduce:
            self._numbers[object()] = len(self._next)
            if here >= 0:
                self._next[here].append(len(self._next))
            self._next.append([])

    def _count(self) -> int:
        """Count the ways from the first moment to an end.

        A way that comes back to a moment never ends. Then the count is not complete.
        """
        counts: dict[int, int] = {}
        entered: set[int] = set()
        to_do = [0]
        while to_do:
            moment = to_do[-1]
            if moment not in entered:
                entered.add(moment)
                to_do += [each for each in self._next[moment] if each not in entered]
                continue
            to_do.pop()
            if moment not in counts:
                if any(each not in counts for each in self._next[moment]):
                    self._found.complete = False
                counts[moment] = sum(counts.get(each, 0) for each in self._next[moment]) or 1
        return counts[0]


def replay_schedule(
    scenario: str | Scenario, mode: LoopMode, choices: Iterable[int], *, make: Make = Dispatcher
) -> Failure | None:
    """Execute one schedule, in plain order after the choices; return its failure, or None if all holds.

    Raises ValueError when there is no such choice at some point.
    """
    with without_log():
        return _replay(scenario, mode, choices, make)


def _replay(scenario: str | Scenario, mode: LoopMode, choices: Iterable[int], make: Make) -> Failure | None:
    name, acted = _named(scenario)
    stage = Stage(acted, mode, make)
    ahead = [*choices]
    taken: list[int] = []
    try:
        while (options := stage.options()) or ahead:
            choice = ahead.pop(0) if ahead else 0
            if not 0 <= choice < len(options):
                break
            taken.append(choice)
            stage.take(options[choice])
            stage.world.check()
        else:
            stage.finish()
            return None
    except Exception as wrong:
        return _failure(wrong, name, acted, mode, make, taken)
    finally:
        stage.abandon()
    raise ValueError(f"there is no option {choice} at point {len(taken) + 1}, of {len(options)}")


def tell_schedule(
    scenario: Scenario, mode: LoopMode, choices: Iterable[int], make: Make
) -> tuple[ScheduledStep, ...]:
    """Execute the choices, and return each step in words. The last may be the one that fails."""
    stage = Stage(scenario, mode, make)
    steps: list[ScheduledStep] = []
    for choice in choices:
        options = stage.options()
        what, plain = stage.label(options[choice]), stage.label(options[0])
        before = len(stage.world.monitor.history)
        try:
            stage.take(options[choice])
        except Exception:
            steps.append(ScheduledStep(what, plain if choice else None, stage.seen_since(before)))
            break
        steps.append(ScheduledStep(what, plain if choice else None, stage.seen_since(before)))
    stage.abandon()
    return tuple(steps)


def outcome(stage: Stage) -> Hashable:
    """Return the RunCompletes and the messages that a schedule has ended with."""
    world = stage.world
    completes = sorted(world.monitor.published.values(), key=lambda complete: complete.run_id)
    return (
        tuple([complete._replace(message_id=complete.message_id and "known") for complete in completes]),
        tuple(
            [
                tuple([message._replace(id="") for message in of_session.values()])
                for _, of_session in sorted(world.store._inner._sessions.items())
            ]
        ),
    )


def _failure(
    wrong: Exception, name: str, scenario: Scenario, mode: LoopMode, make: Make, taken: list[int]
) -> Failure:
    steps = tell_schedule(scenario, mode, taken, make)
    choices = list(taken)
    while choices and not choices[-1]:
        choices.pop()
    broken, what = None, f"{type(wrong).__name__}: {wrong}"
    if isinstance(wrong, Broken):
        broken, what = wrong.violation
    elif type(wrong) is AssertionError:
        what = str(wrong)
    return Failure(broken, what, name, mode, tuple(choices), steps, make)


def _named(scenario: str | Scenario) -> tuple[str, Scenario]:
    if isinstance(scenario, str):
        return scenario, SCENARIOS[scenario]
    return next((name for name, each in SCENARIOS.items() if each == scenario), "of-its-own"), scenario
