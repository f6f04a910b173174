"""A life inside another framework's stack: a dispatcher under watch, which must leave nothing behind.

A stack is entered on the running loop, and says of a task whether it came out of it, so that a life can tell
that the stack was really there.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import json
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from dispatching import steps
from turngate import Dispatcher, Messages, Run, RunComplete, Turn
from turngate_verify.trace import check

HANG = 60.0  # seconds after which a life counts as hung; nothing is measured by it
Sees = Callable[[asyncio.Task[Any]], bool]


@dataclass(frozen=True)
class Stack:
    """What is put around a loop, the loop itself, and why it cannot be had here, if it cannot."""

    name: str
    install: Callable[[], AbstractContextManager[Sees]]
    loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    missing: str = ""

    def __str__(self) -> str:
        return self.name


class Life:
    """A dispatcher under watch, from its first prompt to its end."""

    def __init__(self, sees: Sees) -> None:
        self.sees = sees
        self.entries: list[dict[str, Any]] = []
        self.prompts: list[str] = []
        self.d: Dispatcher
        self._begun: set[str] = set()
        self._running: Counter[str] = Counter()
        self._offences: list[str] = []

    def open(self, runner: Callable[[Turn], Awaitable[Any]], messages: Messages | None = None) -> Dispatcher:
        """Make the dispatcher, and watch it."""

        async def watched(turn: Turn) -> Any:
            session = turn.run.session_id
            self._begun.add(turn.run.run_id)
            self.prompts.append(turn.run.prompt)
            self._running[session] += 1
            if self._running[session] > 1:
                self._offences.append(f"ONE_TURN: {turn} began while another ran")
            task = asyncio.current_task()
            if task is None or not self.sees(task):
                self._offences.append(f"{task} did not come out of the stack")
            try:
                return await runner(turn)
            finally:
                self._running[session] -= 1

        self.d = Dispatcher(watched, messages=messages, record=self.entries.append)
        self._events = self.d.subscribe()
        return self.d

    async def begun(self, run: Run) -> Run:
        """Wait until the runner is called for the run."""
        while run.run_id not in self._begun:
            assert run.complete is None, f"{run} ended before its runner was called"
            await asyncio.sleep(0)
        return run

    async def end(self) -> None:
        """Close the dispatcher, if there is one, and hold what it did to what it promised."""
        if "d" not in vars(self):
            return
        await self.d.aclose()
        completes = [event async for event in self._events if isinstance(event, RunComplete)]
        accepted = [entry["run"] for entry in self.entries if entry["event"] == "accept"]
        assert sorted(complete.run_id for complete in completes) == sorted(accepted)
        for complete in completes:
            assert await self.d.wait(complete.run_id) == complete
        judged = check(json.dumps(entry) for entry in self.entries)
        assert judged.offence is None, judged.offence
        assert judged.whole
        assert not self._offences, self._offences
        await self._check_messages(completes)

    async def _check_messages(self, completes: list[RunComplete]) -> None:
        had_turn = {e["run"] for e in self.entries if e["event"] in ("fold", "handoff")}
        had_turn |= {e["run"] for e in self.entries if e["event"] == "enter" and e["state"] != "queued"}
        for complete in completes:
            of_session = await self.d.messages.list(complete.session_id)
            prompts = [m for m in of_session if (m.run_id, m.role) == (complete.run_id, "user")]
            replies = [m for m in of_session if m.id == complete.message_id]
            if complete.run_id not in had_turn:
                assert not prompts
                assert complete.message_id is None
            else:
                assert len(prompts) == 1, complete
                assert [m.role for m in replies] == ["assistant"], complete
                reason = "canceled" if complete.cancelled else "error" if complete.error else "end_turn"
                assert (replies[0].finish_reason, replies[0].text) == (reason, complete.text)


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop go on until it is so."""
    while not condition():
        await asyncio.sleep(0)


Scenario = Callable[[Life], Coroutine[Any, Any, None]]


def live(stack: Stack, scenario: Scenario) -> None:
    """Play the scenario in the stack; nothing may hang, be left behind or be complained about."""
    problems: list[object] = []
    gc.freeze()  # so that collecting looks only at what this life leaves, and is quick

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, problem: problems.append(problem))
        bound = asyncio.timeout(HANG)
        with stack.install() as sees:
            life = Life(sees)
            try:
                async with bound:
                    await scenario(life)
                    await life.end()
            except TimeoutError:
                if bound.expired():
                    raise AssertionError(f"hung: {vars(life).get('d')}") from None
                raise
        await steps()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, f"left behind: {left}"
        gc.collect()

    hook, sys.unraisablehook = sys.unraisablehook, problems.append
    # A life that does not end although it is cancelled ends here, with the process.
    faulthandler.dump_traceback_later(2 * HANG, exit=True)
    try:
        with asyncio.Runner(loop_factory=stack.loop) as runner:
            runner.run(main())
        gc.collect()
    finally:
        faulthandler.cancel_dump_traceback_later()
        sys.unraisablehook = hook
    assert not problems, problems
