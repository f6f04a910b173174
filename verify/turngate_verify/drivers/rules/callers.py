"""The rules of callers: they submit prompts, wait for runs, cancel, and close the dispatcher."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from hypothesis import strategies as st

from turngate import (
    AlreadyEntered,
    Dispatcher,
    DispatcherClosed,
    Run,
    RunConflict,
    State,
    WhenBusy,
    WrongLoop,
)
from turngate_verify.drivers.rules.example import SESSIONS, one_of, rule, when
from turngate_verify.drivers.rules.hooks import HOOKS
from turngate_verify.drivers.rules.refusals import RefusalsExpected
from turngate_verify.world.expecting import expect
from turngate_verify.world.virtual_loop import VirtualLoop

MOST_ACCEPTED = 4
"""While this many runs have not entered, callers accept no more."""
RUNS_BEFORE_CLOSING = 9
"""The dispatcher is not closed before it has had more runs than this."""

FROM_ANOTHER_LOOP: dict[str, Callable[[Dispatcher, Run], Coroutine[Any, Any, object]]] = {
    "accept": lambda d, run: d.accept(run.session_id, "prompt"),
    "submit": lambda d, run: d.submit(run.session_id, "prompt"),
    "ask": lambda d, run: d.ask(run.session_id, "prompt"),
    "enter": lambda d, run: d.enter(run),
    "wait": lambda d, run: d.wait(run.run_id),
    "wait for": lambda d, run: run.wait(),
    "release": lambda d, run: run.close(),
    "cancel": lambda d, run: d.cancel(run.session_id),
    "cancel of a run": lambda d, run: d.cancel_run(run.run_id),
    "cancel of all": lambda d, run: d.cancel_all(),
    "clear": lambda d, run: d.clear_queue(run.session_id),
    "hold": lambda d, run: d.hold(run.session_id),
    "hold of a run": lambda d, run: d.hold_run(run.run_id),
    "resume": lambda d, run: d.resume(run.session_id),
    "resume of a run": lambda d, run: d.resume_run(run.run_id),
    "stop": lambda d, run: d.stop(run.session_id),
    "move": lambda d, run: d.move(run.run_id, to="first"),
    "edit": lambda d, run: d.edit(run.run_id, prompt="edited"),
    "send now": lambda d, run: d.send_now(run.run_id),
    "close": lambda d, run: d.aclose(),
}
"""The calls that a dispatcher refuses when they come from another loop than its own."""

_PROMPTS: st.SearchStrategy[list[WhenBusy]] = st.lists(
    st.sampled_from(("fold", "fold", "fold", "queue", "interrupt", "reject")), min_size=1, max_size=3
)
"""Draws the ``when_busy`` of one to three prompts."""
_HOOKS = st.one_of(st.just(""), st.sampled_from(HOOKS))


class CallerRules(RefusalsExpected):
    """What callers do."""

    _run_ids = 0
    """How many run_ids the callers have used for new prompts."""

    @when(lambda self: not self.program)
    @rule(limit=st.sampled_from((1, 1, 2)))
    def turns_limit(self, limit: int) -> None:
        """Limit the runner calls: the dispatcher of this example has this many places, for three sessions."""
        self.world = self._new_world(limit)

    # Prompts.

    @when(lambda self: len(self.accepted) < MOST_ACCEPTED)
    @rule(session=SESSIONS, prompts=_PROMPTS, hook=_HOOKS)
    def accept(self, session: str, prompts: list[WhenBusy], hook: str) -> None:
        """Accept a prompt for each ``when_busy``, with a hook or none. Other rules enter the runs."""
        for when_busy in prompts:
            name = self._new_run_id()
            self.hooks[name] = hook
            self._offer(session, name, functools.partial(self.world.accept, hook=bool(hook)), when_busy)

    @when(lambda self: not self.world.closing and len(self.accepted) < MOST_ACCEPTED)
    @rule(session=SESSIONS, prompts=_PROMPTS, waits=st.booleans())
    def submit(self, session: str, prompts: list[WhenBusy], waits: bool) -> None:
        """Submit prompts, which enter on a later step. A caller who waits calls ``ask`` in a task instead."""
        for when_busy in prompts:
            if waits:
                self._callers.append(self.world.ask(session, self._new_run_id(), when_busy=when_busy))
            else:
                self._offer(session, self._new_run_id(), self.world.submit, when_busy)

    @when(lambda self: self.uncovered)
    @rule(
        run=one_of(lambda self: self.known),
        how=st.sampled_from(("accept", "submit", "conflict", "enter")),
    )
    def again(self, run: str, how: str) -> None:
        """Use a known run_id again: accept or submit the same prompt, accept another one, or enter."""
        known = self.world.runs[run]
        closed = DispatcherClosed if self.world.closing else None
        if how == "accept":
            same = self._expect_refusal(closed, self.world.accept, known.session_id, run)
            expect(closed or same is known, f"{run} is known, and another run was made for it")
        elif how == "submit":
            self._expect_refusal(closed, self.world.submit, known.session_id, run)
        elif how == "conflict":
            conflict = closed or RunConflict
            self._expect_refusal(conflict, self.world.accept, known.session_id, run, prompt="another prompt")
        else:
            self._expect_refusal(None if run in self.accepted else AlreadyEntered, self.world.enter, run)

    @when(lambda self: self.forgotten and len(self.accepted) < MOST_ACCEPTED)
    @rule(run=one_of(lambda self: self.forgotten), session=SESSIONS)
    def reuse(self, run: str, session: str) -> None:
        """Accept a prompt under a forgotten run_id. The old handle still tells how the old run ended."""
        if run not in self.forgotten:
            return  # A shrunk program may call this while the dispatcher still knows the run.
        old, complete = self.world.runs[run], self.world.monitor.published[run]
        self.world.rename_forgotten(run)
        expect(self._offer(session, run, self.world.accept) is not old, f"{run} is not forgotten")
        seen = len(self.world.monitor.history)
        self.world.call(old.close(), f"release {run}, as it was")
        told = self.world.call(old.wait(), f"wait for {run}, as it was")
        expect(told == complete, f"the handle of {run}, as it was, says {told}: it should say {complete}")
        same = len(self.world.monitor.history) == seen
        expect(same, f"the handle of {run}, as it was, is used for {run}, as it is")

    @when(lambda self: self.accepted)
    @rule(run=one_of(lambda self: self.accepted))
    def enter(self, run: str) -> None:
        """Enter an accepted run."""
        state = self.world.enter(run)
        expect(state is not State.ACCEPTED, f"{run} has entered, and is still accepted")

    @when(lambda self: self.accepted)
    @rule(backwards=st.booleans())
    def enter_all(self, backwards: bool) -> None:
        """Enter every accepted run, in the order of their acceptance or in the reverse order."""
        for run in self.accepted[::-1] if backwards else self.accepted:
            self.world.enter(run)

    @when(lambda self: self.accepted)
    @rule(run=one_of(lambda self: [*self.accepted, *self.runs]))
    def release(self, run: str) -> None:
        """Close the handle of a run, in whatever state the run is."""
        self.world.release(run)

    # Cancels.

    @when(lambda self: self.uncovered)
    @rule(session=one_of(lambda self: self.sessions_of(self.uncovered)))
    def cancel(self, session: str) -> None:
        """Cancel a session."""
        self.world.cancel(session)

    @when(lambda self: self.uncovered)
    @rule(run=one_of(lambda self: [*self.uncovered, *self.runs, "nobody"]), waiting_only=st.booleans())
    def cancel_run(self, run: str, waiting_only: bool = False) -> None:
        """Cancel one run, or a run that does not exist; or take it back while its runner is not called."""
        self.world.cancel_run(run, waiting_only=waiting_only)

    @when(lambda self: self.queued)
    @rule(session=one_of(lambda self: self.sessions_of(self.queued)))
    def clear_queue(self, session: str) -> None:
        """Clear the queue of a session."""
        self.world.clear(session)

    @when(lambda self: len(self.uncovered) > 2)
    @rule()
    def cancel_all(self) -> None:
        """Cancel every session."""
        self.world.cancel_all()

    # Tasks of callers.

    @when(lambda self: self.uncovered and len(self.callers) < 2)
    @rule(run=one_of(lambda self: self.runs))
    def wait(self, run: str) -> None:
        """Wait for a run, in a task. The dispatcher refuses to wait for a forgotten run."""
        self._callers.append(self.world.wait(run))

    @when(lambda self: self.callers)
    @rule(nth=one_of(lambda self: range(len(self.callers))))
    def cancel_caller(self, nth: int) -> None:
        """Cancel a task that waits, asks, reads, follows or closes."""
        self.callers[nth].cancel()

    @when(lambda self: len(self.runs) > RUNS_BEFORE_CLOSING and not self.world.closing)
    @rule(finish=st.sampled_from((0.0, 3.0, math.inf)))
    def close(self, finish: float) -> None:
        """Close the dispatcher, in a task; runs may finish for this many seconds."""
        self._callers.append(self.world.close(finish))

    @when(lambda self: len(self.runs) > RUNS_BEFORE_CLOSING and not self.world.closing)
    @rule(finish=st.sampled_from((0.0, 3.0, math.inf)))
    def begin_close(self, finish: float) -> None:
        """Begin to close the dispatcher, as a signal handler does, without waiting for the end."""
        self.world.begin_close(finish)

    # Another loop.

    @when(lambda self: self.uncovered)
    @rule(run=one_of(lambda self: self.runs), call=st.sampled_from(sorted(FROM_ANOTHER_LOOP)))
    def elsewhere(self, run: str, call: str) -> None:
        """Call the dispatcher from another loop. The dispatcher refuses, and nothing changes."""
        handle = self.world.runs[run]
        before = len(self.world.monitor.history), repr(self.world.dispatcher)
        with _expect_wrong_loop():
            VirtualLoop().call(FROM_ANOTHER_LOOP[call](self.world.dispatcher, handle))
        after = len(self.world.monitor.history), repr(self.world.dispatcher)
        expect(after == before, f"a {call} from another loop leaves a trace: {before}, {after}")
        self.tally.reached.add(f"refused: {WrongLoop.__name__}")

    # What the rules above need.

    def _new_run_id(self) -> str:
        self._run_ids += 1
        return f"r{self._run_ids}"


@contextlib.contextmanager
def _expect_wrong_loop() -> Iterator[None]:
    try:
        yield
    except WrongLoop:
        return
    raise AssertionError(f"it should be refused with {WrongLoop.__name__}")
