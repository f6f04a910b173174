"""Random programs of clients, runners and faults, over a network in memory and a server that is restarted.

Hypothesis draws the calls, what the network does to them, and when the server dies. At the end the network
heals and every run completes. Then the abstract session judges what callers and runners saw, within
intervals. All programs together must reach everything in `to_reach`.
"""

from __future__ import annotations

import gc
import os
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st
from hypothesis.reporting import with_reporter

from turngate import Dispatcher, Run, Subscription, Turn
from turngate._core import RunRecord, SessionCore, TurnRecord
from turngate.client import Client, EventStream, RemoteText
from turngate.durable import DurableDispatcher
from turngate.server._event_log import EventLog, LogReader
from turngate_verify.drivers.network_found import NetworkRules, Program, Rule
from turngate_verify.drivers.rules.dice import backend_of
from turngate_verify.world.network import FAULTS, Connection, Fault
from turngate_verify.world.network_world import NetworkWorld
from turngate_verify.world.virtual_loop import VirtualLoop
from turngate_verify.world.world import without_log

_CLIENTS = 2
_MOST_RUNS = 12
_MOST_RESTARTS = 2
_ATTEMPTS = 150
"""How many attempts are made to shorten a program that failed."""
_KINDS = (
    *(Client, Connection, Dispatcher, DurableDispatcher, EventLog, EventStream, LogReader, NetworkWorld),
    *(RemoteText, Run, RunRecord, SessionCore, Subscription, Turn, TurnRecord, VirtualLoop),
)
"""What is counted before and after all programs."""
_DESCRIPTORS = "/proc/self/fd"
_clients = st.integers(0, _CLIENTS - 1)
_sessions = st.sampled_from(["s", "s", "s", "t"])
_bytes = st.one_of(st.integers(0, 40), st.integers(0, 700))
_RULES: dict[str, st.SearchStrategy[Rule]] = {
    "submit": st.tuples(
        st.just("submit"), _clients, _sessions, st.sampled_from(["queue", "fold", "fold", "interrupt"])
    ),
    "again": st.tuples(st.just("again"), _clients, st.integers(0, 11)),
    "stream": st.tuples(st.just("stream"), _clients, _sessions),
    "cancel": st.tuples(st.sampled_from(["cancel", "cancel", "clear"]), _clients, _sessions, st.booleans()),
    "repeat": st.tuples(st.just("repeat"), _clients, st.integers(0, 5)),
    "read": st.tuples(st.just("read"), _clients, st.sampled_from(["s", None])),
    "look": st.tuples(st.just("look"), _clients, _sessions),
    "order": st.tuples(
        st.just("order"),
        st.integers(0, 2),
        st.sampled_from(["end", "end", "write", "write", "fold", "fold", "fail"]),
    ),
    "fault": st.tuples(st.just("fault"), st.sampled_from(FAULTS), _bytes),
    "lines": st.tuples(st.just("lines"), st.one_of(st.none(), _bytes)),
    "late": st.tuples(st.just("late"), st.integers(0, 3)),
    "steps": st.tuples(st.just("steps"), st.integers(1, 40)),
    "time": st.tuples(st.just("time"), st.sampled_from([0.2, 0.5, 3.0, 12.0])),
    "restart": st.tuples(st.just("restart"), st.sampled_from(["kill", "stop"])),
    "together": st.tuples(st.just("together"), _clients, _sessions),
    "outage": st.tuples(st.just("outage"), st.sampled_from([0.5, 6.0])),
    "ledger": st.tuples(st.just("ledger"), st.sampled_from(["away", "odd"]), st.integers(1, 6)),
}
_WEIGHTED = [
    *("submit", "submit", "submit", "submit", "again", "stream", "cancel", "cancel", "repeat", "read"),
    *("look", "order", "order", "order", "order", "fault", "fault", "fault", "fault", "lines", "late"),
    *("late", "steps", "steps", "steps", "time", "time", "restart", "ledger", "together", "outage"),
]  # fmt: skip
programs: st.SearchStrategy[Program] = st.lists(
    st.tuples(
        st.sampled_from(_WEIGHTED).flatmap(lambda name: _RULES[name]), st.sampled_from([True, True, False])
    ),
    min_size=15,
    max_size=40,
)


def to_reach(*, has_ledger: bool) -> frozenset[str]:
    """Return what all programs together must reach."""
    always = {
        *(f"fault: {each}" for each in FAULTS),
        *("restart: kill", "restart: stop", "text", "fold", "again under a key"),
        *(f"{kind}: done" for kind in ("accept", "cancel", "clear")),
        *("accept: Unreachable", "accept: OutcomeUnknown", "cancel: OutcomeUnknown"),
        *("event: Moved", "event: Delta", "event: Gap"),
        *(f"end: {each}" for each in ("finished", "failed", "cancelled", "cleared")),
    }
    return frozenset(always | ({"end: lost", "ledger"} if has_ledger else {"reset", "wait: UnknownRun"}))


def run_network_rules(examples: int, *, has_ledger: bool, seed: int = 0) -> NetworkRules:
    """Play programs up to the first that fails; the same seed gives the same programs."""
    reached: set[str] = set()
    played, before = 0, _held()
    failed: list[tuple[Program, list[str]]] = []

    @hypothesis.settings(
        max_examples=examples,
        backend=backend_of(seed),
        derandomize=True,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @hypothesis.given(programs)
    def check(program: Program) -> None:
        nonlocal played
        if failed:
            return  # Hypothesis plays a failed program once more
        wrong, seen = play(program, has_ledger=has_ledger)
        played += 1
        reached.update(seen)
        if wrong:
            failed.append((program, wrong))
            raise AssertionError(wrong[0])

    with suppress(Exception), with_reporter(lambda _: None):
        check()
    if failed:
        program, wrong = _shortened(*failed[0], has_ledger=has_ledger)
        return NetworkRules(played, frozenset(reached), frozenset(), wrong, program)
    if left := _held() - before:
        kept = ", ".join(f"{count} {name}" for name, count in sorted(left.items()))
        return NetworkRules(played, frozenset(reached), frozenset(), [f"NO_RESIDUE: left over: {kept}"], [])
    return NetworkRules(played, frozenset(reached), to_reach(has_ledger=has_ledger) - reached, [], [])


def _held() -> Counter[str]:
    """Count what this process holds: objects of every kind, and file descriptors."""
    gc.collect()
    held = Counter(type(each).__name__ for each in gc.get_objects() if isinstance(each, _KINDS))
    held["file descriptors"] = len(os.listdir(_DESCRIPTORS)) if os.path.isdir(_DESCRIPTORS) else 0
    return held


def _shortened(program: Program, wrong: list[str], *, has_ledger: bool) -> tuple[Program, list[str]]:
    """Leave out what the failure does not need, in a limited number of attempts."""
    size, attempts = max(1, len(program) // 2), 0
    while size:
        start = 0
        while start < len(program) and attempts < _ATTEMPTS:
            without = program[:start] + program[start + size :]
            attempts += 1
            still, _ = play(without, has_ledger=has_ledger)
            if still and still[0].partition(":")[0] == wrong[0].partition(":")[0]:
                program, wrong = without, still
            else:
                start += size
        size //= 2
    return program, wrong


def play(program: Program, *, has_ledger: bool) -> tuple[list[str], set[str]]:
    """Play a program; return what is wrong, and the situations that it reached."""
    with without_log(), NetworkWorld(has_ledger) as world:
        try:
            example = _Example(world)
            for rule, settles in program:
                example.follow(rule)
                if settles:
                    world.loop.settle()
            world.finish()
        except Exception as raised:
            where = traceback.extract_tb(raised.__traceback__)[-1]
            world.wrong.append(f"{raised!r} in {where.name}, {where.filename}:{where.lineno}")
        world.reached |= {f"fault: {each}" for each in world.network.struck}
        world.reached |= {f"end: {each.complete.outcome}" for each in world.completes.values()}
        return world.wrong, world.reached


class _Example:
    """Follows the rules of one program."""

    def __init__(self, world: NetworkWorld) -> None:
        self.world = world
        self._sent: list[tuple[str, str, str]] = []
        """The session, the run and the mode of every prompt."""
        self._keyed: list[tuple[int, Any, str, str]] = []
        self._restarts = 0

    def follow(self, rule: Rule) -> None:
        """Do what a rule says."""
        world = self.world
        kind, *about = rule
        match kind:
            case "submit":
                self._submit(*about)
            case "together":  # single rules hardly ever lead to a fold
                client, session = about
                for _ in range(2):
                    self._submit(client, session, "fold")
                    world.loop.settle()
                world.order(0, "fold")
            case "again" if self._sent:
                client, nth = about
                world.start(world.submit(client, *self._sent[nth % len(self._sent)]))
            case "stream" if len(self._sent) < _MOST_RUNS:
                client, session = about
                self._sent.append((session, f"r{len(self._sent)}", "queue"))
                world.start(world.stream(client, *self._sent[-1][:2]))
            case "cancel" | "clear":
                client, session, has_key = about
                key = f"key {len(self._keyed)}" if has_key else ""
                if has_key:
                    self._keyed.append((client, kind, session, key))
                world.start(world.cancel(client, kind, session, key))
            case "repeat" if self._keyed:
                client, nth = about
                first, *same = self._keyed[nth % len(self._keyed)]
                world.reached.add("again under a key")
                # Without a ledger, another client cannot know to which life the key belongs.
                world.start(world.cancel(client if world.has_ledger else first, *same))
            case "read":
                world.start(world.read(*about))
            case "look":
                world.start(world.look(*about))
            case "restart" if self._restarts < _MOST_RESTARTS:
                self._restarts += 1
                world.restart(about[0])
            case "ledger" if world.tables is not None:
                world.trouble_ledger(*about)
            case _:
                self._meanwhile(kind, *about)

    def _submit(self, client: int, session: str, when_busy: str) -> None:
        if len(self._sent) < _MOST_RUNS:
            self._sent.append((session, f"r{len(self._sent)}", when_busy))
            self.world.start(self.world.submit(client, *self._sent[-1]))

    def _meanwhile(self, kind: str, *about: Any) -> None:
        """Do what happens out of sight of the callers."""
        world = self.world
        does: dict[str, Callable[..., object]] = {
            "order": world.order,
            "fault": lambda kind, at: world.network.faults.append(Fault(kind, at)),
            "lines": world.break_lines,
            "late": world.let_through,
            "steps": lambda count: [world.loop.step() for _ in range(count)],
            "time": world.pass_time,
            "outage": world.outage,
        }
        if kind in does:
            does[kind](*about)
