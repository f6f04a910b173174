"""A world whose hooks, recording, log and task factory misbehave on demand."""

from __future__ import annotations

from collections import Counter
from typing import Any

from turngate import Run, RunComplete, State
from turngate._core import STARTING, WAITING
from turngate_model import Property, Violation
from turngate_verify.world.ending import come_to_rest
from turngate_verify.world.expecting import Broken, expect
from turngate_verify.world.foreign import TaskFactory
from turngate_verify.world.monitor import told_to
from turngate_verify.world.stage import PatientWorld


class FaultyWorld(PatientWorld):
    """A world in which the parts around the dispatcher may misbehave.

    When the recording raises, the dispatcher records nothing more. The monitor
    is then blind, and the world only counts the RunCompletes.
    """

    hook_raises: BaseException | None = None
    """What every hook raises."""
    record_raises: BaseException | None = None
    """What the recording raises, once."""
    record_fails_at = 0
    """At which entry the recording raises, counted from 1."""
    entries = 0
    """How many entries the dispatcher has recorded."""
    log_raises: BaseException | None = None
    """What the log handler raises at every line."""
    factory: TaskFactory | None = None
    """The task factory of the loop."""

    def hook(self, complete: RunComplete) -> None:
        """Receive a RunComplete, and raise if the injection says so."""
        super().hook(complete)
        if self.hook_raises:
            raise self.hook_raises

    def record(self, entry: dict[str, Any]) -> None:
        """Pass an entry to the monitor, and raise if the injection says so."""
        self.entries += 1
        if self.record_raises and self.entries == self.record_fails_at:
            self.monitor.ended = entry["event"] == "end"
            self.blind = not self.monitor.ended
            raise self.record_raises
        super().record(entry)

    def check(self) -> None:
        """Check the world. While the monitor is blind, check only that the loop has reported no problem."""
        if not self.blind:
            super().check()
        elif self.loop.problems:
            raise AssertionError(f"the loop was told: {told_to(self.loop)}")

    def finish(self) -> None:
        """Let everything end, and expect that no RunComplete and no task is outstanding."""
        if not self.blind:
            super().finish()
            return
        closing = self.close()
        come_to_rest(self, closing)
        self.count_completes()
        left = [task.get_name() for task in self.loop.tasks if not task.done()]
        expect(not left, f"tasks are left behind: {', '.join(left)}")

    def count_completes(self) -> None:
        """Expect one RunComplete for every run that has entered, whatever the recording says."""
        monitor = self.monitor
        unread = [event for event in monitor.events._unread if isinstance(event, RunComplete)]
        seen = (*unread, *monitor.hooked, *monitor.published.values())
        counts = Counter(complete.run_id for complete in seen)
        for run_id, run in self.runs.items():
            if counts[run_id] != 1 and run.state is not State.ACCEPTED and not self._never_began(run):
                wrong = f"{run_id} gets {counts[run_id]} RunCompletes: it should get one"
                raise Broken(Violation(Property.EXACTLY_ONE_COMPLETE, wrong))

    def _never_began(self, run: Run) -> bool:
        """Whether the run waits for a turn whose task has not begun. Such a run cannot complete.

        The same is true of a run that waits for the place which such a turn has.
        """
        core = self.dispatcher._sessions.cores.get(run.session_id)
        turn = None if core is None else core.settling.get(run.seq) or core.turn
        if turn is None:
            return False
        others = [
            each.turn.phase for each in self.dispatcher._sessions.cores.values() if each.turn is not None
        ]
        return turn.phase is STARTING or (turn.phase is WAITING and STARTING in others)
