"""HOW, where processes share a ledger and die: load, save, effects, and all that goes wrong.

A process takes a step of a session in three parts: it loads the session, decides
(``decisions.py``), and saves what it decided if the session is still as it was loaded; if not, it
loads again. Only a save changes the ledger, and only saves are shown to the abstract session.
Effects, which are calls of the runner, come after the save.

There are four ways for this to go wrong, and what becomes of each:

* A process dies. What it had in hand is gone. Its name is given up, and whoever is up takes over
  what is under that name: an accepted run is entered, a turn is completed as lost or begun again.
* A process is given up and lives: its lease ran out. It saves nothing any more, notices at some
  time, and goes on under a new name. Calls that it still makes or has running are refused by their
  fence.
* The answer to a save is lost. The process asks by the step's id, and learns that it was saved. If
  it cannot learn that, it takes a new name, so that whatever it was given counts as left by a dead
  process.
* Every process dies. Nothing happens until one comes back, under a new name.

Safety rests on two comparisons in the save: the version of the session, and the fence of the call.
That a process whose lease ran out saves nothing is hygiene: the explorer finds nothing broken
without it.

Left out: several sessions, interrupt, release, cancel_run and clear (each is a save of one step,
like cancel), runners that fail, stores that fail (messages are part of the save), a save that was
sent and never arrives (it is the same as none), an accept that is asked for twice under one run_id
(it is found, and saves nothing), leases as time (a lease runs out when it does), and wake-ups
(whoever could do something may do it at any time).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, NamedTuple

from turngate_model.durable import judges
from turngate_model.durable.decisions import Decision, Decisions
from turngate_model.durable.records import (
    GONE,
    ON_BEHALF_OF_A_CALL,
    Call,
    Ledger,
    Loaded,
    Operation,
    Process,
    Unanswered,
    Worker,
    World,
    in_one_form,
    names_on,
    replaced,
)
from turngate_model.durable.sessions import NAMES
from turngate_model.mechanism import Action
from turngate_model.properties import AnyViolation

MODES = ("fold", "queue")


class DurableStep(NamedTuple):
    """One step of the world: who did what, where it leads, and what it breaks."""

    who: Worker
    what: str
    world: World
    operation: Operation | None = None
    trail: tuple[tuple[int, Action], ...] = ()
    violations: tuple[AnyViolation, ...] = ()
    internal: bool = False
    """Whether it happens of itself, if runners end, the ledger answers, and the dead are noticed."""
    spends: tuple[str, ...] = ()
    """What it uses up of the bounds."""


class DurableMechanism(Decisions):
    """The durable mechanism. A known-bad design is a subclass that does one thing otherwise."""

    looks_at_the_version: ClassVar[bool] = True
    """Whether a save is refused when the session has changed since it was loaded."""
    remembers_steps: ClassVar[bool] = True
    """Whether the ledger can be asked if a step was saved."""
    takes_new_names: ClassVar[bool] = True
    """Whether a process that comes back, or was given up and goes on, has a name that nobody had before."""

    def initial(self) -> World:
        """Return the world in which nothing has happened."""
        return World(Ledger(self.sessions.empty), (Process(),) * self.bounds.processes)

    def steps(self, world: World, left: frozenset[str]) -> Iterator[DurableStep]:
        """Yield every step of the world that uses up nothing but what is left of the bounds."""
        for me, process in enumerate(world.processes, 1):
            if process.up:
                for operation, internal in self.operations(world, me):
                    yield from self.begin(world, me, operation, internal, left)
                yield from self.in_hand(world, me, left)
                yield from self.fate(world, me, left)
            else:
                anew = "comes back" if self.takes_new_names else "comes back as it was"
                yield DurableStep(me, anew, in_one_form(self.come_back(world, me)))
        if world.up:
            for name in sorted({name for name in names_on(world.ledger) if name < GONE}):
                yield DurableStep(0, "bury", in_one_form(self.buried(world, name)), internal=True)
        if "crashes" in left and sum(process.up for process in world.processes) > 1:
            yield self.everyone_dies(world)

    # What a process could set out to do.

    def operations(self, world: World, me: Worker) -> Iterator[tuple[Operation, bool]]:
        """Yield what a process could begin, and whether it does so of itself."""
        ledger, runs = world.ledger, self.sessions.runs(world.ledger.session)
        if runs < self.bounds.prompts:
            for mode in MODES:
                yield Operation("accept", NAMES[runs], mode), False
                yield Operation("submit", NAMES[runs], mode), False
        yield Operation("cancel"), False
        for run, holder in ledger.holders:
            if holder == me:
                yield Operation("enter", run), False
            elif not self.is_dead(world, holder):
                yield Operation("enter", run, "late"), False
            elif self.takes_over(ledger, run):
                yield Operation("enter", run, "dead"), True
        for call in world.processes[me - 1].calls:
            if call.phase != "due":
                yield Operation("finish", call.lead, fence=call.fence), True
            if call.phase == "running" and self.how(ledger).queue:
                yield Operation("fold", call.lead, fence=call.fence), False
        if self.how(ledger).active and ledger.owner != me and self.is_dead(world, ledger.owner):
            yield Operation("reap", self.how(ledger).active), True

    def is_dead(self, world: World, worker: Worker) -> bool:
        """Tell whether a worker was given up. One that the ledger does not know counts as dead."""
        return worker == GONE or (worker > 0 and world.processes[worker - 1].given_up)

    def takes_over(self, ledger: Ledger, run: str) -> bool:
        """Tell whether somebody enters an accepted run whose holder is dead."""
        return True

    def may_save(self, process: Process, own: bool = True) -> bool:
        """Tell whether the lease allows a save under the name that a process has, or under one it had."""
        return own and not process.given_up

    # Load and save.

    def begin(
        self, world: World, me: Worker, operation: Operation, internal: bool, left: frozenset[str]
    ) -> Iterator[DurableStep]:
        """Load and save in one go, or load only and let others come first."""
        process = world.processes[me - 1]
        known = process.loaded is not None and process.loaded.operation == operation
        spends = ("cancels",) if operation.name == "cancel" else ()
        if known or not self.may_save(process) or not left.issuperset(spends):
            return
        yield from self.save(world, me, operation, world.ledger, left, internal=internal, spends=spends)
        if "loads" in left and process.loaded is None and operation.name not in ("accept", "submit"):
            after = self.after_load(world, me, operation)
            yield DurableStep(me, "loads", in_one_form(after), operation, spends=(*spends, "loads"))

    def after_load(self, world: World, me: Worker, operation: Operation) -> World:
        """Return the world with a step loaded; a runner whose turn is to be finished has returned."""
        process = world.processes[me - 1]
        kept = None if self.looks_at_the_version else world.ledger
        process = process._replace(loaded=Loaded(operation, kept))
        if operation.name == "finish":
            process = _with_phase(process, _call_of(process, operation), returned=True)
        return world.with_process(me, process)

    def save(
        self,
        world: World,
        me: Worker,
        operation: Operation,
        loaded: Ledger,
        left: frozenset[str],
        *,
        internal: bool,
        spends: tuple[str, ...] = (),
        what: str = "saves",
        own: bool = True,
    ) -> Iterator[DurableStep]:
        """Decide on what was loaded and save it; the answer comes, or it is lost."""
        process = world.processes[me - 1]
        decision = self.decide(loaded, me if own else GONE, operation)
        if decision is None:
            if what == "saves late" or operation.name == "finish":
                refused = world.with_process(me, self.performed(process, operation, None))
                yield DurableStep(me, "is refused", in_one_form(refused), operation, internal=internal)
            return
        violations: tuple[AnyViolation, ...] = (
            *decision.violations,
            *judges.fenced(_call_of(process, operation)),
            *(() if decision.trail else judges.begun_again(self.sessions, world, decision.starts)),
        )
        saved = self.settled_world(world, loaded, decision)
        process = saved.processes[me - 1]
        start = Call(decision.starts, decision.ledger.fence, own=own) if decision.starts else None
        after = saved.with_process(me, self.performed(process, operation, start))
        done = (operation, decision.trail, violations)
        yield DurableStep(me, what, in_one_form(after), *done, internal, spends)
        waits = start is not None or not self.remembers_steps
        if waits and "losses" in left and process.unanswered is None:
            kept = self.performed(process, operation, None)
            kept = kept._replace(unanswered=Unanswered(start, None if self.remembers_steps else operation))
            lost = in_one_form(saved.with_process(me, kept))
            yield DurableStep(me, f"{what}, unanswered", lost, *done, spends=(*spends, "losses"))

    def settled_world(self, world: World, loaded: Ledger, decision: Decision) -> World:
        """Return the world after a save: what is loaded is stale, and calls may have lost the turn."""
        over = bool(decision.starts) or self.how(loaded).active != self.how(decision.ledger).active
        processes = world.processes
        if self.looks_at_the_version and any(process.loaded for process in processes):
            processes = tuple(process._replace(loaded=None) for process in processes)
        if over:
            processes = tuple(_disentitled(process) for process in processes)
        return World(decision.ledger, processes, world.blackout)

    def performed(self, process: Process, operation: Operation, start: Call | None) -> Process:
        """Return a process after the effects of a step: an ended call is gone, one to be made is due."""
        if operation.name == "finish":
            ended = _call_of(process, operation)
            process = process._replace(calls=tuple(call for call in process.calls if call is not ended))
        if start:
            process = process._replace(calls=(*process.calls, start))
        return process

    # What a process has in hand.

    def in_hand(self, world: World, me: Worker, left: frozenset[str]) -> Iterator[DurableStep]:
        """Yield how a process goes on with what it has begun."""
        process = world.processes[me - 1]
        if loaded := process.loaded:
            rest = world.with_process(me, process._replace(loaded=None))
            own = loaded.own
            if self.may_save(process, own):
                seen = world.ledger if loaded.ledger is None else self.stale(loaded.ledger, world.ledger)
                late = "saves late"
                yield from self.save(
                    rest, me, loaded.operation, seen, left, internal=True, what=late, own=own
                )
            else:
                yield DurableStep(me, "has no lease", rest, loaded.operation, internal=True)
        if unanswered := process.unanswered:
            yield from self.unanswered(world, me, unanswered, left)
        for call in process.calls:
            if call.phase == "due":
                yield self.perform(world, me, call)

    def stale(self, loaded: Ledger, now: Ledger) -> Ledger:
        """Return what a design decides on that ignores the version: the old session, judged by today."""
        return loaded._replace(session=self.sessions.paired(loaded.session, now.session))

    def unanswered(
        self, world: World, me: Worker, unanswered: Unanswered, left: frozenset[str]
    ) -> Iterator[DurableStep]:
        """Ask whether the step was saved; who cannot learn it takes a new name."""
        process = world.processes[me - 1]._replace(unanswered=None)
        calls = (*process.calls, unanswered.start) if unanswered.start else process.calls
        known = world.with_process(me, process._replace(calls=calls))
        yield DurableStep(me, "learns", in_one_form(known), internal=True)
        if self.takes_new_names:
            anew = self.new_name(world.with_process(me, process), me)
            yield DurableStep(me, "cannot learn", in_one_form(anew))

    def perform(self, world: World, me: Worker, call: Call) -> DurableStep:
        """Call the runner, unless the process has another name by now."""
        process = world.processes[me - 1]
        about = Operation("call", call.lead)
        if not self.may_call(call):
            rest = process._replace(calls=tuple(each for each in process.calls if each is not call))
            return DurableStep(
                me, "too late", in_one_form(world.with_process(me, rest)), about, internal=True
            )
        running = in_one_form(world.with_process(me, _with_phase(process, call, returned=False)))
        violations = judges.called(self.sessions, world, process, call)
        return DurableStep(me, "calls", running, about, violations=violations, internal=True)

    def may_call(self, call: Call) -> bool:
        """Tell whether a call that is due may still be made."""
        return call.own

    # What becomes of processes.

    def fate(self, world: World, me: Worker, left: frozenset[str]) -> Iterator[DurableStep]:
        """Yield what can happen to a process that is up."""
        process = world.processes[me - 1]
        if process.given_up:
            notices = "notices" if self.takes_new_names else "goes on as it was"
            yield DurableStep(me, notices, in_one_form(self.new_name(world, me)), internal=True)
        elif "expiries" in left:
            given_up = world.with_process(me, process._replace(given_up=True))
            yield DurableStep(me, "is given up", given_up, spends=("expiries",))
        if "crashes" in left:
            yield DurableStep(me, "dies", in_one_form(self.dead(world, me)), spends=("crashes",))

    def new_name(self, world: World, me: Worker) -> World:
        """Let a process go on under a new name: what it held is under a name that was given up."""
        process = world.processes[me - 1]
        calls = tuple(call._replace(own=False) for call in process.calls)
        unanswered = process.unanswered
        if unanswered and unanswered.start:
            unanswered = unanswered._replace(start=unanswered.start._replace(own=False))
        loaded = process.loaded and process.loaded._replace(own=False)
        process = process._replace(given_up=False, calls=calls, loaded=loaded, unanswered=unanswered)
        return replaced(world, me, GONE).with_process(me, process)

    def dead(self, world: World, me: Worker) -> World:
        """Let a process die: what it had in hand is gone, what it held stays under its name."""
        left_behind = min([GONE, *names_on(world.ledger)]) - 1
        name = GONE if world.processes[me - 1].given_up else left_behind
        world = replaced(world.with_process(me, Process(up=False)), me, name)
        return world._replace(blackout=world.blackout or not world.up)

    def everyone_dies(self, world: World) -> DurableStep:
        """Let every process die at once."""
        for me, process in enumerate(world.processes, 1):
            if process.up:
                world = self.dead(world, me)
        return DurableStep(0, "everyone dies", in_one_form(world), spends=("crashes",))

    def come_back(self, world: World, me: Worker) -> World:
        """Let a process come back, with nothing in hand and a name that nobody had before."""
        return world.with_process(me, Process())

    def buried(self, world: World, name: Worker) -> World:
        """Give up the name of a process that died."""
        return replaced(world, name, GONE)


def _call_of(process: Process, operation: Operation) -> Call | None:
    """Return the call on whose behalf something is done."""
    if operation.name not in ON_BEHALF_OF_A_CALL:
        return None
    about = (operation.run, operation.fence)
    return next((call for call in process.calls if (call.lead, call.fence) == about), None)


def _with_phase(process: Process, call: Call | None, *, returned: bool) -> Process:
    calls = tuple(
        each._replace(phase="returned" if returned else "running") if each is call else each
        for each in process.calls
    )
    return process._replace(calls=calls)


def _disentitled(process: Process) -> Process:
    """Return a process whose calls have lost the turn."""
    if process.calls:
        process = process._replace(calls=tuple(call._replace(entitled=False) for call in process.calls))
    if process.unanswered and process.unanswered.start:
        start = process.unanswered.start._replace(entitled=False)
        process = process._replace(unanswered=process.unanswered._replace(start=start))
    return process
