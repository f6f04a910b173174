"""Trials: each makes one numbered injection into a scenario, and checks what holds afterwards."""

from __future__ import annotations

import gc
import warnings
from typing import Any, NoReturn

from turngate_verify.drivers.faults.found import FaultFound, Faults
from turngate_verify.drivers.faults.play import Inject, Play, drop_all
from turngate_verify.drivers.faults.scenarios import SPOILED
from turngate_verify.words import counted
from turngate_verify.world.expecting import Broken, expect
from turngate_verify.world.foreign import log_that_raises
from turngate_verify.world.monitor import told_to
from turngate_verify.world.scenarios import Scenario
from turngate_verify.world.world import Make

_ALWAYS_SPOIL = ("store", "factory")
"""The kinds of injections that spoil something even if they raise nothing."""


class FaultStop(Exception):
    """Something does not hold: no more injections."""


class Trials:
    """Makes injections into one scenario, each in a play of its own. With ``only``, makes just that one."""

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
        shut_down: bool = False,
        **faults: Any,
    ) -> None:
        """Make one injection, and expect that all is well after it.

        An injection is another scenario, or something done after ``at`` steps, or
        ``faults``: the values that the attributes of the FaultyWorld get.
        """
        if not self._is_wanted():
            return
        play = Play(scenario or self._scenario, self._make)
        for name, value in faults.items():
            setattr(play.world, name, value)
        if play.world.factory is not None:
            play.world.loop.set_task_factory(play.world.factory)
        raised: list[BaseException] = []
        try:
            with log_that_raises(play.world.log_raises):
                play.run(at, inject, shut_down=shut_down)
            raised += _raised_in(play)
            ending = any(isinstance(each, KeyboardInterrupt | SystemExit) for each in raised)
            expect(ending == (play.interrupts > 0), "what is to end the process has not come out of the loop")
            if scenario is None and not play.world.blind:
                play.expect_all_written()
            expect(play.world.factory is None or play.world.factory.calls, "the task factory was not asked")
            if "stuck" in play.stage.scenario.store:
                expect(
                    play.world.store.given_up, "the dispatcher does not give up a write that takes too long"
                )
                self._found.timed_out += 1
        except Exception as wrong:
            play.world.abandon()
            self._stop(kind, where, wrong)
        # What was to be raised and never was has spoiled nothing, and does not count.
        self._found.injections[kind] += inject is not None or bool(raised) or kind in _ALWAYS_SPOIL
        for each in raised:
            # An exception keeps alive the frames it went through, and so the world.
            each.__traceback__ = each.__context__ = None
        self._expect_no_warnings(kind, where, play)

    def _drop_at(self, at: int) -> None:
        """Close the loop after ``at`` steps, and drop its tasks in the order in which they were made."""
        if not self._is_wanted():
            return
        kind, where = "dropped", f"the loop closed after {counted(at, 'step')}"
        self._found.injections[kind] += 1
        play = Play(self._scenario, self._make)
        world = play.world
        try:
            for _ in range(at):
                play.stage.take(play.stage.options()[0])
            unclosed = bool(world.dispatcher._sessions.cores)
            drop_all(world)
            unclosed = unclosed and not world.dispatcher._close.is_done
        except Exception as wrong:
            world.abandon()
            self._stop(kind, where, wrong)
        del world
        self._expect_no_warnings(kind, where, play, unclosed=unclosed)

    def _expect_no_warnings(self, kind: str, where: str, play: Play, *, unclosed: bool = False) -> None:
        """Drop the play, and expect no warning while it is garbage-collected.

        There must be one ResourceWarning if the dispatcher was dropped ``unclosed``.
        """
        loop = play.world.loop
        loop.tasks.clear()
        play.world.dispatcher._home._warns_if_dropped = True
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
            self._stop(kind, where, AssertionError(f"there is a warning: {self._warned[0].message}"))

    def _stop(self, kind: str, where: str, wrong: Exception) -> NoReturn:
        """Keep what is wrong as the failure, and make no more injections."""
        broken, what = None, f"{type(wrong).__name__}: {wrong}"
        if isinstance(wrong, Broken):
            broken, what = wrong.violation
        elif type(wrong) is AssertionError:
            what = str(wrong)
        self._found.failure = FaultFound(kind, self._name, self.number, where, broken, what, self._make)
        raise FaultStop


def _raised_in(play: Play) -> list[BaseException]:
    """Return the injected exceptions that were raised: those with a traceback."""
    return [each for each in play.injected() if isinstance(each, BaseException) and each.__traceback__]
