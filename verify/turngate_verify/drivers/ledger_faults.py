"""One fault at every point of some programs on a ledger: at each message, and at each step of the loop.

    away    the ledger cannot be reached, once
    odd     it raises something unexpected, once
    lost    the answer to a save is lost (any other lost message is like one that did not arrive)
    kill    the process dies, while another one is alive
    lease   the lease of the process has expired, and it notices later
    cancel  the caller is cancelled

Each program is played once for each fault and each point at which it could strike process 0, until there is
no further point. Afterwards every run completes, and the ledger is judged.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, NamedTuple, get_args

from turngate.durable import DurableDispatcher, LedgerUnavailable
from turngate.durable._swap import Unanswered
from turngate_verify.ledger_judge import problems
from turngate_verify.world.ledger_world import LedgerWorld
from turngate_verify.world.memory_ledger import MemoryLedger, without_chance
from turngate_verify.world.world import without_log

Fault = Literal["away", "odd", "lost", "kill", "lease", "cancel"]
FAULTS: tuple[Fault, ...] = get_args(Fault)
Order = tuple[Any, ...]
PROGRAMS: dict[str, tuple[Order, ...]] = {
    "a run": (("submit", 0, "a"), ("order", "a", "write"), ("order", "a", "end_turn")),
    "a run that is entered elsewhere": (("accept", 0, "a"), ("enter", 1, "a"), ("order", "a", "error")),
    "a queue of two processes": (
        ("submit", 0, "a"), ("submit", 1, "b"), ("submit", 0, "c"), ("order", "a", "end_turn"),
        ("order", "b", "end_turn"),
    ),
    "follow-ups": (
        ("submit", 0, "a"), ("follow", 0, "b"), ("follow", 1, "c"), ("order", "a", "fold"),
        ("order", "a", "end_turn"),
    ),
    "a cancel here": (("submit", 0, "a"), ("submit", 1, "b"), ("cancel", 0), ("submit", 0, "c")),
    "a cancel elsewhere": (("submit", 0, "a"), ("accept", 0, "b"), ("cancel", 1), ("enter", 0, "b")),
    "an interrupt": (("submit", 1, "a"), ("submit", 0, "b"), ("interrupt", 0, "c"), ("submit", 1, "d")),
    "one run is taken back": (("submit", 0, "a"), ("submit", 0, "b"), ("take back", 0, "b"), ("clear", 0)),
    "a cancel under a key": (
        ("submit", 0, "a"), ("submit", 1, "b"), ("cancel once", 0), ("submit", 1, "c"), ("cancel once", 0),
        ("submit", 0, "d"), ("cancel once", 1), ("cancel once", 0),
    ),
    "a clear under a key": (
        ("submit", 0, "a"), ("submit", 1, "b"), ("clear once", 0), ("submit", 1, "c"), ("clear once", 1),
        ("submit", 1, "d"), ("clear once", 0), ("order", "a", "end_turn"),
    ),
    "a release": (("accept", 0, "a"), ("submit", 1, "b"), ("release", 0, "a")),
    "a hold and a resume": (
        ("submit", 0, "a"), ("submit", 1, "b"), ("accept", 0, "c"), ("hold", 0), ("enter", 1, "c"),
        ("order", "a", "end_turn"), ("submit", 1, "d"), ("order", "d", "end_turn"), ("resume", 0),
        ("order", "b", "end_turn"),
    ),
    "a stop under a key": (
        ("submit", 1, "a"), ("submit", 0, "b"), ("stop once", 0), ("submit", 1, "c"), ("stop once", 0),
        ("stop once", 1), ("resume run", 0, "b"), ("order", "c", "end_turn"),
    ),
    "edits of what waits and of what runs": (
        ("submit", 0, "a"), ("submit", 1, "b"), ("edit", 0, "b", "b, edited"), ("edit", 1, "a", "too late"),
        ("edit", 1, "b", "b, edited again"), ("order", "a", "end_turn"), ("edit", 0, "b", "too late"),
        ("order", "b", "end_turn"),
    ),
    "an edit under a key": (
        ("submit", 0, "a"), ("submit", 1, "b"), ("edit once", 0, "b"), ("edit", 1, "b", "b, edited last"),
        ("edit once", 0, "b"), ("edit once", 1, "b"), ("order", "a", "end_turn"),
    ),
    "moves": (
        ("submit", 0, "a"), ("submit", 1, "b"), ("submit", 0, "c"), ("submit", 1, "d"),
        ("move before", 0, "d", "b"), ("move last", 1, "b"), ("submit", 0, "e"), ("move first", 0, "e"),
        ("order", "a", "end_turn"), ("order", "e", "end_turn"), ("order", "d", "end_turn"),
    ),
    "a move under a key": (
        ("submit", 0, "a"), ("submit", 1, "b"), ("submit", 0, "c"), ("move once", 0, "b"),
        ("move first", 1, "b"), ("move once", 0, "b"), ("move once", 1, "b"), ("order", "a", "end_turn"),
    ),
    "a prompt that is sent now": (
        ("submit", 0, "a"), ("submit", 1, "b"), ("submit", 0, "c"), ("hold", 1), ("send now once", 0, "c"),
        ("send now once", 1, "c"), ("send now once", 0, "c"), ("resume", 0),
    ),
    "prompts for one turn": (
        ("submit", 0, "a"), ("steer", 1, "b", "a"), ("steer", 0, "c", "a"), ("order", "a", "fold"),
        ("steer", 0, "d", "a"), ("hold run", 1, "d"), ("order", "a", "end_turn"), ("steer", 0, "e", "a"),
    ),
    "a reader of messages": (
        ("submit", 1, "a"), ("follow", 0, "b"), ("order", "a", "fold"), ("order", "a", "end_turn"),
        ("page", 0), ("messages of", 0, "b"), ("submit", 0, "c"), ("page", 0), ("order", "c", "end_turn"),
        ("page", 0), ("page", 0), ("page", 0),
    ),
}  # fmt: skip
"""The actions of each program, in order: by callers, in a process, or by a runner on command."""
ONCE = {
    "a cancel under a key": ("cancel", "clear"),
    "a clear under a key": ("cancel", "clear"),
    "a stop under a key": ("cancel", "hold"),
    "a prompt that is sent now": ("cancel",),
}
"""Entries that may be recorded at most once in a program that uses one key for them."""


class Found(NamedTuple):
    """The results of all the points of all programs."""

    played: int
    wrong: str


class _Struck(NamedTuple):
    problems: list[str]
    struck: bool


def search(
    *, make: Any = DurableDispatcher, remembers: bool = True, programs: Iterable[str] = tuple(PROGRAMS)
) -> Found:
    """Inject each fault at each point of each program; stop at the first failure."""
    played = 0
    with without_log(), without_chance():
        for name, fault, on_death in _cases(programs):
            point = 0
            while True:
                played += 1
                world = LedgerWorld(2, on_death=on_death, remembers=remembers, make=make)
                found = _play(world, name, fault, point)
                if found.problems:
                    return Found(played, f"{name}, {fault} at point {point}, {on_death}: {found.problems[0]}")
                if not found.struck:
                    break
                point += 1
    return Found(played, "")


def _cases(programs: Iterable[str]) -> Iterator[tuple[str, Fault, Literal["fail", "retry"]]]:
    for name in programs:
        for fault in FAULTS:
            yield name, fault, "fail"
            if fault in ("kill", "lease"):
                yield name, fault, "retry"


def _play(world: LedgerWorld, name: str, fault: Fault, point: int) -> _Struck:
    left = point
    struck = False

    def trouble(ledger: MemoryLedger, kind: str) -> None:
        nonlocal left, struck
        sent = kind == "answer"  # once it is answered, it is done
        strikes = {"lost": sent, "away": not sent, "odd": not sent}
        if struck or ledger.process != 0 or not strikes.get(fault, True):
            return
        if left > 0:
            left -= 1
            return
        struck = True
        if fault == "away":
            raise LedgerUnavailable("on purpose")
        if fault == "odd":
            raise ArithmeticError("on purpose")
        if fault == "lost":
            raise Unanswered
        world.kill(0) if fault == "kill" else world.expire(0)

    def cancel(task: asyncio.Task[Any]) -> None:
        nonlocal left, struck
        while not struck and left > 0 and not task.done():
            left -= 1
            if not world.loop.step():
                break
        if not struck and left == 0 and not task.done():
            struck = True
            task.cancel()

    if fault != "cancel":
        world.tables.trouble = trouble
    for order in PROGRAMS[name]:
        _do(world, order, cancel if fault == "cancel" else lambda task: None)
    world.tables.trouble = None
    world.let_end()
    return _Struck([*_done_twice(world, ONCE.get(name, ())), *judged(world)], struck)


def _done_twice(world: LedgerWorld, once: tuple[str, ...]) -> list[str]:
    """Return what is wrong if a call under one key was carried out more than once."""
    times = Counter(entry["event"] for told in world.tables.history for entry in told.entries)
    return [
        f"what was asked for under one key was done {times[event]} times"
        for event in once
        if times[event] > 1
    ]


def judged(world: LedgerWorld) -> list[str]:
    """Return what is wrong at the end, and leave the world."""
    wrong = [] if world.is_quiet() else ["ADOPTED: something is in flight forever"]
    task = world.start(problems(MemoryLedger(world.tables), world.acknowledged))
    world.loop.settle()
    wrong += task.result()
    wrong += world.line.problems(message for message, _ in world.tables.messages.values())
    world.judge_pages()
    world.leave()
    return [*world.wrong, *wrong]


def _do(world: LedgerWorld, order: Order, interfere: Callable[[asyncio.Task[Any]], None]) -> None:
    kind, process, *about = order
    if kind == "order":
        tell_runner(world, process, about[0])
        return
    if world.ledgers[process].is_dead:
        return
    task = world.start(calls_of(world, process)[kind](*about))
    interfere(task)
    world.loop.settle()
    if task.done() and not task.cancelled():
        task.exception()  # it may have been refused


def tell_runner(world: LedgerWorld, lead: str, order: str) -> None:
    """Tell the runner of a turn what to do, if it is called and waits for orders."""
    player = world.players.get(lead)
    if player is not None and not player.order.done():
        world.order(lead, order)


def calls_of(world: LedgerWorld, process: int) -> dict[str, Callable[..., Any]]:
    """Return what callers can do in a process, by name."""
    d, line = world.dispatchers[process], world.line
    return {
        "hold": lambda: line.hold(process, "s"),
        "hold run": lambda run_id: line.hold_run(process, run_id),
        "resume": lambda: line.resume(process, "s"),
        "resume run": lambda run_id: line.resume_run(process, run_id),
        "stop once": lambda: line.stop(process, "s", key="a key"),
        "edit": lambda run_id, prompt: line.edit(process, run_id, prompt),
        "edit once": lambda run_id: line.edit(process, run_id, "once", {"edited": run_id}, key="a key"),
        "move first": lambda run_id: line.move(process, run_id, to="first"),
        "move last": lambda run_id: line.move(process, run_id, to="last"),
        "move before": lambda run_id, other: line.move(process, run_id, before=other),
        "move once": lambda run_id: line.move(process, run_id, to="last", key="a key"),
        "send now once": lambda run_id: line.send_now(process, run_id, key="a key"),
        "steer": lambda run_id, into: world.submit(process, "s", run_id, into=into),
        "submit": lambda run_id: world.submit(process, "s", run_id, when_busy="queue"),
        "follow": lambda run_id: world.submit(process, "s", run_id),
        "interrupt": lambda run_id: world.submit(process, "s", run_id, when_busy="interrupt"),
        "accept": lambda run_id: world.accept(process, "s", run_id, when_busy="queue"),
        "enter": lambda run_id: world.enter(process, run_id),
        "release": lambda run_id: world.release(process, run_id),
        "take back": d.cancel_run,
        "cancel": lambda: d.cancel("s"),
        "clear": lambda: d.clear_queue("s"),
        "cancel once": lambda: d.cancel("s", key="a key"),
        "clear once": lambda: d.clear_queue("s", key="a key"),
        "page": lambda: world.page(process, "s"),
        "messages of": lambda run_id: world.messages_of(process, run_id),
    }
