"""The world of the rules. In it the dispatcher forgets completions, and hooks call the dispatcher.

An example has many runs and the dispatcher keeps few completions, so it forgets
some. A caller may then use a forgotten run_id for a new run: the run_id lives again.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from turngate import Dispatcher, Run, RunComplete, State, UnknownRun
from turngate_model import Property
from turngate_verify.trace import check
from turngate_verify.world.expecting import expect
from turngate_verify.world.world import Make, World

T = TypeVar("T")


class RulesWorld(World):
    """A world whose dispatcher keeps few completions, and whose hooks act."""

    def __init__(self, make: Make = Dispatcher, *, completions_kept: int, **options: Any) -> None:
        super().__init__(make, completions_kept=completions_kept, **options)
        self.completions_kept = completions_kept
        self.closing = False
        """Whether the dispatcher has begun to close."""
        self.former: dict[str, Run] = {}
        """The forgotten runs whose run_id was used again, by the name that each has since."""
        self.on_hook: Callable[[RunComplete], None] = lambda complete: None
        """What a hook does when the dispatcher calls it."""
        self.recording: list[str] = []
        """What the dispatcher has recorded; two runs with the same run_id have different names there."""
        self._recorded_as: dict[str, str] = {}
        self._to_hooks: set[int] = set()
        """The sequences of the runs whose RunComplete went to a hook."""

    @property
    def received(self) -> int:
        """How many RunCompletes the subscribers to all sessions have received so far."""
        unread = self.monitor.events._unread
        return len(self.monitor.delivered) + sum(isinstance(event, RunComplete) for event in unread)

    def call(self, coroutine: Coroutine[Any, Any, T], what: str) -> T:
        """Run a caller's coroutine, and leave the loop running if the caller is a hook or a task on it."""
        running = asyncio._get_running_loop()
        try:
            return super().call(coroutine, what)
        except asyncio.CancelledError as given_up:
            raise AssertionError(f"{what} is cancelled, and no caller has cancelled it") from given_up
        finally:
            asyncio._set_running_loop(running)

    def close(self, finish: float = 0.0) -> asyncio.Task[None]:
        """Close the dispatcher in a task, which rules can cancel."""
        return self.loop.create_task(self._close(finish), name="closes")

    async def _close(self, finish: float) -> None:
        self.closing = True
        await self.dispatcher.aclose(finish=finish)

    def begin_close(self, finish: float = 0.0) -> None:
        """Begin to close the dispatcher, without waiting for the end."""
        self.closing = True
        super().begin_close(finish)

    # Hooks.

    def hook(self, complete: RunComplete) -> None:
        """Receive a RunComplete, and act."""
        super().hook(complete)
        self._to_hooks.add(complete.seq)
        self.on_hook(complete)

    def release(self, run_id: str) -> None:
        """Close the handle of a run.

        If the run has a hook, do not demand that other sessions stay as they are: the hook may act there.
        """
        if run_id in self.monitor.hooks:
            self.call(self.runs[run_id].close(), f"release {run_id}")
        else:
            super().release(run_id)

    # Completions that the dispatcher has forgotten.

    def record(self, entry: dict[str, Any]) -> None:
        """Pass an entry to the monitor, and keep it."""
        super().record(entry)
        self.recording.append(json.dumps(self._with_recorded_names(entry)))

    def _with_recorded_names(self, entry: dict[str, Any]) -> dict[str, Any]:
        """Rename the runs of an entry, so that no two runs of the recording have the same name."""
        if entry["event"] == "accept":
            self._recorded_as[entry["run"]] = f"{entry['run']} #{entry['seq']}"
        named: dict[str, Any] = {
            key: self._recorded_as[entry[key]] for key in ("run", "into", "before") if entry.get(key)
        }
        if "runs" in entry:
            named["runs"] = [self._recorded_as[run] for run in entry["runs"]]
        return {**entry, **named}

    def knows(self, run_id: str) -> bool:
        """Whether the dispatcher must know a run: it is in flight, or among the last to complete."""
        forgotten = self.monitor.completed[: -self.completions_kept]
        return run_id in self.runs and self.runs[run_id].seq not in forgotten

    def wait(self, run_id: str) -> asyncio.Task[RunComplete]:
        """Wait for a run in a task. The dispatcher may have forgotten the run by the time the task runs."""
        return self.loop.create_task(self._wait(run_id), name=f"waits for {run_id}")

    async def _wait(self, run_id: str) -> RunComplete:
        task = asyncio.current_task()
        assert task is not None
        self.waits[task] = run_id
        known = self.knows(run_id)
        try:
            complete = await self.dispatcher.wait(run_id)
        except UnknownRun:
            if known:
                unknown = f"{run_id} is not known to who waits for it: it should stay queryable"
                self.monitor.violate(Property.TERMINAL_IS_FINAL, unknown)
            raise
        expect(known, f"{run_id} is found: its completion should be forgotten")
        return complete

    def rename_forgotten(self, run_id: str) -> None:
        """Give a forgotten run another name everywhere in the world: a new run is going to take its id."""
        former = f"{run_id}, life {len(self.former) + 1}"
        run = self.former[former] = self.runs[run_id]
        self.monitor.rename(run_id, former)
        for task, waited_for in self.waits.items():
            if waited_for == run_id:
                self.waits[task] = former
        written = self.store._inner._sessions.get(run.session_id, {})
        for message in [each for each in written.values() if each.run_id == run_id]:
            written[message.id] = message._replace(run_id=former)

    # The end.

    def finish(self) -> None:
        """Let everything come to its end, and expect that handles of forgotten runs have not changed."""
        super().finish()
        for name, run in self.former.items():
            if (run.state, run.complete) != (State.COMPLETE, self.monitor.published[name]):
                changed = f"the handle of {name} says {run}: it should say what was published"
                self.monitor.violate(Property.TERMINAL_IS_FINAL, changed)
        self.monitor.raise_what_is_broken()
        if not self.monitor.claimed:
            held = [*self.dispatcher._sessions.runs, *self.dispatcher._completions._kept]
            expect(len(held) <= self.completions_kept, f"of the runs, all of them complete, {held} are kept")
            told = [complete.seq for complete in self.monitor.delivered]
            decided = [seq for seq in self.monitor.completed if seq not in self._to_hooks]
            expect(told == decided, f"subscribers are told of {told}, which became complete as {decided}")
            self._expect_clean_recording()

    def _expect_clean_recording(self) -> None:
        """Expect that ``turngate trace``, which has only the recording, finds nothing wrong either."""
        checked = check(self.recording)
        if checked.offence:
            line, broken, what = checked.offence
            shown = "\n".join(self.recording[:line])
            raise AssertionError(
                f"all holds, and its recording is said to break {broken}: {what}; it ends\n{shown}"
            )
        expect(checked.whole, "the recording has no end")
