"""One fault at every call of every method of a ledger, with subscribers, cursors and waiters present.

`ledger_faults` spoils messages, and judges what is on record. This driver spoils calls, and also judges what
others have seen. Each program is played once without a fault, to count its calls, and then once for each call
of process 0 and each way in which that call can fail (see `Fault`). Afterwards every run completes, and the
dispatchers are closed. Three things are judged: what is on record, by the abstract session; what the
onlookers of both processes have received; and what the dispatchers still hold.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest.mock import patch

from turngate.durable import DurableDispatcher, _recovery
from turngate_verify.drivers.ledger_faults import Order, calls_of, judged, tell_runner
from turngate_verify.world.ledger_onlookers import Onlookers
from turngate_verify.world.ledger_world import LedgerWorld
from turngate_verify.world.memory_ledger import MemoryLedger, without_chance
from turngate_verify.world.spoiled_ledger import Fault, SpoiledLedger, spoils_of
from turngate_verify.world.world import without_log

PROGRAMS: dict[str, tuple[Order, ...]] = {
    "turns of both processes": (
        ("look on", 0), ("look on", 1), ("hooked", 0, "a"), ("order", "a", "write"), ("time", 0.3),
        ("submit", 1, "b"), ("submit", 0, "c"), ("time", 6.0), ("time", 6.0),
        ("is checkpointed", "a"), ("order", "a", "end_turn"), ("look on", 0), ("order", "b", "write"),
        ("time", 0.3), ("order", "b", "end_turn"), ("time", 1.1), ("order", "c", "error"),
        ("hooked", 0, "d"), ("from now on", 0),
    ),
    "follow-ups": (
        ("look on", 0), ("submit", 0, "a"), ("follow", 0, "b"), ("follow", 1, "c"), ("asks who waits", "a"),
        ("time", 1.1), ("order", "a", "fold"), ("order", "a", "write"), ("look on", 0), ("time", 6.0),
        ("time", 6.0), ("is checkpointed", "a"), ("hooked", 1, "d"), ("order", "a", "end_turn"),
    ),
    "cancels": (
        ("look on", 0), ("look on", 1), ("submit", 0, "a"), ("submit", 0, "b"), ("cancel once", 1),
        ("time", 1.1), ("hooked", 0, "c"), ("submit", 1, "d"), ("cancel run", 0, "c"), ("cancel run", 0, "c"),
        ("time", 1.1), ("cancel all", 0), ("submit", 0, "e"), ("clear", 0), ("cancel all", 0),
    ),
    "a lease that is lost": (
        ("look on", 0), ("hooked", 0, "a"), ("submit", 1, "b"), ("order", "a", "write"), ("expire", 0),
        ("time", 1.1), ("submit", 0, "c"), ("look on", 0), ("time", 1.1), ("order", "b", "end_turn"),
    ),
    "subscribers that come while turns end": (
        ("look on", 0), ("submit", 0, "a"), ("submit", 1, "b"), ("ends meanwhile", "a"),
        ("ends meanwhile", "b"), ("hooked", 0, "c"), ("time", 1.1), ("ends meanwhile", "c"),
    ),
    "a close": (
        ("look on", 0), ("look on", 1), ("submit", 0, "a"), ("order", "a", "write"), ("close", 0),
        ("time", 1.1),
    ),
    "questions": (
        ("look on", 0), ("submit", 0, "a"), ("submit", 1, "b"), ("accept", 0, "c"), ("find", 0, "b"),
        ("sessions", 0), ("session", 0), ("order", "a", "end_turn"), ("messages", 0), ("messages of", 0, "a"),
        ("history", 0), ("life", 0), ("from now on", 0), ("key", 0), ("purge", 0), ("enter", 0, "c"),
    ),
}  # fmt: skip
"""The actions of each program, in order: by callers, in a process, or by a runner on command."""
BACKGROUND = frozenset(
    (
        "retire", "expire_workers", "orphans", "turns_of", "checkpoint", "expire_keys", "listen",
        "has_listeners", "relay", "on_relay", "hint", "close",
    )
)  # fmt: skip
"""Methods whose failures callers and subscribers never see."""
NAMING = frozenset(("register", "keep_alive", "retire"))
"""Methods after whose failure a name may count as alive until its lease has expired."""
_POLLS = 6
"""How many times all processes look again when nothing is in flight any more."""
_CLOSING = 40
"""How many times time passes before a close counts as hanging."""


class Case(NamedTuple):
    """A program, whether it waits for many runs, and the fault."""

    program: str
    many: bool
    fault: Fault | None


class Found(NamedTuple):
    """The results of all cases, and which calls were spoiled in which ways."""

    played: int
    spoiled: Counter[tuple[str, str]]
    wrong: dict[Case, list[str]]


def search(*, every: int = 1, make: Any = DurableDispatcher, most: int = 1) -> Found:
    """Play every nth case of each method and each way to fail.

    The first case is always played, and so are the first and the last call of a method in each program,
    with a ledger that is away. Stop when `most` cases have failed.
    """
    played, spoiled, wrong = 0, Counter[tuple[str, str]](), dict[Case, list[str]]()
    with without_log(), without_chance():
        for case in _cases(every, make):
            played += 1
            problems, ledger = play(case, make)
            if case.fault is not None and ledger.struck:
                spoiled[case.fault.method, case.fault.spoil] += 1
            if problems:
                wrong[case] = problems
                if len(wrong) == most:
                    break
    return Found(played, spoiled, wrong)


def _cases(every: int, make: Any) -> Iterator[Case]:
    seen = Counter[tuple[str, str]]()
    for name in PROGRAMS:
        for many in (False, True):
            yield (plain := Case(name, many, None))
            _, ledger = play(plain, make)
            for method, calls in ledger.calls.items():
                for at, spoil in enumerate(spoils_of(method)):
                    for number in range(calls):
                        edge = spoil == "away" and not many and number in (0, calls - 1)
                        if edge or (seen[method, spoil] + at) % every == 0 or not seen[method, spoil]:
                            yield Case(name, many, Fault(method, number, spoil))
                        seen[method, spoil] += 1


def play(case: Case, make: Any = DurableDispatcher) -> tuple[list[str], SpoiledLedger]:
    """Play a program with its fault; return the problems, and the ledger of process 0."""
    spoiled: list[SpoiledLedger] = []

    def wrap(ledger: MemoryLedger) -> Any:
        if ledger.process != 0:
            return ledger
        spoiled.append(SpoiledLedger(ledger, case.fault))
        return spoiled[0]

    with patch.object(_recovery, "_FEW", 0 if case.many else _recovery._FEW):
        world = LedgerWorld(2, make=make, wrap=wrap)
        method = None if case.fault is None else case.fault.method
        onlookers = Onlookers(
            world, begin_late=method == "read_point", leaves_runs=method in ("step", "read_point")
        )
        for order in PROGRAMS[case.program]:
            _do(world, onlookers, order)
        for _ in range(_POLLS):
            world.pass_time()
            world.let_end()
        (ledger,) = spoiled
        in_sight = method not in BACKGROUND
        wrong = onlookers.judge_quiet(entitled=in_sight and ledger.struck)
        _close(world, onlookers)
        wrong += onlookers.judge_closed(entitled=in_sight and ledger.struck)
        if world.tables.workers and method not in NAMING:
            wrong.append(f"workers {world.tables.workers} count as alive when all are closed")
        return [*wrong, *judged(world)], ledger


def _close(world: LedgerWorld, onlookers: Onlookers) -> None:
    closing = [onlookers.call("a close", d.aclose(finish=1.0)) for d in world.dispatchers]
    for _ in range(_CLOSING):
        world.loop.settle()
        if all(task.done() for task in closing):
            break
        world.pass_time(0.5)
    world.pass_time()


def _do(world: LedgerWorld, onlookers: Onlookers, order: Order) -> None:
    kind, process, *about = order
    match kind:
        case "order":
            tell_runner(world, process, about[0])
        case "time":
            world.pass_time(process)
        case "look on":
            onlookers.look_on(process)
        case "expire":
            world.expire(process)
        case "close":
            onlookers.close(process)
        case "ends meanwhile":
            _look_on_while_it_ends(world, onlookers, process)
        case "is checkpointed":
            _expect_checkpoint(world, process)
        case "asks who waits":
            if (player := world.players.get(process)) is not None:
                with world.loop:
                    player.turn.waiting()
        case _:
            call = _calls_of(world, onlookers, process)[kind]
            onlookers.call(f"{kind} in process {process}", call(*about))
    world.loop.settle()


def _calls_of(world: LedgerWorld, onlookers: Onlookers, process: int) -> dict[str, Callable[..., Any]]:
    d = world.dispatchers[process]
    return calls_of(world, process) | {
        "submit": lambda run_id: onlookers.submit(process, run_id, when_busy="queue"),
        "hooked": lambda run_id: onlookers.submit(process, run_id, when_busy="queue", hooked=True),
        "follow": lambda run_id: onlookers.submit(process, run_id),
        "cancel run": lambda run_id: d.cancel_run(run_id, key=f"cancel {run_id}"),
        "cancel all": lambda: d.cancel_all(key="cancel all"),
        "from now on": lambda: onlookers.from_now_on(process),
        "find": d.find,
        "sessions": d.sessions,
        "session": lambda: d.session("s"),
        "messages": lambda: d.messages.list("s"),
        "history": lambda: d.write_history(io.StringIO()),
        "life": lambda: _life(d),
        "key": lambda: d.knows_key("a key"),
        "purge": lambda: d.purge(before=0.0),
    }


def _look_on_while_it_ends(world: LedgerWorld, onlookers: Onlookers, lead: str) -> None:
    """Let a turn end, and subscribe at several moments while the step is on its way to the ledger."""
    player = world.players.get(lead)
    if player is not None and not player.order.done():
        with world.loop:
            player.order.set_result("end_turn")
        for _ in range(4):
            for _ in range(3):
                world.loop.step()
            onlookers.look_on(0, readers=False)


def _expect_checkpoint(world: LedgerWorld, lead: str) -> None:
    """Expect the ledger to have what the turn of a run has written, if its process still has the turn."""
    player, point = world.players.get(lead), world.tables.checkpoints.get("s")
    turn = None if player is None else player.turn
    if turn is not None and not turn.is_over and not turn.given_up:
        written = "".join(turn.parts)
        if point is None or point.text != written:
            world.wrong.append(f"{written!r} of {lead} is not saved by a checkpoint")


async def _life(d: DurableDispatcher) -> None:
    await d.continues_life(await d.key_life())
