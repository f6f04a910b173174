"""A stage plays one scenario on a real dispatcher: it lists what could happen next, and lets it happen."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from functools import partial
from typing import Any, Literal, TypeAlias, TypeVar

from turngate import Dispatcher, DispatcherClosed, SessionBusy, Turn, TurngateError
from turngate._errors import AlreadyEntered
from turngate._events import Subscription
from turngate._loop import CleanUp
from turngate_model.checker.counterexample import consequences
from turngate_model.lifecycle import DeclaredState
from turngate_verify.world.failures import RunnerFailed, StoreDown
from turngate_verify.world.followers import MessagesFollower
from turngate_verify.world.scenarios import Scenario
from turngate_verify.world.virtual_loop import Waits, coroutine_of
from turngate_verify.world.world import Make, World

T = TypeVar("T")
LoopMode: TypeAlias = Literal["any", "stock"]
MODES: dict[LoopMode, str] = {
    "any": "any order: any ready callback, or any action from outside, may be next",
    "stock": "stock order: callbacks first in, first out, as in asyncio; actions from outside are free",
}

# An option: a ready callback, a caller's operation, a runner's command, an answer of the store, or an act of
# what a runner has left behind.
RUN, CALL, TELL, ANSWER, LEFT = "run", "call", "tell", "answer", "left"
Option: TypeAlias = tuple[str, Any, str]

TAIL = 3
"""The character from which a late reader follows a text."""
PAGE = 1
"""How many messages are read at a time: a prompt and its reply are then on two pages."""
MOST_TIMES = 3
"""How many times time may pass. A waiting close always has a next timer, so there must be a limit."""
_TIME = {"half": 0.6, "late": 1.0}
"""How much time passes, as a part of ``settle_timeout``."""
RAISED: dict[str, type[BaseException]] = {
    "fail": RunnerFailed,
    "fails": StoreDown,
    "interrupt": KeyboardInterrupt,
    "exit": SystemExit,
    "cancelled": asyncio.CancelledError,
}


class PatientWorld(World):
    """A world whose callers may have to wait. With a correct dispatcher they never have to."""

    blind = False
    """Whether the recording has stopped, so that the monitor does not know what should happen."""

    def call(self, coroutine: Coroutine[Any, Any, T], what: str) -> T:
        """Run a caller's coroutine. If it waits, raise Waits, and run the rest in a task."""
        return self.loop.begin(coroutine, what)

    def read(self) -> asyncio.Task[None]:
        """Read the events of all sessions to their end, in a task."""
        with self.loop:
            events = self.dispatcher.subscribe()
        return self.loop.create_task(_read(events), name="reads")

    def hold_task(self) -> tuple[asyncio.Task[None], asyncio.Future[None]]:
        """Hold the dispatcher open in a task until a future is done, then close it; return both."""
        until = self.loop.create_future()
        return self.loop.create_task(_hold(self.dispatcher, until), name="main"), until

    def abandon(self) -> None:
        """Drop a world that may not have ended, without warnings and without garbage."""
        # The parts of a world refer to each other in circles. Clear them, or they wait for the collector.
        dispatcher = self.dispatcher
        dispatcher._subscribers.to_completes.by_session.clear()
        dispatcher._subscribers.to_moves.by_session.clear()
        for turn in dispatcher._sessions.turns.values():
            turn.execution = None
            for run in turn.runs:
                run.turn = None
        effects = dispatcher._effects
        home = dispatcher._home
        home._warns_if_dropped = False
        parts = (dispatcher._sessions, dispatcher._close, home.deadlocks, effects.turns, effects)
        for each in (*parts, dispatcher):
            vars(each).clear()  # so that the turns that end here have no consequences
        gone = GeneratorExit()
        for task in self.loop.tasks:
            if task.done():
                continue
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # not in the stubs
            with contextlib.suppress(BaseException):
                coroutine_of(task).throw(gone)
            if waits_for := task._fut_waiter:  # type: ignore[attr-defined]  # not in the stubs
                with contextlib.suppress(RuntimeError):  # the loop may be closed
                    waits_for.cancel()
        for handle in self.loop.ready:
            begins = getattr(handle._callback, "__self__", None)  # type: ignore[attr-defined]  # not in the stubs
            if isinstance(begins, CleanUp):  # made by no loop, so it is not among the tasks
                coroutine_of(begins).close()
        gone.__traceback__ = None
        self.loop.tasks.clear()
        self.loop.ready.clear()
        for part in (self.monitor, self.runner, self.store, self):
            vars(part).clear()


async def _read(events: Subscription) -> None:
    async with events:
        async for _ in events:
            pass


async def _hold(dispatcher: Dispatcher, until: asyncio.Future[None]) -> None:
    async with dispatcher:
        await until


class Stage:
    """One execution of a scenario. To take the first option each time is plain order."""

    def __init__(
        self, scenario: Scenario, mode: LoopMode, make: Make = Dispatcher, world: PatientWorld | None = None
    ) -> None:
        self.scenario = scenario
        # A known-bad design may break anything. Only the properties that it is said to break count.
        claimed = getattr(make, "claimed", ())
        self.world = world or PatientWorld(make, claimed=claimed, turns_limit=scenario.turns_limit)
        self.world.store.plans.extend(scenario.store)
        self.done = [0] * len(scenario.callers)
        """How many of its operations each caller has done."""
        self.times = 0
        """How often time has passed."""
        self.threads: set[int] = set()
        """The numbers of the left-overs that have written like a thread."""
        self.told: dict[str, int] = {}
        """How many commands the runner has received, by lead run."""
        self.given: list[BaseException] = []
        """The exceptions that the runner and the store raise on command."""
        self.waiters: dict[str, asyncio.Task[Any]] = {}
        self._busy: dict[int, asyncio.Task[Any]] = {}
        """The callers whose operation waits."""
        self._held: asyncio.Future[None] = self.world.loop.create_future()
        self._any = mode == "any"

    # What could happen next.

    def options(self) -> list[Option]:
        """Return everything that could happen next; none when the scenario has ended."""
        world = self.world
        ready = world.loop.ready
        options: list[Option] = []
        if ready:
            options.append((RUN, 0, ""))
            if self._any and len(ready) > 1:
                options += [(RUN, n, "") for n in range(1, len(ready))]
        for caller, script in enumerate(self.scenario.callers):
            if self.done[caller] < len(script) and self._can(caller, script[self.done[caller]]):
                options.append((CALL, caller, script[self.done[caller]]))
        for lead, player in world.runner.players.items():
            if player.listens:
                commands = self.scenario.commands(lead)[self.told.get(lead, 0) :]
                options += [(TELL, lead, each) for each in (commands[0].split("/") if commands else ())]
            elif player.cleans_up:
                options.append((TELL, lead, "clean up"))
        for nth, door in enumerate(world.store.waiting):
            if not door.done() and door not in world.store.stuck:
                options += [(ANSWER, nth, each) for each in self.scenario.answers if each not in _TIME]
        if world.loop.timers and self.times < MOST_TIMES:
            options += [(ANSWER, 0, each) for each in self.scenario.answers if each in _TIME]
        for nth, left in enumerate(world.runner.left):
            if left.waits:
                options.append((LEFT, nth, "task"))
            if nth not in self.threads:
                options.append((LEFT, nth, "thread"))
        return options

    def _can(self, caller: int, operation: str) -> bool:
        """Return whether a caller can do its next operation now."""
        if self._busy and caller in self._busy and not self._busy[caller].done():
            return False
        verb, _, run = operation.rpartition(" ")
        if verb in ("enter", "release", "wait", "cancel run", "take back", "stream", "tail"):
            return run in self.world.runs
        if operation == "leave":
            return not self._held.done()
        if verb == "give up":
            return run in self.waiters and not self.waiters[run].done()
        return True

    # Making it happen.

    def take(self, option: Option) -> None:
        """Make one of the options happen."""
        kind, who, what = option
        if kind == RUN:
            self.world.loop.step(who)
        elif kind == CALL:
            if who in self._busy:
                self._look_at(who, self._busy.pop(who))
            if what in self.scenario.callers[who][self.done[who] :]:
                self.done[who] += 1
                self._operate(who, what)
        elif kind == TELL:
            self._command(who, what)
        elif what == "ok":
            self.world.store.waiting[who].set_result(None)
        elif kind == LEFT:
            self._act(who, what)
        elif what in _TIME:
            self.times += 1
            self.world.pass_time(_TIME[what] * self.world.dispatcher._effects.settle_timeout)
        else:
            self.world.store.waiting[who].set_exception(self._to_raise(what, "the disk is full"))
        self.world.loop.tidy()

    def finish(self) -> None:
        """End the world: the scenario has no more options."""
        for caller in [*self._busy]:
            if self._busy[caller].done():
                self._look_at(caller, self._busy.pop(caller))
        self.world.finish()

    def abandon(self) -> None:
        """Drop a scenario that may not be over."""
        for raised in self.given:
            raised.__traceback__ = None  # an exception and its frames refer to each other
        self.world.abandon()

    def _operate(self, caller: int, operation: str) -> None:
        try:
            self._do(operation.split())
        except Waits as waits:
            self._busy[caller] = waits.task
        except TurngateError as refusal:
            self._refused(caller, operation, refusal)

    def _look_at(self, caller: int, task: asyncio.Task[Any]) -> None:
        """Look at the outcome of an operation that had to wait."""
        operation = self.scenario.callers[caller][self.done[caller] - 1]
        refusal = task.exception()
        if isinstance(refusal, TurngateError):
            self._refused(caller, operation, refusal)
        elif refusal is not None:
            raise AssertionError(f"{operation} raises {refusal!r}") from refusal

    def _do(self, words: list[str]) -> None:
        world = self.world
        match words:
            case ["accept", run, *how]:
                self._accept(run, *how)
            case ["submit", run]:
                world.submit(self.scenario.session_of(run), run)
            case ["enter", run]:
                world.enter(run)
            case ["release", run]:
                world.release(run)
            case ["cancel", "run", run]:
                world.cancel_run(run)
            case ["take", "back", run]:
                world.cancel_run(run, waiting_only=True)
            case ["cancel", "all"]:
                world.cancel_all()
            case ["cancel", *session]:
                world.cancel(session[0] if session else "s")
            case ["clear", *session]:
                world.clear(session[0] if session else "s")
            case ["wait", run]:
                self.waiters[run] = world.wait(run)
            case ["give", "up", run]:
                with world.loop:
                    self.waiters[run].cancel()
            case ["close"]:
                world.close()
            case ["close", "gently"]:
                world.close(finish=world.dispatcher._effects.settle_timeout)
            case ["begin", "close"]:
                world.begin_close()
            case ["read"]:
                world.read()
            case [("stream" | "tail") as how, run]:
                world.follow_text(run, 0 if how == "stream" else TAIL).read(world.loop, to_end=True)
            case ["completions"]:
                if follower := world.follow_completions():
                    follower.read(world.loop, to_end=True)
            case ["page", *session]:
                self._page(session[0] if session else "s")
            case ["hold"]:
                _, self._held = world.hold_task()
            case ["leave"]:
                self._held.set_result(None)
            case _:
                raise ValueError(f"there is no action {' '.join(words)}")

    def _page(self, session: str) -> None:
        """Read one page of the messages of a session, behind the last one that was read."""
        pages = [each for each in self.world.followers if isinstance(each, MessagesFollower)]
        known = [each for each in pages if each.session == session]
        reader = known[0] if known else self.world.follow_messages(session, PAGE)
        reader.read(self.world.loop, to_end=False)

    def _accept(self, run: str, how: Any = "fold") -> None:
        session = self.scenario.session_of(run)
        hook = how == "hook"
        self.world.accept(session, run, when_busy="fold" if hook else how, hook=hook)

    def _refused(self, caller: int, operation: str, refusal: TurngateError) -> None:
        """Expect the refusal to be right. A caller whose prompt is refused stops there."""
        verb, run = operation.split()[:2]
        abstract = self.world.monitor.sessions.get(self.scenario.session_of(run))
        match refusal:
            case AlreadyEntered():
                right = verb == "enter" and abstract and abstract.states[run] is not DeclaredState.ACCEPTED
            case DispatcherClosed():
                right = self.world.dispatcher._close.is_begun
            case SessionBusy():
                right = operation.endswith("reject") and abstract and not abstract.quiet
            case _:
                right = False
        if not right and not self.world.blind:
            raise AssertionError(f"{operation} was refused, and should not: {refusal}")
        if verb != "enter":
            self.done[caller] = len(self.scenario.callers[caller])

    def _command(self, lead: str, command: str) -> None:
        player = self.world.runner.players[lead]
        if command == "clean up":
            player.cleaned_up()
            return
        self.told[lead] = self.told.get(lead, 0) + 1
        if command in ("swallow", "tidy"):
            player.obey(command)
        elif command in RAISED:
            player.tell("fail", self._to_raise(command, "the runner has failed"))
        elif command in ("fold", "leave"):
            player.tell(command)
        else:
            player.tell(command, f"reply to {lead}")

    def _act(self, nth: int, how: str) -> None:
        if how == "task":
            self.world.runner.left[nth].act()
        else:
            self.threads.add(nth)
            self.world.runner.left[nth].act_as_thread()

    def _to_raise(self, name: str, why: str) -> BaseException:
        self.given.append(RAISED[name](why))
        return self.given[-1]

    # Descriptions.

    def label(self, option: Option) -> str:
        """Describe an option in domain words."""
        kind, who, what = option
        match kind, what:
            case "run", _:
                return said_of(self.world.loop.ready[who])
            case "call", "clear":
                return "clear the queue"
            case "call", "close":
                return "close the dispatcher"
            case "call", "begin close":
                return "begin to close the dispatcher"
            case "call", "completions":
                return "follow the completions"
            case "call", "page":
                return "read a page of messages"
            case "call", _:
                return what
            case "tell", "fold":
                return f"the runner of {who} asks for follow-ups"
            case "tell", "leave":
                return f"the runner of {who} leaves a task and a thread behind"
            case "tell", "swallow":
                return f"the runner of {who} decides to swallow a cancel"
            case "tell", "tidy":
                return f"the runner of {who} decides to clean up when it is cancelled"
            case "tell", "clean up":
                return f"the runner of {who} has cleaned up"
            case "tell", _:
                return f"the runner of {who} {_PRESENT[what]}"
            case "left", _:
                lead = self.world.runner.left[who].turn.run.run_id
                return f"the {what} that the runner of {lead} left behind acts"
            case _, "late":
                return "time runs out"
            case _, "half":
                return "some time passes"
            case _, "ok":
                return f"the store has written the messages of {self._written(who)}"
            case _:
                return f"the store fails to write the messages of {self._written(who)}"

    def _written(self, nth: int) -> str:
        """Return whose messages a waiting write is about."""
        return self.world.store.about[self.world.store.waiting[nth]]

    def seen_since(self, events: int) -> str:
        """Describe in domain words what has happened since there were this many events."""
        return consequences(tuple(event for _, event in self.world.monitor.history[events:]))


_PRESENT = {
    "finish": "finishes",
    "fail": "fails",
    "write": "writes",
    "interrupt": "raises KeyboardInterrupt",
    "exit": "raises SystemExit",
    "cancelled": "raises CancelledError",
}


def said_of(handle: asyncio.Handle) -> str:
    """Describe a ready callback in domain words."""
    callback: Any = handle._callback  # type: ignore[attr-defined]  # not in the stubs
    task = getattr(callback, "__self__", None)
    if not isinstance(task, asyncio.Task):
        args: list[Any] = [*(handle._args or ())]
        while isinstance(callback, partial):
            callback, args = callback.func, [*callback.args, *args]
        runs = [each.run if isinstance(each, Turn) else each for each in args]
        about = next((each.run_id for each in runs if hasattr(each, "run_id")), "")
        return f"the callback {getattr(callback, '__name__', callback)} {about} runs".replace("  ", " ")
    turn = turn_of(task)
    return f"{task.get_name() if turn is None else f'the turn of {turn}'} goes on"


def turn_of(task: asyncio.Task[Any]) -> str | None:
    """Return the lead run of the turn that a task conducts; None if there is none."""
    frame = getattr(task.get_coro(), "cr_frame", None)
    turn = frame.f_locals.get("turn") if frame else None
    return turn.run.run_id if turn is not None else None
