"""What the durable mechanism is made of: a ledger, processes, and what each process has in hand.

Names. A worker is the name under which a process saves. On the ledger the worker of a living
process is the number of that process, from 1. A process that dies leaves its name behind: below
GONE until the name is given up, GONE from then on. A process that comes back, or that was given up
and goes on, has a name that nobody had before, so on the ledger its number stands for the new name
only.

Fences are compared and never added up. They are kept as ranks: the ledger's is 0, earlier ones are
below.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias

NOBODY = 0
GONE = -1
"""Every worker that was given up and has no process any more, and every one that is not known."""

Phase: TypeAlias = Literal["due", "running", "returned"]
Worker: TypeAlias = int


class Call(NamedTuple):
    """One call of the runner, in the process that is to make it."""

    lead: str
    fence: int
    phase: Phase = "due"
    own: bool = True
    """Whether the process still has the name under which it was given the turn."""
    entitled: bool = True
    """For the judges only: nobody else was given the turn since, and it is not over."""
    notified: bool = False
    """For a design in which a notification alone tells the process of a cancel."""


class Ledger(NamedTuple):
    """What is durable about a session."""

    session: int
    """The session, and the abstract session that has seen every save: a node of Sessions."""
    owner: Worker = NOBODY
    """Who was given the active turn."""
    fence: int = 0
    """Grows with every owner of the turn."""
    attempts: int = 0
    holders: tuple[tuple[str, Worker], ...] = ()
    """Which worker has accepted a run that has not entered."""


class Operation(NamedTuple):
    """What a process sets out to do to the session."""

    name: str
    run: str = ""
    how: str = ""
    fence: int = 0
    """For what is done on behalf of a call: its fence."""


ON_BEHALF_OF_A_CALL = ("finish", "fold")


class Loaded(NamedTuple):
    """A step between its load and its save."""

    operation: Operation
    ledger: Ledger | None = None
    """What was loaded; kept only where a step is saved whatever has happened since."""
    own: bool = True
    """Whether the process still has the name under which the step will arrive."""


class Unanswered(NamedTuple):
    """A step that was saved, and whose answer was lost."""

    start: Call | None
    """The call that is due once the process has learned that the step was saved."""
    operation: Operation | None = None
    """Kept only where a step is done again instead of asked for."""


class Process(NamedTuple):
    """A process: what it has in hand is gone when it dies."""

    up: bool = True
    given_up: bool = False
    """Its name was given up for dead, and it does not know."""
    calls: tuple[Call, ...] = ()
    loaded: Loaded | None = None
    unanswered: Unanswered | None = None


class World(NamedTuple):
    """A ledger, and the processes that share it."""

    ledger: Ledger
    processes: tuple[Process, ...]
    blackout: bool = False
    """For the judges only: there was a moment at which no process was up."""

    @property
    def up(self) -> bool:
        """Whether a process is there."""
        return any(process.up for process in self.processes)

    def with_process(self, me: Worker, process: Process) -> World:
        """Return the world with one process changed."""
        others = self.processes
        return World(self.ledger, (*others[: me - 1], process, *others[me:]), self.blackout)


def names_on(ledger: Ledger) -> list[Worker]:
    """Return every worker that the ledger names, in the order in which it does."""
    return [ledger.owner, *(worker for _, worker in ledger.holders)]


def renamed(ledger: Ledger, name: Callable[[Worker], Worker]) -> Ledger:
    """Return a ledger on which workers have other names."""
    holders = tuple((run, name(worker)) for run, worker in ledger.holders)
    return ledger._replace(owner=name(ledger.owner), holders=holders)


def replaced(world: World, old: Worker, new: Worker) -> World:
    """Return the world with one worker called otherwise on the ledger."""
    if old not in names_on(world.ledger):
        return world
    return world._replace(ledger=renamed(world.ledger, lambda each: new if each == old else each))


def permuted(world: World, order: tuple[int, ...]) -> World:
    """Return the same world with its processes in another order."""
    place = {me + 1: nth + 1 for nth, me in enumerate(order)}

    def name(worker: Worker) -> Worker:
        return place.get(worker, worker)

    def process(me: int) -> Process:
        of = world.processes[me]
        if of.loaded and of.loaded.ledger:
            of = of._replace(loaded=of.loaded._replace(ledger=renamed(of.loaded.ledger, name)))
        return of

    return world._replace(ledger=renamed(world.ledger, name), processes=tuple(process(me) for me in order))


# The same world has one form.


def in_one_form(world: World) -> World:
    """Return the world with fences as ranks, the dead named in the order of the ledger, calls sorted."""
    if min(world.ledger.owner, *(worker for _, worker in world.ledger.holders), NOBODY) < GONE:
        world = _dead_renamed(world)
    ranks = _ranks(world)
    if ranks is not None:
        processes = tuple(_ranked(process, ranks) for process in world.processes)
        world = world._replace(ledger=world.ledger._replace(fence=0), processes=processes)
    for me, process in enumerate(world.processes, 1):
        if len(process.calls) > 1:
            world = world.with_process(me, process._replace(calls=tuple(sorted(process.calls))))
    return world


def _dead_renamed(world: World) -> World:
    left = list(dict.fromkeys(name for name in names_on(world.ledger) if name < GONE))
    if not left or left == [GONE - 1 - nth for nth in range(len(left))]:
        return world
    return world._replace(
        ledger=renamed(world.ledger, lambda each: GONE - 1 - left.index(each) if each in left else each)
    )


def _ranks(world: World) -> dict[int, int] | None:
    """Return the rank of each fence, the ledger's being 0; None if every fence is its rank already."""
    fences = {world.ledger.fence}
    for process in world.processes:
        for call in process.calls:
            fences.add(call.fence)
        if process.unanswered and process.unanswered.start:
            fences.add(process.unanswered.start.fence)
        if process.loaded and process.loaded.ledger:
            fences.add(process.loaded.ledger.fence)
        if process.loaded and process.loaded.operation.name in ON_BEHALF_OF_A_CALL:
            fences.add(process.loaded.operation.fence)
    if fences == {0}:
        return None
    below = sum(fence < world.ledger.fence for fence in fences)
    ranks = {fence: rank - below for rank, fence in enumerate(sorted(fences))}
    return None if all(fence == rank for fence, rank in ranks.items()) else ranks


def _ranked(process: Process, ranks: dict[int, int]) -> Process:
    process = process._replace(calls=tuple(call._replace(fence=ranks[call.fence]) for call in process.calls))
    if loaded := process.loaded:
        if loaded.ledger:
            loaded = loaded._replace(ledger=loaded.ledger._replace(fence=ranks[loaded.ledger.fence]))
        if loaded.operation.name in ON_BEHALF_OF_A_CALL:
            loaded = loaded._replace(operation=loaded.operation._replace(fence=ranks[loaded.operation.fence]))
        process = process._replace(loaded=loaded)
    if (unanswered := process.unanswered) and unanswered.start:
        start = unanswered.start._replace(fence=ranks[unanswered.start.fence])
        process = process._replace(unanswered=unanswered._replace(start=start))
    return process
