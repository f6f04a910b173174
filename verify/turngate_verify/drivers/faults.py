"""Faults: what goes wrong around a dispatcher, once at every point where it can, exhaustively.

Each scenario is played in plain order as often as there are points to spoil,
and each time one of them is: a task is cancelled after a step, a write fails,
a callback raises, a KeyboardInterrupt comes, the loop is shut down. Whatever
it is, every run gets its one RunComplete, the queue goes on, no task is left
behind, and nobody is warned of anything. The injections of a scenario are
numbered, so that one of them can be made again alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from turngate import Dispatcher, Run, RunComplete, State, WrongLoop
from turngate._lifecycle import STARTING
from turngate_model import Property, Violation
from turngate_verify.world.expecting import Broken, expect
from turngate_verify.world.foreign import FACTORIES, Factory, conducts, log_that_raises
from turngate_verify.world.scenarios import Answer, Scenario
from turngate_verify.world.stage import PatientWorld, Stage, turn_of
from turngate_verify.world.world import (
    Make,
    Plan,
    RunnerFailed,
    StoreDown,
    dispatcher_option,
    told_to,
    without_log,
)

SPOILED: dict[str, Scenario] = {
    "handed-off": Scenario(
        "two prompts that are waited for, one fails; somebody reads",
        (("read", "submit a", "wait a", "submit b", "wait b"),),
        {"a": ("write", "fail")},
    ),
    "folded": Scenario(
        "a turn folds a follow-up; a third prompt has its own turn",
        (("accept a hook", "enter a", "submit b", "accept c queue", "enter c", "wait b"),),
        {"a": ("fold", "finish")},
    ),
    "cancelled": Scenario(
        "a cancel of an active, a queued and an accepted run; writes are slow",
        (("accept c", "accept a hook", "enter a", "submit b", "wait a"), ("cancel", "enter c", "submit d")),
        store=("slow", "slow", "slow"),
    ),
    "closed": Scenario(
        "a close while runs are active, queued and accepted; writes are slow",
        (("accept c", "submit a", "submit b", "wait c", "close", "wait a"),),
        store=("slow", "slow"),
    ),
    "held": Scenario(
        "a dispatcher held open, with prompts in two sessions",
        (("hold", "read", "submit a", "submit b", "submit d", "accept c", "leave"),),
        {"a": ("fold", "finish")},
        sessions={"d": "t"},
        store=("slow",),
    ),
}
KINDS = {
    "cancel": "a task cancelled at an await",
    "store": "a write that fails, is cancelled or takes too long",
    "callback": "an on_complete or a recording that raises",
    "logging": "a log handler that raises at every line",
    "factory": "a task factory that refuses, drops, cancels, wraps or begins a turn",
    "interrupt": "a KeyboardInterrupt or SystemExit out of runner, store or callback",
    "shutdown": "every task cancelled at once, as when the loop shuts down",
    "dropped": "the loop closed with tasks pending, which are then dropped",
}


class FaultFound(NamedTuple):
    """A fault after which something does not hold."""

    kind: str
    scenario: str
    number: int
    """Which injection of the scenario it is; 0 when nothing was spoiled."""
    where: str
    """What was spoiled, in domain words."""
    broken: Property | None
    what: str
    make: Make = Dispatcher

    @property
    def replay(self) -> str:
        """The command that makes the injection again."""
        command = f"turngate faults --scenario {self.scenario} --replay {self.number}"
        return command + dispatcher_option(self.make)

    def told(self) -> list[str]:
        """Say what was done and what came of it."""
        name = f"{self.broken}: " if self.broken else ""
        return [
            f"{name}{self.what}",
            f"in the scenario {self.scenario!r}, with {self.where}",
            f"again: {self.replay}",
        ]


@dataclass
class Faults:
    """What came of all the injections."""

    injections: Counter[str] = field(default_factory=Counter)
    """How many there were, by kind."""
    awaits: int = 0
    """How many awaits of tasks were reached, each of which was cancelled."""
    failure: FaultFound | None = None


class FaultyWorld(PatientWorld):
    """A world whose callbacks and recording may raise; it is told when, and what."""

    hook_raises: BaseException | None = None
    record_raises: BaseException | None = None
    record_fails_at = 0
    entries = 0
    log_raises: BaseException | None = None
    factory: Factory | None = None

    def hook(self, complete: RunComplete) -> None:
        """Receive a RunComplete, and raise if told to."""
        super().hook(complete)
        if self.hook_raises:
            raise self.hook_raises

    def accept(self, session: str, run_id: str, **options: Any) -> Run:
        """Accept, and know the run without the recording."""
        return self.runs.setdefault(run_id, super().accept(session, run_id, **options))

    def submit(self, session: str, run_id: str, **options: Any) -> Run:
        """Submit, and know the run without the recording."""
        return self.runs.setdefault(run_id, super().submit(session, run_id, **options))

    def _recorded(self, entry: dict[str, Any]) -> None:
        self.entries += 1
        if self.record_raises and self.entries == self.record_fails_at:
            self.ended = entry["event"] == "end"
            self.blind = not self.ended
            raise self.record_raises
        super()._recorded(entry)

    def check(self) -> None:
        """Check, unless the monitor is blind: then only the RunCompletes count, in the end."""
        if not self.blind:
            super().check()
        elif self.loop.problems:
            raise AssertionError(f"the loop was told: {told_to(self.loop)}")

    def finish(self) -> None:
        """Let everything come to its end, and see that nothing is owed."""
        if not self.blind:
            super().finish()
            return
        closing = self.close()
        for _ in range(200):
            self.loop.settle()
            if closing.done() or not self._go_on():
                break
        self.count_completes()
        left = [task.get_name() for task in self.loop.tasks if not task.done()]
        expect(not left, f"tasks are left behind: {', '.join(left)}")

    def count_completes(self) -> None:
        """Count the RunCompletes by themselves, the recording aside."""
        events = [event for event in self._events._unread if isinstance(event, RunComplete)]
        counts = Counter(complete.run_id for complete in (*events, *self.hooked, *self.published.values()))
        for run_id, run in self.runs.items():
            if counts[run_id] != 1 and run.state is not State.ACCEPTED and not self._never_began(run):
                wrong = f"{run_id} gets {counts[run_id]} RunCompletes: it should get one"
                raise Broken(Violation(Property.EXACTLY_ONE_COMPLETE, wrong))

    def _never_began(self, run: Run) -> bool:
        """Whether the run waits for a turn whose task has taken no step: then nobody can complete it."""
        core = self.dispatcher._sessions.get(run.session_id)
        turn = None if core is None else core.settling.get(run.seq) or core.turn
        return turn is not None and turn.phase is STARTING


_ENDING: dict[Answer, type[BaseException]] = {"interrupt": KeyboardInterrupt, "exit": SystemExit}
Inject: TypeAlias = Callable[[Stage], None]


class _Play:
    """One scenario in plain order, spoiled once."""

    def __init__(self, scenario: Scenario, make: Make) -> None:
        self.world = FaultyWorld(make)
        self.stage = Stage(scenario, "stock", make, self.world)
        self.interrupts = 0
        """How often what is to end the process has come out of the loop."""
        self.steps = 0

    def run(self, at: int = -1, inject: Inject | None = None, *, over: bool = False) -> None:
        """Play; after ``at`` steps, inject. If then it is over, the callers do nothing more.

        It is also over after an interrupt: then every task is cancelled, as ``asyncio.run`` does.
        """
        while not (over and self.interrupts):
            if self.steps == at and inject is not None:
                inject(self.stage)
                if over:
                    break
            options = self.stage.options()
            if not options:
                break
            with self._interruptible():
                self.stage.take(options[0])
            self.world.check()
            self.steps += 1
        if self.interrupts and over:
            _cancel_all(self.stage)
        while True:
            before = self.interrupts
            with self._interruptible():
                self.stage.finish()
            if self.interrupts == before:
                return

    @contextlib.contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Go on after what is to end the process has come out of the loop, if it was injected.

        A KeyboardInterrupt of somebody's own is theirs: it ends the whole driver.
        """
        try:
            yield
        except (KeyboardInterrupt, SystemExit) as ending:
            if not any(ending is each for each in self.injected()):
                raise
            self.interrupts += 1
            expect(self.interrupts < 100, "the interrupts do not end")

    def injected(self) -> list[object]:
        """Return what runner, store, hook and recording were given to raise, and may be raising."""
        world = self.world
        return [
            *self.stage.given,
            *self.stage.scenario.store,
            world.hook_raises,
            world.record_raises,
            world.log_raises,
        ]

    def see_all_written(self) -> None:
        """See that every run that was active or cancelled on entry is on record: no write has failed."""
        for run_id, complete in self.world.published.items():
            if run_id in self.world.active and complete.message_id is None:
                unwritten = (
                    f"{run_id} is not on record, and the store would have written it: {complete.error}"
                )
                raise Broken(Violation(Property.ON_RECORD, unwritten))


def inject_faults(scenarios: Iterable[str] = SPOILED, *, make: Make = Dispatcher) -> Faults:
    """Spoil every scenario at every point, one at a time; stop when something is wrong after it."""
    found = Faults()
    with _watching() as warned, contextlib.suppress(_Stop):
        for name in scenarios:
            _Injector(name, make, found, warned).spoil()
    return found


def replay_fault(scenario: str, number: int, *, make: Make = Dispatcher) -> Faults:
    """Make one injection again, and nothing else.

    Raises ValueError when the scenario has no such injection.
    """
    found = Faults()
    with _watching() as warned, contextlib.suppress(_Stop):
        injector = _Injector(scenario, make, found, warned, only=number)
        injector.spoil()
        if not 0 <= number <= injector.number:
            raise ValueError(f"{scenario} has the injections 1 to {injector.number}, and no {number}")
    return found


@contextlib.contextmanager
def _watching() -> Iterator[list[warnings.WarningMessage]]:
    """Collect warnings, also those of what is collected as garbage."""
    gc.collect()
    gc.freeze()
    try:
        with without_log(), warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            yield warned
    finally:
        gc.unfreeze()


class _Stop(Exception):
    """Something was found."""


class _Injector:
    def __init__(
        self,
        name: str,
        make: Make,
        found: Faults,
        warned: list[warnings.WarningMessage],
        only: int | None = None,
    ) -> None:
        self._name, self._scenario = name, SPOILED[name]
        self._make, self._found, self._warned, self._only = make, found, warned, only
        self.number = 0
        """The number of the last injection."""

    def spoil(self) -> None:
        """Inject every kind of fault at every point of the scenario, or only the one that is wanted."""
        points = self._look_around()
        self._cancel_tasks(points)
        self._fail_writes()
        self._fail_callbacks()
        self._fail_factories()
        self._interrupt()
        for at in range(len(points) + 1):
            self._try(
                "shutdown", f"every task cancelled after {at} steps", at=at, inject=_cancel_all, over=True
            )
            self._drop_at(at)

    def _look_around(self) -> list[list[tuple[str, int]]]:
        """Play unspoiled; return, for each step, the tasks that were suspended after it: name and index."""
        play = _Play(self._scenario, self._make)
        points: list[list[tuple[str, int]]] = []
        reached: set[tuple[int, int]] = set()
        ran: Counter[int] = Counter()
        loop = play.world.loop
        try:
            while options := play.stage.options():
                running = loop.ready[0] if options[0][0] == "run" else None
                task = getattr(running and running._callback, "__self__", None)  # type: ignore[attr-defined]  # not in the stubs
                play.stage.take(options[0])
                if task in loop.tasks:
                    ran[loop.tasks.index(task)] += 1
                live = [(n, each) for n, each in enumerate(loop.tasks) if not each.done()]
                reached |= {(n, ran[n]) for n, _ in live}
                points.append([(_said_of_task(each), n) for n, each in live])
            play.stage.finish()
        except Exception as wrong:
            play.world.abandon()
            self._stop("none", "nothing spoiled", wrong)
        self._entries, self._calls = play.world.entries, play.world.store.calls
        self._turns = sum(conducts(task.get_coro()) for task in loop.tasks)
        self._found.awaits += len(reached)
        return points

    def _cancel_tasks(self, points: list[list[tuple[str, int]]]) -> None:
        """Cancel each task after each step that finds it suspended: when it just was, and any time later."""
        for at, tasks in enumerate(points, 1):
            for who, number in tasks:
                where = f"the task of {who} cancelled after {at} steps"
                self._try("cancel", where, at=at, inject=partial(_cancel, number=number))

    def _fail_writes(self) -> None:
        kinds: list[tuple[str, Plan, Answer]] = [
            ("fails", "fails", "ok"),
            ("is slow, then fails", "slow", "fails"),
            ("takes too long", "slow", "late"),
            ("is slow", "slow", "ok"),
            ("raises CancelledError", asyncio.CancelledError(), "ok"),
            ("is slow, then raises CancelledError", "slow", "cancelled"),
        ]
        for call in range(self._calls):
            for said, plan, answer in kinds:
                spoiled = self._store(call, plan, answer)
                self._try("store", f"write {call + 1}, which {said}", spoiled)

    def _store(self, call: int, plan: Plan, answer: Answer) -> Scenario:
        plans: list[Plan] = [*self._scenario.store]
        while len(plans) <= call:
            plans.append("now")
        plans[call] = plan
        return dataclasses.replace(self._scenario, store=tuple(plans), answers=(answer, "ok"))

    def _fail_callbacks(self) -> None:
        self._try("callback", "an on_complete that raises", hook_raises=RunnerFailed("no"))
        for at in range(1, self._entries + 1):
            where = f"a recording that fails at entry {at}"
            self._try("callback", where, record_raises=StoreDown("no"), record_fails_at=at)

        self._try("logging", "a log handler that raises at every line", log_raises=RunnerFailed("no"))

    def _fail_factories(self) -> None:
        """Have each turn made by a task factory that does something else, and then every turn."""
        for how, factory in FACTORIES.items():
            for nth in range(1, self._turns + 1):
                made = Factory(factory, nth)
                self._try("factory", f"turn {nth}, whose task factory {how}", factory=made)
            self._try("factory", f"a task factory that {how}, for every turn", factory=Factory(factory))

    def _interrupt(self) -> None:
        """Raise what is to end the process at every point of the runner, the store and the callbacks."""
        for name, kind in _ENDING.items():
            for lead in "abcd":
                commands = self._scenario.commands(lead)
                for at in range(len(commands)):
                    runner = {**self._scenario.runner, lead: (*commands[:at], name)}
                    where = f"{kind.__name__} in the runner of {lead}, command {at + 1}"
                    self._interrupt_by(where, dataclasses.replace(self._scenario, runner=runner))
            for call in range(self._calls):
                for how in ("", ", which is slow"):
                    where = f"{kind.__name__} in write {call + 1}{how}"
                    self._interrupt_by(where, self._store(call, "slow" if how else kind(), name))
            self._interrupt_by(f"{kind.__name__} in an on_complete", hook_raises=kind())
            for at in range(1, self._entries + 1):
                where = f"{kind.__name__} in the recording at entry {at}"
                self._interrupt_by(where, record_raises=kind(), record_fails_at=at)

    def _interrupt_by(self, where: str, scenario: Scenario | None = None, **told: Any) -> None:
        self._try("interrupt", where, scenario, **told)
        self._try("interrupt", f"{where}, and a shut-down", scenario, over=True, **told)

    def _is_wanted(self) -> bool:
        """Give the next injection its number, and say whether to make it."""
        self.number += 1
        return self._only in (None, self.number)

    def _try(
        self,
        kind: str,
        where: str,
        scenario: Scenario | None = None,
        *,
        at: int = -1,
        inject: Inject | None = None,
        over: bool = False,
        **told: Any,
    ) -> None:
        """Play with one fault, and see that all is well after it."""
        if not self._is_wanted():
            return
        play = _Play(scenario or self._scenario, self._make)
        for name, value in told.items():
            setattr(play.world, name, value)
        if play.world.factory is not None:
            play.world.loop.set_task_factory(play.world.factory)
        raised: list[BaseException] = []
        try:
            with log_that_raises(play.world.log_raises):
                play.run(at, inject, over=over)
            raised += [
                each for each in play.injected() if isinstance(each, BaseException) and each.__traceback__
            ]
            ending = any(isinstance(each, KeyboardInterrupt | SystemExit) for each in raised)
            expect(ending == (play.interrupts > 0), "what is to end the process has not come out of the loop")
            if scenario is None and not play.world.blind:
                play.see_all_written()
            expect(play.world.factory is None or play.world.factory.calls, "the task factory was not asked")
        except Exception as wrong:
            play.world.abandon()
            self._stop(kind, where, wrong)
        self._found.injections[kind] += inject is not None or bool(raised) or kind in ("store", "factory")
        for each in raised:  # it holds on to the world that it went through, and may be raised again
            each.__traceback__ = each.__context__ = None
        self._see_nobody_warned(kind, where, play)

    def _see_nobody_warned(self, kind: str, where: str, play: _Play, *, unclosed: bool = False) -> None:
        loop = play.world.loop
        loop.tasks.clear()
        play.world.dispatcher._warns_if_dropped = True
        del play.stage, play.world
        gc.collect()
        dropped = [each for each in self._warned if issubclass(each.category, ResourceWarning)]
        if bool(dropped) != unclosed:
            said = "is" if dropped else "is not"
            self._stop(
                kind, where, AssertionError(f"a dispatcher with runs in flight {said} said to be dropped")
            )
        for each in dropped:
            self._warned.remove(each)
        if loop.problems:
            self._stop(kind, where, AssertionError(f"the loop was told: {told_to(loop)}"))
        if self._warned:
            self._stop(kind, where, AssertionError(f"somebody is warned: {self._warned[0].message}"))

    def _drop_at(self, at: int) -> None:
        """Close the loop with tasks pending, and drop them, in the order in which they were made."""
        if not self._is_wanted():
            return
        kind, where = "dropped", f"the loop closed after {at} steps"
        self._found.injections[kind] += 1
        play = _Play(self._scenario, self._make)
        world = play.world
        try:
            for _ in range(at):
                play.stage.take(play.stage.options()[0])
            unclosed = bool(world.dispatcher._sessions)
            _drop(world)
            unclosed = unclosed and not world.dispatcher._closed
        except Exception as wrong:
            world.abandon()
            self._stop(kind, where, wrong)
        del world
        self._see_nobody_warned(kind, where, play, unclosed=unclosed)

    def _stop(self, kind: str, where: str, wrong: Exception) -> None:
        broken, what = None, f"{type(wrong).__name__}: {wrong}"
        if isinstance(wrong, Broken):
            broken, what = wrong.violation
        elif type(wrong) is AssertionError:
            what = str(wrong)
        self._found.failure = FaultFound(kind, self._name, self.number, where, broken, what, self._make)
        raise _Stop


def _cancel(stage: Stage, number: int) -> None:
    with stage.world.loop:
        stage.world.loop.tasks[number].cancel()


def _cancel_all(stage: Stage) -> None:
    with stage.world.loop:
        for task in stage.world.loop.tasks:
            task.cancel()


def _drop(world: FaultyWorld) -> None:
    """Close the loop, and drop what is pending on it, as the interpreter does."""
    world.loop.close()
    for task in world.loop.tasks:
        if not task.done():
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # not in the stubs
            try:
                task.get_coro().close()
            except (RuntimeError, WrongLoop):
                if turn_of(task):  # else it is a caller's own, which would go on waiting
                    raise
    world.count_completes()


def _said_of_task(task: asyncio.Task[Any]) -> str:
    lead = turn_of(task)
    return task.get_name() if lead is None else f"the turn of {lead}"
