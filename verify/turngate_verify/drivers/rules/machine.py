"""Everything that a caller, a runner and a store can do to the real dispatcher, one rule for each."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from turngate import (
    AlreadyEntered,
    Dispatcher,
    DispatcherClosed,
    QueueFull,
    Run,
    RunComplete,
    RunConflict,
    SessionBusy,
    State,
    TurngateError,
    UnknownRun,
    WrongLoop,
)
from turngate_model import AbstractSession, Property
from turngate_model.lifecycle import State as Declared
from turngate_verify.drivers.rules.program import Line
from turngate_verify.drivers.rules.reached import Noting, Tally, ways_to_end
from turngate_verify.drivers.rules.readers import Reader
from turngate_verify.drivers.rules.world import RulesWorld
from turngate_verify.world.actors import RunnerFailed, StoreDown
from turngate_verify.world.expecting import Broken, expect
from turngate_verify.world.virtual_loop import VirtualLoop
from turngate_verify.world.world import Plan, WhenBusy, without_log

SETTLE_TIMEOUT = 5.0
QUEUE_LIMIT = 5
COMPLETE_LIMIT = 3
COMPLETIONS_KEPT = 4
MOST_READERS = 2
MOST_ACCEPTED = 4

CUT_OFF = "a subscriber is cut off"
RULES: list[str] = []
"""The names of the rules, as they are defined below."""
COMMANDS = ("finish", "fold", "fail", "write", "swallow", "nonsense", "strike", "leave")
HOOKS = (
    "listen",
    "raise",
    "give up",
    *(f"{act} now" for act in ("cancel", "cancel all", "clear", "submit", "start", "enter", "release")),
    "cancel later",
    "submit later",
)
"""What an ``on_complete`` does: now, called in the middle of the dispatcher's work, or later, in a task."""
REFUSALS = (AlreadyEntered, DispatcherClosed, QueueFull, RunConflict, SessionBusy, UnknownRun, WrongLoop)
ELSEWHERE: dict[str, Callable[[Dispatcher, Run], Coroutine[Any, Any, object]]] = {
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
    "close": lambda d, run: d.aclose(),
}
"""What can be called from another loop, and is refused there."""

_SESSIONS = st.sampled_from(("s", "s", "s", "t", "u"))
_PROMPTS: st.SearchStrategy[list[WhenBusy]] = st.lists(
    st.sampled_from(("fold", "fold", "fold", "queue", "interrupt", "reject")), min_size=1, max_size=3
)
_COMMANDS = st.lists(st.sampled_from(("finish", *COMMANDS)), min_size=1, max_size=3)
_AFTER_FOLD = st.lists(st.sampled_from(("finish", "fail", "fail", *COMMANDS)), min_size=1, max_size=2)
_HOOKS = st.one_of(st.just(""), st.sampled_from(HOOKS))
_THEN = st.sampled_from((0, 0, 1, 1, 2, 5))
_PLANS: st.SearchStrategy[Plan] = st.sampled_from(("slow", "fails"))


def _one_of(choose: Callable[[TurngateRules], Sequence[Any]]) -> st.SearchStrategy[Any]:
    """Draw one of what there is to choose from at this moment."""
    return st.runner().flatmap(lambda rules: st.sampled_from(choose(rules)))


def _rule(**arguments: st.SearchStrategy[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a method a rule that then lets the loop take some steps, and is checked after each of them.

    It is so when the program is run by hand, too.
    """

    def decorate(method: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(method)
        def checked(self: TurngateRules, then: int = 0, **drawn: Any) -> None:
            self.program.append(Line(method.__name__, {**drawn, "then": then}))
            self._take(method, drawn)
            for _ in range(then):
                self._judge(self._step)

        RULES.append(method.__name__)
        make_rule: Any = rule
        decorated: Callable[..., None] = make_rule(**arguments, then=_THEN)(checked)
        return decorated

    return decorate


@contextlib.contextmanager
def _refusing(refusal: type[TurngateError]) -> Iterator[None]:
    try:
        yield
    except refusal:
        return
    raise AssertionError(f"it should be refused with {refusal.__name__}")


def _when(
    there_is: Callable[[TurngateRules], object],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return precondition(lambda self: bool(there_is(self)))


class TurngateRules(RuleBasedStateMachine):
    """One example: a world, and what is done to it."""

    make: ClassVar[type[Dispatcher]] = Dispatcher
    claimed: ClassVar[tuple[Property, ...]] = ()
    """The properties that a design is said to break; whatever else it breaks is passed over."""
    tally: ClassVar[Tally] = Tally()

    def __init__(self) -> None:
        super().__init__()
        self.tally.examples += 1
        self.world = RulesWorld(
            self.make,
            claimed=self.claimed,
            declared=Noting(self.tally.reached),
            settle_timeout=SETTLE_TIMEOUT,
            queue_limit=QUEUE_LIMIT,
            delta_limit=1,
            complete_limit=COMPLETE_LIMIT,
            completions_kept=COMPLETIONS_KEPT,
        )
        self.world.on_hook = self._call_back
        self.program: list[Line] = []
        """What was done so far."""
        self.readers: list[Reader] = []
        self._hooks: dict[str, str] = {}
        self._callers: list[asyncio.Task[Any]] = []
        self._named = 0
        self._broken = False

    # What there is to choose from.

    @property
    def runs(self) -> list[str]:
        """Every run there ever was."""
        return [*self.world.runs]

    @property
    def known(self) -> list[str]:
        """The runs in flight, and those whose completions are kept."""
        return [run for run in self.runs if self.world.knows(run)]

    @property
    def forgotten(self) -> list[str]:
        """The runs whose completions are no longer kept."""
        return [run for run in self.runs if not self.world.knows(run)]

    @property
    def accepted(self) -> list[str]:
        """The runs that have not entered."""
        return [
            run
            for session in self.world.sessions.values()
            for run in session.in_state(Declared.ACCEPTED)
            if run in self.world.runs
        ]

    @property
    def uncovered(self) -> list[str]:
        """The runs in flight that no cancel covers yet."""
        return [
            run
            for session in self.world.sessions.values()
            for run in session.in_flight
            if run not in session.covered
        ]

    @property
    def queued(self) -> list[str]:
        """The runs that wait in a queue."""
        return [run for session in self.world.sessions.values() for run in session.queue]

    def sessions_of(self, runs: list[str]) -> list[str]:
        """Return the sessions of the runs, as often as they have some, and every session once."""
        return [*(self.world.runs[run].session_id for run in runs), *"stu"]

    @property
    def players(self) -> list[str]:
        """The lead runs whose runner is being called."""
        return [*self.world.players]

    @property
    def followed(self) -> list[str]:
        """The lead runs with a queue behind them."""
        return [run for run in self.players if self.world.sessions[self.world.runs[run].session_id].queue]

    @property
    def doors(self) -> range:
        """The writes that wait."""
        return range(sum(not door.done() for door in self.world.store.waiting))

    @property
    def callers(self) -> list[asyncio.Task[Any]]:
        """The tasks of callers who wait for something."""
        self._callers = [task for task in self._callers if not task.done()]
        return self._callers

    # What callers do.

    @_when(lambda self: len(self.accepted) < MOST_ACCEPTED)
    @_rule(session=_SESSIONS, prompts=_PROMPTS, hook=_HOOKS)
    def accept(self, session: str, prompts: list[WhenBusy], hook: str) -> None:
        """Accept a prompt for each ``when_busy``, with a hook or none; they enter when they are told to."""
        for when_busy in prompts:
            name = self._name()
            self._hooks[name] = hook
            self._new(session, name, functools.partial(self.world.accept, hook=bool(hook)), when_busy)

    @_when(lambda self: not self.world.closing and len(self.accepted) < MOST_ACCEPTED)
    @_rule(session=_SESSIONS, prompts=_PROMPTS, waits=st.booleans())
    def submit(self, session: str, prompts: list[WhenBusy], waits: bool) -> None:
        """Submit prompts, which enter on later steps; one who waits asks in a task, accept included."""
        for when_busy in prompts:
            if waits:
                self._callers.append(self.world.ask(session, self._name(), when_busy=when_busy))
            else:
                self._new(session, self._name(), self.world.submit, when_busy)

    @_when(lambda self: self.uncovered)
    @_rule(
        run=_one_of(lambda self: self.known), how=st.sampled_from(("accept", "submit", "conflict", "enter"))
    )
    def again(self, run: str, how: str) -> None:
        """Accept or submit under a run_id that is known, there with another prompt; or enter once more."""
        known = self.world.runs[run]
        closed = DispatcherClosed if self.world.closing else None
        if how == "accept":
            same = self._refused(closed, self.world.accept, known.session_id, run)
            expect(closed or same is known, f"{run} is known, and another run was made for it")
        elif how == "submit":
            self._refused(closed, self.world.submit, known.session_id, run)
        elif how == "conflict":
            conflict = closed or RunConflict
            self._refused(conflict, self.world.accept, known.session_id, run, prompt="another prompt")
        else:
            self._refused(None if run in self.accepted else AlreadyEntered, self.world.enter, run)

    @_when(lambda self: self.forgotten and len(self.accepted) < MOST_ACCEPTED)
    @_rule(run=_one_of(lambda self: self.forgotten), session=_SESSIONS)
    def reuse(self, run: str, session: str) -> None:
        """Accept a prompt under a run_id that is forgotten: it lives again, and the old handle stays good."""
        if run not in self.forgotten:
            return  # in a program that has been made smaller
        old, complete = self.world.runs[run], self.world.published[run]
        self.world.let_go(run)
        expect(self._new(session, run, self.world.accept) is not old, f"{run} is not forgotten")
        seen = len(self.world.history)
        self.world.call(old.close(), f"release {run}, as it was")
        assert self.world.call(old.wait(), f"wait for {run}, as it was") == complete
        same = len(self.world.history) == seen
        expect(same, f"the handle of {run}, as it was, is used for {run}, as it is")

    @_when(lambda self: self.accepted)
    @_rule(run=_one_of(lambda self: self.accepted))
    def enter(self, run: str) -> None:
        """Enter an accepted run."""
        state = self.world.enter(run)
        expect(state is not State.ACCEPTED, f"{run} has entered, and is still accepted")

    @_when(lambda self: self.accepted)
    @_rule(backwards=st.booleans())
    def enter_all(self, backwards: bool) -> None:
        """Enter every accepted run, first the one accepted first or the one accepted last."""
        for run in self.accepted[::-1] if backwards else self.accepted:
            self.world.enter(run)

    @_when(lambda self: self.accepted)
    @_rule(run=_one_of(lambda self: [*self.accepted, *self.runs]))
    def release(self, run: str) -> None:
        """Close the handle of a run, whatever its state."""
        self.world.release(run)

    @_when(lambda self: self.uncovered)
    @_rule(session=_one_of(lambda self: self.sessions_of(self.uncovered)))
    def cancel(self, session: str) -> None:
        """Cancel a session."""
        self.world.cancel(session)

    @_when(lambda self: self.uncovered)
    @_rule(run=_one_of(lambda self: [*self.uncovered, *self.runs, "nobody"]))
    def cancel_run(self, run: str) -> None:
        """Cancel one run, or one that nobody knows."""
        should = self._covered_alone(run)
        seen = len(self.world.history)
        covered = [each.run_id for each in self.world.cancel_run(run).runs]
        expect(covered == should, f"a cancel of {run} covers {covered}: it should cover {should}")
        expect(should or len(self.world.history) == seen, f"a cancel of {run}, which is over, does something")

    @_when(lambda self: self.queued)
    @_rule(session=_one_of(lambda self: self.sessions_of(self.queued)))
    def clear_queue(self, session: str) -> None:
        """Clear the queue of a session."""
        self.world.clear(session)

    @_when(lambda self: len(self.uncovered) > 2)
    @_rule()
    def cancel_all(self) -> None:
        """Cancel every session."""
        self.world.cancel_all()

    @_when(lambda self: len(self.runs) > 9 and not self.world.closing)
    @_rule(finish=st.sampled_from((0.0, 3.0, math.inf)))
    def close(self, finish: float) -> None:
        """Close the dispatcher, in a task: it begins on a later step, and may let runs finish for a while."""
        self._callers.append(self.world.close(finish))

    @_when(lambda self: self.uncovered)
    @_rule(run=_one_of(lambda self: self.runs), call=st.sampled_from(sorted(ELSEWHERE)))
    def elsewhere(self, run: str, call: str) -> None:
        """Call the dispatcher from another loop: that is refused, and leaves no trace."""
        handle = self.world.runs[run]
        before = len(self.world.history), repr(self.world.dispatcher)
        with _refusing(WrongLoop):
            VirtualLoop().call(ELSEWHERE[call](self.world.dispatcher, handle))
        after = len(self.world.history), repr(self.world.dispatcher)
        expect(after == before, f"a {call} from another loop leaves a trace: {before}, {after}")
        self.tally.reached.add(f"refused: {WrongLoop.__name__}")

    @_when(lambda self: self.uncovered and len(self.callers) < 2)
    @_rule(run=_one_of(lambda self: self.runs))
    def wait(self, run: str) -> None:
        """Wait for a run, in a task; for a forgotten one in vain."""
        self._callers.append(self.world.wait(run))

    @_when(lambda self: self.callers)
    @_rule(nth=_one_of(lambda self: range(len(self.callers))))
    def cancel_caller(self, nth: int) -> None:
        """Cancel the task of somebody who waits, asks, reads or closes."""
        self.callers[nth].cancel()

    # What subscribers do.

    @_when(lambda self: len(self.readers) < MOST_READERS and self.uncovered)
    @_rule(session=st.one_of(st.none(), _SESSIONS))
    def subscribe(self, session: str | None) -> None:
        """Subscribe to a session or to all; a reader lags by not reading, and may be cut off."""
        self.readers.append(Reader(self.world, session, COMPLETE_LIMIT))

    @_when(lambda self: any(not reader.waits for reader in self.readers))
    @_rule(nth=_one_of(lambda self: range(len(self.readers))), stops=st.booleans())
    def read(self, nth: int, stops: bool) -> None:
        """Read one event, in a task; one who stops unsubscribes first, and can read what was received."""
        if stops:
            self.readers[nth].unsubscribe()
        if task := self.readers[nth].read():
            self._callers.append(task)

    # What runners and stores do.

    @_when(lambda self: self.players)
    @_rule(run=_one_of(lambda self: self.players), does=_COMMANDS)
    def runner(self, run: str, does: list[str]) -> None:
        """Have a runner do something when its task runs next; strike cancels its task from outside."""
        self._tell(run, does)

    @_when(lambda self: self.followed)
    @_rule(run=_one_of(lambda self: self.followed), does=_AFTER_FOLD)
    def fold(self, run: str, does: list[str]) -> None:
        """Have a runner ask for the follow-ups that wait, and then do something."""
        self._tell(run, ["fold", *does])

    @_when(lambda self: self.players)
    @_rule(does=_COMMANDS)
    def runners(self, does: list[str]) -> None:
        """Have every runner do something."""
        for run in self.players:
            self._tell(run, does)

    @_when(lambda self: self.world.left)
    @_rule(nth=_one_of(lambda self: range(len(self.world.left))), thread=st.booleans())
    def left_over(self, nth: int, thread: bool) -> None:
        """Have something that a runner left behind use its turn: a thread, or a task when it runs next."""
        left = self.world.left[nth]
        if thread:
            left.act_as_thread()
        elif left.waits:
            left.act()

    @_when(lambda self: self.uncovered and not self.world.store.plans)
    @_rule(plan=_PLANS)
    def store(self, plan: Plan) -> None:
        """Make the next write slow or failing."""
        self.world.store.plans.append(plan)

    @_when(lambda self: self.doors)
    @_rule(nth=_one_of(lambda self: self.doors), fails=st.booleans())
    def let_through(self, nth: int, fails: bool) -> None:
        """Let a slow write through, or have it fail."""
        door = [each for each in self.world.store.waiting if not each.done()][nth]
        if fails:
            door.set_exception(StoreDown("the disk is full"))
        else:
            door.set_result(None)

    # What the loop does.

    @_when(lambda self: self.world.loop.ready)
    @_rule(choices=st.lists(st.integers(0, 3), min_size=1, max_size=6))
    def step(self, choices: list[int]) -> None:
        """Run ready callbacks, each time the one chosen: 0 is the one that asyncio would run."""
        for choice in choices:
            self._step(choice)

    @_when(lambda self: self.world.loop.ready)
    @_rule()
    def settle(self) -> None:
        """Run callbacks in plain order until none is ready."""
        self.world.loop.settle()

    @_when(lambda self: self.world.loop.next_timer() is not None)
    @_rule(seconds=st.sampled_from((1.0, 3.0, SETTLE_TIMEOUT + 1)), blocked=st.booleans())
    def pass_time(self, seconds: float, blocked: bool) -> None:
        """Let time pass, up to the next timer; or, on a loop that is blocked, also past it."""
        self.world.pass_time(seconds, blocked=blocked)

    # What hooks do.

    def _call_back(self, complete: RunComplete) -> None:
        does = self._hooks[complete.run_id]
        self.tally.reached.add(f"hook: {does}")
        if does == "raise":
            raise RunnerFailed("the hook failed")
        if does == "give up":
            raise asyncio.CancelledError
        act, _, when = does.rpartition(" ")
        if when == "now":
            self._act(act, complete)
        elif when == "later":
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
                    self._new(session, new, self.world.submit)
                case "start":
                    if self._new(session, new, self.world.accept):
                        self.world.enter(new)
                case "enter":
                    for run in accepted:
                        self.world.enter(run)
                case _:
                    for run in accepted[:1]:
                        self.world.release(run)
        except Exception as exc:
            # The dispatcher guards itself against what a hook raises; what is wrong here must not pass.
            self.world.errors.append(exc)

    # The end.

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
            reader.see_that_nothing_is_missing()
            if reader.cut_off:
                self.tally.reached.add(CUT_OFF)
        if any(isinstance(task.exception(), UnknownRun) for task in self.world.waits if not task.cancelled()):
            self.tally.reached.add(f"refused: {UnknownRun.__name__}")
        self.tally.reached |= ways_to_end(self.world)

    # How a rule is taken.

    def _take(self, method: Callable[..., None], drawn: dict[str, Any]) -> None:
        self.tally.steps += 1
        self.tally.reached.add(f"rule: {method.__name__}")
        self._judge(lambda: method(self, **drawn))
        self._judge(self.world.check)

    def _tell(self, run: str, does: list[str]) -> None:
        for command in does:
            self.tally.reached.add(f"runner: {command}")
            self.world.players[run].obey(command)

    def _step(self, choice: int = 0) -> None:
        ready = self.world.loop.ready
        if ready:
            self.world.loop.step(choice % len(ready))
            self.world.check()

    def _judge(self, call: Callable[[], None]) -> None:
        """Do it; what a design does besides breaking what is claimed is passed over."""
        try:
            with without_log():
                call()
        except Exception as exc:
            if isinstance(exc, Broken) or not self.claimed:
                self._broken = True
                self.tally.note(exc, tuple(self.program))
                raise

    def _name(self) -> str:
        self._named += 1
        return f"r{self._named}"

    def _covered_alone(self, run: str) -> list[str]:
        """Return the runs that a cancel of one run should cover."""
        if run not in self.known:
            return []
        abstract = self.world.sessions[self.world.runs[run].session_id]
        if run in abstract.turn:
            return [*abstract.turn]
        return [run] if run in abstract.in_flight else []

    def _new(
        self, session: str, run: str, accept: Callable[..., object], when_busy: WhenBusy = "fold"
    ) -> object:
        """Accept a new prompt, and see that it is refused when it must be, and only then."""
        abstract = self.world.sessions.get(session) or AbstractSession()
        waiting = len(abstract.in_state(Declared.ACCEPTED))
        waiting += 0 if when_busy == "interrupt" else len(abstract.queue)
        refusal: type[TurngateError] | None = None
        if self.world.closing:
            refusal = DispatcherClosed
        elif when_busy == "reject" and not abstract.quiet:
            refusal = SessionBusy
        elif waiting >= QUEUE_LIMIT:
            refusal = QueueFull
        return self._refused(refusal, accept, session, run, when_busy=when_busy)

    def _refused(
        self, refusal: type[TurngateError] | None, call: Callable[..., object], *args: Any, **options: Any
    ) -> object:
        """Call, and see that it is refused as it should be, without a trace."""
        seen = len(self.world.history)
        answer, said = None, None
        try:
            answer = call(*args, **options)
        except TurngateError as exc:
            said = type(exc)
        if said is not refusal:
            self.world.check()  # that a run was lost says more than that there is room
        expect(said is refusal, f"refused with {said}, expected {refusal}")
        if said is not None:
            expect(len(self.world.history) == seen, f"what was refused with {said} has left a trace")
            self.tally.reached.add(f"refused: {said.__name__}")
        return answer
