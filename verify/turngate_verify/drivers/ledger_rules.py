"""Random programs of callers, runners and faults, played on some processes and one ledger.

Callers use every operation, in any process, with and without keys, and repeat calls under a key. Every
program ends with the completion of all runs. Then the ledger is judged, and so is what callers and runners
were told. All programs together must reach everything in `to_reach`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine
from typing import Any, Literal, NamedTuple

from turngate import State
from turngate.durable import DurableDispatcher
from turngate_verify.drivers.ledger_faults import judged
from turngate_verify.drivers.ledger_situations import SITUATIONS, situations
from turngate_verify.world.ledger_world import LedgerWorld
from turngate_verify.world.memory_ledger import without_chance
from turngate_verify.world.world import without_log

PROCESSES = 3
RULES = 40
"""How many rules the longest programs have."""
OnDeath = Literal["fail", "retry"]
Rule = tuple[Any, ...]
Program = list[tuple[Rule, bool]]
"""An action, and whether all its consequences come before the next one."""

OPERATIONS = (
    "send", "cancel", "cancel_run", "clear_queue", "hold", "hold_run", "resume", "resume_run", "stop", "move",
    "edit", "send_now",
)  # fmt: skip
_REFUSALS = ("KeyConflict", "NotRunning", "NotWaiting", "RunConflict", "SessionBusy", "UnknownRun")
_OUTCOMES = ("cancelled", "cleared", "failed", "finished", "released")


def to_reach(on_death: OnDeath) -> frozenset[str]:
    """Return what all examples together must reach."""
    outcomes = (*_OUTCOMES, "lost") if on_death == "fail" else _OUTCOMES
    return frozenset(
        {
            *OPERATIONS,
            "again under a key",
            *(f"refused: {each}" for each in _REFUSALS),
            *(f"end: {each}" for each in outcomes),
            *SITUATIONS,
        }
    )


class LedgerRules(NamedTuple):
    """The result of the rules on a ledger."""

    examples: int
    reached: frozenset[str]
    missed: frozenset[str]
    """Situations that should have been reached and were not."""
    wrong: list[str]
    """What is wrong in the first program that failed, once it is shortened."""
    program: Program


def run_ledger_rules(
    examples: int,
    *,
    on_death: OnDeath = "fail",
    make: Any = DurableDispatcher,
    seed: int = 0,
    rules: int = RULES,
) -> LedgerRules:
    """Play programs up to the first that fails; the same seed gives the same programs."""
    reached = set[str]()
    for number in range(examples):
        program = drawn(random.Random(f"{seed} {number}"), rules)  # noqa: S311 - not a secret
        wrong, seen = play(program, on_death=on_death, make=make)
        reached |= seen
        if wrong:
            shorter = _shorter(program, lambda each: bool(play(each, on_death=on_death, make=make)[0]))
            wrong, _ = play(shorter, on_death=on_death, make=make)
            return LedgerRules(number + 1, frozenset(reached), frozenset(), wrong, shorter)
    return LedgerRules(examples, frozenset(reached), to_reach(on_death) - reached, [], [])


def _shorter(program: Program, fails: Callable[[Program], bool]) -> Program:
    """Leave out what the failure does not need: halves, quarters and so on, down to single rules."""
    size = len(program) // 2
    while size:
        for start in range(0, len(program), size):
            without = program[:start] + program[start + size :]
            if fails(without):
                program = without
                break
        else:
            size //= 2
    return program


def drawn(dice: random.Random, most: int) -> Program:
    """Return a program of at most this many rules."""
    return [
        (_RULES[dice.choice(_WEIGHTED)](dice), dice.random() < 0.6) for _ in range(dice.randint(10, most))
    ]


_ORDERS = ["fold", "fold", "write", "end_turn", "end_turn", "error", "canceled"]


def _process(dice: random.Random) -> int:
    return dice.randrange(PROCESSES)


def _session(dice: random.Random) -> str:
    return dice.choice("ssst")


def _new(dice: random.Random) -> tuple[Any, ...]:
    when_busy = dice.choice(["fold", "fold", "queue", "queue", "queue", "interrupt", "reject"])
    return _process(dice), _session(dice), f"r{dice.randrange(24)}", when_busy, dice.random() < 0.3


def _nth(dice: random.Random) -> int:
    """Draw a run: most of the time a waiting one; see `_Example.run`."""
    return dice.randrange(16)


def _turn(dice: random.Random) -> str | None:
    return dice.choice([None, None, None, "active", "other"])


def _has_key(dice: random.Random) -> bool:
    return dice.random() < 0.3


_RULES: dict[str, Callable[[random.Random], Rule]] = {
    "submit": lambda dice: ("submit", *_new(dice)),
    "accept": lambda dice: ("accept", *_new(dice)),
    "steer": lambda dice: ("steer", *_new(dice)[:3], dice.random() < 0.5),
    "order": lambda dice: (
        "order", dice.randrange(4), dice.choice(_ORDERS),
    ),
    "enter": lambda dice: (dice.choice(["enter", "enter", "release"]), _process(dice), _nth(dice)),
    "cancel": lambda dice: (dice.choice(["cancel", "clear"]), _process(dice), _session(dice), _has_key(dice)),
    "take back": lambda dice: (
        "take back", _process(dice), _nth(dice), dice.random() < 0.5, _has_key(dice),
    ),
    "hold": lambda dice: ("hold", _process(dice), _session(dice), _has_key(dice)),
    "resume": lambda dice: ("resume", _process(dice), _session(dice), _has_key(dice)),
    "some run": lambda dice: (
        dice.choice(["hold run", "resume run"]), _process(dice), _nth(dice), _has_key(dice),
    ),
    "stop": lambda dice: ("stop", _process(dice), _session(dice), _turn(dice), _has_key(dice)),
    "send now": lambda dice: ("send now", _process(dice), _nth(dice), _turn(dice), _has_key(dice)),
    "move": lambda dice: (
        "move", _process(dice), _nth(dice), dice.choice(["first", "first", "last", "before"]), _nth(dice),
        _has_key(dice),
    ),
    "edit": lambda dice: (
        "edit", _process(dice), _nth(dice), dice.choice([None, None, "fold", "queue"]), dice.random() < 0.5,
        _has_key(dice),
    ),
    "again": lambda dice: (dice.choice(["again", "again", "conflict"]), _process(dice), _nth(dice)),
    "read": lambda dice: (
        ("page", _process(dice), _session(dice), dice.randint(1, 3))
        if dice.random() < 0.5
        else ("messages of", _process(dice), _nth(dice))
    ),
    "step": lambda dice: ("step", dice.randint(1, 12)),
    "time": lambda dice: ("time",),
    "away": lambda dice: (dice.choice(["away", "back"]), _process(dice)),
    "die": lambda dice: (
        dice.choice(["kill", "expire"]), _process(dice) if dice.random() < 0.4 else _session(dice),
    ),
}  # fmt: skip
_WEIGHTS = {"submit": 8, "order": 5, "move": 2, "edit": 2, "again": 2, "resume": 2, "steer": 2, "accept": 2}
_WEIGHTED = [kind for kind in _RULES for _ in range(_WEIGHTS.get(kind, 1))]


def play(
    program: Program, *, on_death: OnDeath = "fail", make: Any = DurableDispatcher
) -> tuple[list[str], set[str]]:
    """Play a program; return what is wrong, and the situations that it reached."""
    with without_log(), without_chance():
        example = _Example(LedgerWorld(PROCESSES, on_death=on_death, make=make))
        world = example.world
        for rule, settles in program:
            example.follow(rule)
            if settles:
                world.loop.settle()
        world.judge_waits()
        world.let_end()
        reached = {f"end: {each.complete.outcome}" for each in world.tables.complete.values()}
        reached |= {*world.line.seen, *situations(world.tables.history), *example.reached}
        return judged(world), reached


class _Example:
    """One program while it is played."""

    def __init__(self, world: LedgerWorld) -> None:
        self.world = world
        self.reached: set[str] = set()
        self._keyed: list[tuple[str, tuple[Any, ...]]] = []
        """The calls under each key; the number of a key is its index here."""
        self._edits = 0

    def follow(self, rule: Rule) -> None:
        """Do what the rule says, if possible; calls continue by themselves, step by step."""
        world = self.world
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
            case "kill" | "expire":
                self._die(kind, about[0])
            case "away" | "back":
                world.ledgers[about[0]].is_away = kind == "away"
            case "again":
                self._again(*about)
            case _:
                self._begin(kind, *about)

    def _die(self, kind: str, which: int | str) -> None:
        """Let a process die, or count as dead: this one, or the owner of the turn of a session."""
        world = self.world
        row = world.tables.sessions.get(str(which))
        names = [each._stepper.name for each in world.dispatchers]
        owner = names.index(row.owner) if row is not None and row.owner in names else 0
        process = which if isinstance(which, int) else owner
        if kind == "kill" and sum(not ledger.is_dead for ledger in world.ledgers) == 1:
            return
        held = [row for row in world.tables.runs.values() if row.held]
        if held and any(row.owner == names[process] for row in world.tables.sessions.values()):
            self.reached.add("the owner of a turn dies while a run is held")
        (world.kill if kind == "kill" else world.expire)(process)

    def _begin(self, kind: str, process: int, *about: Any) -> None:
        """Begin a call. For operations that take a key, the last argument says whether to use one."""
        if self.world.ledgers[process].is_dead:
            return
        if kind in ("submit", "accept", "steer", "enter", "release", "page", "messages of", "conflict"):
            self._start(self._plain(kind, process, *about))
            return
        *unkeyed, has_key = about
        said = self._said(kind, *unkeyed)
        if not has_key:
            self._start(self._operation(kind, process, None, *said))
            return
        self._keyed.append((kind, said))
        self._start(self._operation(kind, process, f"key {len(self._keyed) - 1}", *said))

    def _start(self, call: Coroutine[Any, Any, Any] | None) -> None:
        if call is not None:
            task = self.world.start(call)
            task.add_done_callback(lambda done: done.cancelled() or done.exception())

    def _again(self, process: int, nth: int) -> None:
        """Repeat a call under its key, perhaps in another process."""
        if self._keyed and not self.world.ledgers[process].is_dead:
            number = nth % len(self._keyed)
            kind, said = self._keyed[number]
            self._start(self._operation(kind, process, f"key {number}", *said))

    def _plain(self, kind: str, process: int, *about: Any) -> Coroutine[Any, Any, Any] | None:
        world = self.world
        match kind, about:
            case (("submit" | "accept"), (session, run_id, when_busy, has_data)):
                call = world.submit if kind == "submit" else world.accept
                data = {"of": run_id} if has_data else None
                return call(process, session, run_id, when_busy=when_busy, data=data)
            case "steer", (session, run_id, enters):
                row = world.tables.sessions.get(session)
                into = (row.lead if row is not None else None) or "no such run"
                call = world.submit if enters else world.accept
                return call(process, session, run_id, into=into)
            case (("enter" | "release"), (nth,)):
                return (world.enter if kind == "enter" else world.release)(
                    process, self.run(nth, State.ACCEPTED)
                )
            case "page", about:
                return world.page(process, *about)
            case "messages of", (nth,):
                return world.messages_of(process, self.run(nth))
            case _:
                (nth,) = about
                if not self._keyed:
                    return None
                key, request = f"key {nth % len(self._keyed)}", f"no session {nth}"
                return world.line.resume(process, request, key=key)

    def _said(self, kind: str, *about: Any) -> tuple[Any, ...]:
        """Return the arguments of a call, which names runs; the rule only says which waiting run."""
        match kind, about:
            case "take back", (nth, waiting_only):
                return self.run(nth), waiting_only
            case (("hold run" | "resume run"), (nth,)):
                return (self.run(nth),)
            case "stop", (session, turn):
                return session, self._turn(session, turn)
            case "send now", (nth, turn):
                run_id = self.run(nth, State.QUEUED)
                row = self.world.tables.runs.get(run_id)
                return run_id, self._turn("" if row is None else row.session_id, turn)
            case "move", (nth, where, other):
                return self.run(nth), where, self.run(other)
            case "edit", (nth, when_busy, has_data):
                self._edits += 1
                return self.run(nth), f"edit {self._edits}", when_busy, has_data
            case _:
                return about

    def run(self, nth: int, *states: State) -> str:
        """Return one of the waiting runs or, now and then, any run at all."""
        rows = self.world.tables.runs.values()
        wanted = states or (State.ACCEPTED, State.QUEUED)
        names = [row.run_id for row in rows if row.state in wanted]
        if nth > 12 or not names:
            names = [*(row.run_id for row in rows), "no such run"]
        return names[nth % len(names)]

    def _turn(self, session: str, which: str | None) -> str | None:
        row = self.world.tables.sessions.get(session)
        return None if which is None else "r0" if which == "other" or row is None else row.lead

    def _operation(self, kind: str, process: int, key: str | None, *said: Any) -> Coroutine[Any, Any, Any]:
        d, line = self.world.dispatchers[process], self.world.line
        match kind, said:
            case "cancel", (session,):
                return line.take_back("cancel", key, d.cancel(session, key=key), session)
            case "clear", (session,):
                return line.take_back("clear_queue", key, d.clear_queue(session, key=key), session)
            case "take back", (run_id, waiting_only):
                cancelling = d.cancel_run(run_id, waiting_only=waiting_only, key=key)
                return line.take_back("cancel_run", key, cancelling, run_id, waiting_only)
            case "hold", (session,):
                return line.hold(process, session, key=key)
            case "resume", (session,):
                return line.resume(process, session, key=key)
            case "hold run", (run_id,):
                return line.hold_run(process, run_id, key=key)
            case "resume run", (run_id,):
                return line.resume_run(process, run_id, key=key)
            case "stop", (session, turn):
                return line.stop(process, session, turn, key=key)
            case "send now", (run_id, turn):
                return line.send_now(process, run_id, turn, key=key)
            case "move", (run_id, "before", other):
                return line.move(process, run_id, before=other, key=key)
            case "move", (run_id, to, _):
                return line.move(process, run_id, to=to, key=key)
            case _, (run_id, prompt, when_busy, has_data):
                data = {"edited": run_id} if has_data else None
                return line.edit(process, run_id, prompt, data, key, when_busy=when_busy)
        raise AssertionError(f"no such operation: {kind}")
