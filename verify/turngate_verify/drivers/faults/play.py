"""One scenario played in plain order and spoiled once; and what can be done to its tasks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TypeAlias

from turngate import WrongLoop
from turngate_model import Property, Violation
from turngate_verify.drivers.faults.world import FaultyWorld
from turngate_verify.world.expecting import Broken, expect
from turngate_verify.world.scenarios import Scenario
from turngate_verify.world.stage import Stage, turn_of
from turngate_verify.world.virtual_loop import coroutine_of
from turngate_verify.world.world import Make

Inject: TypeAlias = Callable[[Stage], None]
"""What is done to the stage at one point of a play."""


class Play:
    """One scenario in plain order, spoiled once."""

    def __init__(self, scenario: Scenario, make: Make) -> None:
        self.world = FaultyWorld(make, turns_limit=scenario.turns_limit)
        self.stage = Stage(scenario, "stock", make, self.world)
        self.interrupts = 0
        """How often an injected KeyboardInterrupt or SystemExit has come out of the loop."""
        self._steps = 0

    def run(self, at: int = -1, inject: Inject | None = None, *, shut_down: bool = False) -> None:
        """Play the scenario to its end; after ``at`` steps, inject.

        With ``shut_down``, the callers do nothing more after the injection. They
        also do nothing more after an interrupt, and then every task is cancelled:
        that is what ``asyncio.run`` does.
        """
        while not (shut_down and self.interrupts):
            if self._steps == at and inject is not None:
                inject(self.stage)
                if shut_down:
                    break
            options = self.stage.options()
            if not options:
                break
            with self._interruptible():
                self.stage.take(options[0])
            self.world.check()
            self._steps += 1
        if self.interrupts and shut_down:
            cancel_all(self.stage)
        while True:
            before = self.interrupts
            with self._interruptible():
                self.stage.finish()
            if self.interrupts == before:
                return

    @contextlib.contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Count an injected KeyboardInterrupt or SystemExit, and go on.

        One that was not injected, such as the user's own Ctrl-C, ends the driver.
        """
        try:
            yield
        except (KeyboardInterrupt, SystemExit) as ending:
            if not any(ending is each for each in self.injected()):
                raise
            self.interrupts += 1
            expect(self.interrupts < 100, "the interrupts do not end")

    def injected(self) -> list[object]:
        """Return the exceptions that were injected; among them are plans of the store that are none."""
        world = self.world
        return [
            *self.stage.given,
            *self.stage.scenario.store,
            world.hook_raises,
            world.record_raises,
            world.log_raises,
        ]

    def expect_all_written(self) -> None:
        """Expect a message of every run that was active or cancelled on entry: no write was made to fail."""
        for run_id, complete in self.world.monitor.published.items():
            if run_id in self.world.monitor.active and complete.message_id is None:
                unwritten = (
                    f"{run_id} is not on record, and the store would have written it: {complete.error}"
                )
                raise Broken(Violation(Property.ON_RECORD, unwritten))


def cancel_task(stage: Stage, number: int) -> None:
    """Cancel the task that was made as number ``number``."""
    with stage.world.loop:
        stage.world.loop.tasks[number].cancel()


def cancel_all(stage: Stage) -> None:
    """Cancel every task."""
    with stage.world.loop:
        for task in stage.world.loop.tasks:
            task.cancel()


def drop_all(world: FaultyWorld) -> None:
    """Close the loop, and drop its pending tasks, as the interpreter does when it exits."""
    world.loop.close()
    for task in world.loop.tasks:
        if not task.done():
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # not in the stubs
            try:
                coroutine_of(task).close()
            except (RuntimeError, WrongLoop):
                # A caller's task may wait again instead of ending. A turn's task must not.
                if turn_of(task):
                    raise
    world.count_completes()
