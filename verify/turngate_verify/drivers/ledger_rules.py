"""Programs of callers, runners and faults that Hypothesis draws, played on some processes and one ledger.

Whatever is drawn, at the end everything comes to its end, and the ledger is judged.
"""

from __future__ import annotations

from typing import Any, Literal

from hypothesis import strategies as st

from turngate.durable import DurableDispatcher
from turngate_verify.drivers.ledger_faults import judged
from turngate_verify.world.ledger_world import LedgerWorld
from turngate_verify.world.memory_ledger import without_chance
from turngate_verify.world.world import without_log

PROCESSES = 3
_PROCESS = st.integers(0, PROCESSES - 1)
_SESSION = st.sampled_from(["s", "s", "s", "t"])
_RUN = st.sampled_from([f"r{number}" for number in range(16)])
_WHEN_BUSY = st.sampled_from(["fold", "queue", "queue", "interrupt", "reject"])
_ORDERS = ["fold", "write", "end_turn", "end_turn", "error", "canceled"]

Rule = tuple[Any, ...]


def programs(most: int = 25) -> st.SearchStrategy[list[tuple[Rule, bool]]]:
    """Return a strategy for programs: what is done, and whether all that follows comes before the next."""
    submit = st.tuples(st.just("submit"), _PROCESS, _SESSION, _RUN, _WHEN_BUSY)
    order = st.tuples(st.just("order"), st.integers(0, 3), st.sampled_from(_ORDERS))
    rule = st.one_of(
        *[submit] * 4,
        *[order] * 2,
        st.tuples(st.just("accept"), _PROCESS, _SESSION, _RUN, _WHEN_BUSY),
        st.tuples(st.just("enter"), _PROCESS, _RUN),
        st.tuples(st.just("release"), _PROCESS, _RUN),
        st.tuples(st.just("cancel"), _PROCESS, _SESSION),
        st.tuples(st.just("take back"), _PROCESS, _RUN, st.booleans()),
        st.tuples(st.just("clear"), _PROCESS, _SESSION),
        st.tuples(st.just("page"), _PROCESS, _SESSION, st.integers(1, 3)),
        st.tuples(st.just("messages of"), _PROCESS, _RUN),
        st.tuples(st.just("step"), st.integers(1, 12)),
        st.tuples(st.just("time")),
        st.tuples(st.sampled_from(["kill", "expire", "away", "back"]), _PROCESS),
    )
    return st.lists(st.tuples(rule, st.booleans()), min_size=most // 2, max_size=most)


def play(
    program: list[tuple[Rule, bool]],
    *,
    on_death: Literal["fail", "retry"] = "fail",
    make: Any = DurableDispatcher,
) -> tuple[list[str], set[str]]:
    """Play a program; return what is wrong, and which outcomes there were."""
    with without_log(), without_chance():
        world = LedgerWorld(PROCESSES, on_death=on_death, make=make)
        for rule, settles in program:
            _follow(world, rule)
            if settles:
                world.loop.settle()
        world.let_end()
        outcomes = {each.complete.outcome for each in world.tables.complete.values()}
        return judged(world), {*outcomes}


def _follow(world: LedgerWorld, rule: Rule) -> None:
    """Do what the rule says, if it can be done; calls go on by themselves, step by step."""
    kind, *about = rule
    match kind:
        case "order":
            waiting = [lead for lead, each in world.players.items() if not each.order.done()]
            if waiting:
                with world.loop:
                    world.players[waiting[about[0] % len(waiting)]].order.set_result(about[1])
        case "step":
            for _ in range(about[0]):
                world.loop.step()
        case "time":
            world.pass_time()
        case "kill":
            if sum(not ledger.is_dead for ledger in world.ledgers) > 1:
                world.kill(about[0])
        case "expire":
            world.expire(about[0])
        case "away" | "back":
            world.ledgers[about[0]].is_away = kind == "away"
        case _:
            _call(world, kind, *about)


def _call(world: LedgerWorld, kind: str, process: int, *about: Any) -> None:
    if world.ledgers[process].is_dead:
        return
    d = world.dispatchers[process]
    if kind in ("submit", "accept"):
        session, run_id, when_busy = about
        call = world.submit if kind == "submit" else world.accept
        task = world.start(call(process, session, run_id, when_busy=when_busy))
    elif kind in ("enter", "release"):
        task = world.start((world.enter if kind == "enter" else world.release)(process, about[0]))
    elif kind == "page":
        task = world.start(world.page(process, *about))
    elif kind == "messages of":
        task = world.start(world.messages_of(process, *about))
    elif kind == "take back":
        task = world.start(d.cancel_run(about[0], waiting_only=about[1]))
    else:
        task = world.start(d.cancel(about[0]) if kind == "cancel" else d.clear_queue(about[0]))
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
