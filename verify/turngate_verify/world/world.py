"""A closed world: a real dispatcher whose loop, runner and store do what they are told, and a monitor.

Drivers make things happen by calling the methods of a ``World``; every call is
one thing that a caller, a runner or a store can do. What comes of it is seen
in three ways: the dispatcher's own recording, what the runner and the store
lived through, and the RunCompletes that were published. The abstract session
judges all of it, and ``check`` compares it with what the dispatcher says of
itself.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, Literal, TypeAlias, TypeVar

from turngate import (
    Covered,
    Delta,
    Dispatcher,
    Message,
    Run,
    RunComplete,
    State,
    Turn,
    TurnEnded,
    TurngateError,
)
from turngate_model import AbstractSession, Property, Successor, Violation, successor
from turngate_model.history import Accept, Cancel, Clear, Complete, Ended, Enter, Event, Fold, Handoff, Wrote
from turngate_model.lifecycle import DeclaredState
from turngate_verify.world.actors import LeftOver, Plan, Player, RunnerFailed, Store, StoreDown
from turngate_verify.world.expecting import Broken, expect
from turngate_verify.world.virtual_loop import VirtualLoop

__all__ = ["Broken", "Make", "Plan", "Player", "RunnerFailed", "Store", "StoreDown", "WhenBusy", "World"]

Make: TypeAlias = Callable[..., Dispatcher]
WhenBusy: TypeAlias = Literal["fold", "queue", "interrupt", "reject"]
T = TypeVar("T")

_ACCEPTED_AS: ContextVar[str] = ContextVar("accepted as")
"""The run that is accepted in this context; its turn is to run in a copy of it."""
_DECLARED = {state.value: state for state in DeclaredState}
_INTERNAL = (Property.REFINES, Property.DECLARED_MOVE)
"""Disagreements about the inside, told only when users lose nothing."""


class World:
    """A real dispatcher in a world without chance.

    With ``claimed``, only these properties are waited for: whatever else a design breaks on the way is
    passed over, and that it does not map to the abstract session is no surprise.
    """

    def __init__(
        self,
        make: Make = Dispatcher,
        *,
        claimed: Sequence[Property] = (),
        declared: Successor = successor,
        **options: Any,
    ) -> None:
        self.loop = VirtualLoop()
        self.store = Store(self)
        self.dispatcher = make(self._runner, messages=self.store, record=self._recorded, **options)
        self.dispatcher._message_prefix = "msg-"  # the same in the same run
        self.dispatcher._warns_if_dropped = False  # many worlds are left before their end
        self.claimed = frozenset(claimed)
        self.errors: list[BaseException] = []
        """What the monitor itself fell over."""
        self.sessions: dict[str, AbstractSession] = {}
        self.runs: dict[str, Run] = {}
        """Every run accepted, by id, in the order of acceptance."""
        self.players: dict[str, Player] = {}
        """The runner calls going on, by lead run."""
        self.violations: list[Violation] = []
        self.history: list[tuple[str, Event]] = []
        """All that was observed, with its session."""
        self.hooked: list[RunComplete] = []
        """What the hooks ``on_complete`` were given."""
        self.published: dict[str, RunComplete] = {}
        self.delivered: list[RunComplete] = []
        """What the subscribers to all sessions were given."""
        self.waits: dict[asyncio.Task[RunComplete], str] = {}
        """Who waits for which run."""
        self.deltas: Counter[str] = Counter()
        """How many deltas of each session were delivered, as far as the monitor has looked."""
        self.left: list[LeftOver] = []
        """What runners have left behind."""
        self.blocked = 0.0
        """For how many seconds the loop was blocked."""
        self._parts: dict[str, list[str]] = {}
        """What was written in a turn, by its lead run."""
        self._texts: dict[str, str] = {}
        """The text of each turn whose runner is over, by its lead run."""
        self.ended = False
        self._declared = declared
        self.active: set[str] = set()
        """The runs that were ever active or cancelled on entry: those that leave messages."""
        self._hooks: set[str] = set()
        self._queued: set[str] = set()
        self._entered: set[str] = set()
        self._unread_outcomes = False
        self._outcomes: dict[str, tuple[bool, str | None]] = {}
        self._foldable: set[str] = set()
        with self.loop:
            self._events = self.dispatcher.subscribe()
        self._events._delta_limit = sys.maxsize  # the monitor must miss nothing

    # What callers do. None of these waits.

    def call(self, coroutine: Coroutine[Any, Any, T], what: str) -> T:
        """Do what a caller does, said in domain words; a driver may let it wait."""
        return self.loop.call(coroutine)

    def accept(
        self, session: str, run_id: str, *, when_busy: WhenBusy = "fold", prompt: str = "", hook: bool = False
    ) -> Run:
        """Accept a prompt under a run_id."""
        self._say_foldable(run_id, when_busy)
        if hook and run_id not in self.runs:
            self._hooks.add(run_id)
        on_complete = self.hook if hook else None
        with _accepted_as(run_id):
            run = self._within(
                session,
                f"accept {run_id}",
                self.dispatcher.accept(
                    session,
                    prompt or f"prompt of {run_id}",
                    run_id=run_id,
                    when_busy=when_busy,
                    on_complete=on_complete,
                ),
            )
        self.runs[run_id] = run
        return run

    def hook(self, complete: RunComplete) -> None:
        """Receive the RunComplete of a run that was accepted with ``on_complete``."""
        self.hooked.append(complete)

    def submit(self, session: str, run_id: str, *, when_busy: WhenBusy = "fold") -> Run:
        """Accept a prompt that enters on a later step of the loop."""
        self._say_foldable(run_id, when_busy)
        with _accepted_as(run_id):
            run = self._within(
                session,
                f"submit {run_id}",
                self.dispatcher.submit(session, f"prompt of {run_id}", run_id=run_id, when_busy=when_busy),
            )
        self.runs[run_id] = run
        return run

    def ask(self, session: str, run_id: str, *, when_busy: WhenBusy = "fold") -> asyncio.Task[RunComplete]:
        """Have somebody ask, in a task that can be cancelled: the prompt is accepted when the task runs."""
        self._say_foldable(run_id, when_busy)
        asking = self.dispatcher.ask(session, f"prompt of {run_id}", run_id=run_id, when_busy=when_busy)
        with _accepted_as(run_id):
            task = self.loop.create_task(asking, name=f"asks {run_id}")
        self.waits[task] = run_id
        return task

    def _say_foldable(self, run_id: str, when_busy: WhenBusy) -> None:
        if run_id not in self.runs and when_busy == "fold":
            self._foldable.add(run_id)

    def enter(self, run_id: str) -> State:
        """Enter an accepted run."""
        run = self.runs[run_id]
        return self._within(run.session_id, f"enter {run_id}", self.dispatcher.enter(run))

    def release(self, run_id: str) -> None:
        """Close the handle of a run."""
        run = self.runs[run_id]
        self._within(run.session_id, f"release {run_id}", run.close())

    def cancel(self, session: str) -> Covered:
        """Cancel a session; see that it covers what is in flight, and is nothing when nothing is."""
        return self._see_covered(session, None, "cancel", self.dispatcher.cancel(session))

    def cancel_run(self, run_id: str) -> Covered:
        """Cancel one run; see that it covers what it should, and is nothing when the run is over."""
        run = self.runs.get(run_id)
        session = run.session_id if run else None
        return self._see_covered(session, run_id, f"cancel run {run_id}", self.dispatcher.cancel_run(run_id))

    def _see_covered(
        self, session: str | None, run_id: str | None, what: str, cancelling: Coroutine[Any, Any, Covered]
    ) -> Covered:
        """Cancel a session, or one run; see that the dispatcher says that it covers what it should."""
        abstract, seen = self.sessions.get(session or ""), len(self.history)
        should = abstract.covered_by_cancel(run_id) if abstract else []
        covered = self._within(session, what, cancelling)
        about = session if run_id is None else run_id
        if not should and (covered or any(not isinstance(event, Cancel) for _, event in self.history[seen:])):
            idle = (
                f"a cancel of {about}, where nothing is in flight, does something: it should change nothing"
            )
            self.violations.append(Violation(Property.IDLE_CANCEL, idle))
        if (said := [run.run_id for run in covered.runs]) != should:
            wrong = f"a cancel of {about} says that it covers {said}: it should cover {should}"
            self.violations.append(Violation(Property.FULL_COVERAGE, wrong))
        return covered

    def cancel_all(self) -> None:
        """Cancel every session."""
        self.call(self.dispatcher.cancel_all(), "cancel all")

    def clear(self, session: str) -> list[Run]:
        """Clear the queue of a session."""
        return self._within(session, "clear the queue", self.dispatcher.clear_queue(session))

    def wait(self, run_id: str) -> asyncio.Task[RunComplete]:
        """Have somebody wait for a run, in a task that can be cancelled."""
        task = self.loop.create_task(self.dispatcher.wait(run_id), name=f"waits for {run_id}")
        self.waits[task] = run_id
        return task

    def close(self, finish: float = 0.0) -> asyncio.Task[None]:
        """Have somebody close the dispatcher, in a task that can be cancelled."""
        return self.loop.create_task(self.dispatcher.aclose(finish=finish), name="closes")

    def pass_time(self, seconds: float, *, blocked: bool = False) -> None:
        """Let time pass: up to the next timer, or, on a loop that is blocked, past it."""
        until = self.loop.next_timer()
        if not blocked and until is not None:
            seconds = min(seconds, until - self.loop.time())
        self.blocked += seconds if blocked else 0.0
        self.loop.advance(seconds)

    def _within(self, session: str | None, what: str, coroutine: Coroutine[Any, Any, T]) -> T:
        """Do something in one session, without waiting, and see that it changes nothing in another."""
        seen = len(self.history)
        result = self.call(coroutine, what)
        for other, event in self.history[seen:]:
            if other != session:
                apart = f"what was done in {session} made {event} happen in {other}: it should not"
                self.violations.append(Violation(Property.ISOLATION, apart))
        return result

    # What the runner and the store live through.

    async def _runner(self, turn: Turn) -> str | None:
        session, lead = turn.run.session_id, turn.run.run_id
        others = [player for player in self.players.values() if player.turn.run.session_id == session]
        if others:
            two = f"the runner is called for {lead} while its call for {others[0].turn.run.run_id} goes on"
            self.violations.append(Violation(Property.ONE_TURN, f"{two}: it should wait"))
        if _ACCEPTED_AS.get("") != lead:
            elsewhere = f"the runner is called for {lead} in the context of {_ACCEPTED_AS.get('nobody')!r}"
            self.errors.append(AssertionError(f"{elsewhere}: it should be that of its accept"))
        self._parts[lead] = []
        player = self.players[lead] = Player(self, turn)
        text = None
        try:
            text = await player.play()
            return text
        finally:
            del self.players[lead]
            self._texts[lead] = text if isinstance(text, str) else "".join(self._parts[lead])
            self._observe(session, Ended(lead))

    def is_running(self, turn: Turn) -> bool:
        """Whether the runner of the turn is being called."""
        player = self.players.get(turn.run.run_id)
        return player is not None and player.turn is turn

    def write(self, turn: Turn, text: str) -> None:
        """Write to a turn, and take note of it."""
        turn.write(text)
        self._parts[turn.run.run_id].append(text)

    def write_if_allowed(self, turn: Turn, text: str) -> None:
        """Write to a turn that may be over: then, and only then, it is to be refused."""
        allowed = self.is_running(turn)
        try:
            self.write(turn, text)
        except TurnEnded:
            self.see_allowed(turn, "write", allowed, went=False)
        else:
            self.see_allowed(turn, "write", allowed, went=True)

    def see_allowed(self, turn: Turn, what: str, allowed: bool, *, went: bool) -> None:
        """See that what is left over of a turn could do something as long as its runner was called."""
        if went and not allowed:
            late = f"the turn of {turn.run.run_id} takes a {what} when its runner is over: it should refuse"
            self.violations.append(Violation(Property.LAST_WORD, late))
        elif allowed and not went:
            early = f"the turn of {turn.run.run_id} refuses a {what} while its runner is called"
            self.errors.append(AssertionError(early))

    def saw_write(self, messages: Sequence[Message], reason: Any) -> None:
        """Take note that the messages of some runs were written, or could not be."""
        for message in messages:
            if message.role == "user":
                self._observe(message.session_id, Wrote(message.run_id, reason))

    # What the monitor hears.

    def _recorded(self, entry: dict[str, Any]) -> None:
        kind, run = entry["event"], entry.get("run", "")
        event: Event
        if kind == "accept":
            if run in self.runs:
                return  # a run_id has one life for as long as it is known, whatever becomes of it
            self.runs[run] = self.dispatcher._runs[run]
            self._texts.pop(run, None)
            event = Accept(run, run in self._foldable)
        elif kind == "complete":
            event = Complete(run, entry["cancelled"], entry.get("error"))
            self._outcomes[run] = event[1:]
            self._unread_outcomes = True
        elif kind == "cancel":
            event = Cancel(frozenset(entry["runs"]) if "runs" in entry else None)
        elif kind == "clear":
            event = Clear()
        elif kind == "end":
            self.ended = True
            return
        else:
            event = self._moved(kind, run, entry)
        self._observe(entry["session"], event)

    def _moved(self, kind: str, run: str, entry: dict[str, Any]) -> Event:
        """Return the event of a run that has entered, or left the queue for a turn."""
        self._entered.add(run)
        if entry.get("state") == "queued":
            self._queued.add(run)
        else:
            self.active.add(run)
        if kind == "enter":
            return Enter(run, _DECLARED[entry["state"]])
        return Handoff(run) if kind == "handoff" else Fold(run, entry.get("into", ""))

    def _observe(self, session: str, event: Event) -> None:
        self.history.append((session, event))
        abstract = self.sessions.get(session)
        if abstract is None:
            abstract = self.sessions[session] = AbstractSession(self._declared)
        try:
            self.violations += abstract.observe(event)
        except Exception as exc:
            # The dispatcher guards itself against whom it tells; an oracle that falls over must not pass.
            self.errors.append(exc)

    # Comparing.

    def check(self) -> None:
        """Hold everything observed so far to the properties; raise Broken at the first that does not hold."""
        self._read_published()
        self._look_at_the_clock()
        for session, abstract in self.sessions.items():
            if not self.claimed:
                self._compare(session, abstract)
            if abstract.quiet and session in self.dispatcher._sessions:
                held = f"the dispatcher holds {self.dispatcher._sessions[session]}, which is quiet"
                self.violations.append(Violation(Property.NO_RESIDUE, f"{held}: it should hold nothing"))
        self.raise_what_is_broken()

    def raise_what_is_broken(self) -> None:
        """Raise what users lose rather than a disagreement about the inside; of a design, what is claimed."""
        if self.claimed:
            broken = [each for each in self.violations if each.property in self.claimed]
        else:
            broken = sorted(self.violations, key=lambda each: each.property in _INTERNAL)
        if broken:
            raise Broken(broken[0])
        if self.claimed:
            return
        if self.errors:
            raise self.errors[0]
        if self.loop.problems:
            raise AssertionError(f"the loop was told: {told_to(self.loop)}")

    def _read_published(self) -> None:
        """Compare each published RunComplete with the one recorded, and see that none comes twice."""
        unread = self._events._unread
        if not unread and not self.hooked and not self._unread_outcomes:
            return
        self._unread_outcomes = False
        seen = [event for event in unread if isinstance(event, RunComplete)]
        self._see_no_delta_after(unread)
        self.delivered += seen
        to_hooks = len(seen)
        seen += self.hooked
        unread.clear()
        self._events._sizes.clear()
        self._events._unread_bytes = 0
        self.hooked.clear()
        for nth, complete in enumerate(seen):
            run = complete.run_id
            if (nth >= to_hooks) != (run in self._hooks - self._queued):
                whom = f"{run} completes to the wrong one: to its hook, unless it has none or was queued"
                self.violations.append(Violation(Property.EXACTLY_ONE_COMPLETE, whom))
            if run in self.published:
                twice = Violation(
                    Property.EXACTLY_ONE_COMPLETE, f"{run} gets a second RunComplete: one was enough"
                )
                self.violations.append(twice)
            self.published[run] = complete
            self.store.since.pop(run, None)
            text = self._texts.get(complete.folded_into or run, "")
            if complete.text != text:
                self.errors.append(AssertionError(f"{run} completes with {complete.text!r}, not {text!r}"))
        recorded, published = set(self._outcomes), set(self.published)
        for run in sorted(recorded ^ published):
            differ = f"{run} is {'recorded' if run in recorded else 'published'} as complete, but not both"
            self.violations.append(Violation(Property.EXACTLY_ONE_COMPLETE, differ))
        for run, complete in self.published.items():
            if run in recorded and self._outcomes[run] != (complete.cancelled, complete.error):
                changed = f"{run} was complete as {self._outcomes[run]}, and is now {complete}"
                self.violations.append(Violation(Property.TERMINAL_IS_FINAL, changed))

    def _see_no_delta_after(self, events: Collection[object]) -> None:
        """See that no delta of a run comes after its RunComplete; count the deltas."""
        complete = set(self.published)
        self.deltas.update(event.session_id for event in events if isinstance(event, Delta))
        for event in events:
            if isinstance(event, RunComplete):
                complete.add(event.run_id)
            elif isinstance(event, Delta) and event.run_id in complete:
                late = f"a delta of {event.run_id} comes after its RunComplete: that should be the last event"
                self.violations.append(Violation(Property.LAST_WORD, late))

    def _look_at_the_clock(self) -> None:
        """See that all the writes of a turn together wait no longer than they may."""
        if self.loop.ready:
            return
        for door, lead in self.store.about.items():
            waited = self.loop.time() - self.store.since.get(lead, self.loop.time())
            if not door.done() and waited - 2 * self.blocked >= self.dispatcher._settle_timeout:
                self.errors.append(AssertionError(f"the writes of the turn of {lead} wait for {waited:g} s"))

    def _compare(self, session: str, abstract: AbstractSession) -> None:
        """Compare what the dispatcher says of a session with the abstract one beside it."""
        dispatcher = self.dispatcher
        accepted = abstract.in_state(DeclaredState.ACCEPTED)
        states: dict[str, str] = {
            run.run_id: run.state for run in self.runs.values() if run.session_id == session
        }
        if states != abstract.states:
            self._differ(session, "states", states, abstract.states)
        if session not in dispatcher._sessions and abstract.quiet:
            return  # of a session that it does not hold the dispatcher says that there is nothing
        queued = [run.run_id for run in dispatcher.queued(session)]
        if queued != abstract.queue:
            self._differ(session, "queued", queued, abstract.queue)
        count = dispatcher.accepted_count(session)
        if count != len(accepted):
            self._differ(session, "accepted", count, accepted)
        busy = dispatcher.is_busy(session)
        if busy != bool(abstract.turn):
            self._differ(session, "busy", busy, abstract.turn)
        if dispatcher.cancel_mark(session) and not abstract.covered.intersection(accepted):
            self._differ(session, "mark", dispatcher.cancel_mark(session), 0)

    def _differ(self, session: str, name: str, said: object, should: object) -> None:
        refines = f"{name} of {session}: the dispatcher says {said}, the abstract session {should}"
        self.violations.append(Violation(Property.REFINES, refines))

    # The end.

    def finish(self) -> None:
        """Let everything come to its end, close, and see that nothing is owed and nothing is left."""
        for _ in range(200):
            self.loop.settle()
            if not self._go_on():
                break
        self.check()
        for abstract in self.sessions.values():
            self.violations += abstract.owed()
        closing = self.close()
        for _ in range(200):
            self.loop.settle()
            if closing.done() or not self._go_on():
                break
        self.check()
        self._see_what_is_left(closing)
        self.raise_what_is_broken()

    def abandon(self) -> None:
        """End every task of a world that is broken, whatever that takes, so that it leaves no noise."""
        for _ in range(100):
            left = [task for task in self.loop.tasks if not task.done()]
            if not left:
                break
            for player in self.players.values():
                player.swallows = 0
            for task in left:
                task.cancel()
            with suppress(Exception):
                self.loop.settle()
        for task in self.loop.tasks:
            if task.done() and not task.cancelled():
                task.exception()

    def _go_on(self) -> bool:
        """Let one runner or write that waits come to its end; return False if there is none."""
        for player in self.players.values():
            player.tell("finish", None)
            return True
        for door in self.store.waiting:
            if not door.done():
                door.set_result(None)
                return True
        for left in self.left:
            if left.waits:
                left.act()
                return True
        if self.loop.next_timer() is not None:
            self.pass_time(3_600.0)
            return True
        return False

    def _see_what_is_left(self, closing: asyncio.Task[None]) -> None:
        for run in self.runs.values():
            if run.state is not State.COMPLETE:
                owed = f"{run.run_id} is {run.state} when the dispatcher is closed: it is owed a RunComplete"
                self.violations.append(Violation(Property.EXACTLY_ONE_COMPLETE, owed))
        if self.dispatcher._sessions:
            held = f"the dispatcher holds {list(self.dispatcher._sessions.values())} of quiet sessions"
            self.violations.append(Violation(Property.NO_RESIDUE, f"{held}: it should hold nothing"))
        if not self.violations:
            # Nothing else was wrong, so this is not the consequence of something that was.
            expect(closing.done(), "the dispatcher does not close")
            expect(self.ended, "the recording has no end")
            left = [task.get_name() for task in self.loop.tasks if not task.done()]
            expect(not left, f"tasks are left behind: {', '.join(left)}")
            for task in self.loop.tasks:
                self._see_what_it_died_of(task)
        for session in self.sessions:
            self._look_at_record(session)
        for task, run_id in self.waits.items():
            told = task.done() and not task.cancelled() and not task.exception()
            if told and task.result() != self.published.get(run_id):
                other = f"who waited for {run_id} was told {task.result()}: it should be what was published"
                self.violations.append(Violation(Property.TERMINAL_IS_FINAL, other))
        for run_id, complete in self.published.items():
            if run_id in self.runs and self.runs[run_id].complete != complete:
                changed = f"the handle of {run_id} does not say what was published: it should never change"
                self.violations.append(Violation(Property.TERMINAL_IS_FINAL, changed))
            kept = run_id in self.dispatcher._completions
            if kept and self.loop.call(self.dispatcher.wait(run_id)) != complete:
                changed = f"the outcome of {run_id} is not what was published: it should never change"
                self.violations.append(Violation(Property.TERMINAL_IS_FINAL, changed))

    def _see_what_it_died_of(self, task: asyncio.Task[Any]) -> None:
        unseen = task._log_traceback  # to ask what it has raised is to have seen it
        exc = None if task.cancelled() else task.exception()
        if exc is not None:
            name = task.get_name()
            expect(task in self.waits or not unseen, f"nobody has retrieved what {name} has raised: {exc!r}")
            expect(isinstance(exc, TurngateError), f"{name} died of {exc!r}")

    def _look_at_record(self, session: str) -> None:
        """Compare the messages that the store really holds with how the runs of a session ended."""
        messages = self.loop.call(self.store.list(session))
        users = Counter(message.run_id for message in messages if message.role == "user")
        replies = Counter(message.id for message in messages if message.role == "assistant")
        reasons = {message.id: message.finish_reason for message in messages}
        entered, active = self._entered, self.active
        for run_id, complete in self.published.items():
            if complete.session_id != session:
                continue
            if run_id in active and complete.message_id is not None:
                once = users[run_id] == 1 and replies[complete.message_id] == 1
                if not once or (complete.cancelled and reasons[complete.message_id] != "canceled"):
                    wrong = f"{run_id} should have one user message and one reply that says how it ended"
                    self.violations.append(Violation(Property.ON_RECORD, wrong))
            elif run_id in entered - active and users[run_id]:
                wrong = f"{run_id} was dropped from the queue, and should leave no message"
                self.violations.append(Violation(Property.ON_RECORD, wrong))


@contextmanager
def _accepted_as(run_id: str) -> Iterator[None]:
    token = _ACCEPTED_AS.set(run_id)
    try:
        yield
    finally:
        _ACCEPTED_AS.reset(token)


def told_to(loop: VirtualLoop) -> str:
    """Say what has first gone to the exception handler of a loop."""
    problem = loop.problems[0]
    return f"{problem['message']}: {problem.get('exception')!r}"


@contextmanager
def without_log() -> Iterator[None]:
    """Keep what is raised on purpose out of the log."""
    log = logging.getLogger("turngate")
    was_disabled, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = was_disabled


def dispatcher_option(make: Make) -> str:
    """Return the option of a command that has it use a dispatcher; none for Turngate's own."""
    if make is Dispatcher:
        return ""
    return f" --dispatcher {make.__module__}:{getattr(make, '__qualname__', make)}"
