"""Lockstep: the real dispatcher takes every step that the mechanism takes, from every state.

The explorer of the model finds every state within bounds. For each state, and for each step that the
mechanism can take from it, the driver brings a new dispatcher into that state by a shortest way and has it
take the step. Then it compares two things:

1. The events that the dispatcher shows are the events of the mechanism.
2. The runner calls that go on are those that go on in the mechanism. So the runner is not called for a turn
   that should wait for a place, and a turn that should be called does not wait.

Without a limit on turns the driver compares one session, because sessions feel nothing of each other. With a
limit it compares all sessions of the bounds, because they share the places.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial

from turngate import Dispatcher, DispatcherClosed, WhenBusy
from turngate_model import Property, Violation
from turngate_model.checker import HEART, Bounds, MemoryModel
from turngate_model.checker.counterexample import Way
from turngate_model.checker.ways import NextStep, ways
from turngate_model.history import (
    Called,
    Cancel,
    Clear,
    Complete,
    Edit,
    Enter,
    Event,
    Fold,
    Handoff,
    Hold,
    Move,
    Resume,
    with_names,
)
from turngate_model.lifecycle import TABLE
from turngate_model.mechanism import Action
from turngate_verify.world.expecting import Broken
from turngate_verify.world.failures import RunnerFailed, StoreDown
from turngate_verify.world.stage import PatientWorld
from turngate_verify.world.world import Make, World, without_log

SESSIONS = ("s", "t", "u")
_RUN_IDS = ("{}", "{}-t", "{}-u")
"""In the model each session names its runs a, b, c; a dispatcher has one name for each run."""
_WHEN_BUSY: dict[str, WhenBusy] = {
    "fold": "fold", "queue": "queue", "interrupt": "interrupt", "into": "fold",
}  # fmt: skip
WITH_PLACES = Bounds(2, 1, 2, turns_limit=1)
"""Two sessions and one place: everything that callers can do while a turn waits."""
IN_LINE = Bounds(3, 1, 3, HEART | {"error", "fold"}, turns_limit=1)
"""Three sessions and one place: the fewest in which two turns are in line. Only the heart is compared."""
DECLARED = frozenset((str(row.trigger), str(row.source), str(row.target)) for row in TABLE)
"""The declared moves of a run: trigger, from, to."""


@dataclass
class Lockstep:
    """The result of comparing the dispatcher with the mechanism."""

    states: int = 0
    steps: int = 0
    moves: set[tuple[str, str, str]] = field(default_factory=set)
    """The declared moves that the dispatcher has made: trigger, from, to."""
    violation: Violation | None = None
    path: list[str] = field(default_factory=list)
    """The steps that led to the violation."""

    @property
    def unseen(self) -> frozenset[tuple[str, str, str]]:
        """The declared moves that the dispatcher has not made."""
        return DECLARED - self.moves


def compare(bounds: Bounds, *, make: Make = Dispatcher, result: Lockstep | None = None) -> Lockstep:
    """Compare the real dispatcher with the mechanism on every step within bounds.

    To watch, pass the ``result``, which is filled in as it goes.
    """
    if bounds.turns_limit is None:
        bounds = replace(bounds, sessions=1)
    with without_log():
        return _compare_all(MemoryModel(bounds), make, Lockstep() if result is None else result)


def _compare_all(model: MemoryModel, make: Make, result: Lockstep) -> Lockstep:
    for way, steps in ways(model):
        result.states += 1
        for step in steps:
            result.steps += 1
            _compare_step(result, way, step, make, model.bounds)
            if result.violation:
                result.path = [_told(*each) for each in (*way, step[:2])]
                return result
    return result


def _told(session: int, action: Action) -> str:
    about = _run_id(session, action.run) if action.run else SESSIONS[session]
    return " ".join((action.name, about, action.how)).strip()


def _compare_step(result: Lockstep, way: Way, step: NextStep, make: Make, bounds: Bounds) -> None:
    """Bring a new dispatcher to the state and take one more step; note its moves, or what is wrong."""
    world = PatientWorld(make, turns_limit=bounds.turns_limit)
    world.store.always = "slow"
    try:
        for session, action in way:
            _perform(world, session, action)
        _take(world, step)
        world.check()
        world.finish()
        result.moves |= _moves(world)
    except Broken as broken:
        result.violation = broken.violation
    except Exception as wrong:  # whatever else a wrong dispatcher raises is a difference too
        said = f"the dispatcher raised {wrong!r} where the mechanism does not"
        result.violation = Violation(Property.REFINES, said)
    world.abandon()


def _take(world: World, step: NextStep) -> None:
    """Take one step, and compare what follows with the mechanism."""
    before = len(world.monitor.history)
    _perform(world, step.session, step.action)
    told = _told(step.session, step.action)
    for nth, session in enumerate(SESSIONS):
        seen = _outcomes(event for about, event in world.monitor.history[before:] if about == session)
        should = _outcomes(_named(nth, event) for about, event in step.events if about == nth)
        if seen != should:
            said = f"{told}: the dispatcher shows {seen} in session {session}, the mechanism {should}"
            raise Broken(Violation(Property.REFINES, said))
    calls, should_go_on = {*world.runner.players}, {_run_id(*call) for call in step.calls}
    if calls != should_go_on:
        going_on = f"the runner calls that go on are {sorted(calls)}, in the mechanism {sorted(should_go_on)}"
        raise Broken(Violation(Property.REFINES, f"{told}: {going_on}"))


def _run_id(session: int, run: str) -> str:
    """Return the run_id of a run of the model."""
    return _RUN_IDS[session].format(run)


def _named(session: int, event: Event) -> Event:
    """Return an event of the model with the run_ids of the dispatcher."""
    return with_names(event, partial(_run_id, session))


def _outcomes(events: Iterable[Event]) -> list[Event]:
    """Return the events that can be compared.

    What callers did is left out: cancels, clears, holds and the like are not what followed. Calls are left
    out because the dispatcher does not record them; the calls that go on are compared instead. Errors that
    the runner or the store worded are replaced by one word.
    """
    worded_by_dispatcher = (None, "released before entry", "cleared from the queue")
    return [
        event._replace(error="failed")
        if isinstance(event, Complete) and event.error not in worded_by_dispatcher
        else event
        for event in events
        if not isinstance(event, Cancel | Clear | Hold | Resume | Move | Edit | Called)
    ]


def _perform(world: World, number: int, action: Action) -> None:
    """Do to the real dispatcher what the mechanism does in one step, in the session of this number."""
    session, run_id = SESSIONS[number], _run_id(number, action.run)
    match action.name, action.how:
        case "accept", how:
            into = world.monitor.sessions[session].lead if how == "into" else None
            world.accept(session, run_id, when_busy=_WHEN_BUSY[how], into=into)
        case "again", _:
            _accept_again(world, session, run_id)
        case "enter", _:
            world.enter(run_id)
        case "release", _:
            world.release(run_id)
        case "cancel", _:
            world.cancel(session)
        case "cancel_run", _:
            world.cancel_run(run_id)
        case "clear", _:
            world.clear(session)
        case (("hold" | "resume" | "stop"), _):
            getattr(world, action.name)(session)
        case (("hold_run" | "resume_run" | "send_now"), _):
            getattr(world, action.name)(run_id)
        case "move", how:
            moved, before = [*(_run_id(number, run) for run in action.run.split()), None][:2]
            world.move(str(moved), before=before, to=None if how == "before" else "last")
        case "edit", how:
            world.edit(run_id, f"edited to {how}", how)
        case "close", _:
            world.close()
        case "fold", _:
            world.runner.players[run_id].tell("fold")
        case "end", outcome:
            _end(world, run_id, outcome)
        case (("written" | "settle"), how):
            door = world.store.doors[run_id]
            door.set_result(None) if how == "ok" else door.set_exception(StoreDown("the disk is full"))
        case name, _:
            raise AssertionError(f"no such step: {name}")
    world.loop.settle()
    for player in world.runner.players.values():
        # In the model a cancelled runner goes on until a step ends it. Here it must not end by itself either.
        player.swallows = 1_000


def _accept_again(world: World, session: str, run_id: str) -> None:
    """Accept the same prompt under the same run_id: the dispatcher must return the run that it knows."""
    known = world.runs[run_id]
    try:
        again = world.accept(session, run_id, when_busy=known.when_busy)
    except DispatcherClosed:
        # A dispatcher that is closing refuses instead, which changes nothing either.
        if not world.dispatcher._close.is_begun:
            raise
        return
    if again is not known:
        raise Broken(Violation(Property.EXACTLY_ONE_COMPLETE, f"a second run is made of {run_id}"))


def _end(world: World, lead: str, outcome: str) -> None:
    """Have the runner of a turn return, fail, or give in to a cancel."""
    player = world.runner.players[lead]
    match outcome:
        case "end_turn":
            player.tell("finish", "text")
        case "error":
            player.tell("fail", RunnerFailed("no luck"))
        case _:
            player.tell("fail", asyncio.CancelledError())


def _moves(world: World) -> set[tuple[str, str, str]]:
    """Return the moves in the history of a world, in the words of the table."""
    at: dict[str, str] = {}
    moves = set()
    for _, event in world.monitor.history:
        match event:
            case Enter(run, state):
                moves.add(("enter", "accepted", str(state)))
                at[run] = str(state)
            case Handoff(run):
                moves.add(("handoff", at[run], "active"))
                at[run] = "active"
            case Fold(run, _):
                moves.add(("fold", at[run], "active"))
                at[run] = "active"
            case Complete(run, _, _):
                source = at.get(run, "accepted")
                trigger = {"accepted": "release", "queued": "drop", "cancel_on_entry": "settle"}.get(
                    source, "finish"
                )
                moves.add((trigger, source, "complete"))
            case _:
                pass
    return moves
