"""What makes two moments of a scenario the same: all that what may still happen depends on.

It is read off the dispatcher, its tasks (where each is suspended, with which
local variables), the loop, the actors and the monitor. Two moments with the
same fingerprint have the same options in the same order, and the same outcomes
ahead of them.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from enum import Enum
from typing import Any

from turngate import Dispatcher, Message, Run, RunComplete, Turn
from turngate._core import SessionCore
from turngate._settle import _Clock

from ._stage import Stage

# What never changes, or is looked at by itself.
_FIXED = frozenset({
    "_accepted_limit", "_complete", "_complete_limit", "_completions_kept", "_context", "_delta_limit",
    "_journal", "_loop", "_message_prefix", "_queue_limit", "_run_prefix", "_runner", "_runs", "_sessions",
    "_settle_timeout", "_subscribers", "messages",
})  # fmt: skip


def fingerprint(stage: Stage) -> Hashable:
    """Return what the rest of a scenario depends on, as it stands now."""
    world = stage.world
    dispatcher = world.dispatcher
    return (
        tuple(stage.done),
        tuple(stage.told.items()),
        tuple([_of_handle(handle) for handle in world.loop.ready]),
        tuple(
            [
                (timer.when() - world.loop.time(), _of_handle(timer))
                for timer in world.loop.timers
                if not timer.cancelled()
            ]
        ),
        tuple([_of_task(task) for task in world.loop.tasks if not task.done()]),
        tuple(
            [
                (lead, player.swallows, _of(tuple(player._commands)), player.listens)
                for lead, player in world.players.items()
            ]
        ),
        tuple([(world.store.about[door], _of(door)) for door in world.store.waiting]),
        len(world.store.plans),
        tuple(
            [
                _of(each)
                for of_session in world.store._inner._sessions.values()
                for each in of_session.values()
            ]
        ),
        tuple([_of_run(run) for run in world.runs.values()]),
        tuple([(name, _of_core(core)) for name, core in dispatcher._sessions.items()]),
        tuple([(key, _of(value)) for key, value in vars(dispatcher).items() if key not in _FIXED]),
        len(dispatcher._journal.untold),
        tuple(
            [
                (len(each._unread), each._closed)
                for of_session in dispatcher._subscribers.by_session.values()
                for each in of_session
            ]
        ),
        frozenset(world.active),
        world.ended,
        tuple([(name, abstract.key()) for name, abstract in world.sessions.items()]),
    )


def _of_run(run: Run) -> Hashable:
    waiters = tuple([_of(waiter) for waiter in run._waiters]) if run._waiters else ()
    return (run.run_id, run.seq, run.state, run.covered, _of(run.complete), run.on_complete is None, waiters)


def _of_core(core: SessionCore) -> Hashable:
    names = [name for each in type(core).__mro__ for name in getattr(each, "__slots__", ())]
    held = [(name, _of(getattr(core, name, None))) for name in names if not name.startswith("_")]
    held += [(name, _of(value)) for name, value in getattr(core, "__dict__", {}).items()]
    return (*held, *[_of_turn(turn) for turn in (core.turn, *core.settling.values()) if turn is not None])


def _of_turn(turn: Turn) -> Hashable:
    runs = tuple([run.run_id for run in turn._runs])
    return (runs, turn.covered, turn.phase, tuple(turn.parts), turn.text, turn.error, turn.task is None)


def _of_task(task: asyncio.Task[Any]) -> Hashable:
    """Return what a task is and where it waits, down to what it waits for."""
    found: list[Hashable] = [task.get_name() if _named(task) else "", task.cancelling()]
    found.append((task._must_cancel, _of(task._fut_waiter)))  # type: ignore[attr-defined]  # not in the stubs
    waits: Any = task.get_coro()
    while waits is not None:
        frame = getattr(waits, "cr_frame", None) or getattr(waits, "gi_frame", None)
        if frame is None:
            break
        local = tuple([(name, _of(value)) for name, value in frame.f_locals.items()])
        found.append((frame.f_code.co_name, frame.f_lasti, local))
        # A coroutine that began before its task did is driven by hand, and so in no chain of awaits.
        driven = frame.f_locals.get("coroutine")
        waits = getattr(waits, "cr_await", None) or getattr(waits, "gi_yieldfrom", None) or driven
    return tuple(found)


def _named(task: asyncio.Task[Any]) -> bool:
    """Say whether the name of a task tells what it does, not when it was made."""
    return not task.get_name().startswith("task ")


def _of_handle(handle: asyncio.Handle) -> Hashable:
    callback: Any = handle._callback  # type: ignore[attr-defined]  # not in the stubs
    arguments = tuple([_of(each) for each in handle._args or ()])
    owner = getattr(callback, "__self__", None)
    name = getattr(callback, "__qualname__", "") or type(callback).__name__
    return (
        name,
        _of_task(owner) if isinstance(owner, asyncio.Task) else _of(owner),
        arguments,
        handle.cancelled(),
    )


def _of(value: Any) -> Hashable:
    """Return a value as far as it matters; what is looked at elsewhere, by what it is called."""
    kind = type(value)
    look = _LOOKS.get(kind)
    if look is None:
        look = _LOOKS[kind] = next(
            (look for each, look in _KINDS.items() if issubclass(kind, each)), _of_other
        )
    return look(value)


def _of_all(values: Any) -> Hashable:
    return tuple([_of(each) for each in values])


def _of_set(values: Any) -> Hashable:
    return tuple(sorted([repr(_of(each)) for each in values]))


def _of_mapping(values: Any) -> Hashable:
    return tuple([(_of(key), _of(each)) for key, each in values.items()])


def _of_complete(complete: RunComplete) -> Hashable:
    return (*complete[1:6], complete.message_id is None, complete.folded_into)


def _of_other(value: Any) -> Hashable:
    if not dataclasses.is_dataclass(value):
        return type(value).__name__
    return (type(value).__name__, *[_of(getattr(value, each.name)) for each in dataclasses.fields(value)])


def _of_future(future: asyncio.Future[Any]) -> Hashable:
    if not future.done():
        return "pending"
    if future.cancelled():
        return "cancelled"
    raised = future._exception
    return "done" if raised is None else ("raised", type(raised).__name__)


_KINDS: dict[Any, Callable[[Any], Hashable]] = {
    Enum: lambda value: value.name,
    str | int | float | None: lambda value: value,
    Run: lambda run: ("run", run.run_id),
    Turn: lambda turn: ("turn", turn.run.run_id),
    Message: lambda message: message[2:],
    RunComplete: _of_complete,
    _Clock: lambda clock: ("clock", clock._deadline - clock._loop.time(), clock._expired),
    asyncio.Future: _of_future,
    Mapping: _of_mapping,
    set | frozenset: _of_set,
    list | tuple | deque: _of_all,
    BaseException: lambda raised: (type(raised).__name__, str(raised)),
    Dispatcher | SessionCore: lambda value: type(value).__name__,
}
_LOOKS: dict[type, Callable[[Any], Hashable]] = {}
