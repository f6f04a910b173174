"""What the abstract session cannot see: real time, fences, and what is owed when nothing goes on.

The abstract session sees what is saved, in the order of the saves. A runner that is called before
the save that made its run active does not show there, nor does a turn that no process will ever
end.
"""

from __future__ import annotations

from collections.abc import Iterator

from turngate_model.durable.records import NOBODY, Call, Process, World
from turngate_model.durable.sessions import Sessions
from turngate_model.lifecycle import DeclaredState
from turngate_model.properties import AnyViolation, DurableProperty, DurableViolation, Property, Violation

# Real time.


def called(sessions: Sessions, world: World, process: Process, call: Call) -> tuple[Violation, ...]:
    """Judge a call of the runner at its beginning: on record its lead is active, and the turn this one."""
    if process.given_up or (call.entitled and call.own):
        return ()
    if call.lead in sessions.what(world.ledger.session).covered:
        late = f"a cancel covers {call.lead}, and its runner is called all the same"
        return (Violation(Property.FULL_COVERAGE, late),)
    early = f"the runner is called for {call.lead}, whose turn on record is not this one"
    return (Violation(Property.ONE_TURN, early),)


def at_this_moment(world: World) -> tuple[Violation, ...]:
    """Judge the calls that go on at a moment: in processes that were not given up there is one at most."""
    running = [
        call.lead
        for process in world.processes
        if process.up and not process.given_up
        for call in process.calls
        if call.phase == "running" and call.own
    ]
    if len(running) < 2:
        return ()
    both = f"runners run for {' and for '.join(sorted(running))} at once, in processes that were not given up"
    return (Violation(Property.ONE_TURN, both),)


# On record.


def begun_again(sessions: Sessions, world: World, lead: str) -> tuple[Violation, ...]:
    """Judge a turn that begins again on record, of which the abstract session hears nothing."""
    if lead not in sessions.what(world.ledger.session).covered:
        return ()
    again = f"a cancel covers {lead}: its turn should be completed as cancelled, and not begin again"
    return (Violation(Property.FULL_COVERAGE, again),)


def fenced(call: Call | None) -> tuple[DurableViolation, ...]:
    """Judge a save on behalf of a call: its turn must not have been given up, or be over."""
    if call is None or call.entitled:
        return ()
    changed = f"this turn of {call.lead} was given up for dead, or is over: it should change nothing"
    return (DurableViolation(DurableProperty.FENCED, changed),)


def owed(sessions: Sessions, world: World) -> Iterator[AnyViolation]:
    """Judge a world in which a process is up and nothing more happens of itself."""
    if not world.up:
        return
    what = sessions.what(world.ledger.session)
    broken = DurableProperty.DURABLE if world.blackout else DurableProperty.ADOPTED
    if what.turn:
        yield DurableViolation(broken, f"the turn of {what.lead} is active, and no process will end it")
    holders = dict(world.ledger.holders)
    for run in what.in_state(DeclaredState.ACCEPTED):
        holder = holders.get(run, NOBODY)
        if holder <= NOBODY or not world.processes[holder - 1].up:
            yield DurableViolation(broken, f"{run} is accepted, and waits for a process that is no more")
    if what.queue and not what.turn:
        yield DurableViolation(
            broken, f"{what.queue[0]} is queued, no turn is active, and no process will start it"
        )


def residue(sessions: Sessions, world: World) -> tuple[Violation, ...]:
    """Judge what the ledger keeps about owners: of a quiet session nothing."""
    ledger = world.ledger
    if not sessions.what(ledger.session).quiet or (ledger.owner, ledger.attempts, ledger.holders) == (
        0,
        0,
        (),
    ):
        return ()
    return (
        Violation(Property.NO_RESIDUE, "nothing is in flight: the ledger should name no owner and no holder"),
    )
