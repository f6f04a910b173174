"""What hooks do: a hook is the ``on_complete`` that a caller gives with a prompt.

The dispatcher calls a hook in the middle of its own work. So the hook calls the
dispatcher at a delicate moment when it acts at once ("now"), and at an ordinary
one when it acts in a task ("later").
"""

from __future__ import annotations

import asyncio

from turngate import RunComplete
from turngate_verify.drivers.rules.refusals import RefusalsExpected
from turngate_verify.drivers.rules.world import RulesWorld
from turngate_verify.world.failures import RunnerFailed

HOOKS = (
    "listen",
    "raise",
    "give up",
    *(f"{act} now" for act in ("cancel", "cancel all", "clear", "submit", "start", "enter", "release")),
    "cancel later",
    "submit later",
)
"""What a hook can do. To listen is to do nothing; to give up is to raise CancelledError."""


class HookActions(RefusalsExpected):
    """An example whose hooks act. When a run completes, its hook does what ``hooks`` says."""

    def _new_world(self, turns_limit: int | None) -> RulesWorld:
        world = super()._new_world(turns_limit)
        world.on_hook = self._call_hook
        return world

    def _call_hook(self, complete: RunComplete) -> None:
        does = self.hooks[complete.run_id]
        self.tally.reached.add(f"hook: {does}")
        if does == "raise":
            raise RunnerFailed("the hook failed")
        if does == "give up":
            raise asyncio.CancelledError
        act, _, moment = does.rpartition(" ")
        if moment == "now":
            self._act(act, complete)
        elif moment == "later" and not self.world.loop.is_closed():  # it is when an old turn is collected
            self.world.loop.create_task(self._act_later(act, complete), name=f"hook of {complete.run_id}")

    async def _act_later(self, act: str, complete: RunComplete) -> None:
        self._act(act, complete)

    def _act(self, act: str, complete: RunComplete) -> None:
        session, new = complete.session_id, f"after {complete.run_id}"
        accepted = [run for run in self.accepted if self.world.runs[run].session_id == session]
        try:
            match act:
                case "cancel":
                    self.world.cancel(session)
                case "cancel all":
                    self.world.cancel_all()
                case "clear":
                    self.world.clear(session)
                case "submit":
                    self._offer(session, new, self.world.submit)
                case "start":
                    if self._offer(session, new, self.world.accept):
                        self.world.enter(new)
                case "enter":
                    for run in accepted:
                        self.world.enter(run)
                case _:
                    for run in accepted[:1]:
                        self.world.release(run)
        except Exception as exc:
            # The dispatcher catches what a hook raises. The world raises this one at the next check.
            self.world.monitor.errors.append(exc)
