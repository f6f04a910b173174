"""The rules of all actors together, and how an example ends."""

from __future__ import annotations

from turngate import UnknownRun
from turngate_verify.drivers.rules.hooks import HookActions
from turngate_verify.drivers.rules.line import LineRules
from turngate_verify.drivers.rules.loops import LoopRules
from turngate_verify.drivers.rules.reached import ways_to_end
from turngate_verify.drivers.rules.runners import RunnerRules
from turngate_verify.drivers.rules.stores import StoreRules
from turngate_verify.drivers.rules.subscribers import SubscriberRules
from turngate_verify.world.world import without_log

CUT_OFF = "a subscriber is cut off"
"""How the tally names it that a subscriber lagged too far behind and was cut off."""


class TurngateRules(LineRules, HookActions, SubscriberRules, RunnerRules, StoreRules, LoopRules):
    """The state machine that Hypothesis runs: everything that can be done to a dispatcher."""

    def teardown(self) -> None:
        """Let everything come to its end, unless something is broken already."""
        try:
            if not self._broken:
                self._judge(self._finish)
        finally:
            with without_log():
                self.world.abandon()

    def _finish(self) -> None:
        self.world.finish()
        for reader in self.readers:
            reader.expect_nothing_missing()
            if reader.cut_off:
                self.tally.reached.add(CUT_OFF)
        if any(isinstance(task.exception(), UnknownRun) for task in self.world.waits if not task.cancelled()):
            self.tally.reached.add(f"refused: {UnknownRun.__name__}")
        self.tally.reached |= ways_to_end(self.world)
