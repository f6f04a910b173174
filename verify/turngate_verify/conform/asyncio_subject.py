"""A base for subjects written with asyncio: runs their loop after every operation until they are at rest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any

from turngate_model.history import Complete, Enter, Fold, Handoff
from turngate_model.lifecycle import DeclaredState
from turngate_verify.conform.operations import Operations
from turngate_verify.conform.port import Features, Given, Observed, Refused, SubjectFailed, SubjectHangs
from turngate_verify.conform.programs import ABOUT_ALL, TAKING_IN, Op, run_of
from turngate_verify.conform.stepping import Moment, Noted, Notes, Waiting
from turngate_verify.conform.watchdog import WATCHDOG, Blocked
from turngate_verify.world.failures import RunnerFailed
from turngate_verify.world.virtual_loop import VirtualLoop

_BUSY = 10_000
"""A subject that is still busy after this many callbacks never comes to rest."""
_MOMENTS = 40
"""The most moments that are kept after an operation: a poller has infinitely many."""
_TIMERS = 1_250
"""The most timers that run out while ``wait`` lets time pass, so that a poller does not take longer."""
_TOLD = ("fold", "finish", "fail")
_NOT_NOTED = 1 << 30
"""The number of a note that is gone because its window has ended."""
_SHOW_FAILURE = ": an adapter that waits for a run shows how it failed with self.completed(run, error=...)"


class AsyncioSubject(Operations):
    """A subject on an event loop of its own, with virtual time.

    An adapter gives ``self.runner`` to its dispatcher as the work of a run, and
    overrides the ``do_`` operations that its dispatcher has. Those that take a
    prompt in or enter it may wait until the run is complete, as a caller's task
    would. It calls ``self.completed`` where a caller of the dispatcher would
    learn how a run ended, or ``self.watch`` with the future that a caller would
    wait for. The runner shows by itself when a turn starts. The loop has no
    sockets, no threads and no subprocesses; a subject that needs these
    implements ``Subject`` itself.
    """

    features: Features = Features()
    patience: float = 1.0
    """For how many virtual seconds an operation waits for timers."""
    grace: float = 60.0
    """For how many virtual seconds it waits for something that is owed."""
    wait_for: float = 3600.0
    """How many virtual seconds ``wait`` lets pass."""
    returns_when_done: bool = False
    """Whether every ``do_`` operation has taken effect when it returns.

    If not, an operation counts as done when the subject is at rest, so
    operations between two rests may take effect in any order.
    """
    shows_at_once: bool = False
    """Whether ``saw`` is called for everything in the very step in which it is decided, as by a recording."""
    patient: bool = False
    """Whether a run counts as queued only when no timer is left that could start it.

    The kit sets this to play a program again whose verdict may be premature.
    """

    def __init__(self) -> None:
        self.features = type(self).features._replace(wait=self.wait_for > 0, bursts=True)
        self.loop = VirtualLoop()
        self.notes = Notes()
        """What has happened since the last rest."""
        self.moments: list[Moment] = []
        """The moments after the last operation, before rest."""
        self.moments_cut = 0
        """How many of these moments were left out."""
        self._called: tuple[Op, int] | None = None
        """The operation that is called now, with the number of its note."""
        self._pending: list[tuple[asyncio.Task[Any], Op, int]] = []
        """The operations that have not returned, each with the number of its note."""
        self._accepted: set[str] = set()
        self._refusals: set[str] = set()
        self._complete: set[str] = set()
        self.heard: set[str] = set()
        """The runs whose RunComplete a call has waited for: it may have heard of it late."""
        self._looking = False
        self._keeps_moments = False
        self._seen: list[Observed] = []
        self._told: dict[str, asyncio.Future[str]] = {}
        self._watched: dict[str, asyncio.Future[Any]] = {}
        self._undecided: set[str] = set()
        self._at_work: set[str] | None = None
        self._session_of: dict[str, str] = {}
        self._may_be_held: set[str] = set()
        """The runs that a hold may have reached: they are owed no start."""
        self._asked = 0.0
        self._in_a_burst = False
        self._folding: set[str] = set()
        self._calls: list[asyncio.Task[Any]] = []
        """The calls that have not returned."""
        self._must_return: set[asyncio.Task[Any]] = set()
        """Those of them that must return before the next operation."""
        self.hasty = False
        """Whether a run was reported as queued while a timer was left that might have started it."""
        self.disturbed = False
        """Whether the time that a patient subject let pass has changed what happened to other runs."""
        self._has_blocked = False
        self._run_watched(self._start)

    def _start(self) -> None:
        with self.loop:
            self.start()

    def _run_watched(self, callback: Callable[[], object]) -> None:
        """Run code of the subject, and interrupt it if it blocks the thread."""
        WATCHDOG.begin()
        try:
            callback()
        except Blocked:
            pass
        finally:
            blocked = WATCHDOG.end()
        if blocked:
            self._has_blocked = True
            raise SubjectHangs("it hangs: a callback blocks the thread, so nothing else can run")

    # What an adapter overrides.

    def start(self) -> None:
        """Make the dispatcher. While this is called, the subject's loop is the running loop."""

    async def do_close(self) -> None:
        """Shut the dispatcher down."""

    # What an adapter calls.

    async def runner(self, prompt: str) -> str:
        """Do the work of one turn, and show that it has started."""
        run = run_of(prompt)
        self.started(run)
        if self.features.edit:
            self.given(run, prompt)
        return await self.work(run)

    async def work(self, run: str) -> str:
        """Do the work of one turn. For an adapter that shows by itself when the turn starts."""
        self._at_work = {*(self._at_work or ()), run}
        try:
            return await self._work(run)
        finally:
            self._at_work.discard(run)
            self.notes.ended(run)

    async def _work(self, run: str) -> str:
        while True:
            self._told[run] = asyncio.get_running_loop().create_future()
            try:
                told = await self._told[run]
            finally:
                del self._told[run]
            if told == "finish":
                return "text"
            if told == "fail":
                raise RunnerFailed("no luck")
            self._folding.add(run)
            try:
                for folded in await self.do_fold(run):
                    self.saw(Fold(folded, run))
            finally:
                self._folding.discard(run)

    def started(self, run: str) -> None:
        """Show that the turn of a run has started."""
        self._look()
        self.saw(Enter(run, DeclaredState.ACTIVE) if run in self._undecided else Handoff(run))

    def completed(self, run: str, *, cancelled: bool = False, error: str | None = None) -> None:
        """Show the RunComplete of a run."""
        if run in self._undecided and cancelled:
            self.saw(Enter(run, DeclaredState.CANCEL_ON_ENTRY))
        self._undecided.discard(run)
        if not self._looking and asyncio.current_task(self.loop) in self._calls:
            self.heard.add(run)
        self.saw(Complete(run, cancelled, error))

    def refused(self, run: str, operation: str = "") -> None:
        """Show that a prompt was not taken in, or that another operation was refused."""
        if operation in ("", *TAKING_IN):
            operation = ""
            self._undecided.discard(run)
            self._refusals.add(run)
        self.saw(Refused(run, operation))

    def given(self, run: str, prompt: str) -> None:
        """Show the prompt that the runner was given for a run."""
        self.saw(Given(run, prompt))

    def watch(self, run: str, done: asyncio.Future[Any]) -> None:
        """Show the RunComplete of a run once this future is done, even before its callbacks have run."""
        self._watched[run] = done
        done.add_done_callback(lambda _: self._look())

    def _look(self) -> None:
        self._looking = True
        for run, done in list(self._watched.items()):
            if done.done():
                del self._watched[run]
                error = None if done.cancelled() else done.exception()
                self.completed(run, cancelled=done.cancelled(), error=str(error) if error else None)
        self._looking = False

    def saw(self, event: Observed) -> None:
        """Show an event. For a dispatcher that reports more than its runner can see."""
        if isinstance(event, Fold) and event.run in self._undecided:
            self.saw(Enter(event.run, DeclaredState.QUEUED))  # only what is queued is folded
        if isinstance(event, Enter):
            self._undecided.discard(event.run)
        self._seen.append(event)
        if isinstance(event, Complete):
            self._complete.add(event.run)
        if self._looking and isinstance(event, Complete):
            self.notes.found(event)
        else:
            self.notes.saw(event, exact=self.shows_at_once)

    def drive(self, work: Coroutine[Any, Any, Any], *, may_wait: bool = False) -> None:
        """Run a call in a task until nothing more happens.

        A call that may wait can last until the run is complete; any other is
        waited for as long as there is a timer that might let it return. If
        others are called before the subject is at rest, run it up to where it
        first waits, and nothing else.
        """
        self.moments, self.moments_cut = [], 0
        task = self.loop.create_task(work)
        self._calls.append(task)
        if not may_wait:
            self._must_return.add(task)
        if self._called is not None:
            self._pending.append((task, *self._called))
            self._called = None
        self.notes.begin_callback()
        self._run_watched(lambda: self.loop.step(len(self.loop.ready) - 1))
        self._poll()
        self._raise_errors()
        if not self._in_a_burst:
            self._come_to_rest()

    def _come_to_rest(self) -> None:
        self._keeps_moments = True
        self._keep_moment()
        self._quiesce(self.patience)
        self._keeps_moments = False
        self._await_returns()

    def _await_returns(self) -> None:
        """Let time pass while a call that must return, or a fold, has not."""
        while (self._must_return or self._folding) and self.linger():
            pass
        if self._must_return and self._nothing_in_flight():
            raise SubjectHangs("it hangs: a call has not returned, although nothing is in flight any more")

    def _nothing_in_flight(self) -> bool:
        return not self._told and self._session_of.keys() <= self._complete | self._refusals

    def _raise_errors(self) -> None:
        """Raise what a call has raised, even if it did so late."""
        returned = [task for task in self._calls if task.done()]
        self._calls = [task for task in self._calls if not task.done()]
        self._must_return.difference_update(returned)
        for task in returned:
            if not task.cancelled() and (error := task.exception()):
                hint = _SHOW_FAILURE if isinstance(error, RunnerFailed) else ""
                raise SubjectFailed(f"it raised {error!r}{hint}") from error

    def _quiesce(self, seconds: float) -> None:
        self._asked = self.loop.time()
        until = self._asked + seconds
        self._settle()
        while (due := self.loop.next_timer()) is not None and due <= until:
            self._advance(due)

    def linger(self) -> bool:
        """Let time pass up to the next timer, since something is owed; return whether one is due in time."""
        if (due := self._due()) is None:
            return False
        self._advance(due)
        return True

    def _due(self) -> float | None:
        """Return when the next timer is due, if that is in the time that is allowed for what is owed."""
        due = self.loop.next_timer()
        return None if due is None or due > self._asked + self.grace else due

    def _advance(self, due: float) -> None:
        self.loop.advance(due - self.loop.time())
        self._settle()

    def _settle(self) -> None:
        for _ in range(_BUSY):
            if not self._step():
                self._raise_errors()
                return
            self._keep_moment()
        raise SubjectHangs(f"it does not come to rest: still busy after {_BUSY} callbacks")

    def _step(self) -> bool:
        """Run the next callback of the subject, after those of the kit; return False if there is none."""
        self.loop.tidy()
        while self.loop.ready:
            own = getattr(self.loop.ready[0]._callback, "__module__", "") == __name__  # type: ignore[attr-defined]
            self.notes.begin_callback()
            self._run_watched(self.loop.step)
            self._poll()
            if not own:
                return True
            self.loop.tidy()
        return False

    def _poll(self) -> None:
        """Look at what a callback has changed: futures that callers wait for, and operations that return."""
        if self._watched:
            self._look()
        for pending in list(self._pending):
            task, op, number = pending
            if task.done():
                self._pending.remove(pending)
                if op.name in TAKING_IN:
                    self._accepted.add(op.run)
                if self.returns_when_done:
                    self.notes.returned(number)

    def _keep_moment(self) -> None:
        if self._keeps_moments and len(self.moments) < _MOMENTS:
            self.moments.append(self.moment())
        elif self._keeps_moments:
            self.moments_cut += 1

    def moment(self) -> Moment:
        """Return what could be called now."""
        accepted = frozenset(self._accepted - self._refusals)
        return Moment(self.waiting_runners(), accepted, frozenset(self._complete))

    def waiting_runners(self) -> tuple[str, ...]:
        """Return the runs whose runner waits for the kit's next instruction."""
        return tuple(run for run, told in self._told.items() if not told.done())

    # The port.

    def accept(self, session: str, run: str) -> None:
        """Take a prompt in."""
        self._take_in(session, run, self.do_accept(session, run))

    def interrupt(self, session: str, run: str) -> None:
        """Take a prompt in that cancels all that came before it."""
        self._take_in(session, run, self.do_interrupt(session, run))

    def reject(self, session: str, run: str) -> None:
        """Take a prompt in unless its session is busy."""
        self._take_in(session, run, self.do_reject(session, run))

    def _take_in(self, session: str, run: str, work: Coroutine[Any, Any, Any]) -> None:
        self._session_of[run] = session
        if self.features.two_phase:
            self.drive(work)  # it returns when the run is accepted
        else:
            self._decide(run, work)

    def enter(self, run: str) -> None:
        """Enter an accepted run."""
        self._decide(run, self.do_enter(run))

    def _decide(self, run: str, work: Coroutine[Any, Any, Any]) -> None:
        self._undecided.add(run)
        self.drive(work, may_wait=True)
        if not self._in_a_burst:
            self._show_queued()

    def _show_queued(self) -> None:
        while any(map(self._is_owed_a_start, self._undecided)) and self.linger():
            pass
        if self.patient:
            self._wait_for_the_undecided()
        elif self._undecided and not self.returns_when_done and self._due() is not None:
            self.hasty = True
        for run in sorted(self._undecided):
            # The run has neither started nor ended, so it waits in the queue.
            self._undecided.discard(run)
            self._seen.append(Enter(run, DeclaredState.QUEUED))
            self.notes.saw(Waiting(run), exact=False)

    def _wait_for_the_undecided(self) -> None:
        """Let time pass until every run has started or ended, or no timer is left that could change that."""
        others, before = self._session_of.keys() - self._undecided, len(self._seen)
        while self._undecided and self.linger():
            pass
        self.disturbed |= any(event.run in others for event in self._seen[before:])

    def _is_owed_a_start(self, run: str) -> bool:
        if run in self._may_be_held:
            return False
        busy = {self._session_of.get(each) for each in self._at_work or ()}
        return self._session_of.get(run) not in busy

    def burst(self, operations: Sequence[Op]) -> None:
        """Call several operations. The gap of each is the number of callbacks before the next one."""
        self._in_a_burst = True
        for op in operations:
            self._begin(op)
            self._asked = self.loop.time()
            for _ in range(max(op.gap, 0)):
                if not self._step_in_time():
                    break
        self._in_a_burst = False
        self._come_to_rest()
        self._show_queued()

    def _begin(self, op: Op) -> None:
        if op.name in _TOLD:
            if self._at_work is None and op.name != "fold":
                self.notes.told(op)  # nothing shows when the runner ends: it does so at once
        else:
            self._called = (op, self.notes.called(op))
        getattr(self, op.name)(*op.arguments.values())

    def _step_in_time(self) -> bool:
        """Run the next callback, of a timer if it is due in time; return whether there is one."""
        while not self._step():
            due = self.loop.next_timer()
            if due is None or due > self._asked + self.patience:
                return False
            self.loop.advance(due - self.loop.time())
        return True

    def window(self) -> Sequence[Noted]:
        """Return what has happened since the last rest, which is now over."""
        return list(self.notes.items)

    def begin_window(self, op: Op | None = None) -> None:
        """Forget the notes: the subject is at rest, and this operation comes next, alone."""
        self.notes.rest()
        self.moments, self.moments_cut, self._called = [], 0, None
        self._pending = [(task, before, _NOT_NOTED) for task, before, _ in self._pending]
        if op is not None and op.name not in (*_TOLD, *ABOUT_ALL):
            self._called = (op, self.notes.called(op))

    def cancel_run(self, run: str) -> None:
        """Cancel one run."""
        self.drive(self.do_cancel_run(run))

    def wait(self) -> None:
        """Let virtual time pass."""
        self._asked = self.loop.time()
        until = self._asked + self.wait_for
        self._settle()
        for _ in range(_TIMERS):
            due = self.loop.next_timer()
            if due is None or due > until:
                self.loop.advance(until - self.loop.time())
                return
            self._advance(due)

    def working(self) -> Collection[str] | None:
        """Return the runs whose runner is at work; None if this adapter does not use ``work``."""
        return self._at_work

    def cancel(self, session: str) -> None:
        """Cancel a session."""
        self.drive(self.do_cancel(session))

    def hold(self, session: str) -> None:
        """Hold the waiting runs of a session."""
        self._may_be_held |= {run for run, its in self._session_of.items() if its == session}
        self.drive(self.do_hold(session))

    def resume(self, session: str) -> None:
        """Resume the held runs of a session."""
        self._may_be_held -= {run for run, its in self._session_of.items() if its == session}
        self.drive(self.do_resume(session))

    def hold_run(self, run: str) -> None:
        """Hold one run."""
        self._may_be_held.add(run)
        self.drive(self.do_hold_run(run))

    def resume_run(self, run: str) -> None:
        """Resume one run."""
        self._may_be_held.discard(run)
        self.drive(self.do_resume_run(run))

    def stop(self, session: str) -> None:
        """Cover the active turn alone, and hold the waiting runs."""
        self._may_be_held |= {run for run, its in self._session_of.items() if its == session}
        self.drive(self.do_stop(session))

    def move(self, run: str, before: str | None) -> None:
        """Change the position of a waiting run."""
        self.drive(self.do_move(run, before))

    def edit(self, run: str, prompt: str) -> None:
        """Give a run another prompt."""
        self.drive(self.do_edit(run, prompt))

    def send_now(self, run: str) -> None:
        """Make a queued run the next one now."""
        self._may_be_held.discard(run)
        self.drive(self.do_send_now(run))

    def into(self, session: str, run: str, into: str) -> None:
        """Take a prompt in for one turn alone."""
        self._take_in(session, run, self.do_into(session, run, into))

    def clear(self, session: str) -> None:
        """Clear the queue of a session."""
        self.drive(self.do_clear(session))

    def fold(self, run: str) -> None:
        """Have the runner ask for follow-ups."""
        self._tell(run, "fold")

    def finish(self, run: str) -> None:
        """Have the runner return."""
        self._tell(run, "finish")

    def fail(self, run: str) -> None:
        """Have the runner fail."""
        self._tell(run, "fail")

    def _tell(self, run: str, what: str) -> None:
        self.moments, self.moments_cut = [], 0
        told = self._told.get(run)
        if told and not told.done():
            told.set_result(what)
        if not self._in_a_burst:
            self._come_to_rest()

    def observe(self) -> Sequence[Observed]:
        """Return what happened since the last call."""
        seen, self._seen = self._seen, []
        return seen

    def close(self) -> None:
        """Shut down, and stop what is left running."""
        try:
            if not self._has_blocked:
                self.drive(self.do_close())
        finally:
            for task in self.loop.tasks:
                task.cancel()
            self._quiesce(self.patience)
