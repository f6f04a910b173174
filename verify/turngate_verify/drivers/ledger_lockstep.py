"""Lockstep on a ledger: the durable dispatcher takes every step that the mechanism takes, from every state.

This is `lockstep` for the durable dispatcher, with two differences. A save is a path of steps of the
mechanism: a step that ends a turn also writes it and hands off, and a run that is cancelled on entry settles
as it enters, so `written` and `settle` are taken together with the step before them. And there is no store
that could fail, and no close: closing one process leaves the runs in flight to the others.

With two processes, the callers of each step are not in the process of the step before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from turngate.durable import DurableDispatcher
from turngate_model import Property, Violation
from turngate_model.checker import Bounds, MemoryModel
from turngate_model.history import (
    Accept,
    Called,
    Cancel,
    Clear,
    Complete,
    Edit,
    Ended,
    Event,
    Hold,
    Move,
    Resume,
    Wrote,
)
from turngate_model.mechanism import Action
from turngate_verify.drivers.lockstep import Lockstep
from turngate_verify.world.ledger_world import LedgerWorld
from turngate_verify.world.memory_ledger import without_chance
from turngate_verify.world.world import without_log

_SESSION = "s"
_TOGETHER = ("call", "written", "settle")
_UNSEEN = (Called, Cancel, Clear, Edit, Ended, Hold, Move, Resume, Wrote)
"""Events that the history of a ledger does not have, or that callers caused."""


class _Step(NamedTuple):
    action: Action
    events: list[Event]
    calls: set[str]


def compare_on_ledger(bounds: Bounds, *, processes: int = 1, make: Any = DurableDispatcher) -> Lockstep:
    """Compare the durable dispatcher with the mechanism on every save within bounds."""
    result = Lockstep()
    with without_log(), without_chance():
        for way, steps in _ways(MemoryModel(replace(bounds, sessions=1))):
            result.states += 1
            for step in steps:
                result.steps += 1
                world = LedgerWorld(processes, stubborn=True, make=make)
                result.violation = _compared(world, way, step, processes)
                world.leave()
                if result.violation:
                    result.path = [" ".join((each.name, each.run, each.how)) for each in (*way, step.action)]
                    return result
    return result


def _ways(model: MemoryModel) -> Iterator[tuple[list[Action], list[_Step]]]:
    """Yield a shortest path to every state between saves, and every step that can be taken there."""
    known, seen = set[int](), {model.init()}
    frontier: list[tuple[int, list[Action]]] = [(model.init(), [])]
    for state, way in frontier:
        # States that differ only in how much may still happen count as one, but may lead to different ones.
        fresh = model.sessions_of(state) not in known
        known.add(model.sessions_of(state))
        steps = []
        for step in model.actions(state):
            action = step.action
            if action.name == "close":
                continue
            events = [event for _, event in model.events_of(state, step.session, action)]
            target = _saved(model, model.next_state(state, step), events)
            if target not in seen:
                seen.add(target)
                frontier.append((target, [*way, action]))
            if fresh:
                steps.append(_Step(action, events, {lead for _, lead in model.calls_of(target)}))
        if fresh:
            yield way, steps


def _saved(model: MemoryModel, state: int, events: list[Event]) -> int:
    """Take the steps that are part of the same save, add their events, and return where they lead."""
    while True:
        further = [
            step
            for step in model.actions(state)
            if step.action.name in _TOGETHER and step.action.how != "fails"
        ]
        if not further:
            return state
        step = further[0]
        events += [event for _, event in model.events_of(state, step.session, step.action)]
        state = model.next_state(state, step)


def _compared(world: LedgerWorld, way: list[Action], step: _Step, processes: int) -> Violation | None:
    for number, action in enumerate(way):
        _perform(world, number % processes, action)
    before = len(world.tables.history)
    _perform(world, len(way) % processes, step.action)
    seen = _outcomes([event for _, event in world.events(before)])
    should = _outcomes(step.events)
    told = f"{step.action.name} {step.action.run} {step.action.how}"
    if seen != should:
        return Violation(Property.REFINES, f"{told}: the ledger has {seen}, the mechanism {should}")
    if {*world.players} != step.calls:
        calls = f"the calls that go on are {sorted(world.players)}, in the mechanism {sorted(step.calls)}"
        return Violation(Property.REFINES, f"{told}: {calls}")
    if world.wrong:
        return Violation(Property.ONE_TURN, world.wrong[0])
    for wrong in world.line.problems(message for message, _ in world.tables.messages.values()):
        return Violation(Property.HELD if wrong.startswith(Property.HELD) else Property.AS_EDITED, wrong)
    return None


def _outcomes(events: list[Event]) -> list[Event]:
    """Return what can be compared: the wording of runners' errors and of prompts is replaced by one word."""
    worded = (None, "released before entry", "cleared from the queue")
    outcomes: list[Event] = []
    for event in events:
        if isinstance(event, Complete) and event.error not in worded:
            outcomes.append(event._replace(error="failed"))
        elif isinstance(event, Accept):
            outcomes.append(Accept(event.run))
        elif not isinstance(event, _UNSEEN):
            outcomes.append(event)
    return outcomes


def _perform(world: LedgerWorld, process: int, action: Action) -> None:
    """Take in one process the step that the mechanism takes."""
    d, line, run_id = world.dispatchers[process], world.line, action.run
    match action.name, action.how:
        case "accept", "into":
            lead = world.tables.sessions[_SESSION].lead
            world.call(world.accept(process, _SESSION, run_id, into=lead))
        case "accept", how:
            world.call(world.accept(process, _SESSION, run_id, when_busy=how))
        case "again", _:
            how = world.tables.runs[run_id].when_busy
            world.call(world.accept(process, _SESSION, run_id, when_busy=how))
        case "enter", _:
            world.call(world.enter(process, run_id))
        case "release", _:
            world.call(world.release(process, run_id))
        case "cancel", _:
            world.call(d.cancel(_SESSION))
        case "cancel_run", _:
            world.call(d.cancel_run(run_id))
        case "clear", _:
            world.call(d.clear_queue(_SESSION))
        case (("hold" | "resume" | "stop"), _):
            world.call(getattr(line, action.name)(process, _SESSION))
        case (("hold_run" | "resume_run" | "send_now"), _):
            world.call(getattr(line, action.name)(process, run_id))
        case "move", "before":
            moved, before = run_id.split()
            world.call(line.move(process, moved, before=before))
        case "move", _:
            world.call(line.move(process, run_id, to="last"))
        case "edit", how:
            world.call(line.edit(process, run_id, f"edited to {how}", when_busy=how))
        case "fold", _:
            world.order(run_id, "fold")
        case "end", outcome:
            world.order(run_id, outcome)
        case name, _:
            raise AssertionError(f"no such step: {name}")
