"""Takes steps on a ledger under the name of this process, and has their effects performed.

Rule 1. A step and its effects belong together. They run in a task that only the stepper knows, so a caller
that is cancelled between the two cannot leave a turn that is never started. Rule 2. A process whose lease is
lost, or that cannot learn what happened to a step, gives up its turns and takes a new name. The next process
that looks, itself included, recovers what it held under the old name, as after a death. Rule 3. Effects come
after the save. Rule 4. If a ledger raises something unexpected after it was given a step to save, it is
unknown whether the step was saved, and rule 2 applies.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, cast

from turngate._errors import DispatcherClosed
from turngate._events import Waiters
from turngate._log import describe, log_error
from turngate._loop import HomeLoop
from turngate._prompt import seconds, whole_number
from turngate._supervise import Supervisor
from turngate.durable._ledger import LeaseLost, LedgerGone, LedgerUnavailable, OutcomeUnknown
from turngate.durable._records import Ask
from turngate.durable._step import Fenced, Step

if TYPE_CHECKING:
    from asyncio import Future, Task
    from collections.abc import Awaitable, Callable, Coroutine

    from turngate.durable._ledger import Ledger
    from turngate.durable._records import Changes, Decision, Loaded

T = TypeVar("T")


@dataclass(frozen=True)
class Settings:
    """The settings of a dispatcher on a ledger; see `DurableDispatcher`."""

    on_death: Literal["fail", "retry"]
    lease: float
    poll: float
    enter_timeout: float
    checkpoint: float
    queue_limit: int
    accepted_limit: int
    delta_limit: int
    delta_bytes: int
    complete_limit: int
    turns_limit: int | None

    def __post_init__(self) -> None:
        if self.on_death not in {"fail", "retry"}:
            raise ValueError(f"on_death must be fail or retry, not {self.on_death!r}")
        for name in ("lease", "poll", "enter_timeout", "checkpoint"):
            seconds(name, getattr(self, name))
        for name in ("queue_limit", "accepted_limit", "complete_limit", "delta_limit", "delta_bytes"):
            whole_number(name, getattr(self, name), at_least=0 if name.startswith("delta") else 1)
        if self.turns_limit is not None:
            whole_number("turns_limit", self.turns_limit, at_least=1)


class PendingStep:
    """A step that was sent and is not answered yet."""

    __slots__ = ("_resolved", "completes", "position", "refused_by", "session_id", "was_decided")

    def __init__(self, session_id: str) -> None:
        self._resolved: Future[None] | None = None
        self.session_id = session_id
        self.position: int | None = None
        """The position at which it was saved; 0 if it was not, or if that is unknown; None until resolved."""
        self.completes: set[str] = set()
        """The runs that it completes if it was saved."""
        self.was_decided = False
        """Whether the ledger was given something to save."""
        self.refused_by: BaseException | None = None
        """The exception that the step itself raised, so that nothing was saved."""

    def decided(self, changes: Changes) -> None:
        """Note what the ledger is about to save."""
        self.was_decided = True
        self.completes.update(complete.run_id for complete in changes.done)

    def was_not_saved(self) -> None:
        """Note that nothing was saved."""
        self.was_decided = False
        self.completes.clear()

    def resolve(self) -> None:
        """Note that no answer is expected any more."""
        self.position = self.position or 0
        if self._resolved is not None:
            self._resolved.set_result(None)

    async def result(self) -> int:
        """Wait until the step has ended, and return its position."""
        if self.position is None:
            self._resolved = self._resolved or asyncio.get_running_loop().create_future()
            await asyncio.shield(self._resolved)
        assert self.position is not None
        return self.position


class BackgroundTasks:
    """Tasks made without the user's task factory. `supervisor` runs those that must not end."""

    def __init__(self, loop: HomeLoop) -> None:
        self.tasks: set[Task[Any]] = set()
        self.supervisor = Supervisor(self.spawn)
        self._loop = loop

    def spawn(self, coroutine: Coroutine[Any, Any, T]) -> Task[T]:
        """Start a task that may be awaited. If it is not, its exception is not reported."""
        task = asyncio.Task(coroutine, loop=self._loop.check_loop())
        self.tasks.add(task)
        task.add_done_callback(self._is_done)
        return task

    def _is_done(self, task: Task[Any]) -> None:
        self.tasks.discard(task)
        if not task.cancelled():
            task.exception()  # the waiting callers have it


class StepHost(Protocol):
    """What a stepper needs of the dispatcher that it belongs to."""

    def opened(self) -> None:
        """Begin the background work. Raises nothing."""

    async def until_joined(self) -> None:
        """Wait until a step may be sent that must not overtake a subscription."""

    def perform(self, step: Step, decision: Decision) -> None:
        """Perform what a saved step has decided. Never waits, and raises nothing."""

    def lost_name(self, name: int) -> None:
        """Give up everything that was held under the name."""

    def lost_ledger(self, why: LedgerGone) -> None:
        """Give up every turn, and fail the waits for runs: nothing can be put on record any more."""


class Stepper:
    """A process on a ledger: its loop, its tasks, its name, and the steps that it takes."""

    def __init__(self, ledger: Ledger, host: StepHost, settings: Settings) -> None:
        self.ledger = ledger
        self.settings = settings
        self.loop = HomeLoop()
        self.tasks = BackgroundTasks(self.loop)
        self.name = 0
        """The name of this process on the ledger, 0 while it has none."""
        self.former: set[int] = set()
        """Names that were given up and may still count as alive."""
        self.token = f"{secrets.token_hex(6)}g"
        """The prefix of the ids that this process draws; a number follows."""
        self.is_open = False
        self.is_closing = False
        """Whether the dispatcher takes no more turns."""
        self.is_closed = False
        self.gone: LedgerGone | None = None
        """Why nothing can be done on the ledger any more."""
        self.pending: dict[PendingStep, None] = {}
        """The steps that were sent and are not answered yet."""
        self.under_way = 0
        """How many steps are under way, including those that wait to be sent."""
        self.idle = Waiters()
        """Woken when no step is under way, or when a turn has ended."""
        self.last_position = 0
        """The highest position of a step of this process."""
        self.opening: Task[None] | None = None
        self._host = host
        self._lets_go = False
        """Whether the ledger is being closed."""
        self._sent = 0
        self._renaming = asyncio.Lock()

    # Opening, and the name.

    async def open(self) -> None:
        """Open the ledger and register, once; cancelling one caller does not stop the others."""
        self.loop.check_loop()
        if self.is_closed:
            raise DispatcherClosed("the dispatcher is closed")
        if not self.is_open:
            if self.opening is None:
                self.opening = self.tasks.spawn(self._open())
            await asyncio.shield(self.opening)

    async def ready(self) -> None:
        """Open, and wait until a step may be sent that must not overtake a subscription."""
        await self.open()
        await self._host.until_joined()

    async def _open(self) -> None:
        try:
            await self.ledger.open()
            try:
                await self._take_name()
            except BaseException:
                await self.ledger.close()
                raise
        finally:
            self.opening = None
        self.is_open = True
        self._host.opened()

    async def _take_name(self) -> None:
        name = await self.ledger.register(self.settings.lease)
        if self._lets_go:  # it would be neither kept alive nor retired
            await self.ledger.retire(name)
            self._check_not_letting_go()
        self.ledger.keep_alive(name, self.settings.lease, self._is_lost)
        self.name = name  # only now, because a process that is not kept alive would lose its turns

    def _check_not_letting_go(self) -> None:
        """Raise if the ledger is being closed: the last name is given up, and no other is taken."""
        if self._lets_go:
            raise DispatcherClosed("the dispatcher is closed")

    def _is_lost(self, name: int) -> None:
        if name == self.name and not self.is_closed:
            self.tasks.spawn(self._rename_soon(name))

    async def _rename_soon(self, name: int) -> None:
        try:
            await self._rename(name)
        except Exception as exc:
            log_error(exc, "worker %d has lost its lease, and the ledger cannot be reached", name)

    async def _rename(self, name: int) -> None:
        """Give up everything that was held under the name, and take a new one, once per name."""
        self._check_not_letting_go()
        if name and name == self.name:
            self.name = 0
            self._host.lost_name(name)
            self.former.add(name)
        async with self._renaming:
            await self.retire_former()
            if self.name == 0:
                await self._take_name()

    async def retire_former(self) -> None:
        """Declare the given-up names dead, so that other processes find what was held under them.

        A ledger that already counts them as dead does nothing.
        """
        for name in [*self.former]:
            try:
                await self.ledger.retire(name)
            except Exception as exc:  # it will be retried
                log_error(exc, "worker %d was given up, but could not be retired yet", name)
            else:
                self.former.discard(name)

    def let_go(self) -> int:
        """Take no more names, and return the last one, which has to be retired."""
        name, self.name = self.name, -1  # from here on its lease does not matter
        self._lets_go = True
        return name

    def ledger_is_gone(self, why: LedgerGone) -> None:
        """Note that nothing can be done on the ledger any more."""
        if self.gone is None:
            self.gone = why
            self._host.lost_ledger(why)

    # Steps.

    def next_id(self) -> str:
        """Return an id that no other step has."""
        self._sent += 1
        return f"{self.token}{self._sent:x}"

    async def step(
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
        """Take a step on the session and perform what it decides, even if the caller is cancelled.

        `fn` is pure, and may be called more than once. What the `owner` of a turn does is not repeated under
        another name: raises Fenced if the lease is lost.
        """
        await self.ready()
        ask = Ask(session_id, 0, "", head, run_id, is_new=is_new, key=key)
        return await asyncio.shield(self.tasks.spawn(self.send(ask, fn, owner=owner)))

    async def send(self, ask: Ask, fn: Callable[[Step], T], *, owner: bool) -> T:
        """Take a step in the task of the caller, which must not be cancelled."""
        self.under_way += 1
        pending = PendingStep(ask.session_id)
        try:
            await self._host.until_joined()
            self.pending[pending] = None
            while True:
                self._check_not_letting_go()
                if self.name == 0:
                    await self._rename(0)
                name = self.name
                try:
                    sent = ask._replace(worker=name, step_id=self.next_id())
                    decision = await self._decided(sent, fn, pending)
                except LeaseLost:
                    pending.was_not_saved()
                    await self._rename(name)
                    if owner:
                        raise Fenced("the lease was lost") from None
                    continue
                except OutcomeUnknown:
                    await self._rename_soon(name)
                    raise
                except LedgerGone as exc:
                    pending.was_not_saved()
                    self.ledger_is_gone(exc)
                    raise
                except LedgerUnavailable:
                    pending.was_not_saved()
                    raise
                except (Exception, asyncio.CancelledError) as exc:
                    if exc is pending.refused_by or not pending.was_decided or _is_cancelled(exc):
                        raise
                    await self._rename_soon(name)
                    raise OutcomeUnknown(f"the ledger failed in a step: {describe(exc)}") from exc
                step, result = decision.result
                pending.position = decision.position
                if decision.changes is not None:
                    if not decision.position:
                        await self._place(decision, pending)
                    self.last_position = max(self.last_position, decision.position)
                    self._host.perform(step, decision)
                return cast("T", result)
        finally:
            self.pending.pop(pending, None)
            pending.resolve()
            self.under_way -= 1
            if not self.under_way:
                self.idle.wake()

    async def _place(self, decision: Decision, pending: PendingStep) -> None:
        """Find out at which position a step was saved whose answer was lost.

        If the step completed a run, it is found by the id of the run. For any other step, the end of the
        ledger now is an upper limit, which is enough to tell what comes after the step.
        """
        assert decision.changes is not None
        done = [complete.run_id for complete in decision.changes.done]
        try:
            if done:
                found = await self.ledger.find(done)
                pending.position = decision.position = max((known.position for known in found), default=0)
            if not decision.position:
                decision.position = (await self.ledger.read_point()).until - 1
        except Exception as exc:  # effects do not wait for the position
            log_error(exc, "the position of a step whose answer was lost is not known yet")

    def _decided(self, ask: Ask, fn: Callable[[Step], T], pending: PendingStep) -> Awaitable[Decision]:
        def decide(loaded: Loaded, sent_as: str) -> Decision:
            step = Step(
                loaded,
                ask.worker,
                ask.step_id,
                places=self.settings.turns_limit is not None,
                closing=self.is_closing,
            )
            try:
                result = fn(step)
                decision = step.decision(sent_as, (step, result))
            except BaseException as exc:
                pending.refused_by = exc
                raise
            if decision.changes is not None:
                pending.decided(decision.changes)
            return decision

        return self.ledger.step(ask, decide)


def _is_cancelled(exc: BaseException) -> bool:
    """Return whether an exception was raised because the current task was cancelled."""
    task = asyncio.current_task()
    return isinstance(exc, asyncio.CancelledError) and task is not None and task.cancelling() > 0
