"""A worker: takes steps on a ledger under a name of its own, and performs what comes of them.

Rule 1. A step and its effects belong together. They run in a task that nobody but the worker knows, so a
caller that is cancelled between the two leaves no turn that nobody starts.
Rule 2. A worker whose lease is lost, or that cannot learn what became of a step, gives up its turns and takes
a new name. What it held under the old one is found by whoever looks, itself included, like that of any other
worker that has died.
Rule 3. Effects come after the save, in this order: RunCompletes, interrupts, the start of a turn.
Rule 4. A ledger that raises something unexpected after it was given a step to save has not said whether the
step was saved. That is rule 2.
"""

from __future__ import annotations

import asyncio
import secrets
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from turngate._core import SessionCore
from turngate._errors import DispatcherClosed
from turngate._guard import complain, describe
from turngate._lifecycle import ACCEPTED, ACTIVE, CANCEL_ON_ENTRY, COMPLETE, QUEUED, RUNNING, State
from turngate._waiters import Waiters
from turngate._words import counted
from turngate.durable._flight import Flight
from turngate.durable._handles import DurableRun, DurableTurn
from turngate.durable._ledger import LeaseLost, LedgerGone, LedgerUnavailable, OutcomeUnknown
from turngate.durable._records import Ask, Loaded, as_attachments
from turngate.durable._step import Fenced, Step
from turngate.durable._tasks import Tasks

if TYPE_CHECKING:
    from asyncio import Future, Task
    from collections.abc import Awaitable, Callable
    from contextvars import Context

    from turngate._dispatcher import Dispatcher
    from turngate._events import RunComplete
    from turngate._keys import RunName
    from turngate._messages import Messages
    from turngate._places import Places
    from turngate._prompt import OnComplete
    from turngate._run import Run, Runner, Turn
    from turngate.durable._ledger import Ledger
    from turngate.durable._records import Decision, RunRow

T = TypeVar("T")
_ORDER: Final = {state: number for number, state in enumerate(State)}
"""A run comes to its states in this order."""


def _is_cancelled(exc: BaseException) -> bool:
    """Say whether an exception is there because the current task was cancelled."""
    task = asyncio.current_task()
    return isinstance(exc, asyncio.CancelledError) and task is not None and task.cancelling() > 0


class Newcomer:
    """What comes with a prompt and stays in this process, and the handle as soon as there is one."""

    __slots__ = ("context", "handle", "on_complete")

    def __init__(self, context: Context, on_complete: OnComplete | None) -> None:
        self.context = context
        self.on_complete = on_complete
        self.handle: DurableRun | None = None


class Worker(Tasks):
    """What takes steps, and what it holds in this process."""

    def __init__(
        self, runner: Runner, ledger: Ledger, messages: Messages, places: Places | None, lease: float
    ) -> None:
        super().__init__(runner, messages, None, 5.0, places)
        self._ledger = ledger
        self._lease = lease
        self._name = 0
        """The name of this worker on the ledger, 0 while it has none."""
        self._former: set[int] = set()
        """Names that were given up and may still count as alive."""
        self._token = f"{secrets.token_hex(6)}g"
        """What the ids begin with that this process draws; they go on with a number."""
        self._sent = 0
        self._is_open = False
        self._gone: LedgerGone | None = None
        """Why nothing can be done on the ledger any more."""
        self._lets_go = False
        """Whether the ledger is being closed."""
        self._opening: Task[None] | None = None
        self._renaming = asyncio.Lock()
        self._steps = 0
        """How many steps are under way."""
        self._flights: dict[Flight, None] = {}
        """Those that were sent."""
        self._from_here: Future[None] | None = None
        """Done when it is known where the subscriptions begin that nothing may overtake."""
        self._turns: dict[int, DurableTurn] = {}
        """The turns of this process by their fences."""
        self._running: dict[Task[Any], DurableTurn] = {}
        """The turns whose runners run, by their tasks."""
        self._covered_early: set[int] = set()
        """Fences of turns that a cancel has covered before the step that starts them was answered."""
        self._held: dict[str, DurableRun] = {}
        """Runs whose end somebody in this process waits for, or may."""
        self._unlooked: set[str] = set()
        """Those of them that were not looked for yet."""
        self._handles: weakref.WeakValueDictionary[str, DurableRun] = weakref.WeakValueDictionary()
        self._nobody = SessionCore("", "", deque())
        """A core for what concerns a turn alone: text, data, whether it is over."""
        self._last_position = 0
        """The highest position of a step of this process."""
        self._idle = Waiters()
        """Those who wait for turns and steps to be over."""

    # Opening.

    async def _ready(self) -> None:
        """Open the ledger and register, once; whoever is cancelled meanwhile stops nobody else."""
        self._here()
        if self._closed:
            raise DispatcherClosed("the dispatcher is closed")
        if not self._is_open:
            if self._opening is None:
                self._opening = self._spawn(self._open())
            await asyncio.shield(self._opening)

    async def _open(self) -> None:
        try:
            await self._ledger.open()
            try:
                await self._take_name()
            except BaseException:
                await self._ledger.close()
                raise
        finally:
            self._opening = None
        self._is_open = True
        self._opened()  # which raises nothing

    def _opened(self) -> None:
        """Begin to look after things; see `Tending`."""
        raise NotImplementedError

    async def _take_name(self) -> None:
        name = await self._ledger.register(self._lease)
        if self._lets_go:  # nobody would keep it alive, or retire it
            await self._ledger.retire(name)
            self._check_not_let_go()
        self._ledger.keep_alive(name, self._lease, self._lease_is_lost)
        self._name = name  # only now: a worker that is not kept alive would lose its turns

    def _check_not_let_go(self) -> None:
        """Raise if the ledger is being closed: its last name is given up, and no other is taken."""
        if self._lets_go:
            raise DispatcherClosed("the dispatcher is closed")

    def _lease_is_lost(self, name: int) -> None:
        if name == self._name and not self._closed:
            self._spawn(self._rename_soon(name))

    async def _rename_soon(self, name: int) -> None:
        try:
            await self._rename(name)
        except Exception as exc:
            complain(exc, "worker %d has lost its lease, and the ledger cannot be reached", name)

    async def _rename(self, name: int) -> None:
        """Give up everything that was held under the name, and take a new one; once, whoever asks first."""
        self._check_not_let_go()
        if name and name == self._name:
            self._name = 0
            lost = counted(len(self._turns), "turn")
            complain(None, "worker %d has lost its lease and gives up %s", name, lost)
            for turn in [*self._turns.values()]:
                self._give_up(turn)
            self._former.add(name)
        async with self._renaming:
            await self._retire_former()
            if self._name == 0:
                await self._take_name()

    def _ledger_is_gone(self, why: LedgerGone) -> None:
        """Give up every turn: what it comes to cannot be put on record. Tell those who wait for runs."""
        if self._gone is not None:
            return
        self._gone = why
        complain(None, "%s (turns given up here: %d)", why, len(self._turns))
        for turn in [*self._turns.values()]:
            self._give_up(turn)
        for run in [*self._held.values()]:
            self._wake_waiters(run)

    def _wake_waiters(self, run: DurableRun) -> None:
        """Let those who wait for the run, or read its text, look again."""
        for waiters in (run._waiters, run._listeners):
            if waiters is not None:
                waiters.wake()

    async def _retire_former(self) -> None:
        """Have the names count as dead that were given up, so that others find what was held under them.

        A ledger that knows of their deaths already does nothing.
        """
        for name in [*self._former]:
            try:
                await self._ledger.retire(name)
            except Exception as exc:  # it is tried again
                complain(exc, "worker %d, which was given up, could not be retired yet", name)
            else:
                self._former.discard(name)

    def _give_up(self, turn: DurableTurn) -> None:
        """Stop the runner of a turn that is no longer this process's."""
        turn.given_up = True
        self._let_go(turn)
        if turn.phase is RUNNING:
            self._interrupt(turn)

    def _let_go(self, turn: DurableTurn) -> None:
        self._turns.pop(turn.fence, None)
        for run in turn._runs:
            cast("DurableRun", run)._turn = None
        if not turn.has_place and self._places is not None:
            turn.covered = True
            self._places.take(turn)  # which takes a covered one out of the line
        self._idle.wake()

    # Steps.

    async def _step(
        self,
        session_id: str,
        fn: Callable[[Step], T],
        *,
        head: int = 0,
        run_id: str | None = None,
        is_new: bool = False,
        owner: bool = False,
        key: tuple[str, str] | None = None,
    ) -> T:
        """Take a step on the session and perform what comes of it; goes on when the caller is cancelled.

        `fn` is pure, and may be called more than once. What the `owner` of a turn does is not done again
        under another name: raises Fenced when the lease is lost.
        """
        if not self._is_open or self._closed or self._from_here is not None:
            await self._ready()
        ask = Ask(session_id, 0, "", head, run_id, is_new=is_new, key=key)
        answer: Future[T] = self._here().create_future()
        self._send_off(self._answering(answer, ask, fn, owner=owner))
        return await answer

    async def _answering(self, answer: Future[T], ask: Ask, fn: Callable[[Step], T], *, owner: bool) -> None:
        """Take a step for somebody who may be gone when it is answered."""
        try:
            came_of = await self._stepping(ask, fn, owner=owner)
        except BaseException as exc:
            if not answer.done():
                answer.set_exception(exc)
            if not isinstance(exc, Exception):
                raise
        else:
            if not answer.done():
                answer.set_result(came_of)

    async def _until_joined(self) -> None:
        """Wait until it is known where every subscription begins."""
        while self._from_here is not None:
            await asyncio.shield(self._from_here)

    async def _stepping(self, ask: Ask, fn: Callable[[Step], T], *, owner: bool) -> T:
        self._steps += 1
        flight = Flight()
        try:
            if self._from_here is not None:
                await self._until_joined()
            self._flights[flight] = None
            while True:
                self._check_not_let_go()
                if self._name == 0:
                    await self._rename(0)
                name = self._name
                try:
                    self._sent += 1
                    sent = Ask(ask.session_id, name, f"{self._token}{self._sent:x}", *ask[3:])
                    decision = await self._decided(sent, fn, flight)
                except LeaseLost:
                    flight.came_to_nothing()
                    await self._rename(name)
                    if owner:
                        raise Fenced("the lease was lost") from None
                    continue
                except OutcomeUnknown:
                    await self._rename_soon(name)
                    raise
                except LedgerGone as exc:
                    flight.came_to_nothing()
                    self._ledger_is_gone(exc)
                    raise
                except LedgerUnavailable:
                    flight.came_to_nothing()
                    raise
                except (Exception, asyncio.CancelledError) as exc:
                    if exc is flight.refused_by or not flight.was_decided or _is_cancelled(exc):
                        raise
                    await self._rename_soon(name)
                    raise OutcomeUnknown(f"the ledger failed in a step: {describe(exc)}") from exc
                step, came_of = decision.result
                flight.position = decision.position
                if decision.changes is not None and not decision.position:
                    await self._place(decision, flight)
                self._perform_step(step, decision)
                return cast("T", came_of)
        finally:
            self._flights.pop(flight, None)
            flight.land()
            self._steps -= 1
            if not self._steps:
                self._idle.wake()

    async def _place(self, decision: Decision, flight: Flight) -> None:
        """Find out where a step was saved whose answer was lost.

        The completions of a run are found by its id. Of another step the ledger knows only that it is not
        beyond what there is now, which is enough to tell what comes after it.
        """
        assert decision.changes is not None
        done = [complete.run_id for complete in decision.changes.done]
        try:
            if done:
                found = await self._ledger.find(done)
                flight.position = decision.position = max((known.position for known in found), default=0)
            if not decision.position:
                decision.position = (await self._ledger.read_point()).until - 1
        except Exception as exc:  # effects do not wait for it
            complain(exc, "the position of a step whose answer was lost is not known yet")

    def _decided(self, ask: Ask, fn: Callable[[Step], T], flight: Flight) -> Awaitable[Decision]:
        def decide(loaded: Loaded, sent_as: str) -> Decision:
            try:
                decision = decide_once(loaded, sent_as)
            except BaseException as exc:
                flight.refused_by = exc
                raise
            if decision.changes is not None:
                flight.decided(decision.changes)
            return decision

        def decide_once(loaded: Loaded, sent_as: str) -> Decision:
            step = Step(
                loaded,
                ask.worker,
                ask.step_id,
                places=self._places is not None,
                closing=self._closing,
                history=self._ledger.history,
            )
            came_of = fn(step)
            return step.decision(sent_as, (step, came_of))

        return self._ledger.step(ask, decide)

    # Effects. From here on nothing waits.

    def _perform_step(self, step: Step, decision: Decision) -> None:
        changes = decision.changes
        if changes is None:
            return
        version = changes.after.version
        self._last_position = max(self._last_position, decision.position)
        turn = self._turns.get(step.row.fence)
        self._welcome(step)
        self._see(step, version, turn, decision.position)
        if step.interrupted:
            self._cover(step.row.fence, step.row.owner)
        if step.started is not None and step.owner == self._name:
            self._begin_turn(step, decision.position)
        self._look_after(step)

    def _welcome(self, step: Step) -> None:
        """Make the handles of what the step has taken in, before anything becomes of it."""
        for run_id, newcomer in step.newcomers.items():
            self._handles.pop(run_id, None)  # of a run that had the same id and was purged
            handle = self._handle_of(step.rows[run_id])
            self._held[run_id] = handle
            self._unlooked.add(run_id)
            if isinstance(newcomer, Newcomer):
                newcomer.handle = handle
                handle._context, handle.on_complete = newcomer.context, newcomer.on_complete

    def _see(self, step: Step, version: int, turn: DurableTurn | None, position: int) -> None:
        """Bring the handles up to date, and publish what is complete."""
        for run_id, run in step.runs.items():
            handle = self._handles.get(run_id)
            if handle is not None and handle.complete is None and handle._version <= version:
                handle._version = version
                handle.covered = run.covered
                if run.complete is None:
                    handle.state = run.state
                if run.state is QUEUED:
                    handle.on_complete = None
            if turn is not None:
                self._see_from_turn(turn, run, step.rows[run_id])
        for run in step.published:
            assert run.complete is not None
            self._complete_here(run.complete, position, turn)
        if turn is not None and step.core.turn is not None and step.fence == turn.fence:
            joined = [self._handle(each, step.rows[each.run_id]) for each in step.core.turn._runs]
            for handle in joined[len(turn._runs) :]:
                self._join(turn, handle)
        elif turn is not None:
            self._let_go(turn)

    def _see_from_turn(self, turn: DurableTurn, run: Run, row: RunRow) -> None:
        if run.state is QUEUED:
            turn._queue[run.seq] = self._handle(run, row)
        else:
            turn._queue.pop(run.seq, None)

    def _join(self, turn: DurableTurn, handle: DurableRun) -> None:
        turn._runs.append(handle)
        handle._turn = turn
        handle.state = ACTIVE
        if handle._listeners is not None:
            handle._listeners.wake()

    def _complete_here(
        self, complete: RunComplete, position: int = 0, turn: DurableTurn | None = None
    ) -> None:
        """Tell those of this process who hold the run, once. It was completed at that position, if known."""
        handle = self._handles.get(complete.run_id)
        if handle is None or handle.complete is not None:
            return
        ran_here = handle._turn is not None and turn is not None and not turn.given_up
        if ran_here and turn is not None and hasattr(turn, "pieces"):
            handle._pieces = turn.pieces
        elif complete.message_id is not None:
            handle._pieces = (complete.text,) if complete.text else ()
        handle.state, handle.complete = COMPLETE, complete
        if handle.on_complete is not None:
            self._hooked(handle.run_id, position)
        self._publish(handle)
        handle._turn = None

    def _publish(self, run: Run) -> None:
        complete = run.complete
        assert complete is not None
        self._held.pop(run.run_id, None)
        self._unlooked.discard(run.run_id)
        run._context = None
        if run._waiters is not None:
            self._guard("waking those who wait", run._waiters.wake)
        if run._listeners is not None:
            self._guard("waking those who read", run._listeners.wake)
        if run.on_complete is not None:
            on_complete, run.on_complete = run.on_complete, None
            self._call_back("on_complete", on_complete, complete)
        if run._callbacks is not None:
            callbacks, run._callbacks = run._callbacks, None
            for callback in callbacks:
                self._call_back("a callback", callback, complete)

    def _is_purged(self, run: DurableRun) -> None:
        """Tell those who hold the run that the ledger has it no more.

        It was complete then. Its outcome was purged before this process has read it.
        """
        self._held.pop(run.run_id, None)
        self._unlooked.discard(run.run_id)
        self._handles.pop(run.run_id, None)
        run.state, run._context = COMPLETE, None
        if run.on_complete is not None or run._callbacks is not None:
            run.on_complete = run._callbacks = None
            complain(None, "run %s was purged before its outcome was read: no callback is called", run.run_id)
        for waiters in (run._waiters, run._listeners):
            if waiters is not None:
                waiters.wake()

    def _cover(self, fence: int, owner: int | None) -> None:
        """Interrupt the turn if it runs here; it may be that its start has not been answered yet."""
        turn = self._turns.get(fence)
        if turn is None:
            if owner == self._name:
                self._covered_early.add(fence)
            return
        if not turn.covered:
            turn.covered = True
            if turn.phase is RUNNING:
                self._interrupt(turn)

    def _begin_turn(self, step: Step, position: int) -> None:
        started = step.started
        assert started is not None
        runs = [self._handle(run, step.rows[run.run_id]) for run in started._runs]
        turn = DurableTurn(cast("Any", self), runs, step.fence, step.attempts)
        self._turns[turn.fence] = turn
        for handle in runs:
            handle._turn = turn
            handle.state = ACTIVE
        for run in step.core.queue.in_order():
            turn._queue[run.seq] = self._handle(run, step.rows[run.run_id])
        if turn.fence in self._covered_early:
            self._covered_early.discard(turn.fence)
            turn.covered = True
        self._conduct(turn, position)

    def _conduct(self, turn: DurableTurn, position: int) -> None:
        """Call the runner, in a task of its own; see `Conducting`."""
        raise NotImplementedError

    def _look_after(self, step: Step) -> None:
        """Let others know what concerns them; see `Tending`."""
        raise NotImplementedError

    def _hooked(self, run_id: str, position: int) -> None:
        """Note that a hook receives the RunComplete; see `Following`."""
        raise NotImplementedError

    # Handles.

    def _handle(self, run: Run, row: RunRow) -> DurableRun:
        """Return the handle of a run that a step has seen."""
        return self._handle_of(row._replace(state=run.state, covered=run.covered))

    def _handle_of(self, row: RunRow, complete: RunComplete | None = None, position: int = 0) -> DurableRun:
        """Return the one handle that this process has of the run, brought up to date.

        A row may have been read before a step that is known here already, so a handle never goes back to an
        earlier state.
        """
        handle = self._handles.get(row.run_id)
        if handle is not None and (handle.session_id, handle.seq) != (row.session_id, row.seq):
            if handle.complete is None:  # it is of a run that had the same id and was purged
                self._is_purged(handle)
            handle = None
        if handle is None:
            handle = DurableRun(
                cast("Dispatcher", self),
                row.session_id,
                row.run_id,
                row.seq,
                row.prompt,
                as_attachments(row.attachments),
                row.when_busy,
            )
            handle.state, handle.covered = row.state, row.covered
            handle._turn, handle._version = None, 0
            self._handles[row.run_id] = handle
        elif (
            handle.complete is None and _ORDER[row.state] > _ORDER[handle.state] and row.state is not COMPLETE
        ):
            handle.state = row.state
            if row.state is QUEUED:
                handle.on_complete = None
        if handle.complete is None:
            handle.covered = handle.covered or row.covered
        if complete is not None and handle.complete is None:
            self._complete_here(complete, position)
        return handle

    def _forgotten(self, name: RunName) -> DurableRun:
        """Return a handle of a run that is complete, and of which the ledger knows nothing any more."""
        handle = DurableRun(cast("Dispatcher", self), name.session_id, name.run_id, name.seq, "")
        handle.state = COMPLETE
        handle._turn, handle._version = None, 0
        return handle

    def _watch(self, run: DurableRun) -> None:
        """Look for the end of the run until it is there."""
        if run.state is not COMPLETE and not self._closed:
            self._held[run.run_id] = run
            self._unlooked.add(run.run_id)

    def _turn_of(self, run: Run) -> Turn | None:
        return cast("DurableRun", run)._turn

    def _session(self, session_id: str) -> SessionCore:
        return self._nobody

    # Waits of a runner for its own session.

    def _own_turn(self, session_id: str) -> Turn | None:
        task = asyncio.current_task()
        turn = None if task is None else self._running.get(task)
        if turn is None or turn.given_up or turn.run.session_id != session_id:
            return None
        return turn

    async def _waits_for(self, run: Run, turn: Turn) -> bool:
        """Ask the ledger: what is known here of a run of another process may be old."""
        (loaded,) = await self._ledger.view(run.session_id)
        for row in loaded.runs:
            if row.run_id == run.run_id:
                if row.state is ACCEPTED:
                    return not row.covered and (loaded.session is None or row.seq > loaded.session.mark)
                return row.state is not CANCEL_ON_ENTRY
        return False

    async def _knows(self, run_id: str) -> bool:
        return bool(await self._ledger.find([run_id]))
