"""The fingerprint of a moment: everything that the rest of a scenario depends on.

Two moments with the same fingerprint have the same options in the same order,
and the same outcomes ahead of them. So the schedules that lead on from the
second need not be executed.

The fingerprint is taken from the stage, the loop and its tasks (where each is
suspended, with which local variables), the runner and the store, the
dispatcher, and the monitor.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from enum import Enum
from functools import partial
from types import FunctionType, MethodType
from typing import Any

from turngate import Dispatcher, Message, Run, RunComplete, Turn
from turngate._completions import CompletionStream
from turngate._core import Phase, Queue, RunRecord, SessionCore, TurnRecord
from turngate._events import Waiters
from turngate._handles import TextStream
from turngate._places import Places
from turngate._settle import WriteClock
from turngate_verify.world.monitor import Monitor
from turngate_verify.world.stage import Stage
from turngate_verify.world.virtual_loop import VirtualLoop
from turngate_verify.world.world import World

# The attributes of the dispatcher and of its parts that never change, or that are looked at elsewhere.
_LEFT_OUT = frozenset({
    "_accepted_limit", "_complete_limit", "_completions", "_delta_bytes", "_delta_limit", "_drawn_prefix",
    "_message_prefix", "_queue_limit", "_run_prefix", "_subscribers", "_thread", "_unique", "cores", "loop",
    "messages", "runs", "settle_timeout", "turns",
})  # fmt: skip
_PARTS = ("_loop", "_sessions", "_journal", "_effects", "_close")


def fingerprint(stage: Stage) -> Hashable:
    """Return what the rest of a scenario depends on at this moment."""
    return (
        _of_script(stage),
        _of_loop(stage.world.loop),
        _of_actors(stage.world),
        _of_dispatcher(stage.world.dispatcher),
        _of_monitor(stage.world.monitor),
    )


def _of_script(stage: Stage) -> Hashable:
    """Return how far the callers and the runner are in what the scenario has them do."""
    return (tuple(stage.done), tuple(stage.told.items()), stage.times, frozenset(stage.threads))


def _of_loop(loop: VirtualLoop) -> Hashable:
    """Return the ready callbacks, the timers and the tasks."""
    tasks = {task: _of_task(task) for task in loop.tasks if not task.done()}
    now = loop.time()
    timers = [timer for timer in loop.timers if not timer.cancelled()]
    return (
        tuple([_of_handle(handle, tasks) for handle in loop.ready]),
        tuple([(timer.when() - now, _of_handle(timer, tasks)) for timer in timers]),
        tuple(tasks.values()),
    )


def _of_actors(world: World) -> Hashable:
    """Return what the runner and the store are doing, and what they have written."""
    runner, store, now = world.runner, world.store, world.loop.time()
    players = [
        (lead, player.swallows, player.tidy, _of_all(player._commands), player.listens, player.cleans_up)
        for lead, player in runner.players.items()
    ]
    return (
        tuple(players),
        _of_all(world.followers),
        tuple([left.waits for left in runner.left]),
        tuple([(lead, tuple(parts)) for lead, parts in runner.parts.items()]),
        tuple([(store.about[door], _of_future(door)) for door in store.waiting]),
        tuple([(lead, now - since) for lead, since in store.since.items()]),
        world.blocked,
        len(store.plans),
        tuple([_of_all(of_session.values()) for of_session in store._inner._sessions.values()]),
    )


def _of_dispatcher(dispatcher: Dispatcher) -> Hashable:
    """Return the sessions, the turns, the subscribers, and whatever else the dispatcher holds."""
    sessions, turns = dispatcher._sessions, dispatcher._effects.turns
    subscribers = [
        (len(each._unread), each.closed)
        for audience in (dispatcher._subscribers.to_completes, dispatcher._subscribers.to_moves)
        for of_session in audience.by_session.values()
        for reference in of_session
        if (each := reference()) is not None
    ]
    return (
        tuple([(name, _of_core(core)) for name, core in sessions.cores.items()]),
        tuple(sessions.runs),
        tuple([_of_turn(turn) for turn in sessions.turns.values()]),
        _of_part(dispatcher),
        *[_of_part(getattr(dispatcher, name)) for name in _PARTS],
        _of_part(turns),
        tuple(subscribers),
        _of(dispatcher._completions.waiters),
        dispatcher._completions.is_over,
    )


def _of_part(part: object) -> Hashable:
    """Return what a part of the dispatcher holds, without what never changes."""
    return tuple(
        [(name, _LOOKS[type(value)](value)) for name, value in vars(part).items() if name not in _LEFT_OUT]
    )


def _of_monitor(monitor: Monitor) -> Hashable:
    """Return the runs and what the monitor knows about them."""
    return (
        tuple([_of_run(run) for run in monitor.runs.values()]),
        frozenset(monitor.active),
        frozenset(monitor.called),
        frozenset(monitor.settling),
        tuple(monitor.completed),
        monitor.ended,
        monitor.waiting and monitor.waiting.key(),
        tuple([(name, abstract.key()) for name, abstract in monitor.sessions.items()]),
    )


def _of_run(run: Run) -> Hashable:
    record = run.record
    return (
        record.run_id,
        record.seq,
        record.state,
        record.covered,
        record.complete and _of_complete(record.complete),
        run.on_complete is None,
        len(run.callbacks),
        _of_waiters(run.waiters),
        _of_waiters(run.listeners),
        run.turn and run.turn.run.run_id,
        run.led_by and run.led_by.run_id,
        run.pieces and tuple(run.pieces),
    )


def _of_core(core: SessionCore) -> Hashable:
    held = _of_all([getattr(core, name, None) for name in _SLOTS[type(core)]])
    more = _of_mapping(getattr(core, "__dict__", {}))
    return (
        held,
        more,
        _of_all(core._entries or ()),
        *[_of_record(turn) for turn in (core.turn, *core.settling.values()) if turn is not None],
    )


def _of_record(turn: TurnRecord) -> Hashable:
    runs = tuple([run.run_id for run in turn.runs])
    outcome = (turn.text, turn.error, turn.kept) if turn.phase is Phase.SETTLING else ()
    return (runs, turn.lead.run_id, turn.covered, turn.phase, *outcome)


def _of_turn(turn: Turn) -> Hashable:
    members = tuple([run.run_id for run in turn.runs])
    execution = turn.execution
    begun = (
        None if execution is None else (execution.made is None, execution.by_factory, execution.is_started)
    )
    return (
        members,
        _of_record(turn.record),
        tuple(turn.parts),
        tuple([event for event, _ in turn._unsent or ()]),
        turn.kept,
        turn.is_over,
        begun,
        turn.task is None,
        turn.given_up,
    )


def _of_task(task: asyncio.Task[Any]) -> Hashable:
    """Return the name of a task and where it is suspended, in every coroutine down to what it waits for."""
    name = task.get_name()
    # The loop names a task "task 7" if it has no other name. That only says when it was made.
    found: list[Hashable] = ["" if name.startswith("task ") else name, task.cancelling()]
    found.append((task._must_cancel, _of(task._fut_waiter)))  # type: ignore[attr-defined]  # not in the stubs
    waits: Any = task.get_coro()
    while waits is not None:
        frame = getattr(waits, "cr_frame", None) or getattr(waits, "gi_frame", None)
        if frame is None:
            break
        local = frame.f_locals
        found.append((frame.f_code.co_name, frame.f_lasti, tuple(local), _of_all(local.values())))
        # A coroutine that began before its task did is not awaited: the local variable holds it.
        driven = local.get("coroutine")
        waits = getattr(waits, "cr_await", None) or getattr(waits, "gi_yieldfrom", None) or driven
    return tuple(found)


def _of_handle(handle: asyncio.Handle, tasks: Mapping[asyncio.Task[Any], Hashable]) -> Hashable:
    callback: Any = handle._callback  # type: ignore[attr-defined]  # not in the stubs
    given: tuple[Any, ...] = (*(handle._args or ()),)
    while isinstance(callback, partial):
        callback, given = callback.func, (*callback.args, *given)
    owner = getattr(callback, "__self__", None)
    name = getattr(callback, "__qualname__", "") or type(callback).__name__
    return (
        name,
        (tasks.get(owner) or _of_task(owner)) if isinstance(owner, asyncio.Task) else _of(owner),
        _of_all(given),
        handle.cancelled(),
    )


def _of(value: Any) -> Hashable:
    """Return what matters about a value; of runs and turns only the name, since other parts have the rest."""
    return _LOOKS[type(value)](value)


def _of_all(values: Any) -> Hashable:
    return tuple([_LOOKS[type(each)](each) for each in values])


def _of_set(values: Any) -> Hashable:
    return tuple(sorted([repr(_of(each)) for each in values]))


def _of_mapping(values: Any) -> Hashable:
    return (_of_all(values), _of_all(values.values())) if values else ()


def _of_waiters(waiters: Waiters | None) -> Hashable:
    return _of_all(waiters or ())


def _of_complete(complete: RunComplete) -> Hashable:
    return (*complete[1:6], complete.message_id is None, complete.folded_into)


def _of_future(future: asyncio.Future[Any]) -> Hashable:
    if not future.done():
        return "pending"
    if future.cancelled():
        return "cancelled"
    raised = future._exception
    return "done" if raised is None else ("raised", type(raised).__name__)


_LOOKS_BY_BASE: dict[Any, Callable[[Any], Hashable]] = {
    Enum: lambda value: value.name,
    str | int | float | None: lambda value: value,
    Run: lambda run: ("run", run.run_id),
    RunRecord: lambda run: ("run", run.run_id, run.seq),
    Turn: lambda turn: ("turn", turn.run.run_id),
    TurnRecord: lambda turn: ("turn", turn.lead.run_id),
    Message: lambda message: message[2:],
    RunComplete: _of_complete,
    WriteClock: lambda clock: ("clock", clock.remaining()),
    asyncio.Future: _of_future,
    Queue: lambda queue: _of_all(queue.in_order()),
    Waiters: _of_waiters,
    Places: lambda places: (places.free, _of_all(places.line), _of_set(places.holders)),
    TextStream: lambda stream: (stream._index, stream._skip, stream.offset),
    CompletionStream: lambda stream: stream.number,
    Mapping: _of_mapping,
    set | frozenset: _of_set,
    list | tuple | deque: _of_all,
    MethodType | FunctionType: lambda called: called.__qualname__,
    partial: lambda called: (_of(called.func), _of_all(called.args)),
    BaseException: lambda raised: (type(raised).__name__, str(raised)),
    Dispatcher | SessionCore: lambda value: type(value).__name__,
}


class _Slots(dict[type, list[str]]):
    """The names of the public slots of a class of cores, with those that it inherits."""

    def __missing__(self, kind: type) -> list[str]:
        names = [name for each in kind.__mro__ for name in getattr(each, "__slots__", ())]
        self[kind] = names = [name for name in names if not name.startswith("_")]
        return names


_SLOTS = _Slots()


class _Looks(dict[type, Callable[[Any], Hashable]]):
    """The function that returns what matters of a value, by the type of the value."""

    def __missing__(self, kind: type) -> Callable[[Any], Hashable]:
        look = next((look for each, look in _LOOKS_BY_BASE.items() if issubclass(kind, each)), None)
        self[kind] = look = look or _look_at_other(kind)
        return look


def _look_at_other(kind: type) -> Callable[[Any], Hashable]:
    """Return a look at the fields of a dataclass, or else at nothing but the name of the type."""
    name = kind.__name__
    if not dataclasses.is_dataclass(kind):
        return lambda _: name
    fields = [each.name for each in dataclasses.fields(kind)]
    return lambda value: (name, *[_of(getattr(value, each)) for each in fields])


_LOOKS = _Looks()
