"""Lockstep: the real dispatcher takes every step that the model's mechanism takes, from every state.

The explorer of the model finds every state of a session within bounds. For each
state, and for each step that the mechanism can take from it, the driver brings a
new dispatcher into that state by the shortest way and has it take the step. The
events that follow must be the events that the mechanism makes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from turngate import Dispatcher, DispatcherClosed, WhenBusy
from turngate_model import Property, Violation
from turngate_model.checker import Bounds, Explorer
from turngate_model.history import Cancel, Clear, Complete, Enter, Event, Fold, Handoff
from turngate_model.lifecycle import TABLE
from turngate_model.mechanism import Action
from turngate_verify.world.expecting import Broken
from turngate_verify.world.failures import RunnerFailed, StoreDown
from turngate_verify.world.stage import PatientWorld
from turngate_verify.world.world import Make, World, without_log

SESSION = "s"
_WHEN_BUSY: dict[str, WhenBusy] = {"fold": "fold", "queue": "queue", "interrupt": "interrupt"}
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


def compare(bounds: Bounds, *, make: Make = Dispatcher) -> Lockstep:
    """Compare the real dispatcher with the mechanism on every step within bounds, for one session."""
    explorer = Explorer(Bounds(bounds.prompts, bounds.cancels, sessions=1))
    explorer.run()
    with without_log():
        return _compare_all(explorer, make)


def _compare_all(explorer: Explorer, make: Make) -> Lockstep:
    result = Lockstep()
    for path, steps in explorer.session_steps():
        result.states += 1
        for action, events in steps:
            result.steps += 1
            _compare_step(result, path, action, events, make)
            if result.violation:
                taken = [*path, action]
                result.path = [" ".join((step.name, step.run, step.how)).strip() for step in taken]
                return result
    return result


def _compare_step(
    result: Lockstep, path: Sequence[Action], action: Action, expected: tuple[Event, ...], make: Make
) -> None:
    """Have a new dispatcher take the path and then one step more; note its moves, or what is wrong."""
    world = PatientWorld(make)
    world.store.always = "slow"
    try:
        for step in path:
            _perform(world, step)
        _take(world, action, expected)
        world.check()
        world.finish()
        result.moves |= _moves(world)
    except Broken as broken:
        result.violation = broken.violation
    except Exception as wrong:  # whatever else a wrong dispatcher raises is a difference too
        said = f"the dispatcher raised {wrong!r} where the mechanism does not"
        result.violation = Violation(Property.REFINES, said)
    world.abandon()


def _take(world: World, action: Action, expected: tuple[Event, ...]) -> None:
    """Take one step, and expect the events that the mechanism makes."""
    before = len(world.monitor.history)
    _perform(world, action)
    seen = _outcomes(event for _, event in world.monitor.history[before:])
    should = _outcomes(expected)
    if seen != should:
        told = f"{action.name} {action.run}: the dispatcher shows {seen}, the mechanism {should}"
        raise Broken(Violation(Property.REFINES, told))


def _outcomes(events: Iterable[Event]) -> list[Event]:
    """Return the events that can be compared.

    Cancels and clears are left out: they are what the caller did, not what followed. Errors that runner or
    store worded are replaced by one word.
    """
    worded_by_dispatcher = (None, "released before entry", "cleared from the queue")
    return [
        event._replace(error="failed")
        if isinstance(event, Complete) and event.error not in worded_by_dispatcher
        else event
        for event in events
        if not isinstance(event, Cancel | Clear)
    ]


def _perform(world: World, action: Action) -> None:
    """Do to the real dispatcher what the mechanism does in one step."""
    match action.name, action.how:
        case "accept", how:
            world.accept(SESSION, action.run, when_busy=_WHEN_BUSY[how])
        case "again", _:
            _accept_again(world, action.run)
        case "enter", _:
            world.enter(action.run)
        case "release", _:
            world.release(action.run)
        case "cancel", _:
            world.cancel(SESSION)
        case "cancel_run", _:
            world.cancel_run(action.run)
        case "clear", _:
            world.clear(SESSION)
        case "close", _:
            world.close()
        case "fold", _:
            world.runner.players[action.run].tell("fold")
        case "end", outcome:
            _end(world, action.run, outcome)
        case (("written" | "settle"), how):
            door = world.store.doors[action.run]
            door.set_result(None) if how == "ok" else door.set_exception(StoreDown("the disk is full"))
        case name, _:
            raise AssertionError(f"no such step: {name}")
    world.loop.settle()
    for player in world.runner.players.values():
        # In the model a cancelled runner goes on until a step ends it. Here it must not end by itself either.
        player.swallows = 1_000


def _accept_again(world: World, run_id: str) -> None:
    """Accept the same prompt under the same run_id: the dispatcher must return the run that it knows."""
    known = world.runs[run_id]
    try:
        again = world.accept(SESSION, run_id, when_busy=known.when_busy)
    except DispatcherClosed:
        # A dispatcher that is closing refuses instead, which changes nothing either.
        if not world.dispatcher._closing:
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
