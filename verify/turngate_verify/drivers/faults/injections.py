"""Every injection into a scenario: each kind of fault, at every point where it can happen."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from functools import partial
from typing import Any, NamedTuple

from turngate_verify.drivers.faults.play import Play, cancel_all, cancel_task
from turngate_verify.drivers.faults.scenarios import LEAD_RUNS
from turngate_verify.drivers.faults.trials import Trials
from turngate_verify.words import counted
from turngate_verify.world.actors import Plan
from turngate_verify.world.failures import RunnerFailed, StoreDown
from turngate_verify.world.foreign import FACTORIES, TaskFactory, conducts
from turngate_verify.world.scenarios import Answer, Scenario
from turngate_verify.world.stage import turn_of

_ENDINGS: dict[Answer, type[BaseException]] = {"interrupt": KeyboardInterrupt, "exit": SystemExit}
"""What ends a process, by the command or the answer that raises it."""


class _Points(NamedTuple):
    """The points at which a scenario can be spoiled."""

    suspended: list[list[tuple[str, int]]]
    """For each step, the tasks suspended after it: whose task it is, and which of all tasks."""
    entries: int
    """How many entries the dispatcher records."""
    writes: int
    """How often it writes to the store."""
    turns: int
    """How many turns it starts."""


class Injections(Trials):
    """Every injection into one scenario, in the order of their numbers."""

    def make_all(self) -> None:
        """Make every injection, or only the one that is wanted."""
        points = self._find_points()
        self._cancel_tasks(points)
        self._fail_writes(points)
        self._fail_callbacks(points)
        self._replace_factories(points)
        self._interrupt(points)
        for at in range(len(points.suspended) + 1):
            where = f"every task cancelled after {counted(at, 'step')}"
            self._try("shutdown", where, at=at, inject=cancel_all, shut_down=True)
            self._drop_at(at)

    def _find_points(self) -> _Points:
        """Play the scenario unspoiled, and find the points at which it can be spoiled."""
        play = Play(self._scenario, self._make)
        suspended: list[list[tuple[str, int]]] = []
        awaits: set[tuple[int, int]] = set()
        resumed: Counter[int] = Counter()
        loop = play.world.loop
        try:
            while options := play.stage.options():
                running = loop.ready[0] if options[0][0] == "run" else None
                task = getattr(running and running._callback, "__self__", None)  # type: ignore[attr-defined]  # not in the stubs
                play.stage.take(options[0])
                if task in loop.tasks:
                    resumed[loop.tasks.index(task)] += 1
                live = [(n, each) for n, each in enumerate(loop.tasks) if not each.done()]
                awaits |= {(n, resumed[n]) for n, _ in live}
                suspended.append([(_name_of(each), n) for n, each in live])
            play.stage.finish()
        except Exception as wrong:
            play.world.abandon()
            self._stop("none", "nothing spoiled", wrong)
        self._found.awaits += len(awaits)
        turns = sum(conducts(task.get_coro()) for task in loop.tasks)
        return _Points(suspended, play.world.entries, play.world.store.calls, turns)

    def _cancel_tasks(self, points: _Points) -> None:
        """Cancel each task after each step that leaves it suspended, also while it waits for long."""
        for at, tasks in enumerate(points.suspended, 1):
            for whose, number in tasks:
                where = f"the task of {whose} cancelled after {counted(at, 'step')}"
                self._try("cancel", where, at=at, inject=partial(cancel_task, number=number))

    def _fail_writes(self, points: _Points) -> None:
        """Have each write fail, take its time, take too long, or raise CancelledError."""
        kinds: list[tuple[str, Plan, Answer]] = [
            ("fails", "fails", "ok"),
            ("is slow, then fails", "slow", "fails"),
            ("takes too long", "stuck", "late"),
            ("is slow", "slow", "ok"),
            ("raises CancelledError", asyncio.CancelledError(), "ok"),
            ("is slow, then raises CancelledError", "slow", "cancelled"),
        ]
        for nth in range(points.writes):
            for said, plan, answer in kinds:
                self._try("store", f"write {nth + 1}, which {said}", self._with_write(nth, plan, answer))

    def _with_write(self, nth: int, plan: Plan, answer: Answer) -> Scenario:
        """Return the scenario with another plan for one write, and another answer to the slow writes.

        A write that is stuck gets no answer. In plain order the slow writes get theirs, and then time passes.
        """
        plans: list[Plan] = [*self._scenario.store]
        while len(plans) <= nth:
            plans.append("now")
        plans[nth] = plan
        answers: tuple[Answer, Answer] = ("ok", answer) if plan == "stuck" else (answer, "ok")
        return dataclasses.replace(self._scenario, store=tuple(plans), answers=answers)

    def _fail_callbacks(self, points: _Points) -> None:
        """Have every hook raise, the recording at each entry, and the log handler at every line."""
        self._try("callback", "an on_complete that raises", hook_raises=RunnerFailed("no"))
        for at in range(1, points.entries + 1):
            where = f"a recording that fails at entry {at}"
            self._try("callback", where, record_raises=StoreDown("no"), record_fails_at=at)
        self._try("logging", "a log handler that raises at every line", log_raises=RunnerFailed("no"))

    def _replace_factories(self, points: _Points) -> None:
        """Have another task factory make the task of each turn alone, and then of every turn."""
        for how, factory in FACTORIES.items():
            for nth in range(1, points.turns + 1):
                made = TaskFactory(factory, nth)
                self._try("factory", f"turn {nth}, whose task factory {how}", factory=made)
            self._try("factory", f"a task factory that {how}, for every turn", factory=TaskFactory(factory))

    def _interrupt(self, points: _Points) -> None:
        """Raise KeyboardInterrupt and SystemExit in every command, write, hook and entry of the recording."""
        for name, kind in _ENDINGS.items():
            for lead in LEAD_RUNS:
                commands = self._scenario.commands(lead)
                for at in range(len(commands)):
                    runner = {**self._scenario.runner, lead: (*commands[:at], name)}
                    where = f"{kind.__name__} in the runner of {lead}, command {at + 1}"
                    self._interrupt_by(where, dataclasses.replace(self._scenario, runner=runner))
            for nth in range(points.writes):
                for how in ("", ", which is slow"):
                    where = f"{kind.__name__} in write {nth + 1}{how}"
                    self._interrupt_by(where, self._with_write(nth, "slow" if how else kind(), name))
            self._interrupt_by(f"{kind.__name__} in an on_complete", hook_raises=kind())
            for at in range(1, points.entries + 1):
                where = f"{kind.__name__} in the recording at entry {at}"
                self._interrupt_by(where, record_raises=kind(), record_fails_at=at)

    def _interrupt_by(self, where: str, scenario: Scenario | None = None, **faults: Any) -> None:
        """Interrupt, once with a loop that goes on and once with a loop that shuts down."""
        self._try("interrupt", where, scenario, **faults)
        self._try("interrupt", f"{where}, and a shut-down", scenario, shut_down=True, **faults)


def _name_of(task: asyncio.Task[Any]) -> str:
    lead = turn_of(task)
    return task.get_name() if lead is None else f"the turn of {lead}"
