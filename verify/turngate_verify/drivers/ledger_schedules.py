"""Every interleaving of two processes on one ledger: between load, save and effects, with deaths in between.

Two real dispatchers share the tables of a ledger in memory, on one virtual loop. Whenever both can only wait,
the search chooses what happens next: which message arrives (a load, a save, an answer), which runner ends, or
which fault strikes. Everything else follows deterministically. All choices are tried, depth first, except
after a state that was seen before. The result says whether the scenario was exhausted or the limit was
reached.

Each fault happens as often as the scenario says. `kill`: a process dies between two messages, and some time
later its lease expires. `lease`: a process counts as dead, and notices some time later. `lose`: the answer to
a save is lost.

Three things are judged: the history in the order of the commits, with the completions and the messages (see
`ledger_judge`); what each caller was told; and the runner calls: a runner is called only while its lead is
active on record, and two runners of a session never run at once in processes that are not given up.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Coroutine, Hashable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from turngate import Covered, Run, State, Turn, TurngateError
from turngate import Turn as DurableTurn
from turngate.durable import DurableDispatcher
from turngate_verify.ledger_judge import problems
from turngate_verify.world.ledger_line import LedgerLine
from turngate_verify.world.memory_ledger import Gate, MemoryLedger, Tables, without_chance
from turngate_verify.world.virtual_loop import VirtualLoop
from turngate_verify.world.world import without_log

Fault = Literal["kill", "lease", "lose"]
_SESSION = "s"
_ROUNDS = 60
"""How many times all processes look again before what is still in flight counts as stranded."""
NO_END = "there is no end in sight"
_CHOICES = 300
"""A schedule with more choices than this counts as endless."""


class Scenario(NamedTuple):
    """The callers, each in a task and a process of its own, and the faults."""

    name: str
    calls: tuple[tuple[int, str, str], ...]
    faults: tuple[Fault, ...] = ()
    on_death: Literal["fail", "retry"] = "fail"
    looks: int = 0
    """How many times, after a death, a process looks for orphans while something else could still happen."""
    remembers: bool = False
    """Whether a process first decides on the session as it last saved it, without a load."""


@dataclass
class Explored:
    """The result of trying every choice: whether all were tried, and the first thing that went wrong."""

    schedules: int = 0
    states: int = 0
    exhausted: bool = False
    wrong: list[str] = field(default_factory=list)
    choices: list[str] = field(default_factory=list)


class _Stage:
    """Two dispatchers, the tables, and their callers."""

    def __init__(self, scenario: Scenario, make: Any = DurableDispatcher) -> None:
        self.loop = VirtualLoop()
        self.tables = Tables(gated=True, remembers=scenario.remembers, now=self.loop.time)
        self.faults = [*scenario.faults]
        self.looks = scenario.looks
        self.wrong: list[str] = []
        self.runners: dict[tuple[int, int], asyncio.Future[None]] = {}
        self.ledgers = [MemoryLedger(self.tables, process) for process in (0, 1)]
        self.dispatchers: list[DurableDispatcher] = []
        self.line = LedgerLine(self.dispatchers)
        self.acknowledged: list[str] = []
        self._tells: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.fences: dict[str, int] = {}
        """The last fence under which each lead run began."""
        self.cancels = sum(call == "cancel" for _, call, _ in scenario.calls)
        with self.loop:
            for process, ledger in enumerate(self.ledgers):
                runner = self._runner(process)
                self.dispatchers.append(make(runner, ledger, on_death=scenario.on_death, enter_timeout=2.0))
        for d in self.dispatchers:
            self._start(d._stepper.ready())
        self.loop.settle()
        self.calls = [self._start(self._call(*call)) for call in scenario.calls]
        self.loop.settle()

    def _start(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        with self.loop:
            return self.loop.create_task(coroutine)

    async def _call(self, process: int, call: str, run_id: str) -> str:
        d = self.dispatchers[process]
        try:
            if call == "submit":
                submitting = d.submit(_SESSION, "p", run_id=run_id, when_busy="queue")
                await self.line.send(run_id, _SESSION, "p", None, submitting)
            elif call == "follow up":
                submitting = d.submit(_SESSION, "p", run_id=run_id)
                await self.line.send(run_id, _SESSION, "p", None, submitting)
            elif call == "accept":
                accepting = d.accept(_SESSION, "p", run_id=run_id, when_busy="queue")
                await self.line.send(run_id, _SESSION, "p", None, accepting)
            elif call == "edit":
                await self._told(run_id)
                await self.line.edit(process, run_id, f"{run_id}, edited")
                return "edited"
            elif call in ("hold", "resume"):
                runs = await getattr(self.line, call)(process, _SESSION)
                return f"{call}: {_names(runs)}"
            else:
                return f"covered {_names((await self._cancel(process, call, run_id)).runs)}"
        except TurngateError as refused:
            return type(refused).__name__
        if not self.ledgers[process].is_dead:
            self.acknowledged.append(run_id)
            self._tells[run_id].set()
        return "done"

    async def _told(self, run_id: str) -> None:
        """Wait until the accept of the run has been acknowledged."""
        await self._tells[run_id].wait()

    async def _cancel(self, process: int, call: str, run_id: str) -> Covered:
        if call == "stop":
            return await self.line.stop(process, _SESSION)
        if call == "send now":
            await self._told(run_id)
            return await self.line.send_now(process, run_id)
        return await self.dispatchers[process].cancel(_SESSION)

    def _runner(self, process: int) -> Any:
        async def runner(turn: Turn) -> str:
            assert isinstance(turn, DurableTurn)
            self._judge_start(process, turn)
            if self._lives(process):  # a dead process finishes nothing
                self.line.give(turn.run, starts=True)
            self.fences[turn.run.run_id] = turn.fence
            end = self.runners[process, turn.fence] = self.loop.create_future()
            try:
                await end
            finally:
                del self.runners[process, turn.fence]
            for run in await turn.fold():
                self.line.give(run, starts=False)
            return f"{turn.run.run_id} {turn.fence}"

        return runner

    def _judge_start(self, process: int, turn: DurableTurn) -> None:
        row = self.tables.runs[turn.run.run_id]
        session = self.tables.sessions[_SESSION]
        if self._lives(process):
            if session.fence == turn.fence and row.state is not State.ACTIVE:
                self.wrong.append(
                    f"ONE_TURN: the runner of {row.run_id} is called while it is {row.state.value}"
                )
            if any(self._lives(other) for other, _ in self.runners):
                self.wrong.append(f"ONE_TURN: the runner of {row.run_id} is called while another one runs")

    def _lives(self, process: int) -> bool:
        """Return whether a process runs and is not given up."""
        return (
            not self.ledgers[process].is_dead
            and self.dispatchers[process]._stepper.name in self.tables.workers
        )

    # Choosing.

    def options(self) -> list[tuple[str, Any]]:
        """Return everything that could happen next."""
        found: list[tuple[str, Any]] = []
        for gate in self.tables.gates:
            found.append(("pass", gate))
            if gate.kind == "answer" and "lose" in self.faults:
                found.append(("lose", gate))
        found += [("end", key) for key in self.runners if not self.ledgers[key[0]].is_dead]
        if found and "kill" in self.faults:
            found += [("kill", 0)]
        if found and "lease" in self.faults and self._lives(0):
            found += [("lease", 0)]
        name = self.dispatchers[0]._stepper.name
        if self.ledgers[0].is_dead and name in self.tables.workers:
            found += [("bury", 0)]
        if found and self.ledgers[0].has_lost():
            found += [("notice", 0)]
        if found and self.looks and name not in self.tables.workers:
            found += [("look", 1)]
        return found

    def take(self, option: tuple[str, Any]) -> str:
        """Let one thing happen, with its consequences; return it in words."""
        kind, what = option
        words = f"{kind} {what}"
        with self.loop:
            if kind in ("pass", "lose"):
                words = f"{kind} {what.kind} of process {what.process}"
                self.tables.gates.remove(what)
                what.passed.set_result(kind == "pass")
            elif kind == "end":
                words = f"end the runner of process {what[0]}"
                self.runners[what].set_result(None)
            elif kind == "kill":
                words = "kill process 0"
                self.ledgers[0].is_dead = True
                self.tables.gates = [gate for gate in self.tables.gates if gate.process != 0]
            elif kind == "bury":
                words = "the lease of process 0, which is dead, has expired"
                self.tables.workers.discard(self.dispatchers[0]._stepper.name)
            elif kind == "look":
                words = "process 1 looks after things"
                self.looks -= 1
                self.loop.advance(1.1)
            elif kind == "notice":
                words = "process 0 notices that its lease has expired"
                self.ledgers[0].notice()
            else:
                words = "the lease of process 0 has expired"
                self.tables.workers.discard(self.dispatchers[0]._stepper.name)
        if kind in ("lose", "kill", "lease"):
            self.faults.remove(kind)  # type: ignore[arg-type]  # it is one of these
        self.loop.settle()
        return words

    def look_again(self) -> None:
        """Let time pass, so that every process polls; resume held runs if nothing else is left."""
        flying = [row for row in self.tables.runs.values() if row.state is not State.COMPLETE]
        if flying and all(row.held for row in flying):
            self._start(self.line.resume(1, _SESSION))
        with self.loop:
            for ledger in self.ledgers:
                ledger.notice()
        self.loop.advance(1.1)
        self.loop.settle()

    def is_quiet(self) -> bool:
        """Return whether nothing is in flight and no call is under way in a living process."""
        flying = any(row.state is not State.COMPLETE for row in self.tables.runs.values())
        return not flying and not self.tables.gates

    def looks_like(self) -> Hashable:
        """Return the fingerprint of this moment: everything that matters for the future."""
        tables = self.tables
        gates = tuple(sorted(map(_looks_like, tables.gates)))
        here = tuple(
            (
                ledger.is_dead,
                ledger.has_lost(),
                d._stepper.name,
                tuple(
                    (fence, each.turn.record.phase.value, each.turn.covered, each.turn.given_up)
                    for fence, each in d._turns.owned.items()
                ),
                tuple(sorted(d._turns.covered_early)),
                ledger.cache.fingerprint(),
            )
            for ledger, d in zip(self.ledgers, self.dispatchers, strict=True)
        )
        sessions = tuple((name, *row[1:-1], len(row.recent)) for name, row in tables.sessions.items())
        rows = tuple(
            (row.run_id, row.state, row.covered, row.holder, row.rank, row.held, row.prompt)
            for row in tables.runs.values()
        )
        history = tuple(repr(entry) for told in tables.history for entry in told.entries)
        calls = tuple(str(call.result()) if call.done() else "" for call in self.calls)
        return (
            gates, here, sessions, rows, history, calls, tuple(self.faults), tuple(sorted(tables.workers)),
            tuple(sorted(self.runners)), self.looks, round(self.loop.time(), 3), self.line.claims,
        )  # fmt: skip

    # Judging.

    def judge(self) -> list[str]:
        """Return what went wrong, at the end."""
        wrong = [*self.wrong, *(str(problem) for problem in self.loop.problems)]
        if not self.is_quiet():
            wrong.append("ADOPTED: something is in flight forever")
        judging = self._start(problems(MemoryLedger(self.tables), self.acknowledged))
        self.tables.gated = False
        self.loop.settle()
        wrong += judging.result()
        wrong += self.line.problems(message for message, _ in self.tables.messages.values())
        entries = [entry for told in self.tables.history for entry in told.entries]
        if self.cancels and sum(entry["event"] == "cancel" for entry in entries) > self.cancels:
            wrong.append("a cancel was done twice")
        for run_id, (_, _, complete) in self.tables.complete.items():
            expected = f"{run_id} {self.fences.get(run_id)}"
            if complete.outcome == "finished" and not complete.folded_into and complete.text != expected:
                wrong.append(f"FENCED: {run_id} was finished by a turn that was given up: {complete.text}")
        for call in self.calls:
            if call.done() and call.result().startswith("covered "):
                for run_id in call.result().split()[1:]:
                    if not self.tables.complete[run_id].complete.cancelled:
                        wrong.append(f"FULL_COVERAGE: {run_id} was covered, and is not cancelled")
        return wrong

    def leave(self) -> None:
        """Release everything."""
        self.tables.gated = False
        for ledger in self.ledgers:
            ledger.is_dead = True
        for task in self.loop.tasks:
            task.cancel()
        for d in self.dispatchers:
            for task in [*d._stepper.tasks.tasks]:
                task.cancel()
        self.loop.settle()


def _names(runs: list[Run]) -> str:
    return " ".join(run.run_id for run in runs)


def _looks_like(gate: Gate) -> tuple[Any, ...]:
    ask, changes = gate.ask, gate.changes
    version = -1 if changes is None else changes.after.version
    entries = "" if changes is None else repr(changes.entries)
    return gate.process, gate.kind, ask.worker, ask.head, ask.run_id or "", ask.with_text, version, entries


def explore(scenario: Scenario, *, limit: int = 100_000, make: Any = DurableDispatcher) -> Explored:
    """Try every choice; stop at the first thing that goes wrong, or after this many schedules."""
    explored = Explored()
    met: set[int] = set()
    to_try: list[list[int]] = [[]]
    with without_log(), without_chance():
        while to_try:
            if explored.schedules >= limit:
                return explored
            explored.schedules += 1
            if _play(scenario, to_try.pop(), to_try, met, explored, make):
                return explored
    explored.exhausted = True
    return explored


def _play(
    scenario: Scenario,
    prefix: list[int],
    to_try: list[list[int]],
    met: set[int],
    explored: Explored,
    make: Any,
) -> bool:
    """Play the choices, then always the first option; note the others. Return whether it went wrong."""
    stage = _Stage(scenario, make)
    told: list[str] = []
    path = [*prefix]
    try:
        told += [stage.take(_options(stage)[choice]) for choice in prefix]
        while not stage.wrong:
            if len(path) > _CHOICES:
                explored.wrong, explored.choices = [NO_END], told
                return True
            options = _options(stage)
            if not options:
                break
            look = hash(stage.looks_like())
            if look in met:
                return False
            met.add(look)
            explored.states += 1
            to_try += [[*path, choice] for choice in range(1, len(options))]
            told.append(stage.take(options[0]))
            path.append(0)
        if wrong := stage.judge():
            explored.wrong, explored.choices = wrong, told
        return bool(wrong)
    finally:
        stage.leave()


def _options(stage: _Stage) -> list[tuple[str, Any]]:
    """Return what can happen; if nothing can, let every process poll until all is quiet."""
    for _ in range(_ROUNDS):
        if options := stage.options():
            return options
        if stage.is_quiet():
            return []
        stage.look_again()
    return []
